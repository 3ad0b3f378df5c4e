//! What every room uses and what knows no goroutine: the runtime's own lock, the word a thread sleeps on, fatal errors.
//!
//! The scheduler may use no lock of std and no malloc (D9). This room has what it uses instead.

pub(crate) mod chaos;
pub(crate) mod fatal;
pub(crate) mod lock;
pub(crate) mod note;
pub(crate) mod upcall;
