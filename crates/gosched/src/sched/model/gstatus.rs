//! The status word of a goroutine: its states, the edges between them, and which thread may take an
//! edge.
//!
//! A state is a permission. The word changes by compare-and-swap only (G1), along the edges of
//! [`edge_exists`] only (G0). Anything else is a bug of the runtime, and fatal.
//!
//! ```text
//!  status     on a run queue  the stack belongs to        may leave the state
//!  Idle       no              no thread: there is none    the thread that made the G
//!  Dead       no              no thread: given back       the M that spawns with the G
//!  Runnable   exactly one     no thread                   the M that took the G off the queue
//!  Running    no              the M in g.m                that M
//!  Syscall    no              the M in g.m                that M
//!  Waiting    no              what the goroutine waits on the thread that claims the wake-up
//!  Preempted  no              the M in whose handler it is that M
//!  CopyStack  no              the M that returns pages    that M
//!  Leaked     no              as Waiting                  the leak check; a waker restores Waiting
//! ```
//!
//! The Scan bit is a lock over any state (G6). While it is set, only its holder changes the word,
//! and other threads wait until it is clear. Dumps and the leak check hold it to read the stack of
//! a parked goroutine, shutdowns and drops to withdraw a wait.

use crate::shim::{self, AcqRel, Acquire, AtomicU32, Release};

/// The Scan bit, or-ed into a status.
pub(crate) const SCAN: u32 = 0x1000;

/// Spins of a wait for the Scan bit before the thread yields its CPU.
const SCAN_SPINS: u32 = 100;

/// The state of a goroutine. The numbers are Go's, so `scheddetail` reads the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Status {
    Idle = 0,
    Runnable = 1,
    Running = 2,
    Syscall = 3,
    Waiting = 4,
    Dead = 6,
    CopyStack = 8,
    Preempted = 9,
    Leaked = 10,
}

impl Status {
    /// The word used in dumps.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Status::Idle => "idle",
            Status::Runnable => "runnable",
            Status::Running => "running",
            Status::Syscall => "syscall",
            Status::Waiting => "waiting",
            Status::Dead => "dead",
            Status::CopyStack => "copystack",
            Status::Preempted => "preempted",
            Status::Leaked => "leaked",
        }
    }

    fn from_word(word: u32) -> Status {
        match word & !SCAN {
            0 => Status::Idle,
            1 => Status::Runnable,
            2 => Status::Running,
            3 => Status::Syscall,
            4 => Status::Waiting,
            6 => Status::Dead,
            8 => Status::CopyStack,
            9 => Status::Preempted,
            10 => Status::Leaked,
            other => shim::illegal_edge(other, other, word),
        }
    }
}

#[inline]
pub(crate) const fn edge_exists(from: Status, to: Status) -> bool {
    use Status::*;
    matches!(
        (from, to),
        (Idle, Dead)
            | (Dead, Runnable)
            | (Runnable, Running)
            | (
                Running,
                Runnable | Waiting | Syscall | CopyStack | Preempted | Dead
            )
            | (Waiting, Runnable | Leaked | CopyStack)
            | (Syscall, Running | Runnable)
            | (CopyStack, Running | Waiting)
            | (Preempted, Waiting)
            | (Leaked, Waiting)
    )
}

/// Whether a thread trims the stack of this waiting goroutine: it is Waiting again in a moment.
fn is_passing(from: Status, word: u32) -> bool {
    from as u32 == Status::Waiting as u32 && word & !SCAN == Status::CopyStack as u32
}

/// Whether this waiting goroutine is marked as leaked: its waker restores Waiting first.
fn is_leaked(from: Status, word: u32) -> bool {
    from as u32 == Status::Waiting as u32 && word & !SCAN == Status::Leaked as u32
}

fn spin_or_yield(turns: &mut u32) {
    *turns += 1;
    if *turns < SCAN_SPINS {
        shim::spin_hint();
    } else {
        shim::yield_thread();
    }
}

pub(crate) struct StatusWord(AtomicU32);

impl StatusWord {
    #[cfg(test)]
    pub(crate) fn new(status: Status) -> StatusWord {
        StatusWord(AtomicU32::new(status as u32))
    }

    /// The status, without the Scan bit.
    #[inline]
    pub(crate) fn get(&self) -> Status {
        // ORDER: Acquire; pairs with the Release half of every transition. A thread that sees a
        // state sees what the owner of the state before wrote.
        Status::from_word(self.0.load(Acquire))
    }

    pub(crate) fn is_scanned(&self) -> bool {
        // ORDER: Acquire; pairs with the Release half of `begin_scan` and `end_scan`.
        self.0.load(Acquire) & SCAN != 0
    }

    /// Takes the edge `from → to`; waits while the Scan bit is held (G6). The caller must be
    /// allowed to leave `from`. Any other state is fatal.
    #[inline]
    pub(crate) fn transition(&self, from: Status, to: Status) {
        if !edge_exists(from, to) {
            shim::illegal_edge(from as u32, to as u32, from as u32);
        }
        if !self.swap_if(from, to) {
            self.transition_slow(from, to);
        }
    }

    #[cold]
    #[inline(never)]
    fn transition_slow(&self, from: Status, to: Status) {
        let mut turns = 0;
        loop {
            let word = self.0.load(Acquire);
            if word == from as u32 {
                if self.swap_if(from, to) {
                    return;
                }
            } else if is_leaked(from, word) {
                self.restore(); // the leak check was wrong, or the goroutine unwinds
            } else if word != from as u32 | SCAN && !is_passing(from, word) {
                shim::illegal_edge(from as u32, to as u32, word);
            }
            spin_or_yield(&mut turns);
        }
    }

    /// Waiting → CopyStack. False: the goroutine was woken, or a thread holds the Scan bit.
    #[must_use = "the winner must take it back to Waiting"]
    pub(crate) fn begin_shrink(&self) -> bool {
        self.swap_if(Status::Waiting, Status::CopyStack)
    }

    /// Waiting → Leaked. False: the goroutine was woken, or a thread holds the Scan bit.
    #[must_use = "one that is not marked is not leaked"]
    pub(crate) fn mark_leaked(&self) -> bool {
        self.swap_if(Status::Waiting, Status::Leaked)
    }

    /// Leaked → Waiting; any other state stays. Waits while the Scan bit is held over Leaked.
    pub(crate) fn restore(&self) {
        let (leaked, waiting) = (Status::Leaked as u32, Status::Waiting as u32);
        let mut turns = 0;
        // ORDER: AcqRel; pairs with the transitions before and after, as in `swap_if`.
        while let Err(found) = self.0.compare_exchange(leaked, waiting, AcqRel, Acquire)
            && found == leaked | SCAN
        {
            spin_or_yield(&mut turns);
        }
    }

    /// Preempted → Waiting → Runnable, for a goroutine that waits for a P on its thread. Its frames
    /// are live, so no thread may treat it as parked: the Scan bit covers the step in between.
    pub(crate) fn requeue_preempted(&self) {
        let waiting = Status::Waiting as u32 | SCAN;
        // ORDER: AcqRel; pairs with the transitions before and after, as in `swap_if`.
        let swapped = self
            .0
            .compare_exchange(Status::Preempted as u32, waiting, AcqRel, Acquire)
            .and_then(|_| {
                self.0
                    .compare_exchange(waiting, Status::Runnable as u32, AcqRel, Acquire)
            });
        if let Err(found) = swapped {
            shim::illegal_edge(Status::Preempted as u32, Status::Runnable as u32, found);
        }
    }

    #[inline]
    fn swap_if(&self, from: Status, to: Status) -> bool {
        // ORDER: AcqRel; pairs with the next owner's transition: the G's fields travel with it.
        self.0
            .compare_exchange(from as u32, to as u32, AcqRel, Acquire)
            .is_ok()
    }

    /// Sets the Scan bit over `status`. False: the state is another, or the bit is set already.
    #[must_use = "the winner holds the G until `end_scan`"]
    pub(crate) fn begin_scan(&self, status: Status) -> bool {
        // ORDER: AcqRel; pairs with the transitions before and after, as in `swap_if`.
        self.0
            .compare_exchange(status as u32, status as u32 | SCAN, AcqRel, Acquire)
            .is_ok()
    }

    /// Clears the Scan bit. Only its holder calls this.
    pub(crate) fn end_scan(&self, status: Status) {
        // ORDER: Release; pairs with the Acquire of a thread that waited for the bit.
        let swapped =
            self.0
                .compare_exchange(status as u32 | SCAN, status as u32, Release, Acquire);
        if let Err(found) = swapped {
            shim::illegal_edge(status as u32 | SCAN, status as u32, found);
        }
    }
}
