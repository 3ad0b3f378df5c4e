//! The word of one wait: how the events that could end it agree on one of them (PK, G4).
//!
//! A goroutine, thread or task that waits *commits* itself to the word and sleeps. An event ends
//! the wait, before or after the commit. A commit that comes too late is refused: the waiter must
//! not sleep (PK). A sleeper is taken out of the word by one swap, and woken by the thread that
//! made it.
//!
//! ```text
//!  word           meaning                               next
//!  PENDING        the waiter is awake                   sleeper (commit), claimed(case),
//!                                                       done(0) (complete)
//!  sleeper        a `Sleeper` sleeps                    claimed(case), done(0) (complete),
//!                                                       PENDING (withdraw)
//!  claimed(case)  an event ends the wait as this case   late(case), done(case) (finish)
//!  late(case)     claimed awake, asleep by now          done(case) (finish)
//!  done(case)     what was waited for is there          PENDING (take)
//! ```
//!
//! **Several cases.** The waiter may be in many queues at once: a select's cases, and a timer. Each
//! event that would end the wait *claims* the word. One claim succeeds, the others leave the
//! waiter alone. The winner hands over what was waited for and *finishes*. After that it does not
//! touch the waiter's memory any more, unless the waiter sleeps: a sleeper stays until the winner
//! wakes it.
//!
//! No lock is held while the waiter goes to sleep, so a claim may come before the commit. The
//! refused waiter then reads the word until it is done. That takes as long as a copy, except with a
//! select's sender, which has yet to evaluate its message. So a waiter that has read the word for a
//! while goes to sleep late, and the finish returns that the waiter must be woken.
//!
//! **One case.** A word with one event and nothing to hand over, for the event's data is written
//! before: the event *completes* the word, which is a claim and a finish in one swap. The waiter
//! may be *withdrawn* and commit itself again. A future's poller *takes* the event and waits for
//! the next one.

use crate::base::note::Note;
use crate::sched::waiting::sleeper::{Sleeper, SleeperMark};
use crate::shim::{AcqRel, Acquire, AtomicUsize, Relaxed, Release};

const PENDING: usize = 0;
/// The low bits of a word that is no sleeper.
const CLAIMED: usize = 0b001;
const LATE: usize = 0b101;
const DONE: usize = 0b011;
const TAG: usize = 0b111;
pub(crate) const CASE_SHIFT: u32 = 3;

/// The word. A sleeper has its lowest bit clear and is not 0.
pub(crate) struct WaitWord(AtomicUsize);

/// What a claim found.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum ClaimResult {
    /// Another event has ended the wait.
    Lost,
    /// The claim succeeded. The waiter is awake and will see the word.
    Awake,
    /// The claim succeeded. This one sleeps and must be woken after the finish.
    Asleep(Sleeper),
}

impl WaitWord {
    pub(crate) fn new() -> WaitWord {
        WaitWord(AtomicUsize::new(PENDING))
    }

    /// The waiter goes to sleep. Refused: an event has ended the wait, or is about to.
    #[inline]
    pub(crate) fn commit(&self, sleeper: Sleeper) -> Result<(), Sleeper> {
        debug_assert!(sleeper.word() & 1 == 0);
        // ORDER: Release; pairs with the Acquire of `claim` and `complete`: the sleeper's note, or
        // its G off its stack. Acquire on failure; pairs with the Release of `complete`: a refused
        // waiter sees the event's data.
        match self
            .0
            .compare_exchange(PENDING, sleeper.word(), Release, Acquire)
        {
            Ok(_) => Ok(()),
            Err(found) => {
                check_refusal(found);
                Err(sleeper)
            }
        }
    }

    /// Commits the calling thread and sleeps until it is woken; returns at once if that is refused.
    pub(crate) fn sleep_thread(&self) {
        let note = Note::new();
        // SAFETY: the note stays in this frame until `sleep` returns, which is after its wake-up,
        // or until the word has refused it.
        if self.commit(unsafe { Sleeper::thread(&note) }).is_ok() {
            note.sleep();
        }
    }

    /// Ends the wait as `case`, if no other event has.
    #[must_use = "a claim must be finished"]
    #[inline]
    pub(crate) fn claim(&self, case: usize) -> ClaimResult {
        let claimed = case << CASE_SHIFT | CLAIMED;
        let mut word = self.0.load(Relaxed);
        loop {
            if word & 1 != 0 {
                return ClaimResult::Lost;
            }
            // ORDER: AcqRel; pairs with the Release of `commit`, and between two claims.
            match self.0.compare_exchange_weak(word, claimed, AcqRel, Relaxed) {
                Ok(word) => return taken_out(word).map_or(ClaimResult::Awake, ClaimResult::Asleep),
                Err(found) => word = found,
            }
        }
    }

    /// As [`WaitWord::claim`], but leaves a sleeper that is `gone` to the drop of its runtime (D2).
    #[must_use = "a claim must be finished"]
    #[inline]
    pub(crate) fn claim_unless(&self, case: usize, gone: impl Fn(&Sleeper) -> bool) -> ClaimResult {
        let claimed = case << CASE_SHIFT | CLAIMED;
        // ORDER: Acquire; as in `has_sleeper`.
        let mut word = self.0.load(Acquire);
        loop {
            if word & 1 != 0 || taken_out(word).is_some_and(|sleeper| gone(&sleeper)) {
                return ClaimResult::Lost;
            }
            // ORDER: AcqRel; as in `claim`. Acquire on failure, as for the first load.
            match self.0.compare_exchange_weak(word, claimed, AcqRel, Acquire) {
                Ok(word) => return taken_out(word).map_or(ClaimResult::Awake, ClaimResult::Asleep),
                Err(found) => word = found,
            }
        }
    }

    /// Whether a sleeper is there, unclaimed, for which `test` holds. It may change at once.
    #[inline]
    pub(crate) fn has_sleeper(&self, test: impl FnOnce(&Sleeper) -> bool) -> bool {
        // ORDER: Acquire; pairs with the Release of `commit`: the G that sleeps may be read.
        let word = self.0.load(Acquire);
        word & 1 == 0 && taken_out(word).is_some_and(|sleeper| test(&sleeper))
    }

    /// Takes back what was given to a waiter that never runs again: the word becomes done as
    /// `revoked`. Returns the case as which it was done. None: it is not done, or another caller
    /// has taken it back.
    #[must_use = "what was taken back must be passed on"]
    pub(crate) fn revoke(&self, revoked: usize) -> Option<usize> {
        // ORDER: Acquire; pairs with the Release of `finish`: what was handed over may be read.
        let word = self.0.load(Acquire);
        let revoked = revoked << CASE_SHIFT | DONE;
        if word & TAG != DONE || word == revoked {
            return None;
        }
        // ORDER: AcqRel; between two callers of `revoke`.
        let swapped = self.0.compare_exchange(word, revoked, AcqRel, Relaxed);
        swapped.ok().map(|word| word >> CASE_SHIFT)
    }

    /// A refused waiter goes to sleep until the claim is finished. False: it is.
    #[must_use = "a refused waiter must not sleep"]
    pub(crate) fn commit_late(&self) -> bool {
        let word = self.0.load(Relaxed);
        debug_assert!(word & 1 != 0 && word & TAG != LATE);
        // ORDER: Release; pairs with the Acquire of `finish_awake`: the sleeper is stored.
        word & TAG == CLAIMED
            && self
                .0
                .compare_exchange(word, word & !TAG | LATE, Release, Relaxed)
                .is_ok()
    }

    /// What was waited for is there. The claim found the waiter asleep: it must be woken.
    #[inline]
    pub(crate) fn finish_asleep(&self, case: usize) {
        debug_assert_eq!(self.0.load(Relaxed), case << CASE_SHIFT | CLAIMED);
        // ORDER: Release; pairs with the Acquire of `outcome`: the value that was handed over
        // (U10).
        self.0.store(case << CASE_SHIFT | DONE, Release);
    }

    /// What was waited for is there. The claim found the waiter awake. True: the waiter sleeps by
    /// now and must be woken. False: its memory may be gone.
    #[must_use = "a waiter that sleeps must be woken"]
    #[inline]
    pub(crate) fn finish_awake(&self, case: usize) -> bool {
        // ORDER: AcqRel; as in `finish_asleep`, and pairs with the Release of `commit_late`.
        let was = self.0.swap(case << CASE_SHIFT | DONE, AcqRel);
        debug_assert_eq!(was | LATE, case << CASE_SHIFT | LATE);
        was & TAG == LATE
    }

    /// The case that ended the wait, once it is done.
    #[inline]
    pub(crate) fn outcome(&self) -> Option<usize> {
        // ORDER: Acquire; pairs with the Release of `finish`.
        let word = self.0.load(Acquire);
        (word & TAG == DONE).then_some(word >> CASE_SHIFT)
    }

    /// Whether an event has claimed the wait. It may change at once.
    #[inline]
    pub(crate) fn is_claimed(&self) -> bool {
        self.0.load(Relaxed) & 1 != 0
    }
}

/// Words with one case.
impl WaitWord {
    /// Whether the event has happened.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        // ORDER: Acquire; pairs with the AcqRel of `complete`: the event's data may be read.
        self.0.load(Acquire) == DONE
    }

    /// The event has happened. Returns the sleeper, which must be woken; None to later callers.
    ///
    /// The word may be gone once it is done and nothing sleeps on it, so it is not touched
    /// afterwards.
    #[must_use = "a sleeper must be woken"]
    pub(crate) fn complete(&self) -> Option<Sleeper> {
        // ORDER: AcqRel; publishes the event's data to `is_done`, `take` and `commit`, and sees the
        // sleeper. A swap even if the word is done: the data of each caller is seen after `take`.
        let word = self.0.swap(DONE, AcqRel);
        debug_assert!(word & 1 == 0 || word == DONE, "a word with one case");
        match word & 1 {
            0 => taken_out(word),
            _ => None,
        }
    }

    /// Takes the sleeper back, which may be committed again. True: the caller has it now. False:
    /// the event has happened, and its wake-up is under way.
    pub(crate) fn withdraw(&self, sleeper: &Sleeper) -> bool {
        self.take_back(sleeper.mark()).is_some()
    }

    /// As [`WaitWord::withdraw`], and returns the sleeper that was committed with this mark.
    pub(crate) fn take_back(&self, mark: SleeperMark) -> Option<Sleeper> {
        // ORDER: AcqRel; the thread that takes the sleeper out owns its wake-up. Acquire on
        // failure, as in `commit`.
        let swapped = self
            .0
            .compare_exchange(mark.word(), PENDING, AcqRel, Acquire);
        swapped.ok().and_then(taken_out)
    }

    /// Takes the event, so that the word can wait for the next one. False: it has not happened. By
    /// the waiter, awake.
    pub(crate) fn take(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of `complete`. Only this makes a done word
        // PENDING, so one load is enough to leave the word alone.
        self.0.load(Relaxed) == DONE && self.0.swap(PENDING, Acquire) == DONE
    }
}

#[cold]
fn check_refusal(found: usize) {
    assert!(found & 1 != 0, "a wait word takes one sleeper");
}

/// The sleeper in a word whose lowest bit is clear. The caller has just replaced that word, or uses
/// the sleeper for a test of the word only.
#[inline]
fn taken_out(word: usize) -> Option<Sleeper> {
    // SAFETY: `commit` stored the sleeper. It is used by one thread: the one whose swap replaced
    // it.
    unsafe { Sleeper::from_word(word) }
}
