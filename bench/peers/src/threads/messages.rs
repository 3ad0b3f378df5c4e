//! Messages between tasks: `pingpong…`, `std_mpsc`, `chan…`, `select…`, `skynet`, `sieve`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::{Countdown, Receiver, Sender, Tasks};
use crate::common::{
    CAPACITY, CHILDREN, CROWD, Figures, SELECT_BATCH, metric, ns_each, nth_prime, own_cpu,
    skynet_sum, stream_sum, trip_figures,
};

/// A number goes to another task and comes back.
pub fn pingpong<T: Tasks>(trips: usize) -> Figures {
    let (each_ns, _) = round_trips::<T, _, _>(trips, || T::bounded(0));
    Ok(vec![metric("time", each_ns, "ns")])
}

/// The same over std's `mpsc`, or what the runtime has in its place.
pub fn mpsc_trips<T: Tasks>(trips: usize) -> Figures {
    let (each_ns, cpu) = round_trips::<T, _, _>(trips, T::mpsc);
    trip_figures(trips, each_ns, cpu)
}

/// Numbers go to another task and come back; each is checked. Nanoseconds for each, and the CPU
/// time of all.
fn round_trips<T: Tasks, S: Sender, R: Receiver>(
    trips: usize,
    channel: fn() -> (S, R),
) -> (f64, Duration) {
    T::run(move || {
        let (ping, pings) = channel();
        let (pong, pongs) = channel();
        let echo = T::spawn(move || {
            while let Some(ball) = pings.recv() {
                assert!(pong.send(ball), "the answer has a receiver");
            }
        });
        let (start, cpu) = (Instant::now(), own_cpu());
        for trip in 0..trips as u64 {
            assert!(ping.send(trip), "the other one is there");
            assert_eq!(pongs.recv(), Some(trip));
        }
        let (each_ns, cpu) = (ns_each(start, trips), own_cpu() - cpu);
        drop(ping);
        T::join(echo);
        (each_ns, cpu)
    })
}

/// One sender, one receiver, bounded.
pub fn spsc<T: Tasks>(messages: usize) -> Figures {
    one_to_one::<T>(messages, || T::bounded(CAPACITY))
}

/// One sender, one receiver, unbounded.
pub fn unbounded<T: Tasks>(messages: usize) -> Figures {
    one_to_one::<T>(messages, T::unbounded)
}

fn one_to_one<T: Tasks>(messages: usize, channel: fn() -> (T::Sender, T::Receiver)) -> Figures {
    let (sum, each_ns) = T::run(move || {
        let (sender, receiver) = channel();
        let start = Instant::now();
        let receiver = T::spawn(move || receive_all(&receiver));
        let sender = T::spawn(move || send_every(&sender, 0, 1, messages));
        T::join(sender);
        (T::join(receiver), ns_each(start, messages))
    });
    checked(sum, messages, each_ns)
}

/// Four senders, four receivers, bounded.
pub fn mpmc<T: Tasks>(messages: usize) -> Figures {
    let (sum, each_ns) = T::run(move || {
        let (sender, receiver) = T::many(CAPACITY);
        let start = Instant::now();
        let receivers = [(); CROWD].map(|()| {
            let receiver = receiver.clone();
            T::spawn(move || receive_all(&receiver))
        });
        let mut task = 0;
        let senders = [(); CROWD].map(|()| {
            let (sender, first) = (sender.clone(), task);
            task += 1;
            T::spawn(move || send_every(&sender, first, CROWD, messages))
        });
        drop((sender, receiver));
        senders.into_iter().for_each(T::join);
        let sum = receivers.into_iter().map(T::join).sum();
        (sum, ns_each(start, messages))
    });
    checked(sum, messages, each_ns)
}

fn checked(sum: u64, messages: usize, each_ns: f64) -> Figures {
    if sum != stream_sum(messages) {
        return Err(format!("the messages add up to {sum}"));
    }
    Ok(vec![metric("time", each_ns, "ns")])
}

fn receive_all(receiver: &impl Receiver) -> u64 {
    std::iter::from_fn(|| receiver.recv()).sum()
}

fn send_every(sender: &impl Sender, first: usize, step: usize, messages: usize) {
    for message in (first..messages).step_by(step) {
        assert!(sender.send(message as u64), "there are receivers");
    }
}

/// Selects among channels that all have messages. Filling them is not timed.
pub fn select<T: Tasks>(channels: usize, selects: usize) -> Figures {
    let each_ns = T::run(move || {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..channels).map(|_| T::bounded(SELECT_BATCH)).unzip();
        let mut left = vec![0; channels];
        let mut spent = Duration::ZERO;
        for done in (0..selects).step_by(SELECT_BATCH) {
            for (channel, sender) in senders.iter().enumerate() {
                for _ in left[channel]..SELECT_BATCH {
                    assert!(sender.send(channel as u64), "there is room");
                }
                left[channel] = SELECT_BATCH;
            }
            let size = SELECT_BATCH.min(selects - done);
            let start = Instant::now();
            for _ in 0..size {
                left[black_box(T::select(&receivers)) as usize] -= 1;
            }
            spent += start.elapsed();
        }
        spent.as_nanos() as f64 / selects as f64
    });
    Ok(vec![metric("time", each_ns, "ns")])
}

/// A tree of tasks adds up its leaves.
pub fn skynet<T: Tasks>(n: usize) -> Figures {
    let leaves = n as u64;
    let expected = skynet_sum(leaves)?;
    let (sum, each_ns) = T::run(move || {
        let start = Instant::now();
        let (root, sums) = T::bounded(0);
        drop(T::spawn(move || node::<T>(&root, 0, leaves)));
        (sums.recv(), ns_each(start, 1))
    });
    if sum != Some(expected) {
        return Err(format!("the leaves add up to {sum:?}"));
    }
    Ok(vec![metric("time", each_ns / 1e6, "ms")])
}

/// A node: sends the sum of the leaves from `first` on to its parent.
fn node<T: Tasks>(parent: &T::Sender, first: u64, leaves: u64) {
    if leaves == 1 {
        assert!(parent.send(first), "the parent waits");
        return;
    }
    let (child, sums) = T::bounded(0);
    let share = leaves / CHILDREN;
    for nth in 0..CHILDREN {
        let child = child.clone();
        drop(T::spawn(move || {
            node::<T>(&child, first + nth * share, share);
        }));
    }
    drop(child);
    assert!(parent.send(receive_all(&sums)), "the parent waits");
}

/// The primes, by a chain of tasks.
pub fn sieve<T: Tasks>(primes: usize) -> Figures {
    let (last, each_ns) = T::run(move || {
        let running = Countdown::<T>::leaked();
        running.expect(primes + 1);
        let start = Instant::now();
        let (sender, mut numbers) = T::tight();
        drop(T::spawn(move || {
            (2..).find(|number| !sender.send(*number));
            drop(sender);
            running.arrive();
        }));
        let mut prime = 0;
        for _ in 0..primes {
            prime = numbers.recv().expect("there is no last prime");
            let (sender, rest) = T::tight();
            let before = std::mem::replace(&mut numbers, rest);
            drop(T::spawn(move || {
                sift(prime, &before, &sender);
                drop((before, sender));
                running.arrive();
            }));
        }
        let each_ns = ns_each(start, 1);
        drop(numbers);
        running.wait();
        (prime, each_ns)
    });
    if last != nth_prime(primes) {
        return Err(format!("prime number {primes} is said to be {last}"));
    }
    Ok(vec![metric("time", each_ns / 1e6, "ms")])
}

/// A link of the chain: passes on numbers that are no multiple of its prime.
fn sift(prime: u64, numbers: &impl Receiver, rest: &impl Sender) {
    while let Some(number) = numbers.recv() {
        if number % prime != 0 && !rest.send(number) {
            return;
        }
    }
}
