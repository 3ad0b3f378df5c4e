//! Measures a select that need not wait: each of its channels has a message.
//!
//! The channels are filled before and between the measured selects, each with as many messages as
//! selects follow. Even if all selects took from one channel, it would have enough. So every select
//! finds all of its channels ready.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use crate::chans::{Channels, Goroutines, Threads};
use crate::port::{self, Mode};
use crate::rounds::{Round, Sample};
use crate::workload::{Params, Port, ROUNDS_DEFAULT, Workload};

pub const SELECT_2: Workload = Workload {
    name: "select_2",
    about: "n selects over 2 channels that have messages; per select",
    n: 2_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &select_ports::<2>(),
    compared: &["time"],
    goals: &[],
    child: None,
};

pub const SELECT_8: Workload = Workload {
    name: "select_8",
    about: "n selects over 8 channels that have messages; per select",
    n: 2_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &select_ports::<8>(),
    compared: &["time"],
    goals: &[],
    child: None,
};

/// Selects between two fillings, and the capacity of each channel. So many that reading the clock
/// is less than a hundredth of it, so few that eight channels fit into the CPU's cache.
const BATCH: usize = 256;

const fn select_ports<const K: usize>() -> [Port; 3] {
    [
        Port::gosched(Mode::Own, start::<K>),
        Port::gosched(Mode::Shared, start::<K>),
        Port::crossbeam(start_on_thread::<K>),
    ]
}

fn start<const K: usize>(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let each_ns = runtime.run(|| select_ns::<Goroutines, K>(n));
        Ok(vec![Sample::best("time", each_ns, "ns")])
    }))
}

fn start_on_thread<const K: usize>(params: &Params) -> io::Result<Round> {
    let n = params.n;
    Ok(Box::new(move || {
        let each_ns = select_ns::<Threads, K>(n);
        Ok(vec![Sample::best("time", each_ns, "ns")])
    }))
}

/// The time per select, without filling the channels.
fn select_ns<C: Channels, const K: usize>(selects: usize) -> f64 {
    let channels: [_; K] = std::array::from_fn(|_| C::channel(Some(BATCH)));
    let senders = channels.each_ref().map(|(sender, _)| sender.clone());
    let receivers = channels.each_ref().map(|(_, receiver)| receiver.clone());
    drop(channels);
    let mut left = [0; K];
    let mut spent = Duration::ZERO;
    for done in (0..selects).step_by(BATCH) {
        for (sender, (left, channel)) in senders.iter().zip(left.iter_mut().zip(0..)) {
            (*left..BATCH).for_each(|_| C::send(sender, channel));
            *left = BATCH;
        }
        let size = BATCH.min(selects - done);
        let start = Instant::now();
        for _ in 0..size {
            left[black_box(select::<C, K>(&receivers)) as usize] -= 1;
        }
        spent += start.elapsed();
    }
    spent.as_nanos() as f64 / selects as f64
}

/// Selects over all of them.
#[inline]
fn select<C: Channels, const K: usize>(receivers: &[C::Receiver; K]) -> u64 {
    if let Ok(two) = receivers.as_slice().try_into() {
        return C::select_2(two);
    }
    let eight = receivers.as_slice().try_into();
    C::select_8(eight.expect("there are workloads for 2 and 8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_select_finds_a_message() {
        let runtime = port::runtime(Mode::Own, 1).expect("a runtime");
        runtime.run(|| {
            select_ns::<Goroutines, 2>(3 * BATCH + 1);
            select_ns::<Goroutines, 8>(3 * BATCH + 1);
        });
        select_ns::<Threads, 8>(BATCH + 1);
    }
}
