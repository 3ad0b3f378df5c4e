//! A runtime that ends takes its goroutines out of every queue; what they were given there is
//! passed on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use gosched::sync::{Arc, Barrier, Condvar, Mutex, Once, RwLock, Semaphore, WaitGroup};
use gosched::{Runtime, thread};

use super::{LONG, ms, runtime, wait_for};
use crate::common::{Alive, eventually, until_parked, within};

/// All there is to wait for, with nothing to be had.
struct Locks {
    mutex: Mutex<()>,
    lock: RwLock<()>,
    pair: (Mutex<()>, Condvar),
    barrier: Barrier,
    once: Once,
    group: WaitGroup,
    semaphore: Semaphore,
}

impl Locks {
    fn new() -> Locks {
        let group = WaitGroup::new();
        group.add(1);
        Locks {
            mutex: Mutex::new(()),
            lock: RwLock::new(()),
            pair: (Mutex::new(()), Condvar::new()),
            barrier: Barrier::new(2),
            once: Once::new(),
            group,
            semaphore: Semaphore::new(0),
        }
    }
}

/// One way to wait for each.
const WAYS: [fn(&Locks); 8] = [
    |locks| drop(locks.mutex.lock()),
    |locks| drop(locks.lock.write()),
    |locks| drop(locks.lock.read()),
    |locks| drop(locks.pair.1.wait(locks.pair.0.lock().unwrap())),
    |locks| assert!(!locks.barrier.wait().is_leader()),
    |locks| locks.once.wait(),
    |locks| locks.group.wait(),
    |locks| drop(locks.semaphore.acquire()),
];

/// How many goroutines of a runtime wait.
fn waiting(runtime: &Runtime) -> usize {
    let dump = runtime.handle().dump().unwrap();
    let waits = |g: &&gosched::debug::Goroutine| {
        g.wait_reason()
            .is_some_and(|reason| reason.starts_with("sync."))
    };
    dump.goroutines().iter().filter(waits).count()
}

/// Starts `n` goroutines for each way to wait, and returns when all of them do.
fn all_wait(runtime: &Runtime, locks: &Arc<Locks>, n: usize, alive: &Arc<AtomicUsize>) {
    for way in WAYS {
        for _ in 0..n {
            let (locks, alive) = (Arc::clone(locks), Alive::new(alive));
            runtime.go(move || {
                let _alive = alive;
                way(&locks);
            });
        }
    }
    assert!(eventually(|| waiting(runtime) == n * WAYS.len()));
}

/// After the runtime is gone, everything works for goroutines and threads that are left.
fn all_is_well(locks: &Locks) {
    drop(locks.mutex.lock().unwrap());
    drop(locks.lock.write().unwrap());
    drop(locks.lock.read().unwrap());
    locks.pair.1.notify_one(); // for nobody
    let waited = locks
        .pair
        .1
        .wait_timeout(locks.pair.0.lock().unwrap(), ms(1));
    assert!(waited.unwrap().1.timed_out());
    let leads = std::thread::scope(|s| {
        let other = s.spawn(|| locks.barrier.wait().is_leader());
        locks.barrier.wait().is_leader() ^ other.join().unwrap()
    });
    assert!(leads, "both were needed");
    locks.once.call_once(|| ());
    locks.group.done();
    locks.group.wait();
    assert_eq!(locks.semaphore.available_permits(), 0);
}

#[test]
fn shutdown_unwinds_out_of_every_lock() {
    let locks = Arc::new(Locks::new());
    let alive = Arc::new(AtomicUsize::new(0));
    let runtime = runtime(2);
    {
        let _mutex = locks.mutex.lock().unwrap();
        let _lock = locks.lock.write().unwrap();
        // A barrier of two would let two through.
        all_wait(&runtime, &locks, 1, &alive);
        within(LONG, "shutdown", || {
            runtime.shutdown(Duration::from_secs(30))
        });
        assert_eq!(alive.load(SeqCst), 0, "all have unwound");
    }
    within(LONG, "afterwards", || all_is_well(&locks));
}

/// The drop abandons them where they wait, and that blocks no other waiter.
#[test]
fn d2_those_who_are_abandoned_are_passed_by() {
    let locks = Arc::new(Locks::new());
    let alive = Arc::new(AtomicUsize::new(0));
    let runtime = runtime(2);
    {
        let _mutex = locks.mutex.lock().unwrap();
        let _lock = locks.lock.write().unwrap();
        all_wait(&runtime, &locks, 1, &alive);
        within(LONG, "drop", || drop(runtime));
    }
    within(LONG, "afterwards", || {
        drop(locks.mutex.lock().unwrap());
        drop(locks.lock.write().unwrap());
        drop(locks.lock.read().unwrap());
        locks.pair.1.notify_all();
        drop(locks.pair.0.lock().unwrap());
        locks.once.call_once(|| ());
        locks.group.done();
        locks.group.wait();
        assert!(locks.barrier.wait().is_leader(), "one had come already");
        drop(locks.semaphore.try_acquire());
    });
}

/// A writer that waited for readers to leave keeps no one out any more: the queue behind it
/// proceeds.
#[test]
fn a_writer_that_gives_up_lets_the_readers_in() {
    let lock = Arc::new(RwLock::new(7));
    let (ends, stays) = (runtime(1), runtime(1));
    let reader = lock.read().unwrap();
    let other = Arc::clone(&lock);
    ends.go(move || *other.write().unwrap() += 1);
    assert!(eventually(|| waiting(&ends) == 1));
    let other = Arc::clone(&lock);
    let behind = stays.spawn(move || *other.read().unwrap());
    assert!(eventually(|| waiting(&stays) == 1));
    within(LONG, "shutdown", || ends.shutdown(Duration::from_secs(30)));
    within(LONG, "the one behind", || {
        assert_eq!(behind.join().unwrap(), 7);
    });
    drop(reader);
    assert_eq!(*lock.write().unwrap(), 7);
}

/// While it unwinds, a goroutine waits for a lock as long as it takes.
#[test]
fn a_lock_in_a_destructor_is_waited_for() {
    struct Locks(Arc<Mutex<u32>>, Arc<Barrier>);
    impl Drop for Locks {
        fn drop(&mut self) {
            self.1.wait();
            *self.0.lock().unwrap() += 1;
        }
    }
    let (mutex, met) = (Arc::new(Mutex::new(0)), Arc::new(Barrier::new(2)));
    let runtime = runtime(2);
    let locks = Locks(Arc::clone(&mutex), Arc::clone(&met));
    runtime.go(move || {
        let _locks = locks;
        let _ = Semaphore::new(0).acquire(); // until it is to unwind
    });
    assert!(eventually(|| waiting(&runtime) == 1));
    let guard = mutex.lock().unwrap();
    let ends = std::thread::spawn(move || runtime.shutdown(Duration::from_secs(30)));
    within(LONG, "the destructor", || met.wait());
    std::thread::sleep(ms(50));
    assert_eq!(*guard, 0);
    drop(guard);
    within(LONG, "shutdown", || ends.join().unwrap());
    assert_eq!(*mutex.lock().unwrap(), 1);
}

/// A goroutine that has caught the request to unwind does not wait again: it unwinds from its next
/// wait of any kind.
#[test]
fn whoever_is_to_unwind_waits_for_nothing_more() {
    let locks = Arc::new(Locks::new());
    let alive = Arc::new(AtomicUsize::new(0));
    let runtime = runtime(2);
    let _mutex = locks.mutex.lock().unwrap();
    let _lock = locks.lock.write().unwrap();
    let (inside, counted) = (Arc::clone(&locks), Alive::new(&alive));
    let unwound = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&unwound);
    runtime.go(move || {
        let _counted = counted;
        for way in WAYS {
            let caught = catch_unwind(AssertUnwindSafe(|| way(&inside)));
            count.fetch_add(usize::from(caught.is_err()), SeqCst);
        }
    });
    assert!(eventually(|| waiting(&runtime) == 1));
    within(LONG, "shutdown", || {
        runtime.shutdown(Duration::from_secs(30))
    });
    assert_eq!(alive.load(SeqCst), 0);
    assert_eq!(unwound.load(SeqCst), WAYS.len());
    assert!(
        !locks.pair.0.is_poisoned(),
        "a wait leaves the mutex in order"
    );
}

/// Two runtimes and a few threads share locks; one of the runtimes ends in the middle. The others
/// continue.
#[test]
fn a_runtime_that_ends_takes_no_wake_up_with_it() {
    for round in 0..30_u64 {
        let shared = Arc::new((Mutex::new(0_u64), RwLock::new(0_u64), Semaphore::new(1)));
        let uses = |turns: usize, stops: Arc<AtomicBool>| {
            let shared = Arc::clone(&shared);
            move || {
                for turn in 0..turns {
                    // The goroutine that was unwound with the lock has poisoned it.
                    *shared.0.lock().unwrap_or_else(|e| e.into_inner()) += 1;
                    *shared.1.write().unwrap_or_else(|e| e.into_inner()) += 1;
                    drop(shared.1.read());
                    let _permit = shared.2.acquire();
                    if turn % 16 == 0 {
                        thread::yield_now();
                    }
                    if stops.load(SeqCst) {
                        return;
                    }
                }
            }
        };
        let (ends, stays) = (runtime(2), runtime(1));
        let never = Arc::new(AtomicBool::new(false));
        for _ in 0..20 {
            ends.go(uses(usize::MAX, Arc::clone(&never)));
        }
        let goroutines: Vec<_> = (0..5)
            .map(|_| stays.spawn(uses(300, Arc::clone(&never))))
            .collect();
        let threads: Vec<_> = (0..2)
            .map(|_| std::thread::spawn(uses(300, Arc::clone(&never))))
            .collect();
        std::thread::sleep(Duration::from_micros(300 * (round % 8)));
        within(LONG, "the end of one", || {
            ends.shutdown(Duration::from_secs(50))
        });
        within(LONG, "the others", || {
            goroutines.into_iter().for_each(|one| one.join().unwrap());
            threads.into_iter().for_each(|one| one.join().unwrap());
        });
        assert_eq!(stays.metrics().rescues, 0, "WK: a wake-up was lost");
    }
}

/// No waiter is left in the table: the next lock at the same address works.
#[test]
fn the_next_lock_at_an_address_is_as_good() {
    let mut slot = Arc::new(Mutex::new(0));
    for _ in 0..20 {
        let runtime = runtime(1);
        let guard = slot.lock().unwrap();
        let other = Arc::clone(&slot);
        let is_waiting = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&is_waiting);
        runtime.go(move || {
            counted.fetch_add(1, SeqCst);
            drop(other.lock());
        });
        wait_for(&is_waiting, 1);
        assert!(eventually(|| waiting(&runtime) == 1));
        drop(runtime); // abandoned, with its place in the table and its share of the lock
        drop(guard);
        within(LONG, "lock", || *slot.lock().unwrap() += 1);
        assert_eq!(*slot.lock().unwrap(), 1);
        slot = Arc::new(Mutex::new(0));
    }
}

/// A runtime of one P with three goroutines: one waits for the mutex, one waits for nothing, and
/// one then keeps the P until `is_over`.
fn waits_without_a_p(mutex: &Arc<Mutex<usize>>, is_over: &Arc<AtomicBool>) -> Runtime {
    let runtime = Runtime::builder()
        .procs(1)
        .preemption(false)
        .build()
        .unwrap();
    let other = Arc::clone(mutex);
    runtime.go(move || *other.lock().unwrap() += 1);
    runtime.go(|| _ = gosched::chan::never::<()>().recv());
    until_parked(&runtime.handle(), 2);
    assert_eq!(waiting(&runtime), 1);
    let (hogs, over) = (Arc::new(AtomicUsize::new(0)), Arc::clone(is_over));
    let begun = Arc::clone(&hogs);
    runtime.go(move || {
        begun.fetch_add(1, SeqCst);
        while !over.load(SeqCst) {
            std::hint::spin_loop();
        }
    });
    wait_for(&hogs, 1);
    runtime
}

/// A goroutine that was woken for a lock and gets no P does not come for it: after a while others
/// are woken.
#[test]
fn f2_a_wake_up_that_went_to_a_goroutine_without_a_p_is_made_up_for() {
    lock_passes_by(|ends| ends, drop);
}

/// The same for a goroutine that was abandoned before it ran.
#[test]
fn d2_a_wake_up_that_went_to_an_abandoned_goroutine_is_made_up_for() {
    lock_passes_by(drop, |()| {});
}

/// A goroutine is woken for a lock and cannot run. `before` and `after` are applied to its runtime
/// before and after another goroutine gets the lock.
fn lock_passes_by<R>(before: fn(Runtime) -> R, after: fn(R)) {
    let mutex = Arc::new(Mutex::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let guard = mutex.lock().unwrap();
    let ends = waits_without_a_p(&mutex, &is_over);
    let stays = runtime(1);
    let other = Arc::clone(&mutex);
    let behind = stays.spawn(move || *other.lock().unwrap() += 1);
    assert!(eventually(|| waiting(&stays) == 1));
    drop(guard); // for the first one, which cannot run
    let rest = before(ends);
    within(LONG, "the one behind", || {
        for _ in 0..1000 {
            *mutex.lock().unwrap() += 1;
        }
        behind.join().unwrap();
    });
    assert_eq!(*mutex.lock().unwrap(), 1001);
    is_over.store(true, SeqCst);
    after(rest);
}

/// A goroutine that was woken for a lock and is to unwind when it runs wakes the next one in its
/// place.
#[test]
#[cfg(panic = "unwind")]
fn d2_a_wake_up_that_went_to_one_that_unwinds_is_passed_on() {
    let mutex = Arc::new(Mutex::new(0));
    let is_over = Arc::new(AtomicBool::new(false));
    let guard = mutex.lock().unwrap();
    let ends = waits_without_a_p(&mutex, &is_over);
    let stays = runtime(1);
    let other = Arc::clone(&mutex);
    let behind = stays.spawn(move || *other.lock().unwrap() += 1);
    assert!(eventually(|| waiting(&stays) == 1));
    drop(guard); // for the first one, which cannot run
    let guard = mutex.lock().unwrap(); // so it will find it taken
    let handle = ends.handle();
    within(LONG, "a shutdown", || {
        std::thread::scope(|scope| {
            scope.spawn(|| ends.shutdown(LONG));
            // All are asked to unwind when the one that waits for nothing is.
            assert!(eventually(|| handle.metrics().unwrap().waiting == 0));
            is_over.store(true, SeqCst);
        });
    });
    drop(guard);
    within(LONG, "the one behind", || behind.join().unwrap());
    assert_eq!(*mutex.lock().unwrap(), 1);
}

/// How a runtime ends whose goroutine was notified and waits for the mutex.
fn ends_in_the_relock(end: fn(Runtime)) {
    type Shared = Arc<(Mutex<()>, Condvar)>;
    let (ends, stays) = (runtime(1), runtime(1));
    let pair: Shared = Arc::default();
    let got = Arc::new(AtomicUsize::new(0));
    let start = |runtime: &Runtime| {
        let (pair, got) = (Arc::clone(&pair), Arc::clone(&got));
        runtime.go(move || {
            drop(pair.1.wait(pair.0.lock().unwrap()).unwrap());
            got.fetch_add(1, SeqCst);
        });
        until_parked(&runtime.handle(), 1);
    };
    start(&ends);
    start(&stays);
    let held = pair.0.lock().unwrap();
    pair.1.notify_one();
    let relocks = || {
        let dump = ends.dump();
        dump.goroutines()[0].wait_reason() == Some("sync.Mutex.Lock")
    };
    assert!(eventually(relocks));
    within(LONG, "the end", || end(ends));
    drop(held);
    assert!(
        eventually(|| got.load(SeqCst) == 1),
        "the notification was lost"
    );
}

/// The notified goroutine unwinds, or is abandoned, before it has the mutex again: the next one is
/// notified.
#[test]
fn a_notification_is_passed_on_by_whoever_does_not_return_with_it() {
    ends_in_the_relock(|runtime| runtime.shutdown(LONG));
    ends_in_the_relock(drop);
}
