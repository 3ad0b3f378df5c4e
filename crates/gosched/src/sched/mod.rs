//! The scheduler: it decides which goroutine runs next, on which thread. Go's package-level
//! variables are fields of [`Sched`], so a process can have several runtimes (D2).
//!
//! `README.md` beside this file has the words, the reading order and every protocol.

pub(crate) mod calls;
pub(crate) mod exit;
pub(crate) mod global;
pub(crate) mod idle;
pub(crate) mod life;
pub(crate) mod locked;
pub(crate) mod model;
pub(crate) mod monitor;
pub(crate) mod park;
pub(crate) mod schedule;
pub(crate) mod sources;
pub(crate) mod spawn;
pub(crate) mod steal;
pub(crate) mod waiting;
pub(crate) mod worker;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use crossbeam_utils::CachePadded;

use crate::base::lock::{Lock, Rank};
use crate::base::once_box::OnceBox;
use crate::sched::calls::lookups::Lookups;
use crate::sched::calls::room::CallRoom;
use crate::sched::calls::starts::Starts;
use crate::sched::life::config::Config;
use crate::sched::life::p_list::PList;
use crate::sched::model::g::G;
use crate::sched::model::gblock::GBlocks;
use crate::sched::model::global_queue::GlobalQueue;
use crate::sched::model::m::M;
use crate::sched::model::p::{Counters, P};
use crate::sched::model::ptr::{Home, Mp, Pp};
use crate::sched::model::spin::Spin;
use crate::sched::model::watch::{CallCounters, Claims, Strays, SysmonState};
use crate::sched::sources::poller::Poller;
use crate::sched::sources::timers::Timers;
use crate::stack::Arena;
use crate::tls::Room;

/// The most Ps that a runtime can have.
pub(crate) const PROCS_MAX: usize = 4096;
/// What the scheduler lock guards (Go's `sched.lock`).
pub(crate) struct Core {
    /// The global run queue (R7).
    pub(crate) runq: GlobalQueue,
    /// Idle Ms, last in first out, linked both ways (M1).
    pub(crate) midle: Option<Mp>,
    pub(crate) nmidle: u32,
    /// Ms that wait for their own goroutine, locked or bound. Below zero for a moment if one is
    /// woken before it waits.
    pub(crate) nmidlelocked: i32,
    /// Of these, the bound ones: threads with the frames of a goroutine that waits (D7).
    pub(crate) nparked: u32,
    /// Idle Ps, last in first out (P2).
    pub(crate) pidle: PList,
    /// Pending Ps: the next M that stops, or is born, takes one.
    pub(crate) pending: PList,
    pub(crate) npending: u32,
    /// Ms alive or being born.
    pub(crate) mcount: u32,
    /// Of these, being born.
    pub(crate) creating: u32,
    /// The system refused a thread and has not given as many as were wanted since.
    pub(crate) is_refused: bool,
    /// The creator tries again by itself, so it need not be kicked for threads.
    pub(crate) is_retrying: bool,
    pub(crate) next_mid: u32,
    pub(crate) allm: Option<Mp>,
    /// Ps that have not stopped yet (STW).
    pub(crate) stopwait: u32,
    /// Advances when an M or a P leaves an idle list; the deadlock check compares it.
    pub(crate) activity: u64,
    /// Main goroutines that called `exit` and whose `run` still waits.
    pub(crate) mains_exited: u32,
    /// Calls of `run` without an answer, and whether there ever was a call.
    pub(crate) runners: u32,
    pub(crate) has_run: bool,
    /// Threads about to queue a goroutine, or to wake an M for what is queued: callers of `run`,
    /// and a leader that starts the world.
    pub(crate) starting: u32,
}

/// A runtime.
///
/// Fields that are written often are padded: each has its cache lines alone, so that a store to one
/// does not take another from the caches of all CPUs. The fields without padding are read at every
/// turn and hardly ever written. `docs/scaling.md` lists the threads that
/// touch each field, and how often.
pub(crate) struct Sched {
    /// Its number in this process, from 1.
    pub(crate) id: u32,
    pub(crate) config: Config,
    /// GOMAXPROCS.
    pub(crate) nprocs: AtomicU32,
    pub(crate) allp: Box<[OnceBox<P>]>,
    /// The world is stopping or stopped: every M stops in `find_runnable`.
    pub(crate) gcwaiting: AtomicBool,
    /// The runtime is being dropped: Ms end, and no goroutine starts any more.
    pub(crate) dead: AtomicBool,
    /// New goroutines are refused.
    pub(crate) closed: AtomicBool,
    /// The size class of a stack unless the spawn names another.
    pub(crate) stack_class: u8,
    /// Where goroutines have their thread-locals.
    pub(crate) tls: Room,
    /// Its memory is elsewhere: it is large, and the runtime is built on a thread's stack.
    pub(crate) arena: Box<CachePadded<Arena>>,
    pub(crate) started_ns: u64,
    /// Threads wait with goroutines, and no further thread can be spared (`bound`).
    pub(crate) at_limit: AtomicBool,
    pub(crate) creator: crate::sched::life::threads::Creator,
    pub(crate) world: crate::sched::life::world::World,
    /// A drop has begun to abandon the goroutines. Those that it finds running are left to their
    /// Ms.
    pub(crate) is_given_up: AtomicBool,
    /// sysmon sets these when memory is due for return.
    pub(crate) scavenge_now: AtomicBool,
    pub(crate) shrink_now: AtomicBool,
    /// Goroutines and threads abandoned by a drop.
    pub(crate) leaked_gs: AtomicU32,
    pub(crate) leaked_ms: AtomicU32,
    /// The program's deadlock hook. The creator takes it; the runtime's owner drops it.
    pub(crate) hook: std::sync::Mutex<Option<life::deadlock::Hook>>,

    pub(crate) core: CachePadded<Lock<Core>>,
    /// The length of the global queue, for readers without the lock.
    pub(crate) runq_len: CachePadded<AtomicUsize>,
    pub(crate) spin: CachePadded<Spin>,
    /// Bit i ⇔ P i is on the idle list (P6).
    pub(crate) idle_mask: CachePadded<[AtomicU64; PROCS_MAX / 64]>,
    pub(crate) next_goid: CachePadded<AtomicU64>,
    pub(crate) blocks: CachePadded<GBlocks>,
    pub(crate) timers: CachePadded<Timers>,
    pub(crate) poller: CachePadded<Poller>,
    /// The coarse clock: milliseconds since the runtime began, written by sysmon.
    pub(crate) now_ms: CachePadded<AtomicU32>,
    pub(crate) sysmon: CachePadded<SysmonState>,
    /// sysmon has expired timers and has not queued their goroutines yet.
    pub(crate) is_carrying: CachePadded<AtomicBool>,
    /// Counts of events on threads without a P.
    pub(crate) outside: CachePadded<Counters>,
    /// The claim lock: a thread holds it to take a P away or to send a signal.
    pub(crate) claims: CachePadded<Lock<Claims>>,
    pub(crate) strays: CachePadded<Strays>,
    pub(crate) calls: CachePadded<CallCounters>,
    pub(crate) room: CachePadded<CallRoom>,
    pub(crate) lookups: CachePadded<Lookups>,
    pub(crate) starts: CachePadded<Starts>,
}

impl G {
    #[inline]
    pub(crate) fn sched(&self) -> &Sched {
        // SAFETY: D2, `GBlocks::take` stored the address of the Sched that owns the G's memory.
        unsafe { &*self.home.get().cast() }
    }
}

impl M {
    /// Its runtime. Not for an M in the process-wide pool.
    #[inline]
    pub(crate) fn sched(&self) -> &Sched {
        // SAFETY: D2, `run_as_m` stored the address of the Sched to which the M's thread holds a
        // reference.
        unsafe { &*self.home.get().cast() }
    }
}

static NEXT_RUNTIME: AtomicU32 = AtomicU32::new(1);

/// The number of runtimes made in this process: the largest id.
pub(crate) fn runtimes_made() -> u32 {
    NEXT_RUNTIME.load(Relaxed) - 1
}

impl Sched {
    pub(crate) fn new(config: Config) -> Sched {
        crate::sched::life::m_answers::install();
        let arena = Arena::new(config.mprotect_guards, config.tls);
        Sched::with(config, Box::new(CachePadded::new(arena)))
    }

    /// A function of its own: its frame and the arena's together are too large for a small thread.
    #[inline(never)]
    fn with(mut config: Config, arena: Box<CachePadded<Arena>>) -> Sched {
        let hook = std::sync::Mutex::new(config.on_deadlock.take());
        let now = crate::sys::monotonic_ns();
        Sched {
            id: NEXT_RUNTIME.fetch_add(1, Relaxed),
            core: CachePadded::new(Lock::new(
                Rank::Sched,
                Core {
                    runq: GlobalQueue::new(),
                    midle: None,
                    nmidle: 0,
                    nmidlelocked: 0,
                    nparked: 0,
                    pidle: PList::default(),
                    pending: PList::default(),
                    npending: 0,
                    mcount: 0,
                    creating: 0,
                    is_refused: false,
                    is_retrying: false,
                    next_mid: 0,
                    allm: None,
                    stopwait: 0,
                    activity: 0,
                    mains_exited: 0,
                    runners: 0,
                    has_run: false,
                    starting: 0,
                },
            )),
            runq_len: CachePadded::new(AtomicUsize::new(0)),
            idle_mask: CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0))),
            spin: CachePadded::new(Spin::new()),
            nprocs: AtomicU32::new(0),
            allp: (0..PROCS_MAX).map(|_| OnceBox::new()).collect(),
            gcwaiting: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            next_goid: CachePadded::new(AtomicU64::new(1)),
            blocks: CachePadded::new(GBlocks::new()),
            arena,
            stack_class: config.stack_class,
            tls: config.tls,
            timers: CachePadded::new(Timers::new()),
            poller: CachePadded::new(Poller::new()),
            lookups: CachePadded::new(Lookups::new(
                config.max_lookups,
                config.max_threads,
                config.procs,
            )),
            starts: CachePadded::new(Starts::new()),
            now_ms: CachePadded::new(AtomicU32::new(0)),
            started_ns: now,
            outside: CachePadded::new(Counters::default()),
            sysmon: CachePadded::new(SysmonState::new()),
            claims: CachePadded::new(Lock::new(Rank::Claims, Claims::new())),
            strays: CachePadded::new(Strays::default()),
            calls: CachePadded::new(CallCounters::default()),
            at_limit: AtomicBool::new(false),
            room: CachePadded::new(CallRoom::new()),
            creator: crate::sched::life::threads::Creator::new(),
            world: crate::sched::life::world::World::new(),
            is_given_up: AtomicBool::new(false),
            is_carrying: CachePadded::new(AtomicBool::new(false)),
            scavenge_now: AtomicBool::new(false),
            shrink_now: AtomicBool::new(false),
            leaked_gs: AtomicU32::new(0),
            leaked_ms: AtomicU32::new(0),
            hook,
            config,
        }
    }

    /// A function of its own: its frame is too large for a goroutine's stack.
    #[inline(never)]
    pub(crate) fn new_on_thread_stack(config: Config) -> Arc<Sched> {
        Arc::new(Sched::new(config))
    }

    /// Starts a new runtime's threads and puts its Ps on the idle list.
    pub(crate) fn start(sched: Arc<Sched>) -> std::io::Result<Arc<Sched>> {
        let procs = sched.config.procs;
        sched
            .calls
            .has_no_membarrier
            .store(!crate::sys::membarrier_register(), Relaxed);
        sched.add_procs(procs)?;
        crate::sched::life::registry::add(&sched);
        if let Err(error) = crate::sched::life::threads::start(&sched) {
            crate::sched::life::teardown::abandon_start(&sched);
            return Err(error);
        }
        Ok(sched)
    }

    /// Its address, as Gs and Ms keep it.
    pub(crate) fn home(&self) -> *const Home {
        std::ptr::from_ref(self).cast()
    }

    /// GOMAXPROCS.
    #[inline]
    pub(crate) fn nprocs(&self) -> u32 {
        self.nprocs.load(Relaxed)
    }

    /// P number `id`. It exists for every id below the largest GOMAXPROCS so far.
    #[inline]
    pub(crate) fn p(&self, id: u32) -> Pp {
        match self.allp[id as usize].get() {
            // SAFETY: GF, the Ps live as long as the runtime, and a pointer to one is followed only
            // by its threads and by holders of a reference to it (D2).
            Some(p) => unsafe { Pp::new(p.into()) },
            None => crate::base::fatal::throw("no P of that number"),
        }
    }

    pub(crate) fn procs(&self) -> impl Iterator<Item = Pp> + '_ {
        (0..self.nprocs()).map(|id| self.p(id))
    }

    /// The number of live goroutines: queued or started, not ended.
    pub(crate) fn goroutines(&self) -> u64 {
        // Ends are read before spawns. So a goroutine that ends in between is counted as alive.
        let all = |pick: fn(&Counters) -> u64| -> u64 {
            let ps = self.allp.iter().map_while(OnceBox::get);
            ps.map(|p| pick(&p.counters)).sum::<u64>() + pick(&self.outside)
        };
        let ends = all(|c| c.ends.get());
        all(|c| c.spawns.get()).saturating_sub(ends)
    }

    /// Whether Ms must stop before they run another goroutine.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        // ORDER: Relaxed; the stop happens under the scheduler lock, which orders it.
        self.gcwaiting.load(Relaxed) | self.dead.load(Relaxed)
    }

    #[inline]
    pub(crate) fn coarse_ms(&self) -> u32 {
        self.now_ms.load(Relaxed)
    }
}

impl Drop for Sched {
    fn drop(&mut self) {
        self.retire_all();
    }
}
