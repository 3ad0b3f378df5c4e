//! Threads of the library's own that must be threads.
//!
//! With the hook of `pthread_create`, a thread that a goroutine starts is a goroutine. The threads
//! of the library serve a whole process or must not wait for a P. The mark here keeps the hook off
//! them.

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle};

thread_local! {
    /// How many calls of [`real_threads`] the caller is in. It moves with a goroutine that has its
    /// own thread-locals; only for such goroutines is it read. A goroutine with its thread's
    /// thread-locals may wait inside the call and undo its mark on another thread: the counts wrap.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Undoes the mark, also if the call unwinds.
struct Mark;

impl Drop for Mark {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get().wrapping_sub(1));
    }
}

/// Calls `f`. Threads that it starts are threads.
pub(crate) fn real_threads<R>(f: impl FnOnce() -> R) -> R {
    DEPTH.set(DEPTH.get().wrapping_add(1));
    let _mark = Mark;
    f()
}

/// Whether the caller is inside [`real_threads`].
#[inline]
pub(crate) fn is_wanted() -> bool {
    DEPTH.get() != 0
}

/// Starts a thread of the library.
pub(crate) fn spawn<T: Send + 'static>(
    name: &str,
    f: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    real_threads(|| Builder::new().name(name.into()).spawn(f))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With its thread's thread-locals, a goroutine may undo its mark on another thread.
    #[test]
    fn the_mark_may_be_undone_on_another_thread() {
        real_threads(|| DEPTH.set(0));
        real_threads(|| assert!(!is_wanted()));
        DEPTH.set(0);
    }

    #[test]
    fn the_mark_nests_and_ends_with_a_panic() {
        assert!(!is_wanted());
        let left = std::panic::catch_unwind(|| {
            real_threads(|| {
                real_threads(|| assert!(is_wanted()));
                assert!(is_wanted());
                std::panic::resume_unwind(Box::new(()));
            });
        });
        assert!(left.is_err());
        assert!(!is_wanted());
    }
}
