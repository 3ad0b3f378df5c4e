//! Signals arrive in channels, and earlier handlers keep working or are restored.
//!
//! What a signal does is the whole process's matter, so each test is a process of its own.

mod actions;
mod arrival;
mod runtime;
mod tools;
