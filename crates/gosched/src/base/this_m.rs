//! Questions that the floors below the scheduler ask about this thread's M.
//!
//! The lock checks its ranks against the ranks that the M holds. A fatal error must be inside the
//! runtime, and so must code that takes such a lock in user context. The M is on a floor above, so
//! the scheduler supplies the answers as a table of functions. It sets the table before its first M
//! begins; until then no thread is an M. This is one of the callbacks that ARCHITECTURE.md lists.

use std::ptr::NonNull;
use std::sync::atomic::AtomicPtr;
#[cfg(debug_assertions)]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

/// The address of an M, for code that cannot name the type.
pub(crate) type AnyM = NonNull<()>;

/// The table of functions that the scheduler supplies.
pub(crate) struct Answers {
    /// Enters the runtime. Returns this thread's M at that moment. None: this thread is no M.
    pub(crate) enter: fn() -> Option<AnyM>,
    /// Leaves the runtime. The argument is the value that `enter` returned, and this thread is
    /// still that M.
    pub(crate) leave: unsafe fn(AnyM),
    /// The lock state of this thread's M. None: this thread is no M.
    #[cfg(debug_assertions)]
    pub(crate) locks: fn() -> Option<Locks>,
}

/// An M's state that the internal locks check.
#[cfg(debug_assertions)]
pub(crate) struct Locks {
    /// The ranks that the M holds. Ms are never freed.
    pub(crate) held: &'static AtomicU32,
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
pub(crate) struct InRuntime(Option<(AnyM, unsafe fn(AnyM))>);

/// Enters the runtime. On a thread that is no M it does nothing; in the child of a fork it panics.
pub(crate) fn enter() -> InRuntime {
    InRuntime(answers().and_then(|answers| Some(((answers.enter)()?, answers.leave))))
}

impl Drop for InRuntime {
    fn drop(&mut self) {
        if let Some((m, leave)) = self.0 {
            // SAFETY: `enter` returned this M to this thread, and no switch came between.
            unsafe { leave(m) };
        }
    }
}

/// The lock state of this thread's M. None: this thread is no M.
#[cfg(debug_assertions)]
pub(crate) fn locks() -> Option<Locks> {
    answers().and_then(|answers| (answers.locks)())
}
