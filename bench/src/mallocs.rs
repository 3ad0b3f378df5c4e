//! Measures malloc and free in a goroutine, against the same loop on a plain thread.
//!
//! malloc keeps its caches in thread-locals. A goroutine with its own thread-locals could have
//! caches of its own, which would be empty, or use its thread's, which are full. The figures show
//! whether it pays for either.
//!
//! A *slice* is a number of pairs of malloc and free, timed together. A *task* is a goroutine or a
//! thread that does slices. `time` comes from one task alone. `moving_time` comes from several
//! tasks at once whose goroutines yield between slices. A yield puts a goroutine at the end of a
//! queue that all Ps take from, so it continues to allocate on any thread.
//!
//! The clock runs during slices only. So neither the yields count, nor how evenly the tasks share
//! the CPUs. A slice is short: the few in which the kernel took the CPU away stand out, and the
//! slowest tenth is left out of the mean. A cost after every move would be in half of the slices,
//! and so in the mean. A cost in less than a tenth of them, for example once in a goroutine's life,
//! does not show.

use std::hint::black_box;
use std::io;
use std::time::Instant;

use crate::port::{self, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, Workload};

pub const MALLOC: Workload = Workload {
    name: "malloc",
    about: "n pairs of malloc and free of 64 bytes, staying on a thread and moving; per pair",
    n: 10_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &[
        Port::gosched(Mode::Own, start_gosched),
        Port::gosched(Mode::Shared, start_gosched),
        Port::std(start_std),
    ],
    compared: &["time", "moving_time"],
    goals: &[
        Goal::new("own/std", "time", 1.05, "x"),
        Goal::new("own/std", "moving_time", 1.05, "x"),
    ],
    child: None,
};

type Block = [u8; 64];
/// Pairs in a slice. So many that reading the clock is less than a hundredth of it, so few that a
/// slice is rarely interrupted.
const SLICE: usize = 1_000;
/// Tasks for each P in `moving_time`; with one each there would be no other task to yield to.
const TASKS_PER_PROC: usize = 2;

fn start_gosched(params: &Params, mode: Mode) -> io::Result<Round> {
    let runtime = port::runtime(mode, params.procs)?;
    let Params { n, procs, .. } = *params;
    Ok(Box::new(move || {
        let staying_ns = runtime.run(|| slices_ns(n, || ()));
        let moving_ns = runtime.run(|| {
            let spawn =
                |pairs| gosched::thread::spawn(move || slices_ns(pairs, gosched::yield_now));
            let tasks: Vec<_> = shares(n, procs).map(spawn).collect();
            let join = |task: gosched::thread::JoinHandle<_>| task.join().expect("it only counts");
            tasks.into_iter().flat_map(join).collect()
        });
        Ok(samples(staying_ns, moving_ns))
    }))
}

fn start_std(params: &Params) -> io::Result<Round> {
    let Params { n, procs, .. } = *params;
    Ok(Box::new(move || {
        let spawn = |pairs| std::thread::spawn(move || slices_ns(pairs, || ()));
        let join = |task: std::thread::JoinHandle<_>| task.join().expect("it only counts");
        let staying_ns = join(spawn(n));
        let tasks: Vec<_> = shares(n, procs).map(spawn).collect();
        let moving_ns = tasks.into_iter().flat_map(join).collect();
        Ok(samples(staying_ns, moving_ns))
    }))
}

/// The samples of a round, from its slices.
fn samples(mut staying_ns: Vec<f64>, mut moving_ns: Vec<f64>) -> Vec<Sample> {
    let staying_ns = rounds::undisturbed_mean(&mut staying_ns);
    let moving_ns = rounds::undisturbed_mean(&mut moving_ns);
    vec![
        Sample::best("time", staying_ns, "ns"),
        Sample::best("moving_time", moving_ns, "ns"),
    ]
}

/// Divides the pairs among the tasks of `moving_time`.
fn shares(pairs: usize, procs: usize) -> impl Iterator<Item = usize> {
    let tasks = procs * TASKS_PER_PROC;
    (0..tasks).map(move |task| pairs / tasks + usize::from(task < pairs % tasks))
}

/// A task: does `count` pairs with a pause after every slice, and returns the time per pair of each
/// slice.
fn slices_ns(count: usize, pause: impl Fn()) -> Vec<f64> {
    let mut slices_ns = Vec::with_capacity(count.div_ceil(SLICE));
    for done in (0..count).step_by(SLICE) {
        let size = SLICE.min(count - done);
        let start = Instant::now();
        pairs(size);
        slices_ns.push(rounds::ns_each(start, size));
        pause();
    }
    slices_ns
}

/// The work itself; one function, so that every port runs the same code.
#[inline(never)]
fn pairs(count: usize) {
    for _ in 0..count {
        drop(black_box(Box::<Block>::new_uninit()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_even_and_add_up() {
        assert_eq!(shares(10, 2).collect::<Vec<_>>(), [3, 3, 2, 2]);
        assert_eq!(shares(3, 2).collect::<Vec<_>>(), [1, 1, 1, 0]);
    }

    #[test]
    fn every_pair_is_in_a_slice() {
        let pauses = std::cell::Cell::new(0);
        let slices_ns = slices_ns(2 * SLICE + 1, || pauses.set(pauses.get() + 1));
        assert_eq!((slices_ns.len(), pauses.get()), (3, 3));
    }
}
