//! The system's allocator under `OnThread`: it needs no wrapper and works in one.

mod allocator;
mod common;

use std::alloc::System;

use gosched::alloc::OnThread;

#[global_allocator]
static ALLOCATOR: OnThread<System> = OnThread::new(System);

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
    let bare = None;
    allocator::parked_goroutines_stay_small("parked_goroutines_stay_small", bare);
}
