//! Goroutines that a timer starts: the base of `after_func`.
//!
//! Until its time comes such a goroutine needs no stack and no place in a queue.
//!
//! A *dormant* goroutine is a G with its closure and its id that is in a timer heap and in no
//! queue. A stack is reserved for it, none taken. It is Dead and not counted. Its life begins when
//! its time comes, with the one step from Dead to Runnable that begins every goroutine (G0). Until
//! then it is in one heap, and the thread that takes it out of there owns it:
//!
//! ```text
//!  thread                      what it does then
//!  the expiry                  counts it, makes it Runnable, queues it
//!  `cancel`                    returns the G, and drops the closure in user context
//!  a drop of the runtime       drops the closure in user context (D2)
//! ```
//!
//! All three take it out under the heap's lock, so one of them wins. A handle may be older than its
//! goroutine: the G may have run, ended and become another goroutine. So the goroutine's id is
//! compared under that lock: a G in a heap does not change its id. A handle does not keep the
//! runtime alive.

use std::io;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use crate::sched::Sched;
use crate::sched::model::current::current_m;
use crate::sched::model::g::{Task, Unrun};
use crate::sched::model::ptr::{Gp, Pp};
use crate::sched::model::spin;
use crate::sched::park::{Entered, enter};
use crate::sched::sources::timers::Armed;
use crate::sched::spawn::Refused;
use crate::sched::worker::Worker;
use crate::sys::Errno;
use crate::thread::{finish_report, with_current};

/// A goroutine that a timer will start, has started, or was to start.
pub(crate) struct Dormant {
    home: Weak<Sched>,
    g: Gp,
    id: u64,
}

/// Makes a timer start a goroutine of the caller's runtime at `deadline_ns` (`u64::MAX`: never).
/// `what` is the name of the function that the user called.
///
/// # Panics
/// Outside a goroutine.
///
/// # Errors
/// If the runtime is shutting down, or there is no memory.
#[track_caller]
pub(crate) fn start<F: FnOnce() + Send + 'static>(
    what: &str,
    deadline_ns: u64,
    f: F,
) -> io::Result<Dormant> {
    let site = Location::caller();
    with_current(what, |sched| {
        // SAFETY: D2. The M that runs this goroutine holds an `Arc<Sched>`, so `sched` points into
        // an Arc with a count above 0. The count that is added here is dropped at once, by
        // `from_raw`.
        let home = unsafe {
            Arc::increment_strong_count(sched);
            Arc::downgrade(&Arc::from_raw(sched))
        };
        start_in(sched, home, site, deadline_ns, f)
    })
}

impl Dormant {
    /// Makes a timer start another goroutine in the same runtime; from any thread.
    ///
    /// # Errors
    /// As [`start`]; if the runtime is gone.
    #[track_caller]
    pub(crate) fn start_another<F: FnOnce() + Send + 'static>(
        &self,
        deadline_ns: u64,
        f: F,
    ) -> io::Result<Dormant> {
        let site = Location::caller();
        let home = self.home().ok_or(Refused::Closed)?;
        start_in(home.sched(), self.home.clone(), site, deadline_ns, f)
    }

    /// The address of its runtime, for comparisons.
    pub(crate) fn home_ptr(&self) -> *const Sched {
        self.home.as_ptr()
    }

    /// Keeps the goroutine from being started. Returns true if it never runs; its closure has then
    /// been dropped. Returns false if it has been started or cancelled before, or its runtime is
    /// gone. In user context, on any thread.
    pub(crate) fn cancel(&self) -> bool {
        let Some(home) = self.home() else {
            return false;
        };
        let (sched, rt) = (home.sched(), enter());
        let is_ours = sched.disarm_if(self.g, || self.g.id() == self.id);
        let unrun = is_ours.then(|| give_back(sched, &rt, self.g));
        drop(rt);
        drop(unrun);
        is_ours
    }

    /// Sets another deadline. Returns false if the goroutine has been started or cancelled, or its
    /// runtime is gone. From any thread.
    pub(crate) fn postpone(&self, deadline_ns: u64) -> bool {
        let Some(home) = self.home() else {
            return false;
        };
        let (sched, rt) = (home.sched(), enter());
        let is_it = || self.g.id() == self.id;
        let rearmed = sched.rearm_if(self.g, deadline_ns, is_it);
        if rearmed == Some(true) {
            announce(sched, rt.worker_of(sched).map(Worker::p), deadline_ns);
        }
        drop(rt);
        rearmed.is_some()
    }

    fn home(&self) -> Option<Home<'_>> {
        let address = self.home.as_ptr();
        match current_m() {
            // SAFETY: D2. Every M of a runtime holds an `Arc` of its `Sched`. The caller runs on an
            // M of this runtime for as long as it uses the reference.
            Some(m) if ptr::eq(m.sched(), address) => Some(Home::Here(unsafe { &*address })),
            _ => self.home.upgrade().map(Home::Kept),
        }
    }
}

/// The runtime, kept alive while it is used.
enum Home<'a> {
    /// The caller's own.
    Here(&'a Sched),
    Kept(Arc<Sched>),
}

impl Home<'_> {
    fn sched(&self) -> &Sched {
        match self {
            Home::Here(sched) => sched,
            Home::Kept(sched) => sched,
        }
    }
}

fn start_in<F: FnOnce() + Send + 'static>(
    sched: &Sched,
    home: Weak<Sched>,
    site: &'static Location<'static>,
    deadline_ns: u64,
    f: F,
) -> io::Result<Dormant> {
    let task = Task::new(move || finish_report(catch_unwind(AssertUnwindSafe(f))));
    let rt = enter();
    let g = match sched.prepare(rt.worker_of(sched), site, task) {
        Ok(g) => g,
        Err((why, task)) => {
            drop(rt);
            drop(task);
            return Err(why.into());
        }
    };
    let p = rt.worker_of(sched).map(Worker::p);
    let id = g.id();
    g.set_deadline(deadline_ns);
    // Under the heap's lock: a drop of the runtime either refuses the timer or finds it.
    let is_open = || !sched.closed.load(Relaxed);
    let armed = sched.arm(p.unwrap_or_else(|| sched.p(0)), g, begin, is_open);
    let why = match armed {
        Armed::Set { is_first } => {
            if is_first {
                announce(sched, p, deadline_ns);
            }
            return Ok(Dormant { home, g, id });
        }
        Armed::Refused => Refused::Closed,
        Armed::NoMemory => Refused::NoG(Errno(libc::ENOMEM)),
    };
    let unrun = give_back(sched, &rt, g);
    drop(rt);
    drop(unrun);
    Err(why.into())
}

/// The expiry's claim: the goroutine counts from now on.
unsafe fn begin(g: Gp) -> bool {
    g.sched().outside.spawns.add_shared(1);
    true
}

/// A timer is the first of its heap, and the thread that set it continues with other work. So
/// another thread must wait for it. Inside the runtime.
pub(crate) fn announce(sched: &Sched, p: Option<Pp>, when: u64) {
    if sched.poller.kick(when) {
        return;
    }
    sched.sysmon.timer_set(when);
    if p.is_some() {
        spin::submitted_by_rmw();
        sched.wake_p();
    } else {
        sched.wake_after_put(sched.core.lock());
    }
}

/// Returns the G of a goroutine that is not started. The caller drops the closure, outside the
/// runtime. The G is back before, so a check of the runtime finds it in place.
fn give_back(sched: &Sched, rt: &Entered, g: Gp) -> Option<Unrun> {
    // SAFETY: the goroutine is in no heap and no queue. The caller took it out of its heap, or
    // never put it there, so no other thread has it.
    let unrun = unsafe { g.take_unrun() };
    sched.unprepare(rt.worker_of(sched), g);
    unrun
}

#[cfg(test)]
mod tests;
