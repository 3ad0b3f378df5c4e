//! [`On`]: what a waiter waits on, as dumps and the leak check see it.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

/// What a waiter waits on. Dumps and the leak check read it while the waiter is held asleep.
#[derive(Clone, Copy)]
pub(crate) struct On {
    /// The channel, lock or group; 0: none is known, or a select has them.
    pub(crate) object: usize,
    /// The word with the goroutine that holds it (`owner.rs`); null: there is none.
    pub(crate) holder: *const AtomicU64,
    /// The cases of a select. Or the socket and its home of a wait for the network (`netpoll`). Or
    /// the condvar of a waiter that locks its mutex again.
    pub(crate) cases_at: *const c_void,
    /// How many cases. A single operation has one, even on a channel that does not exist (`never`).
    pub(crate) cases: u32,
}

impl On {
    pub(crate) const NOTHING: On = On {
        object: 0,
        holder: ptr::null(),
        cases_at: ptr::null(),
        cases: 0,
    };

    /// The wait on a channel on which nothing ever happens.
    pub(crate) const NEVER: On = On {
        cases: 1,
        ..On::NOTHING
    };
}

/// An [`On`] that any thread may read at any time. The waiter stores it, before it sleeps.
pub(crate) struct OnCell {
    object: AtomicUsize,
    holder: AtomicPtr<AtomicU64>,
    cases_at: AtomicPtr<c_void>,
    cases: AtomicU32,
}

// ORDER: Relaxed; the commit and the Scan bit order the accesses.
impl OnCell {
    pub(super) const fn new(on: On) -> OnCell {
        OnCell {
            object: AtomicUsize::new(on.object),
            holder: AtomicPtr::new(on.holder.cast_mut()),
            cases_at: AtomicPtr::new(on.cases_at.cast_mut()),
            cases: AtomicU32::new(on.cases),
        }
    }

    #[inline]
    pub(crate) fn set(&self, on: On) {
        self.object.store(on.object, Relaxed);
        self.holder.store(on.holder.cast_mut(), Relaxed);
        self.cases_at.store(on.cases_at.cast_mut(), Relaxed);
        self.cases.store(on.cases, Relaxed);
    }

    pub(crate) fn get(&self) -> On {
        On {
            object: self.object.load(Relaxed),
            holder: self.holder.load(Relaxed),
            cases_at: self.cases_at.load(Relaxed),
            cases: self.cases.load(Relaxed),
        }
    }
}
