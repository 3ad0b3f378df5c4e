//! The bounded channel (U10, G4): the library's own, its ring and its queues, and how they settle.
//!
//! Values pass through the ring without the lock. A thread that must wait queues itself under the
//! lock and reads the ring once more. Two races: a sender moves `tail` and looks for receivers,
//! while a receiver queues itself and reads `tail` (settle/1); the other way round with `head`
//! (settle/2). A lost wake-up is a deadlock, which loom reports.
//!
//! The two races are explored with at most three preemptions, which is one more than any order of
//! their four steps needs. Models with more steps have two or one. Two threads beside a third, with
//! all the old values that their loads may still see, are explored without any: they switch where
//! they wait.

use super::actors::{
    Actor, GO, Msg, PLAIN, Rx, SOON, Start, Tx, channel, give_up, plain, select_send,
};
use super::{explore, explore_in_turn};
use crate::chan::{RecvTimeoutError, Select};
use crate::shim::{self, Part};
use crate::thread::let_time_pass;

/// Sends messages, one after the other. Returns how many were sent.
fn send(start: Start, s: Tx, numbers: std::ops::Range<u32>) -> Actor<u32> {
    start(Box::new(move || {
        numbers
            .map(|n| u32::from(s.send(Msg::new(n)).is_ok()))
            .sum()
    }))
}

fn recv(r: &Rx) -> u32 {
    r.recv().unwrap().open()
}

/// settle/1: the ring is empty, a receiver is on its way to sleep.
fn a_receiver_waits(preemptions: usize, sender: Start, receiver: Start) {
    explore_in_turn(Some(preemptions), move || {
        let (s, r) = channel(Some(1));
        let _open = s.clone(); // the end would wake everybody
        let received = receiver(Box::new(move || recv(&r)));
        let sent = sender(Box::new(move || u32::from(s.send(Msg::new(1)).is_ok())));
        assert_eq!(received.join(), 1);
        assert_eq!(sent.join(), 1);
    });
}

/// settle/2: the ring is full, a sender is on its way to sleep.
fn a_sender_waits(preemptions: usize, sender: Start, receiver: Start) {
    explore_in_turn(Some(preemptions), move || {
        let (s, r) = channel(Some(1));
        s.send(Msg::new(1)).unwrap();
        let _open = r.clone(); // the end would wake everybody
        let sent = send(sender, s, 2..3);
        let received = receiver(Box::new(move || recv(&r)));
        assert_eq!(received.join(), 1);
        assert_eq!(sent.join(), 1);
    });
}

/// Explored: the sender's move before, between and after the receiver's mark and its load. The
/// value is handed over, or the receiver finds it by itself. Fails if the load comes before the
/// mark, on either side.
#[test]
fn g4_no_receiver_sleeps_beside_a_value() {
    a_receiver_waits(3, PLAIN, PLAIN);
    a_receiver_waits(2, GO, GO);
}

/// The same with room in place of a value.
#[test]
fn g4_no_sender_sleeps_beside_room() {
    a_sender_waits(3, PLAIN, PLAIN);
    a_sender_waits(2, GO, GO);
}

/// The barriers as x86-64 has them: the sender's is at its move of `tail`, before it has written
/// the stamp.
#[test]
fn g4_the_barriers_of_x86_are_enough() {
    shim::on_x86(|| {
        a_receiver_waits(3, PLAIN, PLAIN);
        a_sender_waits(3, PLAIN, PLAIN);
    });
}

/// Without the barrier between the queue's mark and the load of the ring.
#[test]
#[should_panic(expected = "deadlock")]
fn g4_without_the_waiters_fence_a_receiver_sleeps_for_ever() {
    shim::without(Part::Fence, || a_receiver_waits(3, PLAIN, PLAIN));
}

#[test]
#[should_panic(expected = "deadlock")]
fn g4_without_the_waiters_fence_a_sender_sleeps_for_ever() {
    shim::without(Part::Fence, || a_sender_waits(3, PLAIN, PLAIN));
}

/// Without the barrier between the move of `tail` or `head` and the load of the mark.
#[test]
#[should_panic(expected = "deadlock")]
fn g4_without_the_movers_fence_a_receiver_sleeps_for_ever() {
    shim::without(Part::AfterRmw, || a_receiver_waits(3, PLAIN, PLAIN));
}

#[test]
#[should_panic(expected = "deadlock")]
fn g4_without_the_movers_fence_a_sender_sleeps_for_ever() {
    shim::without(Part::AfterRmw, || a_sender_waits(3, PLAIN, PLAIN));
}

/// Two senders, one slot: one of them waits, and neither is forgotten when the other is served.
#[test]
fn g4_two_senders_and_one_slot() {
    explore(Some(0), || {
        let (s, r) = channel(Some(1));
        let senders = [send(PLAIN, s.clone(), 1..2), send(GO, s.clone(), 2..3)];
        assert_eq!(recv(&r) + recv(&r), 3, "each once");
        assert_eq!(senders.map(Actor::join), [1, 1]);
        drop(s);
    });
}

/// Two receivers, one slot.
#[test]
fn g4_two_receivers_and_one_slot() {
    explore(Some(0), || {
        let (s, r) = channel(Some(1));
        let receivers = [PLAIN, GO].map(|start| {
            let r = r.clone();
            start(Box::new(move || recv(&r)))
        });
        (1..3).for_each(|n| s.send(Msg::new(n)).unwrap());
        assert_eq!(
            receivers.map(Actor::join).iter().sum::<u32>(),
            3,
            "each once"
        );
        drop(s);
    });
}

/// One sender, one receiver that comes late. Messages keep their order, whether they go through the
/// ring or from hand to hand.
#[test]
fn u10_order_is_kept_between_the_ring_and_the_queues() {
    explore_in_turn(Some(1), || {
        let (s, r) = channel(Some(1));
        let sent = send(PLAIN, s.clone(), 0..3);
        assert_eq!([0, 1, 2].map(|_| recv(&r)), [0, 1, 2]);
        assert_eq!(sent.join(), 3);
        drop(s);
    });
}

/// A select's sender has a place before it has a message. Receivers treat the place as empty; the
/// sender looks for them when it fills the place.
fn a_place_is_filled() {
    explore_in_turn(Some(2), || {
        let (s, r) = channel(Some(1));
        let received = plain(move || recv(&r));
        assert!(select_send(&s, 1));
        assert_eq!(received.join(), 1);
    });
}

#[test]
fn g4_a_filled_place_finds_its_receiver() {
    a_place_is_filled();
    shim::on_x86(a_place_is_filled);
}

#[test]
#[should_panic(expected = "deadlock")]
fn g4_without_a_fence_a_filled_place_does_not() {
    shim::without(Part::AfterRmw, a_place_is_filled);
}

/// A place that is given up is room again, also for a sender that waits: no receive is needed for
/// that.
#[test]
fn g4_a_place_that_is_given_up_is_room_again() {
    explore_in_turn(Some(3), || {
        let (s, r) = channel(Some(1));
        let mut select = Select::new();
        select.send(&s);
        let oper = select.select();
        let sent = send(PLAIN, s.clone(), 1..2);
        give_up(oper);
        assert_eq!(sent.join(), 1);
        assert_eq!(recv(&r), 1);
    });
}

/// The same when a value is before the place: the receiver that takes the value out makes room for
/// two.
fn a_place_is_passed() {
    explore_in_turn(Some(1), || {
        let (s, r) = channel(Some(2));
        s.send(Msg::new(0)).unwrap();
        let mut select = Select::new();
        select.send(&s);
        let oper = select.select();
        let sent = send(PLAIN, s.clone(), 1..3);
        let received = plain(move || {
            assert_eq!(recv(&r), 0);
            r
        });
        give_up(oper);
        let r = received.join();
        assert_eq!(sent.join(), 2);
        assert_eq!([recv(&r), recv(&r)], [1, 2]);
    });
}

#[test]
fn g4_a_place_that_is_given_up_is_passed() {
    a_place_is_passed();
}

#[test]
fn g4_a_place_that_is_given_up_is_passed_on_x86() {
    shim::on_x86(a_place_is_passed);
}

/// The end while a select's sender has a place: its message comes before the end, also for a
/// receiver that waits.
#[test]
fn u10_the_end_comes_after_a_place_that_is_filled() {
    for is_filled in [true, false] {
        explore_in_turn(Some(1), move || {
            let (s, r) = channel(Some(1));
            let mut select = Select::new();
            select.send(&s);
            let oper = select.select();
            let closer = {
                let s = s.clone();
                plain(move || s.close())
            };
            let received = plain(move || {
                let got: Vec<_> = r.iter().map(Msg::open).collect();
                got
            });
            if is_filled {
                assert!(oper.send(&s, Msg::new(1)).is_ok());
            } else {
                give_up(oper);
            }
            assert!(closer.join());
            let expected: &[u32] = if is_filled { &[1] } else { &[] };
            assert_eq!(received.join(), expected);
        });
    }
}

/// The end against a sender that waits: it gets its message back, or the receiver has it.
#[test]
fn g4_close_against_a_sender_that_waits() {
    explore_in_turn(Some(2), || {
        let (s, r) = channel(Some(1));
        s.send(Msg::new(1)).unwrap();
        let sent = send(GO, s, 2..3);
        let got = r.try_recv().map_or(0, |_| 1);
        r.close();
        let got = got + r.iter().count() as u32;
        assert_eq!(got, 1 + sent.join(), "received exactly if sent");
    });
}

/// A receiver whose time is over, against a sender: the value is received, or left in the ring.
fn timeout(receiver: Start) {
    explore_in_turn(Some(2), move || {
        let (s, r) = channel(Some(1));
        let clock = plain(let_time_pass);
        let late = r.clone();
        let got = receiver(Box::new(move || match r.recv_timeout(SOON) {
            Ok(msg) => msg.open(),
            Err(RecvTimeoutError::Timeout) => 0,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the sender is here"),
        }));
        s.send(Msg::new(1)).unwrap();
        let got = got.join() + late.try_recv().map_or(0, Msg::open);
        assert_eq!(got, 1);
        clock.join();
    });
}

#[test]
fn g4_a_receivers_timeout_leaves_the_value() {
    timeout(PLAIN);
    timeout(GO);
}
