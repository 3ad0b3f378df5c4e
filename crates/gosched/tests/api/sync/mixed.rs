//! Goroutines of two runtimes and plain threads, on the same locks, in a mixture that a seed
//! decides.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gosched::sync::{Arc, Condvar, Mutex, RwLock, Semaphore, TryLockError};
use gosched::{Runtime, thread};

use super::{LONG, runtime};
use crate::common::{Rng, within};

/// So many workers, each with its own random numbers, on two runtimes and on threads; returns when
/// all have ended.
fn everywhere(seed: u64, workers: usize, work: impl Fn(Rng) + Send + Sync + Clone + 'static) {
    let runtimes: Vec<Runtime> = (1..=2).map(runtime).collect();
    let what = format!("seed {seed}");
    within(LONG, &what, || {
        let mut goroutines = Vec::new();
        let mut threads = Vec::new();
        for worker in 0..workers {
            let (work, rng) = (work.clone(), Rng::new(seed * 1000 + worker as u64));
            match worker % 4 {
                0 => threads.push(std::thread::spawn(move || work(rng))),
                n => goroutines.push(runtimes[n % 2].spawn(move || work(rng))),
            }
        }
        goroutines.into_iter().for_each(|one| one.join().unwrap());
        threads.into_iter().for_each(|one| one.join().unwrap());
    });
    for runtime in runtimes {
        assert_eq!(
            runtime.metrics().rescues,
            0,
            "WK: a wake-up was lost, {what}"
        );
    }
}

/// Something in between, or nothing.
fn dawdle(rng: &mut Rng) {
    match rng.below(40) {
        0 => thread::yield_now(),
        1 => thread::sleep(Duration::from_micros(rng.below(100))),
        2 => {
            for _ in 0..rng.below(2000) {
                std::hint::spin_loop();
            }
        }
        _ => {}
    }
}

#[test]
fn u10_a_mutex_counts_right() {
    for seed in 0..6 {
        let count = Arc::new(Mutex::new(0_u64));
        let shared = Arc::clone(&count);
        everywhere(seed, 12, move |mut rng| {
            for _ in 0..1500 {
                let mut guard = match rng.one_in(5) {
                    true => match shared.try_lock() {
                        Ok(guard) => guard,
                        Err(TryLockError::WouldBlock) => shared.lock().unwrap(),
                        Err(error) => panic!("{error}"),
                    },
                    false => shared.lock().unwrap(),
                };
                let seen = *guard;
                dawdle(&mut rng);
                *guard = seen + 1;
                drop(guard);
                dawdle(&mut rng);
            }
        });
        assert_eq!(*count.lock().unwrap(), 12 * 1500, "seed {seed}");
    }
}

#[test]
fn u10_a_rwlock_keeps_readers_and_writers_apart() {
    for seed in 0..6 {
        let pair = Arc::new(RwLock::new((0_u64, 0_u64)));
        let writes = Arc::new(AtomicUsize::new(0));
        let (shared, counted) = (Arc::clone(&pair), Arc::clone(&writes));
        everywhere(seed, 12, move |mut rng| {
            for _ in 0..1000 {
                if rng.one_in(4) {
                    let mut guard = shared.write().unwrap();
                    guard.0 += 1;
                    dawdle(&mut rng);
                    guard.1 += 1;
                    counted.fetch_add(1, SeqCst);
                    if rng.one_in(3) {
                        let guard = gosched::sync::RwLockWriteGuard::downgrade(guard);
                        assert_eq!(guard.0, guard.1);
                    }
                } else {
                    let guard = shared.read().unwrap();
                    let seen = guard.0;
                    dawdle(&mut rng);
                    assert_eq!((seen, seen), *guard);
                }
                dawdle(&mut rng);
            }
        });
        let end = *pair.read().unwrap();
        assert_eq!(end.0 as usize, writes.load(SeqCst), "seed {seed}");
    }
}

#[test]
fn u10_a_semaphore_of_one_is_a_mutex() {
    for seed in 0..4 {
        let (semaphore, inside) = (Arc::new(Semaphore::new(1)), Arc::new(AtomicUsize::new(0)));
        let shared = (Arc::clone(&semaphore), Arc::clone(&inside));
        everywhere(seed, 12, move |mut rng| {
            for _ in 0..600 {
                let permit = match rng.below(4) {
                    0 => shared.0.try_acquire(),
                    1 => shared
                        .0
                        .acquire_timeout(Duration::from_micros(rng.below(300))),
                    _ => Some(shared.0.acquire()),
                };
                if let Some(_permit) = permit {
                    assert_eq!(shared.1.fetch_add(1, SeqCst), 0);
                    dawdle(&mut rng);
                    assert_eq!(shared.1.fetch_sub(1, SeqCst), 1);
                }
            }
        });
        assert_eq!(semaphore.available_permits(), 1, "seed {seed}");
    }
}

/// A bounded queue of a Mutex and two Condvars: nothing lost, nothing twice.
#[test]
fn u10_a_queue_of_condvars_loses_nothing() {
    const EACH: usize = 500;
    struct Queue {
        items: Mutex<VecDeque<usize>>,
        has_items: Condvar,
        has_room: Condvar,
        number: AtomicUsize,
        sum: AtomicUsize,
    }
    for seed in 0..4 {
        let queue = Arc::new(Queue {
            items: Mutex::new(VecDeque::new()),
            has_items: Condvar::new(),
            has_room: Condvar::new(),
            number: AtomicUsize::new(0),
            sum: AtomicUsize::new(0),
        });
        let shared = Arc::clone(&queue);
        everywhere(seed, 16, move |mut rng| {
            // Every other one takes, so that there are as many of both.
            let takes = (shared.number.fetch_add(1, SeqCst)).is_multiple_of(2);
            for n in 0..EACH {
                let items = shared.items.lock().unwrap();
                if takes {
                    let mut items = shared
                        .has_items
                        .wait_while(items, |items| items.is_empty())
                        .unwrap();
                    shared.sum.fetch_add(items.pop_front().unwrap(), SeqCst);
                    shared.has_room.notify_one();
                } else {
                    let mut items = shared
                        .has_room
                        .wait_while(items, |items| items.len() >= 3)
                        .unwrap();
                    items.push_back(n);
                    shared.has_items.notify_one();
                }
                dawdle(&mut rng);
            }
        });
        assert_eq!(
            queue.sum.load(SeqCst),
            8 * EACH * (EACH - 1) / 2,
            "seed {seed}"
        );
        assert!(queue.items.lock().unwrap().is_empty());
    }
}

/// Without any runtime at all, everything is there for plain threads.
#[test]
fn d1_plain_threads_need_no_runtime() {
    use gosched::sync::{Barrier, LazyLock, Once, WaitGroup};
    within(LONG, "plain threads", || {
        let (mutex, lock, once, barrier) =
            (Mutex::new(0), RwLock::new(0), Once::new(), Barrier::new(8));
        let (lazy, group) = (LazyLock::new(|| 7), WaitGroup::new());
        group.add(8);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    barrier.wait();
                    for _ in 0..5000 {
                        *mutex.lock().unwrap() += 1;
                        *lock.write().unwrap() += *lazy;
                        assert!(*lock.read().unwrap() >= 7);
                    }
                    once.call_once(|| ());
                    group.done();
                });
            }
            group.wait();
        });
        assert_eq!(
            (*mutex.lock().unwrap(), *lock.read().unwrap()),
            (40_000, 280_000)
        );
    });
}
