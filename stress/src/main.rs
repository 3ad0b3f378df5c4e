//! A stress test of all of gosched at once, at random, for any length of time.
//!
//! It looks for bugs that no single test provokes. Every goroutine, value, file and thread is
//! accounted for.
//!
//! ```text
//!  gosched-stress ──► worker: rounds of one kind ──► round: runtimes, mixes, an ending, checks
//!     (supervises,        (a process of its own:
//!      adds up)            it may crash or hang)
//! ```
//!
//! See the README beside this crate.

mod args;
mod env;
mod ledger;
mod mixes;
mod plan;
mod report;
mod rng;
mod round;
mod supervise;
mod system;
mod watch;
mod work;

use std::process::ExitCode;

use crate::args::{Args, Task};

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(text) => {
            eprintln!("gosched-stress: {text}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match args.task {
        Task::Help => {
            println!("{}", args::USAGE);
            ExitCode::SUCCESS
        }
        Task::List => {
            for mix in mixes::ALL {
                println!("{:<10} {}", mix.name, mix.what);
            }
            ExitCode::SUCCESS
        }
        Task::Work { run, first, count } => work::rounds(&args, run, first, count),
        Task::WorkOne { seed } => work::one(&args, seed),
        Task::Run { minutes, seed } => supervise::run(&args, minutes, seed),
        Task::Repeat { seed } => supervise::repeat(&args, seed),
    }
}
