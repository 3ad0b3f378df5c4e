//! Goroutines that block their thread, inside `gosched::blocking` or without it, do not stop the
//! others.
//!
//! Each event that a goroutine waits for here is caused by another goroutine, most often on the
//! only P. A runtime that lets the waiter keep its P hangs, and the watchdog reports where.

mod found;
mod leaving;
mod marked;
mod no_false_deadlock;
mod permits;
mod unmarked;

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::common::{LONG, compute, ms, run, runtime, wait_for};
use gosched::{Runtime, thread};
