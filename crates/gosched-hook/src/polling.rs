//! `poll`, `select` and `epoll_wait`: the goroutine parks until one of the descriptors is ready.
//!
//! The kernel is asked without waiting first. If nothing is ready, one descriptor in one direction
//! is waited for as a read or a write would. Several descriptors go into an epoll of this call
//! alone, and the goroutine waits for that one. An epoll of the program is a descriptor like any
//! other.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::slice;
use std::time::Duration;

use gosched::hook::{self, Deadline, Direction};

use crate::errno;
use crate::fd::{self, Stop, Wait, attempt};
use crate::memory::is_readable;
use crate::table::{self, Function};

table::hook! {
    fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int = |real| {
        // SAFETY: the arguments are the caller's; with another timeout, too.
        let call = |timeout| unsafe { real(fds, count, timeout) };
        if timeout == 0 || !table::poll.applies() {
            return call(timeout);
        }
        // SAFETY: the caller passes `count` structs.
        let waited = unsafe { polled(fds, count, in_ms(timeout), || call(0)) };
        finish(&table::poll, waited, || call(timeout))
    };

    fn ppoll(
        fds: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int = |real| {
        const NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the arguments are the caller's; with another timeout, too.
        let call = |timeout| unsafe { real(fds, count, timeout, mask) };
        if !table::ppoll.applies() {
            return call(timeout);
        }
        // SAFETY: the caller passes a timespec or null.
        match unsafe { deadline_of(timeout) } {
            Some(deadline) => {
                if !mask.is_null() {
                    table::ppoll.count_left();
                    return call(timeout);
                }
                // SAFETY: the caller passes `count` structs.
                let waited = unsafe { polled(fds, count, deadline, || call(&NOW)) };
                finish(&table::ppoll, waited, || call(timeout))
            }
            _ => call(timeout),
        }
    };

    fn select(
        count: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        timeout: *mut libc::timeval,
    ) -> c_int = |real| {
        // SAFETY: the arguments are the caller's; with another timeout, too.
        let call = |timeout| unsafe { real(count, read, write, except, timeout) };
        if count < 0 || !table::select.applies() {
            return call(timeout);
        }
        if !timeout.is_null() && !is_readable(timeout, size_of::<libc::timeval>()) {
            return call(timeout);
        }
        // SAFETY: the caller passes a timeval that can be read, or null.
        let length = unsafe { timeout.as_ref() }.map(|time| {
            let is_valid = time.tv_sec >= 0 && (0..1_000_000).contains(&time.tv_usec);
            is_valid.then(|| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1_000))
        });
        let deadline = match length {
            None => Deadline::NEVER,
            Some(Some(length)) if !length.is_zero() => Deadline::after(length),
            Some(_) => return call(timeout),
        };
        // SAFETY: each set is null or has room for `count` bits.
        let waited = unsafe {
            selected(count as usize, [read, write, except], deadline, || {
                call(&mut libc::timeval { tv_sec: 0, tv_usec: 0 })
            })
        };
        // SAFETY: the caller passes a timeval or null.
        if let Some(left) = unsafe { timeout.as_mut() } {
            // As the kernel does, the rest of the time is returned.
            let rest = deadline.remaining();
            left.tv_sec = rest.as_secs() as _;
            left.tv_usec = rest.subsec_micros() as _;
        }
        finish(&table::select, waited, || call(timeout))
    };

    fn pselect(
        count: c_int,
        read: *mut libc::fd_set,
        write: *mut libc::fd_set,
        except: *mut libc::fd_set,
        timeout: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int = |real| {
        const NOW: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the arguments are the caller's; with another timeout, too.
        let call = |timeout| unsafe { real(count, read, write, except, timeout, mask) };
        if count < 0 || !table::pselect.applies() {
            return call(timeout);
        }
        // SAFETY: the caller passes a timespec or null.
        match unsafe { deadline_of(timeout) } {
            Some(deadline) => {
                if !mask.is_null() {
                    table::pselect.count_left();
                    return call(timeout);
                }
                let sets = [read, write, except];
                // SAFETY: each set is null or has room for `count` bits.
                let waited = unsafe { selected(count as usize, sets, deadline, || call(&NOW)) };
                finish(&table::pselect, waited, || call(timeout))
            }
            _ => call(timeout),
        }
    };

    fn epoll_wait(
        epoll: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout: c_int,
    ) -> c_int = |real| {
        // SAFETY: the arguments are the caller's; with another timeout, too.
        let call = |timeout| unsafe { real(epoll, events, most, timeout) };
        if timeout == 0 || !table::epoll_wait.applies() {
            return call(timeout);
        }
        let waited = wait_for(epoll, Direction::Read, in_ms(timeout), || call(0));
        finish(&table::epoll_wait, waited, || call(timeout))
    };

    fn epoll_pwait(
        epoll: c_int,
        events: *mut libc::epoll_event,
        most: c_int,
        timeout: c_int,
        mask: *const libc::sigset_t,
    ) -> c_int = |real| {
        // SAFETY: the arguments are the caller's; with another timeout, too.
        let call = |timeout| unsafe { real(epoll, events, most, timeout, mask) };
        if timeout == 0 || !table::epoll_pwait.applies() {
            return call(timeout);
        }
        if !mask.is_null() {
            table::epoll_pwait.count_left();
            return call(timeout);
        }
        let waited = wait_for(epoll, Direction::Read, in_ms(timeout), || call(0));
        finish(&table::epoll_pwait, waited, || call(timeout))
    };

    fn epoll_create(size: c_int) -> c_int = |real| {
        // SAFETY: the call has no condition.
        opened(&table::epoll_create, unsafe { real(size) })
    };

    fn epoll_create1(flags: c_int) -> c_int = |real| {
        // SAFETY: the call has no condition.
        opened(&table::epoll_create1, unsafe { real(flags) })
    };
}

fn opened(function: &Function, fd: c_int) -> c_int {
    if fd >= 0 && !function.is_off() {
        fd::opened(fd);
    }
    fd
}

fn in_ms(timeout: c_int) -> Deadline {
    match u64::try_from(timeout) {
        Ok(ms) => Deadline::after(Duration::from_millis(ms)),
        Err(_) => Deadline::NEVER,
    }
}

/// None: the call does not wait, or the kernel refuses the time.
///
/// # Safety
/// `timeout` is null, or a timespec, or no memory is there at all.
unsafe fn deadline_of(timeout: *const libc::timespec) -> Option<Deadline> {
    if !timeout.is_null() && !is_readable(timeout, size_of::<libc::timespec>()) {
        return None;
    }
    // SAFETY: as the caller promises.
    let Some(time) = (unsafe { timeout.as_ref() }) else {
        return Some(Deadline::NEVER);
    };
    let is_valid = time.tv_sec >= 0 && (0..1_000_000_000).contains(&time.tv_nsec);
    let length = is_valid.then(|| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))?;
    (!length.is_zero()).then(|| Deadline::after(length))
}

/// What the hook returns: 0 if the time has passed. `call` is the call as the user made it.
fn finish(function: &Function, waited: Result<usize, Stop>, call: impl FnOnce() -> c_int) -> c_int {
    match waited {
        Ok(n) => n as c_int,
        Err(Stop::Fail(libc::EAGAIN)) => 0,
        Err(Stop::Fail(errno)) => errno::fail(errno),
        Err(Stop::Libc) => {
            function.count_left();
            call()
        }
    }
}

/// Calls `now`, which does not wait, until it finds something.
fn wait_for(
    fd: c_int,
    direction: Direction,
    deadline: Deadline,
    now: impl Fn() -> c_int,
) -> Result<usize, Stop> {
    loop {
        let mut wait = Wait::new(fd, direction).until(deadline);
        match wait.until_done(|| look(&now)) {
            // The number was closed. The kernel says so in the way of each function.
            Err(Stop::Fail(libc::EBADF)) => match look(&now) {
                // It is another file already.
                Err(libc::EAGAIN) => {}
                done => return done.map_err(Stop::Fail),
            },
            // As the kernel does, look once more.
            Err(Stop::Fail(libc::EAGAIN)) => return look(&now).map_err(Stop::Fail),
            done => return done,
        }
    }
}

/// EAGAIN: nothing is ready.
fn look(now: impl Fn() -> c_int) -> Result<usize, c_int> {
    match attempt(now() as isize)? {
        0 => Err(libc::EAGAIN),
        n => Ok(n),
    }
}

/// # Safety
/// `fds` has `count` structs.
unsafe fn polled(
    fds: *mut libc::pollfd,
    count: libc::nfds_t,
    deadline: Deadline,
    now: impl Fn() -> c_int,
) -> Result<usize, Stop> {
    match look(&now) {
        Err(libc::EAGAIN) => {}
        done => return done.map_err(Stop::Fail),
    }
    let mut wanted = BTreeMap::new();
    if count > 0 {
        // SAFETY: as the caller promises; the kernel has just read and written them.
        let fds = unsafe { slice::from_raw_parts(fds, count as usize) };
        for poll in fds.iter().filter(|poll| poll.fd >= 0) {
            *wanted.entry(poll.fd).or_insert(0) |= u32::from(poll.events as u16);
        }
    }
    wait_for_any(&wanted, deadline, now)
}

/// Events that a read waits for, and a write. A wait for others would end with every read event,
/// again and again.
const READ: [u32; 3] = [IN, NORMAL, IN | NORMAL];
const WRITE: [u32; 3] = [OUT, OUT_NORMAL, OUT | OUT_NORMAL];
const IN: u32 = libc::EPOLLIN as u32;
const NORMAL: u32 = libc::EPOLLRDNORM as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const OUT_NORMAL: u32 = libc::EPOLLWRNORM as u32;

/// Waits until `now` finds something. `wanted`: the events of each descriptor.
fn wait_for_any(
    wanted: &BTreeMap<c_int, u32>,
    deadline: Deadline,
    now: impl Fn() -> c_int,
) -> Result<usize, Stop> {
    let only = wanted.first_key_value().filter(|_| wanted.len() == 1);
    match only {
        Some((&fd, events)) if READ.contains(events) => {
            wait_for(fd, Direction::Read, deadline, now)
        }
        Some((&fd, events)) if WRITE.contains(events) => {
            wait_for(fd, Direction::Write, deadline, now)
        }
        _ if wanted.is_empty() => {
            if deadline == Deadline::NEVER {
                return Err(Stop::Libc); // only a signal ends such a wait
            }
            hook::sleep(deadline.remaining());
            Err(Stop::Fail(libc::EAGAIN))
        }
        _ => {
            let set = Set::new(wanted).ok_or(Stop::Libc)?;
            wait_for(set.0, Direction::Read, deadline, now)
        }
    }
}

/// An epoll of one call.
struct Set(c_int);

impl Set {
    /// None: the system refuses it.
    fn new(wanted: &BTreeMap<c_int, u32>) -> Option<Set> {
        type Create = unsafe extern "C" fn(c_int) -> c_int;
        // SAFETY: libc's function has this type.
        let create = unsafe { table::epoll_create1.real.get::<Create>() };
        // SAFETY: the call has no condition.
        let epoll = unsafe { create(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return None;
        }
        fd::opened(epoll);
        let set = Set(epoll);
        for (&fd, &events) in wanted {
            let mut event = libc::epoll_event { events, u64: 0 };
            // SAFETY: the kernel reads the event.
            let added = unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) };
            // A regular file without a wanted event is refused, and never becomes ready.
            if added != 0 && errno::get() != libc::EPERM {
                return None;
            }
        }
        Some(set)
    }
}

impl Drop for Set {
    fn drop(&mut self) {
        type Close = unsafe extern "C" fn(c_int) -> c_int;
        fd::closing(self.0);
        // SAFETY: libc's function has this type. The number is this value's own.
        unsafe { table::close.real.get::<Close>()(self.0) };
    }
}

/// A number above every descriptor of this process.
fn most_descriptors() -> usize {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: libc writes the limit.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => usize::try_from(limit.rlim_cur)
            .unwrap_or(usize::MAX)
            .max(libc::FD_SETSIZE),
        _ => libc::FD_SETSIZE,
    }
}

/// # Safety
/// Each set is null or has room for `count` bits.
unsafe fn selected(
    count: usize,
    sets: [*mut libc::fd_set; 3],
    deadline: Deadline,
    now: impl Fn() -> c_int,
) -> Result<usize, Stop> {
    const EVENTS: [u32; 3] = [
        (libc::EPOLLIN | libc::EPOLLRDHUP) as u32,
        libc::EPOLLOUT as u32,
        libc::EPOLLPRI as u32,
    ];
    // The kernel leaves out numbers that the process cannot have. It has read and written the rest
    // of the sets, or it refuses them.
    let count = count.min(most_descriptors());
    let bytes = count.div_ceil(64) * 8;
    let is_wrong = |set: &*mut libc::fd_set| !set.is_null() && !is_readable(*set, bytes);
    if sets.iter().any(is_wrong) {
        return Err(Stop::Fail(libc::EFAULT));
    }
    let copy = |set: *mut libc::fd_set| match set.is_null() {
        true => Vec::new(),
        // SAFETY: as the caller promises. The kernel reads and writes whole words, too.
        false => unsafe { slice::from_raw_parts(set.cast::<u8>(), bytes) }.to_vec(),
    };
    let wanted_sets = sets.map(copy);
    let restore = || {
        for (set, bytes) in sets.iter().zip(&wanted_sets) {
            if !set.is_null() {
                // SAFETY: the set has room for what was copied from it.
                unsafe {
                    set.cast::<c_void>()
                        .copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len())
                };
            }
        }
    };
    let now = || {
        restore();
        now()
    };
    match look(now) {
        Err(libc::EAGAIN) => {}
        done => return done.map_err(Stop::Fail),
    }
    let mut wanted = BTreeMap::new();
    for (bytes, events) in wanted_sets.iter().zip(EVENTS) {
        for fd in (0..count).filter(|fd| bytes.get(fd / 8).is_some_and(|b| b >> (fd % 8) & 1 == 1))
        {
            *wanted.entry(fd as c_int).or_insert(0) |= events;
        }
    }
    let waited = wait_for_any(&wanted, deadline, now);
    if waited == Err(Stop::Libc) {
        restore();
    }
    waited
}
