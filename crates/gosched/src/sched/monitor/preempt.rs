//! Preempts goroutines that have used up their time slice (U5, D7).
//!
//! It exists because a goroutine may compute for ever without calling the runtime.
//!
//! sysmon first *asks*: it sets a flag that the goroutine sees when it next leaves the runtime. If
//! the goroutine never enters the runtime, sysmon *signals*: it sends SIGURG to the thread. The
//! handler does not switch stacks. Whatever the goroutine was doing (allocating, printing, holding
//! a lock of libc) depends on its thread. So the goroutine stays on the thread and is queued like
//! any other. The thread gives its P away and waits inside the handler until another M brings one
//! (`bound`).
//!
//! ```text
//!  sysmon                    the handler, on the goroutine's thread
//!  1 YIELD in m.asked        1 not asked by us, inside the runtime, not to be preempted: return
//!  2 50 µs later: computes?  2 enter the runtime (and find out whether there still is a P)
//!    m.signalled, SIGURG     3 Running → Preempted → Waiting → Runnable, queued as spent, bound to
//!                              this M
//!                            4 hand off the P; sleep; continue with another P
//! ```
//!
//! Each goroutine that was preempted so, and has not left its thread by itself since, holds a
//! thread. Where threads become scarce (`Sched::exchange`):
//!
//! - a preempted goroutine swaps places with another one that waits so;
//! - one more may wait while an M is idle and a goroutine is queued that leaves its thread by
//!   itself;
//! - goroutines that have not begun wait.
//!
//! See "At the thread limit" in `README.md`.
//!
//! The signal is sent to a thread that computes (`retake`). The thread may have begun a system call
//! by the time the signal arrives. If that call would return EINTR, the handler restarts it
//! (`Interrupted` in `sys`).
//!
//! CONTEXT: signal, for everything the handler calls: no allocation, no thread-local, no `errno`.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::base::static_ref::StaticRef;
use crate::base::{chaos, signals};
use crate::sched::Sched;
use crate::sched::calls::syscall;
use crate::sched::life::forked::{self, Restore};
use crate::sched::life::threads;
use crate::sched::model::current::{current_m, interrupted_m, is_settled};
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::{GIVE_UP_P, YIELD};
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::model::watch::claim::Found;
use crate::sched::monitor::bound::Exchange;
use crate::sched::worker::Inside;
use crate::sys;
use crate::sys::{Action, Context, Info};
use crate::tls::scope;

/// The default signal: its default action is to be ignored, and debuggers pass it on silently.
pub(crate) const SIGNAL: c_int = libc::SIGURG;

/// Size of a table indexed by signal number.
const SIGNALS: usize = 65;

/// The program's actions, from before ours were installed.
static OLD: [StaticRef<Action>; SIGNALS] = [const { StaticRef::none() }; SIGNALS];

/// Installs the handler for `signal`, once per process. In user context, under `signal::turn`.
pub(crate) fn install(signal: c_int) -> io::Result<()> {
    let Some(old) = OLD.get(signal as usize) else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    forked::restore_in_child(Restore::PreemptionSignal, restore_in_child);
    if old.load().is_none() {
        // The old action must be known before our handler can run, so it is read first.
        old.store(Some(Box::leak(Box::new(Action::read(signal)?))));
        // SAFETY: D7. `on_signal` and all it calls are async-signal-safe (CONTEXT: signal). It runs
        // on the alternate stack that each M installs before its thread unblocks the signal.
        let installed = unsafe {
            sys::sigaction_install(signal, on_signal, libc::SA_ONSTACK | libc::SA_RESTART)
        };
        if let Err(errno) = installed {
            old.store(None);
            return Err(errno.into());
        }
    }
    Ok(())
}

/// The address of our handler, as the kernel reports it.
pub(crate) fn handler() -> usize {
    on_signal as *const () as usize
}

/// Whether our handler is installed.
pub(crate) fn is_installed(signal: c_int) -> bool {
    sys::current_handler(signal) == Some(handler())
}

/// Restores the program's own mask and action in the child of a fork.
pub(crate) fn restore_in_child() {
    for (signal, slot) in OLD.iter().enumerate() {
        let Some(old) = slot.load() else {
            continue;
        };
        if is_installed(signal as c_int) {
            old.restore();
        }
        // A new runtime in the child, if it may have one, installs the handler again.
        slot.store(None);
        if threads::WAS_BLOCKED.load(Relaxed) && current_m().is_some() {
            sys::block_signal(signal as c_int);
        }
    }
}

extern "C" fn on_signal(signal: c_int, info: Info<'_>, mut context: Context<'_>) {
    let is_timer = info.is_marked_timer();
    let m = interrupted_m();
    let is_sent = m.is_some_and(|m| m.signalled.swap(false, Acquire));
    if !is_timer && !is_from_us(info, is_sent) {
        pass_on(signal, info, &mut context);
    }
    if let Some(m) = m.filter(|_| is_sent || is_timer) {
        let mut interrupted = context.interrupted();
        // The thread began a call after sysmon read its state.
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

/// Whether the signal is ours. It carries our mark; or, where the kernel refuses marks, it comes
/// from this process and is expected. A marked signal that arrives late, for want of a CPU, is ours
/// too.
fn is_from_us(info: Info<'_>, is_expected: bool) -> bool {
    info.is_marked() || is_expected && info.is_from_this_process()
}

/// Does what the signal asks of the M. A signal that sysmon did not send concerns a stray
/// (`stray`).
fn answer(m: Mp, is_sent: bool) {
    let sched = m.sched();
    // Not now, or never, if the thread is inside the runtime, is changing its FS, must not be
    // preempted, or is among the loader's lists; or if the runtime is dead, where no M would bring
    // a P.
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
            Found::Kept if is_sent && m.asked.load(Relaxed) & GIVE_UP_P != 0 => {
                m.unask(GIVE_UP_P);
                sched.give_up_p_in_call(&mut inside);
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
    /// The goroutine gives up its P without leaving its thread. Inside the runtime, on the thread.
    fn park_here(&self, inside: &mut Inside, g: Gp) {
        let m = inside.m();
        let mut core = self.core.lock();
        if self.dead.load(Relaxed) {
            return; // a dead runtime wakes no thread
        }
        let exchange = self.exchange(&mut core, inside.held());
        let is_limit = self.is_at_last_threads(&core);
        let says_so = is_limit && !core.is_refused; // the creator reports a refusal itself
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
                // The slice may not be over, but stops of the world may follow each other without
                // end. So the goroutine goes to the tail.
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

    /// Prints once that preempted goroutines hold all threads.
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

/// Passes the signal to its receivers and to the program's own handler: it is not ours, or not ours
/// alone.
fn pass_on(signal: c_int, info: Info<'_>, context: &mut Context<'_>) {
    if let Some(old) = OLD.get(signal as usize).and_then(StaticRef::load) {
        signals::note_and_pass_on(old, signal, info, context);
    }
}
