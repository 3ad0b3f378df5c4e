//! A goroutine's own thread-locals (D6).
//!
//! Rust lets the compiler, std and every library assume that a function continues on the thread it
//! began on. A goroutine keeps that promise: it has a thread block of its own, in the form that
//! libc gives to threads. The block lies at the top of the goroutine's stack, and the thread
//! pointer is its address whenever the goroutine runs.
//!
//! ```text
//!  slot    guard │ frames ◄─── sp │ hi                                  ▒ colour
//!          ──────┴────────────────┼────────┬──────────────┬─────────────┼──
//!                                 │ header │ thread-locals│ thread block│
//!          ───────────────────────┴────────┴──────────────┴─────────────┴──
//!                                 ◄─────── above ────────► tp: words 0 and 2 point here
//! ```
//!
//! *Surplus* is libc's reserve below the thread-locals for libraries that are loaded later.
//! Goroutines' frames begin in it, because it is reserved for them (`surplus.rs`). Where that is
//! not possible, it lies between the header and the thread-locals and stays zero until a library
//! takes it.
//!
//! Which code is on which block:
//! ```text
//!  a goroutine                its own, from the switch that brings it in. On a stack without a
//!                             block (or with one from before a library was loaded) its first
//!                             steps are on the thread's, until it has made its own
//!  g0 between two goroutines  that of the goroutine which ran here last: g0 touches no
//!                             thread-local, so the second change is saved. The goroutine may
//!                             already run elsewhere
//!  g0 that searches or has    the thread's own
//!  no P; all other threads
//! ```
//! So a signal handler that interrupts g0 between two goroutines sees the thread-locals of the last
//! goroutine. They still have memory: a free stack keeps its memory while an M is on its block
//! (`thread_locals::standing`).
//!
//! A block's life: the first goroutine on a fresh stack makes it, in user context, because its dtv
//! comes from malloc. A goroutine that ends compares its block with the pristine image. If it
//! touched nothing, the next goroutine takes the block as it is. Otherwise destructors run, on the
//! goroutine's stack and before its join is answered, and the block is imprinted again. The header
//! names the image that a block was made from; none: there is no block.
//!
//! malloc: glibc keeps a cache and an arena for each thread, as two thread-locals. A goroutine uses
//! those of the M it runs on. The words are copied in when it is switched in. When it leaves, the M
//! keeps them if the goroutine has changed arenas. So a million goroutines do not have a million
//! caches.

mod block;
pub(crate) mod bounds;
mod dtv;
pub(crate) mod flag;
mod glibc;
mod image;
pub(crate) mod late_libraries;
mod modules;
mod pointers;
pub(crate) mod scope;
mod selftest;
mod static_object;
mod surplus;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::AtomicUsize;

use crate::arch;
use crate::base::closure::call_once;
use crate::base::fatal;
use crate::tls::block::Block;
pub(crate) use crate::tls::dtv::{Spare, free_surplus, has_surplus};
pub(crate) use crate::tls::glibc::Reason;
pub(crate) use crate::tls::pointers::ThreadPointers;
pub(crate) use crate::tls::surplus::Surplus;

/// What lies above every stack of a runtime, and how the goroutines' blocks are found in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// From a stack's `hi` to the thread pointer of its block; 0: goroutines share their thread's
    /// thread-locals.
    pub(crate) above: usize,
    /// From a stack's `hi` to the end of its block.
    pub(crate) total: usize,
    /// The alignment of thread pointers.
    pub(crate) align: usize,
    /// Where malloc's words lie, from the thread pointer.
    words: [isize; 2],
    /// Whether goroutines share malloc's words with the M.
    shares_malloc: bool,
    /// The owner of libc's surplus.
    pub(crate) surplus: Surplus,
}

impl Room {
    /// Nothing above the stacks: goroutines use the thread-locals of their thread.
    pub(crate) const SHARED: Room = Room {
        above: 0,
        total: 0,
        align: 64,
        words: [0; 2],
        shares_malloc: false,
        surplus: Surplus::Wanted,
    };

    /// Room for thread-locals of a goroutine's own, if that is possible here. `install` is called
    /// once, when libc's blocks are known: it replaces the functions of libc that treat all threads
    /// alike and do not know goroutines. `keeps_surplus`: see [`Surplus::Wanted`]; the first call
    /// of the process decides. In user context.
    pub(crate) fn own(
        keeps_surplus: bool,
        install: fn() -> Result<(), Reason>,
    ) -> io::Result<Room> {
        match glibc::support(keeps_surplus, install) {
            Ok(glibc) => Ok(glibc.room()),
            Err(reason @ (glibc::NO_THREAD | glibc::NO_MEMORY)) => {
                Err(io::Error::new(io::ErrorKind::OutOfMemory, reason))
            }
            Err(reason) => Err(io::Error::new(io::ErrorKind::Unsupported, refusal(reason))),
        }
    }

    /// Where the stack of a block outside the arena would end: at or above `start`, so that the
    /// thread pointer is aligned. The block needs `total` and at most `align` bytes from `start`.
    fn fit(&self, start: usize) -> usize {
        (start + self.above).next_multiple_of(self.align) - self.above
    }

    /// Whether goroutines have their own thread-locals.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.above != 0
    }

    /// The thread pointer on which a goroutine continues whose stack ends at `hi`.
    #[inline]
    pub(crate) fn tp(&self, thread: &ThreadPointers, hi: usize) -> usize {
        if self.is_own() {
            hi + self.above
        } else {
            thread.own()
        }
    }

    /// The thread pointer on which a goroutine begins on the stack that ends at `hi`: the thread's,
    /// unless the block is made and up to date. Inside the runtime.
    #[inline]
    pub(crate) fn first_tp(&self, thread: &ThreadPointers, hi: usize) -> usize {
        if self.is_own() && Block::at(hi, self).is_current() {
            hi + self.above
        } else {
            thread.own()
        }
    }

    /// Gives the goroutine that is about to run on `tp` the malloc of its M. On g0.
    #[inline]
    pub(crate) fn lend_malloc(&self, thread: &ThreadPointers, tp: usize) {
        if self.shares_malloc {
            // SAFETY: D6, a whole thread block, whose goroutine is about to run on this thread and
            // runs nowhere else.
            unsafe { write_words(&self.words, tp, thread.malloc()) };
        }
    }

    /// Has the CPU fetch what the goroutine on the stack that ends at `hi` will touch first: its
    /// frame and malloc's words.
    #[inline]
    pub(crate) fn prefetch_frame(&self, sp: usize, hi: usize) {
        for line in 0..4 {
            arch::prefetch(sp + line * 64);
        }
        if self.shares_malloc {
            arch::prefetch(
                hi.wrapping_add(self.above)
                    .wrapping_add_signed(self.words[0]),
            );
        }
    }

    /// Takes malloc's words back from the goroutine that leaves: it may have changed arenas.
    #[inline]
    pub(crate) fn return_malloc(&self, thread: &ThreadPointers) {
        let tp = thread.current();
        if tp == thread.own() && self.is_own() {
            fatal::throw(
                "a wait in code that runs on the thread's own FS: a library's constructor?",
            );
        }
        if self.shares_malloc {
            // SAFETY: D6, the record shows the block that this thread is on.
            let words = unsafe { read_words(&self.words, tp) };
            if words != thread.malloc() {
                self.keep_malloc(thread, words);
            }
        }
    }

    #[cold]
    fn keep_malloc(&self, thread: &ThreadPointers, words: [usize; 2]) {
        thread.set_malloc(words);
        // SAFETY: D6, libc's block of this thread, which no goroutine uses; the caller is on the
        // thread.
        unsafe { write_words(&self.words, thread.own(), words) };
    }

    /// The goroutine has used malloc on the thread's own block, and continues with the words that
    /// this left.
    #[inline]
    pub(crate) fn take_over_malloc(&self, thread: &ThreadPointers) {
        let before = thread.malloc();
        self.note_malloc(thread);
        if thread.malloc() != before {
            self.lend_malloc(thread, thread.current());
        }
    }

    /// The thread has used malloc on its own block, and may have changed arenas. On the thread.
    #[inline]
    pub(crate) fn note_malloc(&self, thread: &ThreadPointers) {
        if self.shares_malloc {
            // SAFETY: D6, libc's block of this thread; the caller is on the thread.
            let words = unsafe { read_words(&self.words, thread.own()) };
            thread.set_malloc(words);
        }
    }
}

/// # Safety
/// `tp` is a whole thread block that this thread may read.
#[inline]
unsafe fn read_words(words: &[isize; 2], tp: usize) -> [usize; 2] {
    // SAFETY: the words lie in a whole block that this thread may read, as the caller promises.
    words.map(|word| unsafe { *(tp.wrapping_add_signed(word) as *const usize) })
}

/// # Safety
/// `tp` is a whole thread block that this thread alone uses.
#[inline]
unsafe fn write_words(words: &[isize; 2], tp: usize, values: [usize; 2]) {
    for (word, value) in words.iter().zip(values) {
        // SAFETY: the words lie in a whole block that this thread alone uses, as the caller
        // promises. Each value came from such a word, so malloc works with it.
        unsafe { *(tp.wrapping_add_signed(*word) as *mut usize) = value };
    }
}

fn refusal(reason: &str) -> String {
    format!(
        "goroutines cannot have their own thread-locals here: {reason}. To let them use those of the thread they run on, \
         build the runtime with gosched::Runtime::builder() and `unsafe {{ builder.shared_thread_locals() }}`, \
         whose documentation says what the program may then not do"
    )
}

/// Sets up the thread's malloc, so that the words exist which goroutines with their own
/// thread-locals borrow. On the thread itself, in user context.
pub(crate) fn prepare_thread() {
    // SAFETY: allocates and frees. The compiler knows both functions and would otherwise remove the
    // calls.
    unsafe { libc::free(std::hint::black_box(libc::malloc(16))) };
}

/// Makes the block above the stack `[lo, hi)` for the goroutine that begins on it, or brings an
/// older one up to date with the loaded libraries. Returns its thread pointer. `take_spare` enters
/// the runtime and takes what an old block has left. By the goroutine of this stack, in user
/// context, on the thread's own block.
pub(crate) fn make_block(
    lo: usize,
    hi: usize,
    room: &Room,
    take_spare: impl Fn() -> Spare,
) -> usize {
    let block = Block::at(hi, room);
    block.make(lo, &take_spare);
    block.tp()
}

/// Changes the thread pointer to `tp`, and gives that block the thread's malloc. Inside the
/// runtime: between the change and its record the door is shut, so no signal may lead into or out
/// of the runtime.
///
/// # Safety
/// `tp` is a complete block, of the goroutine that calls this. No thread-local is in use.
pub(crate) unsafe fn move_to(tp: usize, thread: &ThreadPointers, room: &Room) {
    room.note_malloc(thread);
    room.lend_malloc(thread, tp);
    // SAFETY: D6, the caller names its own complete block and uses no thread-local.
    unsafe { arch::set_thread_pointer(tp, thread.record()) };
}

/// Whether the goroutine on the stack that ends at `hi` has left anything in its block.
#[inline]
pub(crate) fn is_block_touched(hi: usize, room: &Room) -> bool {
    room.is_own() && Block::at(hi, room).is_touched()
}

/// Runs the destructors of the goroutine's thread-locals and pthread keys, and makes the block
/// above its stack as new. By the goroutine itself, in user context.
pub(crate) fn finish_block(hi: usize, room: &Room) {
    Block::at(hi, room).finish(room.shares_malloc.then_some(&room.words));
}

/// Calls `f` on another thread pointer. `record` is updated, as long as `f` runs.
pub(crate) fn call_on_tp<R, F: FnOnce() -> R>(tp: usize, record: *const AtomicUsize, f: F) -> R {
    call_once(f, |callback, data| {
        // SAFETY: D6, the caller names a whole block that only this thread uses; a callback cannot
        // unwind (extern "C").
        unsafe { arch::call_with_thread_pointer(tp, record, callback, data) };
    })
}

/// Keeps what the block owns for another block: the stack that ends at `hi` is free and about to
/// lose its memory. Inside the runtime.
pub(crate) fn salvage(hi: usize, room: &Room) {
    if room.is_own() {
        Block::at(hi, room).salvage();
    }
}

/// The thread pointer of the block above the stack that ends at `hi`, if there is a block.
pub(crate) fn block_above(hi: usize, room: &Room) -> Option<usize> {
    Block::at(hi, room).is_made().then_some(hi + room.above)
}
