//! Programs that must die, requests that are refused, deadlocks that are none, and the advice in
//! error texts.
//!
//! A binary of its own because: nearly every test starts children that die, have limits, or forbid
//! system calls. They start sooner from a small binary.

#[path = "../common/mod.rs"]
mod common;
mod die;
mod errors;
mod hints;
mod kernels;
mod no_false_deadlock;
mod refused;
