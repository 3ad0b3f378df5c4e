//! The clauses of the contract that only the inside can see: capacities, batch sizes, orders,
//! status edges, lists.
//!
//! Two kinds of scheduler are used. A *still* one has Ps but no threads: the test acts as the Ms
//! and controls every step. A *live* one runs. Its tests look from within a goroutine, which stays
//! on its M by being inside the runtime where an order matters. Nothing here depends on time,
//! except a limit after which a wait has failed.

mod bounded;
mod calls;
mod claim;
mod goroutines;
mod layout;
mod looks;
mod ms;
mod preempt;
mod procedures;
mod ps;
mod queues;
mod strays;
mod timers;

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Sched;
use super::park;
use crate::runtime::Runtime;
use crate::sched::life::p_list::PList;
use crate::sched::model::current::current_g;
use crate::sched::model::g::GQueue;
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::{M, PreemptOff};
use crate::sched::model::p::gp;
use crate::sched::model::ptr::{Gp, Mp, Pp, Ptr};
use crate::sched::worker::acquire_p;
use crate::sched::worker::{G0, IdleP, Worker};
use crate::tests::{NEVER, child, dead_g, new_m, runtime, still};
use std::ptr::NonNull;

/// More goroutines than any test queues: a queue that yields more is broken.
const MANY: usize = 100_000;

/// A Runnable G that is on no queue yet.
fn runnable_g(sched: &Sched) -> Gp {
    let g = dead_g(sched);
    g.status.transition(Status::Dead, Status::Runnable);
    g
}

/// As many Runnable Gs.
fn runnable_gs(sched: &Sched, n: usize) -> Vec<Gp> {
    (0..n).map(|_| runnable_g(sched)).collect()
}

/// An M that holds an idle P.
fn m_with_p(sched: &Sched) -> (Mp, Pp) {
    let m = new_m(sched);
    let p = sched.get_idle_p(&mut sched.core.lock()).unwrap().into_p();
    acquire_p(m, idle(p));
    (m, p)
}

/// Stands for the M that holds `p`, or has taken it.
fn worker(p: Pp) -> Worker<'static> {
    let m = p.m.load(Relaxed).unwrap_or_else(|| {
        // SAFETY: GF, the M is leaked, so it lives for ever.
        unsafe { Ptr::new(NonNull::from(Box::leak(Box::new(M::new())))) }
    });
    // SAFETY: PL, a P of a still scheduler, or one that the calling goroutine's M holds.
    unsafe { Worker::played(m, p) }
}

/// Takes `p` as a thread does that has it in its hands.
fn idle(p: Pp) -> IdleP {
    // SAFETY: a still scheduler's P, or one that the test has taken from its list.
    unsafe { IdleP::new(p) }
}

/// Stands for m's thread, on its scheduling stack.
fn g0(m: Mp) -> G0 {
    // SAFETY: an M of a still scheduler has no thread: this thread acts as it.
    unsafe { G0::new(m) }
}

/// Restarts the count of decisions until the next fair one.
fn count_anew(p: Pp) {
    worker(p).local().fairness.begin_anew();
}

/// Makes the 61st decision, as after 60 others.
fn decide_61st(sched: &Sched, p: Pp) -> Option<Gp> {
    worker(p).local().fairness.skip_to_the_61st();
    sched.decide_fairly(worker(p))
}

/// Empties one P's queue, `next` first.
fn drain_p(p: Pp) -> Vec<Gp> {
    let queue = worker(p).queue();
    let taken = std::iter::from_fn(|| queue.get()).map(|(g, _)| gp(g));
    taken.take(MANY).collect()
}

/// Empties the global queue.
fn drain_global(sched: &Sched) -> Vec<Gp> {
    let mut core = sched.core.lock();
    let taken = std::iter::from_fn(|| sched.global_get(&mut core));
    taken.take(MANY).collect()
}

/// Empties every place where a runnable goroutine may be.
fn drain_all(sched: &Sched) -> Vec<Gp> {
    let mut all: Vec<Gp> = sched.procs().flat_map(drain_p).collect();
    all.extend(drain_global(sched));
    all
}

/// Both have the same goroutines, each once (G3).
fn assert_each_once(found: &[Gp], expected: &[Gp]) {
    assert_eq!(found.len(), expected.len(), "G3: lost or doubled");
    let sorted = |gs: &[Gp]| {
        let mut addresses: Vec<_> = gs.iter().map(|g| g.as_ptr() as usize).collect();
        addresses.sort_unstable();
        addresses
    };
    assert_eq!(sorted(found), sorted(expected), "G3: lost or doubled");
}

/// The members of a list linked through the Ps.
fn list_of_ps(list: &PList) -> Vec<Pp> {
    list.iter().collect()
}

/// The members of the global queue, in the order in which they are taken.
fn global_members(sched: &Sched) -> Vec<Gp> {
    sched.core.lock().runq.iter().collect()
}

/// Runs `f` as the main goroutine of a runtime, with its scheduler. Fails if a wake-up was lost.
fn live<T: Send>(procs: usize, f: impl FnOnce(&'static Sched) -> T + Send) -> T {
    let runtime = runtime(procs);
    runtime.run(|| {
        let here = current_g().unwrap();
        let sched: *const Sched = here.sched();
        // SAFETY: D2, the runtime outlives the test's goroutines and threads, which end before `f`
        // returns.
        let sched = unsafe { &*sched };
        let result = f(sched);
        assert_eq!(sched.outside.rescues.get(), 0, "WK: a wake-up was lost");
        result
    })
}

/// Waits. A goroutine keeps its P meanwhile, whatever sysmon finds. `happened` does not yield.
fn wait_for(what: &str, happened: impl FnMut() -> bool) {
    let keeps_p = park::no_preempt(PreemptOff::StoppingTheWorld);
    let is_outside = crate::sched::model::current::current_m().is_none();
    wait_so(what, happened, || {
        if is_outside {
            std::thread::sleep(Duration::from_micros(100));
        } else {
            std::hint::spin_loop();
        }
    });
    drop(keeps_p);
}

/// Waits and yields in between.
fn wait_yielding(what: &str, happened: impl FnMut() -> bool) {
    wait_so(what, happened, crate::yield_now);
}

fn wait_so(what: &str, mut happened: impl FnMut() -> bool, pause: impl Fn()) {
    let began = Instant::now();
    while !happened() {
        assert!(began.elapsed() < NEVER, "never happened: {what}");
        pause();
    }
}

/// Times that sysmon took a goroutine off its P.
fn preempts(sched: &Sched) -> u64 {
    let asked: u64 = sched.procs().map(|p| p.counters.preempts.get()).sum();
    asked + sched.calls.parked.get() + sched.calls.claimed.get()
}

/// Repeats an observation of order until no goroutine's slice ended in the middle of it.
fn undisturbed<T>(sched: &Sched, mut observe: impl FnMut() -> T) -> T {
    for _ in 0..100 {
        let before = preempts(sched);
        let seen = observe();
        if preempts(sched) == before {
            return seen;
        }
    }
    panic!("disturbed a hundred times");
}

/// The id of the calling thread.
fn tid() -> i32 {
    crate::sys::gettid()
}

/// The M of the calling goroutine and its P. Only while the goroutine is inside the runtime.
fn here() -> (Mp, Pp) {
    let m = crate::sched::model::current::current_m().unwrap();
    (m, m.p.load(Relaxed).unwrap())
}
