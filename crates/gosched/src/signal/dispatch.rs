//! The dispatcher: one thread that moves noted signals to the receivers' channels.
//!
//! A signal handler cannot send on a channel, so a thread does. It starts with the first receiver.
//!
//! The dispatcher sleeps until the bell rings and then makes one *pass*. A pass sets its own signal
//! mask, restores unneeded actions, and delivers what has arrived. It is the only thread that
//! unblocks exactly the wanted signals. So a signal that the program blocks in all its threads
//! arrives too. The dispatcher also restores the actions, after it has blocked the signal for
//! itself. Otherwise a signal that the program blocks could hit the dispatcher with the old action.
//! The drop of the last receiver waits for that pass.
//!
//! A channel holds at most one value of each signal, and its capacity is the number of its signals.
//! Only the dispatcher sends. So it computes from what it has sent, and from the channel's length,
//! which values are still in it. A signal that arrives while its value is still in the channel adds
//! no second one.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_int;
use std::io;
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::actions;
use crate::base::real_thread;
use crate::base::signals;
use crate::base::signals::SIGNALS;
use crate::chan::{self, Receiver, Sender};
use crate::sched::life::deadlock::SIGNAL_RECEIVERS;
use crate::sched::life::forked::{self, Restore};
use crate::sched::life::registry;
use crate::shim::Futex;
use crate::sys;

/// A set of signals: bit `n - 1` for signal `n`.
#[derive(Clone, Copy, Default)]
pub(super) struct Set(pub(super) u64);

impl Set {
    pub(super) fn add(&mut self, signal: c_int) {
        self.0 |= 1 << (signal - 1);
    }

    fn has(self, signal: c_int) -> bool {
        self.0 >> (signal - 1) & 1 != 0
    }

    fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    fn iter(self) -> impl Iterator<Item = c_int> {
        (1..SIGNALS as c_int).filter(move |signal| self.has(*signal))
    }
}

/// A channel of a `notify` call.
struct Asker {
    wants: Set,
    sender: Sender<i32>,
    /// Values that the channel may still hold, oldest first.
    sent: VecDeque<c_int>,
}

impl Asker {
    fn tell(&mut self, signal: c_int) {
        let taken = self.sent.len().saturating_sub(self.sender.len());
        self.sent.drain(..taken);
        // The send has room: all values in the channel differ. A closed channel is about to be
        // removed.
        if !self.sent.contains(&signal) && self.sender.try_send(signal).is_ok() {
            self.sent.push_back(signal);
        }
    }
}

/// All receivers, and the signals they want.
struct State {
    askers: BTreeMap<usize, Asker>,
    /// How many receivers want each signal.
    counts: [u32; SIGNALS],
    /// Signals with a count that has dropped to 0, and with our action still installed.
    unwanted: Set,
    is_running: bool,
}

impl State {
    fn wanted(&self) -> Set {
        let mut set = Set::default();
        (1..SIGNALS)
            .filter(|signal| self.counts[*signal] > 0)
            .for_each(|signal| set.add(signal as c_int));
        set
    }

    /// Counts one more receiver of these signals. If the system refuses one, none is counted.
    fn want(&mut self, signals: Set) -> Result<(), Refused> {
        let mut done = Set::default();
        for signal in signals.iter() {
            if self.counts[signal as usize] == 0
                && let Err(errno) = actions::want(signal)
            {
                self.unwant(done);
                signals::ring();
                return Err(Refused::Signal(signal, errno.into()));
            }
            self.counts[signal as usize] += 1;
            done.add(signal);
        }
        Ok(())
    }

    /// Counts one receiver less of these signals. True: one of them has no receiver now.
    fn unwant(&mut self, signals: Set) -> bool {
        let before = self.unwanted.0;
        for signal in signals.iter() {
            let count = &mut self.counts[signal as usize];
            *count -= 1;
            if *count == 0 {
                self.unwanted.add(signal);
            }
        }
        self.unwanted.0 != before
    }
}

/// Why signals cannot be delivered.
pub(super) enum Refused {
    Thread(io::Error),
    Signal(c_int, io::Error),
}

/// The state, in a box that is never freed. The child of a fork may find the mutex locked for ever,
/// so it makes a new one.
static STATE: AtomicPtr<Mutex<State>> = AtomicPtr::new(ptr::null_mut());

/// The number of the last requested pass, and of the last completed pass.
static WANTED_PASS: AtomicU32 = AtomicU32::new(0);
static DONE_PASS: Futex = Futex::new(0);

/// The right to change signal actions: concurrent changes would not see each other.
pub(crate) struct Turn(#[expect(dead_code, reason = "held")] MutexGuard<'static, State>);

/// Waits for the right to change signal actions. In user context.
pub(crate) fn turn() -> Turn {
    Turn(lock())
}

fn lock() -> MutexGuard<'static, State> {
    // ORDER: Acquire; pairs with the Release of the call that stored it.
    let mut state = STATE.load(Acquire);
    if state.is_null() {
        let new = Box::into_raw(Box::new(Mutex::new(State {
            askers: BTreeMap::new(),
            counts: [0; SIGNALS],
            unwanted: Set::default(),
            is_running: false,
        })));
        state = match STATE.compare_exchange(ptr::null_mut(), new, Release, Acquire) {
            Ok(_) => new,
            Err(first) => {
                // SAFETY: made above from a box, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                first
            }
        };
    }
    // SAFETY: the state is never freed.
    let state = unsafe { &*state };
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Delivers these signals into a channel until all its receivers are dropped. In user context.
pub(super) fn ask(wants: Set) -> Result<Receiver<i32>, Refused> {
    static NEXT_ID: AtomicUsize = AtomicUsize::new(0);
    let id = NEXT_ID.fetch_add(1, Relaxed);
    forked::restore_in_child(Restore::ProgramSignals, reset_in_child);
    forked::watch().map_err(Refused::Thread)?;
    let (sender, receiver) = chan::watched(wants.len(), gone, id);
    let asker = Asker {
        wants,
        sender,
        sent: VecDeque::with_capacity(wants.len()),
    };
    let mut state = lock();
    if !state.is_running {
        real_thread::spawn("gosched-signal", run).map_err(Refused::Thread)?;
        state.is_running = true;
    }
    state.want(wants)?;
    state.askers.insert(id, asker);
    SIGNAL_RECEIVERS.fetch_add(1, SeqCst);
    drop(state);
    signals::ring(); // the dispatcher unblocks the signals
    Ok(receiver)
}

/// The channel with this id was closed, or has no receivers. Runs on the thread that closed it,
/// without locks.
fn gone(id: usize) {
    if STATE.load(Acquire).is_null() {
        return; // the child of a fork, which has no dispatcher
    }
    let mut state = lock();
    let Some(asker) = state.askers.remove(&id) else {
        return;
    };
    SIGNAL_RECEIVERS.fetch_sub(1, SeqCst);
    let must_wait = state.unwant(asker.wants);
    let pass = WANTED_PASS.fetch_add(1, Relaxed).wrapping_add(1);
    drop(state);
    drop(asker);
    if must_wait {
        signals::ring();
        loop {
            // ORDER: Acquire; pairs with the Release in `pass`: the actions are restored.
            let done = DONE_PASS.0.load(Acquire);
            if pass.wrapping_sub(done) as i32 <= 0 {
                break;
            }
            DONE_PASS.wait(done, None);
        }
    }
}

fn run() {
    registry::add_thread();
    loop {
        signals::wait();
        pass();
    }
}

/// One pass of the dispatcher.
fn pass() {
    let mut state = lock();
    let wanted = state.wanted();
    sys::hold_back_all_but(wanted.0);
    let unwanted = std::mem::take(&mut state.unwanted);
    Set(unwanted.0 & !wanted.0).iter().for_each(actions::unwant);
    for signal in signals::take_arrived() {
        let askers = state.askers.values_mut();
        askers
            .filter(|asker| asker.wants.has(signal))
            .for_each(|asker| asker.tell(signal));
    }
    let done = WANTED_PASS.load(Relaxed);
    drop(state);
    // ORDER: Release; pairs with the Acquire in `gone`.
    DONE_PASS.0.store(done, Release);
    sys::futex_wake_ptr(&raw const DONE_PASS.0, u32::MAX);
}

/// In the child of a fork, which has no dispatcher: resets everything, as if no receiver existed.
pub(crate) fn reset_in_child() {
    actions::reset_in_child();
    signals::silence();
    SIGNAL_RECEIVERS.store(0, Relaxed);
    STATE.store(ptr::null_mut(), Release);
}
