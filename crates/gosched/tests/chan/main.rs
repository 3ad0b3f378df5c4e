//! Channels and select, used by goroutines, plain threads, and goroutines of another runtime.
//!
//! | module | topic |
//! |---|---|
//! | `api`, `select_macro` | errors, iterators, sizes, traits; every form of `select!` |
//! | `golang`, `selects` | Go's rules for channels and for select |
//! | `found` | cases that were found by thinking about which operations can meet |
//! | `u10` | what is visible after a channel operation |
//! | `memory` | memory that is left behind |
//! | `linear` | how the time grows with the number of waiters |
//! | `sizes` | the memory of a channel, a timer, a context and a select |
//! | `runtime` | waiters of a runtime that ends |
//! | `not_send` | where values are dropped that must not change threads |
//! | `stress`, `traffic` | all of it at random |
//!
//! A binary of its own because: it counts allocations (`memory`, `sizes`), so it replaces the
//! allocator.

mod api;
#[path = "../common/mod.rs"]
mod common;
mod found;
mod golang;
mod linear;
mod memory;
mod not_send;
mod runtime;
mod select_macro;
mod selects;
mod sizes;
mod stress;
mod traffic;
mod u10;

use std::time::{Duration, Instant};

use crate::common::{LONG, ms, run, runtime, until_waiting, until_waiting_in, waiting_for, within};
use gosched::chan::{Sender, TrySendError};
use gosched::{Handle, Runtime, thread};

/// The wait reasons of channels.
const CHAN_REASONS: [&str; 3] = ["chan receive", "chan send", "select"];

#[global_allocator]
static ALLOCATOR: common::Counting = common::Counting;

/// Whether exactly `n` goroutines of a runtime wait and none does anything else.
fn all_wait(runtime: &Runtime, n: usize) -> bool {
    let dump = runtime.dump();
    let mut all = dump.goroutines().iter();
    all.len() == n && all.all(|g| g.state() == "waiting")
}

/// Sends on a channel without capacity when a receiver waits in its queue. A receiver never finds
/// this sender waiting: the message always goes to a receiver that has queued itself.
fn send_to_a_waiter<T>(s: &Sender<T>, mut msg: T) {
    while let Err(err) = s.try_send(msg) {
        assert!(matches!(err, TrySendError::Full(_)), "the channel ended");
        msg = err.into_inner();
        thread::yield_now();
    }
}
