//! The claim under stress (D8): an M that enters and leaves as fast as it can, a claimer that asks
//! as often as it can. Without the barrier on every CPU (`--cfg gosched_no_membarrier`) this goes
//! wrong within a second.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use crate::sched::model::watch::claim::{Claim, Found};
use crate::sys;

/// An M and its P, as far as the claim is concerned.
struct Pair {
    claim: Claim,
    /// The M works with its P.
    m_uses: AtomicBool,
    /// The claimer has the P.
    claimer_has: AtomicBool,
    violations: AtomicU64,
    taken: AtomicU32,
    is_over: AtomicBool,
}

impl Pair {
    fn expect(&self, holds: bool) {
        if !holds {
            self.violations.fetch_add(1, Relaxed);
        }
    }

    /// In and out of the runtime, using the P whenever it is there.
    fn run_m(&self) {
        while !self.is_over.load(Relaxed) {
            let has_p = self.claim.enter() || self.claim.look() == Found::Kept;
            if has_p {
                self.m_uses.store(true, Relaxed);
                self.expect(!self.claimer_has.load(Relaxed));
                (0..3).for_each(|_| std::hint::spin_loop());
                self.m_uses.store(false, Relaxed);
            } else {
                self.claim.resume();
            }
            self.claim.leave();
            (0..3).for_each(|_| std::hint::spin_loop());
        }
    }

    fn run_claimer(&self) {
        while !self.is_over.load(Relaxed) {
            if self.claim.begin() && self.claim.confirm(|| true) {
                self.claimer_has.store(true, Relaxed);
                for _ in 0..100 {
                    self.expect(!self.m_uses.load(Relaxed));
                }
                self.claimer_has.store(false, SeqCst);
                self.taken.fetch_add(1, Relaxed);
                self.claim.finish();
            }
        }
    }
}

#[test]
fn d8_p3_a_claimed_p_has_one_user() {
    assert!(sys::membarrier_register());
    let pair = Pair {
        claim: Claim::new(),
        m_uses: AtomicBool::new(false),
        claimer_has: AtomicBool::new(false),
        violations: AtomicU64::new(0),
        taken: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
    };
    let began = Instant::now();
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(4));
    std::thread::scope(|s| {
        s.spawn(|| pair.run_m());
        s.spawn(|| pair.run_claimer());
        while began.elapsed() < least || pair.taken.load(Relaxed) < 5_000 && began.elapsed() < most
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        pair.is_over.store(true, Relaxed);
    });
    assert!(pair.taken.load(Relaxed) > 0, "nothing was ever taken");
    assert_eq!(pair.violations.load(Relaxed), 0, "both had the P");
}
