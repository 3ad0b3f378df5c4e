//! The contract as a program sees it, and the life of goroutines and runtimes.
//!
//! | module | clauses and topics |
//! |---|---|
//! | `g`, `m`, `p`, `queues`, `procedures`, `u` | the clauses of `docs/contract.md`, by their ids |
//! | `blocking` | goroutines that block their thread, in `gosched::blocking` or without it |
//! | `lifecycle` | runtimes: several at once, dropped in every state, shut down |
//!
//! A binary of its own because: CI runs it in shared mode as well. Tests that need a process of
//! their own are children.

mod blocking;
#[path = "../common/mod.rs"]
mod common;
mod g;
mod lifecycle;
mod m;
mod p;
mod procedures;
mod queues;
mod u;
