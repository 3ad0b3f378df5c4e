//! Parses the command line; an error is one message.
//!
//! It keeps all defaults and limits of options in one place.
//!
//! An *option* given by the user overrides the default of the workload. A *role* is the part of a
//! workload that runs in a child process (see `child`). Some arguments are not for users: `--child`
//! selects a role, `--round` starts the program as a contestant of a comparison (see `compare`),
//! `--point` is used by `growth`, `--counted` by `instructions`.

use std::path::PathBuf;
use std::time::Duration;

use crate::child;
use crate::compare::{self, round};
use crate::growth;
use crate::instructions;
use crate::port::Mode;
use crate::workload::{self, Child, Params, Workload};

/// The number of Ps, unless the user or the workload sets another.
const PROCS_DEFAULT: usize = 2;

/// More rounds than any user waits for.
const ROUNDS_MAX: usize = 1_000_000;
/// More fresh processes than any user waits for.
const PROCESSES_MAX: usize = 1_000;
/// The most seconds that a round may take: a day.
const LIMIT_MAX: usize = 86_400;

/// What one run of the program does.
pub enum Command {
    Help,
    /// List the workloads.
    List,
    /// Run these workloads.
    Run(Vec<&'static Workload>, Options),
    /// Compare with other runtimes.
    Compare(compare::Options),
    /// Measure costs as the work grows: the directory for results, whether to be quick, and a part
    /// of the names of the curves.
    Growth(Option<PathBuf>, bool, String),
    /// Count the system calls of code with hooks, on this many Ps.
    Hooks(usize),
    /// Count instructions; whether to write them to the file.
    Instructions(bool),
    /// Run as the counted child process.
    Counted(Vec<String>),
    /// Run a role in a child process.
    Child(Child, Params, Mode),
    /// Take part in a comparison.
    Round(round::Part),
    /// Measure one point of a curve.
    Point(Vec<String>),
}

/// What the user chose; `None` means the workload's default.
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
         \x20      gosched-bench compare [WORKLOAD...] [--peers LIST|none] [--rounds K]\n\
         \x20                            [--processes K] [--procs N] [--quick]\n\
         \x20                            [--limit SECONDS] [--out DIR] [--readme FILE]\n\
         \x20      gosched-bench growth [--quick] [--only TEXT] [--out DIR]\n\
         \x20      gosched-bench hooks [--procs N]\n\
         \x20      gosched-bench instructions [--write]\n\
         \x20      gosched-bench list\n\
         \n{}",
        workload::list()
    )
}

/// Parses the arguments after the program's name.
pub fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut words = Vec::new();
    let mut options = Options::default();
    let mut arguments = arguments.peekable();
    if arguments.next_if(|first| first == child::FLAG).is_some() {
        return child_role(&arguments.collect::<Vec<_>>());
    }
    if arguments.next_if(|first| first == round::FLAG).is_some() {
        return round_part(&arguments.collect::<Vec<_>>());
    }
    if arguments.next_if(|first| first == growth::FLAG).is_some() {
        return Ok(Command::Point(arguments.collect()));
    }
    if arguments
        .next_if(|first| first == instructions::FLAG)
        .is_some()
    {
        return Ok(Command::Counted(arguments.collect()));
    }
    if arguments.next_if(|first| first == "instructions").is_some() {
        return counting(&arguments.collect::<Vec<_>>());
    }
    if arguments.next_if(|first| first == "hooks").is_some() {
        return hooks(&arguments.collect::<Vec<_>>());
    }
    if arguments.next_if(|first| first == "compare").is_some() {
        return comparison(arguments);
    }
    if arguments.next_if(|first| first == "growth").is_some() {
        return growth(arguments);
    }
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            "--rounds" => options.rounds = Some(rounds(arguments.next())?),
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
            Err("`all` takes no n: its meaning depends on the workload".into())
        }
        "all" => Ok(Command::Run(workload::ALL.iter().collect(), options)),
        _ => match workload::find(name) {
            Some(workload) => Ok(Command::Run(vec![workload], options)),
            None => Err(unknown(name)),
        },
    }
}

/// The arguments after `instructions`.
fn counting(arguments: &[String]) -> Result<Command, String> {
    match arguments {
        [] => Ok(Command::Instructions(false)),
        [option] if option == "--write" => Ok(Command::Instructions(true)),
        _ => Err(format!(
            "`instructions` takes `--write` or nothing\n{}",
            usage()
        )),
    }
}

/// The arguments after `hooks`.
fn hooks(arguments: &[String]) -> Result<Command, String> {
    match arguments {
        [] => Ok(Command::Hooks(PROCS_DEFAULT)),
        [option, procs] if option == "--procs" => {
            Ok(Command::Hooks(positive("--procs", Some(procs.clone()))?))
        }
        _ => Err(format!("`hooks` takes `--procs N` or nothing\n{}", usage())),
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

/// The arguments after `compare`: workloads and options.
fn comparison(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut options = compare::Options {
        entries: Vec::new(),
        peers: compare::PEERS.iter().map(|(name, _)| *name).collect(),
        rounds: None,
        processes: None,
        procs: PROCS_DEFAULT,
        out: None,
        readme: None,
        is_quick: false,
        limit: compare::LIMIT,
    };
    let mut entries = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            "--quick" => options.is_quick = true,
            "--rounds" => options.rounds = Some(rounds(arguments.next())?),
            "--processes" => {
                let processes = at_most(PROCESSES_MAX, "--processes", arguments.next())?;
                options.processes = Some(processes);
            }
            "--procs" => options.procs = positive("--procs", arguments.next())?,
            "--limit" => {
                let seconds = at_most(LIMIT_MAX, "--limit", arguments.next())?;
                options.limit = Duration::from_secs(seconds as u64);
            }
            "--out" => options.out = Some(directory(arguments.next())?),
            "--readme" => {
                let file = arguments.next().ok_or("--readme needs a file")?;
                options.readme = Some(file.into());
            }
            "--peers" => {
                let list = arguments.next().ok_or("--peers needs a list")?;
                options.peers = peers(&list)?;
            }
            flag if flag.starts_with('-') => {
                return Err(format!("unknown option `{flag}`\n{}", usage()));
            }
            "all" => entries.extend(compare::all()),
            name => entries.push(compare::Entry::find(name).ok_or_else(|| unknown(name))?),
        }
    }
    // A workload named twice runs once.
    for entry in entries {
        if options.entries.iter().all(|other| other.name != entry.name) {
            options.entries.push(entry);
        }
    }
    if options.entries.is_empty() {
        options.entries = compare::all();
    }
    Ok(Command::Compare(options))
}

/// The arguments after `growth`.
fn growth(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let (mut out, mut is_quick, mut only) = (None, false, String::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-h" | "--help" => return Ok(Command::Help),
            "--quick" => is_quick = true,
            "--only" => {
                only = arguments
                    .next()
                    .filter(|text| growth::has_curve(text))
                    .ok_or_else(|| {
                        format!("`--only` wants a part of the name of a curve\n{}", usage())
                    })?
            }
            "--out" => out = Some(directory(arguments.next())?),
            other => return Err(format!("unexpected argument `{other}`\n{}", usage())),
        }
    }
    Ok(Command::Growth(out, is_quick, only))
}

/// The directory for results.
fn directory(given: Option<String>) -> Result<PathBuf, String> {
    given
        .map(PathBuf::from)
        .ok_or_else(|| "--out needs a directory".into())
}

/// The peers of a list like `go,tokio`.
fn peers(list: &str) -> Result<Vec<&'static str>, String> {
    if list == "none" {
        return Ok(Vec::new());
    }
    let find = |name: &str| {
        let found = compare::PEERS.iter().find(|(peer, _)| *peer == name);
        found.map(|(peer, _)| *peer).ok_or_else(|| {
            let all: Vec<_> = compare::PEERS.iter().map(|(peer, _)| *peer).collect();
            format!("unknown peer `{name}`; the peers are: {}", all.join(", "))
        })
    };
    list.split(',').map(find).collect()
}

/// `--round PORT WORKLOAD n procs`, as the comparison writes it.
fn round_part(arguments: &[String]) -> Result<Command, String> {
    let [port, name, n, procs] = arguments else {
        return Err(format!("`{}` is for the program itself", round::FLAG));
    };
    let workload = workload::find(name).ok_or_else(|| unknown(name))?;
    let found = workload.ports.iter().find(|other| other.short == port);
    Ok(Command::Round(round::Part {
        workload,
        port: found.ok_or_else(|| format!("`{name}` has no port `{port}`"))?,
        params: Params {
            n: positive("n", Some(n.clone()))?,
            rounds: 1,
            procs: positive("procs", Some(procs.clone()))?,
        },
    }))
}

fn unknown(name: &str) -> String {
    format!(
        "unknown workload `{name}`; the workloads are:\n{}",
        workload::list()
    )
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

/// Such a number, up to a limit.
fn at_most(most: usize, what: &str, given: Option<String>) -> Result<usize, String> {
    match positive(what, given)? {
        number if number > most => Err(format!("{what} must be at most {most}, not {number}")),
        number => Ok(number),
    }
}

/// The number of measured rounds.
fn rounds(given: Option<String>) -> Result<usize, String> {
    at_most(ROUNDS_MAX, "--rounds", given)
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
    fn numbers_that_nobody_means_are_refused() {
        for line in [
            "yield --rounds 18446744073709551615",
            "yield --rounds 1_000_001",
            "compare --rounds 18446744073709551615",
            "compare --limit 18446744073709551615",
            "compare --limit 86_401",
            "compare --processes 1_001",
        ] {
            assert!(complaint(line).contains("must be at most"), "{line}");
        }
        assert!(parse_line("compare --limit 86_400 --rounds 1_000_000").is_ok());
    }

    #[test]
    fn a_comparison_is_of_all_unless_some_are_named() {
        let compared = |line| match parse_line(line) {
            Ok(Command::Compare(options)) => options,
            _ => panic!("a comparison was asked for"),
        };
        let all = compared("compare");
        assert_eq!(all.entries.len(), workload::ALL.len());
        assert_eq!(all.peers, ["go", "tokio", "smol", "may", "std"]);
        assert!(!all.is_quick && all.rounds.is_none() && all.processes.is_none());
        let processes = compared("compare --processes 7").processes;
        assert_eq!(processes, Some(7));
        let readme = compared("compare --readme x.md").readme;
        assert_eq!(readme, Some("x.md".into()));
        let some =
            compared("compare --quick yield --peers may,go fib --rounds 3 --limit 5 --out x");
        let names: Vec<_> = some.entries.iter().map(|entry| entry.name).collect();
        assert_eq!(
            (names, some.peers),
            (vec!["yield", "fib"], vec!["may", "go"])
        );
        assert_eq!((some.rounds, some.limit), (Some(3), Duration::from_secs(5)));
        assert!(some.is_quick && some.out.is_some());
        assert!(compared("compare --peers none").peers.is_empty());
        assert_eq!(compared("compare yield fib yield").entries.len(), 2);
        let twice = compared("compare fib all");
        assert_eq!(twice.entries.len(), workload::ALL.len());
        assert_eq!(twice.entries[0].name, "fib");
        for line in [
            "compare juggle",
            "compare --peers java",
            "compare --out",
            "compare --processes 0",
            "compare --readme",
            "compare 5",
        ] {
            complaint(line);
        }
    }

    #[test]
    fn growth_goes_where_it_is_told() {
        let line = "growth --out x --quick --only procs_";
        let Ok(Command::Growth(Some(out), true, only)) = parse_line(line) else {
            panic!("growth was asked for");
        };
        assert_eq!((out, only.as_str()), (PathBuf::from("x"), "procs_"));
        assert!(matches!(
            parse_line("growth"),
            Ok(Command::Growth(None, false, only)) if only.is_empty()
        ));
        for line in [
            "growth yield",
            "growth --out",
            "growth --procs 2",
            "growth --only",
            "growth --only juggle",
        ] {
            complaint(line);
        }
    }

    #[test]
    fn a_contestant_is_told_its_port() {
        let Ok(Command::Round(part)) = parse_line("--round std mutex 5 2") else {
            panic!("a part in a comparison");
        };
        assert_eq!((part.port.short, part.workload.name), ("std", "mutex"));
        assert_eq!((part.params.n, part.params.procs), (5, 2));
        for line in [
            "--round std yield 5 2",
            "--round own mutex 5",
            "--round own x 1 1",
        ] {
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
