//! The monitor: takes Ps from goroutines that block or compute too long.
//!
//! It is a floor of its own: the scheduler below decides which goroutine runs next. This floor
//! decides which goroutine loses its P.

pub(crate) mod bound;
pub(crate) mod preempt;
pub(crate) mod retake;
pub(crate) mod stray;
pub(crate) mod sysmon;
