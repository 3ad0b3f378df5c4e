//! What there is: goroutines, threads, processors, their states and queues. No policy.

pub(crate) mod asan;
pub(crate) mod claim;
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
pub(crate) mod sleeper;
pub(crate) mod switch;
pub(crate) mod wait_word;
