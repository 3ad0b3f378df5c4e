//! jemalloc under `OnThread`: a cache per thread, none per goroutine, and blocks that go everywhere.

#[path = "../../gosched/tests/allocator/mod.rs"]
mod allocator;
#[path = "../../gosched/tests/common/mod.rs"]
mod common;

use gosched::alloc::OnThread;
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: OnThread<Jemalloc> = OnThread::new(Jemalloc);

allocator::tests!(Some((ALLOCATOR.get_ref() as _, 40)));
