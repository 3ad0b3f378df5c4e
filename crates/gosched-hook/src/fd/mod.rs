//! How a goroutine waits for a descriptor of the program.
//!
//! No descriptor is made non-blocking for good: O_NONBLOCK belongs to the open file, which other
//! processes may share. So each family tries its call in a way that does not wait, and if it would
//! wait, the goroutine waits here:
//!
//! ```text
//!  ticket ← the count of events        (hook::Descriptor)
//!  try: the call, in a form that returns EAGAIN
//!  EAGAIN: does the user want that?    (settings: O_NONBLOCK, timeouts)
//!  wait for an event after the ticket; try again
//! ```
//!
//! What is known of a descriptor number is in its [`entry::Entry`]. Not every close is seen: libc's
//! `fclose` closes inside. So an entry is *seen* only if a hooked function has opened the number,
//! and no hooked function has closed it since. For other numbers every wait registers the
//! descriptor anew and asks for its settings anew. A long wait on a seen number registers it anew
//! once, after [`wait::RECHECK`] or more. So a close that was not seen delays a goroutine and never
//! hangs it.

mod entry;
mod handler;
mod process;
mod settings;
mod wait;

pub(crate) use entry::{
    Kind, closed, closed_range, closing, closing_range, duplicated, entry, existing, opened,
};
pub(crate) use settings::forget_settings;
pub(crate) use wait::{
    Stop, Wait, answer, attempt, has_error, has_failed, is_ready_now, last_look,
};
