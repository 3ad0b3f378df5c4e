//! Questions that the floors below the scheduler ask about this thread's M.
//!
//! The lock checks its ranks against the ranks that the M holds. A fatal error must be inside the
//! runtime, and so must code that takes such a lock in user context. The M is on a floor above, so
//! the scheduler supplies the answers as a table of functions. It sets the table before its first M
//! begins; until then no thread is an M. This is one of the callbacks that ARCHITECTURE.md lists.

use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The table of functions that the scheduler supplies.
pub(crate) struct Answers {
    /// Enters the runtime. False: this thread is no M.
    pub(crate) enter: fn() -> bool,
    /// Leaves the runtime, after an `enter` that returned true. No switch came between.
    pub(crate) leave: fn(),
    /// The lock state of this thread's M. None: this thread is no M.
    #[cfg(debug_assertions)]
    pub(crate) locks: fn() -> Option<Locks>,
    /// Stores the ranks that this thread's M holds. False: this thread is no M.
    #[cfg(debug_assertions)]
    pub(crate) set_held: fn(u32) -> bool,
}

/// An M's state that the internal locks check.
#[cfg(debug_assertions)]
pub(crate) struct Locks {
    /// The ranks that the M holds.
    pub(crate) held: u32,
    /// Whether the M is inside the runtime.
    pub(crate) is_inside: bool,
}

static ANSWERS: AtomicPtr<Answers> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the table. Called before the first M begins.
pub(crate) fn set(answers: &'static Answers) {
    // ORDER: Release; pairs with the Acquire in `answers`.
    ANSWERS.store(std::ptr::from_ref(answers).cast_mut(), Release);
}

fn answers() -> Option<&'static Answers> {
    // SAFETY: `set` stores only addresses of statics.
    // ORDER: Acquire; pairs with the Release in `set`.
    unsafe { ANSWERS.load(Acquire).as_ref() }
}

/// Proof that this thread is inside the runtime, until dropped. No switch happens meanwhile.
pub(crate) struct InRuntime(Option<fn()>);

/// Enters the runtime. On a thread that is no M it does nothing; in the child of a fork it panics.
pub(crate) fn enter() -> InRuntime {
    InRuntime(answers().and_then(|answers| (answers.enter)().then_some(answers.leave)))
}

impl Drop for InRuntime {
    fn drop(&mut self) {
        if let Some(leave) = self.0 {
            leave();
        }
    }
}

/// The lock state of this thread's M. None: this thread is no M.
#[cfg(debug_assertions)]
pub(crate) fn locks() -> Option<Locks> {
    answers().and_then(|answers| (answers.locks)())
}

/// Stores the ranks that this thread's M holds. False: this thread is no M.
#[cfg(debug_assertions)]
pub(crate) fn set_held(ranks: u32) -> bool {
    answers().is_some_and(|answers| (answers.set_held)(ranks))
}
