//! Channels between goroutines, plain threads and several runtimes, and what the end of a runtime
//! does to waiters.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use gosched::chan::{
    Receiver, RecvTimeoutError, Select, Sender, TryRecvError, bounded, never, select, unbounded,
};
use gosched::thread::Exited;

use super::*;
use crate::common::{Alive, child, child_of, eventually, until_parked};

const DEADLOCK: &str = "fatal error: all goroutines are asleep - deadlock!";

fn channel<T>(cap: Option<usize>) -> (Sender<T>, Receiver<T>) {
    cap.map_or_else(unbounded, bounded)
}

const CAPS: [Option<usize>; 4] = [Some(0), Some(1), Some(3), None];

/// A token goes round through goroutines of two runtimes and plain threads, in every order.
#[test]
fn a_token_goes_round_through_everybody() {
    const ROUNDS: usize = 300;
    for cap in CAPS {
        let (one, other) = (runtime(2), runtime(1));
        let links: Vec<_> = (0..12).map(|_| channel::<usize>(cap)).collect();
        within(LONG, "a token", || {
            std::thread::scope(|scope| {
                for at in 0..12 {
                    let (r, s) = (links[at].1.clone(), links[(at + 1) % 12].0.clone());
                    let pass = move || {
                        for _ in 0..ROUNDS {
                            let token = match at % 2 {
                                0 => r.recv().unwrap(),
                                _ => select! {
                                    recv(r) -> token => token.unwrap(),
                                    recv(never::<()>()) -> _ => unreachable!(),
                                },
                            };
                            // The last one keeps it.
                            if token < 12 * ROUNDS {
                                s.send(token + 1).unwrap();
                            }
                        }
                    };
                    match at / 2 % 3 {
                        0 => drop(one.spawn(pass)),
                        1 => drop(other.spawn(pass)),
                        _ => drop(scope.spawn(pass)),
                    }
                }
                links[0].0.send(1).unwrap();
            });
        });
        let has_ended = || one.metrics().goroutines + other.metrics().goroutines == 0;
        assert!(eventually(has_ended), "{}{}", one.dump(), other.dump());
        assert_eq!(one.metrics().rescues + other.metrics().rescues, 0);
    }
}

/// Everything works on a plain thread when there is no runtime at all.
#[test]
fn plain_threads_need_no_runtime() {
    let out = child("runtime::plain_threads_need_no_runtime", || {
        for cap in CAPS {
            let ((s, r), (back, from)) = (channel(cap), channel(cap));
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for n in r {
                        select! { send(back, n) -> sent => sent.unwrap(), default(LONG) => panic!("nobody") }
                    }
                });
                for n in 0..500 {
                    s.send(n).unwrap();
                    assert_eq!(from.recv_timeout(LONG), Ok(n));
                }
                drop(s);
                assert!(from.recv().is_err());
            });
        }
    });
    out.succeeded();
}

/// What goroutines of a runtime wait in, on channels that they share with the rest of the world.
struct Waiters {
    zero: (Sender<Alive>, Receiver<Alive>),
    empty: (Sender<Alive>, Receiver<Alive>),
    full: (Sender<Alive>, Receiver<Alive>),
    endless: (Sender<Alive>, Receiver<Alive>),
    /// Values, and guards on the stacks of waiters.
    alive: Arc<AtomicUsize>,
}

const KINDS: usize = 9;

impl Waiters {
    fn new() -> Arc<Waiters> {
        let waiters = Waiters {
            zero: bounded(0),
            empty: bounded(2),
            full: bounded(1),
            endless: unbounded(),
            alive: Arc::default(),
        };
        waiters.full.0.send(waiters.value()).unwrap();
        Arc::new(waiters)
    }

    fn value(&self) -> Alive {
        Alive::new(&self.alive)
    }

    /// Waits for ever in one of the ways there are.
    fn wait(&self, kind: usize) {
        let _guard = self.value();
        let value = self.value();
        match kind {
            0 => drop(self.zero.1.recv()),
            1 => drop(self.empty.1.recv_timeout(LONG)),
            2 => drop(self.endless.1.iter().next()),
            3 => drop(self.full.0.send(value)),
            4 => drop(self.full.0.send_timeout(value, LONG)),
            5 => drop(never::<()>().recv()),
            6 => select! {
                recv(self.zero.1) -> _ => {}
                recv(self.empty.1) -> _ => {}
                recv(self.endless.1) -> _ => {}
                send(self.full.0, value) -> _ => {}
            },
            7 => select! {
                recv(self.empty.1) -> _ => {}
                default(LONG) => {}
            },
            _ => {
                let mut sel = Select::new();
                sel.recv(&self.zero.1);
                sel.recv(&self.empty.1);
                sel.send(&self.full.0);
                sel.ready();
            }
        }
        unreachable!("something came");
    }

    fn start(self: &Arc<Waiters>, runtime: &Runtime, n: usize) {
        for kind in 0..n {
            let all = Arc::clone(self);
            runtime.go(move || all.wait(kind % KINDS));
        }
        let is_waiting = || all_wait(runtime, n);
        assert!(eventually(is_waiting), "{}", runtime.dump());
    }

    /// The channels are as if no goroutine had ever waited there.
    fn assert_unharmed(&self) {
        assert!(
            self.zero.0.try_send(self.value()).is_err(),
            "nobody receives"
        );
        assert!(self.zero.1.try_recv().is_err(), "nobody sends");
        for (s, r) in [&self.empty, &self.endless] {
            assert_eq!(r.try_recv().err(), Some(TryRecvError::Empty));
            s.send(self.value()).unwrap();
            s.send(self.value()).unwrap();
            assert_eq!(r.len(), 2, "values are not lost to who is gone");
            assert!(r.recv().is_ok() && r.recv().is_ok() && r.try_recv().is_err());
        }
        assert!(self.full.0.try_send(self.value()).is_err(), "it is full");
        assert!(self.full.1.recv().is_ok());
        assert!(self.full.1.try_recv().is_err(), "its sender is gone");
        self.full.0.send(self.value()).unwrap();
        // And others can wait there.
        within(LONG, "a meeting", || {
            std::thread::scope(|scope| {
                scope.spawn(|| gosched::run(|| self.zero.0.send(self.value()).unwrap()));
                assert!(self.zero.1.recv_timeout(LONG).is_ok());
            });
        });
    }
}

/// A dropped runtime abandons its goroutines: their nodes block no waiter, and no value goes to
/// them.
#[test]
fn d2_a_dropped_runtime_leaves_the_channels_to_others() {
    for procs in [1, 3] {
        for _ in 0..5 {
            let (all, gone) = (Waiters::new(), runtime(procs));
            all.start(&gone, 4 * KINDS);
            within(LONG, "a drop", || drop(gone));
            all.assert_unharmed();
        }
    }
}

/// Goroutines of another runtime wait among the abandoned ones: they are served, in order.
#[test]
fn d2_who_waits_among_the_abandoned_is_served() {
    let (all, stays) = (Waiters::new(), runtime(2));
    let mut receivers = Vec::new();
    let mut doomed = Vec::new();
    for n in 0..6 {
        let gone = runtime(1);
        all.start(&gone, KINDS);
        doomed.push(gone);
        let (shared, done) = (Arc::clone(&all), Arc::new(AtomicBool::new(false)));
        let is_done = Arc::clone(&done);
        let way = n % 2;
        receivers.push((
            done,
            stays.spawn(move || {
                let got = match way {
                    0 => shared.zero.1.recv(),
                    _ => select! { recv(shared.zero.1) -> got => got, recv(never::<()>()) -> _ => unreachable!() },
                };
                is_done.store(true, SeqCst);
                drop(got.unwrap());
            }),
        ));
        let is_waiting = || all_wait(&stays, n + 1);
        assert!(eventually(is_waiting), "{}", stays.dump());
    }
    within(LONG, "drops", || drop(doomed));
    for (done, receiver) in receivers {
        assert!(!done.load(SeqCst), "in order");
        all.zero.0.try_send(all.value()).unwrap();
        receiver.join().unwrap();
        assert!(done.load(SeqCst));
    }
    all.assert_unharmed();
}

/// A runtime is dropped while others send to its goroutines and receive from them: the channel
/// keeps working. Goroutines that run at that moment continue until they wait, and may take a value
/// along.
#[test]
fn d2_a_drop_amid_traffic() {
    for cap in CAPS {
        for round in 0..15 {
            let ((s, r), gone) = (channel(cap), runtime(2));
            let is_over = Arc::new(AtomicBool::new(false));
            for _ in 0..4 {
                let (s, r, is_over) = (s.clone(), r.clone(), Arc::clone(&is_over));
                gone.go(move || {
                    while let Ok(n) = r.recv()
                        && !is_over.load(SeqCst)
                    {
                        _ = s.send_timeout(n, ms(1));
                    }
                });
            }
            within(LONG, "a drop amid traffic", || {
                std::thread::scope(|scope| {
                    let sender = scope.spawn(|| {
                        for _ in 0..1000 {
                            _ = s.send_timeout(1, ms(1));
                        }
                    });
                    std::thread::sleep(Duration::from_micros(round * 100));
                    drop(gone);
                    is_over.store(true, SeqCst);
                    while !sender.is_finished() {
                        _ = r.try_recv();
                    }
                    sender.join().unwrap();
                });
                let is_got = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !is_got.load(SeqCst) {
                            _ = s.send_timeout(2, ms(1));
                        }
                    });
                    while r.recv() != Ok(2) {}
                    is_got.store(true, SeqCst);
                });
            });
        }
    }
}

/// A shutdown unwinds waiters: guards and messages are dropped, each once, and the channels are as
/// before.
#[test]
#[cfg(panic = "unwind")]
fn d2_a_shutdown_unwinds_those_who_wait() {
    for procs in [1, 3] {
        for _ in 0..5 {
            let (all, ends) = (Waiters::new(), runtime(procs));
            all.start(&ends, 4 * KINDS);
            assert_eq!(all.alive.load(SeqCst), 1 + 8 * KINDS);
            within(LONG, "a shutdown", || ends.shutdown(LONG));
            assert_eq!(
                all.alive.load(SeqCst),
                1,
                "only the value in the buffer is left"
            );
            assert_eq!(Arc::strong_count(&all), 1);
            all.assert_unharmed();
        }
    }
}

/// What a join says of a goroutine that was unwound while it waited.
#[test]
#[cfg(panic = "unwind")]
fn d2_a_goroutine_that_was_unwound_has_exited() {
    let (ends, (s, r)) = (runtime(1), bounded::<()>(0));
    let waits = ends.spawn(move || r.recv());
    until_parked(&ends.handle(), 1);
    ends.shutdown(LONG);
    assert!(waits.join().unwrap_err().is::<Exited>());
    assert!(s.send(()).is_err(), "its receiver was dropped");
}

/// A select's send was chosen, and its goroutine is unwound in the middle of the message. The
/// receiver that it chose, or that waits for its place in the buffer, gets the next value.
#[test]
#[cfg(panic = "unwind")]
fn d2_a_chosen_send_that_is_unwound_is_given_up() {
    for cap in [0, 1, 2] {
        let (ends, stays, (s, r)) = (runtime(1), runtime(1), bounded(cap));
        let receiver = stays.spawn({
            let r = r.clone();
            move || r.recv()
        });
        until_parked(&stays.handle(), 1);
        let sender = s.clone();
        ends.go(move || {
            select! {
                send(sender, { thread::park(); 1 }) -> _ => unreachable!(),
                recv(never::<()>()) -> _ => unreachable!(),
            }
        });
        let is_chosen = || waiting_for(&ends.handle(), &["park"]) == 1;
        assert!(eventually(is_chosen), "{}", ends.dump());
        within(LONG, "a shutdown", || ends.shutdown(LONG));
        assert!(!receiver.is_finished());
        s.send(2).unwrap();
        assert_eq!(receiver.join().unwrap(), Ok(2), "capacity {cap}");
        assert!(r.is_empty() && r.try_recv().is_err());
    }
}

/// A destructor that uses channels while its goroutine is unwound by a shutdown: operations that do
/// not wait work, and so do operations whose partner comes. Its message arrives whole.
#[test]
#[cfg(panic = "unwind")]
fn d2_destructors_use_channels_during_a_shutdown() {
    struct Tells(Sender<Alive>, Receiver<usize>, Arc<AtomicUsize>);
    impl Drop for Tells {
        fn drop(&mut self) {
            assert!(self.0.send(Alive::new(&self.2)).is_ok());
            assert_eq!(self.1.recv(), Ok(8));
        }
    }
    let (ends, (s, told), (answer, r)) = (runtime(1), bounded(0), bounded(0));
    let count = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&count);
    let (_quiet, nothing) = bounded::<()>(0);
    ends.go(move || {
        let _tells = Tells(s, r, counts);
        nothing.recv().unwrap();
    });
    until_parked(&ends.handle(), 1);
    within(LONG, "a shutdown", || {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let told = told.recv();
                answer.send(8).unwrap();
                assert!(told.is_ok() && count.load(SeqCst) == 1);
            });
            ends.shutdown(LONG);
        });
    });
}

/// What each goroutine waits in, in words.
#[test]
fn a_dump_names_what_they_wait_for() {
    let (runtime, (s, r), (full, _keeps)) = (runtime(1), bounded::<()>(0), bounded(1));
    full.send(()).unwrap();
    let named = |name: &str, f: Box<dyn FnOnce() + Send>| {
        let builder = thread::Builder::new().name(name.into());
        runtime.run(|| drop(builder.spawn(f).unwrap()));
    };
    let (r1, r2, r3, r4) = (r.clone(), r.clone(), r.clone(), r.clone());
    let (s1, full1) = (s.clone(), full.clone());
    named("receives", Box::new(move || _ = r1.recv()));
    named("times out", Box::new(move || _ = r2.recv_timeout(LONG)));
    named("hears nothing", Box::new(|| _ = never::<()>().recv()));
    named("sends", Box::new(move || _ = full1.send(())));
    named(
        "selects",
        Box::new(move || select! { recv(r3) -> _ => {} send(full, ()) -> _ => {} }),
    );
    named(
        "is ready",
        Box::new(move || {
            let mut sel = Select::new();
            sel.recv(&r4);
            sel.recv(&r4);
            sel.ready();
        }),
    );
    named(
        "has no cases",
        Box::new(|| _ = Select::new().select_timeout(LONG)),
    );
    until_parked(&runtime.handle(), 7);
    let dump = runtime.dump();
    let reason_of = |name: &str| {
        let mut all = dump.goroutines().iter();
        let one = all.find(|g| g.name() == Some(name)).unwrap();
        one.wait_reason().unwrap().to_owned()
    };
    for name in ["receives", "times out", "hears nothing"] {
        assert!(reason_of(name).starts_with("chan receive"), "{dump}");
    }
    assert!(reason_of("sends").starts_with("chan send"), "{dump}");
    for name in ["selects", "is ready"] {
        assert!(reason_of(name).starts_with("select"), "{dump}");
        assert!(!reason_of(name).contains("no cases"), "{dump}");
    }
    assert_eq!(reason_of("has no cases"), "select (no cases)");
    drop(s1);
}

/// Goroutines that wait for each other on channels, with no other goroutine.
#[test]
fn u6_a_deadlock_on_channels_is_found() {
    let body = |variant: &str| {
        gosched::run(|| {
            let ((s, r), (full, _keeps)) = (bounded::<()>(0), bounded(1));
            full.send(()).unwrap();
            match variant {
                "chan receive" => drop(r.recv()),
                "chan send" => drop(full.send(())),
                "select" => select! { recv(r) -> _ => {} send(full, ()) -> _ => {} },
                _ => {
                    let receiver = thread::spawn(move || r.recv());
                    _ = receiver.join();
                }
            }
            drop(s);
        });
    };
    for variant in ["chan receive", "chan send", "select", "join"] {
        let out = child_of("runtime::u6_a_deadlock_on_channels_is_found", variant, body);
        out.died_with(&[DEADLOCK]);
        out.says(&[&format!("goroutine 1 [{variant}")]);
        if variant == "join" {
            out.goroutine("[chan receive]");
        }
    }
}

/// A receiver that waits with a deadline, for the clock, or for a plain thread has hope.
#[test]
fn u6_who_waits_for_the_clock_or_a_thread_is_not_dead() {
    let out = child(
        "runtime::u6_who_waits_for_the_clock_or_a_thread_is_not_dead",
        || {
            gosched::run(|| {
                let (s, r) = bounded(0);
                assert_eq!(r.recv_timeout(ms(700)), Err(RecvTimeoutError::Timeout));
                assert!(gosched::chan::after(ms(700)).recv().is_ok());
                select! {
                    recv(r) -> _ => panic!("nobody sends"),
                    recv(gosched::chan::after(ms(700))) -> _ => {}
                }
                std::thread::spawn(move || {
                    std::thread::sleep(ms(1500));
                    s.send(5).unwrap();
                });
                assert_eq!(r.recv(), Ok(5));
            });
        },
    );
    out.succeeded();
}

/// A goroutine that caught its first unwinding is unwound at its next wait, too.
#[test]
fn d2_a_shutdown_unwinds_again_who_caught_it() {
    use gosched::chan::{after, never, select};
    let waits: [(&str, fn()); 5] = [
        ("recv", || unreachable!("its own, below")),
        ("send", || {
            let (s, _r) = bounded(0);
            _ = s.send(());
        }),
        ("select", || {
            let (_s, r) = bounded::<()>(0);
            select! {
                recv(r) -> _ => {}
                recv(never::<()>()) -> _ => {}
            }
        }),
        ("never", || _ = never::<()>().recv()),
        ("after", || _ = after(Duration::from_secs(3600)).recv()),
    ];
    for (name, wait) in waits {
        let runtime = Runtime::builder().procs(2).build().unwrap();
        let caught = Arc::new(AtomicUsize::new(0));
        let counts = Arc::clone(&caught);
        runtime.go(move || {
            let (s, r) = bounded::<()>(0); // both ends: it waits for ever
            for _ in 0..3 {
                let unwound = std::panic::catch_unwind(|| match name {
                    "recv" => _ = r.recv(),
                    _ => wait(),
                });
                counts.fetch_add(usize::from(unwound.is_err()), SeqCst);
            }
            drop(s);
        });
        std::thread::sleep(Duration::from_millis(20));
        runtime.shutdown(Duration::from_secs(60));
        assert_eq!(caught.load(SeqCst), 3, "{name}");
    }
}
