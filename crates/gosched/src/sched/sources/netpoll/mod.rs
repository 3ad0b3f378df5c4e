//! The network poller: a goroutine that would block on a socket waits until the socket is ready
//! (D10, F5).
//!
//! It exists so that a blocked socket holds no thread.
//!
//! Sockets are non-blocking. An operation is tried. If it would block, the goroutine waits for an
//! event and tries again. [`Desc`] has the state of one socket: its waiters, deadlines and events
//! (`slot`). A `driver` fetches events from the kernel. `poll_net` decides when the scheduler
//! polls.
//!
//! ```text
//!  the waiter                                    the thread that polls
//!  seq ← the side's count of events              fetch the event
//!  try; it would block                           lock the slot
//!  lock the slot                                 change the count
//!  the count is not seq any more: try again      claim the first waiter
//!  queue a node; unlock; park                    unlock; wake
//! ```
//!
//! A waiter that finishes wakes the next one: one edge-triggered event may satisfy several waiters.
//!
//! Deadlines belong to the socket and may change while goroutines wait. A change wakes the waiters,
//! and each loads its deadline again.

mod changes;
pub(crate) mod driver;
pub(crate) mod foreign;
mod slot;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use crate::sched::model::g::WaitReason;
use crate::sched::park::{Entered, enter};
use crate::sched::sources::netpoll::driver::Driver;
use crate::sched::sources::netpoll::slot::{Flow, Slot};
use crate::sched::waiting::on::On;
use crate::sched::waiting::timed::check_cancelled;
use crate::sched::waiting::waitq::{Outcome, QueueEnd, WaitKind, WaitNode, Waiter, WakeList};
use crate::sys;

static READ: WaitKind = WaitKind::expecting(WaitReason::IoRead).passing_on(end_abandoned);
static WRITE: WaitKind = WaitKind::expecting(WaitReason::IoWrite).passing_on(end_abandoned);

/// Ends the wait of a waiter that never continues. Its home counts it no more, and if it was woken
/// it wakes the next waiter.
///
/// # Safety
/// As `waitq::PassOn` requires; the waiter was parked by [`Desc::wait`], as every waiter of the
/// kinds `READ` and `WRITE` is.
unsafe fn end_abandoned(waiter: &Waiter, by: Option<&WaitNode<'_>>) {
    let socket = waiter.on.get().cases_at.cast::<Parked>();
    // SAFETY: D2. `Desc::wait` stored the address of its own `Parked`, which is on the abandoned
    // stack beside the waiter. That stack is not reused before this call returns.
    let Parked { slot, home, side } = unsafe { *socket };
    home.end_wait();
    if by.is_some() {
        slot.wake_next(side);
    }
}

/// What a waiter waits on.
#[derive(Clone, Copy)]
struct Parked {
    slot: &'static Slot,
    home: &'static Driver,
    side: Side,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Read,
    Write,
}

const SIDES: [Side; 2] = [Side::Read, Side::Write];

/// A handle to the state of an open socket; clones of a socket share it.
pub(crate) struct Desc(&'static Slot);

impl Desc {
    /// For a descriptor that is open and non-blocking.
    pub(crate) fn new() -> Desc {
        Desc(slot::take())
    }

    /// Another handle, for a duplicate of the same socket.
    pub(crate) fn share(&self) -> Desc {
        self.0.retain();
        Desc(self.0)
    }

    /// Calls `op` until it returns something else than `WouldBlock`. In between it waits until the
    /// socket is readable.
    ///
    /// # Errors
    /// Those of `op`; [`TimedOut`](ErrorKind::TimedOut) if the deadline has passed;
    /// [`WouldBlock`](ErrorKind::WouldBlock) if the timeout has passed, or the socket is set
    /// non-blocking.
    pub(crate) fn read<T>(
        &self,
        fd: BorrowedFd<'_>,
        op: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        self.operate(fd, Side::Read, op)
    }

    /// As [`Desc::read`], waiting until the socket is writable.
    pub(crate) fn write<T>(
        &self,
        fd: BorrowedFd<'_>,
        op: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        self.operate(fd, Side::Write, op)
    }

    #[inline]
    fn operate<T>(
        &self,
        fd: BorrowedFd<'_>,
        side: Side,
        mut op: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let flow = self.flow(side);
        let mut attempt = Attempt::new();
        loop {
            self.check_deadline(flow)?;
            let seq = flow.changes.seq();
            match op() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.is_nonblocking() => {
                    self.wait(fd, side, seq, &mut attempt)?;
                }
                done => {
                    self.finish(side, &attempt);
                    return done;
                }
            }
        }
    }

    /// Declares the descriptor a TCP connection, or a listener for them, with no protocol on top.
    /// Its reads are short only if there is no more data. Before any other use.
    pub(crate) fn set_plain(&self) {
        self.0.is_plain.store(true, Relaxed);
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.0.is_plain.load(Relaxed)
    }

    /// The user gets the descriptor, and may put a protocol on top with boundaries of its own.
    /// Kernel TLS, for one, returns one record at a time. From now on a short read proves nothing.
    #[inline]
    pub(crate) fn hand_out(&self) {
        if self.is_plain() {
            self.0.is_plain.store(false, Relaxed);
        }
    }

    /// As [`Desc::read`], for streams; the kernel gets `len` bytes of buffers. If the descriptor is
    /// plain, a shorter result means that there is no more data now. The next read then waits
    /// without trying.
    ///
    /// A read that reaches an urgent mark is short too. The kernel reports urgent data as an event
    /// of its own, which sets ODD for good (`changes`).
    pub(crate) fn read_some(
        &self,
        fd: BorrowedFd<'_>,
        len: usize,
        mut op: impl FnMut() -> io::Result<usize>,
    ) -> io::Result<usize> {
        let flow = self.flow(Side::Read);
        let mut attempt = Attempt::new();
        loop {
            self.check_deadline(flow)?;
            let seq = flow.changes.seq();
            if flow.changes.is_dry(seq) && !self.is_nonblocking() {
                self.wait(fd, Side::Read, seq, &mut attempt)?;
                continue;
            }
            match op() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && !self.is_nonblocking() => {
                    self.wait(fd, Side::Read, seq, &mut attempt)?;
                }
                done => {
                    // Load the flag after `op`: while it is set, the user does not have the
                    // descriptor, so it was plain during `op`.
                    if done.as_ref().is_ok_and(|n| 0 < *n && *n < len) && self.is_plain() {
                        flow.changes.set_dry(seq);
                    }
                    self.finish(Side::Read, &attempt);
                    return done;
                }
            }
        }
    }

    #[inline]
    fn flow(&self, side: Side) -> &'static Flow {
        &self.0.flows[side as usize]
    }

    /// A deadline that has passed fails every operation, even if there is data.
    #[inline]
    fn check_deadline(&self, flow: &Flow) -> io::Result<()> {
        match sys::has_passed(flow.deadline.load(Relaxed)) {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }

    /// Waits for an event after `seq`; the caller then tries again.
    #[inline(never)]
    fn wait(
        &self,
        fd: BorrowedFd<'_>,
        side: Side,
        seq: u32,
        attempt: &mut Attempt,
    ) -> io::Result<()> {
        let timeout_at = attempt.timeout_at(self.flow(side));
        self.find_home(fd)?;
        let rt = enter();
        if attempt.must_unwind(&rt) {
            drop(rt);
            check_cancelled();
            attempt.is_told = true;
            return Ok(());
        }
        let (outcome, deadline) = self.wait_event(rt, side, seq, timeout_at);
        match outcome {
            Some(Outcome::Case(_)) => attempt.is_woken = true,
            Some(Outcome::TimedOut) if deadline <= timeout_at => {
                return Err(ErrorKind::TimedOut.into());
            }
            Some(Outcome::TimedOut) => return Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            Some(Outcome::Cancelled) => {} // it must unwind before it waits again
            None => {}
        }
        Ok(())
    }

    /// Queues the caller, and waits for an event after `seq` until the descriptor's deadline or
    /// `timeout_at`. None: an event has come already, or the descriptor has lost its home. Returns
    /// the deadline, too.
    #[inline]
    fn wait_event(
        &self,
        rt: Entered,
        side: Side,
        seq: u32,
        timeout_at: u64,
    ) -> (Option<Outcome>, u64) {
        let flow = self.flow(side);
        let waiter = Waiter::new();
        let node = WaitNode::new(&waiter, 0);
        let mut queues = self.0.queues.lock();
        let deadline = flow.deadline.load(Relaxed);
        // Under the lock: the home may have gone since it was found, and another one may have come.
        let Some(home) = self.0.home().filter(|_| flow.changes.seq() == seq) else {
            return (None, deadline);
        };
        let slot = self.0;
        let parked = Parked { slot, home, side };
        waiter.on.set(On {
            object: self.0.fd.load(Relaxed) as usize,
            cases_at: (&raw const parked).cast(),
            ..On::NOTHING
        });
        // SAFETY: G4. The node is off the queue before this frame ends: the thread that claims it
        // removes it, or `remove` below does.
        unsafe { queues.of(side).push(&node, QueueEnd::Back) };
        let is_first = home.begin_wait();
        drop(queues);
        if is_first {
            driver::announce(&rt, home);
        }
        let kind = match side {
            Side::Read => &READ,
            Side::Write => &WRITE,
        };
        let outcome = waiter.wait_in(rt, kind, deadline.min(timeout_at));
        home.end_wait();
        if !matches!(outcome, Outcome::Case(_)) {
            let _rt = enter();
            self.0.queues.lock().of(side).remove(&node);
        }
        (Some(outcome), deadline)
    }

    /// Registers the descriptor if it has no home. It may lose its home at once.
    #[inline]
    fn find_home(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        match self.0.home() {
            Some(_) => Ok(()),
            None => self.register(fd),
        }
    }

    #[cold]
    fn register(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let driver = driver::of_caller()?;
        let _rt = enter();
        let _queues = self.0.queues.lock();
        if self.0.home().is_none() {
            driver.adopt(self.0, fd.as_raw_fd())?;
        }
        Ok(())
    }

    /// A woken waiter is done: the event may also satisfy the next one.
    #[inline]
    fn finish(&self, side: Side, attempt: &Attempt) {
        if attempt.is_woken {
            self.0.wake_next(side);
        }
    }

    /// Sets whether operations fail instead of waiting. The descriptor itself is always
    /// non-blocking.
    pub(crate) fn set_nonblocking(&self, yes: bool) {
        self.0.is_nonblocking.store(yes, Relaxed);
    }

    #[inline]
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.0.is_nonblocking.load(Relaxed)
    }

    /// Sets how long an operation may wait, for waits that begin later.
    ///
    /// # Errors
    /// For a timeout of zero, as std's.
    pub(crate) fn set_timeout(&self, side: Side, timeout: Option<Duration>) -> io::Result<()> {
        let ns = match timeout {
            None => 0,
            Some(Duration::ZERO) => {
                return Err(io::Error::new(
                    ErrorKind::InvalidInput,
                    "cannot set a 0 duration timeout",
                ));
            }
            Some(timeout) => u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        };
        self.flow(side).timeout.store(ns, Relaxed);
        Ok(())
    }

    pub(crate) fn timeout(&self, side: Side) -> Option<Duration> {
        match self.flow(side).timeout.load(Relaxed) {
            0 => None,
            ns => Some(Duration::from_nanos(ns)),
        }
    }

    /// Sets until when operations may be done at all. Waiters are woken and load it again.
    pub(crate) fn set_deadline(&self, side: Side, deadline: Option<Instant>) {
        let ns = deadline.map_or(u64::MAX, sys::deadline_of);
        let rt = enter();
        let mut wake = WakeList::new();
        let mut queues = self.0.queues.lock();
        // Under the lock: a waiter that queues itself has loaded this deadline, or is woken.
        self.flow(side).deadline.store(ns, SeqCst);
        Slot::wake_all(queues.of(side), &mut wake);
        drop(queues);
        wake.wake_in(&rt);
    }

    /// Whether operations have a deadline.
    pub(crate) fn has_deadline(&self, side: Side) -> bool {
        self.flow(side).deadline.load(Relaxed) != u64::MAX
    }

    /// Gives up the descriptor: its events are not reported any more.
    pub(crate) fn forget(self, fd: BorrowedFd<'_>) {
        let rt = enter();
        let mut wake = WakeList::new();
        let mut queues = self.0.queues.lock();
        let duplicate = self.0.leave_home(fd.as_raw_fd());
        // Clones register again, also those that already wait.
        for side in SIDES {
            Slot::wake_all(queues.of(side), &mut wake);
        }
        drop(queues);
        wake.wake_in(&rt);
        drop(rt);
        drop(duplicate);
    }

    /// As [`Desc::forget`], if the registration is by the number `fd`. The descriptor is about to
    /// be closed or to leave, and its file may stay open elsewhere. A clone of another number keeps
    /// the registration.
    pub(crate) fn deregister(&self, fd: RawFd) {
        let rt = enter();
        let mut wake = WakeList::new();
        let mut queues = self.0.queues.lock();
        let mut duplicate = None;
        if self.0.fd.load(Relaxed) == fd && self.0.home().is_some() {
            duplicate = self.0.leave_home(fd);
            self.0.fd.store(-1, Relaxed);
            for side in SIDES {
                Slot::wake_all(queues.of(side), &mut wake);
            }
        }
        drop(queues);
        wake.wake_in(&rt);
        drop(rt);
        drop(duplicate);
    }
}

impl Drop for Desc {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// One operation under way.
struct Attempt {
    /// When its timeout passes, counted from its first wait.
    timeout_at: Option<u64>,
    /// It was woken, and wakes the next waiter when it is done.
    is_woken: bool,
    /// It was asked to unwind and could not. It is not asked again.
    is_told: bool,
}

impl Attempt {
    #[inline]
    fn new() -> Attempt {
        Attempt {
            timeout_at: None,
            is_woken: false,
            is_told: false,
        }
    }

    fn timeout_at(&mut self, flow: &Flow) -> u64 {
        *self
            .timeout_at
            .get_or_insert_with(|| match flow.timeout.load(Relaxed) {
                0 => u64::MAX,
                ns => sys::deadline_after(Duration::from_nanos(ns)),
            })
    }

    fn must_unwind(&self, rt: &Entered) -> bool {
        !self.is_told && rt.g().is_some_and(|g| g.must_unwind())
    }
}
