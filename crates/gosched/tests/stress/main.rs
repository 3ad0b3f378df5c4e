//! Random operations by many goroutines, in an order that a seed decides: of the `scheduler`, and
//! of `thread_locals`.
//!
//! A binary of its own because: each round uses all CPUs, and `scripts/stress` runs these tests
//! alone, in many builds.

#[path = "../common/mod.rs"]
mod common;
mod scheduler;
#[cfg(panic = "unwind")] // its goroutines end by panics and by `goexit`
mod thread_locals;
