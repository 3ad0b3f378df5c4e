//! Decides what the command line asks for.

use crate::steps::{STEPS, Step};

/// What a run of the tour is to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// Print how it is used.
    Help,
    /// Name the steps.
    List,
    /// Run these steps in this order.
    Run(Vec<&'static Step>),
}

/// Reads the arguments, without the program's name; an error is one complaint for people.
pub(crate) fn parse(args: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut chosen = Vec::new();
    for arg in args {
        match arg.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            "--list" => return Ok(Command::List),
            option if option.starts_with('-') => {
                return Err(format!("there is no option {option}\n\n{}", usage()));
            }
            name => match STEPS.iter().find(|step| step.name == name) {
                Some(step) => chosen.push(step),
                None => return Err(format!("there is no step {name:?}; there are:\n{}", list())),
            },
        }
    }
    if chosen.is_empty() {
        chosen.extend(STEPS);
    }
    Ok(Command::Run(chosen))
}

/// One line per step.
pub(crate) fn list() -> String {
    STEPS
        .iter()
        .map(|step| format!("  {:<10} {}\n", step.name, step.shows))
        .collect()
}

pub(crate) fn usage() -> String {
    format!(
        "usage: cargo run --release [-- STEP... | --list | --help]\n\
         Without a step all of them run, in this order:\n{}",
        list()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Command, String> {
        parse(args.iter().map(|arg| arg.to_string()))
    }

    fn names(args: &[&str]) -> Vec<&'static str> {
        match parsed(args) {
            Ok(Command::Run(steps)) => steps.iter().map(|step| step.name).collect(),
            other => panic!("{args:?} gave {other:?}"),
        }
    }

    #[test]
    fn nothing_means_every_step() {
        assert_eq!(
            names(&[]),
            STEPS.iter().map(|step| step.name).collect::<Vec<_>>()
        );
    }

    #[test]
    fn steps_run_in_the_order_given() {
        assert_eq!(names(&["stack"]), ["stack"]);
        assert_eq!(
            names(&["stack", "hello", "stack"]),
            ["stack", "hello", "stack"]
        );
    }

    #[test]
    fn options_are_known_or_refused() {
        assert_eq!(parsed(&["--list"]), Ok(Command::List));
        assert_eq!(parsed(&["-h"]), Ok(Command::Help));
        assert_eq!(parsed(&["hello", "--help"]), Ok(Command::Help));
        assert!(
            parsed(&["--lsit"])
                .unwrap_err()
                .contains("no option --lsit")
        );
    }

    #[test]
    fn an_unknown_step_is_answered_with_the_list() {
        let complaint = parsed(&["hello", "dance"]).unwrap_err();
        assert!(complaint.contains("no step \"dance\""), "{complaint}");
        for step in STEPS {
            assert!(complaint.contains(step.name), "{complaint}");
        }
    }

    #[test]
    fn names_are_unique() {
        for (i, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..i].iter().all(|other| other.name != step.name));
        }
    }
}
