//! What every floor uses and what knows no goroutine: the runtime's own lock, the word that a
//! thread sleeps on, fatal errors.
//!
//! The scheduler may use no lock of std and no malloc (D9). This folder has the replacements.

pub(crate) mod arc_cell;
pub(crate) mod chaos;
pub(crate) mod closure;
pub(crate) mod fatal;
pub(crate) mod lock;
pub(crate) mod note;
pub(crate) mod once_box;
pub(crate) mod real_thread;
pub(crate) mod signals;
pub(crate) mod static_ref;
pub(crate) mod this_m;
pub(crate) mod upcall;
