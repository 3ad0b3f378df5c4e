//! What makes goroutines ready besides other goroutines: timers and the network.

pub(crate) mod heap;
pub(crate) mod netpoll;
pub(crate) mod poll_net;
pub(crate) mod poller;
pub(crate) mod timer_spawn;
pub(crate) mod timers;
