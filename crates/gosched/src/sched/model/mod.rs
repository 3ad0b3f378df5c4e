//! The objects: goroutines, threads, processors, their states and queues. This floor has no policy.

pub(crate) mod asan;
pub(crate) mod current;
pub(crate) mod g;
pub(crate) mod gblock;
pub(crate) mod global_queue;
pub(crate) mod gstatus;
pub(crate) mod m;
pub(crate) mod opens;
pub(crate) mod p;
pub(crate) mod pstatus;
pub(crate) mod ptr;
pub(crate) mod runq;
pub(crate) mod spin;
pub(crate) mod switch;
pub(crate) mod timer;
pub(crate) mod wait_reason;
pub(crate) mod watch;
pub(crate) mod word;
