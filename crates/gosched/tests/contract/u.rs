//! U1–U4, U6–U10: what a program sees. (Programs that must die are in `die.rs` as well.)

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use crate::common::{LONG, checked, child, child_with, compute, deep, eventually, runtime, tid};
use gosched::{Runtime, debug, go, thread};

#[test]
fn u1_the_spawner_goes_on_and_the_goroutine_runs() {
    checked(&runtime(1), || {
        // The goroutine can only end after the spawner went on.
        let (tx, rx) = mpsc::channel::<u32>();
        let waiter = thread::spawn(move || {
            loop {
                match rx.try_recv() {
                    Ok(value) => return value,
                    Err(_) => gosched::yield_now(),
                }
            }
        });
        tx.send(7).unwrap();
        assert_eq!(waiter.join().unwrap(), 7);
    });
    let from_outside = runtime(1);
    let (tx, rx) = mpsc::channel();
    from_outside.go(move || tx.send(8).unwrap());
    assert_eq!(rx.recv_timeout(LONG), Ok(8));
}

/// Closures of every size arrive as they were, next to each other.
#[test]
fn u1_captured_values_arrive_whatever_their_size() {
    fn round<const N: usize>(sum: &Arc<AtomicUsize>) -> usize {
        for i in 0..50 {
            let (values, sum) = ([i; N], Arc::clone(sum));
            go(move || {
                assert!(values.iter().all(|value| *value == i));
                sum.fetch_add(1, SeqCst);
            });
        }
        50
    }
    checked(&runtime(2), || {
        let sum = Arc::new(AtomicUsize::new(0));
        let spawned = round::<0>(&sum)
            + round::<1>(&sum)
            + round::<11>(&sum)
            + round::<12>(&sum)
            + round::<13>(&sum)
            + round::<14>(&sum)
            + round::<20>(&sum)
            + round::<28>(&sum)
            + round::<100>(&sum);
        assert!(eventually(|| {
            gosched::yield_now();
            sum.load(SeqCst) == spawned
        }));
    });
}

#[test]
fn u1_u10_what_the_spawner_wrote_is_seen() {
    checked(&runtime(2), || {
        for i in 0..5_000usize {
            let cells: Arc<[AtomicUsize; 4]> =
                Arc::new(std::array::from_fn(|_| AtomicUsize::new(0)));
            cells.iter().for_each(|cell| cell.store(i, Relaxed));
            let seen = Arc::clone(&cells);
            let child = thread::spawn(move || {
                let all = seen.iter().all(|cell| cell.load(Relaxed) == i);
                seen.iter().for_each(|cell| cell.store(i + 1, Relaxed));
                all
            });
            assert!(child.join().unwrap());
            assert!(
                cells.iter().all(|cell| cell.load(Relaxed) == i + 1),
                "and by the joiner"
            );
        }
    });
}

#[test]
fn u2_every_runnable_goroutine_runs() {
    for procs in [1, 2, 5] {
        checked(&runtime(procs), || {
            let ran = AtomicUsize::new(0);
            thread::scope(|s| {
                for _ in 0..2_000 {
                    s.spawn(|| {
                        gosched::yield_now();
                        ran.fetch_add(1, SeqCst);
                    });
                }
            });
            assert_eq!(ran.load(SeqCst), 2_000);
        });
    }
}

/// When the caller ran, as it saw it: a gap means that it was preempted.
fn burn_and_note(time: Duration, epoch: Instant, spans: &mut Vec<(Duration, Duration)>) {
    const GAP: Duration = Duration::from_micros(20);
    let began = epoch.elapsed();
    let (mut from, mut last) = (began, began);
    while last - began < time {
        let now = epoch.elapsed();
        if now - last > GAP {
            spans.push((from, last));
            from = now;
        }
        last = now;
    }
    spans.push((from, last));
}

/// The most goroutines that ran at the same time, of more than can.
fn most_at_once(procs: usize) -> usize {
    let epoch = Instant::now();
    let all = std::sync::Mutex::new(Vec::new());
    thread::scope(|s| {
        for _ in 0..procs + 4 {
            s.spawn(|| {
                let mut spans = Vec::with_capacity(10_000);
                for _ in 0..3 {
                    burn_and_note(Duration::from_millis(15), epoch, &mut spans);
                    gosched::yield_now();
                }
                all.lock().unwrap().extend(spans);
            });
        }
    });
    let spans = all.into_inner().unwrap();
    let mut edges: Vec<_> = spans
        .iter()
        .flat_map(|(from, to)| [(*from, 1), (*to, -1)])
        .collect();
    edges.sort_unstable();
    let running = edges.iter().scan(0, |now, (_, step)| {
        *now += step;
        Some(*now)
    });
    running.max().unwrap_or(0) as usize
}

#[test]
fn u3_no_more_run_than_gomaxprocs() {
    assert_eq!(checked(&runtime(1), || most_at_once(1)), 1);
    let most = checked(&runtime(3), || most_at_once(3));
    assert!((1..=3).contains(&most), "{most}");
}

#[test]
fn u3_no_more_run_than_gomaxprocs_after_a_change() {
    checked(&runtime(4), || {
        most_at_once(4);
        gosched::gomaxprocs(1);
        assert_eq!(most_at_once(1), 1);
        gosched::gomaxprocs(2);
        assert!(most_at_once(2) <= 2);
    });
}

#[test]
fn u4_one_that_yields_neither_starves_nor_is_starved() {
    checked(&runtime(1), || {
        let turns: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        thread::scope(|s| {
            for own in &turns {
                s.spawn(|| {
                    // Until each has had a thousand turns.
                    while turns.iter().any(|turns| turns.load(SeqCst) < 1_000) {
                        own.fetch_add(1, SeqCst);
                        gosched::yield_now();
                    }
                });
            }
        });
    });
}

/// A pair that wake each other through `next` share one slice: the goroutine behind them gets its
/// turn.
#[test]
fn u4_a_pair_that_wake_each_other_do_not_starve_a_third() {
    checked(&runtime(1), || {
        let (turn, third_ran) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let play = |own: usize| {
            let (turn, third_ran) = (Arc::clone(&turn), Arc::clone(&third_ran));
            move |other: thread::Thread| {
                let began = Instant::now();
                while !third_ran.load(SeqCst) {
                    assert!(began.elapsed() < LONG, "the third goroutine starves");
                    let turns = turn.load(SeqCst);
                    if turns % 2 != own {
                        thread::park();
                        continue;
                    }
                    if turns == 100 {
                        // The other one is parked. Its wake-up kicks the third to the ring, behind
                        // the pair.
                        let third_ran = Arc::clone(&third_ran);
                        go(move || third_ran.store(true, SeqCst));
                    }
                    turn.store(turns + 1, SeqCst);
                    other.unpark();
                }
                other.unpark();
            }
        };
        let (first, second) = (play(0), play(1));
        let (tx, rx) = mpsc::channel();
        let second = thread::spawn(move || second(rx.recv().unwrap()));
        let partner = second.thread().clone();
        let first = thread::spawn(move || first(partner));
        tx.send(first.thread().clone()).unwrap();
        first.join().unwrap();
        second.join().unwrap();
    });
}

#[test]
fn u6_a_deadlock_is_reported_with_every_goroutine() {
    let output = child("u6_a_deadlock_is_reported_with_every_goroutine", || {
        gosched::run(|| {
            let named = thread::Builder::new().name("philosopher".into());
            named.spawn(thread::park).unwrap().join().unwrap();
        });
    });
    output.died_with(&["fatal error: all goroutines are asleep - deadlock!"]);
    output.says(&["philosopher", "[park]", "[join]"]);
}

#[test]
fn u6_hope_is_no_deadlock() {
    let output = child("u6_hope_is_no_deadlock", || {
        gosched::run(|| {
            // A timer.
            thread::spawn(|| thread::sleep(Duration::from_millis(100)))
                .join()
                .unwrap();
            thread::park_timeout(Duration::from_millis(100));
            // A thread that is just starting, one that lives, one that ends.
            let main = thread::current();
            let other = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                main.unpark();
            });
            thread::park();
            other.join().unwrap();
            // Another runtime that is busy.
            let main = thread::current();
            let busy = runtime(1);
            busy.go(move || {
                compute(Duration::from_millis(50));
                thread::sleep(Duration::from_millis(50));
                main.unpark();
            });
            thread::park();
            // A blocking call outside `gosched::blocking`.
            thread::spawn(|| std::thread::sleep(Duration::from_millis(50)))
                .join()
                .unwrap();
        });
    });
    output.succeeded();
}

/// Each link starts its successor and ends, until told to stop; counts the links.
fn chain(links: Arc<AtomicUsize>, is_over: Arc<AtomicBool>) {
    links.fetch_add(1, SeqCst);
    if !is_over.load(SeqCst) {
        go(move || chain(links, is_over));
    }
}

/// Resizers sleep, wait for the right to stop the world, and are preempted. A chain of spawns
/// beside them must not take all the turns. Counted in links of the chain, which are decisions of
/// the scheduler.
#[test]
fn u2_u7_resizes_beside_a_chain_of_spawns_get_their_turns() {
    const RESIZES: usize = 20;
    let mut links = checked(&runtime(2), || {
        let (links, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        chain(Arc::clone(&links), Arc::clone(&is_over));
        let resizers = [[2, 3], [3, 1]].map(|numbers| {
            let links = Arc::clone(&links);
            thread::spawn(move || {
                let resize = |at: usize| {
                    let before = links.load(SeqCst);
                    gosched::gomaxprocs(numbers[at % 2]);
                    links.load(SeqCst) - before
                };
                (0..2 * RESIZES).map(resize).collect::<Vec<_>>()
            })
        });
        let links = resizers.map(|resizer| resizer.join().unwrap()).concat();
        is_over.store(true, SeqCst);
        links
    });
    // A resize sleeps now and then, while the chain grows. When slices were inherited without end,
    // a resize took 200,000 links of the chain and more. A few count for nothing: a resizer's CPU
    // may be away for seconds.
    links.sort_unstable();
    links.truncate(links.len() * 7 / 8);
    let each = links.iter().sum::<usize>() / links.len();
    assert!(each < 40_000, "{each} links for one resize: {links:?}");
}

/// Every stop of the world interrupts the goroutine that runs. It must not be the first to run
/// again each time.
#[test]
fn u2_u7_stops_of_the_world_do_not_keep_a_loop_from_its_turns() {
    let runtime = runtime(1);
    let is_over = Arc::<AtomicBool>::default();
    let counts: [Arc<AtomicUsize>; 2] = Default::default();
    for count in &counts {
        let (count, is_over) = (Arc::clone(count), Arc::clone(&is_over));
        runtime.go(move || {
            while !is_over.load(Relaxed) {
                count.fetch_add(1, Relaxed);
            }
        });
    }
    let one_runs = eventually(|| counts.iter().any(|count| count.load(Relaxed) > 0));
    assert!(one_runs, "neither of them runs");
    // No slice is over before the world has been stopped again.
    let began = Instant::now();
    while counts.iter().any(|count| count.load(Relaxed) == 0) && began.elapsed() < LONG {
        runtime.check().unwrap();
    }
    let counted = counts.each_ref().map(|count| count.load(Relaxed));
    is_over.store(true, SeqCst);
    assert!(counted.iter().all(|count| *count > 0), "{counted:?}");
}

#[test]
fn u7_gomaxprocs_reads_and_sets() {
    checked(&runtime(2), || {
        assert_eq!(gosched::gomaxprocs(0), 2);
        assert_eq!(gosched::gomaxprocs(5), 2);
        assert_eq!(gosched::gomaxprocs(0), 5);
        assert_eq!(debug::metrics().procs, 5);
        assert_eq!(gosched::gomaxprocs(1), 5);
        assert_eq!(gosched::gomaxprocs(1), 1);
    });
}

#[test]
fn u7_grown_ps_work_at_once() {
    checked(&runtime(1), || {
        gosched::gomaxprocs(4);
        // Four at the same time, none of which lets go of its P.
        let inside = Arc::new(AtomicUsize::new(0));
        let all = move || {
            inside.fetch_add(1, SeqCst);
            assert!(eventually(|| inside.load(SeqCst) >= 4));
        };
        let others: Vec<_> = (0..3).map(|_| thread::spawn(all.clone())).collect();
        all();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn u7_queued_goroutines_survive_every_change() {
    checked(&runtime(4), || {
        let (ran, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let spawned = thread::scope(|s| {
            let spawner = s.spawn(|| {
                let mut spawned = 0;
                while !stop.load(SeqCst) {
                    thread::scope(|s| {
                        for _ in 0..300 {
                            s.spawn(|| ran.fetch_add(1, SeqCst));
                            spawned += 1;
                        }
                    });
                }
                spawned
            });
            for n in [1, 3, 2, 64, 1, 4, 2, 7, 1, 2].repeat(5) {
                gosched::gomaxprocs(n);
                debug::check().unwrap();
                gosched::yield_now();
            }
            stop.store(true, SeqCst);
            spawner.join().unwrap()
        });
        assert_eq!(ran.load(SeqCst), spawned);
    });
}

#[test]
fn u7_the_default_comes_from_affinity_environment_or_builder() {
    const NAME: &str = "u7_the_default_comes_from_affinity_environment_or_builder";
    let read = || {
        Runtime::builder()
            .build()
            .unwrap()
            .run(|| gosched::gomaxprocs(0))
    };
    let body = |variant: &str| match variant {
        "affinity" => {
            // SAFETY: sets the mask of this process, which ends soon, to its first CPU.
            unsafe {
                let mut cpus: libc::cpu_set_t = std::mem::zeroed();
                libc::sched_getaffinity(0, size_of_val(&cpus), &mut cpus);
                let first = (0..1024).find(|cpu| libc::CPU_ISSET(*cpu, &cpus)).unwrap();
                libc::CPU_ZERO(&mut cpus);
                libc::CPU_SET(first, &mut cpus);
                assert_eq!(libc::sched_setaffinity(0, size_of_val(&cpus), &cpus), 0);
            }
            assert_eq!(read(), 1);
        }
        _ => {
            assert_eq!(read(), 3);
            assert_eq!(runtime(5).run(|| gosched::gomaxprocs(0)), 5);
        }
    };
    child_with(
        NAME,
        "affinity",
        |c| {
            c.env_remove("GOSCHED_PROCS");
        },
        body,
    )
    .succeeded();
    child_with(
        NAME,
        "environment",
        |c| {
            c.env("GOSCHED_PROCS", "3");
        },
        body,
    )
    .succeeded();
}

#[test]
fn u8_a_stack_grows_to_what_was_asked_for() {
    checked(&runtime(2), || {
        let sizes = [64, 1024, 16 * 1024, 64 * 1024];
        for kib in sizes {
            let builder = thread::Builder::new().stack_size(kib * 2048 + (64 << 10));
            assert_eq!(
                builder.spawn(move || deep(kib)).unwrap().join().unwrap(),
                kib
            );
        }
    });
}

#[test]
fn u8_the_limit_is_at_most_a_gib() {
    checked(&runtime(1), || {
        let size = |bytes| thread::Builder::new().stack_size(bytes).spawn(|| deep(100));
        assert_eq!(size(1 << 30).unwrap().join().unwrap(), 100);
        assert!(size((1 << 30) + 1).is_err());
    });
}

#[test]
fn u8_memory_of_dead_stacks_goes_back() {
    let output = child("u8_memory_of_dead_stacks_goes_back", || {
        runtime(2).run(|| {
            let before = crate::common::rss_kib();
            let many: Vec<_> = (0..8)
                .map(|_| {
                    let builder = thread::Builder::new().stack_size(64 << 20);
                    builder.spawn(|| deep(16 * 1024)).unwrap()
                })
                .collect();
            many.into_iter()
                .for_each(|one| assert_eq!(one.join().unwrap(), 16 * 1024));
            let back = eventually(|| {
                thread::sleep(Duration::from_millis(10));
                crate::common::rss_kib() < before + (16 << 10)
            });
            assert!(back, "{} KiB, {before} before", crate::common::rss_kib());
        });
    });
    output.succeeded();
}

#[test]
fn u9_a_locked_goroutine_stays_on_its_thread_alone() {
    checked(&runtime(2), || {
        let (wired, turns) = (AtomicI32::new(0), AtomicUsize::new(0));
        thread::scope(|s| {
            s.spawn(|| {
                gosched::lock_os_thread();
                gosched::lock_os_thread();
                let here = tid();
                wired.store(here, SeqCst);
                while turns.load(SeqCst) == 0 {
                    gosched::yield_now();
                }
                for i in 0..100 {
                    match i % 3 {
                        0 => gosched::yield_now(),
                        1 => thread::sleep(Duration::from_micros(20)),
                        _ => thread::spawn(|| ()).join().unwrap(),
                    }
                    assert_eq!(tid(), here);
                    if i == 50 {
                        gosched::unlock_os_thread(); // one of two
                    }
                }
                wired.store(-1, SeqCst);
            });
            for _ in 0..4 {
                s.spawn(|| {
                    while wired.load(SeqCst) >= 0 {
                        turns.fetch_add(1, SeqCst);
                        assert_ne!(wired.load(SeqCst), tid(), "another goroutine on its thread");
                        gosched::yield_now();
                    }
                });
            }
        });
        assert!(turns.load(SeqCst) > 0);
    });
}

#[test]
fn u9_unlocking_as_often_as_locking_sets_it_free() {
    checked(&runtime(1), || {
        gosched::unlock_os_thread(); // without a lock: nothing
        gosched::lock_os_thread();
        gosched::lock_os_thread();
        gosched::unlock_os_thread();
        gosched::unlock_os_thread();
        gosched::unlock_os_thread();
        let here = tid();
        // Free again: another goroutine may run on this thread.
        let met = (0..1_000).any(|_| thread::spawn(tid).join().unwrap() == here);
        assert!(met);
    });
}

#[test]
fn u9_a_goroutine_that_ends_locked_ends_its_thread() {
    checked(&runtime(2), || {
        let ends: [fn(); 2] = [|| (), || panic!("on purpose, while locked")];
        for end in ends {
            let (tx, rx) = mpsc::channel();
            let locked = thread::spawn(move || {
                gosched::lock_os_thread();
                tx.send(tid()).unwrap();
                end();
            });
            let _ = locked.join();
            let gone = rx.recv().unwrap();
            let task = format!("/proc/self/task/{gone}");
            assert!(
                eventually(|| !std::path::Path::new(&task).exists()),
                "the thread lives"
            );
        }
    });
}

#[test]
fn u10_join_and_unpark_order_what_came_before() {
    checked(&runtime(2), || {
        let main = thread::current();
        for i in 1..2_000usize {
            let data = Arc::new(AtomicUsize::new(0));
            let (theirs, main) = (Arc::clone(&data), main.clone());
            let is_done = Arc::new(AtomicBool::new(false));
            let done = Arc::clone(&is_done);
            go(move || {
                theirs.store(i, Relaxed);
                done.store(true, Relaxed);
                main.unpark();
            });
            while !is_done.load(Relaxed) {
                thread::park();
            }
            assert_eq!(data.load(Relaxed), i);
        }
    });
    // What main returns has been written when `run` returns.
    for i in 0..50 {
        assert_eq!(runtime(1).run(|| vec![i; 10]), vec![i; 10]);
    }
}
