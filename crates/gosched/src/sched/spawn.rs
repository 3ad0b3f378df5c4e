//! Starting a goroutine (N): a Dead G from the P's cache, its closure and identity set, Runnable, into the
//! P's `next`, and a P is woken. On the warm path nothing is allocated and no lock is taken.
//!
//! A spawn reserves a stack but does not take one (D3): it can fail, running cannot. Reservations come in
//! batches per P, as Gs and ids do.

use std::io;
use std::panic::Location;
use std::sync::atomic::Ordering::{Relaxed, Release};

use super::Sched;
use super::g::Task;
use super::gstatus::Status;
use super::p::{GFREE_KEEP, ID_BATCH, Local};
use super::park::enter;
use super::ptr::{Gp, Pp};
use crate::thread::inner::Inner;

/// Stack reservations that a P takes at a time, and gives back when it has twice as many.
pub(crate) const CREDITS: usize = 32;

/// How a goroutine is to be started.
pub(crate) struct Spawn {
    pub(crate) site: &'static Location<'static>,
    /// None: the runtime's default.
    pub(crate) class: Option<u8>,
    /// Its thread handle, whose reference passes to the G; null: made when somebody asks.
    pub(crate) thread: *mut Inner,
}

impl Sched {
    /// Starts a goroutine that runs `task`. On an error the task is handed back untouched.
    ///
    /// # Safety
    /// What `F` borrows outlives the goroutine, or the goroutine is abandoned before it ends (D2).
    #[inline]
    pub(crate) unsafe fn spawn<F: FnOnce()>(
        &self,
        how: Spawn,
        task: Task<F>,
    ) -> Result<(), (io::Error, Task<F>)> {
        let rt = enter();
        if self.closed.load(Relaxed) {
            return Err((closed_error(), task));
        }
        let class = how.class.unwrap_or(self.stack_class);
        let here = rt.m().filter(|m| std::ptr::eq(m.sched(), self));
        let p = here.and_then(|m| m.p.load(Relaxed));
        let g = match self.take_g(p, class) {
            Ok(g) => g,
            Err(error) => return Err((error, task)),
        };
        // SAFETY: the G is Dead and ours (`take_g`); F's borrows by the caller's promise.
        unsafe { g.set_task(task) };
        g.class.set(class);
        g.site.set(Some(how.site));
        let parent = here.and_then(|m| m.curg()).map_or(0, |g| g.id());
        g.parent.store(parent, Relaxed);
        // ORDER: Release; pairs with the Acquire in `G::name`.
        g.thread.store(how.thread, Release);
        g.id.store(self.next_id(p), Relaxed);
        if !how.thread.is_null() {
            // SAFETY: D3, the caller's reference is still ours here; the goroutine has not started.
            unsafe { &*how.thread }.set_goroutine(self.id, g.id());
        }
        g.status.transition(Status::Dead, Status::Runnable);
        match p {
            Some(p) => {
                p.counters.spawns.add(1);
                self.runq_put_next(p, g);
                self.wake_p();
            }
            None => {
                self.outside.spawns.add_shared(1);
                self.inject(g);
            }
        }
        Ok(())
    }

    /// A Dead G with a stack reserved for it.
    #[inline]
    fn take_g(&self, p: Option<Pp>, class: u8) -> io::Result<Gp> {
        let Some(p) = p else {
            return self.take_g_outside(class);
        };
        // SAFETY: PL, this M holds p.
        let local = unsafe { p.local() };
        if class != self.stack_class {
            self.arena.reserve(class, 1).map_err(stack_error)?;
        } else if local.credits > 0 {
            local.credits -= 1;
        } else {
            self.refill_credits(local)?;
        }
        if let Some(g) = local.gfree.pop_front() {
            return Ok(g);
        }
        self.refill_gs(local).inspect_err(|_| {
            if class == self.stack_class {
                local.credits += 1;
            } else {
                self.arena.unreserve(class, 1);
            }
        })
    }

    #[cold]
    #[inline(never)]
    fn refill_credits(&self, local: &mut Local) -> io::Result<()> {
        if self.arena.reserve(self.stack_class, CREDITS).is_ok() {
            local.credits = CREDITS - 1;
            return Ok(());
        }
        self.arena.reserve(self.stack_class, 1).map_err(stack_error)
    }

    #[cold]
    #[inline(never)]
    fn refill_gs(&self, local: &mut Local) -> io::Result<Gp> {
        self.blocks
            .take(self, GFREE_KEEP, |g| local.gfree.push_back(g))
            .map_err(g_error)?;
        local.gfree.pop_front().ok_or_else(closed_error)
    }

    fn take_g_outside(&self, class: u8) -> io::Result<Gp> {
        self.arena.reserve(class, 1).map_err(stack_error)?;
        let mut taken = None;
        self.blocks
            .take(self, 1, |g| taken = Some(g))
            .map_err(g_error)
            .and_then(|()| taken.ok_or_else(closed_error))
            .inspect_err(|_| self.arena.unreserve(class, 1))
    }

    #[inline]
    fn next_id(&self, p: Option<Pp>) -> u64 {
        let Some(p) = p else {
            return self.next_goid.fetch_add(1, Relaxed);
        };
        // SAFETY: PL, this M holds p.
        let local = unsafe { p.local() };
        if local.next_id == local.last_id {
            local.next_id = self.next_goid.fetch_add(ID_BATCH, Relaxed);
            local.last_id = local.next_id + ID_BATCH;
        }
        local.next_id += 1;
        local.next_id - 1
    }
}

#[cold]
fn closed_error() -> io::Error {
    io::Error::other("the gosched runtime is shutting down and starts no more goroutines")
}

#[cold]
fn stack_error(errno: crate::os::Errno) -> io::Error {
    let error = io::Error::from(errno);
    io::Error::new(
        error.kind(),
        format!(
            "no address space for another goroutine stack ({error}); lower Builder::stack_size or raise RLIMIT_AS"
        ),
    )
}

#[cold]
fn g_error(errno: crate::os::Errno) -> io::Error {
    let error = io::Error::from(errno);
    io::Error::new(
        error.kind(),
        format!("no memory for another goroutine ({error})"),
    )
}
