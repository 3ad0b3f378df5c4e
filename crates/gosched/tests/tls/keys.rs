//! pthread keys, and locks that know their owner: what C keeps per thread is the goroutine's.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::tools::{PROCS, own, swarm, tid};

use gosched::thread;

/// A pthread key, deleted when dropped.
struct Key(libc::pthread_key_t);

type Destructor = unsafe extern "C" fn(*mut c_void);

impl Key {
    fn new(destructor: Option<Destructor>) -> Key {
        let mut key = 0;
        // SAFETY: writes the new key.
        let made = unsafe { libc::pthread_key_create(&mut key, destructor) };
        assert_eq!(made, 0);
        Key(key)
    }

    fn set(&self, value: usize) {
        set(self.0, value);
    }

    fn get(&self) -> usize {
        // SAFETY: the key exists.
        unsafe { libc::pthread_getspecific(self.0).addr() }
    }
}

fn set(key: libc::pthread_key_t, value: usize) {
    // SAFETY: the key exists, and the value is a number that is never dereferenced.
    let done = unsafe { libc::pthread_setspecific(key, ptr::without_provenance(value)) };
    assert_eq!(done, 0);
}

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: the key is not used after this, and its values are not pointers.
        unsafe { libc::pthread_key_delete(self.0) };
    }
}

#[test]
fn values_of_keys_are_the_goroutines() {
    // More than fit into the first table of a thread.
    let keys: Vec<_> = (0..80).map(|_| Key::new(None)).collect();
    swarm(|trip| {
        keys.iter().for_each(|key| trip.expect(key.get() == 0));
        for turn in trip.turns() {
            let key = &keys[turn % keys.len()];
            key.set(trip.number << 20 | turn);
            trip.step();
            trip.expect(key.get() == trip.number << 20 | turn);
        }
    });
}

#[test]
fn a_goroutine_finds_no_value_of_the_one_before() {
    let keys: Vec<_> = (0..80).map(|_| Key::new(None)).collect();
    own(2).run(|| {
        thread::scope(|s| {
            for round in 0..2_000 {
                let keys = &keys;
                let body = move || {
                    assert!(keys.iter().all(|key| key.get() == 0));
                    keys[round % 80].set(7);
                    keys[(round * 7) % 80].set(9);
                };
                s.spawn(body).join().unwrap();
            }
        });
    });
}

/// The destructor is given each value once, in the goroutine that has set it, before it is joined.
#[test]
fn destructors_of_keys_are_called_with_the_value() {
    static SUM: AtomicUsize = AtomicUsize::new(0);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn add(value: *mut c_void) {
        // In a goroutine: this waits.
        thread::yield_now();
        SUM.fetch_add(value.addr(), SeqCst);
        CALLS.fetch_add(1, SeqCst);
    }
    let keys: Vec<_> = (0..40).map(|_| Key::new(Some(add))).collect();
    own(2).run(|| {
        thread::scope(|s| {
            for value in 1..=1_000 {
                let key = &keys[value % 40];
                let body = move || {
                    key.set(value);
                    thread::yield_now();
                };
                s.spawn(body).join().unwrap();
                assert_eq!(CALLS.load(SeqCst), value, "before it is joined");
            }
        });
    });
    assert_eq!(SUM.load(SeqCst), 1_000 * 1_001 / 2);
}

/// One that sets its key again is called again, as often as in a thread and no more.
#[test]
fn destructors_of_keys_have_several_rounds() {
    static KEY: AtomicUsize = AtomicUsize::new(0);
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn again(value: *mut c_void) {
        CALLS.fetch_add(1, SeqCst);
        if value.addr() > 1 {
            set(KEY.load(SeqCst) as libc::pthread_key_t, value.addr() - 1);
        }
    }
    let key = Key::new(Some(again));
    KEY.store(key.0 as usize, SeqCst);
    let calls = |body: &dyn Fn()| {
        CALLS.store(0, SeqCst);
        body();
        CALLS.load(SeqCst)
    };
    for rounds in [1, 2, 3, 100] {
        let of_thread = calls(&|| {
            std::thread::scope(|s| s.spawn(|| key.set(rounds)).join().unwrap());
        });
        let of_goroutine = calls(&|| {
            own(2).run(|| thread::scope(|s| s.spawn(|| key.set(rounds)).join().unwrap()));
        });
        assert_eq!(of_goroutine, of_thread, "{rounds} rounds wanted");
        assert!(of_thread >= rounds.min(4));
    }
    // Values that are left after the last round are not destroyed.
    own(2).run(|| {
        thread::scope(|s| {
            for _ in 0..100 {
                s.spawn(|| key.set(100)).join().unwrap();
                s.spawn(|| assert_eq!(key.get(), 0)).join().unwrap();
            }
        });
    });
}

/// Thread-locals first, then keys: a key's destructor may set thread-locals, a thread-local's may
/// set keys.
#[test]
fn keys_and_thread_locals_end_in_the_order_of_a_thread() {
    static KEY: AtomicUsize = AtomicUsize::new(0);
    static LOG: std::sync::Mutex<Vec<&str>> = std::sync::Mutex::new(Vec::new());
    struct Local(&'static str);
    impl Drop for Local {
        fn drop(&mut self) {
            LOG.lock().unwrap().push(self.0);
            if self.0 == "a thread-local" {
                set(KEY.load(SeqCst) as libc::pthread_key_t, 5);
            }
        }
    }
    thread_local! {
        static EARLY: Local = const { Local("a thread-local") };
        static LATE: Local = const { Local("a thread-local set by a key") };
    }
    extern "C" fn at_end(value: *mut c_void) {
        LOG.lock().unwrap().push(if value.addr() == 5 {
            "the key, set late"
        } else {
            "the key"
        });
        LATE.with(|_| ());
    }
    let key = Key::new(Some(at_end));
    KEY.store(key.0 as usize, SeqCst);
    let body = || {
        key.set(1);
        EARLY.with(|_| ());
    };
    std::thread::scope(|s| s.spawn(body).join().unwrap());
    let of_thread = std::mem::take(&mut *LOG.lock().unwrap());
    assert!(of_thread.contains(&"the key, set late"), "{of_thread:?}");
    own(2).run(|| thread::scope(|s| s.spawn(body).join().unwrap()));
    assert_eq!(*LOG.lock().unwrap(), of_thread);
}

/// A key that is deleted and made again begins without values.
#[test]
fn a_key_made_again_has_no_values() {
    own(2).run(|| {
        let all: Vec<_> = (0..20)
            .map(|_| {
                thread::spawn(|| {
                    for _ in 0..50 {
                        let key = Key::new(None);
                        assert_eq!(key.get(), 0);
                        key.set(3);
                        thread::yield_now();
                        assert_eq!(key.get(), 3);
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}

/// A pthread mutex of some kind.
struct Lock(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: made for threads; pthread's functions are all that touches it.
unsafe impl Sync for Lock {}

impl Lock {
    /// At its final place, which some libcs want.
    fn new(kind: i32, is_robust: bool) -> Box<Lock> {
        let lock = Box::new(Lock(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)));
        // SAFETY: attributes of this frame, and a mutex that no other thread uses yet.
        unsafe {
            let mut attr = std::mem::zeroed();
            assert_eq!(libc::pthread_mutexattr_init(&mut attr), 0);
            assert_eq!(libc::pthread_mutexattr_settype(&mut attr, kind), 0);
            let robust = if is_robust {
                libc::PTHREAD_MUTEX_ROBUST
            } else {
                libc::PTHREAD_MUTEX_STALLED
            };
            assert_eq!(libc::pthread_mutexattr_setrobust(&mut attr, robust), 0);
            assert_eq!(libc::pthread_mutex_init(lock.0.get(), &attr), 0);
            libc::pthread_mutexattr_destroy(&mut attr);
        }
        lock
    }

    fn lock(&self) -> i32 {
        // SAFETY: initialised above.
        unsafe { libc::pthread_mutex_lock(self.0.get()) }
    }

    fn try_lock(&self) -> i32 {
        // SAFETY: initialised above.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) }
    }

    fn unlock(&self) -> i32 {
        // SAFETY: initialised above.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) }
    }

    /// Takes it without blocking the thread.
    fn take(&self, turn: impl Fn()) {
        while self.try_lock() != 0 {
            turn();
        }
    }
}

/// How often each goroutine of a swarm takes a lock.
const HOLDS: usize = 30;

/// Mutual exclusion among goroutines that move while they hold it.
fn excludes(lock: &Lock, depth: usize) {
    let (inside, counter) = (AtomicUsize::new(0), AtomicUsize::new(0));
    swarm(|trip| {
        for turn in trip.turns() {
            if turn >= HOLDS {
                trip.step();
                continue;
            }
            lock.take(|| trip.step());
            trip.expect(inside.swap(trip.number, SeqCst) == 0);
            for _ in 1..depth {
                trip.step();
                trip.expect(lock.lock() == 0);
            }
            let before = counter.load(SeqCst);
            trip.step();
            counter.store(before + 1, SeqCst);
            for _ in 1..depth {
                trip.expect(lock.unlock() == 0);
                trip.step();
            }
            trip.expect(inside.swap(0, SeqCst) == trip.number);
            trip.expect(lock.unlock() == 0);
        }
    });
    assert_eq!(counter.into_inner(), PROCS.len() * 64 * HOLDS);
}

#[test]
fn a_recursive_mutex_knows_its_goroutine() {
    excludes(&Lock::new(libc::PTHREAD_MUTEX_RECURSIVE, false), 3);
}

#[test]
fn a_robust_mutex_moves_with_its_goroutine() {
    excludes(&Lock::new(libc::PTHREAD_MUTEX_NORMAL, true), 1);
    excludes(&Lock::new(libc::PTHREAD_MUTEX_RECURSIVE, true), 2);
}

#[test]
fn an_errorcheck_mutex_knows_its_goroutine() {
    let lock = Lock::new(libc::PTHREAD_MUTEX_ERRORCHECK, false);
    excludes(&lock, 1);
    let checked = Lock::new(libc::PTHREAD_MUTEX_ERRORCHECK, true);
    excludes(&checked, 1);
    swarm(|trip| {
        for turn in trip.turns() {
            if turn >= HOLDS {
                trip.step();
                continue;
            }
            lock.take(|| trip.step());
            trip.step();
            trip.expect(lock.lock() == libc::EDEADLK);
            trip.expect(lock.unlock() == 0);
            trip.step();
            // Another owner's, or none.
            trip.expect(lock.unlock() == libc::EPERM);
        }
    });
}

/// Robust mutexes are on a list of the thread: several at once, given back in any order, over
/// switches.
#[test]
fn several_robust_mutexes_at_once() {
    swarm(|trip| {
        let locks: Vec<_> = (0..4)
            .map(|_| Lock::new(libc::PTHREAD_MUTEX_ERRORCHECK, true))
            .collect();
        for turn in trip.turns() {
            for lock in &locks {
                trip.expect(lock.lock() == 0);
                trip.step();
            }
            for i in 0..4 {
                trip.expect(locks[(turn * 3 + i) % 4].unlock() == 0);
                trip.step();
            }
        }
    });
}

/// A read-write lock and a condition variable, which look at the owner too.
#[test]
fn a_rwlock_knows_its_writer() {
    swarm(|trip| {
        let mut lock = libc::PTHREAD_RWLOCK_INITIALIZER;
        let lock = &raw mut lock;
        for _ in trip.turns() {
            // SAFETY: the goroutine's own lock, at its place for as long as it is used.
            unsafe {
                trip.expect(libc::pthread_rwlock_wrlock(lock) == 0);
                trip.step();
                trip.expect(libc::pthread_rwlock_rdlock(lock) == libc::EDEADLK);
                trip.expect(libc::pthread_rwlock_unlock(lock) == 0);
            }
        }
    });
}

#[test]
fn a_mutex_is_waited_for_between_goroutines_and_threads() {
    let lock = Lock::new(libc::PTHREAD_MUTEX_RECURSIVE, false);
    let held = AtomicUsize::new(0);
    let fight = || {
        for _ in 0..200 {
            assert_eq!(lock.lock(), 0);
            assert_eq!(held.swap(1, SeqCst), 0);
            thread::yield_now();
            assert_eq!(lock.lock(), 0);
            held.store(0, SeqCst);
            assert_eq!(lock.unlock(), 0);
            assert_eq!(lock.unlock(), 0);
            thread::yield_now();
        }
    };
    // Each waiter blocks a P; one P is left.
    crate::common::within(Duration::from_secs(60), "a contended pthread mutex", || {
        let runtime = own(4);
        std::thread::scope(|s| {
            s.spawn(fight);
            s.spawn(|| {
                runtime.run(|| {
                    thread::scope(|s| {
                        (0..3).for_each(|_| drop(s.spawn(fight)));
                        s.spawn(|| {
                            let seen: Vec<_> = (0..100)
                                .map(|_| {
                                    thread::yield_now();
                                    tid()
                                })
                                .collect();
                            assert!(seen.iter().all(|tid| *tid > 0));
                        });
                    });
                });
            });
        });
    });
}
