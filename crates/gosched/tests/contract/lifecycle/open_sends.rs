//! A select chooses a send, and its goroutine never finishes the message. The drop of the runtime
//! gives back what the send was promised (D2).

use gosched::chan::{self, Receiver, Select, Sender};

use super::passed_on::{one_p_without_preemption, work_at_the_end_of_a_slice};
use super::*;

/// What the goroutine does instead of giving its message, while its runtime is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Meanwhile {
    Waits,
    Computes,
    /// In a call that the runtime knows nothing of.
    Blocks,
}

use Meanwhile::{Blocks, Computes, Waits};

/// A goroutine between the choice and its message.
struct Open {
    chosen: AtomicBool,
    release: AtomicBool,
}

impl Open {
    /// Starts one in `runtime`; it sends 1.
    fn start(runtime: &Runtime, s: &Sender<u32>, meanwhile: Meanwhile) -> Arc<Open> {
        let open = Arc::new(Open {
            chosen: AtomicBool::new(false),
            release: AtomicBool::new(false),
        });
        let (own, s) = (Arc::clone(&open), s.clone());
        runtime.go(move || {
            gosched::select! {
                send(s, own.message(meanwhile)) -> sent => sent.unwrap(),
                recv(chan::never::<u32>()) -> _ => unreachable!(),
            }
        });
        open
    }

    fn message(&self, meanwhile: Meanwhile) -> u32 {
        self.chosen.store(true, SeqCst);
        while !self.release.load(SeqCst) {
            match meanwhile {
                Waits => thread::park(),
                Computes => std::hint::spin_loop(),
                Blocks => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        1
    }

    fn is_chosen(&self) -> bool {
        eventually(|| self.chosen.load(SeqCst))
    }
}

/// A receiver in a live runtime, which waits when this returns; what it gets, or 0.
fn receive(live: &Runtime, r: &Receiver<u32>) -> JoinHandle<u32> {
    let (before, r) = (parked(&live.handle()), r.clone());
    let receiver = live.spawn(move || r.recv().unwrap_or(0));
    until_parked(&live.handle(), before + 1);
    receiver
}

fn got(receiver: JoinHandle<u32>, what: &str) -> u32 {
    assert!(eventually(|| receiver.is_finished()), "{what}: lost");
    receiver.join().unwrap()
}

/// The drop frees the place of an open send, wherever its goroutine is, and others can send. If the
/// goroutine continues, it sends like any other.
#[test]
fn d2_the_place_of_an_open_send_is_given_back() {
    for meanwhile in [Waits, Computes, Blocks] {
        for waited in [false, true] {
            let what = format!("{meanwhile:?}, waited: {waited}");
            let dropped = runtime(2);
            let (s, r) = chan::bounded(1);
            if waited {
                s.send(9).unwrap();
            }
            let open = Open::start(&dropped, &s, meanwhile);
            if waited {
                until_parked(&dropped.handle(), 1);
                assert_eq!(r.recv(), Ok(9));
            }
            assert!(open.is_chosen());
            assert!(s.try_send(5).is_err(), "{what}: there is one place");
            within(LONG, "drop", || drop(dropped));
            assert_eq!(s.try_send(5), Ok(()), "{what}");
            assert_eq!(r.recv_timeout(LONG), Ok(5), "{what}");
            if meanwhile != Waits {
                open.release.store(true, SeqCst);
                assert_eq!(r.recv_timeout(LONG), Ok(1), "{what}");
            }
            assert!(r.try_recv().is_err(), "{what}");
        }
    }
}

/// Without capacity: the receiver of an open send looks for another sender.
#[test]
fn d2_the_receiver_of_an_open_send_is_let_go() {
    let live = runtime(2);
    for meanwhile in [Waits, Computes, Blocks] {
        for waited in [false, true] {
            let what = format!("{meanwhile:?}, waited: {waited}");
            let dropped = runtime(2);
            let (s, r) = chan::bounded(0);
            let (open, receiver) = if waited {
                let open = Open::start(&dropped, &s, meanwhile);
                until_parked(&dropped.handle(), 1);
                (open, receive(&live, &r))
            } else {
                let receiver = receive(&live, &r);
                (Open::start(&dropped, &s, meanwhile), receiver)
            };
            assert!(open.is_chosen());
            assert!(s.try_send(5).is_err(), "{what}: there is one receiver");
            within(LONG, "drop", || drop(dropped));
            assert_eq!(s.send_timeout(5, LONG), Ok(()), "{what}");
            assert_eq!(got(receiver, &what), 5);
            if meanwhile != Waits {
                let receiver = receive(&live, &r);
                open.release.store(true, SeqCst);
                assert_eq!(got(receiver, &what), 1);
            }
        }
    }
}

/// A receiver that was chosen keeps its deadline when its sender is gone.
#[test]
fn d2_the_receiver_of_an_open_send_times_out() {
    let dropped = runtime(1);
    let (s, r) = chan::bounded::<u32>(0);
    let open = Open::start(&dropped, &s, Waits);
    until_parked(&dropped.handle(), 1);
    let receiver = std::thread::spawn(move || r.recv_timeout(Duration::from_millis(300)));
    assert!(open.is_chosen());
    within(LONG, "drop", || drop(dropped));
    assert!(eventually(|| receiver.is_finished()));
    let timeout = Err(chan::RecvTimeoutError::Timeout);
    assert_eq!(receiver.join().unwrap(), timeout);
}

/// A goroutine may have several open sends; some were completed, in any order.
#[test]
fn d2_every_open_send_is_given_back() {
    for first in 0..4 {
        let dropped = runtime(1);
        let (s, r) = chan::bounded(8);
        let (sends, ready) = (s.clone(), Arc::new(AtomicBool::new(false)));
        let is_ready = Arc::clone(&ready);
        dropped.go(move || {
            let mut opened = Vec::new();
            for _ in 0..4 {
                let mut select = Select::new();
                select.send(&sends);
                opened.push(select.select());
            }
            opened.swap_remove(first).send(&sends, 1).unwrap();
            opened.swap_remove(1).send(&sends, 1).unwrap();
            let mut select = Select::new();
            select.send(&sends);
            opened.push(select.select());
            is_ready.store(true, SeqCst);
            thread::park();
            drop(opened);
        });
        assert!(eventually(|| ready.load(SeqCst)));
        within(LONG, "drop", || drop(dropped));
        s.send(5).unwrap();
        let got = [(); 3].map(|()| r.recv_timeout(LONG));
        assert_eq!(got, [Ok(1), Ok(1), Ok(5)], "{first} first");
        assert!(r.try_recv().is_err());
        // All the places are there.
        (0..8).for_each(|n| assert_eq!(s.try_send(n), Ok(())));
    }
}

/// A forgotten operation does not borrow its channel any more. The channel is freed, or stays for
/// the place that is still promised. The drop finds it or nothing.
#[test]
fn d2_a_send_that_was_forgotten_does_no_harm() {
    for cap in [0, 2] {
        for keeps in [false, true] {
            let (dropped, live) = (runtime(1), runtime(1));
            let (s, r) = chan::bounded(cap);
            let receiver = (cap == 0).then(|| receive(&live, &r));
            let (kept, ready) = (keeps.then(|| s.clone()), Arc::new(AtomicBool::new(false)));
            let is_ready = Arc::clone(&ready);
            dropped.go(move || {
                let mut select = Select::new();
                select.send(&s);
                std::mem::forget(select.select());
                drop(select);
                drop(s);
                is_ready.store(true, SeqCst);
                thread::park();
            });
            assert!(eventually(|| ready.load(SeqCst)));
            let r = (keeps || cap == 0).then_some(r);
            within(LONG, "drop", || drop(dropped));
            if let Some(s) = kept {
                assert_eq!(s.send_timeout(5, LONG), Ok(()));
                let got = match receiver {
                    Some(receiver) => got(receiver, "forgotten"),
                    None => r.unwrap().recv_timeout(LONG).unwrap(),
                };
                assert_eq!(got, 5);
            }
        }
    }
}

/// A goroutine that is preempted right after the choice has recorded its promise by then.
#[test]
fn d2_a_place_is_not_lost_at_the_end_of_a_slice() {
    let dropped = one_p_without_preemption();
    let (s, r) = chan::bounded(1);
    let sends = s.clone();
    let release = work_at_the_end_of_a_slice(&dropped, move || {
        gosched::select_biased! {
            send(sends, 1) -> sent => sent.unwrap(),
            recv(chan::never::<u32>()) -> _ => unreachable!(),
        }
    });
    within(LONG, "drop", || drop(dropped));
    assert!(r.try_recv().is_ok_and(|got| got == 1) || r.is_empty());
    assert_eq!(s.try_send(5), Ok(()));
    assert_eq!(r.recv_timeout(LONG), Ok(5));
    release.store(true, SeqCst);
}

/// A goroutine that still runs opens another send when its first one was refused. Each is what it
/// is.
#[test]
fn d2_a_refused_send_is_not_taken_for_a_later_one() {
    let dropped = runtime(1);
    let (first, second) = (chan::bounded(2), chan::bounded(2));
    let (a, b) = (first.0.clone(), second.0.clone());
    let (chosen, release) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (has_chosen, released) = (Arc::clone(&chosen), Arc::clone(&release));
    dropped.go(move || {
        let mut select = Select::new();
        select.send(&a);
        let refused = select.select();
        has_chosen.store(true, SeqCst);
        while !released.load(SeqCst) {
            std::hint::spin_loop();
        }
        let mut select = Select::new();
        select.send(&b);
        let later = select.select();
        refused.send(&a, 1).unwrap();
        later.send(&b, 2).unwrap();
    });
    assert!(eventually(|| chosen.load(SeqCst)));
    within(LONG, "drop", || drop(dropped));
    first.0.send(5).unwrap();
    release.store(true, SeqCst);
    within(LONG, "receive", || {
        let got = [(); 2].map(|()| first.1.recv_timeout(LONG));
        assert_eq!(got, [Ok(5), Ok(1)]);
        assert_eq!(second.1.recv_timeout(LONG), Ok(2));
        assert!(first.1.try_recv().is_err() && second.1.try_recv().is_err());
        (0..2).for_each(|n| assert_eq!(first.0.try_send(n), Ok(())));
        (0..2).for_each(|n| assert_eq!(second.0.try_send(n), Ok(())));
    });
}
