//! The public modules apart from channels: locks, sockets, timers, contexts, signals, futures,
//! macros, the current thread, and the examples.
//!
//! `builds` runs the compiler on programs that must build or must not, `soundness` and `sizes`
//! compare types with std's.
//!
//! A binary of its own because: it counts allocations (`contexts`, `futures`), so it replaces the
//! allocator. Tests that assert on these counts, or that need a process of their own for another
//! reason, are children.

mod builds;
mod clock;
#[path = "../common/mod.rs"]
mod common;
mod contexts;
mod current;
mod examples;
mod futures;
mod io;
mod macros;
mod net;
mod process;
mod signals;
mod sizes;
mod soundness;
mod sync;
mod time;

#[global_allocator]
static ALLOCATOR: common::Counting = common::Counting;
