//! The claim under stress (D8): an M that enters and leaves as fast as it can, a claimer that asks
//! as often as it can. Without the barrier on every CPU (`--cfg gosched_no_membarrier`) this goes
//! wrong within a second.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use super::*;
use crate::sched::model::m::YIELD;
use crate::sched::model::p::PStatus;
use crate::sched::model::watch::claim::{self, Claim, Found};
use crate::sched::model::watch::{BEGUN_MAX, Begun};
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
            if self.claim.begin() && self.claim.confirm(claim::barrier(), || true) {
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

/// An M with a P, whose goroutine is in user code.
fn m_in_user_code(sched: &Sched) -> (Mp, Pp) {
    let (m, p) = m_with_p(sched);
    let g = runnable_g(sched);
    g.status.transition(Status::Runnable, Status::Running);
    m.curg.store(Some(g), Relaxed);
    (m, p)
}

/// One barrier serves many claims. No P is taken before it. Behind it each M is looked at by
/// itself: an M that has entered meanwhile keeps its P, whether it has looked at the word or not.
/// So does an M that has begun another slice.
#[test]
fn d8_many_claims_share_a_barrier() {
    assert!(sys::membarrier_register());
    let sched = still(BEGUN_MAX as u32 + 8);
    let mut claims = sched.claims.lock();
    let ms: Vec<_> = (0..6).map(|_| m_in_user_code(&sched)).collect();
    for (m, p) in &ms {
        assert!(sched.begin_claim(&mut claims, Begun::new(*m, *p, 0)));
        assert!(!m.claim.is_taken(), "D8: taken without a barrier");
    }
    assert!(!ms[1].0.claim.enter() && ms[1].0.claim.look() == Found::Kept);
    ms[3].1.begin_slice();
    assert!(!ms[5].0.claim.enter());
    sched.confirm_claims(&mut claims);
    let taken = ms.iter().map(|(m, _)| m.p.load(Relaxed).is_none());
    assert_eq!(
        taken.collect::<Vec<_>>(),
        [true, false, true, false, true, false],
        "D8"
    );
    assert!(ms[5].0.claim.look() == Found::Kept);
    for (m, p) in &ms {
        assert_eq!(m.claim.is_taken(), p.status() != PStatus::Running);
    }
    assert_eq!(
        (sched.calls.claimed.get(), sched.calls.cancelled.get()),
        (3, 3)
    );
    // The slices seem old, since sysmon has not seen their beginning.
    let is_asked = ms.iter().map(|(m, _)| m.asked.load(Relaxed) & YIELD != 0);
    assert_eq!(
        is_asked.collect::<Vec<_>>(),
        [false, true, false, false, false, true],
        "U4: a slice that is over ends"
    );
    assert!(sched.begin_claim(&mut claims, Begun::new(ms[3].0, ms[3].1, 1)));
    sched.confirm_claims(&mut claims);
    assert!(ms[3].0.claim.is_taken(), "a cancelled claim stays in force");
}

/// More claims than one barrier serves: the last that fits makes the barrier.
#[test]
fn d8_a_batch_of_claims_has_an_end() {
    assert!(sys::membarrier_register());
    let sched = still(BEGUN_MAX as u32 + 1);
    let mut claims = sched.claims.lock();
    for taken in 0..=BEGUN_MAX {
        let full = taken / BEGUN_MAX * BEGUN_MAX;
        assert_eq!(sched.calls.claimed.get(), full as u64);
        let (m, p) = m_in_user_code(&sched);
        assert!(sched.begin_claim(&mut claims, Begun::new(m, p, 0)));
    }
    sched.confirm_claims(&mut claims);
    assert_eq!(sched.calls.claimed.get(), BEGUN_MAX as u64 + 1);
}

/// Each claim may need a thread for its P, so claims that have begun count against the spare ones.
#[test]
fn d8_claims_that_have_begun_count_against_spare_threads() {
    let sched = still(3);
    let mut claims = sched.claims.lock();
    sched.core.lock().mcount = sched.config.max_threads - 2;
    for begun in 0..3 {
        assert_eq!(sched.has_thread_to_spare(&claims), begun < 2, "{begun}");
        let (m, p) = m_in_user_code(&sched);
        assert!(sched.begin_claim(&mut claims, Begun::new(m, p, 0)));
    }
}

/// A goroutine that is blocked in a futex waits for a lock. The spent goroutines come first then:
/// one of them may hold that lock.
#[test]
fn d7_a_claim_in_a_futex_hurries_the_spent() {
    assert!(sys::membarrier_register());
    for wants_lock in [false, true] {
        let sched = still(4);
        let (m, p) = m_in_user_code(&sched);
        let mut begun = Begun::new(m, p, 0);
        begun.wants_lock = wants_lock;
        let gs = runnable_gs(&sched, 2);
        {
            let mut core = sched.core.lock();
            sched.global_put(&mut core, gs[0]);
            sched.global_put_spent(&mut core, gs[1]);
        }
        let mut claims = sched.claims.lock();
        assert!(sched.begin_claim(&mut claims, begun));
        sched.confirm_claims(&mut claims);
        assert!(m.claim.is_taken());
        let first = drain_global(&sched)[0];
        assert_eq!(first == gs[1], wants_lock);
    }
}
