//! Room for marked calls: how many threads `gosched::blocking` may hold, and which callers wait for
//! one (SY, MG).
//!
//! A marked call that lasts costs a thread. Without a limit the last threads would end up in calls,
//! and the runtime would stop. So once few threads are left, a goroutine that is about to begin a
//! call waits until another call has returned.
//!
//! ```text
//!  begin a call                                     end a call
//!  1 not full: go                                   1 a goroutine waits: pass a permit on
//!  2 warn once; waiting + 1; acquire a permit
//!    (first come, first served); waiting − 1        sysmon, while a goroutine waits
//!                                                   1 not full: a permit, if none is free
//!                                                   2 full, no call has returned for 10 s: fatal
//! ```
//!
//! *Full*: some marked call has lost its P, and at most GOMAXPROCS Ms are spare, since that many
//! calls may just be beginning. A caller waits only while there is a call to wait for. So a runtime
//! with hardly any threads still makes one call at a time.
//!
//! ORDER: all Relaxed. `is_full` is a hint, stored under the scheduler lock. A caller that misses
//! it takes a thread of the reserve. A caller that counts itself as waiting too late for the call
//! that returns is served by sysmon, which scans every 10 ms.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

use crate::base::fatal;
use crate::sched::life::thread_locals::is_home;
use crate::sched::model::p::PStatus;
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::waiting::semaphore::Semaphore;
use crate::sched::{Core, Sched};
use crate::sys;

/// If goroutines wait and no marked call returns for this long, the process ends.
pub(crate) static PATIENCE_NS: AtomicU64 = AtomicU64::new(10_000_000_000);

/// What is known of the threads that marked calls hold.
pub(crate) struct CallRoom {
    /// Marked calls that have lost their P. Below zero for a moment if a call returns before its
    /// loss is counted.
    out: AtomicI32,
    is_full: AtomicBool,
    /// Goroutines that wait to begin a call.
    waiting: AtomicU32,
    /// Calls that returned while others waited.
    returned: AtomicU32,
    /// A P has no thread, and only a returning call can bring one.
    is_stuck: AtomicBool,
    has_warned: AtomicBool,
    permits: Semaphore,
}

/// The most that counts of the time between two looks of sysmon.
const GAP_MAX_NS: u64 = 1_000_000_000;

/// Since when no call has returned. sysmon's own.
#[derive(Default)]
pub(crate) struct Shortage {
    since_ns: u64,
    returned: u32,
    /// When sysmon looked last.
    looked_ns: u64,
}

impl CallRoom {
    pub(crate) const fn new() -> CallRoom {
        CallRoom {
            out: AtomicI32::new(0),
            is_full: AtomicBool::new(false),
            waiting: AtomicU32::new(0),
            returned: AtomicU32::new(0),
            is_stuck: AtomicBool::new(false),
            has_warned: AtomicBool::new(false),
            permits: Semaphore::new(0),
        }
    }

    /// A marked call has lost its P.
    #[inline]
    pub(crate) fn call_is_out(&self) {
        self.out.fetch_add(1, Relaxed);
    }

    /// Whether any marked call has lost its P.
    #[inline]
    pub(crate) fn has_calls_out(&self) -> bool {
        self.out.load(Relaxed) > 0
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Relaxed)
    }

    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }
}

impl Sched {
    /// Recomputes `is_full` after a change of `out`, `nmidle`, `mcount` or `is_refused`.
    pub(crate) fn mirror_room(&self, core: &Core) {
        let is_full = self.room.has_calls_out() && self.spare_ms(core) <= self.nprocs();
        self.room.is_full.store(is_full, Relaxed);
    }

    /// A marked call that had lost its P has returned and needs one.
    pub(crate) fn call_is_back(&self) {
        self.room.out.fetch_sub(1, Relaxed);
        self.room.returned.fetch_add(1, Relaxed);
        if self.room.is_full() {
            self.mirror_room(&self.core.lock());
        }
    }

    pub(crate) fn ms_in_calls(&self) -> i32 {
        let left = |p: &crate::sched::model::ptr::Pp| p.status() == PStatus::Syscall;
        self.room.out.load(Relaxed).max(0) + self.procs().filter(left).count() as i32
    }

    /// A P finds no thread, and only Ms in marked calls can take it. Under the scheduler lock.
    #[cold]
    pub(crate) fn wait_for_calls(&self) {
        self.warn_of_calls();
        self.room.is_stuck.store(true, Relaxed);
        self.sysmon.wake();
    }

    fn warn_of_calls(&self) {
        if !self.room.has_warned.swap(true, Relaxed) {
            sys::eprint_raw(format_args!(
                "gosched: calls in gosched::blocking hold as many threads as they may have; further ones wait until one \
                 returns (Builder::max_threads is {})\n",
                self.config.max_threads
            ));
        }
    }

    /// Gives the first goroutine that waits to begin a call its permit.
    fn make_room(&self) {
        if self.room.permits.available_permits() == 0 {
            self.room.permits.release();
        }
    }

    /// Serves goroutines that wait for a call to return, and ends the process if none returns.
    /// sysmon.
    pub(crate) fn watch_room(&self, now: u64, shortage: &mut Shortage) {
        let room = &self.room;
        let gap = now - std::mem::replace(&mut shortage.looked_ns, now);
        if !room.is_awaited() && !room.is_stuck.load(Relaxed) {
            shortage.since_ns = 0;
            return;
        }
        if shortage.since_ns != 0 {
            // A process that stood still has not waited for its calls.
            shortage.since_ns += gap.saturating_sub(GAP_MAX_NS);
        }
        let core = self.core.lock();
        self.mirror_limit(&core);
        let is_stuck = core.npending > 0 && self.is_out_of_threads(&core);
        room.is_stuck.store(is_stuck, Relaxed);
        let is_full = room.is_full();
        // A name lookup returns: libc's timeouts end it.
        let comes_back = self.lookups.under_way() > 0;
        // A lookup may wait for ever: a slow network must not end the process.
        let waiting = room.waiting.load(Relaxed);
        let is_call_awaited = waiting > self.lookups.waiting.load(Relaxed);
        let is_short = !comes_back && (is_stuck || is_full && is_call_awaited && !core.is_refused);
        drop(core);
        if room.is_awaited() && !is_full {
            self.make_room();
        }
        let returned = room.returned.load(Relaxed);
        if !is_short || shortage.since_ns == 0 || returned != shortage.returned {
            shortage.since_ns = now;
            shortage.returned = returned;
        } else if now - shortage.since_ns >= PATIENCE_NS.load(Relaxed) {
            fatal::thread_exhaustion(self.config.max_threads);
        }
    }
}

/// A marked call is about to begin and there is no room: waits for a permit. In user context.
#[cold]
#[inline(never)]
pub(crate) fn wait_for_room(m: Mp, g: Gp) {
    let sched = m.sched();
    // The goroutine cannot wait without a P to give up, or while it stops a world or drops a
    // runtime. Nor on the thread's own thread-locals.
    let cannot_wait = m.p.load(Relaxed).is_none() || !m.may_be_preempted() || !is_home(m, g);
    if cannot_wait {
        return;
    }
    sched.warn_of_calls();
    let room = &sched.room;
    room.waiting.fetch_add(1, Relaxed);
    let waiting = Waiting(room);
    std::mem::forget(room.permits.acquire());
    drop(waiting);
}

/// Counts in `CallRoom::waiting` until dropped, also when the goroutine unwinds (`shutdown`).
struct Waiting<'a>(&'a CallRoom);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

/// A marked call has returned while goroutines wait to begin one. In user context.
#[cold]
#[inline(never)]
pub(crate) fn pass_on_room(g: Gp) {
    let sched = g.sched();
    sched.room.returned.fetch_add(1, Relaxed);
    sched.make_room();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::still;

    /// No thread is left, one call is out, and one goroutine waits to begin another call.
    fn with_a_full_room() -> Box<Sched> {
        let sched = still(1);
        sched.core.lock().mcount = sched.config.max_threads;
        sched.room.call_is_out();
        sched.room.waiting.store(1, Relaxed);
        sched
    }

    /// The time since a call last returned counts, not how long a goroutine waits.
    #[test]
    fn mg_patience_begins_anew_with_each_return() {
        let sched = with_a_full_room();
        let (mut shortage, second) = (Shortage::default(), 1_000_000_000);
        let mut last = 99;
        // sysmon looks once a second.
        let mut look = |now: u64| {
            for at in last + 1..=now {
                sched.watch_room(at * second, &mut shortage);
            }
            last = now;
            shortage.since_ns / second
        };
        assert_eq!([look(100), look(105)], [100, 100]);
        sched.room.returned.fetch_add(1, Relaxed);
        assert_eq!([look(109), look(115)], [106, 106]);
        assert!(sched.room.is_full());
        // Only a lookup waits for a thread: it may wait for ever.
        sched.lookups.waiting.store(1, Relaxed);
        assert_eq!([look(119), look(150)], [119, 150]);
        sched.lookups.waiting.store(0, Relaxed);
        assert_eq!([look(151), look(159)], [150, 150]);
        // A lookup is under way, and libc's timeouts end it.
        sched
            .lookups
            .run(|| assert_eq!([look(160), look(175)], [160, 175]));
        sched.room.returned.fetch_add(1, Relaxed);
        // A thread is free: no goroutine has to wait, and the waiting one gets its permit.
        sched.core.lock().mcount = 1;
        assert_eq!([look(181), look(190)], [181, 190]);
        assert!(!sched.room.is_full());
        assert_eq!(sched.room.permits.available_permits(), 1);
        sched.room.waiting.store(0, Relaxed);
        assert_eq!(look(200), 0);
    }

    /// The process is stopped for an hour, with a call that would have returned.
    #[test]
    fn mg_a_process_that_stood_still_has_not_waited() {
        let sched = with_a_full_room();
        let (mut shortage, second) = (Shortage::default(), 1_000_000_000);
        sched.watch_room(100 * second, &mut shortage);
        sched.watch_room(3_700 * second, &mut shortage);
        assert_eq!(shortage.since_ns, 3_699 * second);
    }

    /// No goroutine waits if there is no call to wait for.
    #[test]
    fn mg_room_is_full_only_while_a_call_is_out() {
        let sched = still(2);
        let mut core = sched.core.lock();
        core.mcount = sched.config.max_threads;
        sched.mirror_limit(&core);
        assert!(!sched.room.is_full());
        sched.room.call_is_out();
        for (spare, is_full) in [(0, true), (2, true), (3, false), (0, true)] {
            core.mcount = sched.config.max_threads - spare;
            sched.mirror_limit(&core);
            assert_eq!(sched.room.is_full(), is_full, "{spare} spare");
        }
        drop(core);
        sched.call_is_back();
        assert!(!sched.room.is_full());
    }
}
