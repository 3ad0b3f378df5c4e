//! A guided run through what gosched does: `cargo run --release` at the root of the workspace.
//!
//! Words: a *step* shows one thing, in a few lines, with figures measured while you watch. While it runs, a terminal sees its
//! *frame*, a few lines that are drawn anew in place; what it leaves behind at its end is all that a pipe or a file gets. A step
//! *fails* when what it set out to show was not to be seen; the others run nevertheless.
//!
//! Exit status: 0 when every chosen step showed what it should, 1 when one failed, 2 when the command line makes no sense. A
//! reader that leaves early (`| head`) ends the tour, with status 0.

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
        // The reader of a pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// To people, as far as they listen.
fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "gosched-tour: {text}");
}

/// Runs the steps one after the other, each under a line that says what it shows. Whether all of them showed it.
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
         system run them all, one for each P (processor), in whose queue goroutines\n    \
         wait for their turn. There are as many Ps as CPUs, unless a step says\n    \
         otherwise. This machine has {}. All figures are measured as you watch.\n\n",
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
        [] => paint(Ink::Good, "all as it should be"),
        names => paint(Ink::Bad, &format!("FAILED: {}", names.join(", "))),
    };
    format!(
        "{took}, {verdict}.\n{}\n",
        paint(
            Ink::Faint,
            "One of them again: cargo run --release -- STEP    All options: -- --help"
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
