//! Futexes of goroutines, without the hook: the table, and wake-ups that are left to the waker.

use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{FutexEnd, counts_of, wait, wake};
use crate::sched::Sched;
use crate::sched::model::current::current_g;
use crate::sched::waiting::futex_late::{owe, serve, start, want};
use crate::sched::waiting::sema::{FUTEX, NEVER, key_of, lock, owed_of};
use crate::shim::Futex;
use crate::sys;

/// Each test counts what it leaves to the waker.
static TURN: Mutex<()> = Mutex::new(());

fn run(test: impl FnOnce() + Send) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    crate::run(test);
}

/// Goroutines that wait while the word is 0; how many have been woken.
fn waiters(
    word: &Arc<AtomicU32>,
    n: usize,
) -> (Vec<crate::thread::JoinHandle<()>>, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let counts = counts_of(key_of(&**word) | FUTEX);
    let before = counts.goroutines.load(SeqCst) as usize; // another word may share the bucket
    let all = (0..n)
        .map(|_| {
            let (word, woken) = (Arc::clone(word), Arc::clone(&woken));
            crate::thread::spawn(move || {
                assert_eq!(wait(key_of(&*word), 0, NEVER), FutexEnd::Woken);
                woken.fetch_add(1, SeqCst);
            })
        })
        .collect();
    until(|| counts.goroutines.load(SeqCst) as usize >= before + n);
    (all, woken)
}

fn until(mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60));
        crate::yield_now();
    }
}

fn join(all: Vec<crate::thread::JoinHandle<()>>) {
    all.into_iter().for_each(|g| g.join().unwrap());
}

#[test]
fn a_wait_ends_by_its_word_its_time_or_a_wake_up() {
    run(|| {
        let word = Arc::new(AtomicU32::new(0));
        let at = key_of(&*word);
        assert_eq!(wait(at, 1, NEVER), FutexEnd::Changed);
        assert_eq!(wait(at, 0, 1), FutexEnd::TimedOut);
        let soon = sys::deadline_after(Duration::from_millis(5));
        assert_eq!(wait(at, 0, soon), FutexEnd::TimedOut);
        assert!(sys::monotonic_ns() >= soon);
        for bad in [0, 8, usize::MAX - 3, 1 << 63, 0x8000_0000_0000] {
            assert_eq!(wait(bad, 0, NEVER), FutexEnd::Fault, "{bad:#x}");
        }
        let (all, woken) = waiters(&word, 3);
        assert_eq!(wake(at, 2, |_| 0), 2);
        until(|| woken.load(SeqCst) == 2);
        assert_eq!(wake(at, 2, |_| 0), 1);
        join(all);
        assert_eq!(wake(at, 2, |_| unreachable!("no thread is counted")), 0);
    });
}

/// The address of a futex may be that of a lock a moment later.
#[test]
fn a_late_wake_up_leaves_locks_alone() {
    run(|| {
        let lock = Arc::new(crate::sync::Semaphore::new(0));
        let waiter = {
            let lock = Arc::clone(&lock);
            crate::thread::spawn(move || lock.acquire_timeout(Duration::from_millis(50)).is_none())
        };
        while !waiter.is_finished() {
            for word in 0..2 {
                wake(Arc::as_ptr(&lock).addr() + word * 4, 1, |_| 0);
                owe((Arc::as_ptr(&lock).addr() + word * 4) | FUTEX);
            }
            serve();
            crate::yield_now();
        }
        assert!(waiter.join().unwrap(), "it was given a permit");
    });
}

/// Finds words in one bucket.
fn two_of_a_bucket() -> [Arc<AtomicU32>; 2] {
    let first = Arc::new(AtomicU32::new(0));
    let owed = |word: &AtomicU32| std::ptr::from_ref(owed_of(key_of(word) | FUTEX));
    let mut others = Vec::new();
    loop {
        let other = Arc::new(AtomicU32::new(0));
        if owed(&other) == owed(&first) {
            return [first, other];
        }
        others.push(other);
    }
}

#[test]
fn what_is_owed_is_served() {
    run(|| {
        let [one, other] = two_of_a_bucket();
        let (first, _) = waiters(&one, 4);
        let (second, woken) = waiters(&other, 4);
        owe(key_of(&*one) | FUTEX);
        owe(key_of(&*one) | FUTEX);
        serve();
        join(first);
        assert_eq!(woken.load(SeqCst), 0, "the other word's");
        // Two words at once: all of the bucket.
        let (first, _) = waiters(&one, 4);
        owe(key_of(&*one) | FUTEX);
        owe(key_of(&*other) | FUTEX);
        serve();
        join(first);
        join(second);
    });
}

/// The bucket's lock is held by the code that the handler has interrupted, as far as a plain thread
/// can know.
#[test]
fn a_thread_waits_for_no_lock() {
    want();
    start().unwrap();
    run(|| {
        let word = Arc::new(AtomicU32::new(0));
        let at = key_of(&*word);
        let (all, woken) = waiters(&word, 4);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = lock(at | FUTEX);
                assert_eq!(wake(at, 4, |_| 0), 0);
                assert_eq!(woken.load(SeqCst), 0);
                drop(held);
            });
        });
        join(all);
    });
}

/// The goroutines are claimed, and the lock of their scheduler is held.
#[test]
fn a_claimed_goroutine_is_handed_over() {
    want();
    start().unwrap();
    run(|| {
        let word = Arc::new(AtomicU32::new(0));
        let at = key_of(&*word);
        let (all, _) = waiters(&word, 4);
        let sched = current_g().map(|g| ptr::from_ref(g.sched()).expose_provenance());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let sched: *const Sched = ptr::with_exposed_provenance(sched.unwrap());
                // SAFETY: the runtime lives until its goroutines end, and the caller is one.
                let sched = unsafe { &*sched };
                let core = sched.core.lock();
                assert_eq!(wake(at, 4, |_| 0), 4);
                drop(core);
            });
        });
        join(all);
    });
}

/// A goroutine that waits when its runtime is dropped stays in the queue. The next wake-up passes it
/// by and takes it out.
#[test]
fn an_abandoned_goroutine_is_passed_by_and_no_longer_counted() {
    run(|| {
        let word = Arc::new(AtomicU32::new(0));
        let at = key_of(&*word);
        let counts = counts_of(at | FUTEX);
        let before = counts.goroutines.load(SeqCst);
        let dying = crate::Runtime::builder().build().unwrap();
        let its = Arc::clone(&word);
        dying.run(move || {
            crate::go(move || _ = wait(key_of(&*its), 0, NEVER));
            until(|| counts.goroutines.load(SeqCst) > before);
        });
        drop(dying);
        let (all, _) = waiters(&word, 1);
        assert_eq!(wake(at, 1, |_| 0), 1);
        join(all);
        assert_eq!(counts.goroutines.load(SeqCst), before);
    });
}

/// Has a goroutine of another runtime wait on the word and wakes it. Then drops that runtime, while
/// the goroutine is Runnable. `queue_up` runs between the wait and the wake-up.
fn abandon_woken(word: &'static Futex, queue_up: impl FnOnce()) {
    let at = key_of(&word.0);
    let counts = counts_of(at | FUTEX);
    let before = counts.goroutines.load(SeqCst);
    let dying = crate::Runtime::builder()
        .procs(1)
        .preemption(false)
        .build()
        .unwrap();
    dying.run(move || {
        crate::go(move || _ = wait(at, 0, NEVER));
        until(|| counts.goroutines.load(SeqCst) > before);
    });
    // The only P is busy until the runtime is gone.
    let (busy, stop) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (its, ends) = (Arc::clone(&busy), Arc::clone(&stop));
    dying.handle().go(move || {
        its.store(true, SeqCst);
        while !ends.load(SeqCst) {
            std::hint::spin_loop();
        }
    });
    until(|| busy.load(SeqCst));
    queue_up();
    assert_eq!(wake(at, 1, |_| 0), 1);
    drop(dying);
    stop.store(true, SeqCst);
}

#[test]
fn a_wake_up_of_an_abandoned_goroutine_goes_to_the_next_one() {
    want();
    start().unwrap();
    run(|| {
        let word: &'static Futex = Box::leak(Box::new(Futex::new(0)));
        let at = key_of(&word.0);
        let counts = counts_of(at | FUTEX);
        let mut next = None;
        abandon_woken(word, || {
            let before = counts.goroutines.load(SeqCst);
            next = Some(crate::thread::spawn(move || wait(at, 0, NEVER)));
            until(|| counts.goroutines.load(SeqCst) > before);
        });
        assert_eq!(next.unwrap().join().unwrap(), FutexEnd::Woken);
    });
}

#[test]
fn a_wake_up_of_an_abandoned_goroutine_goes_to_a_thread() {
    want();
    start().unwrap();
    run(|| {
        let word: &'static Futex = Box::leak(Box::new(Futex::new(0)));
        let mut thread = None;
        abandon_woken(word, || {
            let (tell, told) = crate::chan::unbounded();
            thread = Some(std::thread::spawn(move || {
                tell.send(sys::gettid()).unwrap();
                while word.0.load(SeqCst) == 0 {
                    word.wait(0, None);
                }
            }));
            let tid = told.recv().unwrap();
            until(|| sys::task_state(tid) == Some(b'S'));
            word.0.store(1, SeqCst);
        });
        crate::blocking(|| thread.unwrap().join()).unwrap();
    });
}
