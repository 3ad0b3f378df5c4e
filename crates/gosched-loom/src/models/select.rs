//! Select (G4): it waits on several channels at once, and one of them ends the wait. What the
//! others had stays theirs.
//!
//! The cases are tried in a fixed order, for loom needs the same choices in each run. Loom chooses
//! the order of events: with at most two preemptions; with one if there are rings; with three if
//! there are two threads.

use std::sync::Arc;
use std::time::Instant;

use super::actors::{Actor, GO, Msg, PLAIN, Rx, SOON, Start, Tx, channel, plain};
use super::{Calm, explore, explore_in_turn};
use crate::chan::{Receiver, Select, Sender, resettable};
use crate::current::{pointer, run_as};
use crate::sched::model::g::G;
use crate::sched::park::cancel;
use crate::thread::let_time_pass;

/// Stands for the end of a channel among numbers.
const END: u32 = 100;

/// Two channels. A select locks them by address, and loom needs the same order in each run.
fn two_channels(cap: usize) -> [(Tx, Rx); 2] {
    let mut channels = [0, 1].map(|_| channel(Some(cap)));
    // SAFETY: D1, a sender is the address of its channel.
    channels.sort_by_key(|(s, _)| unsafe { std::mem::transmute_copy::<Sender<Msg>, usize>(s) });
    channels
}

/// Waits for one of two receives. Returns which, and the number it got.
fn select_recv(a: &Rx, b: &Rx) -> (usize, u32) {
    let mut select = Select::new();
    select.recv(a);
    select.recv(b);
    let oper = select.select();
    let at = oper.index();
    let got = oper.recv([a, b][at]).map_or(END, Msg::open);
    (at, got)
}

fn recv(r: &Rx) -> u32 {
    r.recv().map_or(END, Msg::open)
}

fn send(start: Start, s: &Tx, number: u32) -> Actor<u32> {
    let s = s.clone();
    start(Box::new(move || {
        u32::from(s.send(Msg::new(number)).is_ok())
    }))
}

/// A select on two channels, one of which is closed while a thread sends to the other. Explored:
/// both before, beside and after the select queues itself and sleeps. It ends once, as one of the
/// two. A value that it did not take is still there.
fn select_against_close(preemptions: usize, cap: usize, who: Start) {
    explore(Some(preemptions), move || {
        let [(sa, ra), (sb, rb)] = two_channels(cap);
        let sent = send(PLAIN, &sa, 1);
        let closer = plain(move || sb.close());
        let _open = rb.clone(); // the last receiver would close it, too
        let selected = who(Box::new(move || match select_recv(&ra, &rb) {
            (0, got) => got,
            (_, got) => {
                assert_eq!(got, END, "nobody sent anything there");
                recv(&ra)
            }
        }));
        assert_eq!(selected.join(), 1, "the value is not lost");
        assert_eq!(sent.join(), 1);
        assert!(closer.join());
    });
}

#[test]
fn g4_a_select_against_close_and_a_sender() {
    select_against_close(2, 0, PLAIN);
    select_against_close(2, 0, GO);
}

#[test]
fn g4_a_select_against_close_and_a_buffered_sender() {
    select_against_close(1, 1, PLAIN);
}

/// The end alone, of one of the channels that a select waits on. The other one has no node of it
/// afterwards: no thread waits there.
fn select_against_the_end(cap: usize, who: Start) {
    explore(Some(3), move || {
        let [(sa, ra), (sb, rb)] = two_channels(cap);
        let _open = (ra.clone(), rb.clone()); // the last receiver would close it, too
        let closer = plain(move || sb.close());
        let selected = who(Box::new(move || {
            let (at, got) = select_recv(&ra, &rb);
            assert_eq!((at, got), (1, END));
            got
        }));
        selected.join();
        assert_eq!(sa.try_send(Msg::new(1)).is_ok(), cap > 0, "into the buffer");
        assert!(closer.join());
    });
}

#[test]
fn g4_the_end_of_a_channel_ends_a_select() {
    select_against_the_end(0, GO);
    select_against_the_end(1, PLAIN);
}

/// Both channels are sent to: one value ends the select, the other is received afterwards. Fails if
/// two claims win, or if a channel that lost keeps the node of a select that has left.
fn two_senders(preemptions: usize, cap: usize) {
    explore(Some(preemptions), move || {
        let [(sa, ra), (sb, rb)] = two_channels(cap);
        let sent = [send(PLAIN, &sa, 1), send(GO, &sb, 2)];
        let (at, first) = select_recv(&ra, &rb);
        let second = recv([&rb, &ra][at]);
        assert_eq!((first, second), [(1, 2), (2, 1)][at]);
        assert_eq!(sent.map(Actor::join), [1, 1]);
    });
}

#[test]
fn g4_two_senders_end_one_select_once() {
    two_senders(2, 0);
    two_senders(1, 1);
}

/// Two selects that each send on one channel and receive from the other: they agree on one of the
/// two.
#[test]
fn g4_two_selects_agree_on_one_transfer() {
    explore(Some(2), || {
        let [(sa, ra), (sb, rb)] = two_channels(0);
        let both = |s: &Tx, r: &Rx, number: u32| {
            let mut select = Select::new();
            select.send(s);
            select.recv(r);
            let oper = select.select();
            if oper.index() == 0 {
                assert!(oper.send(s, Msg::new(number)).is_ok());
                0
            } else {
                oper.recv(r).unwrap().open()
            }
        };
        let _open = (sa.clone(), sb.clone(), ra.clone(), rb.clone());
        let other = plain(move || both(&sb, &ra, 2));
        let got = [both(&sa, &rb, 1), other.join()];
        assert!(
            got == [0, 1] || got == [2, 0],
            "one sends, the other receives: {got:?}"
        );
    });
}

/// One goroutine waits with both directions of one channel; it does not meet itself.
#[test]
fn g4_a_select_does_not_meet_itself() {
    explore(Some(3), || {
        let (s, r) = channel(Some(0));
        let sent = send(PLAIN, &s, 1);
        let mut select = Select::new();
        select.recv(&r);
        select.send(&s);
        let oper = select.select();
        assert_eq!(oper.index(), 0);
        assert_eq!(oper.recv(&r).unwrap().open(), 1);
        drop(select);
        assert_eq!(sent.join(), 1);
    });
}

/// The timeout against a sender: the value is received exactly if the select did not time out.
fn timeout(who: Start) {
    explore(Some(2), move || {
        let [(sa, ra), (_sb, rb)] = two_channels(0);
        let clock = plain(let_time_pass);
        let sent = send(PLAIN, &sa, 1);
        drop(sa);
        let selected = who(Box::new(move || {
            let mut select = Select::new();
            select.recv(&ra);
            select.recv(&rb);
            match select.select_timeout(SOON) {
                Ok(oper) => oper.recv(&ra).unwrap().open(),
                Err(_) => 0,
            }
        }));
        assert_eq!(selected.join(), sent.join(), "received exactly if sent");
        clock.join();
    });
}

#[test]
fn g4_a_selects_timeout_against_a_sender() {
    timeout(PLAIN);
    timeout(GO);
}

/// A timer that was stopped is set while a receiver begins to wait for it. Explored: the reset
/// before, between and after the load of the old time, the load under the lock, and the sleep.
/// Fails if a receiver sleeps by a time that is no longer true.
fn reset_against_a_receiver(who: Start, receive: fn(&Receiver<Instant>)) {
    explore(Some(3), move || {
        let timer = Calm::new(resettable(u64::MAX, 0));
        let setter = plain({
            let timer = timer.clone();
            move || {
                timer.set_clock(Some(1), 0);
                let_time_pass();
            }
        });
        let received = who(Box::new(move || {
            receive(&timer);
            1
        }));
        assert_eq!(received.join(), 1);
        setter.join();
    });
}

#[test]
fn g4_a_timer_is_set_while_a_select_begins_to_wait() {
    let select = |timer: &Receiver<Instant>| {
        let mut select = Select::new();
        select.recv(timer);
        assert!(select.select().recv(timer).is_ok());
    };
    reset_against_a_receiver(PLAIN, select);
    reset_against_a_receiver(GO, select);
}

#[test]
fn g4_a_timer_is_set_while_a_receiver_begins_to_wait() {
    let receive = |timer: &Receiver<Instant>| assert!(timer.recv().is_ok());
    reset_against_a_receiver(PLAIN, receive);
    reset_against_a_receiver(GO, receive);
}

/// Two receivers wait for a timer, one of them for another timer besides. Explored: which of them
/// is the first in the queue of the shared timer, and the end of the select's wait beside the
/// beginning of the other's. Fails if the receiver that leaves the queue with something else does
/// not look after the one that stays.
#[test]
fn g4_a_select_that_leaves_a_timer_leaves_it_to_the_next() {
    for who in [PLAIN, GO] {
        explore(Some(2), move || {
            let mut timers = [0, 1].map(|_| resettable(1, 0));
            // SAFETY: D1, a receiver is the address of its channel.
            let address =
                |timer: &_| unsafe { std::mem::transmute_copy::<Receiver<Instant>, usize>(timer) };
            timers.sort_by_key(address); // as in `two_channels`
            let [shared, other] = timers.map(Calm::new);
            let select = who(Box::new({
                let shared = shared.clone();
                move || {
                    let mut select = Select::new();
                    select.recv(&other);
                    select.recv(&shared);
                    let oper = select.select();
                    match oper.index() {
                        0 => assert!(oper.recv(&other).is_ok()),
                        _ => {
                            assert!(oper.recv(&shared).is_ok());
                            shared.set_clock(Some(1), 0); // one more, for the other one
                        }
                    }
                    1
                }
            }));
            let next = who(Box::new(move || u32::from(shared.recv().is_ok())));
            let_time_pass();
            assert_eq!(next.join(), 1);
            select.join();
        });
    }
}

/// A goroutine is asked to unwind while it selects, and may not: it waits again. The value that
/// comes meanwhile is its own.
#[test]
fn pk_a_select_that_is_cancelled_waits_again() {
    explore(Some(2), || {
        let [(sa, ra), (_sb, rb)] = two_channels(0);
        let g = Arc::new(G::new());
        let canceller = plain({
            let g = g.clone();
            move || cancel(pointer(&g))
        });
        let sent = send(PLAIN, &sa, 1);
        let got = run_as(&g, || select_recv(&ra, &rb));
        assert_eq!(got, (0, 1));
        canceller.join();
        assert_eq!(sent.join(), 1);
    });
}

/// A default is taken only if at some moment nothing was ready. A value goes into one channel
/// before the other is emptied, so there always is one. Fails if each channel is looked at by
/// itself.
#[test]
fn g4_a_default_is_true_of_one_moment() {
    explore_in_turn(Some(3), || {
        let [(sa, ra), (sb, rb)] = two_channels(1);
        sa.send(Msg::new(1)).unwrap();
        let mover = {
            let ra = ra.clone();
            plain(move || {
                sb.send(Msg::new(2)).unwrap();
                drop(ra.try_recv());
                sb
            })
        };
        let mut select = Select::new_biased();
        select.recv(&rb);
        select.recv(&ra);
        let oper = select.try_select().expect("something is always there");
        let r = [&rb, &ra][oper.index()];
        assert!(oper.recv(r).is_ok());
        drop(mover.join());
    });
}
