//! Loops without calls share the Ps: with the goroutine that ends them, with each other, with woken
//! goroutines.

use super::*;

/// The loop can only end through a goroutine that needs its P.
#[test]
fn u5_a_loop_without_calls_makes_room_for_the_one_that_ends_it() {
    let _turn = beside();
    for procs in [1, 2] {
        for _ in 0..3 {
            within(LONG, "the loops", || {
                checked(&runtime(procs), || {
                    let (flag, begun) = (
                        Arc::new(AtomicBool::new(false)),
                        Arc::new(AtomicUsize::new(0)),
                    );
                    let hogs = 2 * procs;
                    let hog = |_| {
                        let (flag, begun) = (Arc::clone(&flag), Arc::clone(&begun));
                        thread::spawn(move || {
                            begun.fetch_add(1, SeqCst);
                            spin_until(&flag);
                        })
                    };
                    let handles: Vec<_> = (0..hogs).map(hog).collect();
                    let ends = thread::spawn(move || {
                        while begun.load(SeqCst) < hogs {
                            gosched::yield_now();
                        }
                        flag.store(true, SeqCst);
                    });
                    ends.join().unwrap();
                    handles.into_iter().for_each(|h| h.join().unwrap());
                });
            });
        }
    }
}

/// A goroutine that spawns and never calls again does not starve what it spawned.
#[test]
fn u5_a_spawner_that_spins_does_not_keep_what_it_spawned() {
    let _turn = beside();
    within(LONG, "the spawners", || {
        for procs in [1, 2] {
            let runtime = runtime(procs);
            for _ in 0..5 {
                checked(&runtime, || {
                    let spawner = || {
                        let flag = Arc::new(AtomicBool::new(false));
                        let sets = Arc::clone(&flag);
                        gosched::go(move || sets.store(true, SeqCst));
                        spin_until(&flag);
                    };
                    // Every P has one, and one more.
                    let others: Vec<_> = (0..procs).map(|_| thread::spawn(spawner)).collect();
                    spawner();
                    others.into_iter().for_each(|other| other.join().unwrap());
                });
            }
            // From a thread outside, onto the global queue.
            let (flag, hog_flag) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicBool::new(false)),
            );
            for _ in 0..procs {
                let flag = Arc::clone(&hog_flag);
                runtime.go(move || spin_until(&flag));
            }
            let sets = Arc::clone(&flag);
            runtime.go(move || sets.store(true, SeqCst));
            assert!(eventually(|| flag.load(SeqCst)));
            hog_flag.store(true, SeqCst);
        }
    });
}

/// Runs hogs for a while; what they did.
fn shares(hogs: impl FnOnce() -> Hogs + Send, procs: usize, time: Duration) -> Vec<u64> {
    within(LONG, "the hogs", || {
        checked(&runtime(procs), || {
            let hogs = hogs();
            thread::sleep(time);
            hogs.all_begin();
            hogs.end()
        })
    })
}

/// All advance, and the least has done `least` of what the most has. A machine that is busy with
/// something else may share its CPUs out unevenly: so it has six tries.
fn assert_fair(least: f64, mut shares: impl FnMut() -> Vec<u64>) {
    let mut tries = Vec::new();
    for _ in 0..6 {
        let work = shares();
        assert!(work.iter().all(|work| *work > 0), "starved: {work:?}");
        if evenness(&work) >= least {
            return;
        }
        tries.push(work);
    }
    panic!("not even {least}: {tries:?}");
}

#[test]
fn f2_many_hogs_share_alike() {
    let _turn = alone();
    assert_fair(0.3, || shares(|| Hogs::new(8), 2, Duration::from_secs(2)));
}

#[test]
fn f2_hogs_that_slept_first_share_alike() {
    let _turn = alone();
    let slept = || Hogs::with(8, || thread::sleep(Duration::from_millis(5)), |_| ());
    assert_fair(0.3, || shares(slept, 2, Duration::from_secs(2)));
}

/// Half of them call into the runtime all the time and so yield when asked; the others must be
/// preempted.
#[test]
fn f2_hogs_that_call_and_hogs_that_do_not_share_alike() {
    let _turn = alone();
    let call = |at: usize| {
        if at.is_multiple_of(2) {
            gosched::blocking(|| ());
        }
    };
    let hogs = move || Hogs::with(8, || (), call);
    assert_fair(0.25, || shares(hogs, 2, Duration::from_secs(2)));
}

/// More Ps than CPUs: the kernel shares out as well.
#[test]
fn f2_hogs_on_more_ps_than_cpus_all_advance() {
    let _turn = alone();
    assert_fair(0.1, || shares(|| Hogs::new(20), 6, Duration::from_secs(2)));
}

/// How often a goroutine that sleeps 1 ms at a time runs in 2 s under hogs. If `relays`, it wakes
/// another goroutine and counts the runs of that one.
fn ticks(procs: usize, hogs: usize, relays: bool) -> u64 {
    within(LONG, "the ticker", || {
        checked(&runtime(procs), || {
            let hogs = Hogs::new(hogs);
            let (stop, seen) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicU64::new(0)),
            );
            let (is_over, count) = (Arc::clone(&stop), Arc::clone(&seen));
            let relay = thread::spawn(move || {
                while relays && !is_over.load(SeqCst) {
                    thread::park();
                    count.fetch_add(1, SeqCst);
                }
            });
            let until = Instant::now() + Duration::from_secs(2);
            while Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
                match relays {
                    true => relay.thread().unpark(),
                    false => _ = seen.fetch_add(1, SeqCst),
                }
            }
            stop.store(true, SeqCst);
            relay.thread().unpark();
            relay.join().unwrap();
            hogs.end();
            seen.load(SeqCst)
        })
    })
}

/// At least so many in one of six tries: a busy machine has its own hogs.
fn assert_ticks(at_least: u64, mut ticks: impl FnMut() -> u64) {
    let mut tries = Vec::new();
    while tries.len() < 6 {
        tries.push(ticks());
        println!("{} ticks in 2 s", tries[tries.len() - 1]);
        if tries[tries.len() - 1] >= at_least {
            return;
        }
    }
    panic!("ticks in 2 s, six times: {tries:?}");
}

#[test]
fn u5_a_ticker_ticks_under_hogs() {
    let _turn = alone();
    assert_ticks(50, || ticks(2, 4, false));
}

#[test]
fn u5_a_ticker_that_wakes_another_ticks_under_hogs() {
    let _turn = alone();
    assert_ticks(50, || ticks(2, 4, true));
}

/// On one P every tick needs the P of a hog. If the hog kept its slice there could be 200 ticks at
/// most: a woken goroutine preempts it sooner.
#[test]
fn u5_who_is_woken_does_not_wait_for_the_slice_of_a_hog() {
    let _turn = alone();
    assert_ticks(250, || ticks(1, 3, false));
}

/// Nothing is stuck behind hogs: what is started among them runs, from inside and from outside, new
/// or woken.
#[test]
fn l2_nothing_is_stuck_behind_hogs() {
    let _turn = beside();
    let runtime = runtime(2);
    let handle = runtime.handle();
    within(LONG, "what was started", || {
        checked(&runtime, || {
            let hogs = Hogs::new(6);
            for _ in 0..20 {
                let inside: Vec<_> = (0..10).map(|i| thread::spawn(move || i)).collect();
                assert_eq!(
                    inside.into_iter().map(|h| h.join().unwrap()).sum::<u64>(),
                    45
                );
                let (handle, sleeper) = (handle.clone(), thread::current());
                let outside = std::thread::spawn(move || {
                    let sum = handle.spawn(|| 7).join().unwrap();
                    sleeper.unpark();
                    sum
                });
                thread::park();
                assert_eq!(outside.join().unwrap(), 7);
            }
            hogs.end();
        });
    });
}

/// Each has its own hogs, its own monitor, and one handler between them.
#[test]
fn u5_two_runtimes_with_hogs_beside_each_other() {
    let _turn = alone();
    let run = || shares(|| Hogs::new(4), 2, Duration::from_secs(1));
    assert_fair(0.3, || {
        let other = std::thread::spawn(run);
        [run(), other.join().unwrap()].concat()
    });
}

/// A locked goroutine that spins is preempted and stays on its thread.
#[test]
fn u5_u9_locked_hogs_are_preempted_and_stay_on_their_thread() {
    let _turn = alone();
    static STRAYED: AtomicUsize = AtomicUsize::new(0);
    let work = within(LONG, "the locked hogs", || {
        checked(&runtime(2), || {
            let (stop, begun) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicUsize::new(0)),
            );
            let hog = |_| {
                let (stop, begun) = (Arc::clone(&stop), Arc::clone(&begun));
                thread::spawn(move || {
                    gosched::lock_os_thread();
                    let (home, mut work) = (tid(), 0u64);
                    while !stop.load(Relaxed) {
                        spin(10_000);
                        work += 1;
                        begun.fetch_add(usize::from(work == 1), SeqCst);
                        STRAYED.fetch_add(usize::from(tid() != home), SeqCst);
                        if work.is_multiple_of(5000) {
                            gosched::yield_now();
                        }
                    }
                    gosched::unlock_os_thread();
                    work
                })
            };
            let locked: Vec<_> = (0..4).map(hog).collect();
            let loose = Hogs::new(2);
            thread::sleep(Duration::from_secs(1));
            while begun.load(SeqCst) < 4 {
                thread::sleep(Duration::from_millis(10));
            }
            stop.store(true, SeqCst);
            loose.end();
            locked
                .into_iter()
                .map(|h| h.join().unwrap())
                .collect::<Vec<_>>()
        })
    });
    assert_eq!(STRAYED.load(SeqCst), 0);
    assert!(work.iter().all(|work| *work > 0), "starved: {work:?}");
}
