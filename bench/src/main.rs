//! The benchmark: runs the workloads that the command line names, and prints one line per figure.
//!
//! It measures what gosched's operations cost, and compares them with other runtimes.
//!
//! A *workload* is a fixed amount of work with a name. A *port* is that work on one runtime, or on
//! one mode of a runtime. A *round* is the work done once. A *figure* is the result of all rounds
//! together. A line is `workload runtime metric value unit`. `compare` compares gosched with other
//! runtimes and prints tables; `growth` measures costs as the work grows; `hooks` counts the system
//! calls of code with hooks.
//!
//! Exit status: 0 if every figure was printed, 1 if a workload failed, 2 for a wrong command line.

mod args;
mod blocks;
mod chans;
mod chart;
mod child;
mod client;
mod compare;
mod crowds;
mod existing;
mod files;
mod golang;
mod growth;
mod hogs;
mod hooks;
mod instructions;
mod json;
mod limits;
mod locks;
mod mallocs;
mod numbers;
mod parked;
mod port;
mod proc;
mod progress;
mod rounds;
mod selects;
mod servers;
mod sleeps;
mod spawns;
mod submits;
mod turns;
mod wakes;
mod workload;
mod world;
mod yields;

use std::io::{self, Write};
use std::process::ExitCode;

use args::{Command, Options};
use workload::Workload;

fn main() -> ExitCode {
    let result = match args::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => print(&args::usage()),
        Ok(Command::List) => print(&workload::list()),
        Ok(Command::Run(chosen, options)) => {
            limits::raise_files();
            run_all(&chosen, &options)
        }
        Ok(Command::Compare(options)) => {
            limits::raise_files();
            compare::run(&options)
        }
        Ok(Command::Growth(out, is_quick, only)) => growth::run(out.as_deref(), is_quick, &only),
        Ok(Command::Hooks(procs)) => {
            limits::raise_files();
            hooks::run(procs)
        }
        Ok(Command::Instructions(must_write)) => instructions::run(must_write),
        Ok(Command::Counted(words)) => instructions::child(&words),
        Ok(Command::Child(role, params, mode)) => role(&params, mode),
        Ok(Command::Round(part)) => compare::round::play(&part),
        Ok(Command::Point(arguments)) => growth::point(&arguments),
        Err(complaint) => {
            complain(&format!("gosched-bench: {complaint}"));
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the pipe has left (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            complain(&format!("gosched-bench: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Runs every chosen workload. If one fails the others still run, but the whole run fails.
fn run_all(chosen: &[&Workload], options: &Options) -> io::Result<()> {
    let mut failed = Vec::new();
    for workload in chosen {
        let outcome = turns::play(workload, &options.params_for(workload));
        outcome.lines.iter().try_for_each(|line| print(line))?;
        for (runtime, error) in &outcome.failures {
            complain(&format!("{} {runtime}: {error}", workload.name));
            failed.push(format!("{} {runtime}", workload.name));
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!("failed: {}", failed.join(", "))))
}

/// Prints a line to standard error and ignores errors.
///
/// Never inlined: goroutines that share their thread's thread-locals call it.
#[inline(never)]
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints whole lines, and returns an error for a closed pipe instead of panicking.
///
/// Never inlined: goroutines that share their thread's thread-locals call it.
#[inline(never)]
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
