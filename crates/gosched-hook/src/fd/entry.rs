//! What is known of each descriptor number.
//!
//! Entries are never freed, so any thread may use one at any time, also while another thread closes
//! the descriptor. The fields are independent. A reader may miss a change that happens at the same
//! time, and loads it at its next wait.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32};
use std::time::Duration;

use gosched::hook::Descriptor;

use super::handler;
use super::process::is_in_own_process;
use super::wait::{DOUBLINGS, RECHECK};
use crate::table;

const BLOCK: usize = 1 << 10;
const BLOCKS: usize = 1 << 12;

/// What kind of file a descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Never waits for another process: a regular file, a directory, a block device.
    File,
    Socket,
    Pipe,
    /// A terminal, an eventfd, anything else.
    Other,
}

const UNKNOWN: u8 = 0;
const KINDS: [Kind; 4] = [Kind::File, Kind::Socket, Kind::Pipe, Kind::Other];

/// One descriptor number. All bits zero: nothing is known of it.
pub(crate) struct Entry {
    /// The waiters; null: no goroutine has ever waited for this number.
    descriptor: AtomicPtr<Descriptor>,
    /// Changes when a hooked function opens or closes the number.
    incarnation: AtomicU32,
    /// A hooked function has opened the number, and none has closed it since.
    is_seen: AtomicBool,
    /// Another number of this process may belong to the same open file.
    is_shared: AtomicBool,
    /// A TCP socket with no protocol on top: a read that returns less than its buffer holds has
    /// taken all there was.
    is_plain_stream: AtomicBool,
    /// How often a long wait has found the same file.
    found: AtomicU8,
    /// UNKNOWN, or a place in `KINDS` plus one.
    kind: AtomicU8,
    pub(super) settings: super::settings::Settings,
}

impl Entry {
    /// The waiters, if a goroutine has ever waited for this number.
    #[inline]
    pub(crate) fn descriptor(&self) -> Option<&Descriptor> {
        // ORDER: Acquire; pairs with the AcqRel in `make_descriptor`.
        // SAFETY: `make_descriptor` is the only writer. It stores a pointer to a leaked box.
        unsafe { self.descriptor.load(Acquire).as_ref() }
    }

    #[cold]
    pub(crate) fn make_descriptor(&self) -> &Descriptor {
        if let Some(descriptor) = self.descriptor() {
            return descriptor;
        }
        let new = Box::into_raw(Box::new(Descriptor::new()));
        // ORDER: AcqRel; pairs with the Acquire in `descriptor` and with itself.
        match self
            .descriptor
            .compare_exchange(ptr::null_mut(), new, AcqRel, Acquire)
        {
            // SAFETY: the box was leaked above, and is never freed from here on.
            Ok(_) => unsafe { &*new },
            Err(first) => {
                // SAFETY: the box was made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: as in `descriptor`.
                unsafe { &*first }
            }
        }
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation.load(Relaxed)
    }

    pub(crate) fn is_seen(&self) -> bool {
        self.is_seen.load(Relaxed)
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Relaxed)
    }

    /// Whether a short read proves that there is no more data now.
    #[inline]
    pub(crate) fn is_plain_stream(&self) -> bool {
        self.is_plain_stream.load(Relaxed) && self.is_seen()
    }

    pub(crate) fn set_plain_stream(&self, yes: bool) {
        self.is_plain_stream.store(yes, Relaxed);
    }

    /// The kind of file, asked once for each incarnation; None: the kernel does not know the
    /// number.
    ///
    /// A close that was not seen makes the answer wrong. Callers then get ENOTSOCK or EOPNOTSUPP,
    /// and call [`Entry::check_kind`]. That a number is a regular file is remembered for a seen
    /// number only: no error would show that it is none any more.
    pub(crate) fn kind(&self, fd: c_int) -> Option<Kind> {
        match self.kind.load(Relaxed) {
            UNKNOWN => {
                let incarnation = self.incarnation();
                let kind = ask_kind(fd)?;
                if kind == Kind::File && !self.is_seen() {
                    return Some(kind);
                }
                self.kind.store(kind as u8 + 1, Relaxed);
                if self.incarnation() != incarnation {
                    self.kind.store(UNKNOWN, Relaxed);
                }
                Some(kind)
            }
            known => KINDS.get(usize::from(known) - 1).copied(),
        }
    }

    /// A call has failed as if the file were of another kind: asks the kernel again. If it is, the
    /// number has another file, and a close was not seen.
    #[cold]
    pub(crate) fn check_kind(&self, fd: c_int) {
        let known = self.kind.swap(UNKNOWN, Relaxed);
        if self.kind(fd).is_none_or(|kind| kind as u8 + 1 != known) {
            self.lost();
        }
    }

    /// After how long a wait looks whether the number still has the same file.
    pub(super) fn recheck_after(&self) -> Duration {
        RECHECK * (1 << self.found.load(Relaxed))
    }

    /// A look has found the same file.
    pub(super) fn is_still_there(&self) {
        let found = self.found.load(Relaxed);
        self.found.store(DOUBLINGS.min(found + 1), Relaxed);
    }

    /// The number has another file: it was closed, and not by a hooked function.
    #[cold]
    pub(super) fn lost(&self) {
        self.begin_as(false);
    }

    fn begin(&self, is_seen: bool) {
        self.incarnation.fetch_add(1, Relaxed);
        self.begin_as(is_seen);
    }

    fn begin_as(&self, is_seen: bool) {
        self.found.store(0, Relaxed);
        self.kind.store(UNKNOWN, Relaxed);
        self.is_shared.store(false, Relaxed);
        self.is_plain_stream.store(false, Relaxed);
        self.settings.forget();
        self.is_seen.store(is_seen, Relaxed);
    }
}

fn ask_kind(fd: c_int) -> Option<Kind> {
    // SAFETY: all bits zero are a stat.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: libc writes the stat.
    if unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return None;
    }
    Some(match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG | libc::S_IFDIR | libc::S_IFBLK => Kind::File,
        libc::S_IFSOCK => Kind::Socket,
        libc::S_IFIFO => Kind::Pipe,
        _ => Kind::Other,
    })
}

static TABLE: [AtomicPtr<[Entry; BLOCK]>; BLOCKS] =
    [const { AtomicPtr::new(ptr::null_mut()) }; BLOCKS];

fn place(fd: c_int) -> Option<(&'static AtomicPtr<[Entry; BLOCK]>, usize)> {
    let fd = usize::try_from(fd).ok()?;
    Some((TABLE.get(fd / BLOCK)?, fd % BLOCK))
}

/// The entry of a number; None: no hooked function has opened a number near it, and no goroutine
/// has waited for one.
#[inline]
pub(crate) fn existing(fd: c_int) -> Option<&'static Entry> {
    let (block, index) = place(fd)?;
    // ORDER: Acquire; pairs with the AcqRel in `entry`.
    // SAFETY: `make_entry` is the only writer. It stores a pointer to a mapping that stays.
    Some(unsafe { &block.load(Acquire).as_ref()?[index] })
}

/// The entry of a number, made if there is none; None: no number can be so large, or there is no
/// memory.
#[inline]
pub(crate) fn entry(fd: c_int) -> Option<&'static Entry> {
    match existing(fd) {
        Some(entry) => Some(entry),
        None => make_entry(fd),
    }
}

#[cold]
fn make_entry(fd: c_int) -> Option<&'static Entry> {
    let (block, _) = place(fd)?;
    // From the kernel: a signal handler may open descriptors, and must not call malloc.
    const SIZE: usize = size_of::<[Entry; BLOCK]>();
    let (protection, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    // SAFETY: a new mapping, which touches no other memory.
    let new = unsafe { libc::mmap(ptr::null_mut(), SIZE, protection, flags, -1, 0) };
    if new == libc::MAP_FAILED {
        return None;
    }
    // Its pages are zero. So are the fields of an entry of which nothing is known.
    let new = new.cast::<[Entry; BLOCK]>();
    // ORDER: AcqRel; pairs with the Acquire in `existing`.
    if block
        .compare_exchange(ptr::null_mut(), new, AcqRel, Acquire)
        .is_err()
    {
        // SAFETY: the mapping was made above with this size, and no other thread has seen it.
        unsafe { libc::munmap(new.cast(), SIZE) };
    }
    existing(fd)
}

/// A hooked function has opened `fd`.
pub(crate) fn opened(fd: c_int) {
    if is_in_own_process()
        && let Some(entry) = entry(fd)
    {
        // A close that was not seen may have left a registration.
        let has_ended = end(entry, fd);
        entry.begin(has_ended && sees_every_close());
    }
}

/// A hooked function is about to close `fd`.
#[inline]
pub(crate) fn closing(fd: c_int) {
    if let Some(entry) = existing(fd) {
        close(entry, fd);
    }
}

fn close(entry: &Entry, fd: c_int) {
    if (entry.is_seen() || entry.descriptor().is_some()) && is_in_own_process() {
        entry.begin(false);
        end(entry, fd);
    }
}

/// Ends the waits for the number, and its registration. False: a signal handler cannot.
fn end(entry: &Entry, fd: c_int) -> bool {
    let mut has_ended = true;
    with_waiters(entry, |descriptor| has_ended = descriptor.end(fd)) && has_ended
}

/// Calls `f` with the waiters, if there are any. False: a signal handler must not.
fn with_waiters(entry: &Entry, f: impl FnOnce(&Descriptor)) -> bool {
    thread_local! {
        /// The thread may hold a lock of the runtime: a signal handler must not take one.
        static IS_BUSY: Cell<bool> = const { Cell::new(false) };
    }
    let Some(descriptor) = entry.descriptor() else {
        return true;
    };
    // A thread without a goroutine may hold a lock of the runtime, too: those that poll, and any that
    // wakes a goroutine.
    if !gosched::hook::can_park() && handler::may_be_in_one() {
        return false;
    }
    if IS_BUSY.replace(true) {
        return false;
    }
    f(descriptor);
    IS_BUSY.set(false);
    true
}

/// A hooked function has closed `fd`. A goroutine that [`closing`] has woken, or that came in between,
/// may wait again: it looks once more. If the number has a new file already, its waiters look in vain.
#[inline]
pub(crate) fn closed(fd: c_int) {
    if let Some(entry) = existing(fd)
        && entry.descriptor().is_some()
        && is_in_own_process()
    {
        with_waiters(entry, Descriptor::nudge);
    }
}

/// As [`closed`], for all numbers from `first` to `last`.
pub(crate) fn closed_range(first: c_int, last: c_int) {
    each_in(first, last, |_, fd| closed(fd));
}

/// Whether the hooks that close numbers are on.
fn sees_every_close() -> bool {
    let closers = [
        &table::close,
        &table::close_range,
        &table::dup2,
        &table::dup3,
    ];
    closers.iter().all(|function| !function.is_off())
}

/// As [`closing`], for all numbers from `first` to `last`.
pub(crate) fn closing_range(first: c_int, last: c_int) {
    each_in(first, last, close);
}

fn each_in(first: c_int, last: c_int, f: impl Fn(&Entry, c_int)) {
    for (number, block) in TABLE.iter().enumerate() {
        // ORDER: Acquire; as in `existing`.
        // SAFETY: as in `existing`.
        let Some(entries) = (unsafe { block.load(Acquire).as_ref() }) else {
            continue;
        };
        for (index, entry) in entries.iter().enumerate() {
            let fd = (number * BLOCK + index) as c_int;
            if (first..=last).contains(&fd) {
                f(entry, fd);
            }
        }
    }
}

/// `new` is another number of the open file of `old`.
pub(crate) fn duplicated(old: c_int, new: c_int) {
    opened(new);
    for fd in [old, new] {
        if let Some(entry) = entry(fd) {
            entry.is_shared.store(true, Relaxed);
        }
    }
    if let (Some(old), Some(new)) = (existing(old), existing(new)) {
        // Another number of the same socket may take its data.
        old.set_plain_stream(false);
        new.set_plain_stream(false);
    }
}
