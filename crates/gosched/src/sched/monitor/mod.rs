//! Who loses its P: the monitor, blocking calls, preemption.

pub(crate) mod bound;
pub(crate) mod nap;
pub(crate) mod p_sample;
pub(crate) mod preempt;
pub(crate) mod retake;
pub(crate) mod room;
pub(crate) mod self_unwind;
pub(crate) mod stray;
pub(crate) mod syscall;
pub(crate) mod sysmon;
