//! The slow paths of a Mutex and of the writers' side of a RwLock: spin a little, wait, wake (see
//! `mutex_word`).

use std::sync::atomic::AtomicU32;

use crate::sched::model::current::current_m;
use crate::sched::model::m::PreemptOff;
use crate::sched::park::{enter, no_preempt};
use crate::sched::waiting::owner::Owner;
use crate::sched::waiting::sema;
use crate::sched::waiting::sema::{KeyKind, KeyWait, LockedBucket, ParkResult, key_of};
use crate::sched::waiting::waitq::{QueueEnd, WakeList};
use crate::shim::Relaxed;
use crate::sync::mutex_word::{LOCKED, LockWord, Locker, STARVING};
use crate::sys::monotonic_ns;
use crate::thread::check_cancelled;

/// A locker that has waited this long starves (Go's figure).
const STARVES_NS: u64 = 1_000_000;
/// How often a locker spins before it waits, and how long each time (Go's figures).
const SPIN_TURNS: u32 = 4;
const SPIN_PAUSES: u32 = 30;

/// What a woken waiter is told.
const COMPETE: usize = 0;
const HANDED_OVER: usize = 1;

/// Whether a locker that has spun so often may spin again: another P runs that may hold the lock,
/// and no goroutine waits for this P.
pub(super) fn may_spin(turns: u32) -> bool {
    if turns >= SPIN_TURNS {
        return false;
    }
    let Some(m) = current_m() else { return true };
    let sched = m.sched();
    let others = sched.spin.npidle.load(Relaxed) + sched.spin.count() + 1;
    m.p.load(Relaxed)
        .is_some_and(|p| sched.nprocs() > others && p.runq.is_empty())
}

/// One turn of spinning.
pub(super) fn spin() {
    for _ in 0..SPIN_PAUSES {
        crate::shim::spin_hint();
    }
}

/// Waits for a lock that was not free. Blocks the goroutine, or the plain thread it is called on.
#[cold]
#[inline(never)]
pub(super) fn lock_slow(word: &LockWord, owner: &Owner, kind: &'static KeyKind<LockWord>) -> usize {
    lock_beside(word, owner, kind, None)
}

/// As [`lock_slow`], for a kind that needs something beside the lock to pass on.
#[cold]
pub(super) fn lock_beside(
    word: &LockWord,
    owner: &Owner,
    kind: &'static KeyKind<LockWord>,
    beside: Option<&AtomicU32>,
) -> usize {
    let mut me = Locker::default();
    let mut began = None;
    let mut turns = 0;
    let mut whole = None;
    loop {
        let seen = match word.acquire(LOCKED, me) {
            Ok(before) => return before,
            Err(seen) => seen,
        };
        if seen & STARVING == 0 && may_spin(turns) {
            me.is_woken |= !me.is_woken && word.announce();
            spin();
            turns += 1;
            continue;
        }
        if sema::must_unwind() {
            leave(word, me);
            me.is_woken = false;
            check_cancelled();
        }
        let wait = KeyWait {
            at: QueueEnd::front_if(began.is_some()),
            owner: Some(owner),
            beside,
            ..KeyWait::on(word, 0, kind)
        };
        let since = *began.get_or_insert_with(monotonic_ns);
        drop(whole.take()); // it may have to wait for a P
        let parked = wait.park(
            |_| {
                let is_time = word.queue_up(me);
                if !is_time {
                    // A woken or notified locker has the turn of all waiters. It does not yield
                    // before it has tried once more: a drop abandons goroutines in queues (D2).
                    whole = Some(no_preempt(PreemptOff::HalfDone));
                }
                is_time
            },
            || {},
            |left| word.queue_left(left.are_more),
        );
        match parked {
            ParkResult::Got(HANDED_OVER) => {
                if monotonic_ns() - since < STARVES_NS {
                    word.calm_down();
                }
                return word.0.load(Relaxed);
            }
            ParkResult::Got(_) => {
                me.is_woken = true;
                me.is_starving |= monotonic_ns() - since > STARVES_NS;
                turns = 0;
            }
            ParkResult::Refused => {}
            ParkResult::Cancelled | ParkResult::TimedOut => {
                me.is_woken = false;
                check_cancelled();
            }
        }
    }
}

/// Passes on what was given to a locker that never runs again: the lock itself, by `unlock`, or the
/// turn to compete for it.
pub(super) fn pass_on(word: &LockWord, token: Option<usize>, unlock: impl FnOnce(&LockWord)) {
    match token {
        None => {}
        Some(HANDED_OVER) => unlock(word),
        Some(_) => leave(
            word,
            Locker {
                is_woken: true,
                is_starving: false,
            },
        ),
    }
}

/// A locker that is to unwind gives up. The thread that woke it relies on a locker that takes the
/// turn, so another one is woken.
#[cold]
fn leave(word: &LockWord, me: Locker) {
    if !me.is_woken {
        return;
    }
    let key = key_of(word);
    let mut wake = WakeList::new();
    let rt = enter(); // until they are woken: popped waiters rely on it
    {
        let mut table = sema::lock(key);
        let popped = table.pop(key);
        word.passed_on(popped.is_some(), table.has(key));
        if let Some(popped) = popped {
            popped.finish(COMPETE, &mut wake);
        }
    }
    wake.wake_in(&rt);
}

/// Gives a lock back that others want. Bits of `or` are a reason to do that under the table's lock:
/// `admit` deals with what they stand for, and they are cleared.
#[cold]
#[inline(never)]
pub(super) fn unlock_slow(
    word: &LockWord,
    or: usize,
    admit: impl FnOnce(&mut LockedBucket, &mut WakeList),
) {
    if word.unlock(or) {
        return;
    }
    let key = key_of(word);
    let mut wake = WakeList::new();
    let rt = enter(); // until they are woken: popped waiters rely on it
    {
        let mut table = sema::lock(key);
        admit(&mut table, &mut wake);
        let popped = match word.wants_waiter() {
            true => table.pop(key),
            false => None,
        };
        let is_handed_over = word.release(popped.is_some(), table.has(key), or);
        // The lock may be gone from here on.
        if let Some(popped) = popped {
            let token = if is_handed_over { HANDED_OVER } else { COMPETE };
            popped.finish(token, &mut wake);
        }
    }
    wake.wake_in(&rt);
}

#[cfg(test)]
mod tests;
