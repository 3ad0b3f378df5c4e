//! Counts allocations and values that are alive.
//!
//! A test that asserts on the counts of the allocator runs in a child process: other tests of the
//! same process allocate too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize};

/// The system's allocator with counts. A test binary that needs the counts declares it as its
/// `#[global_allocator]`.
pub struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicIsize = AtomicIsize::new(0);

/// The next allocation asks for the current thread, as an allocator with a profile by thread does.
pub static ASKS_FOR_THE_THREAD: AtomicBool = AtomicBool::new(false);

// SAFETY: every call goes to the system's allocator unchanged; the counters and the question for
// the thread touch none of the caller's memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        if ASKS_FOR_THE_THREAD.load(Relaxed) && ASKS_FOR_THE_THREAD.swap(false, SeqCst) {
            drop(gosched::thread::current());
        }
        BYTES.fetch_add(layout.size() as isize, Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, which is that of `System`
        // as well.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as isize, Relaxed);
        // SAFETY: the block came from `System.alloc` above, with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}

/// How many blocks this process has allocated so far.
pub fn allocations() -> usize {
    ALLOCATIONS.load(SeqCst)
}

/// How many bytes are allocated now.
pub fn allocated_bytes() -> isize {
    BYTES.load(SeqCst)
}

/// A value that counts how many of its kind are alive.
pub struct Alive(Arc<AtomicUsize>);

impl Alive {
    pub fn new(count: &Arc<AtomicUsize>) -> Alive {
        count.fetch_add(1, SeqCst);
        Alive(Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}
