//! The runtime as a whole: which runtimes there are, deadlocks, forks, the drop of a runtime.
//!
//! These are rare events in the life of a runtime, so they stand apart from the scheduler's loop.

pub(crate) mod deadlock;
pub(crate) mod forked;
pub(crate) mod registry;
pub(crate) mod teardown;
