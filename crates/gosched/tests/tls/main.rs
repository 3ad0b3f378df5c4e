//! Goroutines have their own thread-locals (D6): what safe Rust, std and C may rely on, under migration.
//!
//! `table` has the cases for which shared thread-locals are unsafe, in both modes; the others show what works under own
//! ones: values from their first use to their destructors (`initial`, `destructors`), std (`std_inside`, `panics`), libc
//! (`libc_inside`, `keys`), threads and processes started inside goroutines (`threads`, `processes`), libraries loaded late
//! (`libraries`), what the runtime does meanwhile (`runtime`), signals, memory, and what a debugger sees.

#[path = "../common/mod.rs"]
mod common;
mod destructors;
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
