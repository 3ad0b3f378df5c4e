//! A lock may be freed as soon as another goroutine can have had it: an unlock does not touch the
//! lock after it has released it.
//!
//! The last user of a lock overwrites its memory, checks for a while that nothing writes there, and
//! frees it.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gosched::sync::{Arc, Mutex, Once, RwLock, Semaphore, WaitGroup};
use gosched::thread;

use super::{LONG, run, runtime};
use crate::common::within;

const PATTERN: u8 = 0x5A;

/// Memory with something in it that several use and one ends.
struct Shared<T>(*mut MaybeUninit<T>);

// SAFETY: its content is Sync, and the users below do not use it after its end.
unsafe impl<T: Sync> Send for Shared<T> {}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Shared(self.0)
    }
}

impl<T> Shared<T> {
    fn new(value: T) -> Shared<T> {
        Shared(Box::into_raw(Box::new(MaybeUninit::new(value))))
    }

    fn get(&self) -> &T {
        // SAFETY: it exists until the last user calls `end`.
        unsafe { (*self.0).assume_init_ref() }
    }

    /// No other user is left.
    fn end(self) {
        // SAFETY: the caller is the last user, so no reference is left; the memory is this value's
        // until it is freed.
        unsafe {
            ptr::drop_in_place((*self.0).as_mut_ptr());
            let bytes: *mut u8 = self.0.cast();
            ptr::write_bytes(bytes, PATTERN, size_of::<T>());
            for _ in 0..300 {
                for at in 0..size_of::<T>() {
                    assert_eq!(
                        bytes.add(at).read_volatile(),
                        PATTERN,
                        "touched after its end"
                    );
                }
                std::hint::spin_loop();
            }
            drop(Box::from_raw(self.0));
        }
    }
}

/// `uses` says whether its user was the last one; then that one ends the thing. Several do so at
/// once, often.
fn used_and_ended<T: Sync + Send + 'static>(
    make: fn() -> T,
    users: usize,
    uses: fn(&T, usize) -> bool,
) {
    run(2, "used and ended", || {
        for round in 0..2000 {
            let shared = Shared::new(make());
            let group = WaitGroup::new();
            for number in 0..users {
                let (shared, group) = (shared.clone(), group.clone());
                group.add(1);
                let user = move || {
                    if uses(shared.get(), number) {
                        shared.end();
                    }
                    group.done();
                };
                match (round + number) % 2 {
                    0 => drop(std::thread::spawn(user)),
                    _ => gosched::go(user),
                }
            }
            group.wait();
        }
    });
}

#[test]
fn a_mutex_is_not_touched_after_the_unlock() {
    used_and_ended(
        || Mutex::new(0),
        4,
        |mutex, number| {
            let mut count = mutex.lock().unwrap();
            if number < 2 {
                thread::sleep(Duration::from_micros(20)); // so that the others queue
            }
            *count += 1;
            *count == 4
        },
    );
}

#[test]
fn a_rwlock_is_not_touched_after_the_unlock() {
    used_and_ended(
        || RwLock::new(AtomicUsize::new(0)),
        4,
        |lock, number| {
            let count = |count: &AtomicUsize| {
                thread::yield_now();
                count.fetch_add(1, SeqCst) + 1
            };
            // The last one to have left, not the last one to have come, may end it.
            match number % 2 {
                0 => drop(lock.read().map(|guard| count(&guard))),
                _ => drop(lock.write().map(|guard| count(&guard))),
            }
            let left = lock.write().unwrap().fetch_add(1, SeqCst) + 1;
            left == 8
        },
    );
}

#[test]
fn a_semaphore_is_not_touched_after_the_release() {
    used_and_ended(
        || (Semaphore::new(1), AtomicUsize::new(0)),
        4,
        |(semaphore, count), number| {
            let _permit = semaphore.acquire();
            if number < 2 {
                thread::sleep(Duration::from_micros(20));
            }
            count.fetch_add(1, SeqCst) == 3
        },
    );
}

#[test]
fn a_once_is_not_touched_when_it_is_complete() {
    used_and_ended(
        || (Once::new(), AtomicUsize::new(0)),
        3,
        |(once, left), number| {
            // Two wait for the third, and the last of the two ends it; the third may still be on
            // its way out.
            match number {
                0 => {
                    once.call_once(thread::yield_now);
                    false
                }
                _ => {
                    once.wait();
                    left.fetch_add(1, SeqCst) == 1
                }
            }
        },
    );
}

/// The same with a plain Arc, which the last user frees at once.
#[test]
fn an_arc_is_freed_by_whoever_comes_last() {
    let (one, other) = (runtime(1), runtime(1));
    within(LONG, "arcs", || {
        for _ in 0..500 {
            let mutex = Arc::new(Mutex::new(vec![0_u8; 16]));
            let uses = |mutex: Arc<Mutex<Vec<u8>>>| move || mutex.lock().unwrap()[3] += 1;
            let a = one.spawn(uses(Arc::clone(&mutex)));
            let b = other.spawn(uses(Arc::clone(&mutex)));
            uses(mutex)();
            a.join().unwrap();
            b.join().unwrap();
        }
    });
}
