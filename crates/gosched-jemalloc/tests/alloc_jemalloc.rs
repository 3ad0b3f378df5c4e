//! jemalloc under `OnThread`: a cache per thread, none per goroutine, and blocks that go everywhere.

#[path = "../../gosched/tests/allocator/mod.rs"]
mod allocator;
#[path = "../../gosched/tests/common/mod.rs"]
mod common;

use gosched::alloc::OnThread;
use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: OnThread<Jemalloc> = OnThread::new(Jemalloc);

#[test]
fn blocks_change_goroutines_and_threads() {
    allocator::blocks_change_goroutines_and_threads();
}

#[test]
fn blocks_change_hands_under_shared_thread_locals() {
    allocator::blocks_change_hands_under_shared_thread_locals();
}

#[test]
fn threads_of_goroutines_allocate() {
    allocator::threads_of_goroutines_allocate();
}

#[test]
fn panics_free_and_arrive() {
    allocator::panics_free_and_arrive();
}

#[test]
fn blocks_outlive_their_threads() {
    allocator::blocks_outlive_their_threads("blocks_outlive_their_threads");
}

#[test]
fn parked_goroutines_stay_small() {
    let bare = Some((ALLOCATOR.get_ref() as _, 40));
    allocator::parked_goroutines_stay_small("parked_goroutines_stay_small", bare);
}
