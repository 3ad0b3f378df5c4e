//! The P that a marked call leaves behind (SY, P3). Four threads want it, and one of them gets it:
//! the returning M, sysmon, an M that needs a P, and the leader of a stopping world.
//!
//! What belongs to the P is a plain field. So loom reports two holders at once, and a winner that
//! does not see what the M had written before it left. The world that stops (P4) is reduced to one
//! flag, and to which thread puts the P into GcStop.

use std::sync::Arc;

use loom::thread;

use super::{Plain, explore};
use crate::gstatus::{Status, StatusWord};
use crate::pstatus::{PStatus, PStatusWord};
use crate::shim::{self, AtomicU32, Relaxed, SeqCst};

/// What the M has written into its P before its call.
const LEFT: u32 = 7;

/// One P, and the goroutine that runs on it.
struct Shared {
    status: PStatusWord,
    /// The P's queue and caches.
    cache: Plain,
    g: StatusWord,
    gcwaiting: AtomicU32,
}

impl Shared {
    /// A P that an M runs with.
    fn new() -> Arc<Shared> {
        Arc::new(Shared {
            status: PStatusWord::new(PStatus::Running),
            cache: Plain::new(0),
            g: StatusWord::new(Status::Running),
            gcwaiting: AtomicU32::new(0),
        })
    }

    /// Tries to take the P; the winner uses its contents.
    fn retake(&self, to: PStatus) -> bool {
        let is_ours = self.status.retake(to);
        if is_ours {
            assert!(self.cache.get() >= LEFT, "P3: what the M had left there");
            self.cache.add(1);
            assert_eq!(self.status.get(), to);
        }
        is_ours
    }

    /// The M enters a marked call: leaves the P behind, then checks whether the world stops.
    fn enter_syscall(&self) -> bool {
        self.cache.set(LEFT);
        self.status.set(PStatus::Syscall);
        self.g.transition(Status::Running, Status::Syscall);
        // FENCE: stop/1 — Syscall before the load of `gcwaiting`; meets stop/2 in `stop_with`.
        shim::fence_after_rmw();
        self.gcwaiting.load(Relaxed) != 0
    }

    /// The leader: stops the world, then takes a P that was left behind.
    fn stop_with(&self) -> bool {
        self.gcwaiting.store(1, Relaxed);
        // FENCE: stop/2 — `gcwaiting` before the loads of the Ps; meets stop/1 in `enter_syscall`.
        shim::fence(SeqCst);
        self.retake(PStatus::GcStop)
    }
}

/// All four want the P. Explored: every order of their swaps, before and after the M has left the P
/// behind. Fails if `set` does not publish, if the swap does not see what was published, or if
/// taking is no swap.
#[test]
fn p3_one_of_four_has_the_p() {
    explore(Some(4), || {
        let shared = Shared::new();
        let wanted = [PStatus::Idle, PStatus::Idle, PStatus::GcStop];
        let others = wanted.map(|to| {
            let shared = shared.clone();
            thread::spawn(move || shared.retake(to).then_some(to))
        });
        assert!(!shared.enter_syscall());
        let own = shared.retake(PStatus::Running).then_some(PStatus::Running);
        let others = others.map(|other| other.join().unwrap());
        let winners: Vec<_> = others.into_iter().chain([own]).flatten().collect();
        assert_eq!(winners.len(), 1, "P3: {winners:?} have the P");
        assert_eq!(shared.status.get(), winners[0]);
        assert_eq!(shared.cache.get(), LEFT + 1);
    });
}

/// sysmon takes the P and hands it to another M, which enters a call of its own. The first M
/// returns and may find the P where it left it, or the second M's. Explored: its return before,
/// between and after. Fails if the second call does not publish what the second M did, or if both
/// then have the P.
#[test]
fn sy_a_p_is_left_behind_twice() {
    explore(None, || {
        let shared = Shared::new();
        let second = thread::spawn({
            let shared = shared.clone();
            move || {
                if !shared.retake(PStatus::Idle) {
                    return (false, false);
                }
                shared.status.set(PStatus::Running);
                shared.cache.add(1);
                shared.status.set(PStatus::Syscall);
                (true, shared.retake(PStatus::Running))
            }
        });
        shared.enter_syscall();
        let first = shared.retake(PStatus::Running);
        let (handed_off, second) = second.join().unwrap();
        assert!(first || handed_off, "P3: no thread has the P");
        assert!(
            !handed_off || first != second,
            "P3: after the second call one has the P"
        );
        let uses = if handed_off { 3 } else { 1 };
        assert_eq!(shared.cache.get(), LEFT + uses);
    });
}

/// An M enters a call while the world stops. The leader finds the P in Syscall, or the M finds that
/// the world stops and stops its P itself. Both may try, one succeeds. Neither looks again, so the
/// world would wait for a P that both miss until the call ends. Fails without the barrier on either
/// side, or if both stop the P.
#[test]
fn p4_a_call_begins_while_the_world_stops() {
    explore(None, || {
        let shared = Shared::new();
        let leader = thread::spawn({
            let shared = shared.clone();
            move || shared.stop_with()
        });
        let by_m = shared.enter_syscall() && shared.retake(PStatus::Idle);
        if by_m {
            // Handing it off in a stopping world stops it.
            shared.status.set(PStatus::GcStop);
        }
        let by_leader = leader.join().unwrap();
        assert!(by_m || by_leader, "P4: a P that the world waits for");
        assert!(!(by_m && by_leader), "P4: a P was stopped twice");
        assert_eq!(shared.status.get(), PStatus::GcStop);
    });
}

/// An M that stops by itself puts its P into GcStop with a plain store, and the leader that sees it
/// uses the P. Fails if `set` does not publish, or if `get` does not see what was published.
#[test]
fn p4_the_leader_sees_what_is_in_a_stopped_p() {
    explore(None, || {
        let shared = Shared::new();
        let leader = thread::spawn({
            let shared = shared.clone();
            move || {
                while shared.status.get() != PStatus::GcStop {
                    shim::yield_thread();
                }
                shared.cache.add(1);
            }
        });
        shared.cache.set(LEFT);
        shared.status.set(PStatus::GcStop);
        leader.join().unwrap();
        assert_eq!(shared.cache.get(), LEFT + 1);
    });
}
