//! How a goroutine waits for another one: wait queues, wait words, deadlines.
//!
//! Channels, locks, joins and sockets are built on this room.

pub(crate) mod futex;
pub(crate) mod futex_counts;
pub(crate) mod futex_late;
pub(crate) mod handle;
pub(crate) mod on;
pub(crate) mod owner;
pub(crate) mod pinned;
pub(crate) mod sema;
pub(crate) mod semaphore;
pub(crate) mod semaphore_word;
pub(crate) mod sleeper;
pub(crate) mod timed;
pub(crate) mod wait_ops;
pub(crate) mod wait_slot;
pub(crate) mod wait_word;
pub(crate) mod waitq;
pub(crate) mod wakelist;
