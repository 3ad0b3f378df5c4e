//! Event sources: timers and the network, which ready goroutines.
//!
//! The scheduler asks them when it looks for work; they know how to wait for the kernel.

pub(crate) mod netpoll;
pub(crate) mod poll_net;
pub(crate) mod poller;
pub(crate) mod timers;
