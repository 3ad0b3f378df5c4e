//! The creator: the thread that makes Ms and does nothing else (Go's template thread).
//!
//! It has never run a goroutine, so its signal mask, affinity and other thread state are clean.
//! Threads inherit theirs from it (MG). It may allocate, and so wait for a lock that a goroutine
//! holds. Therefore it keeps spare Ms ready, and the first M that comes takes a pending P (D9).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};

use crate::base::note::Note;
use crate::sched::life::{deadlock, registry};
use crate::sched::model::current;
use crate::sched::model::ptr::Mp;
use crate::sched::worker::G0;
use crate::sched::{Core, Sched};
use crate::shim::Futex;
use crate::sys;
use crate::sys::Errno;
use crate::tls;

/// Idle Ms kept for goroutines that have begun and leave their thread by themselves, once no more
/// threads can be made.
pub(crate) const LIMIT_SLACK: u32 = 4;
/// Idle Ms kept in reserve.
const SPARE_MS: u32 = 2;
/// The size of g0's stack, the thread's own. It is address space, mostly untouched.
const G0_STACK: usize = 512 * 1024;
/// The pause between two tries while the system refuses threads: the first, and the longest.
const RETRY_MIN_NS: u64 = 10_000_000;
const RETRY_MAX_NS: u64 = 1_000_000_000;

/// Whether the program's threads had the signal blocked when the first runtime began.
pub(crate) static WAS_BLOCKED: AtomicBool = AtomicBool::new(false);

/// Requests to the creator, and the number of the runtime's threads.
pub(crate) struct Creator {
    kicked: Futex,
    first: Note,
    /// 0, or the errno that kept the first M from starting.
    first_error: AtomicI32,
    has_complained: AtomicBool,
    /// Threads of this runtime, sysmon and creator included. A drop waits on it.
    pub(crate) alive: Futex,
    /// A deadlock was found; the creator calls the program's hook.
    pub(crate) hook_wanted: AtomicBool,
}

impl Creator {
    pub(crate) fn new() -> Creator {
        Creator {
            kicked: Futex::new(0),
            first: Note::new(),
            first_error: AtomicI32::new(0),
            has_complained: AtomicBool::new(false),
            alive: Futex::new(0),
            hook_wanted: AtomicBool::new(false),
        }
    }

    pub(crate) fn kick(&self) {
        if self.kicked.0.swap(1, SeqCst) == 0 {
            Futex::wake_one(&self.kicked);
        }
    }

    fn wait(&self, until_ns: Option<u64>) {
        while self.kicked.0.swap(0, SeqCst) == 0 {
            if !self.kicked.wait(0, until_ns) {
                return;
            }
        }
    }
}

/// Starts the creator, sysmon and the first Ms. Fails if the system refuses any of them.
pub(crate) fn start(sched: &Arc<Sched>) -> io::Result<()> {
    spawn::<CreatorMain>(sched)?;
    sched.creator.first.sleep();
    match sched.creator.first_error.load(Acquire) {
        0 => Ok(()),
        errno => {
            let error = io::Error::from(Errno(errno));
            let text = format!("cannot start the runtime's threads: {error}");
            Err(io::Error::new(error.kind(), text))
        }
    }
}

/// Starts a thread that holds a reference to the runtime.
fn spawn<R: sys::Run<Sched>>(sched: &Arc<Sched>) -> Result<(), Errno> {
    sched.creator.alive.0.fetch_add(1, SeqCst);
    sys::thread_spawn::<R, Sched>(G0_STACK, Arc::clone(sched)).inspect_err(|_| thread_ended(sched))
}

fn thread_ended(sched: &Sched) {
    sched.creator.alive.0.fetch_sub(1, SeqCst);
    Futex::wake_one(&sched.creator.alive);
}

struct CreatorMain;

impl sys::Run<Sched> for CreatorMain {
    fn run(sched: &Arc<Sched>) {
        sys::set_thread_name(c"gosched-creator");
        registry::add_thread();
        // Every M needs a signal stack. It is tried here, where an error can still be returned.
        let signal_stack = sys::SigStack::install().map(sys::SigStack::uninstall);
        let first = signal_stack
            .and_then(|()| spawn::<SysmonMain>(sched))
            .and_then(|()| create_m(sched));
        let started = first.is_ok();
        if let Err(errno) = first {
            sched.creator.first_error.store(errno.0, Release);
            sched.dead.store(true, Release);
            sched.sysmon.wake();
        }
        sched.creator.first.wakeup();
        let mut retry = Retry::new();
        while started && !sched.dead.load(Acquire) {
            let retry_at = create_wanted(sched, &mut retry);
            if sched.creator.hook_wanted.swap(false, SeqCst) {
                deadlock::call_hook(sched);
            }
            tls::free_surplus();
            sched.creator.wait(retry_at);
        }
        registry::remove_thread();
        thread_ended(sched);
    }
}

struct SysmonMain;

impl sys::Run<Sched> for SysmonMain {
    fn run(sched: &Arc<Sched>) {
        sys::set_thread_name(c"gosched-sysmon");
        registry::add_thread();
        (sched.config.sysmon)(sched);
        registry::remove_thread();
        thread_ended(sched);
    }
}

impl Sched {
    /// Whether fewer Ms than wanted are idle or being born.
    pub(crate) fn wants_threads(&self, core: &Core) -> bool {
        // While threads are refused and goroutines hold some, goroutines that have not begun wait
        // until this many are idle.
        let is_short = core.is_refused && core.nparked > 0;
        let spare = if is_short { LIMIT_SLACK } else { SPARE_MS };
        core.creating + core.nmidle < spare + core.npending
            && core.mcount < self.config.max_threads
            && !self.dead.load(Relaxed)
    }

    /// Kicks the creator if Ms are wanted and it does not try again by itself.
    #[inline]
    pub(crate) fn ask_for_threads(&self, core: &Core) {
        if self.wants_threads(core) && !core.is_retrying {
            self.creator.kick();
        }
    }

    /// The system refused the thread of an M that was counted.
    fn count_refused_m(&self) {
        let mut core = self.core.lock();
        core.mcount -= 1;
        core.creating -= 1;
        core.is_refused = true;
        self.mirror_limit(&core);
    }

    /// Warns, once, that the system refuses threads.
    fn say_refused(&self, errno: Errno) {
        if !self.creator.has_complained.swap(true, Relaxed) {
            sys::eprint_raw(format_args!(
                "gosched: the system refuses another thread (errno {}); goroutines go on with those there are, trying again\n",
                errno.0
            ));
        }
    }
}

/// When the creator tries again after a refusal.
struct Retry {
    at_ns: u64,
    pause_ns: u64,
}

impl Retry {
    const fn new() -> Retry {
        Retry {
            at_ns: 0,
            pause_ns: RETRY_MIN_NS,
        }
    }

    fn refused(&mut self) {
        self.at_ns = sys::monotonic_ns() + self.pause_ns;
        self.pause_ns = (self.pause_ns * 2).min(RETRY_MAX_NS);
    }
}

/// Makes Ms until there are enough. If the system refuses one, returns the time of the next try.
fn create_wanted(sched: &Arc<Sched>, retry: &mut Retry) -> Option<u64> {
    loop {
        let mut core = sched.core.lock();
        if !sched.wants_threads(&core) {
            core.is_retrying = false;
            core.is_refused = false;
            sched.mirror_limit(&core);
            return None;
        }
        if core.is_refused && sys::monotonic_ns() < retry.at_ns {
            core.is_retrying = true;
            return Some(retry.at_ns);
        }
        drop(core);
        match create_m(sched) {
            Ok(()) => *retry = Retry::new(),
            Err(errno) => {
                retry.refused();
                let core = sched.core.lock();
                let matters = core.npending > 0 || core.nparked > 0;
                drop(core);
                if matters {
                    sched.say_refused(errno);
                }
            }
        }
    }
}

fn create_m(sched: &Arc<Sched>) -> Result<(), Errno> {
    {
        let mut core = sched.core.lock();
        core.mcount += 1;
        core.creating += 1;
    }
    spawn::<MMain>(sched).inspect_err(|_| sched.count_refused_m())
}

struct MMain;

impl sys::Run<Sched> for MMain {
    fn run(sched: &Arc<Sched>) {
        sys::set_thread_name(c"gosched-m");
        registry::add_thread();
        match sys::SigStack::install() {
            Ok(signal_stack) => run_as_m(sched, signal_stack),
            Err(errno) => give_up_thread(sched, errno),
        }
        registry::remove_thread();
        thread_ended(sched);
    }
}

impl Core {
    pub(crate) fn link_m(&mut self, m: Mp) {
        m.alllink.set(self.allm);
        m.allprev.set(None);
        if let Some(next) = self.allm {
            next.allprev.set(Some(m));
        }
        self.allm = Some(m);
    }

    /// Removes an M from the list of all Ms, in constant time: a thousand threads may end at once.
    pub(crate) fn unlink_m(&mut self, m: Mp) {
        let (prev, next) = (m.allprev.take(), m.alllink.take());
        match prev {
            Some(prev) => prev.alllink.set(next),
            None => self.allm = next,
        }
        if let Some(next) = next {
            next.allprev.set(prev);
        }
    }
}

/// This thread got no signal stack, so it becomes no M. Without one a handler would run on the
/// goroutine's stack, which may be too small, or have just overflowed.
fn give_up_thread(sched: &Sched, errno: Errno) {
    sched.say_refused(errno);
    sys::sleep_ns(RETRY_MIN_NS);
    sched.count_refused_m();
    sched.creator.kick();
}

fn run_as_m(sched: &Arc<Sched>, signal_stack: sys::SigStack) {
    let m = registry::take_m();
    m.home.set(sched.home());
    m.signal_lo.set(signal_stack.base());
    m.signal_hi.set(signal_stack.top());
    tls::prepare_thread();
    if sched.config.preemption {
        unblock(sched.config.preemption_signal);
    }
    begin_m(sched, m);
    // SAFETY: `begin_m` has made this thread `m`'s, inside the runtime, on its own stack. This is
    // the one place that makes a `G0`.
    let mut g0 = unsafe { G0::new(m) };
    if sched.stop_m(&mut g0) {
        sched.run_m(&mut g0);
    }
    end_m(sched, m);
    signal_stack.uninstall();
}

/// Unblocks the signal on the calling M, whatever mask it inherited.
fn unblock(signal: i32) {
    if sys::unblock_signal(signal) {
        WAS_BLOCKED.store(true, Relaxed);
    }
}

fn begin_m(sched: &Sched, m: Mp) {
    static SEED: AtomicU32 = AtomicU32::new(1);
    let (lo, hi) = sys::stack_bounds();
    m.g0_lo.set(lo);
    m.g0_hi.set(hi);
    m.tid.store(sys::gettid(), Relaxed);
    let seed = u64::from(SEED.fetch_add(1, Relaxed)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    m.rng.set(seed | 1);
    m.claim.reset(1);
    current::become_m(m);
    sched.tls.note_malloc(&m.tp);
    let mut core = sched.core.lock();
    m.id.set(core.next_mid);
    core.next_mid += 1;
    core.creating -= 1;
    sched.mirror_limit(&core);
    core.link_m(m);
}

fn end_m(sched: &Sched, m: Mp) {
    sched.forget_m(m);
    let mut core = sched.core.lock();
    core.mcount -= 1;
    core.unlink_m(m);
    sched.mirror_limit(&core);
    if core.npending > 0 {
        sched.creator.kick();
    }
    drop(core);
    m.claim.reset(0);
    current::resign_m(m);
    registry::give_m(m);
}
