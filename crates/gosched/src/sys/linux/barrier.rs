//! A barrier for everybody, paid for by the one who asks.
//!
//! Entering the runtime is a plain store, a compiler fence and a load (D8), so the
//! processor may still perform the load first. Whoever takes a P away pays for both
//! sides: it stores its claim, calls [`membarrier`], and reads what the other wrote.
//! After the call every other running thread of the process has passed a full barrier
//! between two of its instructions, so of the two stores at least one is seen by the
//! other side. A thread that does not run passed one when it left its CPU.
//!
//! The kernel serves only a process that has *registered*. A process that cannot must
//! not use the asymmetric claim at all. A process may lose the right while it runs: a
//! seccomp filter that it installs, or that another thread installs for all of them,
//! refuses the call. Then the claim under way is off, and there is none after it.
//!
//! Built with `--cfg gosched_no_membarrier` the barrier is left out, to show that the
//! stress of the claim notices.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::sys::linux::inject::REFUSE_MEMBARRIER;
use crate::sys::linux::syscall::{Errno, check, syscall3};

/// The kernel's number for "a barrier in this process's running threads, now".
const PRIVATE_EXPEDITED: usize = 1 << 3;

/// The kernel's number for "this process is going to ask for that".
const REGISTER_PRIVATE_EXPEDITED: usize = 1 << 4;

/// What registering led to: one of the three below.
static REGISTERED: AtomicU8 = AtomicU8::new(UNTRIED);

/// Nobody has asked yet.
const UNTRIED: u8 = 0;
/// The kernel serves this process.
const SERVED: u8 = 1;
/// The kernel is too old, or a filter forbids the call.
const REFUSED: u8 = 2;

/// Asks the kernel once for the right to call [`membarrier`] and says whether it was
/// given; CONTEXT: any.
pub(crate) fn membarrier_register() -> bool {
    // ORDER: Relaxed; a test's switch, set before the threads that look at it start.
    if REFUSE_MEMBARRIER.load(Relaxed) {
        return false;
    }
    // ORDER: Acquire; pairs with the Release below: who reads SERVED is served.
    match REGISTERED.load(Acquire) {
        UNTRIED => {
            // One barrier for trial, so that a filter which lets only the registration
            // pass is found out here and not by the first claim.
            let served = command(REGISTER_PRIVATE_EXPEDITED)
                .and_then(|()| command(PRIVATE_EXPEDITED))
                .is_ok();
            // ORDER: Release; pairs with the Acquire above. Threads that race here all
            // store the same answer.
            REGISTERED.store(if served { SERVED } else { REFUSED }, Release);
            served
        }
        known => known == SERVED,
    }
}

/// When it returns true, every other running thread of this process has passed a full
/// barrier, and so has the caller. False: the kernel refuses it, and from now on
/// [`membarrier_register`] says so too; CONTEXT: any.
#[must_use = "without the barrier nothing is known of the other side"]
pub(crate) fn membarrier() -> bool {
    #[cfg(gosched_no_membarrier)]
    {
        core::sync::atomic::compiler_fence(core::sync::atomic::Ordering::SeqCst);
        true
    }
    // The system call is opaque to the compiler, so it moves no access across it.
    #[cfg(not(gosched_no_membarrier))]
    {
        let is_served = command(PRIVATE_EXPEDITED).is_ok();
        if !is_served {
            // ORDER: Release; as in `membarrier_register`. A filter cannot be taken off,
            // so nobody stores SERVED after this.
            REGISTERED.store(REFUSED, Release);
        }
        is_served
    }
}

/// Makes the system call with one of the two commands.
fn command(number: usize) -> Result<(), Errno> {
    // SAFETY: the call touches no memory (D9: bare call).
    check(unsafe { syscall3(libc::SYS_membarrier, number, 0, 0) }).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::clock::monotonic_ns;
    use crate::tests::child;
    use core::sync::atomic::Ordering::SeqCst;
    use core::sync::atomic::{AtomicU64, compiler_fence};

    /// Two threads each store their own word and read the other's; one of them with a
    /// compiler fence alone. `u64::MAX` as the round ends the other thread.
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
            // ORDER: Relaxed; made strong by the other side's barrier, which is the point.
            litmus.cheap.0.store(round, Relaxed);
            compiler_fence(SeqCst);
            // ORDER: Relaxed; as above.
            let saw = litmus.costly.0.load(Relaxed);
            litmus.cheap_saw.0.store(saw, SeqCst);
            litmus.done.0.store(round, SeqCst);
        }
    }

    /// Plays one round; false when neither side saw the other.
    fn costly_side(litmus: &Litmus, round: u64) -> bool {
        litmus.round.0.store(round, SeqCst);
        // Differing delays, so that the two meet in some of the rounds.
        (0..round % 64).for_each(|_| std::hint::spin_loop());
        // ORDER: Relaxed; the barrier orders the two.
        litmus.costly.0.store(round, Relaxed);
        assert!(membarrier());
        // ORDER: Relaxed; as above.
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

    /// The switch is the whole process's, so this test runs in one of its own.
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

    /// In a process of its own, which nobody has registered.
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
