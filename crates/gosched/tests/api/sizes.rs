//! Types that replace std's and crossbeam's are no larger in an `Option` where those are not.

use gosched::chan::{Receiver, Sender};
use gosched::thread::{JoinHandle, ScopedJoinHandle, Thread, ThreadId};

/// Whether an `Option` of the type needs no room of its own.
fn is_free<T>() -> bool {
    size_of::<Option<T>>() == size_of::<T>()
}

/// A type of ours is as free in an `Option` as the type that it replaces.
#[track_caller]
fn assert_as_free<Ours, Theirs>() {
    assert!(is_free::<Theirs>(), "the type to compare with is not free");
    assert!(
        is_free::<Ours>(),
        "{}: {} bytes, in an Option {}",
        std::any::type_name::<Ours>(),
        size_of::<Ours>(),
        size_of::<Option<Ours>>()
    );
}

#[test]
fn an_option_of_a_thread_type_is_as_small_as_stds() {
    assert_as_free::<ThreadId, std::thread::ThreadId>();
    assert_as_free::<Thread, std::thread::Thread>();
    assert_as_free::<JoinHandle<u8>, std::thread::JoinHandle<u8>>();
    assert_as_free::<ScopedJoinHandle<'_, u8>, std::thread::ScopedJoinHandle<'_, u8>>();
}

#[test]
fn handles_are_no_larger_than_stds() {
    assert!(size_of::<Thread>() <= size_of::<std::thread::Thread>());
    assert!(size_of::<JoinHandle<u8>>() <= size_of::<std::thread::JoinHandle<u8>>());
    assert!(size_of::<Sender<u8>>() <= size_of::<std::sync::mpsc::Sender<u8>>());
    assert!(size_of::<Receiver<u8>>() <= size_of::<std::sync::mpsc::Receiver<u8>>());
    assert_eq!(
        size_of::<gosched::sync::mpsc::Sender<u8>>(),
        size_of::<Sender<u8>>()
    );
    assert_eq!(
        size_of::<gosched::sync::mpsc::Receiver<u8>>(),
        size_of::<Receiver<u8>>()
    );
}

/// The null pointer is a receiver on which nothing comes, which saves a comparison per case of a
/// select. So an `Option` of a receiver takes a word more than the receiver, which makes it as
/// large as std's.
#[test]
fn an_option_of_a_channels_handle_is_no_larger_than_stds() {
    use std::sync::mpsc;
    assert_as_free::<Sender<u8>, mpsc::Sender<u8>>();
    assert!(size_of::<Option<Receiver<u8>>>() <= size_of::<Option<mpsc::Receiver<u8>>>());
}

#[test]
fn locks_and_guards_are_as_small_in_an_option_as_stds() {
    use gosched::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};
    assert_as_free::<MutexGuard<'_, u8>, std::sync::MutexGuard<'_, u8>>();
    assert_as_free::<RwLockReadGuard<'_, u8>, std::sync::RwLockReadGuard<'_, u8>>();
    assert_as_free::<RwLockWriteGuard<'_, u8>, std::sync::RwLockWriteGuard<'_, u8>>();
}
