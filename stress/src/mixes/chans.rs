//! Channels: senders and receivers anywhere, by every way to send and to receive. A bout ends when
//! the senders are done, an actor closes the channel, or the receivers leave.
//!
//! If a receiver saw the end, every sent value is received once. Each receiver gets the values of
//! one sender in order. All values are dropped once, which the ledger checks.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use gosched::chan::{
    Receiver, RecvTimeoutError, Select, SendTimeoutError, Sender, TryRecvError, TrySendError,
    bounded, never, select, unbounded,
};

use crate::env::{Actor, Member, TURN};
use crate::ledger::Token;

/// A message: `WORDS` make it small or large.
pub struct Parcel<const WORDS: usize> {
    token: Token,
    from: usize,
    number: u64,
    words: [u64; WORDS],
}

impl<const WORDS: usize> Parcel<WORDS> {
    fn new(a: &Actor, from: usize, number: u64) -> Parcel<WORDS> {
        Parcel {
            token: a.token(),
            from,
            number,
            words: [number; WORDS],
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Drained,
    Closed,
    Deserted,
}

/// What is known of one channel's traffic.
struct Traffic {
    ending: Ending,
    each: u64,
    senders: usize,
    sent: AtomicU64,
    sent_sum: AtomicU64,
    received: AtomicU64,
    received_sum: AtomicU64,
    saw_the_end: AtomicBool,
}

fn verify(t: &Traffic, a: &Actor, is_whole: bool) {
    let [sent, sent_sum, received, received_sum] =
        [&t.sent, &t.sent_sum, &t.received, &t.received_sum].map(|n| n.load(SeqCst));
    if is_whole && t.saw_the_end.load(SeqCst) {
        let is_right = sent == received && sent_sum == received_sum;
        let text = format!("{sent} sent, {received} received");
        a.expect(is_right, text);
    }
    if is_whole {
        a.expect(received <= sent, "more was received than sent");
    }
}

pub fn root(a: &mut Actor) {
    while !a.over() {
        match a.rng.below(3) {
            0 => bout::<0>(a),
            1 => bout::<3>(a),
            _ => bout::<20>(a),
        }
        a.nap();
    }
}

fn bout<const WORDS: usize>(a: &mut Actor) {
    let ending = match a.rng.below(6) {
        0 => Ending::Closed,
        1 => Ending::Deserted,
        _ => Ending::Drained,
    };
    let (s, r) = match a.rng.below(8) {
        0..=2 => bounded::<Parcel<WORDS>>(0),
        3..=4 => bounded(a.rng.few(4)),
        5..=6 => bounded(a.rng.few(200)),
        _ => unbounded(),
    };
    let (senders, receivers) = (a.rng.few(12), a.rng.few(12));
    let each = a.rng.few(400) as u64;
    let group = a.group(
        Traffic {
            ending,
            each,
            senders,
            sent: AtomicU64::new(0),
            sent_sum: AtomicU64::new(0),
            received: AtomicU64::new(0),
            received_sum: AtomicU64::new(0),
            saw_the_end: AtomicBool::new(false),
        },
        verify,
    );
    let mut handles = Vec::new();
    let (mut sending, mut receiving) = (0, 0);
    while sending < senders || receiving < receivers {
        let (member, place) = (group.member(), a.place());
        if sending < senders && (receiving == receivers || a.rng.one_in(2)) {
            let (s, number) = (s.clone(), sending);
            handles.push(a.start(place, move |a| send_all(a, member, s, number)));
            sending += 1;
        } else {
            let r = r.clone();
            handles.push(a.start(place, move |a| receive_all(a, member, r)));
            receiving += 1;
        }
    }
    drop(group);
    if ending == Ending::Closed {
        a.nap();
        let is_first = if a.rng.one_in(2) {
            s.close()
        } else {
            r.close()
        };
        a.expect(is_first, "another actor has closed the channel");
    }
    drop((s, r));
    a.join_all(handles);
}

/// The result of an attempt to send.
enum Sending<T> {
    Sent,
    /// Not now.
    Back(T),
    /// Never.
    Ended(T),
}

fn send_all<const WORDS: usize>(
    a: &mut Actor,
    member: Member<Traffic>,
    mut s: Sender<Parcel<WORDS>>,
    from: usize,
) {
    for number in 0..member.each {
        let mut parcel = Parcel::new(a, from, number);
        loop {
            parcel = match send_somehow(a, &s, parcel) {
                Sending::Sent => {
                    member.sent.fetch_add(1, SeqCst);
                    member.sent_sum.fetch_add(number + 1, SeqCst);
                    a.op();
                    break;
                }
                Sending::Back(_) if a.over() => return member.done(),
                Sending::Back(parcel) => parcel,
                Sending::Ended(parcel) => {
                    parcel.token.check();
                    return member.done();
                }
            };
            a.nap();
        }
        if a.rng.one_in(64) {
            s = s.clone();
        }
        if number % 64 == 63 && a.over() {
            break;
        }
    }
    drop(s);
    member.done();
}

fn send_somehow<T>(a: &mut Actor, s: &Sender<T>, value: T) -> Sending<T> {
    let soon = a.rng.micros(200);
    let timed = |sent: Result<(), SendTimeoutError<T>>| match sent {
        Ok(()) => Sending::Sent,
        Err(SendTimeoutError::Timeout(value)) => Sending::Back(value),
        Err(SendTimeoutError::Disconnected(value)) => Sending::Ended(value),
    };
    match a.rng.below(8) {
        0..=3 if a.may_hang() => timed(s.send_timeout(value, TURN)),
        0..=3 => match s.send(value) {
            Ok(()) => Sending::Sent,
            Err(error) => Sending::Ended(error.0),
        },
        4 => match s.try_send(value) {
            Ok(()) => Sending::Sent,
            Err(TrySendError::Full(value)) => Sending::Back(value),
            Err(TrySendError::Disconnected(value)) => Sending::Ended(value),
        },
        5 => timed(s.send_timeout(value, soon)),
        6 => timed(s.send_deadline(value, Instant::now() + soon)),
        _ => select_send(s, value, soon),
    }
}

/// Sends in a select; the message is taken when its case has been chosen.
fn select_send<T>(s: &Sender<T>, value: T, soon: Duration) -> Sending<T> {
    let mut value = Some(value);
    let nothing = never::<()>();
    let sent = select! {
        send(s, value.take().expect("chosen once")) -> sent => Some(sent),
        recv(nothing) -> _ => None,
        default(soon) => None,
    };
    match (sent, value) {
        (Some(Ok(())), _) => Sending::Sent,
        (Some(Err(error)), _) => Sending::Ended(error.0),
        (None, Some(value)) => Sending::Back(value),
        (None, None) => unreachable!("a message that was not sent was taken"),
    }
}

fn receive_all<const WORDS: usize>(
    a: &mut Actor,
    member: Member<Traffic>,
    r: Receiver<Parcel<WORDS>>,
) {
    let mut next = vec![0; member.senders];
    let leaves_after = match member.ending {
        Ending::Deserted => a.rng.below(100),
        _ => u64::MAX,
    };
    for _ in 0..leaves_after {
        match receive_somehow(a, &r) {
            Ok(parcel) => {
                parcel.token.check();
                a.expect(
                    parcel.words == [parcel.number; WORDS],
                    "a value has changed",
                );
                let next = &mut next[parcel.from];
                // A value that a dropped runtime's receiver returns may come late.
                let is_late = parcel.number < *next && a.env.is_ending.load(SeqCst);
                a.expect(
                    parcel.number >= *next || is_late,
                    "values of one sender changed places",
                );
                *next = (parcel.number + 1).max(*next);
                member.received.fetch_add(1, SeqCst);
                member.received_sum.fetch_add(parcel.number + 1, SeqCst);
                a.op();
            }
            Err(TryRecvError::Empty) if a.over() && a.may_hang() => return,
            Err(TryRecvError::Empty) => a.nap(),
            Err(TryRecvError::Disconnected) => {
                member.saw_the_end.store(true, SeqCst);
                a.expect(r.try_recv().is_err(), "a value came after the end");
                break;
            }
        }
    }
    drop(r);
    member.done();
}

fn receive_somehow<T>(a: &mut Actor, r: &Receiver<T>) -> Result<T, TryRecvError> {
    let soon = a.rng.micros(200);
    let timed = |received: Result<T, RecvTimeoutError>| {
        received.map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    };
    match a.rng.below(8) {
        0..=3 if a.may_hang() => timed(r.recv_timeout(TURN)),
        0..=3 => r.recv().map_err(|_| TryRecvError::Disconnected),
        4 => r.try_recv(),
        5 => timed(r.recv_timeout(soon)),
        6 => timed(r.recv_deadline(Instant::now() + soon)),
        _ => {
            let mut sel = Select::new();
            sel.recv(r);
            match sel.select_timeout(soon) {
                Ok(chosen) => chosen.recv(r).map_err(|_| TryRecvError::Disconnected),
                Err(_) => Err(TryRecvError::Empty),
            }
        }
    }
}
