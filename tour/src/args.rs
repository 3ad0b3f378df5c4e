//! Parses the command line.

use std::ffi::OsString;

use crate::json;
use crate::steps::{STEPS, Step};

/// The task of this run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    /// List the steps.
    List {
        is_json: bool,
    },
    /// Run steps.
    Run(Tour),
}

/// Which steps to show, and how.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tour {
    /// In this order.
    pub(crate) steps: Vec<&'static Step>,
    /// For machines: one JSON object per step, and nothing else.
    pub(crate) is_json: bool,
    /// Everything is smaller and shorter.
    pub(crate) is_quick: bool,
}

const OPTIONS: &[&str] = &["--help", "--json", "--list", "--quick"];
/// With at most this many changes, a name counts as a misspelling of another.
const TYPOS_MAX: usize = 2;

/// Parses the arguments, without the program's name. The error is one message for people.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, String> {
    let mut tour = Tour {
        steps: Vec::new(),
        is_json: false,
        is_quick: false,
    };
    let mut is_list = false;
    for arg in args {
        let arg = arg.to_string_lossy();
        match &*arg {
            "-h" | "--help" => return Ok(Command::Help),
            "--list" => is_list = true,
            "--json" => tour.is_json = true,
            "--quick" => tour.is_quick = true,
            option if option.starts_with('-') => return Err(no_option(option)),
            name => match STEPS.iter().find(|step| step.name == name) {
                Some(step) => tour.steps.push(step),
                None => return Err(no_step(name)),
            },
        }
    }
    if is_list {
        return Ok(Command::List {
            is_json: tour.is_json,
        });
    }
    if tour.steps.is_empty() {
        tour.steps.extend(STEPS);
    }
    Ok(Command::Run(tour))
}

fn no_option(option: &str) -> String {
    let end = near(option, OPTIONS.iter().copied());
    format!("there is no option {option:?}{end}\n\n{}", usage())
}

fn no_step(name: &str) -> String {
    let end = near(name, STEPS.iter().map(|step| step.name));
    format!("there is no step {name:?}{end} The steps:\n{}", list(false))
}

/// The end of the message: a question, if one of the `names` is close.
fn near<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> String {
    let wanted = wanted.to_lowercase();
    let away = |name: &str| match wanted.len() >= 3 && name.starts_with(&wanted) {
        true => 0,
        false => changes(&wanted, name),
    };
    match names.map(|name| (away(name), name)).min() {
        Some((n, name)) if n <= TYPOS_MAX && n < name.len() / 2 => {
            format!("; did you mean {name:?}?")
        }
        _ => ".".into(),
    }
}

/// How many letters must be inserted, removed or replaced, or neighbours swapped, to turn `b` into
/// `a`.
fn changes(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut this = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            this[j] = replaced.min(last[j] + 1).min(this[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                this[j] = this[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, this);
    }
    last[b.len()]
}

/// One line per step.
pub(crate) fn list(is_json: bool) -> String {
    let line = |step: &Step| match is_json {
        true => {
            let fields = [
                ("name", json::string(step.name)),
                ("shows", json::string(step.shows)),
            ];
            format!("{}\n", json::object(fields))
        }
        false => format!("  {:<10} {}\n", step.name, step.shows),
    };
    STEPS.iter().map(line).collect()
}

pub(crate) fn usage() -> String {
    format!(
        "usage: cargo run --release [-- [--quick] [--json] [STEP...]]\n\
         \n\
         Shows what gosched does, with figures measured in this run. Without a STEP\n\
         all steps run, in about 20 seconds:\n\
         \n{}\n\
         --list    list the steps\n\
         --json    for machines: print one JSON object per step and line: name, shows,\n          \
         figures (name, value and unit), notes, failures, seconds and ok\n\
         --quick   smaller and shorter steps, for a look and not for a measurement\n\
         --help    print this text\n\
         \n\
         A terminal shows the figures change. NO_COLOR=1 turns colours off. With\n\
         TERM=dumb, and in a pipe, only the last state of each step is printed.\n\
         \n\
         Exit status: 0 if all steps succeeded, 1 if one failed, 2 for a wrong command\n\
         line.\n",
        list(false)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &[&str]) -> Result<Command, String> {
        parse(args.iter().map(OsString::from))
    }

    fn tour(args: &[&str]) -> Tour {
        match parsed(args) {
            Ok(Command::Run(tour)) => tour,
            other => panic!("{args:?} gave {other:?}"),
        }
    }

    fn names(args: &[&str]) -> Vec<&'static str> {
        tour(args).steps.iter().map(|step| step.name).collect()
    }

    #[test]
    fn nothing_means_every_step() {
        let all: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names(&[]), all);
        assert_eq!(names(&["--quick"]), all);
        assert!(!tour(&[]).is_json && !tour(&[]).is_quick);
    }

    #[test]
    fn steps_run_in_the_order_given() {
        assert_eq!(names(&["hogs"]), ["hogs"]);
        assert_eq!(names(&["http", "hogs", "http"]), ["http", "hogs", "http"]);
    }

    #[test]
    fn options_stand_anywhere() {
        let tour = tour(&["--json", "hogs", "--quick"]);
        assert!(tour.is_json && tour.is_quick);
        assert_eq!(parsed(&["-h"]), Ok(Command::Help));
        assert_eq!(parsed(&["hogs", "--help"]), Ok(Command::Help));
        let list = |is_json| Ok(Command::List { is_json });
        assert_eq!(parsed(&["--list"]), list(false));
        assert_eq!(parsed(&["--list", "--json"]), list(true));
    }

    #[test]
    fn a_near_miss_is_answered_with_a_question() {
        let hint = |arg: &str| {
            let complaint = parsed(&[arg]).unwrap_err();
            let (_, hint) = complaint.split_once("did you mean \"")?;
            hint.split_once('"').map(|(name, _)| name.to_string())
        };
        assert_eq!(hint("stealign").as_deref(), Some("stealing"));
        assert_eq!(hint("HTTP").as_deref(), Some("http"));
        assert_eq!(hint("dead").as_deref(), Some("deadlock"));
        assert_eq!(hint("--lsit").as_deref(), Some("--list"));
        assert_eq!(hint("--JSON").as_deref(), Some("--json"));
        for far in ["dance", "x", "", "-", "--verbose"] {
            assert_eq!(hint(far), None, "{far}");
        }
    }

    #[test]
    fn complaints_help() {
        let complaint = parsed(&["hogs", "dance"]).unwrap_err();
        assert!(complaint.contains("no step \"dance\""), "{complaint}");
        for step in STEPS {
            assert!(complaint.contains(step.name), "{complaint}");
        }
        let complaint = parsed(&["--dance"]).unwrap_err();
        assert!(complaint.contains("no option \"--dance\""), "{complaint}");
        assert!(complaint.contains("usage:"), "{complaint}");
    }

    #[test]
    fn changes_are_counted() {
        assert_eq!(changes("hogs", "hogs"), 0);
        assert_eq!(changes("", "hogs"), 4);
        assert_eq!(changes("hosg", "hogs"), 1);
        assert_eq!(changes("hog", "hogs"), 1);
        assert_eq!(changes("dogs", "hogs"), 1);
    }

    #[test]
    fn names_are_unique_and_help_is_narrow() {
        for (i, step) in STEPS.iter().enumerate() {
            assert!(STEPS[..i].iter().all(|other| other.name != step.name));
        }
        for line in usage().lines() {
            assert!(line.chars().count() < 80, "{line}");
        }
    }
}
