//! Guards below stacks: markers in the page table where the kernel has them, protected pages
//! elsewhere.
//!
//! The arena tries markers first. Kernels before 6.13 refuse them, and so does locked memory. After
//! a refusal the arena protects pages, and each stack costs two mappings. The system's limit on
//! mappings, `vm.max_map_count`, is then reached at about 32,000 stacks. When nine tenths are used
//! up or a protection is refused, one message per process names the setting (D4).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use crate::stack::{GUARD, Guard, at};
use crate::sys;
use crate::sys::Errno;

/// Guards installed with one system call.
pub(super) const BATCH_MAX: usize = 64;

/// Mappings that one protected guard adds: itself, and the stack above it that it splits off.
const MAPPINGS_PER_GUARD: usize = 2;

/// Linux's default limit, where the limit cannot be read.
const LIMIT_DEFAULT: usize = 65_530;

/// Mappings that the guards of all arenas cost: the limit counts for the process.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);
/// `vm.max_map_count`; 0 until it has been read.
static LIMIT: AtomicUsize = AtomicUsize::new(0);
static WARNED: AtomicBool = AtomicBool::new(false);

/// How an arena guards its stacks.
pub(super) struct Guards {
    mprotect: AtomicBool,
}

/// The result of `install`.
pub(super) struct Installed {
    /// Slots guarded, from the first on.
    pub(super) slots: usize,
    /// How many of them by protection.
    pub(super) protected: usize,
}

impl Guards {
    pub(super) const fn new(force_mprotect: bool) -> Guards {
        Guards {
            mprotect: AtomicBool::new(force_mprotect),
        }
    }

    pub(super) fn kind(&self) -> Guard {
        // ORDER: Relaxed; the flag decides how the next guard is made and publishes nothing.
        match self.mprotect.load(Relaxed) {
            false => Guard::Lightweight,
            true => Guard::Mprotect,
        }
    }

    /// Guards the first bytes of `n` slots, at most `BATCH_MAX`, from `first` on. An error means
    /// that not even one could be guarded.
    ///
    /// # Safety
    /// The slots lie in a chunk of ours and no code has used them yet.
    pub(super) unsafe fn install(
        &self,
        first: usize,
        stride: usize,
        n: usize,
    ) -> Result<Installed, Errno> {
        debug_assert!((1..=BATCH_MAX).contains(&n));
        if n > 1 && self.kind() == Guard::Lightweight {
            let mut ranges = [(0, 0); BATCH_MAX];
            for (i, range) in ranges[..n].iter_mut().enumerate() {
                *range = (first + i * stride, GUARD);
            }
            // SAFETY: D4, the ranges are guards of unused slots in a chunk of ours (the contract of
            // `install`).
            if unsafe { sys::guard_install_batch(&ranges[..n]) }.is_ok() {
                return Ok(Installed {
                    slots: n,
                    protected: 0,
                });
            }
        }
        let mut done = Installed {
            slots: 0,
            protected: 0,
        };
        while done.slots < n {
            // SAFETY: D4, the next of the caller's unused slots.
            match unsafe { self.install_one(first + done.slots * stride) } {
                Ok(kind) => {
                    done.slots += 1;
                    done.protected += usize::from(kind == Guard::Mprotect);
                }
                Err(errno) if done.slots == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// # Safety
    /// `address` is the start of a slot of ours that no code has used yet.
    unsafe fn install_one(&self, address: usize) -> Result<Guard, Errno> {
        if self.kind() == Guard::Lightweight {
            // SAFETY: D4, the range is the guard of an unused slot of ours.
            match unsafe { sys::guard_install(at(address), GUARD) } {
                Ok(()) => return Ok(Guard::Lightweight),
                // The kernel has no page for a page table just now: this one guard is protected
                // instead.
                Err(Errno(libc::ENOMEM | libc::EAGAIN | libc::EINTR)) => {}
                // ORDER: Relaxed; see `kind`.
                Err(_) => self.mprotect.store(true, Relaxed),
            }
        }
        // SAFETY: D4, the range is the guard of an unused slot of ours.
        let protected = unsafe { sys::protect_none(at(address), GUARD) };
        count_mappings(protected.is_err());
        protected.map(|()| Guard::Mprotect)
    }
}

/// Forgets the mappings of `protected` guards that were unmapped.
pub(super) fn forget_mappings(protected: usize) {
    // ORDER: Relaxed; a counter that only a warning reads.
    MAPPINGS.fetch_sub(protected * MAPPINGS_PER_GUARD, Relaxed);
}

/// Counts one more protected guard, or a refused one, and warns once when the limit is near.
fn count_mappings(refused: bool) {
    let new = if refused { 0 } else { MAPPINGS_PER_GUARD };
    // ORDER: Relaxed; see `forget_mappings`.
    let mappings = MAPPINGS.fetch_add(new, Relaxed) + new;
    let limit = mapping_limit();
    let is_near = refused || is_near(mappings, limit);
    // ORDER: Relaxed; the thread that changes the flag prints, nothing else depends on it.
    if is_near && !WARNED.load(Relaxed) && !WARNED.swap(true, Relaxed) {
        sys::eprint_raw(format_args!(
            "gosched: goroutine stacks use {mappings} memory mappings and this process may have {limit}. \
             Without lightweight guards (Linux 6.13, memory not locked) each stack needs two; \
             for more goroutines raise the limit: sysctl -w vm.max_map_count={}\n",
            limit.saturating_mul(4)
        ));
    }
}

fn is_near(mappings: usize, limit: usize) -> bool {
    mappings >= limit - limit / 10
}

/// The limit on mappings, if the guards of this process have used it up. A stack was then refused
/// because of the limit.
pub(super) fn exhausted_limit() -> Option<usize> {
    // ORDER: Relaxed; see `forget_mappings`.
    let mappings = MAPPINGS.load(Relaxed);
    (mappings > 0 && is_near(mappings, mapping_limit())).then(mapping_limit)
}

/// `vm.max_map_count`, read once.
fn mapping_limit() -> usize {
    // ORDER: Relaxed; the first thread reads the file; if several do, they get the same number.
    match LIMIT.load(Relaxed) {
        0 => {
            let limit = read_mapping_limit().unwrap_or(LIMIT_DEFAULT).max(1);
            LIMIT.store(limit, Relaxed);
            limit
        }
        limit => limit,
    }
}

fn read_mapping_limit() -> Option<usize> {
    let path = c"/proc/sys/vm/max_map_count".as_ptr() as usize;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let mut text = [0u8; 24];
    // SAFETY: D9, bare calls. The path is a C string, the buffer is this frame's with its true
    // length, and this function closes the descriptor that it opened.
    let len = unsafe {
        let fd = sys::syscall4(libc::SYS_openat, libc::AT_FDCWD as usize, path, flags, 0);
        let fd = sys::check(fd).ok()?;
        let len = sys::syscall3(libc::SYS_read, fd, text.as_mut_ptr() as usize, text.len());
        sys::syscall1(libc::SYS_close, fd);
        sys::check(len).ok()?
    };
    std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
}
