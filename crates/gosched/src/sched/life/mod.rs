//! The runtime as a whole: its settings and threads, deadlocks, forks, overflows, the drop of a
//! runtime.
//!
//! These events are rare, so they are apart from the scheduler's loop.

pub(crate) mod config;
pub(crate) mod deadlock;
pub(crate) mod forked;
pub(crate) mod m_answers;
pub(crate) mod overflow;
pub(crate) mod p_list;
pub(crate) mod registry;
pub(crate) mod shrink;
pub(crate) mod teardown;
pub(crate) mod thread_locals;
pub(crate) mod threads;
pub(crate) mod world;
