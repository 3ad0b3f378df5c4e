//! Signals of the operating system, received from channels.
//!
//! [`notify`] is all there is to it. What a signal does to the process otherwise (SIGINT and SIGTERM end it) it does not do while
//! somebody receives it, and does again when nobody does any more. Goroutines and plain threads may receive, with or without a
//! runtime.
//!
//! The usual way to end well, and at once when the user insists:
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
pub(crate) mod handler;
pub(crate) mod quit;

pub(crate) use dispatch::{has_receivers, reset_in_child, turn};

use dispatch::{Refused, Set};

use crate::chan::Receiver;
use crate::sched::forked;

/// Delivers the signals with these numbers into a channel, until the receiver and all its clones are dropped or the channel is
/// closed.
///
/// While somebody receives a signal, its default action does not happen, and where it was ignored it is not. A handler of the
/// program's own, if it was there before, is called as well. Afterwards everything is as it was, from the moment in which the
/// drop of the last receiver returns. Programs that are executed meanwhile start with the default action.
///
/// Every receiver that asked for a signal gets it; clones share one channel, so one of them does. A value tells that the signal
/// has come since this value was last received, not how often: of each signal at most one value waits in the channel, in the
/// order in which the signals came. So a slow receiver holds up nobody and loses no news, whatever comes.
///
/// Nothing here blocks; the receiver is an ordinary one, good for [`select!`](crate::chan::select) too. Waiting for a signal is
/// never a deadlock: while there is a receiver, no deadlock is reported in this process.
///
/// Also good to know:
/// - The signal by which goroutines are interrupted (SIGURG, or what
///   [`preemption_signal`](crate::Builder::preemption_signal) says) can be received: those that the runtime sends to itself are
///   left out.
/// - SIGQUIT goes on printing the goroutines where [`dump_on_sigquit`](crate::Builder::dump_on_sigquit) asked for that.
/// - A signal that the program holds back in all of its threads (`pthread_sigmask`) is received all the same.
/// - Whoever installs a handler of their own later replaces this one: unless they call it, nothing is received any more.
/// - A receiver on the stack of a goroutine that a dropped runtime gave up is never dropped; [`Runtime::shutdown`] unwinds first.
/// - In the child of a `fork` that does not execute another program, the actions are those from before, and nothing is received
///   until it asks itself.
///
/// # Panics
/// For no signals at all; for numbers that are no signals; for SIGKILL and SIGSTOP, which nobody can catch; for SIGSEGV, SIGBUS,
/// SIGFPE and SIGILL, which are faults of the thread that gets them; for 32 and 33, which libc uses itself; if the system refuses
/// the thread that delivers.
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
#[must_use = "who drops the receiver is not told"]
pub fn notify(signals: &[i32]) -> Receiver<i32> {
    let mut set = Set::default();
    for &signal in signals {
        check(signal);
        set.add(signal);
    }
    assert!(
        !signals.is_empty(),
        "gosched::signal::notify: name the signals to be told of, for example libc::SIGINT"
    );
    if forked::is_child() {
        forked::refuse();
    }
    match dispatch::ask(set) {
        Ok(receiver) => receiver,
        Err(Refused::Signal(signal, error)) => {
            panic!("gosched::signal::notify: the system keeps signal {signal} to itself: {error}")
        }
        Err(Refused::Thread(error)) => {
            panic!("gosched::signal::notify: no thread that could deliver signals: {error}")
        }
    }
}

/// Panics for signals that nobody can be told of.
#[track_caller]
fn check(signal: i32) {
    let because = match signal {
        ..1 | 65.. => "there is no such signal: they are numbered from 1 to 64",
        libc::SIGKILL | libc::SIGSTOP => {
            "SIGKILL and SIGSTOP cannot be caught; SIGTERM and SIGTSTP are the ones that a program can answer"
        }
        libc::SIGSEGV | libc::SIGBUS | libc::SIGFPE | libc::SIGILL => {
            "SIGSEGV, SIGBUS, SIGFPE and SIGILL are faults of the very thread that gets them, which cannot go on until they \
             are handled there; a handler of the program's own, installed before the runtime starts, is called for them"
        }
        32 | 33 => "signals 32 and 33 are libc's own; those for programs begin at libc::SIGRTMIN()",
        _ => return,
    };
    panic!("gosched::signal::notify: signal {signal}: {because}");
}
