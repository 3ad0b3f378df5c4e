//! Verifies every structural clause of the contract: the scheduler's lists, counters and states
//! agree.
//!
//! Stress tests call it throughout, so that a broken structure is found where it breaks. There are
//! two scans:
//!
//! 1. While the world runs, under the scheduler lock: the lists of idle Ps and Ms against their
//!    counters and the mask. Stopping the world would empty these lists.
//! 2. With the world stopped: every G, M and P, and every queue.
//!
//! Even a stopped world is not frozen:
//!
//! - Threads outside may be starting or waking a goroutine.
//! - A thread without a P may be moving a goroutine from the timers to the global queue.
//! - An M may be on its way to the idle list, or back from a call.
//!
//! Each of these ends within microseconds of CPU time, for which the thread may have to wait on a
//! busy machine. A broken structure stays broken. So a scan that finds something is repeated, up
//! to `SCANS_MAX` times, and the findings of the last scan are reported.
//!
//! Besides the clauses themselves, these hold while the world is stopped:
//!
//! - Every P in use is GcStop and unbound. The leader's P is the exception: it is bound to the
//!   leader's M.
//! - No M but the leader's has a P, and no M has the spinning flag.
//! - An M other than the leader's that has a goroutine is in a call with it.

#[cfg(test)]
mod tests;

use std::fmt;
use std::iter::successors;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::census::Census;
use crate::base::once_box::OnceBox;
use crate::sched::life::p_list::PList;
use crate::sched::model::gstatus::Status;
use crate::sched::model::p::{GFREE_MAX, HeldP, PStatus, STACKS_MAX};
use crate::sched::model::ptr::{Mp, Pp};
use crate::sched::model::switch;
use crate::sched::park::enter;
use crate::sched::sources::timers::AllHeaps;
use crate::sched::{Core, Sched};
use crate::sys;
use crate::sys::PageVec;

/// How many scans with findings are made, and the pause between two scans. It is not a time: while
/// a machine stands still, no thread can finish what it does.
const SCANS_MAX: u32 = 3_000;
const PAUSE_NS: u64 = 1_000_000;
/// The most findings that are kept.
const FINDINGS_MAX: usize = 50;

/// What [`debug::check`](crate::debug::check) found broken, one sentence per clause.
///
/// None of its methods blocks.
///
/// ```
/// gosched::run(|| {
///     if let Err(violations) = gosched::debug::check() {
///         for clause in violations.clauses() {
///             eprintln!("{clause}"); // such as `G3: goroutine 7 is on 2 run queues`
///         }
///         panic!("{violations}");
///     }
/// });
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations(Vec<String>);

impl Violations {
    /// One sentence each, beginning with the clause's name in the contract.
    ///
    /// See the example of [`Violations`].
    #[must_use]
    pub fn clauses(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the scheduler's state is inconsistent:")?;
        self.0
            .iter()
            .try_for_each(|clause| write!(f, "\n  {clause}"))
    }
}

impl std::error::Error for Violations {}

/// The findings as text, in pages of its own: nothing is allocated from malloc while the world is
/// stopped (D9).
pub(super) struct Report {
    text: PageVec<u8>,
    count: usize,
}

impl Report {
    fn new() -> Report {
        Report {
            text: PageVec::new(),
            count: 0,
        }
    }

    fn clear(&mut self) {
        self.text.clear();
        self.count = 0;
    }

    /// Adds a finding.
    pub(super) fn add(&mut self, clause: &str, text: fmt::Arguments<'_>) {
        self.count += 1;
        if self.count <= FINDINGS_MAX {
            // Without memory for the text, the finding is still counted.
            let _ = fmt::Write::write_fmt(self, format_args!("{clause}: {text}\n"));
        }
    }

    /// Adds a finding unless `holds`.
    pub(super) fn expect(&mut self, holds: bool, clause: &str, text: fmt::Arguments<'_>) {
        if !holds {
            self.add(clause, text);
        }
    }

    /// The findings as an error, if there are any. In user context: allocates.
    fn into_result(self) -> Result<(), Violations> {
        if self.count == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(self.text.as_slice());
        let mut clauses: Vec<_> = text.lines().map(str::to_owned).collect();
        if self.count > clauses.len() {
            clauses.push(format!("... and {} more", self.count - clauses.len()));
        }
        Err(Violations(clauses))
    }
}

impl fmt::Write for Report {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes()
            .try_for_each(|byte| self.text.push(byte))
            .map_err(|_| fmt::Error)
    }
}

/// Verifies `sched`, from any thread, in user context.
pub(crate) fn check_of(sched: &Sched) -> Result<(), Violations> {
    let mut report = Report::new();
    let mut census = Census::new();
    if sched.dead.load(Relaxed) {
        return Ok(()); // a dropped runtime: its world cannot be stopped
    }
    let rt = enter();
    until_clean(sched, &mut report, |report| check_lists(sched, report));
    let outstanding = sched.blocks.outstanding();
    drop(rt);
    if report.count == 0 {
        census.reserve(outstanding);
        let Some(stopped) = sched.stop_the_world() else {
            return Ok(());
        };
        switch::systemstack(|| {
            until_clean(sched, &mut report, |report| {
                check_stopped(sched, &mut census, report);
            });
        });
        drop(stopped);
    }
    if sched.dead.load(Acquire) {
        return Ok(()); // dropped meanwhile: the clauses do not hold while its threads end
    }
    report.into_result()
}

/// Repeats a scan until it finds nothing, at most `SCANS_MAX` times. Stops at once if the runtime
/// is being dropped: the clauses do not hold then, and the drop must not wait.
fn until_clean(sched: &Sched, report: &mut Report, mut look: impl FnMut(&mut Report)) {
    for _ in 0..SCANS_MAX {
        report.clear();
        look(report);
        if report.count == 0 || sched.dead.load(Relaxed) {
            return;
        }
        sys::sleep_ns(PAUSE_NS);
    }
}

/// Every M of the runtime.
fn all_ms(core: &Core) -> impl Iterator<Item = Mp> {
    successors(core.allm, |m| m.alllink.get())
}

/// Checks the lists that change under the scheduler lock only, while the world runs.
fn check_lists(sched: &Sched, report: &mut Report) {
    let core = sched.core.lock();
    let nprocs = sched.nprocs();
    let idle = count_ps(&core.pidle, nprocs, |p| {
        let is_idle = p.status() == PStatus::Idle && p.m.load(Relaxed).is_none();
        report.expect(
            is_idle,
            "P2",
            format_args!("P{} is on the idle list but bound", p.id),
        );
        report.expect(
            p.runq.is_empty(),
            "P2",
            format_args!("idle P{} has work", p.id),
        );
        report.expect(
            is_masked(sched, p),
            "P6",
            format_args!("idle P{} has no mask bit", p.id),
        );
    });
    let npidle = sched.spin.npidle.load(Relaxed);
    report.expect(
        idle == npidle,
        "P2",
        format_args!("{idle} Ps on the idle list, npidle is {npidle}"),
    );
    let bits = sched
        .idle_mask
        .iter()
        .map(|word| word.load(Relaxed).count_ones());
    let bits: u32 = bits.sum();
    report.expect(
        bits == idle,
        "P6",
        format_args!("{idle} Ps on the idle list, {bits} bits in the mask"),
    );
    let pending = count_ps(&core.pending, nprocs, |p| {
        let is_free = p.status() == PStatus::Idle && p.m.load(Relaxed).is_none();
        report.expect(
            is_free,
            "S3",
            format_args!("P{} waits for a thread but is bound", p.id),
        );
        let is_idle_too = is_masked(sched, p);
        report.expect(
            !is_idle_too,
            "S3",
            format_args!("P{} is idle and waits for a thread", p.id),
        );
    });
    report.expect(
        pending == core.npending,
        "S3",
        format_args!(
            "{pending} Ps wait for a thread, npending is {}",
            core.npending
        ),
    );
    check_busy_ps(sched, &core, report);
    check_ms(sched, &core, report);
    check_idle_ms(sched, &core, report);
}

/// P1, P3: the Ps that are in use while the world runs. Their Ms take and leave them without the
/// lock.
fn check_busy_ps(sched: &Sched, core: &Core, report: &mut Report) {
    for p in sched.procs() {
        let (id, call, status) = (p.id, p.syscalltick.load(Acquire), p.status());
        let holder = p.m.load(Acquire);
        match status {
            PStatus::Running => {
                let is_mutual = holder.is_some_and(|m| m.p.load(Relaxed) == Some(p));
                report.expect(
                    is_mutual || is_changing_hands(core, p),
                    "P1",
                    format_args!("P{id} runs but is not bound both ways"),
                );
            }
            PStatus::Syscall => {
                let left_it = |m: Mp| m.oldp.load(Relaxed) == Some(p);
                let has_caller = all_ms(core).any(left_it);
                if p.status() != status || p.syscalltick.load(Acquire) != call {
                    continue; // the call has ended since
                }
                report.expect(
                    holder.is_none(),
                    "P3",
                    format_args!("P{id} was left behind for a call but is bound"),
                );
                report.expect(
                    has_caller,
                    "P3",
                    format_args!("P{id} was left behind for a call that no M is in"),
                );
                report.expect(
                    !is_masked(sched, p),
                    "P6",
                    format_args!("P{id} was left behind for a call but has a mask bit"),
                );
            }
            _ => {}
        }
    }
}

/// Whether some M is about to leave `p` behind for a marked call, or to take it back. `p` is then
/// unbound for a few instructions, or for as long as the thread of that M waits for a CPU.
fn is_changing_hands(core: &Core, p: Pp) -> bool {
    let is_about_to = |m: Mp| m.oldp.load(Relaxed) == Some(p) || m.claim.is_marked();
    all_ms(core).any(|m| m.claim.depth() > 0 && is_about_to(m))
}

fn is_masked(sched: &Sched, p: Pp) -> bool {
    sched.idle_mask[p.id as usize / 64].load(Relaxed) & (1 << (p.id % 64)) != 0
}

/// Calls `f` for each P of a list; returns how many there are. In a cycle it counts one P too many.
fn count_ps(list: &PList, nprocs: u32, mut f: impl FnMut(Pp)) -> u32 {
    let mut count = 0;
    for p in list.iter().take(nprocs as usize + 1) {
        f(p);
        count += 1;
    }
    count
}

/// MG, M6: the list of all Ms. Under the scheduler lock, whether the world runs or not.
fn check_ms(sched: &Sched, core: &Core, report: &mut Report) {
    let mut all = 0;
    for m in all_ms(core).take(core.mcount as usize + 1) {
        all += 1;
        let id = m.id.get();
        report.expect(
            std::ptr::eq(m.sched(), sched),
            "MG",
            format_args!("M{id} is on the list of another runtime"),
        );
        if let Some(g) = m.lockedg.load(Relaxed) {
            let is_mutual = g.lockedm.load(Relaxed) == Some(m);
            report.expect(
                is_mutual,
                "M6",
                format_args!("M{id} is locked to a goroutine that is not locked to it"),
            );
        }
    }
    report.expect(
        all + core.creating == core.mcount,
        "MG",
        format_args!(
            "{all} Ms and {} being created, mcount is {}",
            core.creating, core.mcount
        ),
    );
    let is_at_limit = core.nparked > 0 && sched.is_scarce(core);
    report.expect(
        is_at_limit == sched.is_at_limit(),
        "MG",
        format_args!(
            "at the thread limit: {is_at_limit}, its mirror {}",
            sched.is_at_limit()
        ),
    );
    report.expect(
        core.mcount <= sched.config.max_threads,
        "MG",
        format_args!(
            "{} Ms, the limit is {}",
            core.mcount, sched.config.max_threads
        ),
    );
}

/// M1, I6: the list of idle Ms, and the number of spinning ones. Under the scheduler lock, whether
/// the world runs or not.
fn check_idle_ms(sched: &Sched, core: &Core, report: &mut Report) {
    let limit = core.mcount as usize + 1;
    let flagged = all_ms(core).take(limit).filter(|m| m.is_idle.get()).count() as u32;
    let mut idle = 0;
    let mut prev = None;
    for m in successors(core.midle, |m| m.idle_next.get()).take(limit) {
        idle += 1;
        let is_bare =
            m.p.load(Relaxed).is_none() && m.curg().is_none() && m.nextp.load(Relaxed).is_none();
        let is_asleep = m.is_idle.get() && m.blocked.load(Relaxed) && !m.is_spinning();
        report.expect(
            is_bare,
            "M1",
            format_args!("idle M{} has a P or a goroutine", m.id.get()),
        );
        report.expect(
            is_asleep,
            "M1",
            format_args!("M{} is on the idle list but not idle", m.id.get()),
        );
        report.expect(
            m.idle_prev.get() == prev,
            "M1",
            format_args!("the idle list is torn at M{}", m.id.get()),
        );
        prev = Some(m);
    }
    report.expect(
        idle == core.nmidle && idle == flagged,
        "M1",
        format_args!(
            "{idle} Ms on the idle list, {flagged} are flagged idle, nmidle is {}",
            core.nmidle
        ),
    );
    let (spinning, nprocs) = (sched.spin.count(), sched.nprocs());
    report.expect(
        spinning <= nprocs,
        "I6",
        format_args!("{spinning} Ms spin, there are {nprocs} Ps"),
    );
}

/// Checks everything, with the world stopped. On g0.
fn check_stopped(sched: &Sched, census: &mut Census, report: &mut Report) {
    // Held to the end, and taken in the order of their ranks. Threads outside wait for them, so no
    // goroutine is in transit.
    let heaps = AllHeaps::lock(sched);
    let core = sched.core.lock();
    let leader = sched.own_m();
    check_ms(sched, &core, report);
    check_idle_ms(sched, &core, report);
    check_stopped_ms(&core, leader, report);
    check_waiting_ms(&core, report);
    check_calls(sched, &core, report);
    check_stopped_ps(sched, &core, leader, report);
    census.take(sched, report);
    for p in sched.procs() {
        census.visit_p(p, report);
    }
    heaps.for_each(|p, heap| {
        report.expect(
            heap.is_sound(),
            "PL",
            format_args!("P{}'s timers are out of order", p.id),
        );
        let is_shown = sched.timers.has(p.id) == (heap.next_ns() != u64::MAX);
        report.expect(
            is_shown && p.timers.next_ns() == heap.next_ns(),
            "PL",
            format_args!("P{}'s timers are not as they are shown", p.id),
        );
        census.visit_heap(p, heap, report);
    });
    let listed = census.visit_global(&core.runq, report);
    let mirror = sched.runq_len.load(Relaxed);
    report.expect(
        listed == core.runq.len() && listed == mirror,
        "R7",
        format_args!(
            "{listed} goroutines on the global queue, its length is {} and the mirror {mirror}",
            core.runq.len()
        ),
    );
    report.expect(
        core.runq.is_sound(),
        "R7",
        format_args!("the lists of the global queue disagree with their counts or stamps"),
    );
    census.judge(sched, leader, report);
    check_counts(sched, census, report);
}

/// M2, P4, G2: what an M has in a stopped world.
fn check_stopped_ms(core: &Core, leader: Option<Mp>, report: &mut Report) {
    for m in all_ms(core).take(core.mcount as usize + 1) {
        let id = m.id.get();
        report.expect(
            m.nextp.load(Relaxed).is_none(),
            "S3",
            format_args!("M{id} is being given a P in a stopped world"),
        );
        report.expect(
            !m.is_spinning(),
            "M2",
            format_args!("M{id} spins in a stopped world"),
        );
        if Some(m) != leader {
            report.expect(
                m.p.load(Relaxed).is_none(),
                "P4",
                format_args!("M{id} has a P in a stopped world"),
            );
            // An M in a call keeps its goroutine. When it returns it finds no P.
            report.expect(
                m.curg().is_none() || m.claim.is_away(),
                "G2",
                format_args!("M{id} has a goroutine in a stopped world"),
            );
        }
    }
}

/// M6: the Ms that wait for their own goroutine, locked or bound, against their counters.
fn check_waiting_ms(core: &Core, report: &mut Report) {
    let (mut waiting, mut parked) = (0, 0);
    for m in all_ms(core).take(core.mcount as usize + 1) {
        let bound = m.bound.load(Relaxed);
        if let Some(g) = bound {
            let is_mutual = g.m.load(Relaxed) == Some(m) && m.curg().is_none();
            report.expect(
                is_mutual,
                "M6",
                format_args!("M{} waits with a goroutine that is elsewhere", m.id.get()),
            );
        }
        let has_next = m.nextp.load(Relaxed).is_some();
        let has_own = bound.is_some() || m.lockedg.load(Relaxed).is_some();
        waiting += i32::from(has_own && m.blocked.load(Relaxed) && !has_next);
        parked += u32::from(bound.is_some() && !has_next);
    }
    report.expect(
        waiting == core.nmidlelocked,
        "M6",
        format_args!(
            "{waiting} Ms wait for their own goroutine, nmidlelocked is {}",
            core.nmidlelocked
        ),
    );
    report.expect(
        parked == core.nparked,
        "M6",
        format_args!(
            "{parked} Ms wait with a goroutine on their thread, nparked is {}",
            core.nparked
        ),
    );
}

/// M5: the Ms whose P was taken from them. In a stopped world no more Ps are taken. An M that has
/// returned is counted until sysmon notices.
fn check_calls(sched: &Sched, core: &Core, report: &mut Report) {
    let mut taken = 0;
    for m in all_ms(core).take(core.mcount as usize + 1) {
        taken += u32::from(m.claim.is_taken());
        let has_goroutine = m.curg().is_some() || m.bound.load(Relaxed).is_some();
        report.expect(
            has_goroutine || !m.claim.is_away(),
            "M5",
            format_args!("M{} is in a call without a goroutine", m.id.get()),
        );
    }
    let watched = sched.strays.count.load(Relaxed);
    report.expect(
        taken <= watched && watched <= core.mcount,
        "M5",
        format_args!(
            "the Ps of {taken} Ms were taken, {watched} of {} are watched",
            core.mcount
        ),
    );
}

/// P1, P4, P5, P6: the Ps of a stopped world, and their caches.
fn check_stopped_ps(sched: &Sched, core: &Core, leader: Option<Mp>, report: &mut Report) {
    let lists_are_empty = core.pidle.is_empty() && core.pending.is_empty();
    report.expect(
        lists_are_empty && sched.spin.npidle.load(Relaxed) == 0 && core.npending == 0,
        "P4",
        format_args!("a P is idle or waits for a thread in a stopped world"),
    );
    let own = leader.and_then(|m| m.p.load(Relaxed));
    for (id, _) in (0..).zip(sched.allp.iter().map_while(OnceBox::get)) {
        let p = sched.p(id);
        let status = p.status();
        let expected = if id < sched.nprocs() {
            PStatus::GcStop
        } else {
            PStatus::Dead
        };
        let clause = if id < sched.nprocs() { "P4" } else { "P5" };
        report.expect(
            status == expected,
            clause,
            format_args!("P{id} is {status:?} in a stopped world"),
        );
        let holder = if own == Some(p) { leader } else { None };
        report.expect(
            p.m.load(Relaxed) == holder,
            "P1",
            format_args!("P{id} is not bound to the M that holds it"),
        );
        report.expect(
            !is_masked(sched, p),
            "P6",
            format_args!("P{id} has a mask bit but is not idle"),
        );
        // SAFETY: PL, only the P's holder may use its caches. All Ps of a stopped world belong to
        // its leader, which is the caller. The caller has no other reference to them.
        let local = unsafe { HeldP::new(&p) }.local();
        report.expect(
            local.gfree.iter().take(GFREE_MAX + 1).count() == local.gfree.len()
                && local.gfree.len() <= GFREE_MAX,
            "GF",
            format_args!(
                "P{id}'s free list does not have its {} members",
                local.gfree.len()
            ),
        );
        report.expect(
            local.stacks.len() <= STACKS_MAX,
            "PL",
            format_args!("P{id}'s stack cache overflows"),
        );
        let is_bare = p.runq.is_empty() && local.gfree.len() == 0 && local.stacks.len() == 0;
        report.expect(
            id < sched.nprocs() || is_bare,
            "P5",
            format_args!("P{id} is dead but holds something"),
        );
    }
}

/// S2, GF, D3: the counters against what the census has counted.
fn check_counts(sched: &Sched, census: &Census, report: &mut Report) {
    let counted = census.count(|status| !matches!(status, Status::Dead | Status::Idle));
    let live = sched.goroutines() as usize;
    report.expect(
        counted == live,
        "S2",
        format_args!("{counted} goroutines are alive, the counters have {live}"),
    );
    let out = sched.blocks.outstanding();
    report.expect(
        census.len() == out,
        "GF",
        format_args!(
            "{} Gs are out of their blocks, the counter has {out}",
            census.len()
        ),
    );
    let stats = sched.arena.stats();
    let (mut cached, mut credits) = (0, 0);
    for p in sched.procs() {
        // SAFETY: PL, only the P's holder may use its caches. All Ps of a stopped world belong to
        // its leader, which is the caller. The caller has no other reference to them.
        let local = unsafe { HeldP::new(&p) }.local();
        cached += local.stacks.len();
        credits += local.credits.get();
    }
    let held = census.stacks() + cached;
    report.expect(
        held == stats.in_use,
        "D3",
        format_args!(
            "goroutines and caches have {held} stacks, the arena gave out {}",
            stats.in_use
        ),
    );
    let dormant = census.dormant();
    report.expect(
        counted + dormant + credits == stats.reserved,
        "D3",
        format_args!(
            "{counted} goroutines, {dormant} timers' and {credits} credits, the arena has promised {} stacks",
            stats.reserved
        ),
    );
}
