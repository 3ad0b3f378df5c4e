//! What the user has set for a descriptor: O_NONBLOCK, and how long reads and writes may take.
//!
//! The kernel keeps these for the open file, which several numbers may share. The entry of a seen
//! number remembers them. They are forgotten when a hooked function changes them: for this number
//! alone if no other number shares the file, and otherwise for all numbers, by one epoch.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use gosched::hook::Direction;

use super::entry::{Entry, Kind, existing};
use crate::table;

/// Changes with every change of a setting of a file that several numbers may share.
static EPOCH: AtomicU32 = AtomicU32::new(1);

/// The settings of one number, as they were when the kernel was asked last.
pub(super) struct Settings {
    /// Changes with every change for this number alone.
    version: AtomicU32,
    /// The epoch and the version at which the rest was right; 0: never.
    known: AtomicU64,
    is_nonblocking: AtomicBool,
    /// In ns, for each direction; 0: none.
    timeouts: [AtomicU64; 2],
}

/// What a wait needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) is_nonblocking: bool,
    /// How long a call may wait in the direction asked for.
    pub(super) timeout: Option<Duration>,
}

impl Settings {
    /// Forgets what is known of this number.
    pub(super) fn forget(&self) {
        self.version.fetch_add(1, Relaxed);
    }

    fn now(&self) -> u64 {
        let epoch = u64::from(EPOCH.load(Relaxed));
        epoch << 32 | u64::from(self.version.load(Relaxed))
    }
}

fn timeout(ns: u64) -> Option<Duration> {
    (ns != 0).then(|| Duration::from_nanos(ns))
}

impl Entry {
    /// What is known without a system call; None: nothing.
    #[inline]
    pub(super) fn remembered(&self, direction: Direction) -> Option<Known> {
        let settings = &self.settings;
        (self.is_seen() && settings.known.load(Relaxed) == settings.now()).then(|| Known {
            is_nonblocking: settings.is_nonblocking.load(Relaxed),
            timeout: timeout(settings.timeouts[direction as usize].load(Relaxed)),
        })
    }

    /// Asks the kernel. None: it does not know the number.
    pub(super) fn ask(&self, fd: c_int, direction: Direction) -> Option<Known> {
        // A change from here on makes the answer old.
        let as_of = self.settings.now();
        let flags = flags(fd);
        if flags < 0 {
            return None;
        }
        let is_nonblocking = flags & libc::O_NONBLOCK != 0;
        let is_socket = self.kind(fd) == Some(Kind::Socket);
        let ask = |option| {
            if is_socket {
                ask_timeout(fd, option)
            } else {
                0
            }
        };
        let timeouts = [ask(libc::SO_RCVTIMEO), ask(libc::SO_SNDTIMEO)];
        let settings = &self.settings;
        settings.known.store(0, Relaxed);
        settings.is_nonblocking.store(is_nonblocking, Relaxed);
        for (known, ns) in settings.timeouts.iter().zip(timeouts) {
            known.store(ns, Relaxed);
        }
        settings.known.store(as_of, Relaxed);
        Some(Known {
            is_nonblocking,
            timeout: timeout(timeouts[direction as usize]),
        })
    }
}

/// The flags of the open file; negative: the kernel does not know the number.
fn flags(fd: c_int) -> c_int {
    type Fcntl = unsafe extern "C" fn(c_int, c_int, usize) -> c_int;
    // SAFETY: libc's fcntl takes its third argument as a word on the platforms of this crate.
    unsafe { table::fcntl.real.get::<Fcntl>()(fd, libc::F_GETFL, 0) }
}

/// Whether the open file has O_NONBLOCK, as the kernel says now.
pub(super) fn is_nonblocking(fd: c_int) -> bool {
    let flags = flags(fd);
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// A socket's timeout in ns; 0: none.
fn ask_timeout(fd: c_int, option: c_int) -> u64 {
    let mut time = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut length = size_of::<libc::timeval>() as libc::socklen_t;
    let at = (&raw mut time).cast::<c_void>();
    // SAFETY: the kernel writes at most `length` bytes to the timeval.
    let answer = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, option, at, &mut length) };
    if answer != 0 {
        return 0;
    }
    (time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64).saturating_mul(1_000)
}

/// A hooked function has changed a setting of `fd`.
pub(crate) fn forget_settings(fd: c_int) {
    match existing(fd) {
        Some(entry) if entry.is_seen() && !entry.is_shared() => entry.settings.forget(),
        // Any number may belong to the same open file.
        _ => _ = EPOCH.fetch_add(1, Relaxed),
    }
}
