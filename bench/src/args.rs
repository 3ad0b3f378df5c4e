//! Decides what the command line asks for, or says in one sentence why it
//! cannot be understood.
//!
//! Words: an *option* given by the user overrides the default of the workload;
//! a *role* is the part of a workload that runs in a child process (see
//! `child`), reached through the argument `--child`, which is not for users.

use crate::child;
use crate::port::Mode;
use crate::workload::{self, Child, Params, Workload};

/// Processors a workload runs on unless the user or the workload says otherwise.
const PROCS_DEFAULT: usize = 2;

/// What one run of the program does.
pub enum Command {
    /// Print the usage text.
    Help,
    /// Name the workloads.
    List,
    /// Run these workloads.
    Run(Vec<&'static Workload>, Options),
    /// Play a role in a child process.
    Child(Child, Params, Mode),
}

/// What the user chose; `None` leaves the workload's default.
#[derive(Default)]
pub struct Options {
    n: Option<usize>,
    rounds: Option<usize>,
    procs: Option<usize>,
}

impl Options {
    /// The options with the workload's defaults filled in.
    pub fn params_for(&self, workload: &Workload) -> Params {
        Params {
            n: self.n.unwrap_or(workload.n),
            rounds: self.rounds.unwrap_or(workload.rounds),
            procs: self.procs.unwrap_or(PROCS_DEFAULT),
        }
    }
}

/// The text of `help`.
pub fn usage() -> String {
    format!(
        "usage: gosched-bench WORKLOAD [n] [--rounds K] [--procs N]\n\
         \x20      gosched-bench all [--rounds K] [--procs N]\n\
         \x20      gosched-bench list\n\
         \n{}",
        workload::list()
    )
}

/// Reads the arguments after the program's name.
pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut words = Vec::new();
    let mut options = Options::default();
    let mut arguments = arguments.peekable();
    if arguments.next_if(|first| first == child::FLAG).is_some() {
        return child_role(&arguments.collect::<Vec<_>>());
    }
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            "--rounds" => options.rounds = Some(positive("--rounds", arguments.next())?),
            "--procs" => options.procs = Some(positive("--procs", arguments.next())?),
            flag if flag.starts_with('-') => {
                return Err(format!("unknown option `{flag}`\n{}", usage()));
            }
            _ => words.push(argument),
        }
    }
    let mut words = words.into_iter();
    let Some(name) = words.next() else {
        return Err(format!("no workload given\n{}", usage()));
    };
    options.n = words.next().map(|n| positive("n", Some(n))).transpose()?;
    if let Some(extra) = words.next() {
        return Err(format!("unexpected argument `{extra}`\n{}", usage()));
    }
    choose(&name, options)
}

/// Turns the first word into a command.
fn choose(name: &str, options: Options) -> Result<Command, String> {
    match name {
        "help" => Ok(Command::Help),
        "list" => Ok(Command::List),
        "all" if options.n.is_some() => {
            Err("`all` takes no n: it means another thing for each workload".into())
        }
        "all" => Ok(Command::Run(workload::ALL.iter().collect(), options)),
        _ => match workload::find(name) {
            Some(workload) => Ok(Command::Run(vec![workload], options)),
            None => Err(format!(
                "unknown workload `{name}`; the workloads are:\n{}",
                workload::list()
            )),
        },
    }
}

/// `--child WORKLOAD n procs MODE`, as `Role::start` writes it.
fn child_role(arguments: &[String]) -> Result<Command, String> {
    let [name, n, procs, mode] = arguments else {
        return Err(format!("`{}` is for the program itself", child::FLAG));
    };
    let params = Params {
        n: positive("n", Some(n.clone()))?,
        rounds: 1,
        procs: positive("procs", Some(procs.clone()))?,
    };
    let mode = Mode::find(mode).ok_or_else(|| format!("there is no mode `{mode}`"))?;
    let role = workload::find(name).and_then(|workload| workload.child);
    role.map(|role| Command::Child(role, params, mode))
        .ok_or_else(|| format!("`{name}` has no part that runs in a child process"))
}

/// A whole number of at least 1; underscores may group its digits.
fn positive(what: &str, given: Option<String>) -> Result<usize, String> {
    let given = given.ok_or_else(|| format!("{what} needs a number"))?;
    match given.replace('_', "").parse() {
        Ok(0) => Err(format!("{what} must be at least 1")),
        Ok(number) => Ok(number),
        Err(_) => Err(format!("{what} must be a whole number, not `{given}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn complaint(line: &str) -> String {
        parse_line(line).err().expect("a complaint")
    }

    #[test]
    fn options_override_the_defaults() {
        let Ok(Command::Run(chosen, options)) = parse_line("--procs 3 yield 1_000 --rounds 7")
        else {
            panic!("a run was asked for");
        };
        let params = options.params_for(chosen[0]);
        assert_eq!(chosen[0].name, "yield");
        assert_eq!((params.n, params.rounds, params.procs), (1000, 7, 3));
    }

    #[test]
    fn an_unknown_workload_is_answered_with_the_known_ones() {
        let complaint = complaint("juggle");
        assert!(complaint.contains("juggle"));
        for workload in &workload::ALL {
            assert!(complaint.contains(workload.name));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for line in [
            "",
            "yield 0",
            "yield x",
            "yield 1 2",
            "all 5",
            "yield --fast",
        ] {
            complaint(line);
        }
        for line in ["yield --rounds 0", "yield --procs", "--child yield 1 1 own"] {
            complaint(line);
        }
        for line in ["--child idle_1m 1 1", "--child idle_1m 1 1 borrowed"] {
            complaint(line);
        }
    }

    #[test]
    fn a_child_is_told_its_mode() {
        for mode in [Mode::Own, Mode::Shared] {
            let line = format!("--child idle_1m 5 2 {}", mode.short());
            let Ok(Command::Child(_, params, found)) = parse_line(&line) else {
                panic!("`{line}` makes a child");
            };
            assert_eq!((params.n, params.procs, found), (5, 2, mode));
        }
    }
}
