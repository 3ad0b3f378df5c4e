//! mimalloc under `OnThread`: a heap per thread, none per goroutine, and blocks that go everywhere.

mod allocator;
mod common;

use gosched::alloc::OnThread;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: OnThread<MiMalloc> = OnThread::new(MiMalloc);

allocator::tests!(Some((ALLOCATOR.get_ref() as _, 200)));
