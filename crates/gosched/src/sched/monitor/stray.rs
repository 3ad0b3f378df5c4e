//! Strays: Ms whose P was taken in an unmarked call and that have not been back in the runtime (U3,
//! D8).
//!
//! A stray may return from its call without entering the runtime. It then runs user code without a
//! P, perhaps as one more than GOMAXPROCS. It must be made to take a P or wait for one, and
//! thousands of sleeping strays must cost nothing. So the claimer arms a timer on the CPU clock of
//! the stray's thread, and no thread polls. Once the thread has used `BURN_NS`, it gets the
//! preemption signal at the next tick of the kernel.
//!
//! ```text
//!  the claimer, under the claim lock      the handler of the timer's signal, on the stray's thread
//!  1 counts the stray, notes its clock    1 inside the runtime, runtime dead, …: nothing;
//!                                           else take a P, or wait for one (`answer`)
//!  2 word: TAKEN                          2 word not TAKEN, or runtime dead: disarm the timer
//!  3 arms the timer                       3 word TAKEN after all: arm it again
//! ```
//!
//! An M that comes back leaves the timer armed: disarming would cost each return a system call. The
//! timer fires at most once more. The handler finds the word FREE and disarms it.
//!
//! Proof sketch. In the kernel the claimer's step 3 and the handler's step 2 exclude each other. If
//! the claimer's is first, the handler's load in step 3 comes after the claimer's step 2 and sees
//! TAKEN. If the handler's is first, the timer stays armed. Either way a stray has an armed timer.
//!
//! Each M has one timer. It is made when the M is first a stray, and deleted when its thread ends.
//! A stray goes on a list instead if the kernel refuses the timer, or if timers would take half of
//! the user's pending signals. sysmon looks at `LOOK_MAX` strays of the list each millisecond while
//! the list is longer than there are idle Ps. So the cost of the list is bounded, and a long list
//! is slow. Without preemption nothing can be done about a stray: it has no timer and is on no
//! list.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::base::lock::Held;
use crate::sched::Sched;
use crate::sched::model::ptr::Mp;
use crate::sched::model::watch::{Claims, NO_TIMER, Stray, StrayList};
use crate::sys;
use crate::sys::CpuTimer;

/// CPU time a stray may use without a P before the timer fires.
const BURN_NS: u64 = 50_000;
/// How many listed strays one scan looks at.
const LOOK_MAX: usize = 8;
/// Between two scans while listed strays may come back.
const PACE_NS: u64 = 1_000_000;

impl Stray {
    fn timer(&self) -> Option<CpuTimer> {
        // ORDER: Relaxed. The id is stored before the timer is armed, and the handler runs on the
        // M's thread after that.
        match self.timer.load(Relaxed) {
            NO_TIMER => None,
            id => Some(CpuTimer::from_id(id)),
        }
    }
}

/// Timers of all runtimes, and how many there may be; 0: not read yet.
static TIMERS: AtomicU64 = AtomicU64::new(0);
static TIMERS_MAX: AtomicU64 = AtomicU64::new(0);

/// Makes a timer for a thread, if half of the user's pending signals stay free for the program.
fn make_timer(tid: i32, signal: i32) -> Option<CpuTimer> {
    // ORDER: Relaxed, here and below. The counts order nothing, and being off by a few does no
    // harm.
    let max = match TIMERS_MAX.load(Relaxed) {
        0 => (sys::pending_signals_max() / 2).max(1),
        max => max,
    };
    TIMERS_MAX.store(max, Relaxed);
    if TIMERS.load(Relaxed) >= max {
        return None;
    }
    let timer = CpuTimer::new(tid, signal).ok()?;
    TIMERS.fetch_add(1, Relaxed);
    Some(timer)
}

impl StrayList {
    pub(crate) const fn new() -> StrayList {
        StrayList {
            first: None,
            last: None,
        }
    }

    fn push_back(&mut self, m: Mp) {
        m.stray.prev.set(self.last);
        m.stray.next.set(None);
        match self.last {
            Some(last) => last.stray.next.set(Some(m)),
            None => self.first = Some(m),
        }
        self.last = Some(m);
    }

    fn unlink(&mut self, m: Mp) {
        let (prev, next) = (m.stray.prev.take(), m.stray.next.take());
        match prev {
            Some(prev) => prev.stray.next.set(next),
            None => self.first = next,
        }
        match next {
            Some(next) => next.stray.prev.set(prev),
            None => self.last = prev,
        }
    }
}

impl Sched {
    /// Counts an M whose P is being taken while the M is in a call. Before the word is TAKEN. Under
    /// the claim lock, or on the M.
    pub(in crate::sched) fn count_stray(&self, m: Mp) {
        let cpu = sys::thread_cpu_ns(m.tid.load(Relaxed)).unwrap_or(u64::MAX);
        m.stray.since_cpu_ns.store(cpu, Relaxed);
        if !m.stray.is_counted.swap(true, Relaxed) {
            self.strays.count.fetch_add(1, Relaxed);
        }
    }

    /// The word is TAKEN: arms the timer that fires when the stray computes, or lists the stray.
    pub(in crate::sched) fn watch_stray(&self, claims: &mut Held<'_, Claims>, m: Mp) {
        if !self.config.preemption || self.arm_stray(m) {
            return;
        }
        m.stray
            .looked_cpu_ns
            .set(m.stray.since_cpu_ns.load(Relaxed));
        if !m.stray.is_listed.replace(true) {
            claims.strays.push_back(m);
            self.strays.listed.fetch_add(1, Relaxed);
        }
    }

    /// Arms the M's timer. Returns false if the M gets no timer, or the signal does not arrive.
    /// Under the claim lock.
    fn arm_stray(&self, m: Mp) -> bool {
        if self.calls.is_signal_lost.load(Relaxed) {
            return false;
        }
        if m.stray.timer().is_none()
            && let Some(timer) = make_timer(m.tid.load(Relaxed), self.config.preemption_signal)
        {
            m.stray.timer.store(timer.id(), Relaxed);
        }
        m.stray
            .timer()
            .is_some_and(|timer| timer.set(BURN_NS).is_ok())
    }

    /// The M is a stray no longer: it has a P, or needs none, and the word is not TAKEN. On the M.
    /// CONTEXT: signal.
    pub(in crate::sched) fn stray_is_back(&self, m: Mp) {
        if !m.stray.is_counted.load(Relaxed) {
            return; // it comes from a marked call
        }
        m.stray.is_counted.store(false, Relaxed);
        self.strays.count.fetch_sub(1, Relaxed);
        let cpu = sys::thread_cpu_ns(m.tid.load(Relaxed)).unwrap_or(0);
        let burned = cpu.saturating_sub(m.stray.since_cpu_ns.load(Relaxed));
        if burned >= BURN_NS {
            self.calls.overshoots.add_shared(1);
            self.calls.overshoot_ns.add_shared(burned);
        }
    }

    /// Disarms the timer whose signal the handler has answered, unless the M is still a stray. On
    /// the M. CONTEXT: signal.
    pub(in crate::sched) fn disarm_unless_stray(&self, m: Mp) {
        let is_stray = || m.claim.is_taken() && !self.dead.load(Relaxed);
        if is_stray() {
            return; // the handler could do nothing now: the timer fires again
        }
        if let Some(timer) = m.stray.timer() {
            // If the kernel refuses, the timer stays armed, which costs one more signal.
            let _ = timer.set(0);
            if is_stray() {
                let _ = timer.set(BURN_NS);
            }
        }
    }

    /// Signals listed strays that compute, so that they take a P or wait for one. Returns how soon
    /// to scan again.
    pub(in crate::sched) fn look_at_strays(&self, claims: &mut Held<'_, Claims>) -> u64 {
        let listed = self.strays.listed.load(Relaxed);
        for _ in 0..LOOK_MAX.min(listed as usize) {
            let Some(m) = claims.strays.first else { break };
            claims.strays.unlink(m);
            if !m.claim.is_taken() {
                m.stray.is_listed.set(false);
                self.strays.listed.fetch_sub(1, Relaxed);
                continue;
            }
            claims.strays.push_back(m);
            self.look_at_stray(claims, m);
        }
        // With an idle P for each of them, at most GOMAXPROCS goroutines run whichever come back.
        let is_urgent = self.strays.listed.load(Relaxed) > self.spin.npidle.load(Relaxed);
        if is_urgent { PACE_NS } else { u64::MAX }
    }

    fn look_at_stray(&self, claims: &mut Held<'_, Claims>, m: Mp) {
        self.strays.looks.fetch_add(1, Relaxed);
        let Some(cpu) = sys::thread_cpu_ns(m.tid.load(Relaxed)) else {
            return;
        };
        if cpu.saturating_sub(m.stray.looked_cpu_ns.get()) >= BURN_NS {
            m.stray.looked_cpu_ns.set(cpu);
            self.signal_if_computing(claims, m, sys::monotonic_ns(), false);
        }
    }

    /// The M's thread ends: the next thread that uses the struct has another CPU clock.
    pub(in crate::sched) fn forget_stray(&self, claims: &mut Held<'_, Claims>, m: Mp) {
        if let Some(timer) = m.stray.timer() {
            m.stray.timer.store(NO_TIMER, Relaxed);
            timer.delete();
            TIMERS.fetch_sub(1, Relaxed);
        }
        if m.stray.is_counted.swap(false, Relaxed) {
            self.strays.count.fetch_sub(1, Relaxed);
        }
        if m.stray.is_listed.replace(false) {
            claims.strays.unlink(m);
            self.strays.listed.fetch_sub(1, Relaxed);
        }
    }
}
