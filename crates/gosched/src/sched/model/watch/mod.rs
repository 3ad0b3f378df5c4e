//! What the monitor knows of threads and calls: the data, without the decisions.
//!
//! Ms, Ps and the runtime have these types as fields. `sched/monitor/` decides by them.

pub(crate) mod claim;
pub(crate) mod nap;
pub(crate) mod p_sample;
pub(crate) mod self_unwind;

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

use crate::sched::model::p::Count;
use crate::sched::model::ptr::{Mp, Pp};
use crate::sched::model::watch::nap::Nap;
use crate::sched::model::word::Word;
use crate::sys::TaskFile;

/// What the claim lock guards.
pub(crate) struct Claims {
    pub(in crate::sched) strays: StrayList,
    /// How many descriptors are open.
    pub(in crate::sched) files: u32,
    /// Claims that wait for the barrier; the first `nbegun` places.
    pub(in crate::sched) begun: [Option<Begun>; BEGUN_MAX],
    pub(in crate::sched) nbegun: usize,
}

/// The most claims that one barrier serves.
pub(in crate::sched) const BEGUN_MAX: usize = 64;

/// A claim that has begun: p was on m in this time slice.
#[derive(Clone, Copy)]
pub(in crate::sched) struct Begun {
    pub(in crate::sched) m: Mp,
    pub(in crate::sched) p: Pp,
    pub(in crate::sched) tick: u32,
    /// Its goroutine is blocked on a futex: a goroutine that was preempted may hold that lock.
    pub(in crate::sched) wants_lock: bool,
}

impl Begun {
    pub(in crate::sched) fn new(m: Mp, p: Pp, tick: u32) -> Begun {
        Begun {
            m,
            p,
            tick,
            wants_lock: false,
        }
    }
}

// SAFETY: D9. The list and the claims hold pointers to Ms and Ps, which live as long as the
// runtime. They are followed only through `Held<Claims>`, which is proof of the claim lock.
unsafe impl Send for Claims {}

impl Claims {
    pub(crate) const fn new() -> Claims {
        Claims {
            strays: StrayList::new(),
            files: 0,
            begun: [None; BEGUN_MAX],
            nbegun: 0,
        }
    }
}

/// What sysmon knows of an M; guarded by the claim lock.
#[derive(Default)]
pub(crate) struct Watched(UnsafeCell<Knowledge>);

#[derive(Default)]
pub(in crate::sched) struct Knowledge {
    pub(in crate::sched) file: Option<TaskFile>,
    /// When a signal was last sent to its thread.
    pub(in crate::sched) sent_ns: u64,
    /// Consecutive signals that have not arrived.
    pub(in crate::sched) lost: u32,
    /// The thread's CPU clock and its count of voluntary switches when a signal was last
    /// considered.
    pub(in crate::sched) pulse: Option<(u64, Option<u64>)>,
}

// SAFETY: what is in the cell is reached through the claim lock's contents only (`known`).
unsafe impl Sync for Watched {}

impl Watched {
    pub(in crate::sched) fn known<'a>(&'a self, _claims: &'a mut Claims) -> &'a mut Knowledge {
        // SAFETY: `Claims` exists once in a runtime, under its claim lock, and an M has one
        // runtime. So the exclusive borrow of it keeps every other borrow of this cell away.
        unsafe { &mut *self.0.get() }
    }
}

/// Counters of blocking and preemption, for `debug::metrics`.
#[derive(Default)]
pub(crate) struct CallCounters {
    /// Ps taken from marked calls.
    pub(crate) retaken: Count,
    /// Ps taken from goroutines blocked in the kernel.
    pub(crate) claimed: Count,
    /// Claims that were cancelled because the goroutine moved.
    pub(crate) cancelled: Count,
    pub(crate) signals: Count,
    /// Goroutines that gave up their P in the signal handler.
    pub(crate) parked: Count,
    /// Goroutines that kept their P there, for lack of threads.
    pub(crate) refused: Count,
    /// System calls that a signal cut short: restarted, and not.
    pub(crate) restarted: Count,
    pub(crate) interrupted: Count,
    /// Strays that came back after computing without a P, and the CPU time they used.
    pub(crate) overshoots: Count,
    pub(crate) overshoot_ns: Count,
    pub(crate) has_said_limit: AtomicBool,
    /// The handler was found replaced, or the signal blocked.
    pub(crate) is_signal_lost: AtomicBool,
    /// `/proc` was found unreadable.
    pub(crate) has_no_proc: AtomicBool,
    pub(crate) has_no_membarrier: AtomicBool,
}

/// In `Stray::timer`: there is none.
pub(in crate::sched) const NO_TIMER: i32 = -1;

/// What an M has that is or was a stray.
pub(crate) struct Stray {
    /// Counted in `Strays::count`. The claimer sets it before TAKEN, the M clears it afterwards.
    pub(in crate::sched) is_counted: AtomicBool,
    /// Its CPU clock when its P was taken. The claimer writes it before TAKEN.
    pub(in crate::sched) since_cpu_ns: AtomicU64,
    /// Its timer. Written under the claim lock, read by the M's own handler.
    pub(in crate::sched) timer: AtomicI32,
    /// Whether it is on the list, and its neighbours there; under the claim lock.
    pub(in crate::sched) is_listed: Word<bool>,
    pub(in crate::sched) next: Word<Option<Mp>>,
    pub(in crate::sched) prev: Word<Option<Mp>>,
    /// Its CPU clock when sysmon last looked; under the claim lock.
    pub(in crate::sched) looked_cpu_ns: Word<u64>,
}

impl Default for Stray {
    fn default() -> Stray {
        Stray {
            is_counted: AtomicBool::new(false),
            since_cpu_ns: AtomicU64::new(0),
            timer: AtomicI32::new(NO_TIMER),
            is_listed: Word::new(false),
            next: Word::new(None),
            prev: Word::new(None),
            looked_cpu_ns: Word::new(0),
        }
    }
}

/// The counts of a runtime, read without a lock.
#[derive(Default)]
pub(crate) struct Strays {
    /// Ms whose P was taken and that have not been back.
    pub(crate) count: AtomicU32,
    /// Strays on the list. A stray that has come back stays there until the next scan.
    pub(crate) listed: AtomicU32,
    /// How often sysmon has looked at a listed stray.
    pub(crate) looks: AtomicU64,
}

/// The list of strays without a timer; under the claim lock.
pub(crate) struct StrayList {
    pub(in crate::sched) first: Option<Mp>,
    pub(in crate::sched) last: Option<Mp>,
}

/// sysmon's own fields, and what other threads store for it.
pub(crate) struct SysmonState {
    pub(in crate::sched) nap: Nap,
    /// The last scan found the last press served. sysmon's own.
    pub(in crate::sched) is_served: AtomicBool,
    pub(in crate::sched) rest_ns: AtomicU64,
    /// Consecutive scans that found runnable goroutines waiting and all Ps making progress.
    /// sysmon's own.
    pub(in crate::sched) calm: AtomicU32,
    /// When a fatal report that hangs is cut short; 0: no report is under way.
    pub(crate) fatal_deadline_ns: AtomicU64,
    /// The number of scans, for `debug::metrics`.
    pub(crate) looks: AtomicU64,
}
