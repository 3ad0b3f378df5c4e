//! Decides how runtimes that look like threads do the workloads: the code of
//! each is written once, for any [`Tasks`], with calls that block the task.
//!
//! The runtime is started once in a process. A round runs in a task of it; the
//! main thread waits.

mod disturbed;
mod messages;
mod servers;
mod short;
mod waits;

pub use servers::Listener;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Offer, Params, SPAWN_BATCH, rounds, unsupported};
use crate::hogs::Kind;

/// What the workloads ask of a runtime, in its own idiom.
pub trait Tasks: Sized + Send + Sync + 'static {
    /// What a task is joined by.
    type Handle<T: Send + 'static>: Send;
    /// What a task is woken by.
    type Thread: Send + Sync + Clone + 'static;
    /// The sending side of a channel from many to one.
    type Sender: Sender;
    /// The other side.
    type Receiver: Receiver;
    /// The sending side of a channel between two whose room is really limited.
    type TightSender: Sender;
    /// The other side.
    type TightReceiver: Receiver;
    /// The sending side of a channel from many to many.
    type ManySender: Sender;
    /// The other side.
    type ManyReceiver: Receiver + Clone;
    /// Its lock, with a number in it.
    type Counter: Counter;
    /// Its listening socket.
    type Listener: servers::Listener;

    /// Tasks that can exist at once, if there is a limit that one should know.
    const TASKS_MAX: Option<usize>;
    /// Whether calls that block can be marked; if not, whether they need not.
    const MARKS: Marks;
    /// Whether it has a select that takes one message from one of its channels.
    const HAS_SELECT: bool;

    /// Starts so many threads that run tasks; once in a process. With `is_one`
    /// all tasks must share one CPU, whatever the runtime otherwise does.
    fn start(procs: usize, is_one: bool);
    /// Starts a task.
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Self::Handle<T>;
    /// Waits for a task.
    fn join<T: Send + 'static>(handle: Self::Handle<T>) -> T;
    /// Whether a task is over.
    fn is_finished<T: Send + 'static>(handle: &Self::Handle<T>) -> bool;
    /// What wakes the task.
    fn thread<T: Send + 'static>(handle: &Self::Handle<T>) -> Self::Thread;
    /// What wakes the calling task.
    fn current() -> Self::Thread;
    /// Parks the calling task.
    fn park();
    /// Wakes a task.
    fn unpark(thread: &Self::Thread);
    /// Lets others run.
    fn yield_now();
    /// Sleeps.
    fn sleep(span: Duration);
    /// A channel with this room, or more if it has no smaller.
    fn bounded(room: usize) -> (Self::Sender, Self::Receiver);
    /// A channel with room for any number.
    fn unbounded() -> (Self::Sender, Self::Receiver);
    /// A channel with as little room as it can have, and no more.
    fn tight() -> (Self::TightSender, Self::TightReceiver);
    /// A channel from many to many, with this room or more.
    fn many(room: usize) -> (Self::ManySender, Self::ManyReceiver);
    /// Receives from whichever has a message, by chance. Only if it has a select.
    fn select(receivers: &[Self::Receiver]) -> u64;
    /// Does it in a task and waits for it on the main thread.
    fn run<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> T {
        Self::join(Self::spawn(task))
    }
}

/// What becomes of calls that block.
#[derive(PartialEq, Eq)]
pub enum Marks {
    /// There are no marks, and they would be needed.
    Missing,
    /// A blocked task disturbs nobody.
    Needless,
}

/// Sends.
pub trait Sender: Clone + Send + 'static {
    /// Waits for room if there is a limit. False: nobody receives any more.
    fn send(&self, message: u64) -> bool;
}

/// Receives.
pub trait Receiver: Send + 'static {
    /// Waits for a message. None: nobody sends any more.
    fn recv(&self) -> Option<u64>;
}

/// Counts under a lock.
pub trait Counter: Send + Sync + 'static {
    /// From zero on.
    fn zero() -> Self;
    /// Locks, adds 1, unlocks.
    fn count(&self);
    /// The number.
    fn value(&self) -> usize;
}

/// A count of tasks that one task waits for.
pub struct Countdown<T: Tasks> {
    left: AtomicUsize,
    waiter: T::Thread,
}

impl<T: Tasks> Countdown<T> {
    /// One for the calling task, that lives as long as the process.
    pub fn leaked() -> &'static Countdown<T> {
        Box::leak(Box::new(Countdown {
            left: AtomicUsize::new(0),
            waiter: T::current(),
        }))
    }

    /// Sets the number of tasks to wait for. Call it before they start.
    pub fn expect(&self, count: usize) {
        // ORDER: Relaxed; starting a task publishes what came before it.
        self.left.store(count, Ordering::Relaxed);
    }

    /// One of them is there.
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

/// What the runtime has to say to a workload.
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
        "spawn" => rounds(move || short::spawns::<T>(n, SPAWN_BATCH)),
        "spawn_burst" => rounds(move || short::spawns::<T>(n, n)),
        "fib" => rounds(move || short::fibs::<T>(n)),
        "pingpong_1w" | "pingpong_2w" => rounds(move || messages::pingpong::<T>(n)),
        "chan_spsc" => rounds(move || messages::spsc::<T>(n)),
        "chan_mpmc" => rounds(move || messages::mpmc::<T>(n)),
        "chan_unbounded" => rounds(move || messages::unbounded::<T>(n)),
        "select_2" => rounds(move || messages::select::<T>(2, n)),
        "select_8" => rounds(move || messages::select::<T>(8, n)),
        "skynet" => rounds(move || messages::skynet::<T>(n)),
        "sieve" => rounds(move || messages::sieve::<T>(n)),
        "mutex" => rounds(move || waits::mutex::<T>(n)),
        "timers" => rounds(move || waits::timers::<T>(n)),
        "timers_10k" => rounds(move || waits::lateness::<T>(n)),
        "idle_1m" => rounds(move || waits::idle::<T>(n)),
        "idle_cpu" => waits::quiet::<T>(n),
        "foreign_wake" => rounds(move || waits::foreign_wake::<T>(n)),
        "tcp_echo" | "tcp_idle" | "tcp_accept" => servers::echo::<T>()?,
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
        "timers" | "timers_10k" | "idle_1m" => n,
        "skynet" => n + n / 9,
        "idle_cpu" => crate::common::QUIET_TASKS,
        _ => 0,
    };
    match workload {
        "stw" | "resize_chain" => Some("the number of its threads is fixed".into()),
        "timer_reset" => Some("it has no timers that can be stopped".into()),
        "select_2" | "select_8" if !T::HAS_SELECT => {
            Some("its select takes a message from every channel that has one".into())
        }
        "block_marked" if T::MARKS == Marks::Missing => {
            Some("it has no mark for calls that block".into())
        }
        _ => T::TASKS_MAX
            .filter(|most| tasks > *most)
            .map(|most| format!("{tasks} at once; a process can have about {most}")),
    }
}

/// A mutex and a listener that have std's methods, as what the workloads want.
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
                let port = listener.local_addr()?.port();
                Ok((listener, port))
            }

            fn next(&self) -> std::io::Result<$stream> {
                Ok(self.accept()?.0)
            }

            fn set_nodelay(stream: &$stream) -> std::io::Result<()> {
                stream.set_nodelay(true)
            }
        }
    };
}
pub(crate) use like_std;
