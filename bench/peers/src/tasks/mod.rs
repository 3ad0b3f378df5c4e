//! The workloads for runtimes of futures: each is written once, for any [`Runtime`], with `async`
//! and `await`.
//!
//! The runtime is started once in a process. A round is a spawned task, so that it runs where its
//! tasks run. The main thread waits for it.

mod disturbed;
mod messages;
mod short;
mod waits;

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    Figures, Offer, Params, echo_figures, own_cpu, rounds, submits, talkers, unsupported,
};
use crate::hogs::Kind;

/// What the workloads need of a runtime, in its own idiom.
pub trait Runtime: Sized + Send + Sync + 'static {
    type Handle<T: Send + 'static>: Send;
    /// The sender of its channel for several senders and one receiver.
    type Sender: Sender;
    type Receiver: Receiver;
    /// The sender of its unbounded channel.
    type FreeSender: Sender;
    type FreeReceiver: Receiver;
    /// Its lock, around a number.
    type Counter: Counter;
    /// A signal that one task waits for and another gives.
    type Signal: Signal;
    /// Its connected socket.
    type Stream: Send + 'static;

    /// The smallest capacity of its channels.
    const ROOM_MIN: usize;

    /// Starts `procs` worker threads; once in a process.
    fn start(procs: usize);
    /// Starts a task, from anywhere.
    fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> Self::Handle<T>;
    /// Starts a task that is not joined.
    fn detach(task: impl Future<Output = ()> + Send + 'static);
    /// Starts a task that is not joined, from a thread that is none of the runtime's.
    fn submit(task: impl Future<Output = ()> + Send + 'static);
    /// Joins a task, in a task.
    fn join<T: Send + 'static>(handle: Self::Handle<T>) -> impl Future<Output = T> + Send;
    fn is_finished<T: Send + 'static>(handle: &Self::Handle<T>) -> bool;
    /// Joins a task, on the main thread.
    fn wait<T: Send + 'static>(handle: Self::Handle<T>) -> T;
    fn yield_now() -> impl Future<Output = ()> + Send;
    fn sleep(span: Duration) -> impl Future<Output = ()> + Send;
    /// Runs a call that blocks the thread, in the runtime's own way.
    fn blocking(call: fn()) -> impl Future<Output = ()> + Send;
    /// A channel with this capacity.
    fn bounded(room: usize) -> (Self::Sender, Self::Receiver);
    fn unbounded() -> (Self::FreeSender, Self::FreeReceiver);
    /// Receives from one of two channels that have messages, at random.
    fn select_2(receivers: &mut [Self::Receiver; 2]) -> impl Future<Output = u64> + Send;
    /// As `select_2`, with eight.
    fn select_8(receivers: &mut [Self::Receiver; 8]) -> impl Future<Output = u64> + Send;
    /// Sets a timer to a moment that never comes and stops it, `times` times; returns nanoseconds
    /// for each.
    fn timer_reset_ns(times: usize) -> impl Future<Output = f64> + Send;
    /// Starts an echo server, and returns its port.
    fn serve_echo() -> impl Future<Output = std::io::Result<u16>> + Send;
    /// Connects to a server on loopback.
    fn connect(port: u16) -> impl Future<Output = std::io::Result<Self::Stream>> + Send;
    /// Sends a message and reads its echo, `times` times; each is checked.
    fn talk(stream: Self::Stream, times: usize)
    -> impl Future<Output = std::io::Result<()>> + Send;
    /// Starts an HTTP server, and returns its port.
    fn serve_http() -> impl Future<Output = std::io::Result<u16>> + Send;

    /// Runs all of it in a task.
    fn run<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
        Self::wait(Self::spawn(task))
    }
}

pub trait Sender: Clone + Send + Sync + 'static {
    /// Waits for room. Returns false if the channel is disconnected.
    fn send(&self, message: u64) -> impl Future<Output = bool> + Send;
}

pub trait Receiver: Send + Sync + 'static {
    /// Waits for a message. Returns None if the channel is disconnected.
    fn recv(&mut self) -> impl Future<Output = Option<u64>> + Send;
}

/// A counter under a lock.
pub trait Counter: Send + Sync + 'static {
    fn zero() -> Self;
    /// Locks, adds 1, unlocks.
    fn count(&self) -> impl Future<Output = ()> + Send;
    fn value(&self) -> impl Future<Output = usize> + Send;
}

/// One task waits, others wake it. A signal that comes before the wait is kept.
pub trait Signal: Send + Sync + 'static {
    fn new() -> Self;
    fn wait(&self) -> impl Future<Output = ()> + Send;
    /// Gives it, from anywhere.
    fn give(&self);
}

/// A count of tasks for which one task waits.
pub struct Countdown<S> {
    left: AtomicUsize,
    signal: S,
}

impl<S: Signal> Countdown<S> {
    /// A countdown that lives as long as the process: a reference count would be measured too.
    pub fn leaked() -> &'static Countdown<S> {
        Box::leak(Box::new(Countdown {
            left: AtomicUsize::new(0),
            signal: S::new(),
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
            self.signal.give();
        }
    }

    /// Waits until all have arrived.
    pub async fn wait(&self) {
        // ORDER: Acquire; pairs with AcqRel in `arrive`.
        while self.left.load(Ordering::Acquire) != 0 {
            self.signal.wait().await;
        }
    }
}

/// The runtime's answer to a workload.
pub fn offer<R: Runtime>(workload: &str, params: Params) -> Result<Offer, String> {
    let Params { n, procs } = params;
    let procs = match workload {
        "yield" | "pingpong_1w" => 1,
        "stw" | "resize_chain" => return Ok(unsupported("the number of its threads is fixed")),
        "ureq_4000" => return Ok(unsupported("ureq would block its workers")),
        _ => procs,
    };
    R::start(procs);
    if let Some(kind) = Kind::of(workload) {
        return Ok(rounds(move || disturbed::round::<R>(kind, n)));
    }
    Ok(match workload {
        "yield" => rounds(move || short::yields::<R>(n)),
        "spawn" => rounds(move || short::spawns::<R>(n)),
        "spawn_burst" => rounds(move || short::spawn_burst::<R>(n)),
        "go_burst" => rounds(move || short::go_burst::<R>(n)),
        "submit_16" => rounds(move || submits(n, |all| R::submit(async { all.arrive() }))),
        "fib" => rounds(move || short::fibs::<R>(n)),
        "pingpong_1w" | "pingpong_2w" => rounds(move || messages::pingpong::<R>(n)),
        "chan_spsc" => rounds(move || messages::spsc::<R>(n)),
        "chan_mpmc" => rounds(move || messages::mpmc::<R>(n)),
        "chan_unbounded" => rounds(move || messages::unbounded::<R>(n)),
        "select_2" => rounds(move || messages::select::<R, 2>(n)),
        "select_8" => rounds(move || messages::select::<R, 8>(n)),
        "skynet" => rounds(move || messages::skynet::<R>(n)),
        "sieve" => rounds(move || messages::sieve::<R>(n)),
        "mutex" | "std_mutex" => rounds(move || waits::mutex::<R>(n)),
        "timers" | "timers_10k" => rounds(move || waits::timers::<R>(n)),
        "timer_reset" => rounds(move || waits::timer_reset::<R>(n)),
        "idle_1m" | "idle_100k" => rounds(move || waits::idle::<R>(n)),
        "idle_cpu" => waits::quiet::<R>(n),
        "foreign_wake" => rounds(move || waits::foreign_wake::<R>(n)),
        "std_mpsc" => rounds(move || messages::mpsc_trips::<R>(n)),
        "std_echo" => echo_with_clients::<R>(n)?,
        "tcp_echo" | "tcp_idle" | "tcp_accept" | "accept_burst" => server::<R>(R::serve_echo())?,
        "tcp_hogs" => {
            let echo = server::<R>(R::serve_echo())?;
            disturbed::hogs_for_good::<R>();
            echo
        }
        "http_hello" => server::<R>(R::serve_http())?,
        _ => return Err(format!("no workload is called `{workload}`")),
    })
}

/// An echo server and its clients, all in this process.
fn echo_with_clients<R: Runtime>(echoes: usize) -> Result<Offer, String> {
    let port = R::run(R::serve_echo()).map_err(|error| error.to_string())?;
    Ok(rounds(move || {
        R::run(talk_to_all::<R>(port, echoes)).map_err(|error| error.to_string())?
    }))
}

/// A round of `std_echo`: a task for each client. The connections are made before the clock starts.
async fn talk_to_all<R: Runtime>(port: u16, echoes: usize) -> std::io::Result<Figures> {
    let (talkers, times) = talkers(echoes);
    let mut streams = Vec::with_capacity(talkers);
    for _ in 0..talkers {
        streams.push(R::connect(port).await?);
    }
    let (start, cpu) = (Instant::now(), own_cpu());
    let spawn = |stream| R::spawn(R::talk(stream, times));
    let clients: Vec<_> = streams.into_iter().map(spawn).collect();
    for client in clients {
        R::join(client).await?;
    }
    Ok(echo_figures(
        talkers * times,
        start.elapsed(),
        own_cpu() - cpu,
    ))
}

fn server<R: Runtime>(
    start: impl Future<Output = std::io::Result<u16>> + Send + 'static,
) -> Result<Offer, String> {
    let port = R::run(start).map_err(|error| error.to_string())?;
    Ok(Offer::Server(port))
}
