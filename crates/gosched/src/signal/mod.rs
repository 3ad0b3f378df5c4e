//! Signals of the operating system, received from channels.
//!
//! [`notify`] is the only function. While a signal has a receiver, its usual effect is suspended:
//! SIGINT and SIGTERM do not end the process. Without receivers the effect is restored. Goroutines
//! and plain threads can receive, with or without a runtime.
//!
//! A typical graceful shutdown, with an immediate exit at the second signal:
//!
//! ```
//! use gosched::{chan, signal, thread};
//! # use std::time::Duration;
//!
//! gosched::run(|| {
//!     let stop = signal::notify(&[libc::SIGINT, libc::SIGTERM]);
//!     let (jobs, queue) = chan::unbounded::<u32>();
//!     let worker = thread::spawn(move || queue.iter().sum::<u32>());
//!
//!     let ticks = chan::tick(Duration::from_millis(1));
//!     # let mut round = 0;
//!     let signal = loop {
//!         chan::select! {
//!             recv(ticks) -> _ => jobs.send(1).unwrap(),
//!             recv(stop) -> signal => break signal.unwrap(),
//!         }
//!         # round += 1;
//!         # if round == 3 { unsafe { libc::raise(libc::SIGTERM) }; }
//!     };
//!     assert_eq!(signal, libc::SIGTERM);
//!     drop(stop); // the next one ends the process, as it does by default
//!
//!     drop(jobs);
//!     worker.join().unwrap();
//! });
//! ```

mod actions;
mod dispatch;
pub(crate) mod quit;

pub(crate) use dispatch::turn;

use dispatch::{Refused, Set};

use crate::chan::Receiver;
use crate::sched::life::forked;

/// Delivers the signals with these numbers into a channel.
///
/// The delivery ends when the receiver and all its clones are dropped, or when the channel is
/// closed. Until then:
/// - The default action of the signal does not happen. A signal that was ignored is received.
/// - A handler that the program installed before is called as well.
/// - Programs that the process executes (`exec`) start with the default action.
///
/// When the drop of the last receiver returns, the previous action is restored.
///
/// Every channel that was created for a signal gets its value. Clones share one channel, so one of
/// them receives the value. A value means that the signal has arrived at least once since the last
/// such value was received. The channel holds at most one value of each signal, in order of
/// arrival. So a slow receiver delays no other, and misses no signal.
///
/// This function never blocks. The receiver is an ordinary one and works in
/// [`select!`](crate::chan::select). Waiting for a signal is never a deadlock: while there is a
/// receiver, no deadlock is reported in this process.
///
/// Details:
/// - The preemption signal (SIGURG, or the one set by
///   [`preemption_signal`](crate::Builder::preemption_signal)) can be received. Signals that the
///   runtime sends to itself are left out.
/// - SIGQUIT still prints the goroutines if [`dump_on_sigquit`](crate::Builder::dump_on_sigquit) is
///   set.
/// - A signal that the program blocks in all its threads (`pthread_sigmask`) is received too.
/// - A handler that is installed later replaces this one. Unless it calls this one, nothing is
///   received any more.
/// - A receiver on the stack of a goroutine that was abandoned with its runtime is never dropped.
///   [`Runtime::shutdown`] unwinds the goroutine instead.
/// - The child of a `fork` that does not execute another program has the previous actions. It
///   receives nothing until it calls `notify` itself.
///
/// # Panics
/// - If there are no signals, or if a number is not a signal.
/// - For SIGKILL and SIGSTOP, which cannot be caught.
/// - For SIGSEGV, SIGBUS, SIGFPE and SIGILL, which are faults of the thread that gets them.
/// - For 32 and 33, which libc uses itself.
/// - If the system refuses the thread that delivers signals.
///
/// [`Runtime::shutdown`]: crate::Runtime::shutdown
///
/// ```
/// let signals = gosched::signal::notify(&[libc::SIGUSR1, libc::SIGUSR2]);
/// // SAFETY: signals to this process, which has just asked for them.
/// unsafe {
///     libc::raise(libc::SIGUSR2);
///     libc::raise(libc::SIGUSR1);
/// }
/// assert_eq!(signals.recv(), Ok(libc::SIGUSR2));
/// assert_eq!(signals.recv(), Ok(libc::SIGUSR1));
/// assert!(signals.is_empty());
/// ```
#[track_caller]
#[must_use = "dropping the receiver ends the delivery"]
pub fn notify(signals: &[i32]) -> Receiver<i32> {
    let mut set = Set::default();
    for &signal in signals {
        check(signal);
        set.add(signal);
    }
    assert!(
        !signals.is_empty(),
        "gosched::signal::notify: name the signals to receive, for example libc::SIGINT"
    );
    if forked::is_child() {
        forked::refuse();
    }
    match dispatch::ask(set) {
        Ok(receiver) => receiver,
        Err(Refused::Signal(signal, error)) => {
            panic!(
                "gosched::signal::notify: the system refuses a handler for signal {signal}: {error}"
            )
        }
        Err(Refused::Thread(error)) => {
            panic!(
                "gosched::signal::notify: cannot start the thread that delivers signals: {error}"
            )
        }
    }
}

/// Panics for a signal that cannot be received.
#[track_caller]
fn check(signal: i32) {
    let because = match signal {
        ..1 | 65.. => "there is no such signal: they are numbered from 1 to 64",
        libc::SIGKILL | libc::SIGSTOP => {
            "SIGKILL and SIGSTOP cannot be caught; a program can receive SIGTERM and SIGTSTP"
        }
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL => {
            "SIGSEGV, SIGBUS, SIGFPE and SIGILL are faults of the thread that gets them, and must \
             be handled on that thread; a handler of the program, installed before the runtime \
             starts, is called for them"
        }
        32 | 33 => "libc uses 32 and 33 itself; signals for programs begin at libc::SIGRTMIN()",
        _ => return,
    };
    panic!("gosched::signal::notify: signal {signal}: {because}");
}
