//! The peers: runs one workload on one of the runtimes that gosched is compared with, in that
//! runtime's own idiom.
//!
//! It is a program of its own, so that nothing of gosched is linked.
//!
//! `gosched-peers RUNTIME WORKLOAD N PROCS` is driven through its standard input and output (see
//! `protocol`).
//!
//! There are two styles, each with code of its own for all workloads: `tasks` for runtimes of
//! futures, `threads` for runtimes that look like threads. A runtime is an implementation of the
//! style's trait.

mod common;
mod hogs;
mod http;
mod may_coroutines;
mod protocol;
mod requests;
mod smol_tasks;
mod std_threads;
mod tasks;
mod threads;
mod tokio_tasks;

use std::process::ExitCode;

use common::{Offer, Params};

fn main() -> ExitCode {
    protocol::play("gosched-peers", offer)
}

/// The runtime's answer to a workload.
fn offer(runtime: &str, workload: &str, params: Params) -> Result<Offer, String> {
    match runtime {
        "tokio" => tasks::offer::<tokio_tasks::Tokio>(workload, params),
        "smol" => tasks::offer::<smol_tasks::Smol>(workload, params),
        "may" => threads::offer::<may_coroutines::May>(workload, params),
        "std" => threads::offer::<std_threads::Std>(workload, params),
        _ => Err(format!("no runtime is called `{runtime}`")),
    }
}
