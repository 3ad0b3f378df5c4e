//! A barrier on every CPU, paid for only by the caller: `membarrier`.
//!
//! It makes entering the runtime cheap. An M that enters makes a plain store, a compiler fence and
//! a load (D8), so the processor may still perform the load first. The thread that takes a P away
//! pays for both sides: it stores its claim, calls [`membarrier`], and loads what the M wrote.
//! After the call every other running thread of the process has passed a full barrier between two
//! of its instructions. So at least one of the two stores is seen by the other side. A thread that
//! does not run passed a barrier when it left its CPU.
//!
//! The kernel serves only a process that has *registered*. A process that cannot register must not
//! use the asymmetric claim at all. A process may lose the right while it runs: a seccomp filter
//! may refuse the call, installed by any thread for all of them. Then the claim under way is
//! cancelled, and no other follows.
//!
//! With `--cfg gosched_no_membarrier` the barrier is left out, to show that the stress test of the
//! claim notices.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys::linux::inject::REFUSE_MEMBARRIER;
use crate::sys::linux::syscall::{Errno, check, syscall3};

/// The kernel's command for "a barrier in this process's running threads, now".
const PRIVATE_EXPEDITED: usize = 1 << 3;

/// The kernel's command for "this process is going to use that".
const REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;

/// The result of registering: one of the three below.
static REGISTERED: AtomicU8 = AtomicU8::new(UNTRIED);

/// Not tried yet.
const UNTRIED: u8 = 0;
/// The kernel serves this process.
const SERVED: u8 = 1;
/// The kernel is too old, or a filter forbids the call.
const REFUSED: u8 = 2;

/// Registers with the kernel, once, and returns whether [`membarrier`] may be called; CONTEXT: any.
pub(crate) fn membarrier_register() -> bool {
    // ORDER: Relaxed; a test's switch, stored before the threads that load it start.
    if REFUSE_MEMBARRIER.load(Relaxed) {
        return false;
    }
    // ORDER: Acquire; pairs with the Release below. A thread that loads SERVED is served.
    match REGISTERED.load(Acquire) {
        UNTRIED => {
            // One barrier for trial: a filter may allow the registration and refuse the barrier.
            // This finds it before the first claim.
            let served = command(REGISTER_PRIVATE_EXPEDITED)
                .and_then(|()| command(PRIVATE_EXPEDITED))
                .is_ok();
            // ORDER: Release; pairs with the Acquire above. Threads that race here all store the
            // same result.
            REGISTERED.store(if served { SERVED } else { REFUSED }, Release);
            served
        }
        known => known == SERVED,
    }
}

/// Returns true once every other running thread of this process, and the caller, has passed a full
/// barrier. Returns false if the kernel refuses it; [`membarrier_register`] then returns false too;
/// CONTEXT: any.
#[must_use = "without the barrier nothing is known of the other side"]
pub(crate) fn membarrier() -> bool {
    #[cfg(gosched_no_membarrier)]
    {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        true
    }
    // The system call is opaque to the compiler, so the compiler moves no access across it.
    #[cfg(not(gosched_no_membarrier))]
    {
        let is_served = command(PRIVATE_EXPEDITED).is_ok();
        if !is_served {
            // ORDER: Release; pairs with the Acquire in `membarrier_register`. A filter cannot be
            // removed, so no thread stores SERVED after this.
            REGISTERED.store(REFUSED, Release);
        }
        is_served
    }
}

fn command(number: usize) -> Result<(), Errno> {
    // SAFETY: the call takes numbers and touches no memory (D9: bare call).
    check(unsafe { syscall3(libc::SYS_membarrier, number, 0, 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::clock::monotonic_ns;
    use crate::tests::child;
    use core::sync::atomic::Ordering::SeqCst;
    use core::sync::atomic::{AtomicU64, compiler_fence};

    /// Two threads each store their own word and load the other's; one of them uses only a compiler
    /// fence. `u64::MAX` as the round ends that thread.
    #[derive(Default)]
    struct Litmus {
        round: Line,
        cheap: Line,
        costly: Line,
        cheap_saw: Line,
        done: Line,
    }

    /// A word with a cache line to itself.
    #[derive(Default)]
    #[repr(align(128))]
    struct Line(AtomicU64);

    fn cheap_side(litmus: &Litmus) {
        let mut last = 0;
        loop {
            let round = litmus.round.0.load(SeqCst);
            if round == u64::MAX {
                return;
            }
            if round == last {
                std::hint::spin_loop();
                continue;
            }
            last = round;
            // ORDER: Relaxed; the other side's `membarrier` orders the two. This is what the test
            // shows.
            litmus.cheap.0.store(round, Relaxed);
            compiler_fence(SeqCst);
            // ORDER: Relaxed; ordered by the other side's `membarrier`.
            let saw = litmus.costly.0.load(Relaxed);
            litmus.cheap_saw.0.store(saw, SeqCst);
            litmus.done.0.store(round, SeqCst);
        }
    }

    /// Plays one round; returns false if neither side saw the other.
    fn costly_side(litmus: &Litmus, round: u64) -> bool {
        litmus.round.0.store(round, SeqCst);
        // Different delays, so that the two meet in some rounds.
        (0..round % 64).for_each(|_| std::hint::spin_loop());
        // ORDER: Relaxed; the `membarrier` below orders the store and the load.
        litmus.costly.0.store(round, Relaxed);
        assert!(membarrier());
        // ORDER: Relaxed; the `membarrier` above orders the store and the load.
        let saw = litmus.cheap.0.load(Relaxed);
        while litmus.done.0.load(SeqCst) != round {
            std::hint::spin_loop();
        }
        saw == round || litmus.cheap_saw.0.load(SeqCst) == round
    }

    #[test]
    fn of_two_sides_one_sees_the_other() {
        assert!(membarrier_register());
        let litmus = Litmus::default();
        let missed = std::thread::scope(|scope| {
            scope.spawn(|| cheap_side(&litmus));
            let end = monotonic_ns() + 500_000_000;
            let missed = (1..200_000)
                .take_while(|_| monotonic_ns() < end)
                .filter(|&round| !costly_side(&litmus, round))
                .count();
            litmus.round.0.store(u64::MAX, SeqCst);
            missed
        });
        assert_eq!(missed, 0);
    }

    /// The switch concerns the whole process, so this test runs in a process of its own.
    #[test]
    fn a_refusal_is_said_and_not_remembered() {
        if !child::is_one() {
            let output = child::run(module_path!(), "a_refusal_is_said_and_not_remembered");
            assert!(output.status.success(), "{output:?}");
            return;
        }
        REFUSE_MEMBARRIER.store(true, SeqCst);
        assert!(!membarrier_register());
        assert_eq!(REGISTERED.load(SeqCst), UNTRIED);
        REFUSE_MEMBARRIER.store(false, SeqCst);
        assert!(membarrier_register() && membarrier_register() && membarrier());
        REFUSE_MEMBARRIER.store(true, SeqCst);
        assert!(!membarrier_register());
    }

    /// In a process of its own, which has not registered.
    #[cfg(not(gosched_no_membarrier))]
    #[test]
    fn a_barrier_that_is_refused_is_not_asked_for_again() {
        if child::is_one() {
            assert!(!membarrier());
            assert_eq!(REGISTERED.load(SeqCst), REFUSED);
            assert!(!membarrier_register());
            return;
        }
        let output = child::run(
            module_path!(),
            "a_barrier_that_is_refused_is_not_asked_for_again",
        );
        assert!(output.status.success(), "{output:?}");
    }
}
