//! Goroutines have their own thread-locals (D6): what safe Rust, std and C may rely on, also after
//! a goroutine changed threads.
//!
//! | module | topic |
//! |---|---|
//! | `table` | the cases for which shared thread-locals are unsafe, in both modes |
//! | `initial`, `destructors`, `ends` | values from their first use to their destructors; ends of runtimes and libraries |
//! | `std_inside`, `panics` | std |
//! | `libc_inside`, `keys`, `libraries` | libc, pthread keys, libraries that are loaded late |
//! | `threads`, `processes` | threads and processes that goroutines start |
//! | `runtime`, `signals`, `memory`, `gdb` | the runtime meanwhile, signal handlers, memory, what a debugger shows |
//!
//! A binary of its own because: it loads and unloads libraries, which stops every runtime of the
//! process.

#[path = "../common/mod.rs"]
mod common;
mod destructors;
mod ends;
mod gdb;
mod initial;
mod keys;
mod libc_inside;
mod libraries;
mod memory;
mod panics;
mod processes;
mod runtime;
mod signals;
mod std_inside;
mod table;
mod threads;
mod tools;
