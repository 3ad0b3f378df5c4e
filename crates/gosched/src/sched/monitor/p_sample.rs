//! What sysmon has seen of a P, and what follows from it without asking the kernel again (SM, D8). Who is asked, signalled or
//! loses its P then is decided in `retake`.

use crate::sched::model::word::Word;
use crate::sched::monitor::retake::{BLOCKED_NS, SLICE_NS};

/// A look at a CPU clock is compared with one at least this much older.
const BUSY_SPAN_NS: u64 = 100_000;

/// What sysmon saw of a P at its last look; sysmon's alone.
#[derive(Default)]
pub(crate) struct SeenP {
    pub(in crate::sched) tick: Word<u32>,
    pub(in crate::sched) since_ns: Word<u64>,
    pub(in crate::sched) call: Word<u32>,
    pub(in crate::sched) call_since_ns: Word<u64>,
    /// The CPU clock of its M at the last look, and at the first of this slice; 0: not looked at.
    pub(in crate::sched) cpu_ns: Word<u64>,
    pub(in crate::sched) first_cpu_ns: Word<u64>,
    /// An earlier look at the clock, and whether its thread has had the CPU for 3/4 of the time since the one before.
    pub(in crate::sched) span_ns: Word<u64>,
    pub(in crate::sched) span_cpu_ns: Word<u64>,
    pub(in crate::sched) is_busy: Word<bool>,
    /// The clock at a look after which the kernel said that its M can run, and when that was.
    pub(in crate::sched) ready_cpu_ns: Word<u64>,
    pub(in crate::sched) ready_ns: Word<u64>,
    /// The same where the kernel said that it sleeps, too short a time to take its P.
    pub(in crate::sched) asleep_cpu_ns: Word<u64>,
    /// When its goroutine was asked to make room; 0: it was not.
    pub(in crate::sched) asked_ns: Word<u64>,
}

impl SeenP {
    /// A new slice.
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

    /// A look at the CPU clock; returns whether it has stood still since the last.
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

    /// The thread has had no CPU since the last look, and the kernel has said, after the look at the clock, that it can run.
    pub(in crate::sched) fn note_ready(&self, cpu: u64, now: u64) {
        self.ready_cpu_ns.set(cpu);
        self.ready_ns.set(now);
    }

    /// Whether an answer that the kernel has given is still the answer, or comes too early to matter.
    pub(in crate::sched) fn is_known(&self, cpu: u64, age: u64, now: u64) -> bool {
        self.waits_for_cpu(now) || age < BLOCKED_NS && self.asleep_cpu_ns.get() == cpu
    }

    /// Whether the thread could run and has had no CPU since: it cannot have gone to sleep, and the kernel need not be asked again.
    /// Not for long, should a clock ever stand still for one that runs.
    pub(in crate::sched) fn waits_for_cpu(&self, now: u64) -> bool {
        self.ready_cpu_ns.get() == self.cpu_ns.get() && now - self.ready_ns.get() < SLICE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of three looks.
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
