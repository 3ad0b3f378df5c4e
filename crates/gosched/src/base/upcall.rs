//! A call from a floor to a floor above it.
//!
//! A floor imports only the floors below it. A floor that must call upwards has an `Upcall`, which
//! the upper floor sets. ARCHITECTURE.md lists all of them under "Callbacks".

use std::sync::OnceLock;

/// A function of an upper floor, set once.
pub(crate) struct Upcall<F: Copy + 'static>(OnceLock<F>);

impl<F: Copy + 'static> Upcall<F> {
    pub(crate) const fn new() -> Upcall<F> {
        Upcall(OnceLock::new())
    }

    /// Sets the function; later calls change nothing. In user context.
    pub(crate) fn set(&self, function: F) {
        // All callers set the same function, so it does not matter which one was first.
        let _ = self.0.set(function);
    }

    /// The function, if it is set. CONTEXT: any. This is one load: it takes no lock and allocates
    /// nothing.
    pub(crate) fn get(&self) -> Option<F> {
        self.0.get().copied()
    }
}
