//! WK, FR: second looks, on a still scheduler. A submitter or an M that goes idle must find what came
//! after its first look. The loom models explore the protocols; these tests hold the library to them.

use super::*;
use crate::sched::p::release_p;
use crate::sched::schedule::Gave;

/// A P waits for a thread, so that an M that stops takes it instead of going to sleep.
fn pend_a_p(sched: &Sched) -> Pp {
    let p = sched.get_idle_p(&mut sched.core.lock()).unwrap();
    sched.start_m(sched.core.lock(), p, false);
    assert_eq!(sched.core.lock().npending, 1);
    p
}

/// A wake-up found no idle P after the M's first look: the M that has put its P on the idle list looks
/// at `need` again (need/2) and takes a P back.
#[test]
fn wk_an_m_that_drops_its_p_looks_at_need_again() {
    let sched = still(2);
    let (m, p) = m_with_p(&sched);
    let pending = pend_a_p(&sched);
    sched.begin_spinning(m); // a spinning M has no first look
    sched.spin.set_needed();
    assert!(matches!(sched.give_up_p(m), Gave::LookAgain));
    assert!(m.p() == p && m.p() != pending, "WK: it stopped");
    assert!(m.is_spinning() && !sched.spin.is_needed());
    assert_eq!(sched.core.lock().npending, 1);
}

/// The same for an M that does not spin: its first look is under the lock, before it drops its P.
#[test]
fn wk_an_m_that_has_not_spun_looks_at_need_first() {
    let sched = still(2);
    let (m, p) = m_with_p(&sched);
    pend_a_p(&sched);
    sched.spin.set_needed();
    assert!(matches!(sched.give_up_p(m), Gave::LookAgain));
    assert!(m.p() == p && m.is_spinning() && !sched.spin.is_needed());
}

/// Somebody else has taken the P that the M dropped: the next P to go idle must look.
#[test]
fn wk_an_m_that_finds_its_p_taken_leaves_word() {
    let sched = still(1);
    let (m, _) = m_with_p(&sched);
    sched.begin_spinning(m);
    sched.spin.end();
    m.set_spinning(false);
    assert!(!sched.take_idle_p_spinning(m), "no P is idle");
    assert!(sched.spin.is_needed());
}

/// A claimed wake-up finds the idle P gone: the claim is given back, and the next P to go idle looks.
#[test]
fn wk_a_claim_that_finds_no_p_leaves_word() {
    let sched = still(1);
    let _held = m_with_p(&sched);
    assert!(sched.spin.claim_wake());
    sched.start_claimed(sched.core.lock());
    assert_eq!(sched.spin.count(), 0);
    assert!(sched.spin.is_needed());
}

/// A P without work is handed off after a wake-up has found no P: it is put to use. Another P is idle,
/// so the first look puts this one on the idle list.
#[test]
fn wk_a_hand_off_looks_at_need() {
    let sched = still(2);
    let (m, p) = m_with_p(&sched);
    sched.spin.set_needed();
    release_p(m);
    sched.hand_off_p(p);
    assert_eq!(sched.core.lock().npending, 1, "WK: nobody was started");
}
