//! Functions of libc that the library replaces in the program, because libc treats goroutines'
//! thread blocks wrongly: it does not know them.
//!
//! - `dlopen`, `dlclose` (`dlopen.rs`): a new library's thread-locals must get into every
//!   goroutine's block. Unloading must wait for goroutines.
//! - `setuid` and its kin (`setxid.rs`): libc signals every thread, and the handler must run on the
//!   thread's own block.
//! - `pthread_getattr_np` (`getattr.rs`): a goroutine that asks about itself gets the bounds of its
//!   own stack.
//!
//! `sys/objects.rs` replaces `dl_iterate_phdr`, which concerns no block. The mechanisms are in
//! `tls/`; this folder finds the Ms and runtimes that they apply to.

mod dlopen;
mod getattr;
mod setxid;

use std::io;

#[cfg(test)]
pub(crate) use self::dlopen::wait_for_goroutines;
use crate::tls::{Reason, Room};

/// Room for thread-locals of a goroutine's own, if that is possible here. `keeps_surplus` leaves
/// libc's surplus to libraries that are loaded later. In user context.
pub(crate) fn own_room(keeps_surplus: bool) -> io::Result<Room> {
    Room::own(keeps_surplus, install)
}

/// Puts the replacements in place; once, after libc has made its first thread.
pub(crate) fn install() -> Result<(), Reason> {
    dlopen::install();
    getattr::install();
    setxid::install()
}
