//! `gosched::sync`: std's locks, for goroutines and plain threads alike, and the order of service.
//!
//! Each event that is waited for here is caused by another goroutine or thread. A lost wake-up
//! hangs, and the watchdog reports where.

mod api;
mod cancel;
mod condvar;
mod counting;
mod dies;
mod fair;
mod gone;
mod many;
mod mixed;
mod mpsc;
mod once;
mod poison;

use crate::common::{LONG, ms, run, runtime, until_waiting, wait_for};
