//! What the senders and receivers of a round of the stress test do.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use gosched::chan::{
    Receiver, RecvTimeoutError, Select, SendTimeoutError, Sender, TryRecvError, TrySendError,
    never, select, select_biased,
};

use super::stress::{Ending, Place, Round, Value};
use super::*;
use crate::common::{Planned, Rng};

/// How an attempt to send ended.
enum Sending<T> {
    Sent,
    /// Not now.
    Back(T),
    /// Never.
    Ended(T),
}

/// A time that is over soon, or at once.
fn soon(rng: &mut Rng) -> Duration {
    let most = 1 << rng.below(17);
    Duration::from_nanos(rng.below(most))
}

/// Yields now and then.
fn dawdle(rng: &mut Rng) {
    match rng.below(64) {
        0 => thread::sleep(soon(rng)),
        1..=4 => thread::yield_now(),
        5..=8 => (0..rng.below(500)).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

/// A send in a select, whose message is only made when it has been chosen; sometimes that goes
/// wrong.
fn select_send<T>(s: &Sender<T>, rng: &mut Rng, value: T) -> Sending<T> {
    let (value, way) = (Cell::new(Some(value)), rng.below(6));
    let fails = cfg!(panic = "unwind") && rng.one_in(16);
    let make = |rng: &mut Rng| {
        dawdle(rng);
        if fails {
            resume_unwind(Box::new(Planned));
        }
        value.take().unwrap()
    };
    let nothing = never::<()>();
    let outcome = catch_unwind(AssertUnwindSafe(|| match way {
        0 => select! {
            send(s, make(rng)) -> sent => Some(sent),
            recv(nothing) -> _ => unreachable!(),
        },
        1 => select! {
            send(s, make(rng)) -> sent => Some(sent),
            send(s.clone(), make(rng)) -> sent => Some(sent),
        },
        2 => select_biased! {
            recv(nothing) -> _ => unreachable!(),
            send(s, make(rng)) -> sent => Some(sent),
            default => None,
        },
        3 => select! {
            send(s, make(rng)) -> sent => Some(sent),
            recv(nothing) -> _ => unreachable!(),
            default(Duration::from_micros(way * 9)) => None,
        },
        4 => {
            let mut sel = Select::new();
            sel.send(s);
            let chosen = sel.select_timeout(soon(rng)).ok()?;
            Some(chosen.send(s, make(rng)))
        }
        _ => {
            let mut sel = Select::new();
            sel.send(s);
            sel.ready_timeout(soon(rng)).ok()?;
            match s.try_send(make(rng)) {
                Ok(()) => Some(Ok(())),
                Err(TrySendError::Disconnected(value)) => {
                    Some(Err(gosched::chan::SendError(value)))
                }
                Err(TrySendError::Full(back)) => {
                    value.set(Some(back));
                    None
                }
            }
        }
    }));
    match outcome {
        Ok(Some(Ok(()))) => Sending::Sent,
        Ok(Some(Err(error))) => Sending::Ended(error.0),
        Ok(None) => Sending::Back(value.take().unwrap()),
        Err(payload) if payload.is::<Planned>() => Sending::Back(value.take().unwrap()),
        Err(payload) => resume_unwind(payload),
    }
}

fn send_somehow<T>(s: &Sender<T>, rng: &mut Rng, may_select: bool, value: T) -> Sending<T> {
    match rng.below(if may_select { 8 } else { 5 }) {
        0..=1 => match s.send(value) {
            Ok(()) => Sending::Sent,
            Err(error) => Sending::Ended(error.0),
        },
        2 => match s.try_send(value) {
            Ok(()) => Sending::Sent,
            Err(TrySendError::Full(value)) => Sending::Back(value),
            Err(TrySendError::Disconnected(value)) => Sending::Ended(value),
        },
        way @ 3..=4 => {
            let sent = if way == 3 {
                s.send_timeout(value, soon(rng))
            } else {
                s.send_deadline(value, Instant::now() + soon(rng))
            };
            match sent {
                Ok(()) => Sending::Sent,
                Err(SendTimeoutError::Timeout(value)) => Sending::Back(value),
                Err(SendTimeoutError::Disconnected(value)) => Sending::Ended(value),
            }
        }
        _ => select_send(s, rng, value),
    }
}

/// Sends its values, in order; some are given up.
pub(crate) fn sender<const WORDS: usize>(
    round: &Arc<Round>,
    number: usize,
    mut s: Sender<Value<WORDS>>,
    place: Place,
) {
    let mut rng = round.rng();
    // A goroutine that is abandoned while it evaluates a message keeps its place in the buffer for
    // ever.
    let may_select = round.ending != Ending::Dropped || place != Place::There;
    let many = if rng.one_in(4) {
        rng.below(round.each as u64 + 1) as usize
    } else {
        round.each
    };
    for n in number * round.each..number * round.each + many {
        let mut value = Value::new(round, n);
        loop {
            value = match send_somehow(&s, &mut rng, may_select, value) {
                Sending::Sent => break round.sent(n),
                Sending::Ended(value) => return value.check(),
                Sending::Back(value) if rng.one_in(8) => break drop(value),
                Sending::Back(value) => value,
            };
            dawdle(&mut rng);
        }
        if rng.one_in(32) {
            s = s.clone();
        }
        dawdle(&mut rng);
    }
}

/// How an attempt to receive ended.
enum Receiving<T> {
    Got(T),
    Nothing,
    Ended,
}

impl<T, E> From<Result<T, E>> for Receiving<T> {
    fn from(result: Result<T, E>) -> Self {
        result.map_or(Receiving::Ended, Receiving::Got)
    }
}

fn receive_somehow<T>(r: &Receiver<T>, rng: &mut Rng) -> Receiving<T> {
    let nothing = never::<()>();
    let timed = |got| match got {
        Ok(value) => Receiving::Got(value),
        Err(RecvTimeoutError::Timeout) => Receiving::Nothing,
        Err(RecvTimeoutError::Disconnected) => Receiving::Ended,
    };
    let tried = |got| match got {
        Ok(value) => Receiving::Got(value),
        Err(TryRecvError::Empty) => Receiving::Nothing,
        Err(TryRecvError::Disconnected) => Receiving::Ended,
    };
    match rng.below(12) {
        0..=1 => r.recv().into(),
        2 => tried(r.try_recv()),
        3 => timed(r.recv_timeout(soon(rng))),
        4 => timed(r.recv_deadline(Instant::now() + soon(rng))),
        5 => r.iter().next().map_or(Receiving::Ended, Receiving::Got),
        6 => r
            .try_iter()
            .next()
            .map_or(Receiving::Nothing, Receiving::Got),
        7 => select! { recv(r) -> got => got.into(), recv(nothing) -> _ => unreachable!() },
        8 => select! {
            recv(r) -> got => got.into(),
            recv(r.clone()) -> got => got.into(),
            default(soon(rng)) => Receiving::Nothing,
        },
        9 => select_biased! {
            recv(nothing) -> _ => unreachable!(),
            recv(r) -> got => got.into(),
            default => Receiving::Nothing,
        },
        10 => {
            let mut sel = Select::new();
            sel.recv(&nothing);
            sel.recv(r);
            sel.recv(r);
            match sel.select_timeout(soon(rng)) {
                Ok(chosen) => chosen.recv(r).into(),
                Err(_) => Receiving::Nothing,
            }
        }
        _ => {
            let mut sel = Select::new();
            sel.recv(r);
            match sel.ready_timeout(soon(rng)) {
                Ok(_) => tried(r.try_recv()),
                Err(_) => Receiving::Nothing,
            }
        }
    }
}

/// Receives until the end, or until it leaves; looks whether each sender's values come in order.
pub(crate) fn receiver<const WORDS: usize>(round: &Arc<Round>, mut r: Receiver<Value<WORDS>>) {
    let mut rng = round.rng();
    let mut last = std::collections::HashMap::new();
    loop {
        match receive_somehow(&r, &mut rng) {
            Receiving::Got(value) => {
                round.received(value.number);
                value.check();
                let from = value.number / round.each;
                let is_late = last
                    .insert(from, value.number)
                    .is_some_and(|last| last >= value.number);
                // A value that a dropped runtime's receiver never saw is passed on, after those
                // that others took meanwhile.
                if is_late && round.ending != Ending::Dropped {
                    round.complain(format_args!("{} came after {last:?}", value.number));
                }
            }
            Receiving::Nothing => thread::yield_now(),
            Receiving::Ended => {
                round.drained.fetch_add(1, SeqCst);
                return;
            }
        }
        if round.is_deserted.load(SeqCst) && rng.one_in(8) {
            return;
        }
        if rng.one_in(64) {
            r = r.clone();
        }
        dawdle(&mut rng);
    }
}
