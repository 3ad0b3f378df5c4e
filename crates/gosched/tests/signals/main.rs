//! Signals arrive in channels, and whatever was there before goes on or comes back.
//!
//! What a signal does is the whole process's matter, so each test is a process of its own.

#[path = "../common/mod.rs"]
mod common;

mod actions;
mod arrival;
mod runtime;
mod tools;
