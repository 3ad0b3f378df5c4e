//! `GOSCHED_DEBUG=schedtrace=N[,scheddetail=1]`: Go's lines about the scheduler, printed by sysmon.
//!
//! ```text
//! SCHED 0ms: gomaxprocs=4 idleprocs=2 threads=5 spinningthreads=1 needspinning=0 idlethreads=1
//!     runqueue=0 [ 0 3 0 0 ] schedticks=[ 12 7 0 0 ]
//! ```
//!
//! It is one line. The time counts from the first line of the process. The numbers in brackets are
//! the lengths of the Ps' queues, without `runnext`, and the Ps' time slices. With scheddetail a
//! line follows for every P, M and live G. Some of Go's words have no counterpart: `locks` of an M
//! is its depth inside the runtime, `mallocing` is always 0, and `dying` is left out.
//!
//! The numbers are copied under the locks that guard them and printed afterwards. Nothing is
//! allocated from malloc (D9).

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::out::Out;
use crate::sched::model::g::G;
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::{AtomicRef, Mp, Pp};
use crate::sched::model::wait_reason::WaitReason;
use crate::sched::{Core, Sched};
use crate::sys::PageVec;

/// The time of the first line; 0: none yet.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);

/// Counts that need the scheduler lock.
struct Counts {
    threads: u32,
    idle_threads: u32,
    runqueue: usize,
    nmidlelocked: i32,
    stopwait: u32,
}

/// Prints one line, or with scheddetail all lines. On sysmon's thread.
pub(crate) fn print(sched: &Sched, now_ns: u64) {
    let since = match FIRST_NS.compare_exchange(0, now_ns, Relaxed, Relaxed) {
        Ok(_) => 0,
        Err(first) => now_ns.saturating_sub(first),
    };
    let mut ms = PageVec::new();
    let core = sched.core.lock();
    let counts = Counts {
        threads: core.mcount,
        idle_threads: core.nmidle,
        runqueue: core.runq.len(),
        nmidlelocked: core.nmidlelocked,
        stopwait: core.stopwait,
    };
    if sched.config.scheddetail {
        list_ms(&core, &mut ms);
    }
    drop(core);
    let mut out = <Out>::new();
    put_counts(&mut out, sched, since / 1_000_000, &counts);
    if sched.config.scheddetail {
        put_detail(&mut out, sched, &counts, ms.as_slice());
    } else {
        put_queues(&mut out, sched);
    }
}

fn put_counts(out: &mut Out, sched: &Sched, ms: u64, counts: &Counts) {
    out.put(format_args!(
        "SCHED {ms}ms: gomaxprocs={} idleprocs={} threads={} spinningthreads={} needspinning={} idlethreads={} runqueue={}",
        sched.nprocs(),
        sched.spin.npidle.load(Relaxed),
        counts.threads,
        sched.spin.count(),
        u32::from(sched.spin.is_needed()),
        counts.idle_threads,
        counts.runqueue,
    ));
}

fn put_queues(out: &mut Out, sched: &Sched) {
    out.put(format_args!(" ["));
    for p in sched.procs() {
        out.put(format_args!(" {}", p.runq.len()));
    }
    out.put(format_args!(" ] schedticks=["));
    for p in sched.procs() {
        out.put(format_args!(" {}", p.schedtick.load(Relaxed)));
    }
    out.put(format_args!(" ]\n"));
}

fn put_detail(out: &mut Out, sched: &Sched, counts: &Counts, ms: &[MLine]) {
    out.put(format_args!(
        " gcwaiting={} nmidlelocked={} stopwait={} sysmonwait=false\n",
        sched.gcwaiting.load(Relaxed),
        counts.nmidlelocked,
        counts.stopwait
    ));
    for p in sched.procs() {
        put_p(out, p, ms);
    }
    for m in ms {
        out.put(format_args!("{m}"));
    }
    let mut gs = PageVec::new();
    sched.blocks.for_each(|g| {
        if !matches!(g.status.get(), Status::Dead | Status::Idle) {
            // Without memory the line is left out.
            let _ = gs.push(GLine::of(&g));
        }
    });
    for g in gs.as_slice() {
        g.put(out, ms);
    }
}

fn put_p(out: &mut Out, p: Pp, ms: &[MLine]) {
    let timers = p.timers.len();
    out.put(format_args!(
        "  P{}: status={} schedtick={} syscalltick={} m={} runqsize={} timerslen={timers}\n",
        p.id,
        p.status() as u32,
        p.schedtick.load(Relaxed),
        p.syscalltick.load(Relaxed),
        id_of(p.m.load(Relaxed), ms),
        p.runq.len(),
    ));
}

/// One M, copied under the scheduler lock.
#[derive(Clone, Copy)]
struct MLine {
    m: Mp,
    id: u32,
    p: OrNil,
    curg: OrNil,
    depth: u32,
    is_spinning: bool,
    is_blocked: bool,
    lockedg: OrNil,
}

fn list_ms(core: &Core, ms: &mut PageVec<MLine>) {
    let goid = |g: &AtomicRef<G>| OrNil(g.load(Relaxed).map(|g| g.id()));
    for m in std::iter::successors(core.allm, |m| m.alllink.get()) {
        // Without memory the line is left out.
        let _ = ms.push(MLine {
            m,
            id: m.id.get(),
            p: OrNil(m.p.load(Relaxed).map(|p| p.id.into())),
            curg: goid(&m.curg),
            depth: m.claim.depth(),
            is_spinning: m.is_spinning(),
            is_blocked: m.blocked.load(Relaxed),
            lockedg: goid(&m.lockedg),
        });
    }
    ms.as_mut_slice().sort_unstable_by_key(|m| m.id);
}

impl fmt::Display for MLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  M{}: p={} curg={} mallocing=0 throwing=0 preemptoff= locks={} spinning={} blocked={} lockedg={}",
            self.id, self.p, self.curg, self.depth, self.is_spinning, self.is_blocked, self.lockedg
        )
    }
}

/// One G, copied under the lock of the blocks of Gs.
#[derive(Clone, Copy)]
struct GLine {
    id: u64,
    status: Status,
    reason: WaitReason,
    m: Option<Mp>,
    lockedm: Option<Mp>,
}

impl GLine {
    fn of(g: &G) -> GLine {
        GLine {
            id: g.id(),
            status: g.status.get(),
            reason: g.wait_reason(),
            m: g.m.load(Relaxed),
            lockedm: g.lockedm.load(Relaxed),
        }
    }

    fn put(&self, out: &mut Out, ms: &[MLine]) {
        let reason = match self.status {
            Status::Waiting | Status::Leaked => self.reason.name(),
            _ => "",
        };
        out.put(format_args!(
            "  G{}: status={}({reason}) m={} lockedm={}\n",
            self.id,
            self.status as u32,
            id_of(self.m, ms),
            id_of(self.lockedm, ms)
        ));
    }
}

/// The number of an M, from the list: the field of the M itself is guarded by the scheduler lock.
fn id_of(m: Option<Mp>, ms: &[MLine]) -> OrNil {
    let line = m.and_then(|m: Mp| ms.iter().find(|line| line.m == m));
    OrNil(line.map(|line| line.id.into()))
}

/// A number, or `nil`.
#[derive(Clone, Copy)]
struct OrNil(Option<u64>);

impl fmt::Display for OrNil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(n) => write!(f, "{n}"),
            None => f.write_str("nil"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_nil() {
        assert_eq!(OrNil(None).to_string(), "nil");
        assert_eq!(OrNil(Some(3)).to_string(), "3");
        assert_eq!(id_of(None, &[]).to_string(), "nil");
    }
}
