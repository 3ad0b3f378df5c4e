//! Taking the P of an M that is stuck in the kernel (D8): a P has one holder (U3), and an M that
//! lost its P notices (M5).
//!
//! A P is a plain field that only its holder touches. So loom reports two holders at once, and a
//! holder that does not see what the last one did. [`Target`] is an M with the fields that a
//! claimer uses. Around the library's own [`Claim`] its methods do, step by step, what entering,
//! leaving and claiming do. The M enters and leaves as often as the story needs. Between two visits
//! it is in user code, or stuck; no other thread can tell which.
//!
//! Why the barrier has two sides. The M stores `depth` and loads the word; the claimer swaps the
//! word and loads `depth`. Without either side both may see the other as it was before. The claimer
//! finds the M outside, the M finds no claim, and both have the P. The stories without one side
//! show it.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use super::{Plain, explore};
use crate::claim::{self, Claim, Found};
use crate::pstatus::{PStatus, PStatusWord};
use crate::shim::{self, AtomicUsize, Part, Relaxed};

/// The number of no P.
const NO_P: usize = usize::MAX;

/// Ps that the M can have, one after the other.
const PS: usize = 3;

struct Target {
    claim: Claim,
    /// Claimers come one at a time.
    claims: Mutex<()>,
    /// The number of its P: the library's `m.p`.
    p: AtomicUsize,
    ps: [Plain; PS],
    /// What unbinding writes into the M and its goroutine: one more than the number of the P that
    /// is gone.
    unbound: Plain,
    /// The status of the first P, for an M that leaves it behind by itself.
    status: PStatusWord,
}

/// What the M's thread knows by itself.
struct Visitor<'a> {
    target: &'a Target,
    /// The P that it has, unless that was taken since.
    p: usize,
    losses: usize,
}

impl Target {
    /// An M in user code, with the first P.
    fn new() -> Arc<Target> {
        Arc::new(Target {
            claim: Claim::new(),
            claims: Mutex::new(()),
            p: AtomicUsize::new(0),
            ps: std::array::from_fn(|_| Plain::new(0)),
            unbound: Plain::new(0),
            status: PStatusWord::new(PStatus::Running),
        })
    }

    fn visitor(&self) -> Visitor<'_> {
        Visitor {
            target: self,
            p: 0,
            losses: 0,
        }
    }

    /// Loads the M's P, claims it, and takes it if the M is not inside; the claimer then keeps it
    /// for good. Returns false if it stays with the M.
    fn take(&self) -> bool {
        self.begin()
            .is_some_and(|p| self.confirm(p, claim::barrier()))
    }

    /// Begins a claim on the P that is returned.
    fn begin(&self) -> Option<usize> {
        let p = self.p.load(Relaxed);
        if !self.claim.begin() {
            return None;
        }
        let now = self.p.load(Relaxed);
        assert_ne!(now, NO_P, "a claimer that finds the M free sees its new P");
        Some(p)
    }

    /// Confirms a claim on `p`, behind the barrier.
    fn confirm(&self, p: usize, has_passed: bool) -> bool {
        if !self.claim.confirm(has_passed, || self.p.load(Relaxed) == p) {
            return false;
        }
        self.ps[p].add(1);
        self.unbound.set(p as u32 + 1);
        self.p.store(NO_P, Relaxed);
        self.claim.finish();
        self.ps[p].add(1);
        true
    }

    /// As `take`, when there are other claimers.
    fn take_in_turn(&self) -> bool {
        let _turn = self.claims.lock().unwrap();
        self.take()
    }

    /// After all threads have ended: as many Ps were lost as were taken, and the M has one or knows
    /// that it has none.
    fn assert_all_accounted(&self, losses: usize, taken: usize) {
        let is_taken = self.claim.is_taken();
        assert_eq!(self.claim.depth(), 0);
        assert_eq!(is_taken, self.p.load(Relaxed) == NO_P);
        assert_eq!(losses + usize::from(is_taken), taken, "Ps lost and taken");
        assert_ne!(is_taken, self.claim.begin(), "a claim was left standing");
    }
}

impl Visitor<'_> {
    fn enter(&self) -> Found {
        if self.target.claim.enter() {
            Found::Kept
        } else {
            self.target.claim.look()
        }
    }

    fn leave(&self) {
        assert_eq!(self.target.claim.leave(), 0);
    }

    fn use_p(&self) {
        self.target.ps[self.p].add(1);
    }

    /// Enters and leaves. An M whose P is gone gets the next one.
    fn visit(&mut self) {
        match self.enter() {
            Found::Kept => self.use_p(),
            Found::Taken => {
                self.assert_unbound();
                self.have_next_p();
            }
            found => panic!("{found:?}: not in this story"),
        }
        self.leave();
    }

    fn assert_unbound(&self) {
        assert_eq!(self.target.p.load(Relaxed), NO_P, "the P is unbound");
        assert_eq!(self.target.unbound.get(), self.p as u32 + 1);
        assert!(self.target.claim.is_taken() && self.target.claim.is_away());
    }

    fn have_next_p(&mut self) {
        self.losses += 1;
        self.p += 1;
        self.target.unbound.set(0);
        self.target.p.store(self.p, Relaxed);
        self.target.claim.resume();
        self.use_p();
    }
}

/// The M visits three times while a claimer tries to take its P twice. An M that lost its P
/// continues with another, and may lose that.
fn visits_against_a_claimer() {
    explore(Some(6), || {
        let target = Target::new();
        let claimer = thread::spawn({
            let target = target.clone();
            move || usize::from(target.take()) + usize::from(target.take())
        });
        let mut m = target.visitor();
        for _ in 0..3 {
            m.visit();
        }
        let losses = m.losses;
        let taken = claimer.join().unwrap();
        target.assert_all_accounted(losses, taken);
    });
}

/// Explored: the claim before, during, between and after the visits, withdrawn and cancelled, and
/// the M that waits while it is unbound. Fails
///
/// - without either side of the barrier,
/// - if the M ignores a claim that it sees, or leaves without Release,
/// - if the claimer loads `depth` without Acquire, or takes the P without a swap,
/// - if the M does not see what `finish` published, or the claimer not what `resume` did.
#[test]
fn u3_the_p_of_a_stuck_m_has_one_holder() {
    visits_against_a_claimer();
}

/// The claimer finds the M outside because the M's `depth` has not arrived.
#[test]
#[should_panic(expected = "Causality violation")]
fn u3_without_the_ms_side_of_the_barrier_two_have_the_p() {
    shim::without(Part::Light, visits_against_a_claimer);
}

/// The same, because the claimer loaded `depth` before its claim had arrived.
#[test]
#[should_panic(expected = "Causality violation")]
fn u3_without_the_claimers_side_of_the_barrier_two_have_the_p() {
    shim::without(Part::Heavy, visits_against_a_claimer);
}

/// sysmon and the leader of a stopping world, in turn. Explored: the second claim on what the first
/// left behind: nothing, a P that the M has got meanwhile, or a cancelled claim. Fails as the story
/// above does, and if a claim can begin on an M without a P.
#[test]
fn u3_two_claimers_in_turn() {
    explore(Some(3), || {
        let target = Target::new();
        let claimers = [0, 1].map(|_| {
            let target = target.clone();
            thread::spawn(move || target.take_in_turn())
        });
        let mut m = target.visitor();
        m.visit();
        m.visit();
        let losses = m.losses;
        let taken = claimers.map(|claimer| usize::from(claimer.join().unwrap()));
        target.assert_all_accounted(losses, taken.into_iter().sum());
    });
}

/// Two Ms visit while a claimer takes the Ps of both, with one barrier for both claims.
fn visits_of_two_against_one_barrier() {
    explore(Some(3), || {
        let targets = [Target::new(), Target::new()];
        let claimer = thread::spawn({
            let targets = targets.clone();
            move || {
                let begun = targets.each_ref().map(|target| target.begin());
                let has_passed = claim::barrier();
                let both = targets.iter().zip(begun);
                let taken =
                    both.map(|(target, p)| p.is_some_and(|p| target.confirm(p, has_passed)));
                taken.map(usize::from).collect::<Vec<_>>()
            }
        });
        let other = thread::spawn({
            let target = targets[1].clone();
            move || {
                let mut m = target.visitor();
                m.visit();
                m.losses
            }
        });
        let mut m = targets[0].visitor();
        m.visit();
        let losses = [m.losses, other.join().unwrap()];
        let taken = claimer.join().unwrap();
        for (nth, target) in targets.iter().enumerate() {
            target.assert_all_accounted(losses[nth], taken[nth]);
        }
    });
}

/// Explored: each M before, beside and after its own claim and the common barrier. Fails if the
/// barrier comes before the second claim.
#[test]
fn u3_one_barrier_serves_many_claims() {
    visits_of_two_against_one_barrier();
}

/// As for a single claim: the claimer loads `depth` before its claims have arrived.
#[test]
#[should_panic(expected = "Causality violation")]
fn u3_without_the_barrier_of_many_claims_two_have_a_p() {
    shim::without(Part::Heavy, visits_of_two_against_one_barrier);
}

/// An M whose P is gone visits and leaves without one, because there was no other. It finds TAKEN
/// each time, and no claimer can take what it does not have. Fails if a claim can begin on an M
/// without a P, or if the M does not find TAKEN again.
#[test]
fn m5_an_m_without_a_p_is_told_each_time() {
    explore(None, || {
        let target = Target::new();
        let claimer = thread::spawn({
            let target = target.clone();
            move || usize::from(target.take()) + usize::from(target.take())
        });
        let mut m = target.visitor();
        let mut is_stray = false;
        for _ in 0..2 {
            match m.enter() {
                Found::Kept => {
                    assert!(!is_stray, "M5: a P that nobody gave");
                    m.use_p();
                }
                _ => {
                    m.assert_unbound();
                    is_stray = true;
                }
            }
            m.leave();
        }
        if is_stray {
            m.visit();
        }
        let losses = m.losses;
        let taken = claimer.join().unwrap();
        target.assert_all_accounted(losses, taken);
    });
}

/// The M changes its P on a visit. Another M then runs with the old P, which the claimer had seen.
/// Explored: the claimer's first load before the visit, the rest after it. Fails if the claimer
/// does not load again, or if it then sees a state older than the M's leaving.
#[test]
fn d8_a_claim_is_off_when_the_m_has_another_p() {
    explore(None, || {
        let target = Target::new();
        let claimer = thread::spawn({
            let target = target.clone();
            move || usize::from(target.take())
        });
        let mut m = target.visitor();
        if m.enter() == Found::Kept {
            m.use_p();
            m.p = 1;
            target.p.store(1, Relaxed);
            m.use_p();
            m.leave();
            // Another M has the first P now.
            target.ps[0].add(1);
            m.visit();
        } else {
            m.assert_unbound();
            m.have_next_p();
            m.leave();
        }
        let losses = m.losses;
        let taken = claimer.join().unwrap();
        target.assert_all_accounted(losses, taken);
    });
}

impl Target {
    /// sysmon, to which an M in a call looks stuck: takes its P by the claim or, if it was left
    /// behind, by the swap.
    fn take_either_way(&self) -> (bool, bool) {
        let by_claim = self.take();
        let by_swap = self.status.retake(PStatus::Idle);
        assert!(!(by_claim && by_swap), "P3: one P was taken twice");
        if by_swap {
            self.ps[0].add(1);
        }
        (by_claim, by_swap)
    }
}

impl Visitor<'_> {
    /// Enters a marked call; returns false if the P is already gone.
    fn begin_call(&mut self) -> bool {
        if self.enter() != Found::Kept {
            self.assert_unbound();
            self.leave();
            return false;
        }
        self.use_p();
        self.target.claim.mark();
        self.target.status.set(PStatus::Syscall);
        self.leave();
        true
    }

    /// Returns from a marked call; returns true if the P was where it had been left.
    fn end_call(&mut self) -> bool {
        assert_eq!(self.enter(), Found::Marked);
        assert!(self.target.claim.is_away());
        let is_same = self.target.status.retake(PStatus::Running);
        if is_same {
            self.use_p();
            self.target.claim.resume();
        } else {
            self.p += 1;
            self.target.p.store(self.p, Relaxed);
            self.target.claim.resume();
            self.use_p();
        }
        self.leave();
        is_same
    }
}

/// The M enters a marked call while a claimer claims its P. Explored: the claim before the M
/// enters, beside its mark and in the call. A marked M keeps the right to the P it left behind: the
/// claim is not confirmed, and the P is taken by the swap alone. Fails
///
/// - if a claim can begin on a marked M,
/// - if the mark is not visible once the M is seen to have left, or
/// - without either side of the barrier.
#[test]
fn p3_a_marked_m_loses_its_p_by_the_swap_alone() {
    explore(None, || {
        let target = Target::new();
        let sysmon = thread::spawn({
            let target = target.clone();
            move || target.take_either_way()
        });
        let is_marked = target.visitor().begin_call();
        let (by_claim, by_swap) = sysmon.join().unwrap();
        assert_eq!(by_claim, !is_marked, "M4: marked and claimed");
        assert_eq!(
            target.status.retake(PStatus::Running),
            is_marked && !by_swap,
            "P3: the P was left to one"
        );
    });
}

/// The same with the M's return, after which its P can be claimed again. Explored: sysmon before,
/// in and after the call. Fails
///
/// - if a claim can begin on a marked M,
/// - if a cancelled claim erases the mark, or
/// - if both win the P that was left behind.
#[test]
fn p3_a_marked_call_comes_back_against_a_claim() {
    shim::with_stores_as_swaps(|| {
        explore(None, || {
            let target = Target::new();
            let sysmon = thread::spawn({
                let target = target.clone();
                move || target.take_either_way()
            });
            let mut m = target.visitor();
            let came_back = m.begin_call().then(|| m.end_call());
            let (by_claim, by_swap) = sysmon.join().unwrap();
            match came_back {
                None => assert!(by_claim && !by_swap),
                Some(true) => assert!(!by_swap, "P3: two have the P that was left behind"),
                Some(false) => assert!(by_swap, "P3: no thread has the P that was left behind"),
            }
        });
    });
}
