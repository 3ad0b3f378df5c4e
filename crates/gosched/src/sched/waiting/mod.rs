//! How a goroutine waits for another one: wait queues, wait words, deadlines.
//!
//! Channels, locks, joins and sockets are built on this room.

pub(crate) mod timed;
