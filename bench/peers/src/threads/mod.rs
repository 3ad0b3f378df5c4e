//! The workloads for runtimes that look like threads: each is written once, for any [`Tasks`], with
//! blocking calls.
//!
//! The runtime is started once in a process. A round runs in a task; the main thread waits.

mod clients;
mod disturbed;
mod messages;
mod servers;
mod short;
mod waits;

pub use servers::Listener;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Offer, Params, rounds, submits, unsupported};
use crate::hogs::Kind;

/// What the workloads need of a runtime, in its own idiom.
pub trait Tasks: Sized + Send + Sync + 'static {
    type Handle<T: Send + 'static>: Send;
    /// The handle that wakes a task.
    type Thread: Send + Sync + Clone + 'static;
    /// The sender of a channel for several senders and one receiver.
    type Sender: Sender;
    type Receiver: Receiver;
    /// The sender of a channel between two tasks whose capacity is really limited.
    type TightSender: Sender;
    type TightReceiver: Receiver;
    /// The sender of a channel for several senders and receivers.
    type ManySender: Sender;
    type ManyReceiver: Receiver + Clone;
    /// The sender of the channel that std calls `mpsc`, or of its own in that place.
    type MpscSender: Sender;
    type MpscReceiver: Receiver;
    /// Its lock, around a number.
    type Counter: Counter;
    /// Its listening socket.
    type Listener: servers::Listener;

    /// How many tasks can exist at once, if there is a relevant limit.
    const TASKS_MAX: Option<usize>;
    /// Whether blocking calls can be marked; if not, whether they need to be.
    const MARKS: Marks;
    /// Whether code that blocks its thread, such as a crate's, may run in its tasks.
    const RUNS_ANY_CODE: bool;
    /// Whether it has a select that takes one message from one channel.
    const HAS_SELECT: bool;

    /// Starts `procs` worker threads; once in a process. With `is_one` all tasks must share one
    /// CPU.
    fn start(procs: usize, is_one: bool);
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Self::Handle<T>;
    fn join<T: Send + 'static>(handle: Self::Handle<T>) -> T;
    fn is_finished<T: Send + 'static>(handle: &Self::Handle<T>) -> bool;
    /// The handle that wakes the task.
    fn thread<T: Send + 'static>(handle: &Self::Handle<T>) -> Self::Thread;
    /// The handle that wakes the calling task.
    fn current() -> Self::Thread;
    fn park();
    fn unpark(thread: &Self::Thread);
    fn yield_now();
    fn sleep(span: Duration);
    /// A channel with this capacity, or the smallest it has above.
    fn bounded(room: usize) -> (Self::Sender, Self::Receiver);
    fn unbounded() -> (Self::Sender, Self::Receiver);
    /// A channel with the smallest capacity it can have.
    fn tight() -> (Self::TightSender, Self::TightReceiver);
    /// A channel for several senders and receivers, with at least this capacity.
    fn many(room: usize) -> (Self::ManySender, Self::ManyReceiver);
    /// The channel that std calls `mpsc`, unbounded, or its own in that place.
    fn mpsc() -> (Self::MpscSender, Self::MpscReceiver);
    /// Receives from one channel that has a message, at random. Only if it has a select.
    fn select(receivers: &[Self::Receiver]) -> u64;
    /// Runs it in a task and waits for it on the main thread.
    fn run<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> T {
        Self::join(Self::spawn(task))
    }
}

/// Marks of blocking calls.
#[derive(PartialEq, Eq)]
pub enum Marks {
    /// There are none, though they are needed.
    Missing,
    /// A blocked task disturbs no other.
    Needless,
}

pub trait Sender: Clone + Send + 'static {
    /// Waits for room if there is a limit. Returns false if the channel is disconnected.
    fn send(&self, message: u64) -> bool;
}

pub trait Receiver: Send + 'static {
    /// Waits for a message. Returns None if the channel is disconnected.
    fn recv(&self) -> Option<u64>;
}

/// A counter under a lock.
pub trait Counter: Send + Sync + 'static {
    fn zero() -> Self;
    /// Locks, adds 1, unlocks.
    fn count(&self);
    fn value(&self) -> usize;
}

/// A count of tasks for which one task waits.
pub struct Countdown<T: Tasks> {
    left: AtomicUsize,
    waiter: T::Thread,
}

impl<T: Tasks> Countdown<T> {
    /// A countdown for the calling task that lives as long as the process.
    pub fn leaked() -> &'static Countdown<T> {
        Box::leak(Box::new(Countdown {
            left: AtomicUsize::new(0),
            waiter: T::current(),
        }))
    }

    /// Sets the number of tasks to wait for. Call it before they start.
    pub fn expect(&self, count: usize) {
        // ORDER: Relaxed; starting a task publishes the store.
        self.left.store(count, Ordering::Relaxed);
    }

    /// A task arrives.
    pub fn arrive(&self) {
        // ORDER: AcqRel; pairs with Acquire in `wait`, through the arrivals between.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            T::unpark(&self.waiter);
        }
    }

    /// Parks until all have arrived.
    pub fn wait(&self) {
        // ORDER: Acquire; pairs with AcqRel in `arrive`.
        while self.left.load(Ordering::Acquire) != 0 {
            T::park();
        }
    }
}

/// The runtime's answer to a workload.
pub fn offer<T: Tasks>(workload: &str, params: Params) -> Result<Offer, String> {
    let Params { n, procs } = params;
    if let Some(reason) = cannot::<T>(workload, n) {
        return Ok(unsupported(&reason));
    }
    let is_one = matches!(workload, "yield" | "pingpong_1w");
    T::start(if is_one { 1 } else { procs }, is_one);
    if let Some(kind) = Kind::of(workload) {
        return Ok(rounds(move || disturbed::round::<T>(kind, n)));
    }
    Ok(match workload {
        "yield" => rounds(move || short::yields::<T>(n)),
        "spawn" => rounds(move || short::spawns::<T>(n)),
        "spawn_burst" => rounds(move || short::spawn_burst::<T>(n)),
        "go_burst" => rounds(move || short::go_burst::<T>(n)),
        "submit_16" => rounds(move || submits(n, |all| drop(T::spawn(|| all.arrive())))),
        "fib" => rounds(move || short::fibs::<T>(n)),
        "pingpong_1w" | "pingpong_2w" => rounds(move || messages::pingpong::<T>(n)),
        "chan_spsc" => rounds(move || messages::spsc::<T>(n)),
        "chan_mpmc" => rounds(move || messages::mpmc::<T>(n)),
        "chan_unbounded" => rounds(move || messages::unbounded::<T>(n)),
        "select_2" => rounds(move || messages::select::<T>(2, n)),
        "select_8" => rounds(move || messages::select::<T>(8, n)),
        "skynet" => rounds(move || messages::skynet::<T>(n)),
        "sieve" => rounds(move || messages::sieve::<T>(n)),
        "mutex" | "std_mutex" => rounds(move || waits::mutex::<T>(n)),
        "timers" | "timers_10k" => rounds(move || waits::timers::<T>(n)),
        "idle_1m" | "idle_100k" => rounds(move || waits::idle::<T>(n)),
        "idle_cpu" => waits::quiet::<T>(n),
        "foreign_wake" => rounds(move || waits::foreign_wake::<T>(n)),
        "std_mpsc" => rounds(move || messages::mpsc_trips::<T>(n)),
        "std_echo" => servers::echo_with_clients::<T>(n)?,
        "ureq_4000" => rounds(move || clients::requests::<T>(n)),
        "tcp_echo" | "tcp_idle" | "tcp_accept" | "accept_burst" => servers::echo::<T>()?,
        "tcp_hogs" => {
            let echo = servers::echo::<T>()?;
            disturbed::hogs_for_good::<T>();
            echo
        }
        "http_hello" => servers::http::<T>()?,
        _ => return Err(format!("no workload is called `{workload}`")),
    })
}

/// Why the runtime cannot do a workload.
fn cannot<T: Tasks>(workload: &str, n: usize) -> Option<String> {
    let tasks = match workload {
        "timers" | "timers_10k" | "idle_1m" | "idle_100k" => n,
        "skynet" => n + n / 9,
        "idle_cpu" => crate::common::QUIET_TASKS,
        "ureq_4000" => n,
        _ => 0,
    };
    match workload {
        "stw" | "resize_chain" => Some("the number of its threads is fixed".into()),
        "timer_reset" => Some("it has no timers that can be stopped".into()),
        "select_2" | "select_8" if !T::HAS_SELECT => {
            Some("its select takes a message from every channel that has one".into())
        }
        "ureq_4000" if !T::RUNS_ANY_CODE => Some("ureq would block its workers".into()),
        "block_marked" if T::MARKS == Marks::Missing => {
            Some("it has no mark for calls that block".into())
        }
        _ => T::TASKS_MAX
            .filter(|most| tasks > *most)
            .map(|most| format!("{tasks} at once; a process can have about {most}")),
    }
}

/// Implements the workloads' traits for a mutex and a listener with std's methods.
macro_rules! like_std {
    ($mutex:ident, $listener:ident, $stream:ident) => {
        impl $crate::threads::Counter for $mutex<usize> {
            fn zero() -> Self {
                $mutex::new(0)
            }

            fn count(&self) {
                *self.lock().expect("an addition does not panic") += 1;
            }

            fn value(&self) -> usize {
                *self.lock().expect("an addition does not panic")
            }
        }

        impl $crate::threads::Listener for $listener {
            type Stream = $stream;

            fn bind() -> std::io::Result<(Self, u16)> {
                let listener = $listener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
                $crate::common::set_backlog(&listener)?;
                let port = listener.local_addr()?.port();
                Ok((listener, port))
            }

            fn next(&self) -> std::io::Result<$stream> {
                Ok(self.accept()?.0)
            }

            fn connect(port: u16) -> std::io::Result<$stream> {
                $stream::connect((std::net::Ipv4Addr::LOCALHOST, port))
            }

            fn set_nodelay(stream: &$stream) -> std::io::Result<()> {
                stream.set_nodelay(true)
            }
        }
    };
}
pub(crate) use like_std;
