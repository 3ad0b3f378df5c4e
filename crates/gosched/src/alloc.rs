//! A wrapper for allocators that keep a heap per thread.
//!
//! A goroutine has thread-locals of its own (D6), so an allocator that keeps its heap in one makes a heap for every goroutine
//! that allocates. That is correct, and expensive. [`OnThread`] shows such an allocator the thread under the goroutine
//! instead: its calls run on that thread's own thread-locals, on the goroutine's stack.

use std::alloc::{GlobalAlloc, Layout};

use crate::sched::thread_locals::on_thread;

/// A [`#[global_allocator]`](GlobalAlloc) whose inner allocator sees the threads of the program, not its goroutines.
///
/// For allocators with a heap per thread. Without it every goroutine that allocates has such a heap until it ends: with
/// mimalloc that was measured at 85 KB for one size of blocks and 660 KB for ten, with jemalloc at 14 and 70 KB. With it there
/// are as many heaps as threads. Under mimalloc, for example:
///
/// ```text
/// #[global_allocator]
/// static ALLOCATOR: OnThread<MiMalloc> = OnThread::new(MiMalloc);
/// ```
///
/// The default allocator of a program ([`System`](std::alloc::System), glibc's malloc) needs no wrapper: the runtime lets
/// every goroutine use the cache of the thread it is on, at no cost.
///
/// In a goroutine an allocation and its release together take some 70 ns longer. Outside goroutines, and in a runtime built
/// with [`shared_thread_locals`](crate::Builder::shared_thread_locals), calls go straight to the inner allocator.
///
/// The wrapper does not change where memory comes from: what was allocated through it may be freed by the bare allocator
/// and the other way round, in any goroutine and on any thread.
///
/// # Blocking
/// Allocating blocks what the inner allocator blocks, the methods below nothing. A goroutine does not leave its thread inside a call.
///
/// # Examples
/// ```
/// use std::alloc::System;
///
/// use gosched::alloc::OnThread;
///
/// #[global_allocator]
/// static ALLOCATOR: OnThread<System> = OnThread::new(System);
///
/// fn main() {
///     let words = gosched::run(|| {
///         let word = gosched::thread::spawn(|| String::from("goroutine"));
///         vec![word.join().unwrap()]
///     });
///     assert_eq!(words, ["goroutine"]);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OnThread<A>(A);

impl<A> OnThread<A> {
    /// Wraps an allocator.
    ///
    /// ```
    /// use gosched::alloc::OnThread;
    /// use std::alloc::System;
    ///
    /// #[global_allocator]
    /// static ALLOCATOR: OnThread<System> = OnThread::new(System);
    /// # fn main() {}
    /// ```
    #[must_use]
    pub const fn new(inner: A) -> OnThread<A> {
        OnThread(inner)
    }

    /// The inner allocator, for what it offers besides allocating.
    ///
    /// What is called through this runs on the goroutine's own thread-locals.
    ///
    /// ```
    /// use gosched::alloc::OnThread;
    /// use std::alloc::System;
    ///
    /// let allocator = OnThread::new(System);
    /// let inner: &System = allocator.get_ref();
    /// # let _ = inner;
    /// ```
    #[must_use]
    pub const fn get_ref(&self) -> &A {
        &self.0
    }
}

// The allocator has a thread to itself for the whole call: the goroutine cannot leave it meanwhile (D5: it would have to call
// the scheduler), so nothing else runs there, and the thread-locals are those that libc gave the thread (D6), which live as
// long as it does. A goroutine that migrates between two calls is to the allocator memory that went from one thread to
// another, and that every global allocator allows.
// SAFETY: D5, D6, as above; each method passes its arguments to the same method of `A` and the answer back, so what `A` promises
// holds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for OnThread<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: by the caller's promise, which is `A`'s demand; D6 as above.
        on_thread(|| unsafe { self.0.alloc(layout) })
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`; the block came from `A`.
        on_thread(|| unsafe { self.0.dealloc(block, layout) });
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        on_thread(|| unsafe { self.0.alloc_zeroed(layout) })
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: as in `dealloc`.
        on_thread(|| unsafe { self.0.realloc(block, layout, new_size) })
    }
}
