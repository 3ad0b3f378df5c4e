//! A guided tour of what gosched does: `cargo run --release` at the root of the workspace.
//!
//! It shows newcomers the scheduler's features with figures of their own machine.
//!
//! A *step* shows one feature in a few lines, with figures measured in this run. While a step runs,
//! a terminal shows its *frame*, a few lines that are redrawn in place. A pipe or a file gets only
//! the step's final text. A step *fails* if the feature was not visible; the other steps run
//! nevertheless.
//!
//! Exit status: 0 if every chosen step succeeded, 1 if one failed, 2 for a wrong command line. A
//! reader that leaves early (`| head`) ends the tour with status 0.

mod args;
mod chart;
mod json;
mod machine;
mod screen;
mod stage;
mod steps;
mod text;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Instant;

use args::{Command, Tour};
use screen::{Look, Screen};
use stage::Stage;
use steps::Step;
use text::{Ink, paint};

fn main() -> ExitCode {
    let look = Look::of(|name| std::env::var(name).ok(), io::stdout().is_terminal());
    let mut screen = Screen::new(Box::new(io::stdout()), look);
    let mut is_well = true;
    match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Help) => screen.put(&args::usage()),
        Ok(Command::List { is_json }) => screen.put(&args::list(is_json)),
        Ok(Command::Run(tour)) => is_well = run(&mut screen, &tour),
        Err(complaint) => {
            complain(&complaint);
            return ExitCode::from(2);
        }
    }
    match screen.end() {
        Ok(()) if is_well => ExitCode::SUCCESS,
        // The reader of the pipe has left.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Prints to stderr and ignores errors.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "gosched-tour: {text}");
}

/// Runs the steps one after the other, each under a heading. Returns whether all succeeded.
fn run(screen: &mut Screen, tour: &Tour) -> bool {
    let start = Instant::now();
    let is_whole = tour.steps.len() > 1 && !tour.is_json;
    if is_whole {
        screen.put(&welcome());
    }
    let mut failed = Vec::new();
    for (i, step) in tour.steps.iter().enumerate() {
        if !tour.is_json {
            screen.put(&heading(i + 1, tour.steps.len(), step));
        }
        if !run_step(screen, tour, step) {
            failed.push(step.name);
        }
        if screen.is_lost() {
            break;
        }
    }
    if is_whole {
        screen.put(&farewell(tour.steps.len(), start, &failed));
    }
    failed.is_empty()
}

fn run_step(screen: &mut Screen, tour: &Tour, step: &Step) -> bool {
    let mut stage = Stage::new(screen, tour);
    let start = Instant::now();
    let result = (step.run)(&mut stage);
    let report = stage.end(result, start.elapsed());
    match tour.is_json {
        true => screen.put(&format!("{}\n", report.to_json(step))),
        false => screen.put("\n"),
    }
    report.failures.is_empty()
}

fn welcome() -> String {
    format!(
        "{}\n\n    \
         A goroutine is a thread that costs next to nothing. A few threads of the\n    \
         system run all goroutines, one for each P (processor). Each P has a queue\n    \
         of goroutines that wait to run. There are as many Ps as CPUs, unless a step\n    \
         has its own number. This machine has {}. Figures are measured live.\n\n",
        paint(Ink::Strong, "gosched: Go's scheduler for Rust. A tour."),
        machine::cpus_in_words(),
    )
}

fn heading(number: usize, of: usize, step: &Step) -> String {
    let place = paint(Ink::Faint, &format!("{number}/{of}"));
    let name = paint(Ink::Strong, step.name);
    format!("{place} {name}: {}\n", step.shows)
}

fn farewell(steps: usize, start: Instant, failed: &[&str]) -> String {
    let took = format!("{steps} steps in {:.1} s", start.elapsed().as_secs_f64());
    let verdict = match failed {
        [] => paint(Ink::Good, "all as expected"),
        names => paint(Ink::Bad, &format!("FAILED: {}", names.join(", "))),
    };
    format!(
        "{took}, {verdict}.\n{}\n",
        paint(
            Ink::Faint,
            "One step again: cargo run --release -- STEP    All options: -- --help"
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use steps::STEPS;

    #[test]
    fn what_stands_around_the_steps_fits_on_80_columns() {
        let mut all = welcome() + &farewell(8, Instant::now(), &[]);
        for step in STEPS {
            all += &heading(STEPS.len(), STEPS.len(), step);
        }
        for line in all.lines() {
            assert!(text::width(line) < 80, "{line}");
        }
    }

    #[test]
    fn the_end_names_what_failed() {
        let end = farewell(3, Instant::now(), &["hogs", "http"]);
        assert!(end.contains("FAILED: hogs, http"), "{end}");
        assert!(!farewell(3, Instant::now(), &[]).contains("FAILED"));
    }
}
