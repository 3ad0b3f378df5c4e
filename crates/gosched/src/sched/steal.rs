//! Stealing: up to four sweeps over all Ps in random order; takes half of the first queue that has
//! any goroutine (F1, I4).
//!
//! Only a spinning M steals. An M begins to spin only while twice the spinners are fewer than the
//! busy Ps (M7). That saves CPU time on a mostly busy machine. The fourth sweep also expires the
//! due timers of other Ps, idle ones too; those locks are the only ones on this path (I9). After
//! that it may take a victim's `next`, once the victim has had 3 µs to run it (I8, F4).

use std::sync::atomic::Ordering::Relaxed;

use super::Sched;
use crate::sched::model::g::GQueue;
use crate::sched::model::gstatus::Status;
use crate::sched::model::p::{PStatus, gp};
use crate::sched::model::ptr::{Gp, Pp};
use crate::sched::model::runq::Steal;
use crate::sched::sources::timers::EXPIRE_MAX;
use crate::sched::worker::Worker;
use crate::sys;

const SWEEPS: u32 = 4;
const NEXT_PAUSE_NS: u64 = 3_000;

impl Sched {
    /// Begins to spin if that is allowed, and steals.
    pub(crate) fn spin_and_steal(&self, w: Worker<'_>) -> Option<Gp> {
        let m = w.m();
        if !m.is_spinning() {
            let busy = self.nprocs().saturating_sub(self.spin.npidle.load(Relaxed));
            if 2 * self.spin.count() >= busy {
                return None;
            }
            self.begin_spinning(m);
        }
        (0..SWEEPS).find_map(|sweep| self.sweep(w, sweep == SWEEPS - 1))
    }

    fn sweep(&self, w: Worker<'_>, is_last: bool) -> Option<Gp> {
        let (m, p) = (w.m(), w.p());
        let n = self.nprocs();
        let mut at = m.random() % n;
        let stride = coprime_with(n, m.random());
        let mut now = None;
        for _ in 0..n {
            if self.is_stopping() {
                return None;
            }
            let (victim, is_idle) = (self.p(at), self.is_idle(at));
            at += stride;
            at -= if at < n { 0 } else { n };
            if is_last
                && victim != p
                && victim.timers.next_ns() != u64::MAX
                && let Some(g) =
                    self.steal_due(victim, w, *now.get_or_insert_with(sys::monotonic_ns))
            {
                return Some(g);
            }
            if victim != p
                && !is_idle
                && let Some(g) = self.steal_from(victim, w, is_last)
            {
                return Some(g);
            }
        }
        None
    }

    /// Expires what is due on another P: returns the first and queues the others on the worker's P.
    fn steal_due(&self, victim: Pp, w: Worker<'_>, now: u64) -> Option<Gp> {
        let mut due = GQueue::new();
        self.expire(victim, now, EXPIRE_MAX, &mut due);
        self.share_due(w, due)
    }

    fn steal_from(&self, victim: Pp, w: Worker<'_>, take_next: bool) -> Option<Gp> {
        let pause = || {
            if victim.status() == PStatus::Running {
                sys::sleep_ns(NEXT_PAUSE_NS);
            }
        };
        match victim.runq.steal_into(&w.queue(), take_next, pause) {
            Steal::Empty => None,
            Steal::Moved(g, n) => {
                w.p().counters.steals.add(1);
                w.p().counters.stolen.add(n as u64);
                let g = gp(g);
                debug_assert_eq!(g.status.get(), Status::Runnable, "I10");
                Some(g)
            }
        }
    }

    /// Whether P number `id` is on the idle list. It loads no memory of the P itself.
    pub(crate) fn is_idle(&self, id: u32) -> bool {
        // ORDER: Relaxed; a hint. A P that is missed here is found by the re-check behind wake/2.
        self.idle_mask[id as usize / 64].load(Relaxed) & (1 << (id % 64)) != 0
    }
}

/// A random stride that visits each of n places once.
fn coprime_with(n: u32, random: u32) -> u32 {
    if n <= 2 {
        return 1;
    }
    let mut stride = random % (n - 1) + 1;
    while gcd(stride, n) != 1 {
        stride = stride % (n - 1) + 1;
    }
    stride
}

fn gcd(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f1_every_stride_visits_every_p_once() {
        for n in 1..200 {
            for random in [0, 1, 7, 63, 64, 12345, u32::MAX] {
                let stride = coprime_with(n, random);
                let mut seen = vec![false; n as usize];
                let mut at = random % n;
                for _ in 0..n {
                    assert!(!std::mem::replace(&mut seen[at as usize], true));
                    at = (at + stride) % n;
                }
            }
        }
    }
}
