//! Time: what sleeps and what wakes it.

pub(crate) mod timers;
