//! Goroutines that block their thread outside `gosched::blocking` (M5, L2, U3): the others run, on
//! one P and on two.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, mpsc};

use super::*;

/// On each P a goroutine blocks until the main goroutine releases it, for which the main goroutine
/// needs one of these Ps. `make` prepares one such pair: how to block, and how to end that.
fn each_p_blocked<B, E>(what: &str, make: impl Fn() -> (B, E) + Send + Sync)
where
    B: FnOnce() + Send + 'static,
    E: FnOnce(),
{
    for procs in [1, 2] {
        run(procs, what, || {
            for _ in 0..3 {
                let blocking = Arc::new(AtomicUsize::new(0));
                let pairs = (0..procs).map(|_| {
                    let ((block, end), blocking) = (make(), Arc::clone(&blocking));
                    let blocked = thread::spawn(move || {
                        blocking.fetch_add(1, SeqCst);
                        block();
                    });
                    (blocked, end)
                });
                let pairs: Vec<_> = pairs.collect();
                wait_for(&blocking, procs);
                thread::sleep(ms(5));
                for (blocked, end) in pairs {
                    assert!(!blocked.is_finished(), "{what}: it did not wait");
                    end();
                    blocked.join().unwrap();
                }
            }
        });
    }
}

#[test]
fn m5_a_read_from_a_pipe() {
    each_p_blocked("a pipe", || {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let read = move || {
            let mut got = [0];
            reader.read_exact(&mut got).unwrap();
            assert_eq!(got, [7]);
        };
        (read, move || writer.write_all(&[7]).unwrap())
    });
}

#[test]
fn m5_a_write_to_a_full_pipe() {
    each_p_blocked("a full pipe", || {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let all = vec![3; 300_000];
        let read = move || {
            let mut got = vec![0; 300_000];
            // Once for each time that the pipe is full the reader needs the P.
            got.chunks_mut(60_000).for_each(|part| {
                thread::sleep(ms(1));
                reader.read_exact(part).unwrap();
            });
            assert!(got.iter().all(|byte| *byte == 3));
        };
        (move || writer.write_all(&all).unwrap(), read)
    });
}

/// The holder needs a P to let go of it.
#[test]
fn m5_a_mutex() {
    each_p_blocked("a mutex", || {
        let shared: &'static Mutex<u32> = Box::leak(Box::default());
        let held = shared.lock().unwrap();
        (move || *shared.lock().unwrap() += 1, move || drop(held))
    });
}

#[test]
fn m5_a_channel_of_std() {
    each_p_blocked("mpsc", || {
        let (send, receive) = mpsc::channel();
        let wait = move || assert_eq!(receive.recv(), Ok(4));
        (wait, move || send.send(4).unwrap())
    });
    each_p_blocked("a rendezvous", || {
        let (send, receive) = mpsc::sync_channel(0);
        (
            move || send.send(4).unwrap(),
            move || assert_eq!(receive.recv(), Ok(4)),
        )
    });
}

#[test]
fn m5_a_condition_variable() {
    each_p_blocked("a condvar", || {
        let shared: &'static (Mutex<bool>, Condvar) = Box::leak(Box::default());
        let wait = move || {
            let is_so = shared.0.lock().unwrap();
            drop(shared.1.wait_while(is_so, |is_so| !*is_so).unwrap());
        };
        let tell = move || {
            *shared.0.lock().unwrap() = true;
            shared.1.notify_one();
        };
        (wait, tell)
    });
}

#[test]
fn m5_std_park() {
    each_p_blocked("std's park", || {
        let (tell, told) = mpsc::channel();
        let is_so = Arc::new(AtomicBool::new(false));
        let has_come = Arc::clone(&is_so);
        let wait = move || {
            tell.send(std::thread::current()).unwrap();
            while !has_come.load(SeqCst) {
                std::thread::park();
            }
        };
        let wake = move || {
            is_so.store(true, SeqCst);
            told.recv().unwrap().unpark();
        };
        (wait, wake)
    });
}

#[test]
fn m5_a_child_process() {
    each_p_blocked("a child process", || {
        let (reader, writer) = std::io::pipe().unwrap();
        let wait = move || {
            let mut cat = Command::new("cat");
            cat.stdin(reader).stdout(Stdio::null());
            assert!(cat.status().unwrap().success());
        };
        (wait, move || drop(writer))
    });
}

#[test]
fn m5_a_call_of_c() {
    each_p_blocked("poll", || {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let wait = move || {
            let mut wanted = libc::pollfd {
                fd: reader.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one descriptor, ours, for as long as it takes.
            while unsafe { libc::poll(&mut wanted, 1, -1) } != 1 {}
            assert_ne!(wanted.revents & libc::POLLIN, 0);
        };
        (wait, move || writer.write_all(&[1]).unwrap())
    });
}

#[test]
fn m5_a_lock_on_a_file() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    each_p_blocked("flock", || {
        let name = format!(
            "gosched-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, SeqCst)
        );
        let path = std::env::temp_dir().join(name);
        let (held, wanted) = (
            std::fs::File::create(&path).unwrap(),
            std::fs::File::open(&path).unwrap(),
        );
        std::fs::remove_file(&path).unwrap();
        let lock = |file: &std::fs::File| {
            // SAFETY: the descriptor is open; an interrupted call is made again.
            while unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {}
        };
        lock(&held);
        (move || lock(&wanted), move || drop(held))
    });
}

/// How many turns another goroutine has while goroutines sleep for a fixed time on all Ps.
fn turns_beside_sleepers(procs: usize, sleep: impl Fn() + Copy + Send + Sync + 'static) -> u32 {
    let asleep = Arc::new(AtomicUsize::new(0));
    let sleepers = (0..procs).map(|_| {
        let asleep = Arc::clone(&asleep);
        thread::spawn(move || {
            asleep.fetch_add(1, SeqCst);
            sleep();
        })
    });
    let sleepers: Vec<_> = sleepers.collect();
    wait_for(&asleep, procs);
    let mut turns = 0;
    while sleepers.iter().all(|one| !one.is_finished()) {
        thread::spawn(|| thread::sleep(ms(1))).join().unwrap();
        turns += 1;
    }
    sleepers.into_iter().for_each(|one| one.join().unwrap());
    turns
}

/// Goroutines that sleep for a fixed time cannot be released: the others run meanwhile. On a
/// machine that stands still meanwhile they cannot, so they have five tries.
fn each_p_asleep(what: &str, sleep: impl Fn() + Copy + Send + Sync + 'static) {
    for procs in [1, 2] {
        run(procs, what, move || {
            let have_turns = (0..5).any(|_| turns_beside_sleepers(procs, sleep) >= 5);
            assert!(have_turns, "L2: hardly any turns while others slept");
        });
    }
}

#[test]
fn l2_sleepers() {
    each_p_asleep("std's sleep", || std::thread::sleep(ms(600)));
    // SAFETY: the call only waits.
    each_p_asleep("usleep", || unsafe {
        libc::usleep(600_000);
    });
}

/// The waiter sleeps so briefly each time that every scan of sysmon finds it somewhere else.
#[test]
fn l2_short_naps_again_and_again() {
    for (nap_us, procs) in [(1, 1), (50, 1), (50, 2), (700, 1), (3000, 1)] {
        run(procs, "naps", move || {
            for _ in 0..3 {
                let is_so = Arc::new(AtomicBool::new(false));
                let (napping, has_come) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&is_so));
                let counted = Arc::clone(&napping);
                let naps = move || {
                    counted.fetch_add(1, SeqCst);
                    while !has_come.load(SeqCst) {
                        std::thread::sleep(Duration::from_micros(nap_us));
                    }
                };
                let naps: Vec<_> = (0..procs).map(|_| thread::spawn(naps.clone())).collect();
                // Each step needs the P.
                wait_for(&napping, procs);
                for _ in 0..5 {
                    thread::sleep(ms(1));
                }
                is_so.store(true, SeqCst);
                naps.into_iter().for_each(|one| one.join().unwrap());
            }
        });
    }
}

/// Back from their calls they compute, all at once, more of them than Ps, and never call the
/// runtime: each has its turn.
#[test]
fn u3_many_come_back_and_compute() {
    for procs in [1, 2] {
        run(procs, "many who compute", || {
            let calls = |at: u64| {
                move || {
                    std::thread::sleep(ms(20 + at % 3));
                    compute(ms(20));
                    at
                }
            };
            let all: Vec<_> = (0..12).map(|at| thread::spawn(calls(at))).collect();
            let sum: u64 = all.into_iter().map(|one| one.join().unwrap()).sum();
            assert_eq!(sum, 66);
        });
    }
}

/// Goroutines that talk through std's channels alone, back and forth, on one P.
#[test]
fn m5_a_conversation_through_std() {
    run(1, "a conversation", || {
        let (ask, asked) = mpsc::channel::<u32>();
        let (answer, answered) = mpsc::channel();
        let other = thread::spawn(move || asked.iter().for_each(|n| answer.send(n + 1).unwrap()));
        for n in 0..200 {
            ask.send(n).unwrap();
            assert_eq!(answered.recv(), Ok(n + 1));
        }
        drop(ask);
        other.join().unwrap();
    });
}

/// The world stops while some goroutines are in unmarked calls and others sleep.
#[test]
fn u7_the_world_stops_during_unmarked_calls() {
    run(2, "resizes", || {
        let (let_go, release) = mpsc::channel::<()>();
        let is_over = AtomicBool::new(false);
        thread::scope(|s| {
            let held = s.spawn(move || release.recv().unwrap());
            for nap in [40, 400, 4000] {
                let is_over = &is_over;
                s.spawn(move || {
                    while !is_over.load(SeqCst) {
                        std::thread::sleep(Duration::from_micros(nap));
                        compute(Duration::from_micros(nap / 4));
                    }
                });
            }
            for round in 0..60 {
                let now = 1 + round % 3;
                gosched::gomaxprocs(now);
                assert_eq!(gosched::gomaxprocs(0), now);
                gosched::debug::check().unwrap();
                thread::sleep(Duration::from_micros(200));
            }
            assert!(!held.is_finished());
            let_go.send(()).unwrap();
            is_over.store(true, SeqCst);
        });
    });
}
