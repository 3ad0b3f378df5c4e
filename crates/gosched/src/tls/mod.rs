//! A goroutine's own thread-locals (D6).
//!
//! Rust lets the compiler, std and every library assume that a function goes on running on the thread it began on.
//! A goroutine keeps that promise for them: it has a thread block of its own, in the form libc gives to threads, at the
//! top of its stack, and FS points to it whenever the goroutine runs.
//!
//! ```text
//!  slot    guard │ frames ◄─── sp │ hi                                            ▒ colour
//!          ──────┴────────────────┼────────┬─────────┬──────────────┬─────────────┼──
//!                                 │ header │ surplus │ thread-locals│ thread block│
//!          ───────────────────────┴────────┴─────────┴──────────────┴─────────────┴──
//!                                 ◄────────── above ───────────────► FS: words 0 and 2 point here
//! ```
//!
//! *Surplus* is libc's reserve for libraries loaded later; it stays zero until one takes it.
//!
//! Who is on which FS:
//! ```text
//!  a goroutine                its own, from the switch that brings it in; its first steps on a stack that has no block
//!                             yet (or one from before a library was loaded) are on the thread's, until it has made it
//!  g0 between two goroutines  that of the goroutine which was here last: it touches no thread-local, so the second
//!                             change is saved. The goroutine may already run elsewhere
//!  g0 that searches, or has   the thread's own
//!  no P; everybody else
//! ```
//! A signal handler that interrupts g0 between two goroutines thus sees the thread-locals of that goroutine. They are there: a free
//! stack whose block some M is on does not lose its memory ([`standing`]).
//!
//! A block's life: made by the first goroutine on a fresh stack, in user context, for its dtv comes from malloc. A
//! goroutine that ends compares its block with the pristine image; if it touched nothing, the next one takes the block
//! as it is. Otherwise destructors run, on the goroutine's stack and before its join is answered, and the block is
//! imprinted again. The header says which image a block was made from; none: there is no block.
//!
//! malloc: glibc keeps a cache and an arena for each thread, as two thread-locals. A goroutine uses those of the M it runs
//! on: the words are copied in when it is switched in, and kept when it leaves if it has changed arenas. So a million
//! goroutines do not have a million caches.

mod block;
mod bounds;
mod dlopen_setxid;
mod dtv;
mod glibc;
mod image;
mod modules;
pub(crate) mod scope;
mod selftest;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::arch;
use crate::base::fatal;
use crate::sched::Sched;
use crate::sched::model::current::current_m;
use crate::sched::model::g::ENDING;
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::park::{enter_m, left_switch};
use crate::tls::block::Block;
pub(crate) use crate::tls::dtv::{free_surplus, has_surplus};

/// What lies above every stack of a runtime, and how the goroutines' blocks are found in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// From a stack's `hi` to the FS of its block; 0: goroutines share their thread's thread-locals.
    pub(crate) above: usize,
    /// From a stack's `hi` to the end of its block.
    pub(crate) total: usize,
    /// What the FS must be a multiple of.
    pub(crate) align: usize,
    /// Where malloc's words lie, from FS.
    words: [isize; 2],
    /// Whether they are to be shared with the M.
    shares_malloc: bool,
}

impl Room {
    /// Nothing above the stacks: goroutines use the thread-locals of their thread.
    pub(crate) const SHARED: Room = Room {
        above: 0,
        total: 0,
        align: 64,
        words: [0; 2],
        shares_malloc: false,
    };

    /// Room for thread-locals of a goroutine's own, if that is possible here. In user context.
    pub(crate) fn own() -> io::Result<Room> {
        match glibc::support() {
            Ok(glibc) => Ok(glibc.room()),
            Err(reason @ (glibc::NO_THREAD | glibc::NO_MEMORY)) => {
                Err(io::Error::new(io::ErrorKind::OutOfMemory, reason))
            }
            Err(reason) => Err(io::Error::new(io::ErrorKind::Unsupported, refusal(reason))),
        }
    }

    /// Where the stack of a block outside the arena would end: at least at `start`, so that FS is aligned. It needs `total`
    /// and at most `align` bytes from there.
    fn fit(&self, start: usize) -> usize {
        (start + self.above).next_multiple_of(self.align) - self.above
    }

    /// Whether goroutines have their own.
    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        self.above != 0
    }

    /// The FS on which a goroutine goes on, whose stack ends at `hi`.
    #[inline]
    pub(crate) fn fs(&self, m: Mp, hi: usize) -> usize {
        if self.is_own() {
            hi + self.above
        } else {
            m.own_fs.get()
        }
    }

    /// The FS on which a goroutine begins on the stack that ends at `hi`: the thread's, unless the block is there and up to
    /// date. Inside the runtime.
    #[inline]
    pub(crate) fn first_fs(&self, m: Mp, hi: usize) -> usize {
        if self.is_own() && Block::at(hi, self).is_current() {
            hi + self.above
        } else {
            m.own_fs.get()
        }
    }

    /// Gives the goroutine that is about to run on `fs` the malloc of its M. On g0.
    #[inline]
    pub(crate) fn lend_malloc(&self, m: Mp, fs: usize) {
        if self.shares_malloc {
            // SAFETY: D6, a whole thread block, whose goroutine is about to run on this thread.
            unsafe { write_words(&self.words, fs, m.malloc.get()) };
        }
    }

    /// Has the CPU fetch what running the goroutine on the stack that ends at `hi` will touch first: its frame and malloc's words.
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
    pub(crate) fn return_malloc(&self, m: Mp) {
        let fs = m.fs.load(Relaxed);
        if self.is_own() && fs == m.own_fs.get() {
            fatal::throw(
                "a wait in code that runs on the thread's own FS: a library's constructor?",
            );
        }
        if self.shares_malloc {
            // SAFETY: D6, the block that this thread is on.
            let words = unsafe { read_words(&self.words, fs) };
            if words != m.malloc.get() {
                self.keep_malloc(m, words);
            }
        }
    }

    #[cold]
    fn keep_malloc(&self, m: Mp, words: [usize; 2]) {
        m.malloc.set(words);
        // SAFETY: D6, the thread's own block, on the thread.
        unsafe { write_words(&self.words, m.own_fs.get(), words) };
    }

    /// The goroutine has used malloc on the thread's FS, and goes on with what that left.
    #[inline]
    fn take_over_malloc(&self, m: Mp) {
        let before = m.malloc.get();
        self.note_malloc(m);
        if m.malloc.get() != before {
            self.lend_malloc(m, m.fs.load(Relaxed));
        }
    }

    /// The thread has used malloc on its own FS, and may have changed arenas. On the thread.
    #[inline]
    pub(crate) fn note_malloc(&self, m: Mp) {
        if self.shares_malloc {
            // SAFETY: D6, the thread's own block.
            m.malloc
                .set(unsafe { read_words(&self.words, m.own_fs.get()) });
        }
    }
}

/// # Safety
/// `fs` is a whole thread block that this thread may read.
#[inline]
unsafe fn read_words(words: &[isize; 2], fs: usize) -> [usize; 2] {
    // SAFETY: by the caller's promise.
    words.map(|word| unsafe { *(fs.wrapping_add_signed(word) as *const usize) })
}

/// # Safety
/// `fs` is a whole thread block that this thread alone uses.
#[inline]
unsafe fn write_words(words: &[isize; 2], fs: usize, values: [usize; 2]) {
    for (word, value) in words.iter().zip(values) {
        // SAFETY: by the caller's promise; the words hold what malloc on this thread works with.
        unsafe { *(fs.wrapping_add_signed(*word) as *mut usize) = value };
    }
}

fn refusal(reason: &str) -> String {
    format!(
        "goroutines cannot have their own thread-locals here: {reason}. To let them use those of the thread they run on, \
         build the runtime with gosched::Runtime::builder() and `unsafe {{ builder.shared_thread_locals() }}`, \
         whose documentation says what the program may then not do"
    )
}

/// The thread may be used by goroutines with their own thread-locals from now on: its malloc is set up, so that the words
/// they borrow are there. On the thread itself, in user context.
pub(crate) fn prepare_thread() {
    // SAFETY: allocates and frees; the compiler knows both, and would leave them out.
    unsafe { libc::free(std::hint::black_box(libc::malloc(16))) };
}

/// A goroutine's first step, on its own stack: if it has begun on the thread's FS it makes its block and goes over to it.
/// In user context; nothing before it has touched a thread-local.
#[inline]
pub(crate) fn settle(m: Mp, g: Gp) {
    let room = &m.sched().tls;
    if room.is_own() && m.fs.load(Relaxed) == m.own_fs.get() {
        settle_slow(m, g);
    }
}

/// Whether the door's flag at `at`, from FS, is in every goroutine's block; true where none has a block.
pub(crate) fn has_flag(at: isize) -> bool {
    let image = image::current();
    // SAFETY: D6, images are never freed.
    at < 0 && at % 8 == 0 && (image.is_null() || unsafe { &*image }.has_place(at))
}

#[cold]
#[inline(never)]
fn settle_slow(m: Mp, g: Gp) {
    let room = &m.sched().tls;
    let block = Block::at(g.stack_hi.get(), room);
    block.make(m, g.stack_lo.get());
    // Between FS and its record the door is shut: the runtime must not be left or entered by a signal here.
    let m = enter_m(m);
    room.note_malloc(m);
    room.lend_malloc(m, block.fs());
    // SAFETY: D6, the block is complete and its goroutine is this one; no thread-local is in use here.
    unsafe { arch::set_fs(block.fs(), &m.fs) };
    left_switch(m);
}

/// A goroutine's last step before it is known to have ended: destructors of its thread-locals and pthread keys, and the
/// block is as new. In user context, on its stack. It may wait in a destructor; afterwards it touches no thread-local.
#[inline]
pub(crate) fn end() {
    if let Some(m) = current_m()
        && let Some(g) = m.curg()
    {
        let room = &m.sched().tls;
        if room.is_own() {
            let block = Block::at(g.stack_hi.get(), room);
            if block.is_touched() {
                g.started.store(ENDING, Relaxed);
                block.finish(room.shares_malloc.then_some(&room.words));
            }
        }
    }
}

/// Whether the goroutine that runs here is on the FS it should be on. For assertions.
pub(crate) fn is_home(m: Mp, g: Gp) -> bool {
    m.fs.load(Relaxed) == m.sched().tls.fs(m, g.stack_hi.get())
}

/// Back to the thread's own FS: g0 is about to search, or to be without a P.
#[inline]
pub(crate) fn to_own(m: Mp) {
    let own = m.own_fs.get();
    if m.fs.load(Relaxed) != own {
        // SAFETY: D6, the FS of this thread; g0 has no thread-local in use.
        unsafe { arch::set_fs(own, &m.fs) };
    }
}

/// Runs `f` on the thread's own FS: for what belongs to the thread and not to the goroutine. A plain call on threads
/// outside the runtime. `f` must not wait, and what it knows of thread-locals must not leave it.
#[inline]
pub(crate) fn on_thread<R>(f: impl FnOnce() -> R) -> R {
    match current_m() {
        Some(m) if m.fs.load(Relaxed) != m.own_fs.get() => {
            let out = call_on_fs(m.own_fs.get(), &raw const m.fs, f);
            m.sched().tls.take_over_malloc(m);
            out
        }
        _ => f(),
    }
}

/// Calls `f` on another FS.
fn call_on_fs<R, F: FnOnce() -> R>(fs: usize, record: *const AtomicUsize, f: F) -> R {
    struct Call<F, R> {
        f: Option<F>,
        out: Option<R>,
    }
    unsafe extern "C" fn thunk<F: FnOnce() -> R, R>(data: *mut u8) {
        // SAFETY: `data` is the `Call` below.
        let call = unsafe { &mut *data.cast::<Call<F, R>>() };
        call.out = call.f.take().map(|f| f());
    }
    let mut call = Call {
        f: Some(f),
        out: None,
    };
    // SAFETY: D6, the caller names a whole block that is this thread's to use; `thunk` cannot unwind (extern "C").
    unsafe { arch::call_with_fs(fs, record, thunk::<F, R>, (&raw mut call).cast()) };
    match call.out {
        Some(out) => out,
        None => unreachable!("the call has returned"),
    }
}

/// The stack that ends at `hi` is free and about to lose its memory: what its block owns is kept for another. Inside the
/// runtime.
pub(crate) fn salvage(hi: usize, room: &Room) {
    if room.is_own() {
        Block::at(hi, room).salvage();
    }
}

/// The FS of the block above the stack that ends at `hi`, if there is a block.
pub(crate) fn block_above(hi: usize, room: &Room) -> Option<usize> {
    Block::at(hi, room).is_made().then_some(hi + room.above)
}

/// The FS that Ms with a P are on: g0 stays on that of the goroutine it ran last until it runs another, searches or gives up its
/// P. Each M without a P is on its own FS, or on that of a goroutine that it still has and that has not ended. So a stack that
/// was free before the look and has none of these above it is on no M, and no M comes to it while it is free.
pub(crate) fn standing(sched: &Sched) -> impl Iterator<Item = usize> {
    // ORDER: Acquire; pairs with the Release in `release_p`, which an M passes after it has left the FS. Relaxed for `fs`: the M's
    // store came before its goroutine was last suspended there, and the stack came to the caller through that goroutine's end.
    let ms = sched.procs().filter_map(|p| p.m.load(Acquire));
    ms.map(|m| m.fs.load(Relaxed))
}
