//! Measures the cost of a message: with and without a buffer.
//!
//! `pingpong_1w` and `pingpong_2w` have no buffer: each message is a park and a wake-up. The others
//! have one, so most messages should cost neither. They also run on plain threads with
//! crossbeam-channel, whose API the channels have.

use std::io;
use std::time::Instant;

use gosched::Runtime;

use crate::port::{self, Mode};
use crate::rounds::{self, Round, Sample};
use crate::workload::{Goal, Params, Port, ROUNDS_DEFAULT, Workload};

pub const PINGPONG_1W: Workload = Workload {
    name: "pingpong_1w",
    about: "2 goroutines on 1 P, n round trips over 2 unbuffered channels; per round trip",
    n: 1_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_pingpong_1w),
    compared: &["time"],
    goals: &[
        Goal::new("gosched", "time", 125.0, "ns"),
        Goal::new("gosched-shared", "time", 95.0, "ns"),
    ],
    child: None,
};

pub const PINGPONG_2W: Workload = Workload {
    name: "pingpong_2w",
    about: "as pingpong_1w, on all Ps",
    n: 1_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &Port::gosched_both(start_pingpong),
    compared: &["time"],
    goals: &[Goal::new("gosched", "time", 150.0, "ns")],
    child: None,
};

pub const CHAN_SPSC: Workload = Workload {
    name: "chan_spsc",
    about: "n messages from 1 sender to 1 receiver, capacity 128; per message",
    n: 5_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &stream_ports::<Spsc>(),
    compared: &["time"],
    goals: &[Goal::new("gosched", "time", 25.0, "ns")],
    child: None,
};

pub const CHAN_MPMC: Workload = Workload {
    name: "chan_mpmc",
    about: "n messages from 4 senders to 4 receivers, capacity 128; per message",
    n: 4_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &stream_ports::<Mpmc>(),
    compared: &["time"],
    goals: &[Goal::new("gosched", "time", 45.0, "ns")],
    child: None,
};

pub const CHAN_UNBOUNDED: Workload = Workload {
    name: "chan_unbounded",
    about: "n messages from 1 sender to 1 receiver, unbounded; per message",
    n: 5_000_000,
    rounds: ROUNDS_DEFAULT,
    has_warm_up: true,
    ports: &stream_ports::<Unbounded>(),
    compared: &["time"],
    goals: &[Goal::new("gosched", "time", 15.0, "ns")],
    child: None,
};

/// The capacity of `chan_spsc` and `chan_mpmc`.
const CAPACITY: usize = 128;

/// On one P, whatever the user asks.
fn start_pingpong_1w(params: &Params, mode: Mode) -> io::Result<Round> {
    let params = Params {
        procs: 1,
        ..*params
    };
    start_pingpong(&params, mode)
}

fn start_pingpong(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    Ok(Box::new(move || {
        let each_ns = runtime.run(|| pingpong_ns(n));
        Ok(vec![Sample::best("time", each_ns, "ns")])
    }))
}

/// The calling goroutine sends and waits for the answer of another one.
fn pingpong_ns(trips: usize) -> f64 {
    let (ping, pings) = gosched::chan::bounded(0);
    let (pong, pongs) = gosched::chan::bounded(0);
    let echo = gosched::thread::spawn(move || {
        for ball in pings {
            pong.send(ball).expect("the answer has a receiver");
        }
    });
    let start = Instant::now();
    for trip in 0..trips {
        ping.send(trip).expect("the other one is there");
        assert_eq!(pongs.recv(), Ok(trip));
    }
    let each_ns = rounds::ns_each(start, trips);
    drop(ping);
    echo.join().expect("an echo does not panic");
    each_ns
}

/// Channels of numbers and the tasks that use them, so that every port runs the same code.
pub trait Channels: 'static {
    type Sender: Clone + Send + 'static;
    type Receiver: Clone + Send + 'static;
    type Handle;

    /// A channel with this capacity; None: unbounded.
    fn channel(capacity: Option<usize>) -> (Self::Sender, Self::Receiver);
    /// Sends to a channel that has receivers.
    fn send(sender: &Self::Sender, message: u64);
    /// Receives; None if the channel is disconnected.
    fn recv(receiver: &Self::Receiver) -> Option<u64>;
    /// Receives from one of two channels, both connected.
    fn select_2(receivers: &[Self::Receiver; 2]) -> u64;
    /// As `select_2`, with eight.
    fn select_8(receivers: &[Self::Receiver; 8]) -> u64;
    fn spawn(task: impl FnOnce() -> u64 + Send + 'static) -> Self::Handle;
    fn join(handle: Self::Handle) -> u64;
}

/// Goroutines with gosched's channels.
pub struct Goroutines;
/// Plain threads with crossbeam-channel.
pub struct Threads;

/// Both have the same names for everything, so one text fits both.
macro_rules! channels {
    ($who:ty, $chan:ident, $thread:path) => {
        impl Channels for $who {
            type Sender = $chan::Sender<u64>;
            type Receiver = $chan::Receiver<u64>;
            type Handle = $thread;

            fn channel(capacity: Option<usize>) -> (Self::Sender, Self::Receiver) {
                capacity.map_or_else($chan::unbounded, $chan::bounded)
            }

            #[inline]
            fn send(sender: &Self::Sender, message: u64) {
                sender.send(message).expect("there are receivers");
            }

            #[inline]
            fn recv(receiver: &Self::Receiver) -> Option<u64> {
                receiver.recv().ok()
            }

            #[inline]
            fn select_2([a, b]: &[Self::Receiver; 2]) -> u64 {
                let message = $chan::select! {
                    recv(a) -> message => message,
                    recv(b) -> message => message,
                };
                message.expect("every channel has a message")
            }

            #[inline]
            fn select_8([a, b, c, d, e, f, g, h]: &[Self::Receiver; 8]) -> u64 {
                let message = $chan::select! {
                    recv(a) -> message => message,
                    recv(b) -> message => message,
                    recv(c) -> message => message,
                    recv(d) -> message => message,
                    recv(e) -> message => message,
                    recv(f) -> message => message,
                    recv(g) -> message => message,
                    recv(h) -> message => message,
                };
                message.expect("every channel has a message")
            }

            fn spawn(task: impl FnOnce() -> u64 + Send + 'static) -> Self::Handle {
                <$who>::start(task)
            }

            fn join(handle: Self::Handle) -> u64 {
                handle.join().expect("a task does not panic")
            }
        }
    };
}

use gosched::chan;
channels!(Goroutines, chan, gosched::thread::JoinHandle<u64>);
channels!(Threads, crossbeam_channel, std::thread::JoinHandle<u64>);

impl Goroutines {
    fn start(task: impl FnOnce() -> u64 + Send + 'static) -> gosched::thread::JoinHandle<u64> {
        gosched::thread::spawn(task)
    }
}

impl Threads {
    fn start(task: impl FnOnce() -> u64 + Send + 'static) -> std::thread::JoinHandle<u64> {
        std::thread::spawn(task)
    }
}

/// A stream of messages through one channel.
trait Stream: 'static {
    /// Tasks on each side.
    const TASKS: usize;
    /// The capacity; None: unbounded.
    const CAPACITY: Option<usize>;
}

struct Spsc;
struct Mpmc;
struct Unbounded;

impl Stream for Spsc {
    const TASKS: usize = 1;
    const CAPACITY: Option<usize> = Some(CAPACITY);
}

impl Stream for Mpmc {
    const TASKS: usize = 4;
    const CAPACITY: Option<usize> = Some(CAPACITY);
}

impl Stream for Unbounded {
    const TASKS: usize = 1;
    const CAPACITY: Option<usize> = None;
}

const fn stream_ports<S: Stream>() -> [Port; 3] {
    [
        Port::gosched(Mode::Own, start_stream::<S>),
        Port::gosched(Mode::Shared, start_stream::<S>),
        Port::crossbeam(start_stream_on_threads::<S>),
    ]
}

fn start_stream<S: Stream>(params: &Params, mode: Mode) -> io::Result<Round> {
    let (runtime, n) = (port::runtime(mode, params.procs)?, params.n);
    let round = move |runtime: &Runtime| runtime.run(|| stream_ns::<Goroutines, S>(n));
    Ok(Box::new(move || {
        Ok(vec![Sample::best("time", round(&runtime), "ns")])
    }))
}

fn start_stream_on_threads<S: Stream>(params: &Params) -> io::Result<Round> {
    let n = params.n;
    Ok(Box::new(move || {
        let each_ns = stream_ns::<Threads, S>(n);
        Ok(vec![Sample::best("time", each_ns, "ns")])
    }))
}

/// The time per message, from before the first task starts until the last one has ended. The
/// received values are checked.
fn stream_ns<C: Channels, S: Stream>(messages: usize) -> f64 {
    let (sender, receiver) = C::channel(S::CAPACITY);
    let start = Instant::now();
    let receivers: Vec<_> = (0..S::TASKS)
        .map(|_| {
            let receiver = receiver.clone();
            C::spawn(move || std::iter::from_fn(|| C::recv(&receiver)).sum())
        })
        .collect();
    let senders: Vec<_> = (0..S::TASKS)
        .map(|task| {
            let sender = sender.clone();
            C::spawn(move || {
                let own = (task..messages).step_by(S::TASKS);
                own.for_each(|message| C::send(&sender, message as u64));
                0
            })
        })
        .collect();
    drop((sender, receiver));
    senders.into_iter().map(C::join).for_each(drop);
    let sum: u64 = receivers.into_iter().map(C::join).sum();
    let each_ns = rounds::ns_each(start, messages);
    let messages = messages as u64;
    assert_eq!(sum, messages * (messages - 1) / 2, "a message was lost");
    each_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_delivers() {
        let runtime = port::runtime(Mode::Own, 2).expect("a runtime");
        runtime.run(|| {
            stream_ns::<Goroutines, Spsc>(1_001);
            stream_ns::<Goroutines, Mpmc>(1_001);
            stream_ns::<Goroutines, Unbounded>(1_001);
            pingpong_ns(10);
        });
        stream_ns::<Threads, Mpmc>(1_001);
    }
}
