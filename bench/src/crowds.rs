//! Measures channels among many goroutines: a tree of a million that each send one message, and a
//! chain of thousands that passes millions of messages.

use std::io;
use std::time::Instant;

use gosched::chan::{Receiver, Sender, bounded};

use crate::port::{self, Countdown, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, When, Workload};

pub const SKYNET: Workload = Workload {
    name: "skynet",
    about: "a tree of goroutines, 10 children each, adds up n leaves over unbuffered channels",
    n: 1_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_skynet),
    compared: &["time"],
    goals: &[
        Goal::new("gosched", "time", 330.0, "ms"),
        Goal::new("own/go", "time", 0.45, "x").when(When::First),
        Goal::new("own/go", "time", 0.45, "x"),
    ],
    child: None,
};

pub const SIEVE: Workload = Workload {
    name: "sieve",
    about: "the first n primes by a chain of goroutines, one for each, over unbuffered channels",
    n: 2_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_sieve),
    compared: &["time"],
    goals: &[Goal::new("gosched", "time", 160.0, "ms")],
    child: None,
};

/// Children of each node of the tree.
const CHILDREN: u64 = 10;

fn start_skynet(params: &Params, mode: Mode) -> io::Result<Round> {
    let leaves = params.n as u64;
    let expected = leaves
        .checked_mul(leaves - 1)
        .filter(|_| is_full_tree(leaves))
        .ok_or_else(|| io::Error::other(format!("n must be a power of {CHILDREN}")))?;
    let runtime = port::runtime(mode, params.procs)?;
    Ok(Box::new(move || {
        let (sum, each_ns) = runtime.run(|| {
            let start = Instant::now();
            let (root, sums) = bounded(0);
            gosched::go(move || skynet(&root, 0, leaves));
            let sum = sums.recv().expect("the root adds up");
            (sum, rounds::ns_each(start, 1))
        });
        assert_eq!(sum, expected / 2, "the sum of the leaves");
        Ok(vec![Sample::best("time", each_ns / 1e6, "ms")])
    }))
}

/// Whether a tree with this many leaves has all children at every node.
fn is_full_tree(leaves: u64) -> bool {
    match leaves {
        1 => true,
        _ => leaves.is_multiple_of(CHILDREN) && is_full_tree(leaves / CHILDREN),
    }
}

/// A node: sends the sum of the leaves from `first` on to its parent.
fn skynet(parent: &Sender<u64>, first: u64, leaves: u64) {
    if leaves == 1 {
        return parent.send(first).expect("the parent waits");
    }
    let (child, sums) = bounded(0);
    let share = leaves / CHILDREN;
    for nth in 0..CHILDREN {
        let child = child.clone();
        gosched::go(move || skynet(&child, first + nth * share, share));
    }
    drop(child);
    parent.send(sums.iter().sum()).expect("the parent waits");
}

fn start_sieve(params: &Params, mode: Mode) -> io::Result<Round> {
    let expected = nth_prime(params.n);
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let (last, each_ns) = runtime.run(|| sieve(n));
        assert_eq!(last, expected, "prime number {n}");
        Ok(vec![Sample::best("time", each_ns / 1e6, "ms")])
    }))
}

/// The last of `primes` primes, and the time until it is known. The end of the chain is awaited and
/// not counted.
fn sieve(primes: usize) -> (u64, f64) {
    let running = Countdown::leaked();
    running.expect(primes + 1);
    let start = Instant::now();
    let (sender, mut numbers) = bounded(0);
    gosched::go(move || {
        // Ends when the receiver is dropped.
        (2..).try_for_each(|number| sender.send(number)).ok();
        drop(sender);
        running.arrive();
    });
    let mut prime = 0;
    for _ in 0..primes {
        prime = numbers.recv().expect("there is no last prime");
        let (sender, rest) = bounded(0);
        let before = std::mem::replace(&mut numbers, rest);
        gosched::go(move || {
            sift(prime, &before, &sender);
            drop((before, sender));
            running.arrive();
        });
    }
    let each_ns = rounds::ns_each(start, 1);
    drop(numbers);
    running.wait();
    (prime, each_ns)
}

/// A link of the chain: passes on numbers that are no multiple of its prime.
fn sift(prime: u64, numbers: &Receiver<u64>, rest: &Sender<u64>) {
    for number in numbers {
        if number % prime != 0 && rest.send(number).is_err() {
            return;
        }
    }
}

/// The right answer, to compare with.
fn nth_prime(n: usize) -> u64 {
    let mut primes: Vec<u64> = Vec::with_capacity(n);
    for number in 2.. {
        if primes.len() == n {
            break;
        }
        let small = primes.iter().take_while(|prime| *prime * *prime <= number);
        if small.into_iter().all(|prime| number % prime != 0) {
            primes.push(number);
        }
    }
    primes[n - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sieve_finds_primes() {
        assert_eq!((nth_prime(1), nth_prime(2), nth_prime(25)), (2, 3, 97));
        let runtime = port::runtime(Mode::Own, 2).expect("a runtime");
        assert_eq!(runtime.run(|| sieve(25).0), 97);
    }

    #[test]
    fn a_tree_has_all_its_leaves() {
        let params = |n| Params {
            n,
            rounds: 1,
            procs: 2,
        };
        for n in [1, 10, 1_000] {
            let mut round = start_skynet(&params(n), Mode::Own).expect("a full tree");
            round().expect("a round");
        }
        assert!(start_skynet(&params(20), Mode::Own).is_err());
    }
}
