//! Messages between tasks: `pingpong…`, `std_mpsc`, `chan…`, `select…`, `skynet`, `sieve`.
//!
//! Channels of futures have a capacity of at least one, which stands for an unbuffered channel.

use std::future::Future;
use std::hint::black_box;
use std::time::{Duration, Instant};

use super::{Countdown, Receiver, Runtime, Sender};
use crate::common::{
    CAPACITY, CHILDREN, CROWD, Figures, SELECT_BATCH, metric, ns_each, nth_prime, own_cpu,
    skynet_sum, stream_sum, trip_figures,
};

/// A number goes to another task and comes back.
pub fn pingpong<R: Runtime>(trips: usize) -> Figures {
    let (each_ns, _) = round_trips::<R, _, _>(trips, || R::bounded(R::ROOM_MIN));
    Ok(vec![metric("time", each_ns, "ns")])
}

/// The same over unbounded channels, as std's `mpsc` is one.
pub fn mpsc_trips<R: Runtime>(trips: usize) -> Figures {
    let (each_ns, cpu) = round_trips::<R, _, _>(trips, R::unbounded);
    trip_figures(trips, each_ns, cpu)
}

/// Numbers go to another task and come back; each is checked. Nanoseconds for each, and the CPU
/// time of all.
fn round_trips<R: Runtime, S: Sender, T: Receiver>(
    trips: usize,
    channel: fn() -> (S, T),
) -> (f64, Duration) {
    R::run(async move {
        let (ping, mut pings) = channel();
        let (pong, mut pongs) = channel();
        let echo = R::spawn(async move {
            while let Some(ball) = pings.recv().await {
                assert!(pong.send(ball).await, "the answer has a receiver");
            }
        });
        let (start, cpu) = (Instant::now(), own_cpu());
        for trip in 0..trips as u64 {
            assert!(ping.send(trip).await, "the other one is there");
            assert_eq!(pongs.recv().await, Some(trip));
        }
        let (each_ns, cpu) = (ns_each(start, trips), own_cpu() - cpu);
        drop(ping);
        R::join(echo).await;
        (each_ns, cpu)
    })
}

/// One sender, one receiver, bounded.
pub fn spsc<R: Runtime>(messages: usize) -> Figures {
    one_to_one::<R, _, _>(messages, || R::bounded(CAPACITY))
}

/// One sender, one receiver, unbounded.
pub fn unbounded<R: Runtime>(messages: usize) -> Figures {
    one_to_one::<R, _, _>(messages, R::unbounded)
}

fn one_to_one<R: Runtime, S: Sender, T: Receiver>(
    messages: usize,
    channel: fn() -> (S, T),
) -> Figures {
    let (sum, each_ns) = R::run(async move {
        let (sender, receiver) = channel();
        let start = Instant::now();
        let receiver = R::spawn(receive_all(receiver));
        let sender = R::spawn(send_every(sender, 0, 1, messages));
        R::join(sender).await;
        (R::join(receiver).await, ns_each(start, messages))
    });
    checked(sum, messages, each_ns)
}

/// Four senders, four receivers, bounded. It uses async-channel, which any runtime of futures can
/// use and which allows several receivers.
pub fn mpmc<R: Runtime>(messages: usize) -> Figures {
    let (sum, each_ns) = R::run(async move {
        let (sender, receiver) = async_channel::bounded::<u64>(CAPACITY);
        let start = Instant::now();
        let receivers: Vec<_> = (0..CROWD)
            .map(|_| R::spawn(receive_all(receiver.clone())))
            .collect();
        let senders: Vec<_> = (0..CROWD)
            .map(|task| R::spawn(send_every(sender.clone(), task, CROWD, messages)))
            .collect();
        drop((sender, receiver));
        for sender in senders {
            R::join(sender).await;
        }
        let mut sum = 0;
        for receiver in receivers {
            sum += R::join(receiver).await;
        }
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

async fn receive_all(mut receiver: impl Receiver) -> u64 {
    let mut sum = 0;
    while let Some(message) = receiver.recv().await {
        sum += message;
    }
    sum
}

async fn send_every(sender: impl Sender, first: usize, step: usize, messages: usize) {
    for message in (first..messages).step_by(step) {
        assert!(sender.send(message as u64).await, "there are receivers");
    }
}

/// Selects among channels that all have messages. Filling them is not timed.
pub fn select<R: Runtime, const K: usize>(selects: usize) -> Figures {
    let each_ns = R::run(async move {
        let (senders, mut receivers): (Vec<_>, Vec<_>) =
            (0..K).map(|_| R::bounded(SELECT_BATCH)).unzip();
        let mut left = [0; K];
        let mut spent = Duration::ZERO;
        for done in (0..selects).step_by(SELECT_BATCH) {
            for (channel, sender) in senders.iter().enumerate() {
                for _ in left[channel]..SELECT_BATCH {
                    assert!(sender.send(channel as u64).await);
                }
                left[channel] = SELECT_BATCH;
            }
            let size = SELECT_BATCH.min(selects - done);
            let start = Instant::now();
            for _ in 0..size {
                left[black_box(select_any::<R>(&mut receivers).await) as usize] -= 1;
            }
            spent += start.elapsed();
        }
        spent.as_nanos() as f64 / selects as f64
    });
    Ok(vec![metric("time", each_ns, "ns")])
}

async fn select_any<R: Runtime>(receivers: &mut [R::Receiver]) -> u64 {
    if let Ok(two) = <&mut [_; 2]>::try_from(&mut *receivers) {
        return R::select_2(two).await;
    }
    let eight = receivers.try_into();
    R::select_8(eight.unwrap_or_else(|_| panic!("there are workloads for 2 and 8"))).await
}

/// A tree of tasks adds up its leaves.
pub fn skynet<R: Runtime>(n: usize) -> Figures {
    let leaves = n as u64;
    let expected = skynet_sum(leaves)?;
    let (sum, each_ns) = R::run(async move {
        let start = Instant::now();
        let (root, mut sums) = R::bounded(R::ROOM_MIN);
        R::detach(node::<R>(root, 0, leaves));
        (sums.recv().await, ns_each(start, 1))
    });
    if sum != Some(expected) {
        return Err(format!("the leaves add up to {sum:?}"));
    }
    Ok(vec![metric("time", each_ns / 1e6, "ms")])
}

/// A node: sends the sum of the leaves from `first` on to its parent.
#[expect(
    clippy::manual_async_fn,
    reason = "it spawns itself, so that it is Send must be promised"
)]
fn node<R: Runtime>(parent: R::Sender, first: u64, leaves: u64) -> impl Future<Output = ()> + Send {
    async move {
        if leaves == 1 {
            assert!(parent.send(first).await, "the parent waits");
            return;
        }
        let (child, mut sums) = R::bounded(R::ROOM_MIN);
        let share = leaves / CHILDREN;
        for nth in 0..CHILDREN {
            R::detach(node::<R>(child.clone(), first + nth * share, share));
        }
        drop(child);
        let mut sum = 0;
        while let Some(part) = sums.recv().await {
            sum += part;
        }
        assert!(parent.send(sum).await, "the parent waits");
    }
}

/// The primes, by a chain of tasks.
pub fn sieve<R: Runtime>(primes: usize) -> Figures {
    let (last, each_ns) = R::run(async move {
        let running = Countdown::<R::Signal>::leaked();
        running.expect(primes + 1);
        let start = Instant::now();
        let (sender, mut numbers) = R::bounded(R::ROOM_MIN);
        R::detach(async move {
            let mut number = 2;
            while sender.send(number).await {
                number += 1;
            }
            drop(sender);
            running.arrive();
        });
        let mut prime = 0;
        for _ in 0..primes {
            prime = numbers.recv().await.expect("there is no last prime");
            let (sender, rest) = R::bounded(R::ROOM_MIN);
            let before = std::mem::replace(&mut numbers, rest);
            R::detach(async move {
                sift::<R>(prime, before, sender).await;
                running.arrive();
            });
        }
        let each_ns = ns_each(start, 1);
        drop(numbers);
        running.wait().await;
        (prime, each_ns)
    });
    if last != nth_prime(primes) {
        return Err(format!("prime number {primes} is said to be {last}"));
    }
    Ok(vec![metric("time", each_ns / 1e6, "ms")])
}

/// A link of the chain: passes on numbers that are no multiple of its prime.
async fn sift<R: Runtime>(prime: u64, mut numbers: R::Receiver, rest: R::Sender) {
    while let Some(number) = numbers.recv().await {
        if number % prime != 0 && !rest.send(number).await {
            return;
        }
    }
}

impl Sender for async_channel::Sender<u64> {
    async fn send(&self, message: u64) -> bool {
        async_channel::Sender::send(self, message).await.is_ok()
    }
}

impl Receiver for async_channel::Receiver<u64> {
    async fn recv(&mut self) -> Option<u64> {
        async_channel::Receiver::recv(self).await.ok()
    }
}
