//! Cases that were found by thinking about which operations can meet: each of these once went
//! wrong, or could.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use gosched::chan::{Select, TryRecvError, bounded, never, select};

use super::*;
use crate::common::{Alive, Planned, chaos, child_with, process_cpu_time};

/// A select whose send is chosen and then given up, because its message panics.
fn give_up<T>(s: &gosched::chan::Sender<T>, before: impl FnOnce()) {
    let chosen = AssertUnwindSafe(|| {
        let mut sel = Select::new();
        sel.send(s);
        let operation = sel.select();
        let message = || {
            before();
            resume_unwind(Box::new(Planned))
        };
        operation.send(s, message()).unwrap_or_default();
    });
    assert!(catch_unwind(chosen).unwrap_err().is::<Planned>());
}

/// The place of a select that gave up is free again: a sender that waits for it is served, though
/// receivers only ever look.
#[test]
fn a_place_that_was_given_up_goes_to_the_sender_that_waits() {
    run(2, "a place that was given up", || {
        for cap in 1..=3 {
            let (s, r) = bounded(cap);
            (1..cap).for_each(|n| s.send(n).unwrap());
            give_up(&s, || {
                let s = s.clone();
                gosched::go(move || s.send(100).unwrap());
                until_waiting(1, "chan send");
            });
            let mut got = Vec::new();
            while got.last() != Some(&100) {
                got.extend(r.try_recv());
                gosched::yield_now();
            }
            assert_eq!(got.len(), cap);
        }
    });
}

/// A receiver and a sender that both wait because of a place in the buffer meet there when it is
/// given up.
#[test]
fn those_who_wait_on_both_sides_of_a_place_that_was_given_up_meet() {
    run(2, "both sides of a place", || {
        let (s, r) = bounded(1);
        let mut got = None;
        give_up(&s, || {
            let r = r.clone();
            got = Some(thread::spawn(move || r.recv()));
            until_waiting(1, "chan receive");
            let s = s.clone();
            gosched::go(move || s.send(7).unwrap());
            until_waiting(1, "chan send");
        });
        assert_eq!(got.unwrap().join().unwrap(), Ok(7));
    });
}

/// A receiver whose sender gave up is still the first: later receivers do not overtake it.
#[test]
fn who_was_chosen_in_vain_stays_the_first() {
    run(2, "chosen in vain", || {
        let (s, r) = bounded(0);
        let receivers: Vec<_> = (1..=3)
            .map(|n| {
                let r = r.clone();
                let receiver = thread::spawn(move || r.recv());
                until_waiting(n, "chan receive");
                receiver
            })
            .collect();
        give_up(&s, || ());
        until_waiting(3, "chan receive");
        (1..=3).for_each(|n| s.send(n).unwrap());
        let got = receivers.into_iter().map(|one| one.join().unwrap());
        assert_eq!(got.collect::<Vec<_>>(), [Ok(1), Ok(2), Ok(3)]);
    });
}

/// The last receiver goes while a select's message is evaluated: that message, and those behind it,
/// go though a sender stays.
#[test]
fn messages_that_come_after_the_last_receiver_go() {
    for is_given_up in [false, true] {
        run(1, "messages for nobody", || {
            let (count, (s, r)) = (Arc::new(AtomicUsize::new(0)), bounded(2));
            let leave = || {
                s.send(Alive::new(&count)).unwrap();
                drop(r);
                assert_eq!(count.load(SeqCst), 1, "it is behind the one that comes");
            };
            if is_given_up {
                give_up(&s, leave);
            } else {
                let mut sel = Select::new();
                sel.send(&s);
                let operation = sel.select();
                leave();
                _ = operation.send(&s, Alive::new(&count));
            }
            assert_eq!(count.load(SeqCst), 0, "given up: {is_given_up}");
        });
    }
}

/// A select's send that was chosen before the channel was closed delivers its message to a waiting
/// receiver.
#[test]
fn a_send_that_was_chosen_before_the_close_is_received() {
    run(2, "a send chosen before the close", || {
        for waits_before in [true, false] {
            let (s, r) = bounded(1);
            let receiver = |r: gosched::chan::Receiver<i32>| {
                thread::spawn(move || r.iter().collect::<Vec<_>>())
            };
            let mut got = None;
            let closer = s.clone();
            select! {
                send(s, {
                    if waits_before {
                        got = Some(receiver(r.clone()));
                        until_waiting(1, "chan receive");
                    }
                    assert!(closer.close());
                    let got = got.get_or_insert_with(|| receiver(r.clone()));
                    thread::sleep(ms(20));
                    assert!(!got.is_finished(), "there is a message to come");
                    7
                }) -> sent => sent.unwrap(),
                recv(never::<()>()) -> _ => unreachable!(),
            }
            assert_eq!(got.unwrap().join().unwrap(), [7]);
        }
    });
}

/// A receiver that comes after the close, while a send that was chosen before it is under way,
/// waits without using CPU time.
#[test]
fn who_waits_for_a_chosen_send_of_a_closed_channel_sleeps() {
    run(1, "waiting for a chosen send", || {
        let (s, r) = bounded(1);
        let mut sel = Select::new();
        sel.send(&s);
        let chosen = sel.select();
        s.close();
        assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
        let got = thread::spawn(move || r.recv());
        until_waiting(1, "chan receive");
        chosen.send(&s, 7).unwrap();
        assert_eq!(got.join().unwrap(), Ok(7));
    });
}

/// Rounds of a thread that polls while another one waits: flags begin and end a round.
#[derive(Default)]
struct Rounds {
    begun: AtomicUsize,
    over: AtomicUsize,
    ended: AtomicUsize,
}

impl Rounds {
    /// Polls during each of `n` rounds; how often `poll` had anything.
    fn poll(&self, n: usize, poll: impl Fn() -> bool) -> usize {
        let mut taken = 0;
        for round in 1..=n {
            while self.begun.load(SeqCst) < round {
                std::thread::yield_now();
            }
            while self.over.load(SeqCst) < round {
                taken += usize::from(poll());
            }
            self.ended.store(round, SeqCst);
        }
        taken
    }

    /// One round, on a goroutine, during which `f` runs.
    fn round(&self, round: usize, f: impl FnOnce()) {
        self.begun.store(round, SeqCst);
        f();
        self.over.store(round, SeqCst);
        while self.ended.load(SeqCst) < round {
            gosched::yield_now();
        }
    }
}

const POLLED_ROUNDS: usize = 100;

/// A message goes to the receiver that waits: a later receiver that polls does not take it.
#[test]
fn a_poller_does_not_take_what_somebody_waits_for() {
    for cap in [Some(1), Some(16), None] {
        let (s, r) = cap.map_or_else(gosched::chan::unbounded, bounded);
        let (rounds, got) = (Rounds::default(), AtomicUsize::new(0));
        let taken = std::thread::scope(|scope| {
            let poller = scope.spawn(|| rounds.poll(POLLED_ROUNDS, || r.try_recv().is_ok()));
            run(2, "a receiver and a poller", || {
                thread::scope(|scope| {
                    scope.spawn(|| r.iter().for_each(|_| _ = got.fetch_add(1, SeqCst)));
                    for n in 1..=POLLED_ROUNDS {
                        until_waiting(1, "chan receive");
                        rounds.round(n, || {
                            s.send(n).unwrap();
                            thread::sleep(Duration::from_micros(50));
                        });
                    }
                    s.close();
                });
            });
            poller.join().unwrap()
        });
        assert_eq!((got.load(SeqCst), taken), (POLLED_ROUNDS, 0), "{cap:?}");
    }
}

/// The same for room: it goes to the sender that waits for it.
#[test]
fn a_poller_does_not_take_the_room_that_somebody_waits_for() {
    for cap in [1, 16] {
        let (s, r) = bounded(cap);
        (0..cap).for_each(|_| s.send(false).unwrap());
        let rounds = Rounds::default();
        let taken = std::thread::scope(|scope| {
            let poller = scope.spawn(|| rounds.poll(POLLED_ROUNDS, || s.try_send(true).is_ok()));
            run(2, "a sender and a poller", || {
                thread::scope(|scope| {
                    scope.spawn(|| while s.send(false).is_ok() {});
                    for n in 1..=POLLED_ROUNDS {
                        until_waiting(1, "chan send");
                        rounds.round(n, || {
                            r.recv().unwrap();
                            thread::sleep(Duration::from_micros(50));
                        });
                    }
                    s.close();
                });
            });
            poller.join().unwrap()
        });
        assert_eq!(taken, 0, "capacity {cap}");
        assert_eq!(r.iter().filter(|is_polled| *is_polled).count(), 0);
    }
}

/// Receivers that a select's send has chosen sleep while its message is evaluated, also under
/// chaos.
#[test]
fn a_receiver_that_a_select_has_chosen_sleeps() {
    const PAIRS: usize = 64;
    let name = "found::a_receiver_that_a_select_has_chosen_sleeps";
    let out = child_with(name, "", chaos(5), |_| {
        let (chosen, go_on) = (AtomicUsize::new(0), AtomicUsize::new(0));
        runtime(1).run(|| {
            thread::scope(|scope| {
                for n in 0..PAIRS {
                    let (s, r) = bounded(0);
                    scope.spawn(move || assert_eq!(r.recv_timeout(LONG), Ok(n)));
                    let (chosen, go_on) = (&chosen, &go_on);
                    scope.spawn(move || {
                        let mut sel = Select::new();
                        sel.send(&s);
                        let operation = sel.select();
                        chosen.fetch_add(1, SeqCst);
                        while go_on.load(SeqCst) == 0 {
                            thread::sleep(ms(20));
                        }
                        operation.send(&s, n).unwrap();
                    });
                }
                while chosen.load(SeqCst) < PAIRS {
                    thread::sleep(ms(1));
                }
                // A CPU that is taken away may seem used: the best of three.
                let share = |_| {
                    let (began, before) = (Instant::now(), process_cpu_time());
                    thread::sleep(ms(500));
                    let used = process_cpu_time() - before;
                    used.as_secs_f64() / began.elapsed().as_secs_f64()
                };
                let least = (0..3).map(share).fold(f64::MAX, f64::min);
                go_on.store(1, SeqCst);
                assert!(least < 0.33, "{least} of a CPU");
            });
        });
    });
    out.succeeded();
}

/// A goroutine that is on its way to sleep when it is asked to unwind wakes by itself, and once.
#[test]
fn g4_a_shutdown_meets_goroutines_on_their_way_to_sleep() {
    for _ in 0..40 {
        let (runtime, count) = (runtime(2), Arc::new(AtomicUsize::new(0)));
        for _ in 0..4 {
            let ((s1, r1), (s2, r2)) = (bounded(0), bounded(0));
            for (s, r, begins) in [(s1, r2, true), (s2, r1, false)] {
                let here = Alive::new(&count);
                runtime.go(move || {
                    let _here = here;
                    let mut goes_on = !begins || s.send(()).is_ok();
                    while goes_on {
                        goes_on = r.recv_timeout(LONG).is_ok() && s.send(()).is_ok();
                    }
                });
            }
        }
        std::thread::sleep(ms(1));
        within(LONG, "a shutdown", || runtime.shutdown(LONG));
        assert_eq!(count.load(SeqCst), 0);
    }
}
