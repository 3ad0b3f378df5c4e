//! Making room when nobody wants to (U5, D7).
//!
//! A goroutine that has had its slice is *asked* first: a flag that it sees when it next leaves the runtime. If it never does, the
//! monitor *insists*: SIGURG to its thread. The handler does not switch stacks. Whatever the goroutine was doing (allocating,
//! printing, holding a lock of libc) is its thread's business, so the goroutine stays on the thread, queued like any other,
//! and the thread gives its P away and waits inside the handler until somebody brings one (`bound`).
//!
//! ```text
//!  sysmon                    the handler, on the goroutine's thread
//!  1 YIELD in m.asked        1 not asked by us, inside the runtime, not to be preempted: return
//!  2 50 µs later: computes?  2 enter the runtime (and find out whether there still is a P)
//!    m.signalled, SIGURG     3 Running → Preempted → Waiting → Runnable, queued as spent, bound to this M
//!                            4 the P goes to the next one; sleep; come back with another P
//! ```
//!
//! A thread waits so for each goroutine that was ever taken by surprise and has not left by itself since. Where threads become
//! scarce such a goroutine is exchanged for another that waits so; one more may wait while an M is idle and a goroutine is queued
//! that leaves its thread by itself (`Sched::exchange`); those that have not begun wait. See "At the thread limit" in `README.md`.
//!
//! The signal is sent to a thread that computes (`retake`). If it has begun a system call by the time it arrives and that would
//! return EINTR, the handler puts the call back (`sys::Interrupted`).
//!
//! CONTEXT: signal, for everything the handler calls: no allocation, no thread-local, no `errno`.

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr};

use crate::base::chaos;
use crate::sched::Sched;
use crate::sched::model::claim::Found;
use crate::sched::model::current::{current_m, interrupted_m, is_settled};
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::{LET_GO, YIELD};
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::model::worker::Inside;
use crate::sched::monitor::bound::Exchange;
use crate::sched::monitor::syscall;
use crate::tls::scope;
use crate::{signal, sys};

/// The signal, unless asked otherwise: ignored by default, passed on silently by debuggers.
pub(crate) const SIGNAL: c_int = libc::SIGURG;

/// Signals whose handler can be ours.
const SIGNALS: usize = 65;

/// The actions before ours.
static OLD: [AtomicPtr<libc::sigaction>; SIGNALS] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS];

/// Whether the threads of the program had the signal blocked when the first runtime began.
static WAS_BLOCKED: AtomicBool = AtomicBool::new(false);

/// Installs the handler for `signal`, once per process. In user context.
pub(crate) fn install(signal: c_int) -> io::Result<()> {
    let _turn = signal::turn();
    let Some(old) = OLD.get(signal as usize) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    if old.load(Acquire).is_null() {
        // The old action must be known before ours can run, so it is read first.
        let before = Box::into_raw(Box::new(sys::read_action(signal)?));
        // ORDER: Release; pairs with the Acquire in `pass_on`.
        old.store(before, Release);
        // SAFETY: D7, the handler is async-signal-safe and runs on the M's alternate stack.
        let installed = unsafe {
            sys::sigaction_install(signal, on_signal, libc::SA_ONSTACK | libc::SA_RESTART)
        };
        if let Err(errno) = installed {
            old.store(std::ptr::null_mut(), Release);
            return Err(errno.into());
        }
    }
    Ok(())
}

/// Our handler, as the system names it.
pub(crate) fn handler() -> usize {
    on_signal as *const () as usize
}

/// Whether our handler is the one in place.
pub(crate) fn is_installed(signal: c_int) -> bool {
    sys::current_handler(signal) == Some(handler())
}

/// The calling M can be reached by the signal, whatever its creator's mask was.
pub(crate) fn prepare_thread(signal: c_int) {
    if sys::unblock_signal(signal) {
        WAS_BLOCKED.store(true, Relaxed);
    }
}

/// The child of a fork goes on with the program's own mask and disposition.
pub(crate) fn restore_in_child() {
    for (signal, old) in OLD.iter().enumerate() {
        // SAFETY: D7, stored by `install`, never freed.
        let Some(old) = (unsafe { old.load(Acquire).as_ref() }) else {
            continue;
        };
        if is_installed(signal as c_int) {
            // SAFETY: D7, what the process had; the call is async-signal-safe.
            unsafe { libc::sigaction(signal as c_int, old, std::ptr::null_mut()) };
        }
        // A runtime of its own, if it may have one, installs the handler anew.
        OLD[signal].store(std::ptr::null_mut(), Release);
        if WAS_BLOCKED.load(Relaxed) && current_m().is_some() {
            sys::block_signal(signal as c_int);
        }
    }
}

extern "C" fn on_signal(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: D7, the kernel passes a valid siginfo.
    let is_timer = unsafe { sys::is_marked_timer(info) };
    let m = interrupted_m();
    let is_sent = m.is_some_and(|m| m.signalled.swap(false, Acquire));
    if !is_timer && !is_from_us(info, is_sent) {
        pass_on(signal, info, context);
    }
    if let Some(m) = m.filter(|_| is_sent || is_timer) {
        // SAFETY: D7, the kernel's own word; the handler is still running.
        let mut interrupted = unsafe { sys::Interrupted::new(context) };
        // The look before the signal was too early by a moment.
        if interrupted.is_call_cut_short() {
            let calls = &m.sched().calls;
            match interrupted.restart_call() {
                true => calls.restarted.add_shared(1),
                false => calls.interrupted.add_shared(1),
            }
        }
        m.trace.interrupted_at.store(interrupted.pc(), Relaxed);
        m.trace.interrupted_sp.store(interrupted.sp(), Relaxed);
        answer(m, is_sent);
        m.trace.interrupted_at.store(0, Relaxed);
        if is_timer {
            m.sched().disarm_unless_stray(m);
        }
    }
}

/// Whether the signal is one of ours: it says so, or, where it could not be marked, it comes from this process and is expected.
/// One that comes when it is not expected any more, for want of a CPU, is ours too.
fn is_from_us(info: *mut libc::siginfo_t, is_expected: bool) -> bool {
    // SAFETY: D7, the kernel passes a valid siginfo; a thread-directed signal has the sender in it.
    unsafe {
        sys::is_marked(info)
            || is_expected && (*info).si_code == libc::SI_TKILL && (*info).si_pid() == sys::getpid()
    }
}

/// The M does what the signal is about; one that was not sent is about a stray (`stray`).
fn answer(m: Mp, is_sent: bool) {
    let sched = m.sched();
    // Inside, on the way from one FS to another, in a stretch that must not be interrupted, in a runtime where nobody would
    // bring a P, among the loader's lists: later, or never.
    if m.claim.depth() != 0 || !is_settled(m) || !m.may_be_preempted() || sched.dead.load(Relaxed) {
        return;
    }
    if scope::is_looking_up() {
        return;
    }
    chaos::point("handler");
    let found = if m.claim.enter() {
        Found::Kept
    } else {
        m.claim.look()
    };
    // SAFETY: D7, this thread is m's, and inside the runtime from the step above to `leave` below.
    let mut inside = unsafe { Inside::new(m) };
    if let Some(g) = m.curg() {
        match found {
            Found::Kept if is_sent && m.asked.load(Relaxed) & LET_GO != 0 => {
                m.unask(LET_GO);
                sched.let_go(&mut inside);
            }
            Found::Kept if is_sent && m.asked.load(Relaxed) & YIELD != 0 => {
                sched.park_here(&mut inside, g);
            }
            Found::Taken if sched.take_idle_p(m, None) => {
                syscall::run_again(m, g);
                sched.stray_is_back(m);
            }
            Found::Taken => syscall::wait_here(sched, m, g),
            Found::Kept | Found::Marked | Found::Forked => {}
        }
    }
    m.claim.leave();
}

impl Sched {
    /// The goroutine makes room without leaving its thread. Inside the runtime, on the thread.
    fn park_here(&self, inside: &mut Inside, g: Gp) {
        let m = inside.m();
        let mut core = self.core.lock();
        if self.dead.load(Relaxed) {
            return; // from now on nobody is woken
        }
        let exchange = self.exchange(&mut core, inside.held());
        let is_limit = self.is_at_last_threads(&core);
        let says_so = is_limit && !core.is_refused; // of a refusal the creator speaks
        if matches!(exchange, Exchange::Impossible) {
            drop(core);
            self.wake_for_global();
            inside.held().p().begin_slice(); // it has made it through this one
            if is_limit {
                self.calls.refused.add_shared(1);
            }
            if says_so {
                self.say_limit();
            }
            return;
        }
        self.calls.parked.add_shared(1);
        m.unask(YIELD);
        g.set_not_waiting();
        g.status.transition(Status::Running, Status::Preempted);
        g.status.requeue_preempted();
        self.bind_here(&mut core, m, g);
        inside.held().local().fairness.end_slice();
        let p = inside.release_p();
        match exchange {
            Exchange::Goroutine(other, owner) => {
                self.global_put_spent(&mut core, g);
                self.give_p(&mut core, p, other, owner);
                drop(core);
                if says_so {
                    self.say_limit();
                }
            }
            _ if self.is_stopping() => {
                // Its slice may not be over, but stops follow each other without end: it waits for its turn.
                self.global_put(&mut core, g);
                self.stop_p(&mut core, p);
                drop(core);
            }
            _ => {
                self.global_put_spent(&mut core, g);
                self.pass_on(core, p);
            }
        }
        chaos::point("parked in the handler");
        self.wait_bound(m, g);
    }

    /// Says once that threads have run out for goroutines that do not make room.
    fn say_limit(&self) {
        if !self.calls.has_said_limit.swap(true, SeqCst) {
            sys::eprint_raw(format_args!(
                "gosched: goroutines that never wait hold as many threads as they may have; others that begin must wait for \
                 one of them to end (Builder::max_threads is {})\n",
                self.config.max_threads
            ));
        }
    }
}

/// Not ours, or not ours alone: whoever receives it, and the program's own handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // ORDER: Acquire; pairs with the Release in `install`.
    let old = OLD.get(signal as usize).map(|old| old.load(Acquire));
    // SAFETY: D7, stored by `install`, never freed.
    let Some(old) = old.and_then(|old| unsafe { old.as_ref() }) else {
        return;
    };
    // SAFETY: D7, what the process had, and what the kernel passed to our own handler.
    unsafe { signal::handler::note_and_pass_on(old, signal, info, context) };
}
