//! The scheduler. Read `README.md` beside this file first, then the files in this order:
//!
//! | file | what it decides |
//! |---|---|
//! | `gstatus` `g` `ptr` | the states of a goroutine and the edges between them; the goroutine itself |
//! | `m` `p` | threads, and the permits to run user code |
//! | `runq` `global` `global_queue` | a P's local run queue; the global one, and the lists in it |
//! | `spin` `idle` | the wake-up protocol: `wake_p`, `start_m`, `stop_m`, `hand_off_p` |
//! | `spawn` `exit` | a goroutine's first and last steps |
//! | `schedule` `steal` | `schedule`, `find_runnable`, `execute`; stealing |
//! | `park` `slot` `wait` | in and out of the runtime, park, ready, yield; one waiter meets one event |
//! | `sudog` `waitq` | many waiters on many things: one claim ends a wait; queues of waiters |
//! | `claim` `pstatus` | in and out of the runtime while somebody may take the P; a P's states |
//! | `syscall` `room` | marked blocking calls, and coming back from any call without a P; how many threads they may hold |
//! | `sysmon` `retake` `preempt` | the monitor; taking Ps from whoever blocks; making room when nobody wants to |
//! | `locked` `bound` | `lock_os_thread`; goroutines that wait for a P on the thread they are on |
//! | `netpoll` | when the kernel is asked about the network |
//! | `world` | stopping the world, GOMAXPROCS |
//! | `threads` | where Ms come from |
//! | `trace` | the stacks of goroutines that are on a thread, for dumps |
//! | `chaos` `forked` | disorder on demand; the child of a fork |
//! | `deadlock` `registry` | is there any hope left? every runtime and thread of the process |
//! | `teardown` | dropping a runtime in any state |
//! | `gblock` `shrink` | memory of Gs; unused stack pages of goroutines that wait long |
//! | `lock` `note` `fatal` | the ranked lock, the one-shot sleep, fatal errors |
//!
//! Go's package-level variables are fields of [`Sched`], so a process can have several (D2). What Go calls
//! `sched.lock` is the lock around [`Core`].

pub(crate) mod calls;
pub(crate) mod config;
pub(crate) mod exit;
pub(crate) mod global;
pub(crate) mod handle;
pub(crate) mod idle;
pub(crate) mod life;
pub(crate) mod locked;
pub(crate) mod m_answers;
pub(crate) mod model;
pub(crate) mod monitor;
pub(crate) mod overflow;
pub(crate) mod park;
pub(crate) mod schedule;
pub(crate) mod shrink;
pub(crate) mod sources;
pub(crate) mod spawn;
pub(crate) mod steal;
pub(crate) mod thread_locals;
pub(crate) mod threads;
pub(crate) mod wait;
pub(crate) mod waiting;
pub(crate) mod waitq;
pub(crate) mod wakelist;
pub(crate) mod worker;
pub(crate) mod world;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

use crossbeam_utils::CachePadded;

use crate::base::lock::{Lock, Rank};
use crate::sched::calls::lookups::Lookups;
use crate::sched::calls::room::CallRoom;
use crate::sched::config::Config;
use crate::sched::model::g::G;
use crate::sched::model::gblock::GBlocks;
use crate::sched::model::global_queue::GlobalQueue;
use crate::sched::model::m::M;
use crate::sched::model::p::{Counters, P};
use crate::sched::model::ptr::{AtomicRef, Home, Mp, Pp};
use crate::sched::model::spin::Spin;
use crate::sched::model::watch::{CallCounters, Claims, Strays, SysmonState};
use crate::sched::sources::poller::Poller;
use crate::sched::sources::timers::Timers;
use crate::stack::Arena;
use crate::tls::Room;

/// The most Ps a runtime can have.
pub(crate) const PROCS_MAX: usize = 4096;
/// What the scheduler lock guards.
pub(crate) struct Core {
    /// The global run queue (R7).
    pub(crate) runq: GlobalQueue,
    /// Idle Ms, last in first out, linked both ways (M1).
    pub(crate) midle: Option<Mp>,
    pub(crate) nmidle: u32,
    /// Ms that wait for their own goroutine, locked or bound; below zero for a moment when one is woken before it waits.
    pub(crate) nmidlelocked: i32,
    /// Of these, the bound ones: threads that wait with a goroutine's frames on them (D7).
    pub(crate) nparked: u32,
    /// Idle Ps, last in first out (P2).
    pub(crate) pidle: Option<Pp>,
    /// Ps that wait for a thread: the next M to come back, or to be born, takes one.
    pub(crate) pending: Option<Pp>,
    pub(crate) npending: u32,
    /// Ms alive or being born.
    pub(crate) mcount: u32,
    /// Of these, being born.
    pub(crate) creating: u32,
    /// The system has refused a thread and has not given as many as were wanted since.
    pub(crate) is_refused: bool,
    /// The creator asks again by itself: it need not be kicked for threads.
    pub(crate) is_retrying: bool,
    pub(crate) next_mid: u32,
    pub(crate) allm: Option<Mp>,
    /// Ps that have yet to stop (STW).
    pub(crate) stopwait: u32,
    /// Advances whenever anything leaves the idle lists; a deadlock check compares it.
    pub(crate) activity: u64,
    /// Main goroutines that called `exit`, whose `run` still waits.
    pub(crate) mains_exited: u32,
    /// Calls of `run` without an answer, and whether there ever was one.
    pub(crate) runners: u32,
    pub(crate) has_run: bool,
    /// Who is about to queue somebody, or to wake an M for what is queued: calls of `run`, and the leader that starts the world.
    pub(crate) starting: u32,
}

/// A runtime.
pub(crate) struct Sched {
    /// Its number in this process, from 1.
    pub(crate) id: u32,
    pub(crate) config: Config,
    /// Go's `sched.lock` and what it guards.
    pub(crate) core: CachePadded<Lock<Core>>,
    /// Mirrors of `core`'s counts, to be read without the lock.
    pub(crate) runq_len: CachePadded<AtomicUsize>,
    pub(crate) npidle: AtomicU32,
    /// Bit i ⇔ P i is on the idle list (P6).
    pub(crate) idle_mask: [AtomicU64; PROCS_MAX / 64],
    pub(crate) spin: CachePadded<Spin>,
    /// GOMAXPROCS.
    pub(crate) nprocs: AtomicU32,
    pub(crate) allp: Box<[AtomicRef<P>]>,
    /// The world is stopping or stopped; every M passes `find_runnable` and stops there.
    pub(crate) gcwaiting: AtomicBool,
    /// Being dropped: Ms end, nothing is started any more.
    pub(crate) dead: AtomicBool,
    /// New goroutines are refused.
    pub(crate) closed: AtomicBool,
    pub(crate) next_goid: AtomicU64,
    pub(crate) blocks: GBlocks,
    pub(crate) arena: Arena,
    /// The class of a goroutine's stack unless asked otherwise.
    pub(crate) stack_class: u8,
    /// Where goroutines have their thread-locals.
    pub(crate) tls: Room,
    pub(crate) timers: Timers,
    pub(crate) poller: Poller,
    pub(crate) lookups: Lookups,
    /// The coarse clock: milliseconds since the runtime began, written by sysmon.
    pub(crate) now_ms: AtomicU32,
    pub(crate) started_ns: u64,
    /// What happened off every P.
    pub(crate) outside: Counters,
    pub(crate) sysmon: SysmonState,
    /// The claim lock: whoever takes Ps away or sends signals holds it.
    pub(crate) claims: Lock<Claims>,
    pub(crate) strays: Strays,
    pub(crate) calls: CallCounters,
    /// Threads wait with goroutines and no more can be spared (`bound`).
    pub(crate) at_limit: AtomicBool,
    pub(crate) room: CallRoom,
    pub(crate) creator: threads::Creator,
    pub(crate) world: world::World,
    /// A drop has begun to give the goroutines up: what it finds running is left to the Ms that run it.
    pub(crate) is_given_up: AtomicBool,
    /// sysmon has taken out goroutines whose time has come and not yet queued them.
    pub(crate) is_carrying: AtomicBool,
    /// There is memory to return, and it is time (sysmon decides).
    pub(crate) scavenge_now: AtomicBool,
    pub(crate) shrink_now: AtomicBool,
    /// Goroutines and threads given up by a drop.
    pub(crate) leaked_gs: AtomicU32,
    pub(crate) leaked_ms: AtomicU32,
    /// The program's own word on deadlocks; taken by the creator, dropped by the runtime's owner.
    pub(crate) hook: std::sync::Mutex<Option<life::deadlock::Hook>>,
    /// Registry link, under its lock.
    pub(crate) registry_next: model::word::Word<*const Sched>,
}

impl G {
    /// Its runtime.
    #[inline]
    pub(crate) fn sched(&self) -> &Sched {
        // SAFETY: D2, `GBlocks::take` stored the address of the Sched that owns the G's memory.
        unsafe { &*self.home.get().cast() }
    }
}

impl Sched {
    /// Its address, as Gs and Ms keep it.
    pub(crate) fn home(&self) -> *const Home {
        std::ptr::from_ref(self).cast()
    }
}

impl M {
    /// Its runtime. Not for an M in the process-wide pool.
    #[inline]
    pub(crate) fn sched(&self) -> &Sched {
        // SAFETY: D2, `be_m` stored the address of the Sched to which the M's thread holds a reference.
        unsafe { &*self.home.get().cast() }
    }
}

static NEXT_RUNTIME: AtomicU32 = AtomicU32::new(1);

/// How many runtimes there have been in this process: the largest number of one.
pub(crate) fn runtimes_made() -> u32 {
    NEXT_RUNTIME.load(Relaxed) - 1
}

impl Sched {
    pub(crate) fn new(mut config: Config) -> Sched {
        m_answers::install();
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
                    pidle: None,
                    pending: None,
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
            npidle: AtomicU32::new(0),
            idle_mask: std::array::from_fn(|_| AtomicU64::new(0)),
            spin: CachePadded::new(Spin::new()),
            nprocs: AtomicU32::new(0),
            allp: (0..PROCS_MAX).map(|_| AtomicRef::none()).collect(),
            gcwaiting: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            next_goid: AtomicU64::new(1),
            blocks: GBlocks::new(),
            arena: Arena::new(config.mprotect_guards, config.tls),
            stack_class: config.stack_class,
            tls: config.tls,
            timers: Timers::new(),
            poller: Poller::new(),
            lookups: Lookups::new(config.max_lookups, config.max_threads, config.procs),
            now_ms: AtomicU32::new(0),
            started_ns: now,
            outside: Counters::default(),
            sysmon: SysmonState::new(),
            claims: Lock::new(Rank::Claims, Claims::new()),
            strays: Strays::default(),
            calls: CallCounters::default(),
            at_limit: AtomicBool::new(false),
            room: CallRoom::new(),
            creator: threads::Creator::new(),
            world: world::World::new(),
            is_given_up: AtomicBool::new(false),
            is_carrying: AtomicBool::new(false),
            scavenge_now: AtomicBool::new(false),
            shrink_now: AtomicBool::new(false),
            leaked_gs: AtomicU32::new(0),
            leaked_ms: AtomicU32::new(0),
            hook,
            registry_next: model::word::Word::new(std::ptr::null()),
            config,
        }
    }

    /// In a frame that is too large for a goroutine's stack.
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
        if let Err(error) = threads::start(&sched) {
            crate::sched::life::teardown::abandon_start(&sched);
            return Err(error);
        }
        Ok(sched)
    }

    /// GOMAXPROCS.
    #[inline]
    pub(crate) fn nprocs(&self) -> u32 {
        self.nprocs.load(Relaxed)
    }

    /// P number `id`; it exists for every id below the largest GOMAXPROCS there ever was.
    #[inline]
    pub(crate) fn p(&self, id: u32) -> Pp {
        match self.allp[id as usize].load(Relaxed) {
            Some(p) => p,
            None => crate::base::fatal::throw("no P of that number"),
        }
    }

    /// The Ps in use.
    pub(crate) fn procs(&self) -> impl Iterator<Item = Pp> + '_ {
        (0..self.nprocs()).map(|id| self.p(id))
    }

    /// Goroutines alive: started or queued, not ended.
    pub(crate) fn goroutines(&self) -> u64 {
        // Ends are read before spawns: a goroutine that ends in between is counted, never missed twice.
        let all = |pick: fn(&Counters) -> u64| -> u64 {
            let ps = self.allp.iter().map_while(|p| p.load(Relaxed));
            ps.map(|p| pick(&p.counters)).sum::<u64>() + pick(&self.outside)
        };
        let ends = all(|c| c.ends.get());
        all(|c| c.spawns.get()).saturating_sub(ends)
    }

    /// Whether any M must stop before it runs another goroutine.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        // ORDER: Relaxed loads; the stop is carried out under the scheduler lock, which orders it.
        self.gcwaiting.load(Relaxed) | self.dead.load(Relaxed)
    }

    /// Milliseconds on the coarse clock.
    #[inline]
    pub(crate) fn coarse_ms(&self) -> u32 {
        self.now_ms.load(Relaxed)
    }
}

impl Drop for Sched {
    fn drop(&mut self) {
        self.retire_all();
        for slot in &self.allp {
            if let Some(p) = slot.load(Relaxed) {
                // SAFETY: S3/D2, Ps were boxed by `add_procs`; the last reference to the runtime is going.
                drop(unsafe { Box::from_raw(p.as_ptr()) });
            }
        }
    }
}
