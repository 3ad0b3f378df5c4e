//! Blocking calls: how a goroutine leaves its P behind and comes back, and how many threads calls
//! may hold.

pub(crate) mod lookups;
pub(crate) mod room;
pub(crate) mod starts;
pub(crate) mod syscall;
