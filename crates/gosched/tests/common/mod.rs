//! Helpers of the integration tests, one module per topic.
//!
//! | module | for |
//! |---|---|
//! | [`child`] | a test that runs its body in a process of its own |
//! | [`waiting`] | limits of time, and waiting until a condition holds |
//! | [`process`] | this process as the kernel sees it: threads, memory, files, CPU time, limits |
//! | [`runtimes`] | runtimes with n Ps, checks after they have run, panics, deep stacks |
//! | [`goroutines`] | goroutines with names, and finding them in a dump |
//! | [`rounds`] | random rounds with a seed, planned panics |
//! | [`counting`] | counts of allocations and of values that are alive |
//!
//! Helpers of one topic only (sockets, signals, hogs) are in the module of its tests.

#![allow(dead_code, unused_imports)] // every test binary uses some of it

mod child;
mod counting;
mod goroutines;
mod process;
mod rounds;
mod runtimes;
mod waiting;

pub use child::*;
pub use counting::*;
pub use goroutines::*;
pub use process::*;
pub use rounds::*;
pub use runtimes::*;
pub use waiting::*;
