//! The thread pointers of an M's thread, and malloc's words that belong to them.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::arch;

/// Which thread block an M's thread is on. Part of the M.
///
/// ORDER: Relaxed throughout. Only the thread itself writes the fields. Another thread that reads
/// `current` is ordered by the P (`thread_locals::standing`) or by a barrier on every CPU
/// (`scope::wait_until_seen`).
pub(crate) struct ThreadPointers {
    /// The thread pointer at present. The thread itself writes it, right after the register (D6);
    /// every thread may read it.
    current: AtomicUsize,
    /// The one that libc gave the thread; 0: the M has no thread.
    own: AtomicUsize,
    /// malloc's words of this thread, which its goroutines borrow (D6). Only the thread itself uses
    /// them.
    malloc: [AtomicUsize; 2],
}

impl ThreadPointers {
    pub(crate) const fn new() -> ThreadPointers {
        ThreadPointers {
            current: AtomicUsize::new(0),
            own: AtomicUsize::new(0),
            malloc: [const { AtomicUsize::new(0) }; 2],
        }
    }

    /// The thread pointer at present; 0: the M has no thread.
    #[inline]
    pub(crate) fn current(&self) -> usize {
        self.current.load(Relaxed)
    }

    /// The thread's own, which libc gave it.
    #[inline]
    pub(crate) fn own(&self) -> usize {
        self.own.load(Relaxed)
    }

    /// Where `arch` notes a change of the thread pointer.
    #[inline]
    pub(crate) fn record(&self) -> *const AtomicUsize {
        &raw const self.current
    }

    /// malloc's words.
    #[inline]
    pub(super) fn malloc(&self) -> [usize; 2] {
        [self.malloc[0].load(Relaxed), self.malloc[1].load(Relaxed)]
    }

    #[inline]
    pub(super) fn set_malloc(&self, words: [usize; 2]) {
        self.malloc[0].store(words[0], Relaxed);
        self.malloc[1].store(words[1], Relaxed);
    }

    /// Whether the thread is on its own block.
    #[inline]
    pub(crate) fn is_on_own(&self) -> bool {
        self.current() == self.own()
    }

    /// Whether the calling thread is on the block that the record shows.
    pub(crate) fn is_settled(&self) -> bool {
        self.current() == arch::thread_pointer()
    }

    /// The calling thread becomes this M's. It is on the block that libc gave it.
    pub(crate) fn begin(&self) {
        self.own.store(arch::thread_pointer(), Relaxed);
        self.current.store(arch::thread_pointer(), Relaxed);
    }

    /// The calling thread is this M's no more.
    pub(crate) fn end(&self) {
        debug_assert_eq!(
            self.own(),
            arch::thread_pointer(),
            "D6: an M ends on its own FS"
        );
        self.current.store(0, Relaxed);
        self.own.store(0, Relaxed);
    }

    /// Back to the thread's own block: g0 is about to search, or to be without a P. On this M's
    /// thread, on g0.
    #[inline]
    pub(crate) fn to_own(&self) {
        let own = self.own();
        if self.current() != own {
            // SAFETY: D6, libc's block of this thread; g0 has no thread-local in use.
            unsafe { arch::set_thread_pointer(own, self.record()) };
        }
    }
}
