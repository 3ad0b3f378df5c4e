//! Unmodified code of std and of crates on goroutines: runs one workload with the hooks of
//! `gosched-hook`.
//!
//! It is a program of its own, because hooks are linked into a whole program: those of other
//! workloads must not have them.
//!
//! `gosched-hooked RUNTIME WORKLOAD N PROCS` speaks the protocol of all contestants (see
//! `protocol`). The code of the workloads is that of the peers, with std's locks, channels and
//! sockets. The runtime `hooked` runs it on goroutines, `std` on plain threads of the same program.
//! `gosched-hooked plain` measures what a hook costs on a plain thread.

use std::process::ExitCode;

#[allow(dead_code, reason = "some of it is for runtimes of futures")]
#[path = "../../peers/src/common.rs"]
mod common;
mod goroutines;
#[allow(dead_code, reason = "some of it is for runtimes of futures")]
#[path = "../../peers/src/hogs.rs"]
mod hogs;
#[allow(dead_code, reason = "some of it is for runtimes of futures")]
#[path = "../../peers/src/http.rs"]
mod http;
mod plain;
#[path = "../../peers/src/protocol.rs"]
mod protocol;
#[path = "../../peers/src/requests.rs"]
mod requests;
#[path = "../../peers/src/std_threads.rs"]
mod std_threads;
#[path = "../../peers/src/threads/mod.rs"]
mod threads;

use common::{Offer, Params};
use goroutines::Goroutines;
use std_threads::Std;

const NAME: &str = "gosched-hooked";

fn main() -> ExitCode {
    if let Err(error) = gosched_hook::install() {
        eprintln!("{NAME}: {error}");
        return ExitCode::FAILURE;
    }
    if std::env::args().skip(1).eq(["plain"]) {
        print!("{}", plain::report());
        return ExitCode::SUCCESS;
    }
    protocol::play(NAME, offer)
}

/// The runtime's answer to a workload.
fn offer(runtime: &str, workload: &str, params: Params) -> Result<Offer, String> {
    match runtime {
        "hooked" => threads::offer::<Goroutines>(workload, params),
        "std" => threads::offer::<Std>(workload, params),
        _ => Err(format!("no runtime is called `{runtime}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOADS: [&str; 4] = ["std_echo", "std_mutex", "std_mpsc", "ureq_4000"];

    #[test]
    fn every_workload_has_figures_on_goroutines() {
        for workload in WORKLOADS {
            let params = Params { n: 20, procs: 2 };
            let Ok(Offer::Rounds(mut round)) = offer("hooked", workload, params) else {
                panic!("{workload} has no rounds");
            };
            for _ in 0..2 {
                let figures = round().unwrap_or_else(|error| panic!("{workload}: {error}"));
                assert!(figures.iter().any(|f| f.line().starts_with("time ")));
            }
        }
    }

    #[test]
    fn an_unknown_workload_is_an_error() {
        let params = Params { n: 1, procs: 1 };
        assert!(offer("hooked", "no_such", params).is_err());
        assert!(offer("go", "std_echo", params).is_err());
    }
}
