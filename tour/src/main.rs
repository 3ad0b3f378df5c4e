//! A guided run through what gosched does: `cargo run --release` at the root of the workspace.
//!
//! Words: a *step* shows one thing, in a few lines, with figures measured while you watch. A step writes
//! plain text without colours or cursor movements, so a pipe or a file gets what a terminal gets.
//!
//! Exit status: 0 when every chosen step ran, 1 when one failed, 2 when the command line makes no sense.

mod args;
mod proc;
mod steps;
mod text;

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Instant;

use args::Command;
use steps::Step;

fn main() -> ExitCode {
    let mut out = io::stdout().lock();
    let result = match args::parse(std::env::args().skip(1)) {
        Ok(Command::Help) => out.write_all(args::usage().as_bytes()),
        Ok(Command::List) => out.write_all(args::list().as_bytes()),
        Ok(Command::Run(steps)) => run(&mut out, &steps),
        Err(complaint) => {
            eprintln!("gosched-tour: {complaint}");
            return ExitCode::from(2);
        }
    };
    match result.and_then(|()| out.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe has seen enough (`| head`).
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gosched-tour: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the steps one after the other, each under a line that says what it shows.
fn run(out: &mut dyn Write, steps: &[&Step]) -> io::Result<()> {
    let start = Instant::now();
    for (i, step) in steps.iter().enumerate() {
        writeln!(
            out,
            "[{}/{}] {}: {}",
            i + 1,
            steps.len(),
            step.name,
            step.shows
        )?;
        out.flush()?;
        (step.run)(out)?;
        writeln!(out)?;
    }
    if steps.len() > 1 {
        writeln!(
            out,
            "{} steps in {:.1} s.",
            steps.len(),
            start.elapsed().as_secs_f64()
        )?;
    }
    Ok(())
}
