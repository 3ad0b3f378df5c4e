//! mimalloc under `OnThread`: a heap per thread, none per goroutine, and blocks that go everywhere.

mod allocator;
mod common;

use gosched::alloc::OnThread;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: OnThread<MiMalloc> = OnThread::new(MiMalloc);

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
    let bare = Some((ALLOCATOR.get_ref() as _, 200));
    allocator::parked_goroutines_stay_small("parked_goroutines_stay_small", bare);
}
