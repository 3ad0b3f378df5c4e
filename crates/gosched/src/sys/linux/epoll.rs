//! Waiting for descriptors: an edge-triggered epoll with a bell.
//!
//! It adds to epoll what the watcher needs: a deadline in nanoseconds, and a way to end a wait.
//!
//! Every descriptor is registered once, for both directions. The kernel then reports each *event*
//! once. The bell is an eventfd among them. Each ring is an event, so the eventfd need not be read.

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;

use crate::sys::linux::clock::monotonic_ns;
use crate::sys::linux::inject::{FAIL_EPOLL_AFTER, refuses};
use crate::sys::linux::syscall::{Errno, check, syscall1, syscall2, syscall3, syscall4, syscall6};

/// The data of the bell; no descriptor has it.
pub(crate) const BELL: u64 = u64::MAX;
/// The data of an epoll inside another; no descriptor has it.
pub(crate) const NESTED: u64 = u64::MAX - 1;

/// One event of a descriptor, in the kernel's form.
#[derive(Clone, Copy)]
#[repr(C, packed)]
pub(crate) struct Event {
    pub(crate) what: u32,
    pub(crate) data: u64,
}

/// Bits of [`Event::what`].
pub(crate) mod event {
    pub(crate) const READ: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP) as u32 | PRI;
    pub(crate) const WRITE: u32 = libc::EPOLLOUT as u32;
    /// More than data: the peer's end, an error, urgent data. A short read proves nothing
    /// afterwards.
    pub(crate) const ODD: u32 = END | PRI | libc::EPOLLRDHUP as u32;
    /// No operation will block any more.
    pub(crate) const END: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;
    const PRI: u32 = libc::EPOLLPRI as u32;
}

/// An epoll and its bell. Dropping it closes both.
pub(crate) struct Epoll {
    epoll: i32,
    /// -1: none.
    bell: i32,
}

/// Whether the kernel refuses `epoll_pwait2`.
static IS_OLD: AtomicBool = AtomicBool::new(false);

impl Epoll {
    /// CONTEXT: any.
    pub(crate) fn new() -> Result<Epoll, Errno> {
        let epoll = create()?;
        let flags = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
        // SAFETY: the call makes a descriptor and touches no memory (D9: bare call).
        let bell = check(unsafe { syscall2(libc::SYS_eventfd2, 0, flags) });
        let this = Epoll {
            epoll,
            bell: bell.map_or(-1, |fd| fd as i32),
        };
        let ready = bell
            .and_then(|_| this.control(libc::EPOLL_CTL_ADD, this.bell, BELL, libc::EPOLLIN as u32));
        ready.map(|()| this)
    }

    /// An epoll without a bell inside `outer`, which reports its events as one event with the data
    /// [`NESTED`]; CONTEXT: any.
    pub(crate) fn nested_in(outer: &Epoll) -> Result<Epoll, Errno> {
        let this = Epoll {
            epoll: create()?,
            bell: -1,
        };
        outer.control(
            libc::EPOLL_CTL_ADD,
            this.epoll,
            NESTED,
            libc::EPOLLIN as u32,
        )?;
        Ok(this)
    }

    /// As [`Epoll::add`], for a descriptor that is registered already, as a rule. Returns whether it
    /// was; CONTEXT: any.
    pub(crate) fn rearm(&self, fd: i32, data: u64) -> Result<bool, Errno> {
        match self.change(fd, data) {
            Err(Errno(libc::ENOENT)) => match self.add(fd, data) {
                // Another thread has registered it meanwhile.
                Err(Errno(libc::EEXIST)) => self.change(fd, data).map(|()| true),
                answer => answer.map(|()| false),
            },
            answer => answer.map(|()| true),
        }
    }

    /// Reports every event of `fd` from now on, and at once what it is ready for. EEXIST: the file
    /// is registered by this number already; CONTEXT: any.
    pub(crate) fn add(&self, fd: i32, data: u64) -> Result<(), Errno> {
        if refuses(&FAIL_EPOLL_AFTER) {
            return Err(Errno(libc::ENOSPC));
        }
        self.control(libc::EPOLL_CTL_ADD, fd, data, event::READ | event::WRITE)
    }

    /// As [`Epoll::add`], for a descriptor that is registered: its events get this data; CONTEXT:
    /// any.
    pub(crate) fn change(&self, fd: i32, data: u64) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_MOD, fd, data, event::READ | event::WRITE)
    }

    /// Reports no events of `fd` any more; CONTEXT: any.
    pub(crate) fn remove(&self, fd: i32) {
        // A descriptor that was registered by another number of the same file is not found. Its
        // events are recognised as stale.
        _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn control(&self, operation: i32, fd: i32, data: u64, what: u32) -> Result<(), Errno> {
        let event = Event {
            what: what | libc::EPOLLET as u32,
            data,
        };
        // SAFETY: the kernel reads the event in this frame (D9: bare call).
        let answer = unsafe {
            syscall4(
                libc::SYS_epoll_ctl,
                self.epoll as usize,
                operation as usize,
                fd as usize,
                &raw const event as usize,
            )
        };
        check(answer).map(drop)
    }

    /// Returns events. Waits for the first until the deadline (`u64::MAX`: for ever, 0: not at all)
    /// or the bell. May return early with none; CONTEXT: any.
    pub(crate) fn wait<'e>(
        &self,
        events: &'e mut [MaybeUninit<Event>],
        deadline_ns: u64,
    ) -> &'e [Event] {
        let left = match deadline_ns {
            0 | u64::MAX => deadline_ns,
            at => at.saturating_sub(monotonic_ns()),
        };
        let n = if IS_OLD.load(Relaxed) {
            self.wait_ms(events, left)
        } else {
            self.wait_ns(events, left)
        };
        // SAFETY: the kernel has written the first `n` entries of the slice, and `n` is at most its
        // length (D9).
        unsafe { core::slice::from_raw_parts(events.as_ptr().cast(), n) }
    }

    fn wait_ns(&self, events: &mut [MaybeUninit<Event>], left_ns: u64) -> usize {
        let time = libc::timespec {
            tv_sec: (left_ns / 1_000_000_000) as i64,
            tv_nsec: (left_ns % 1_000_000_000) as i64,
        };
        let time: *const libc::timespec = match left_ns {
            u64::MAX => ptr::null(),
            _ => &raw const time,
        };
        // SAFETY: the kernel writes at most `events.len()` entries to the slice, and reads the
        // timespec in this frame (D9: bare call).
        let answer = unsafe {
            syscall6(
                libc::SYS_epoll_pwait2,
                self.epoll as usize,
                events.as_mut_ptr() as usize,
                events.len(),
                time as usize,
                0,
                0,
            )
        };
        match check(answer) {
            Ok(n) => n,
            Err(Errno(libc::EINTR)) => 0,
            // ENOSYS from an old kernel; any other error from a sandbox that does not know the
            // call, now or later.
            Err(_) => {
                IS_OLD.store(true, Relaxed);
                self.wait_ms(events, left_ns)
            }
        }
    }

    /// In whole milliseconds, rounded up, so that no wait is too short.
    fn wait_ms(&self, events: &mut [MaybeUninit<Event>], left_ns: u64) -> usize {
        let ms = match left_ns {
            u64::MAX => -1,
            ns => ns.div_ceil(1_000_000).min(i32::MAX as u64) as isize,
        };
        let mut wait = |call| {
            // SAFETY: the kernel writes at most `events.len()` entries to the slice (D9: bare
            // call). A null mask is allowed. The older call has no mask and ignores the last two
            // arguments.
            check(unsafe {
                syscall6(
                    call,
                    self.epoll as usize,
                    events.as_mut_ptr() as usize,
                    events.len(),
                    ms as usize,
                    0,
                    0,
                )
            })
        };
        let answer = match wait(libc::SYS_epoll_pwait) {
            Err(Errno(errno)) if errno != libc::EINTR => wait(libc::SYS_epoll_wait),
            answer => answer,
        };
        match answer {
            Ok(n) => n,
            Err(Errno(libc::EINTR)) => 0,
            Err(Errno(errno)) => crate::base::fatal::throw_fmt(format_args!(
                "the system refuses to wait for sockets (epoll: errno {errno})"
            )),
        }
    }

    /// Closes the descriptors; CONTEXT: any.
    ///
    /// # Safety
    /// No thread uses this epoll any more, and no other call closes it: its drop does, unless the
    /// epoll is leaked.
    pub(crate) unsafe fn close(&self) {
        for fd in [self.bell, self.epoll].into_iter().filter(|fd| *fd >= 0) {
            // SAFETY: both descriptors were made by `new`, and no thread uses them any more (see
            // "Safety"; D9: bare call).
            _ = unsafe { syscall1(libc::SYS_close, fd as usize) };
        }
    }

    /// Ends the wait that is under way, or the next one; CONTEXT: any.
    pub(crate) fn ring(&self) {
        let one = 1u64;
        // SAFETY: the kernel reads 8 bytes of this frame (D9: bare call).
        _ = unsafe {
            syscall3(
                libc::SYS_write,
                self.bell as usize,
                &raw const one as usize,
                8,
            )
        };
    }
}

/// Makes an epoll; CONTEXT: any.
fn create() -> Result<i32, Errno> {
    // SAFETY: the call makes a descriptor and touches no memory (D9: bare call).
    let epoll = unsafe { syscall1(libc::SYS_epoll_create1, libc::EPOLL_CLOEXEC as usize) };
    check(epoll).map(|fd| fd as i32)
}

impl Drop for Epoll {
    fn drop(&mut self) {
        // SAFETY: `&mut self` proves that no other thread uses the epoll, and this is its one drop.
        unsafe { self.close() };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn wait(epoll: &Epoll, deadline_ns: u64) -> Vec<(u64, u32)> {
        let mut events = [const { MaybeUninit::uninit() }; 8];
        let events = epoll.wait(&mut events, deadline_ns);
        events.iter().map(|e| (e.data, e.what)).collect()
    }

    #[test]
    fn every_change_is_told_once() {
        let epoll = Epoll::new().unwrap();
        let (mut a, mut b) = UnixStream::pair().unwrap();
        a.set_nonblocking(true).unwrap();
        epoll.add(a.as_raw_fd(), 7).unwrap();
        assert_eq!(wait(&epoll, 0), [(7, event::WRITE)], "what it is ready for");
        assert_eq!(wait(&epoll, 0), []);
        b.write_all(b"x").unwrap();
        let told = wait(&epoll, u64::MAX);
        assert!(told[0].0 == 7 && told[0].1 & event::READ != 0, "{told:?}");
        assert_eq!(wait(&epoll, 0), [], "edge");
        b.write_all(b"y").unwrap();
        assert_eq!(wait(&epoll, u64::MAX).len(), 1, "each change");
        a.read_exact(&mut [0; 2]).unwrap();
        drop(b);
        let told = wait(&epoll, u64::MAX);
        assert!(told[0].1 & event::END != 0 && told[0].1 & event::ODD != 0);
        epoll.remove(a.as_raw_fd());
    }

    #[test]
    fn an_epoll_inside_another_reports_by_it() {
        let outer = Epoll::new().unwrap();
        let inner = Epoll::nested_in(&outer).unwrap();
        let (a, mut b) = UnixStream::pair().unwrap();
        assert!(!inner.rearm(a.as_raw_fd(), 7).unwrap());
        assert_eq!(wait(&outer, 0).len(), 1, "what it is ready for");
        assert_eq!(wait(&inner, 0), [(7, event::WRITE)]);
        assert_eq!((wait(&outer, 0), wait(&inner, 0)), (vec![], vec![]));
        for _ in 0..2 {
            b.write_all(b"x").unwrap();
            assert_eq!(wait(&outer, u64::MAX)[0].0, NESTED);
            assert_eq!(wait(&inner, 0).len(), 1);
        }
        assert!(inner.rearm(a.as_raw_fd(), 8).unwrap());
        assert_eq!(wait(&inner, 0)[0].0, 8, "what was ready already");
    }

    #[test]
    fn the_bell_ends_a_wait_every_time() {
        let epoll = Epoll::new().unwrap();
        for _ in 0..3 {
            epoll.ring();
            assert_eq!(wait(&epoll, u64::MAX)[0].0, BELL);
        }
        assert_eq!(wait(&epoll, 0), []);
    }

    #[test]
    fn a_wait_is_not_shorter_than_asked() {
        let epoll = Epoll::new().unwrap();
        for old in [false, true] {
            IS_OLD.store(old, Relaxed);
            let until = monotonic_ns() + 2_300_000;
            while monotonic_ns() < until && wait(&epoll, until).is_empty() {}
            assert!(monotonic_ns() >= until);
        }
        IS_OLD.store(false, Relaxed);
    }
}
