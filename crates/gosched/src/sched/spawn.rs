//! Starts a goroutine (N). It takes a Dead G from the P's cache, stores closure and identity, and
//! makes it Runnable. Then it puts the G into the P's `next` and wakes a P.
//!
//! The usual path allocates nothing and takes no lock. A spawn reserves a stack but takes none
//! (D3): a spawn can fail, running cannot. A P gets reservations, Gs and ids in batches.

use std::io;
use std::panic::Location;
use std::sync::atomic::Ordering::Relaxed;

use super::Sched;
use super::park::enter;
use crate::sched::model::g::Task;
use crate::sched::model::gstatus::Status;
use crate::sched::model::p::{GFREE_KEEP, ID_BATCH, Local};
use crate::sched::model::ptr::Gp;
use crate::sched::waiting::handle::InnerRef;
use crate::sched::worker::Worker;
use crate::stack;
use crate::sys::Errno;

/// Stack reservations that a P takes at a time, and returns when it has twice as many.
pub(crate) const CREDITS: usize = 32;

pub(crate) struct Spawn<'a> {
    pub(crate) site: &'static Location<'static>,
    /// The size class of its stack; None: the runtime's default.
    pub(crate) class: Option<u8>,
    /// Its thread handle; the G gets a reference of its own. None: it is made when it is asked for.
    pub(crate) thread: Option<&'a InnerRef>,
}

/// Why no goroutine was started. It becomes an `io::Error` outside the runtime, because that
/// allocates (D9).
pub(crate) enum Refused {
    Closed,
    NoStack(Errno),
    NoG(Errno),
}

/// A Dead G without a closure that only its holder has. `take_g` and `take_g_outside` make it: they
/// take the G from a list of Dead Gs, and nothing else has a G of these lists (GF).
struct FreshG(Gp);

impl FreshG {
    #[inline]
    fn store<F: FnOnce()>(self, task: Task<F>) -> Gp {
        // SAFETY: a `FreshG` is Dead, its holder's alone, and has no closure.
        unsafe { self.0.set_task(task) };
        self.0
    }
}

impl Sched {
    /// Starts a goroutine that runs `task`. On an error the caller gets the task back.
    #[inline]
    pub(crate) fn spawn<F: FnOnce()>(
        &self,
        how: Spawn<'_>,
        task: Task<F>,
    ) -> Result<(), (io::Error, Task<F>)> {
        self.try_spawn(how, task)
            .map_err(|(why, task)| (why.into(), task))
    }

    #[inline]
    fn try_spawn<F: FnOnce()>(
        &self,
        how: Spawn<'_>,
        task: Task<F>,
    ) -> Result<(), (Refused, Task<F>)> {
        let rt = enter();
        let class = how.class.unwrap_or(self.stack_class);
        let Some(w) = rt.worker_of(self) else {
            return self.spawn_outside(how, class, task);
        };
        if self.closed.load(Relaxed) {
            return Err((Refused::Closed, task));
        }
        let g = match self.take_g(w, class) {
            Ok(g) => g,
            Err(why) => return Err((why, task)),
        };
        let parent = w.m().curg().map_or(0, |g| g.id());
        let g = g.store(task);
        self.make_runnable(g, &how, class, parent, self.next_id(w));
        w.p().counters.spawns.add(1);
        self.runq_put_next(w, g);
        self.wake_p();
        Ok(())
    }

    /// Spawns from a thread without a P of this runtime. The look at `closed` and the enqueue are
    /// in one hold of the lock. So a drop of the runtime either refuses the goroutine or finds it.
    #[inline(never)]
    fn spawn_outside<F: FnOnce()>(
        &self,
        how: Spawn<'_>,
        class: u8,
        task: Task<F>,
    ) -> Result<(), (Refused, Task<F>)> {
        let g = match self.take_g_outside(class) {
            Ok(g) => g,
            Err(why) => return Err((why, task)),
        };
        let mut core = self.core.lock();
        if self.closed.load(Relaxed) {
            drop(core);
            self.arena.unreserve(class, 1);
            self.blocks.give(std::iter::once(g.0));
            return Err((Refused::Closed, task));
        }
        let g = g.store(task);
        self.make_runnable(g, &how, class, 0, self.next_goid.fetch_add(1, Relaxed));
        self.outside.spawns.add_shared(1);
        self.global_put(&mut core, g);
        self.wake_after_put(core);
        Ok(())
    }

    /// Makes a goroutine that may be started later: a Dead G that is otherwise complete. Inside the
    /// runtime; `w` is the caller's P in this runtime, if any.
    pub(crate) fn prepare<F: FnOnce()>(
        &self,
        w: Option<Worker<'_>>,
        site: &'static Location<'static>,
        task: Task<F>,
    ) -> Result<Gp, (Refused, Task<F>)> {
        let class = self.stack_class;
        let taken = match w {
            Some(w) => self.take_g(w, class),
            None => self.take_g_outside(class),
        };
        let g = match taken {
            Ok(g) => g,
            Err(why) => return Err((why, task)),
        };
        let (parent, id) = match w {
            Some(w) => (w.m().curg().map_or(0, |g| g.id()), self.next_id(w)),
            None => (0, self.next_goid.fetch_add(1, Relaxed)),
        };
        let how = Spawn {
            site,
            class: None,
            thread: None,
        };
        let g = g.store(task);
        self.identify(g, &how, class, parent, id);
        Ok(g)
    }

    /// Takes back a G of [`Sched::prepare`] that is not started. Its closure is gone. Inside the
    /// runtime.
    pub(crate) fn unprepare(&self, w: Option<Worker<'_>>, g: Gp) {
        let Some(w) = w else {
            self.arena.unreserve(self.stack_class, 1);
            return self.blocks.give(std::iter::once(g));
        };
        self.give_credit(w);
        self.free_g(w, g);
    }

    /// Gives a Dead G its identity and makes it Runnable; the caller queues it.
    #[inline]
    fn make_runnable(&self, g: Gp, how: &Spawn<'_>, class: u8, parent: u64, id: u64) {
        self.identify(g, how, class, parent, id);
        g.status.transition(Status::Dead, Status::Runnable);
    }

    #[inline]
    fn identify(&self, g: Gp, how: &Spawn<'_>, class: u8, parent: u64, id: u64) {
        g.class.set(class);
        g.site.set(Some(how.site));
        g.parent.store(parent, Relaxed);
        g.id.store(id, Relaxed);
        if let Some(thread) = how.thread {
            thread.set_goroutine(self.id, id);
        }
        g.put_inner(how.thread.cloned());
    }

    /// Takes a Dead G and reserves a stack for it.
    #[inline]
    fn take_g(&self, w: Worker<'_>, class: u8) -> Result<FreshG, Refused> {
        let local = w.local();
        if class != self.stack_class {
            self.arena.reserve(class, 1).map_err(Refused::NoStack)?;
        } else if local.credits.get() > 0 {
            local.credits.set(local.credits.get() - 1);
        } else {
            self.refill_credits(local)?;
        }
        if let Some(g) = local.gfree.pop() {
            return Ok(FreshG(g));
        }
        self.refill_gs(local).inspect_err(|_| {
            if class == self.stack_class {
                local.credits.set(local.credits.get() + 1);
            } else {
                self.arena.unreserve(class, 1);
            }
        })
    }

    #[cold]
    #[inline(never)]
    fn refill_credits(&self, local: &Local) -> Result<(), Refused> {
        if self.arena.reserve(self.stack_class, CREDITS).is_ok() {
            local.credits.set(CREDITS - 1);
            return Ok(());
        }
        let one = self.arena.reserve(self.stack_class, 1);
        one.map_err(Refused::NoStack)
    }

    #[cold]
    #[inline(never)]
    fn refill_gs(&self, local: &Local) -> Result<FreshG, Refused> {
        self.blocks
            .take(self.home(), GFREE_KEEP, |g| local.gfree.push(g))
            .map_err(Refused::NoG)?;
        local.gfree.pop().map(FreshG).ok_or(Refused::Closed)
    }

    fn take_g_outside(&self, class: u8) -> Result<FreshG, Refused> {
        self.arena.reserve(class, 1).map_err(Refused::NoStack)?;
        let mut taken = None;
        self.blocks
            .take(self.home(), 1, |g| taken = Some(g))
            .map_err(Refused::NoG)
            .and_then(|()| taken.map(FreshG).ok_or(Refused::Closed))
            .inspect_err(|_| self.arena.unreserve(class, 1))
    }

    #[inline]
    fn next_id(&self, w: Worker<'_>) -> u64 {
        let local = w.local();
        if local.next_id == local.last_id {
            let first = self.next_goid.fetch_add(ID_BATCH, Relaxed);
            local.next_id.set(first);
            local.last_id.set(first + ID_BATCH);
        }
        let id = local.next_id.get();
        local.next_id.set(id + 1);
        id
    }
}

impl From<Refused> for io::Error {
    #[cold]
    fn from(why: Refused) -> io::Error {
        let (errno, text) = match why {
            Refused::Closed => {
                return io::Error::other(
                    "the gosched runtime is shutting down and starts no more goroutines",
                );
            }
            Refused::NoStack(errno) => (errno, "no address space for another goroutine stack"),
            Refused::NoG(errno) => (errno, "no memory for another goroutine"),
        };
        let error = io::Error::from(errno);
        io::Error::new(
            error.kind(),
            format!("{text} ({error}); {}", stack::advice()),
        )
    }
}
