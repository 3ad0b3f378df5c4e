//! Drops in every state.

use super::*;

#[test]
fn d2_drop_idle() {
    for _ in 0..50 {
        drop(runtime(2));
        let used = runtime(2);
        used.run(|| thread::spawn(|| ()).join().unwrap());
        drop(used);
    }
}

#[test]
fn d2_drop_with_parked_goroutines_answers_their_joins() {
    let (kept, count) = (runtime(1), alive());
    for round in 0..30 {
        let dropped = runtime(2);
        let parked = |count| {
            let here = Alive::new(count);
            move || {
                let _here = here;
                match round % 3 {
                    0 => thread::park(),
                    1 => thread::sleep(LONG),
                    _ => thread::park_timeout(LONG),
                }
            }
        };
        let handles: Vec<_> = (0..20).map(|_| dropped.spawn(parked(&count))).collect();
        let mut joiners = Vec::new();
        for (at, handle) in handles.into_iter().enumerate() {
            match at % 2 {
                0 => joiners.push(kept.spawn(move || handle.join())),
                _ => {
                    let (send, receive) = mpsc::channel();
                    std::thread::spawn(move || send.send(handle.join()));
                    joiners.push(kept.spawn(move || receive.recv().unwrap()));
                }
            }
        }
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        within(LONG, "drop", || drop(dropped));
        within(LONG, "the joins", || {
            joiners
                .into_iter()
                .for_each(|j| assert_exited(j.join().unwrap()));
        });
    }
}

/// What never started is dropped by the dropping thread; what did is abandoned. Nothing is dropped
/// twice.
#[test]
fn d2_drop_with_goroutines_that_never_started() {
    for _ in 0..20 {
        // The goroutine that keeps the only P is to keep it.
        let alone = gosched::Runtime::builder().procs(1).preemption(false);
        let (count, dropped) = (alive(), alone.build().unwrap());
        let (started, has_started) = mpsc::channel();
        let release = Arc::new(AtomicBool::new(false));
        let busy = Arc::clone(&release);
        dropped.go(move || {
            started.send(()).unwrap();
            while !busy.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        has_started.recv().unwrap();
        let closures = |_| {
            let here = Alive::new(&count);
            let large = [1u8; 200];
            dropped.spawn(move || black_box((&here, large)).1)
        };
        let handles: Vec<_> = (0..200).map(closures).collect();
        for _ in 0..200 {
            let here = Alive::new(&count);
            dropped.go(move || drop(here));
        }
        assert_eq!(count.load(SeqCst), 400);
        within(LONG, "drop", || drop(dropped));
        assert_eq!(count.load(SeqCst), 0);
        handles.into_iter().for_each(|h| assert_exited(h.join()));
        release.store(true, SeqCst);
    }
}

/// Destructors of closures may panic, and may use the runtime that goes.
#[test]
fn d2_drop_runs_destructors_that_misbehave() {
    struct Panics(Arc<AtomicUsize>);
    impl Drop for Panics {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
            std::panic::resume_unwind(Box::new("in a destructor"));
        }
    }
    struct Spawns(Handle, Arc<AtomicUsize>);
    impl Drop for Spawns {
        fn drop(&mut self) {
            assert!(self.0.try_spawn(|| ()).is_err());
            self.1.fetch_add(1, SeqCst);
        }
    }
    // The goroutine that keeps the only P is to keep it.
    let alone = gosched::Runtime::builder().procs(1).preemption(false);
    let (dropped, count) = (alone.build().unwrap(), Arc::new(AtomicUsize::new(0)));
    let (started, has_started) = mpsc::channel();
    let release = Arc::new(AtomicBool::new(false));
    let busy = Arc::clone(&release);
    dropped.go(move || {
        started.send(()).unwrap();
        while !busy.load(SeqCst) {
            std::hint::spin_loop();
        }
    });
    has_started.recv().unwrap();
    for _ in 0..10 {
        let panics = Panics(Arc::clone(&count));
        let spawns = Spawns(dropped.handle(), Arc::clone(&count));
        dropped.go(move || drop(panics));
        dropped.go(move || drop(spawns));
    }
    within(LONG, "drop", || drop(dropped));
    assert_eq!(count.load(SeqCst), 20);
    release.store(true, SeqCst);
}

#[test]
fn d2_drop_with_busy_goroutines_does_not_wait_for_them() {
    let dropped = runtime(2);
    let release = Arc::new(AtomicBool::new(false));
    let (started, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handles: Vec<_> = (0..2)
        .map(|_| {
            let (release, ended) = (Arc::clone(&release), Arc::clone(&ended));
            let started = Arc::clone(&started);
            dropped.spawn(move || {
                started.fetch_add(1, SeqCst);
                while !release.load(SeqCst) {
                    std::hint::spin_loop();
                }
                ended.fetch_add(1, SeqCst);
            })
        })
        .collect();
    assert!(eventually(|| started.load(SeqCst) == 2));
    within(LONG, "drop", || drop(dropped));
    within(LONG, "join", || {
        handles.into_iter().for_each(|h| assert_exited(h.join()))
    });
    assert_eq!(ended.load(SeqCst), 0);
    // They are left to themselves and may finish what they do.
    release.store(true, SeqCst);
    assert!(eventually(|| ended.load(SeqCst) == 2));
}

#[test]
fn d2_drop_with_goroutines_in_blocking_calls() {
    let dropped = runtime(2);
    let (started, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..2 {
        let (started, ended) = (Arc::clone(&started), Arc::clone(&ended));
        dropped.go(move || {
            started.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(200));
            ended.fetch_add(1, SeqCst);
            thread::park(); // for good: its runtime is gone
            ended.fetch_add(100, SeqCst);
        });
    }
    assert!(eventually(|| started.load(SeqCst) == 2));
    within(LONG, "drop", || drop(dropped));
    assert!(eventually(|| ended.load(SeqCst) == 2));
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(ended.load(SeqCst), 2);
}

#[test]
fn d2_drop_with_yielding_goroutines() {
    for procs in [1, 2, 3] {
        for _ in 0..20 {
            let dropped = runtime(procs);
            for _ in 0..10 {
                dropped.go(|| {
                    loop {
                        gosched::yield_now();
                    }
                });
            }
            within(LONG, "drop", || drop(dropped));
        }
    }
}

#[test]
fn d2_drop_with_locked_goroutines() {
    for round in 0..20 {
        let dropped = runtime(2);
        let handles: Vec<_> = (0..6)
            .map(|n| {
                dropped.spawn(move || {
                    gosched::lock_os_thread();
                    match n % 3 {
                        0 => thread::park(),
                        1 => thread::sleep(LONG),
                        _ => loop {
                            gosched::yield_now();
                        },
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(round % 5));
        within(LONG, "drop", || drop(dropped));
        handles.into_iter().for_each(|h| assert_exited(h.join()));
    }
}

#[test]
fn d2_drop_while_gomaxprocs_changes() {
    for round in 0..30 {
        let dropped = runtime(1 + round % 3);
        for n in 0..4 {
            dropped.go(move || {
                for procs in 0.. {
                    gosched::gomaxprocs(1 + (procs + n) % 5);
                    gosched::yield_now();
                }
            });
        }
        std::thread::sleep(Duration::from_millis(round as u64 % 4));
        within(LONG, "drop", || drop(dropped));
    }
}

/// A goroutine that is busy when the drop begins calls `gomaxprocs` when other threads have ended
/// already.
#[test]
fn d2_gomaxprocs_in_a_runtime_that_is_being_dropped() {
    let dropped = runtime(2);
    let (started, has_started) = mpsc::channel();
    let both = Arc::new(Barrier::new(2));
    for n in 0..2 {
        let (started, both) = (started.clone(), Arc::clone(&both));
        dropped.go(move || {
            both.wait(); // a P each
            started.send(()).unwrap();
            if n == 0 {
                compute(Duration::from_millis(10));
                gosched::gomaxprocs(3);
            }
            loop {
                gosched::yield_now();
            }
        });
    }
    has_started.recv().unwrap();
    has_started.recv().unwrap();
    within(LONG, "drop", || drop(dropped));
}

#[test]
fn d2_drop_from_inside_its_own_goroutine() {
    for procs in [1, 2] {
        for _ in 0..10 {
            let (send, receive) = mpsc::channel();
            let own = Arc::new(Mutex::new(Some(runtime(procs))));
            let taken = Arc::clone(&own);
            let count = alive();
            let here = Alive::new(&count);
            let guard = own.lock().unwrap();
            let dropped = guard.as_ref().unwrap();
            let parked: Vec<_> = (0..5).map(|_| dropped.spawn(thread::park)).collect();
            let dropper = dropped.spawn(move || {
                let own = taken.lock().unwrap().take();
                drop(own);
                // It continues, without a runtime but with all its state.
                drop(here);
                let next = thread::Builder::new().spawn(|| ());
                send.send(next.is_err()).unwrap();
            });
            drop(guard);
            assert_eq!(receive.recv_timeout(LONG), Ok(true));
            assert_eq!(count.load(SeqCst), 0);
            assert_exited(dropper.join());
            parked.into_iter().for_each(|h| assert_exited(h.join()));
        }
    }
}

#[test]
fn d2_drop_in_a_goroutine_of_another_runtime() {
    let kept = runtime(1);
    for _ in 0..20 {
        let dropped = runtime(2);
        let handle = dropped.spawn(thread::park);
        kept.run(move || drop(dropped));
        assert_exited(handle.join());
    }
}

/// Two runtimes, each dropped by a goroutine of the other.
#[test]
fn d2_two_runtimes_drop_each_other() {
    let out = child("dropping::d2_two_runtimes_drop_each_other", || {
        for _ in 0..20 {
            let (a, b) = (runtime(1), runtime(1));
            let (for_a, for_b) = (a.handle(), b.handle());
            let both = Arc::new(Barrier::new(2));
            let (sent, received) = mpsc::channel();
            for (handle, other) in [(for_a, b), (for_b, a)] {
                let (both, sent) = (Arc::clone(&both), sent.clone());
                handle.go(move || {
                    both.wait();
                    drop(other);
                    sent.send(()).unwrap();
                });
            }
            for _ in 0..2 {
                received.recv_timeout(LONG).expect("both drops return");
            }
        }
    });
    out.succeeded();
}

#[test]
fn d2_drop_while_threads_unpark() {
    let stop = Arc::new(AtomicBool::new(false));
    for round in 0..30 {
        stop.store(false, SeqCst);
        let dropped = runtime(2);
        let parkers: Vec<_> = (0..10)
            .map(|_| {
                dropped.spawn(|| {
                    loop {
                        thread::park();
                    }
                })
            })
            .collect();
        let unparkers: Vec<_> = (0..3)
            .map(|_| {
                let stop = Arc::clone(&stop);
                let threads: Vec<_> = parkers.iter().map(|h| h.thread().clone()).collect();
                std::thread::spawn(move || {
                    while !stop.load(SeqCst) {
                        threads.iter().for_each(thread::Thread::unpark);
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(round % 4));
        within(LONG, "drop", || drop(dropped));
        parkers
            .into_iter()
            .for_each(|h: JoinHandle<()>| assert_exited(h.join()));
        stop.store(true, SeqCst);
        unparkers.into_iter().for_each(|t| t.join().unwrap());
    }
}

/// A goroutine whose spawn from outside succeeded either ran, or its join reports that it did not.
/// In both cases its closure is dropped.
#[test]
fn d2_drop_while_threads_spawn() {
    for round in 0..300 {
        let (dropped, count) = (runtime(2), alive());
        let begin = Arc::new(Barrier::new(4));
        let spawners: Vec<_> = (0..3)
            .map(|_| {
                let (handle, begin, count) =
                    (dropped.handle(), Arc::clone(&begin), Arc::clone(&count));
                std::thread::spawn(move || {
                    begin.wait();
                    let mut spawned = Vec::new();
                    loop {
                        let here = Alive::new(&count);
                        match handle.try_spawn(move || drop(here)) {
                            Ok(handle) => spawned.push(handle),
                            Err(_) => return spawned,
                        }
                    }
                })
            })
            .collect();
        begin.wait();
        std::thread::sleep(Duration::from_micros(round * 10));
        within(LONG, "drop", || drop(dropped));
        let spawned = spawners.into_iter().flat_map(|s| s.join().unwrap());
        let spawned: Vec<_> = spawned.collect();
        within(LONG, "the joins of what was spawned", || {
            for handle in spawned {
                if let Err(payload) = handle.join() {
                    assert!(payload.is::<Exited>());
                }
            }
        });
        // A goroutine that was running when it was abandoned drops its closure later.
        assert!(eventually(|| count.load(SeqCst) == 0), "a closure is lost");
    }
}

/// A scope's goroutine that is in the middle of something when its runtime goes still borrows from
/// the scope.
#[test]
fn d2_a_scope_outlives_its_running_goroutines() {
    let out = child(
        "dropping::d2_a_scope_outlives_its_running_goroutines",
        || {
            let dropped = runtime(2);
            let mut borrowed = vec![7u32; 1 << 20];
            let (begun, running) = (AtomicBool::new(false), AtomicBool::new(false));
            thread::scope(|s| {
                dropped.run(|| {
                    s.spawn(|| {
                        running.store(true, SeqCst);
                        begun.store(true, SeqCst);
                        compute(Duration::from_millis(300));
                        assert!(borrowed.iter().all(|n| *n == 7), "changed while borrowed");
                        running.store(false, SeqCst);
                    });
                    while !begun.load(SeqCst) {
                        gosched::yield_now();
                    }
                });
                drop(dropped);
            });
            assert!(
                !running.load(SeqCst),
                "the scope ended before its goroutine"
            );
            borrowed.fill(8);
        },
    );
    out.succeeded();
}

/// The same with a goroutine that will never continue. It may have lent its borrow to others, so
/// the scope can neither return nor unwind: the process ends with a clear message.
#[test]
fn d2_a_scope_that_cannot_end_says_so() {
    let out = child("dropping::d2_a_scope_that_cannot_end_says_so", || {
        let dropped = runtime(2);
        let (borrowed, parked) = (vec![7u32; 1 << 10], AtomicBool::new(false));
        thread::scope(|s| {
            dropped.run(|| {
                s.spawn(|| {
                    // A nested scope, in which another goroutine continues with the same borrow.
                    thread::scope(|inner| {
                        inner.spawn(|| {
                            parked.store(true, SeqCst);
                            // The end of the process ends this.
                            while borrowed.iter().all(|n| *n == 7) {
                                std::hint::spin_loop();
                            }
                        });
                    });
                });
                while !parked.load(SeqCst) {
                    gosched::yield_now();
                }
            });
            drop(dropped);
        });
    });
    assert_eq!(out.code(), 2, "{out:?}");
    assert!(
        out.stderr
            .contains("a scope cannot end: the runtime of one of its goroutines was dropped"),
        "{out:?}"
    );
}

#[test]
fn d2_drop_with_goroutines_in_a_scope() {
    for procs in [1, 2] {
        let dropped = runtime(procs);
        let handle = dropped.spawn(|| {
            let numbers = [1, 2, 3];
            thread::scope(|s| {
                for n in &numbers {
                    s.spawn(move || {
                        thread::sleep(LONG);
                        black_box(n);
                    });
                }
            });
        });
        std::thread::sleep(Duration::from_millis(5));
        within(LONG, "drop", || drop(dropped));
        assert_exited(handle.join());
    }
}

/// Handles of goroutines outlive them and their runtime.
#[test]
fn d2_handles_outlive_the_runtime() {
    let dropped = runtime(1);
    let parked = dropped.spawn(thread::park);
    let (thread, ended) = (parked.thread().clone(), dropped.spawn(|| 3));
    while !ended.is_finished() {
        std::thread::yield_now();
    }
    let (handle, id) = (dropped.handle(), thread.id());
    drop(dropped);
    thread.unpark();
    thread.unpark();
    assert_eq!(thread.id(), id);
    assert_eq!(ended.join().unwrap(), 3);
    assert!(parked.is_finished());
    assert_exited(parked.join());
    let error = handle.try_spawn(|| ()).unwrap_err().to_string();
    assert!(error.contains("the gosched runtime"), "{error}");
}
