//! sysmon's samples of a P, and what follows from them without another system call (SM, D8).
//!
//! They save reads of `/proc`: sysmon asks the kernel only if no earlier sample has the answer.
//! `retake` decides which goroutine is asked to yield, is signalled, or loses its P.

use crate::sched::model::word::Word;

/// A thread that is blocked in the kernel for this long loses its P, if goroutines wait.
pub(crate) const BLOCKED_NS: u64 = 1_000_000;
/// A goroutine's time slice.
pub(crate) const SLICE_NS: u64 = 10_000_000;
/// Two samples of a CPU clock are compared if they are at least this far apart.
const BUSY_SPAN_NS: u64 = 100_000;

/// sysmon's last sample of a P; only sysmon uses it.
#[derive(Default)]
pub(crate) struct SeenP {
    pub(in crate::sched) tick: Word<u32>,
    pub(in crate::sched) since_ns: Word<u64>,
    pub(in crate::sched) call: Word<u32>,
    pub(in crate::sched) call_since_ns: Word<u64>,
    /// The CPU clock of its M at the last sample, and at the first of this slice; 0: not read.
    pub(in crate::sched) cpu_ns: Word<u64>,
    pub(in crate::sched) first_cpu_ns: Word<u64>,
    /// An earlier sample of the clock, and whether the thread used the CPU for 3/4 of the time
    /// between that sample and the one before.
    pub(in crate::sched) span_ns: Word<u64>,
    pub(in crate::sched) span_cpu_ns: Word<u64>,
    pub(in crate::sched) is_busy: Word<bool>,
    /// The CPU clock and the time at which the kernel last reported the M as runnable.
    pub(in crate::sched) ready_cpu_ns: Word<u64>,
    pub(in crate::sched) ready_ns: Word<u64>,
    /// The CPU clock when the kernel reported the M as blocked, too early to take its P.
    pub(in crate::sched) asleep_cpu_ns: Word<u64>,
    /// When its goroutine was asked to yield; 0: it was not.
    pub(in crate::sched) asked_ns: Word<u64>,
}

impl SeenP {
    /// A new time slice began.
    pub(in crate::sched) fn begin(&self, tick: u32, now: u64) {
        self.tick.set(tick);
        self.since_ns.set(now);
        self.cpu_ns.set(0);
        self.first_cpu_ns.set(u64::MAX);
        self.span_ns.set(0);
        self.is_busy.set(false);
        self.ready_cpu_ns.set(u64::MAX);
        self.asleep_cpu_ns.set(u64::MAX);
        self.asked_ns.set(0);
    }

    /// Records a sample of the CPU clock; returns whether the clock has stood still since the last
    /// one.
    pub(in crate::sched) fn note_cpu(&self, cpu: u64, now: u64) -> bool {
        let before = self.cpu_ns.replace(cpu);
        if before == 0 {
            self.first_cpu_ns.set(cpu);
        }
        let span = now - self.span_ns.get();
        if span >= BUSY_SPAN_NS {
            let used = cpu.saturating_sub(self.span_cpu_ns.replace(cpu));
            let is_first = self.span_ns.replace(now) == 0;
            self.is_busy.set(!is_first && used >= span / 4 * 3);
        }
        before == cpu
    }

    /// The kernel reported the thread as runnable, and its CPU clock had not moved before that.
    pub(in crate::sched) fn note_ready(&self, cpu: u64, now: u64) {
        self.ready_cpu_ns.set(cpu);
        self.ready_ns.set(now);
    }

    /// Whether the kernel's last answer still holds, or a new one would come too early to matter.
    pub(in crate::sched) fn is_known(&self, cpu: u64, age: u64, now: u64) -> bool {
        self.waits_for_cpu(now) || age < BLOCKED_NS && self.asleep_cpu_ns.get() == cpu
    }

    /// Whether the thread was runnable and has had no CPU since. It cannot have blocked without
    /// running, so the kernel need not be asked again. Valid for one slice only, in case a clock
    /// stands still while its thread runs.
    pub(in crate::sched) fn waits_for_cpu(&self, now: u64) -> bool {
        self.ready_cpu_ns.get() == self.cpu_ns.get() && now - self.ready_ns.get() < SLICE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of three samples.
    const FIRST: u64 = 77 * SLICE_NS;
    const SECOND: u64 = FIRST + 250_000;
    const THIRD: u64 = SECOND + 250_000;

    #[test]
    fn d8_who_could_run_and_has_not_since_waits_for_a_cpu() {
        let seen = SeenP::default();
        seen.begin(1, FIRST);
        assert!(!seen.note_cpu(70, FIRST), "a first look");
        assert!(seen.note_cpu(70, SECOND));
        assert!(!seen.waits_for_cpu(SECOND), "it may be asleep");
        seen.note_ready(70, SECOND);
        assert!(seen.note_cpu(70, THIRD));
        assert!(seen.waits_for_cpu(THIRD));
        assert!(
            !seen.waits_for_cpu(SECOND + SLICE_NS),
            "the kernel is asked again after a while"
        );
    }

    #[test]
    fn d8_who_has_run_since_may_be_asleep() {
        let seen = SeenP::default();
        seen.begin(1, FIRST);
        seen.note_cpu(70, FIRST);
        seen.note_ready(70, FIRST);
        assert!(!seen.note_cpu(71, SECOND));
        assert!(!seen.waits_for_cpu(SECOND));
        seen.note_ready(71, SECOND);
        seen.begin(2, SECOND);
        assert!(!seen.waits_for_cpu(SECOND), "another slice");
    }

    #[test]
    fn d8_a_sleeper_is_asked_about_once_until_it_has_slept_long_enough() {
        let seen = SeenP::default();
        seen.begin(1, FIRST);
        seen.note_cpu(70, SECOND);
        assert!(!seen.is_known(70, SECOND - FIRST, SECOND));
        seen.asleep_cpu_ns.set(70);
        assert!(seen.is_known(70, THIRD - FIRST, THIRD));
        assert!(!seen.is_known(71, THIRD - FIRST, THIRD), "it has run since");
        assert!(!seen.is_known(70, BLOCKED_NS, FIRST + BLOCKED_NS));
    }
}
