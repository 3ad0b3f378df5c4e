//! mimalloc under `OnThread`: one heap per thread and none per goroutine, blocks that are freed
//! anywhere, and goroutines that are preempted inside the allocator.
//!
//! A binary of its own because: its global allocator is mimalloc.

#[path = "../allocator/mod.rs"]
mod allocator;
#[path = "../common/mod.rs"]
mod common;
#[path = "../preempt/holders.rs"]
mod holders;
mod preempted;
#[path = "../preempt/spin.rs"]
mod spin;

use gosched::alloc::OnThread;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: OnThread<MiMalloc> = OnThread::new(MiMalloc);

allocator::tests!(Some((ALLOCATOR.get_ref() as _, 200)));
