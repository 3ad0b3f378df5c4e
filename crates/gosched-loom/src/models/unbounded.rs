//! The unbounded channel (U10, G4): the library's own, its list and its queues, and how they
//! settle.
//!
//! A block has room for two, so that the third message is in another one. At most three
//! preemptions, as for the bounded channel. None for three messages: there the threads switch where
//! they wait.

use super::actors::{GO, Msg, PLAIN, Start, channel, plain};
use super::explore_in_turn;
use crate::shim::{self, Part};

/// settle/1: the list is empty, a receiver is on its way to sleep.
fn a_receiver_waits(preemptions: usize, sender: Start, receiver: Start) {
    explore_in_turn(Some(preemptions), move || {
        let (s, r) = channel(None);
        let _open = s.clone(); // the end would wake everybody
        let received = receiver(Box::new(move || r.recv().unwrap().open()));
        let sent = sender(Box::new(move || u32::from(s.send(Msg::new(1)).is_ok())));
        assert_eq!(received.join(), 1);
        assert_eq!(sent.join(), 1);
    });
}

/// Explored as for the bounded channel. Fails if the load comes before the mark, on either side.
#[test]
fn g4_no_receiver_sleeps_beside_a_value() {
    a_receiver_waits(3, PLAIN, PLAIN);
    a_receiver_waits(2, GO, GO);
    shim::on_x86(|| a_receiver_waits(3, PLAIN, PLAIN));
}

#[test]
#[should_panic(expected = "deadlock")]
fn g4_without_the_waiters_fence_a_receiver_sleeps_for_ever() {
    shim::without(Part::Fence, || a_receiver_waits(3, PLAIN, PLAIN));
}

#[test]
#[should_panic(expected = "deadlock")]
fn g4_without_the_movers_fence_a_receiver_sleeps_for_ever() {
    shim::without(Part::AfterRmw, || a_receiver_waits(3, PLAIN, PLAIN));
}

/// Three messages, over the end of a block, then the end. The receiver takes some, is given others,
/// and sees the end after the last. Emptied blocks are freed by later calls, and all memory with
/// the channel.
#[test]
fn u10_messages_keep_their_order_over_the_end_of_a_block() {
    explore_in_turn(Some(0), || {
        let (s, r) = channel(None);
        s.send(Msg::new(0)).unwrap();
        let sent = plain(move || (1..3).for_each(|n| s.send(Msg::new(n)).unwrap()));
        let got: Vec<_> = r.iter().map(Msg::open).collect();
        assert_eq!(got, [0, 1, 2]);
        sent.join();
    });
}
