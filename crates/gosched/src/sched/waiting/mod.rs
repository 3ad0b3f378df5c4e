//! How a goroutine waits for another one: wait queues, wait words, deadlines.
//!
//! Channels, locks, joins and sockets are built on this room.

pub(crate) mod owner;
pub(crate) mod sema;
pub(crate) mod semaphore;
pub(crate) mod semaphore_word;
pub(crate) mod timed;
