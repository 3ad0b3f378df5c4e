//! The channel without capacity (U10, G4): the library's own, with its queues, under loom's lock.
//!
//! A message is a field on the heap of its maker: loom reports a receiver that is not ordered after
//! that. `shared` is a field that the receiver writes before it receives and the sender reads after
//! it has sent: without capacity, a receive begins before its send is complete.
//!
//! Models with two threads are explored in every order, those with three with at most three
//! preemptions, or two.

use std::sync::Arc;

use super::actors::{
    Actor, GO, Msg, PLAIN, Rx, SOON, Start, Tx, channel, plain, select_give_up, select_send,
};
use super::{Plain, explore};
use crate::chan::{RecvTimeoutError, Select};
use crate::shim::{self, Part};
use crate::thread::let_time_pass;

/// Sends one message; 1 when it was received.
fn send(start: Start, s: Tx, number: u32) -> Actor<u32> {
    start(Box::new(move || {
        u32::from(s.send(Msg::new(number)).is_ok())
    }))
}

/// Receives one message; its number.
fn recv(start: Start, r: Rx) -> Actor<u32> {
    start(Box::new(move || r.recv().unwrap().open()))
}

/// One sends, one receives; both directions are ordered.
fn meeting(preemptions: Option<usize>, sender: Start, receiver: Start) {
    explore(preemptions, move || {
        let (s, r) = channel(Some(0));
        let shared = Arc::new(Plain::new(0));
        let sent = sender({
            let shared = shared.clone();
            Box::new(move || {
                assert!(s.send(Msg::new(1)).is_ok());
                shared.get()
            })
        });
        let received = receiver(Box::new(move || {
            shared.set(2);
            r.recv().unwrap().open()
        }));
        assert_eq!(received.join(), 1);
        assert_eq!(sent.join(), 2);
    });
}

/// Explored: either side first, asleep or on the way to it, and the end of both sides. Fails if the
/// claimer touches a waiter that it has finished, if the value is handed over after that, or if a
/// wake-up is forgotten.
#[test]
fn u10_a_value_goes_from_thread_to_thread() {
    meeting(None, PLAIN, PLAIN);
}

/// The same for goroutines: the commit may be refused, and the wake-up is a `ready`.
#[test]
fn u10_a_value_goes_from_goroutine_to_goroutine() {
    meeting(None, GO, GO);
}

#[test]
fn u10_a_value_goes_between_a_thread_and_a_goroutine() {
    meeting(Some(3), PLAIN, GO);
    meeting(Some(3), GO, PLAIN);
}

/// Only the word and the note order what happens after the lock.
#[test]
#[should_panic(expected = "Causality violation")]
fn u10_without_release_the_value_is_not_seen() {
    shim::without(Part::Release, || meeting(Some(3), PLAIN, PLAIN));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn u10_without_acquire_the_value_is_not_seen() {
    shim::without(Part::Acquire, || meeting(Some(3), PLAIN, PLAIN));
}

/// Two senders, and a receiver that takes from both. Fails if a popped node can be popped again, or
/// if a queue of two loses one.
#[test]
fn g4_two_senders_are_served_once_each() {
    explore(Some(2), || {
        let (s, r) = channel(Some(0));
        let senders = [send(PLAIN, s.clone(), 1), send(GO, s, 2)];
        let got = [0, 1].map(|_| r.recv().unwrap().open());
        assert!(got == [1, 2] || got == [2, 1]);
        assert!(r.recv().is_err(), "the last sender is gone");
        assert_eq!(senders.map(Actor::join), [1, 1]);
    });
}

/// Two receivers, one value, then the end.
#[test]
fn g4_a_value_has_one_of_two_receivers() {
    explore(Some(2), || {
        let (s, r) = channel(Some(0));
        let receive =
            |r: Rx| -> Box<dyn FnOnce() -> u32> { Box::new(move || r.recv().map_or(0, Msg::open)) };
        let receivers = [PLAIN(receive(r.clone())), GO(receive(r))];
        assert!(s.send(Msg::new(1)).is_ok());
        drop(s);
        let got = receivers.map(Actor::join);
        assert!(got == [1, 0] || got == [0, 1]);
    });
}

/// A receiver whose time is over, against a sender. Explored: the timeout before, beside and after
/// the sender's claim. The value arrives exactly if the send succeeded, and nothing of the receiver
/// is touched after it has left.
fn timeout(preemptions: usize, sender: Start, receiver: Start) {
    explore(Some(preemptions), move || {
        let (s, r) = channel(Some(0));
        let clock = plain(let_time_pass);
        let sent = send(sender, s, 1);
        let got = receiver(Box::new(move || match r.recv_timeout(SOON) {
            Ok(msg) => msg.open(),
            Err(RecvTimeoutError::Timeout) => 0,
            Err(RecvTimeoutError::Disconnected) => unreachable!("the sender waits"),
        }));
        let got = got.join();
        assert_eq!(sent.join(), got, "received exactly if sent");
        clock.join();
    });
}

#[test]
fn g4_a_receivers_timeout_against_a_sender() {
    timeout(2, PLAIN, PLAIN);
    timeout(2, PLAIN, GO);
}

/// The end against a waiting sender, which gets its message back, or a receiver, which has it.
#[test]
fn g4_close_against_a_meeting() {
    explore(Some(3), || {
        let (s, r) = channel(Some(0));
        let closer = {
            let s = s.clone();
            plain(move || s.close())
        };
        let sent = plain(move || match s.send(Msg::new(1)) {
            Ok(()) => 1,
            Err(error) => {
                assert_eq!(error.into_inner().open(), 1);
                0
            }
        });
        let got = r.recv().map_or(0, Msg::open);
        assert_eq!(sent.join(), got, "received exactly if sent");
        assert!(closer.join());
    });
}

/// The handshake with a select's sender. Explored: the receiver finds the select in the queue, and
/// then waits for the value only; the select finds the receiver, which stays claimed until the
/// message is there. Fails if the receiver leaves before it has the value.
#[test]
fn g4_a_selects_sender_shakes_hands() {
    for receiver in [PLAIN, GO] {
        explore(Some(3), move || {
            let (s, r) = channel(Some(0));
            let received = recv(receiver, r);
            assert!(select_send(&s, 1));
            assert_eq!(received.join(), 1);
        });
    }
}

/// A select's sender that gives up, and another sender: the receiver looks again and gets the
/// other's value.
#[test]
fn g4_a_receiver_looks_again_when_a_promise_is_not_kept() {
    explore(Some(2), || {
        let (s, r) = channel(Some(0));
        let gives_up = {
            let s = s.clone();
            plain(move || select_give_up(&s))
        };
        let received = recv(GO, r.clone());
        // The select needs a second receiver to be chosen, if the first has gone with the value.
        let sent = send(PLAIN, s, 1);
        assert_eq!(received.join(), 1);
        assert_eq!(sent.join(), 1);
        assert!(r.recv().is_err());
        gives_up.join();
    });
}

/// A receiver's own select against a select's sender: neither has its value yet.
#[test]
fn g4_two_selects_meet() {
    explore(Some(3), || {
        let (s, r) = channel(Some(0));
        let received = plain(move || {
            let mut select = Select::new();
            select.recv(&r);
            select.select().recv(&r).unwrap().open()
        });
        assert!(select_send(&s, 1));
        assert_eq!(received.join(), 1);
    });
}
