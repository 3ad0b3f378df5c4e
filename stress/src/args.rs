//! The command line.

use crate::mixes;
use crate::plan::{Kind, Plan};

/// The longest run, in minutes: about two years.
const MINUTES_MAX: f64 = 1e6;

/// The text of `--help`.
pub const USAGE: &str = "\
usage: gosched-stress [--minutes N] [--seed S] [--only MIX,MIX...] [--keep-going] [--verbose]
       gosched-stress --round-seed S [--chaos N] [--times N] [--only MIX,MIX...] [--just MIX,MIX...]
       gosched-stress --list

  --minutes N     how long to run, at most 1000000; fractions are allowed; default 1
  --seed S        the seed of the run; default: a new one, which is printed
  --only MIXES    only these mixes; --list shows them
  --keep-going    continue after a failure
  --verbose       print a line for each round
  --round-seed S  run one round, as printed with a failure
  --times N       run that round N times
  --just MIXES    run that round with only these of its mixes
  --chaos N       the seed of the library's own chaos, as printed with a failure

exit status: 0 if all checks passed, 1 if one failed, 2 for a mistake in the command line";

/// The task that the command line asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Task {
    Run {
        minutes: f64,
        seed: Option<u64>,
    },
    Repeat {
        seed: u64,
    },
    List,
    Help,
    /// Rounds `first` and following of a run; the supervisor starts it so.
    Work {
        run: u64,
        first: u64,
        count: u64,
    },
    WorkOne {
        seed: u64,
    },
}

/// The parsed command line.
#[derive(Clone, PartialEq, Debug)]
pub struct Args {
    pub task: Task,
    /// The numbers of the wanted mixes; empty: all.
    pub only: Vec<usize>,
    /// Which of a round's mixes to keep; empty: all.
    pub just: Vec<usize>,
    pub keeps_going: bool,
    pub is_verbose: bool,
    pub times: u64,
    /// The seed of the library's chaos for a round that is repeated.
    pub chaos: Option<u64>,
}

/// A number, also as `0x…`.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no number"))
}

fn minutes_of(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(minutes) if minutes > 0.0 && minutes <= MINUTES_MAX => Ok(minutes),
        Ok(minutes) if minutes > MINUTES_MAX => Err(format!(
            "--minutes {text}: at most {MINUTES_MAX} are possible"
        )),
        _ => Err(format!("{text:?} is no time")),
    }
}

fn mixes_of(option: &str, text: &str) -> Result<Vec<usize>, String> {
    let find = |name: &str| {
        let at = mixes::ALL.iter().position(|mix| mix.name == name);
        at.ok_or_else(|| format!("no mix is called {name:?}; --list names them"))
    };
    let names = text.split(',').filter(|name| !name.is_empty());
    let found: Vec<usize> = names.map(find).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err(format!("{option} needs the name of a mix"));
    }
    Ok(found)
}

impl Args {
    /// Parses the words after the program's name.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut args = Args {
            task: Task::Help,
            only: Vec::new(),
            just: Vec::new(),
            keeps_going: false,
            is_verbose: false,
            times: 1,
            chaos: None,
        };
        let (mut minutes, mut seed, mut task) = (1.0, None, None);
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--minutes" => minutes = minutes_of(&value()?)?,
                "--seed" => seed = Some(number(&value()?)?),
                "--only" => args.only = mixes_of(&word, &value()?)?,
                "--just" => args.just = mixes_of(&word, &value()?)?,
                "--chaos" => args.chaos = Some(number(&value()?)?),
                "--times" => args.times = number(&value()?)?,
                "--keep-going" => args.keeps_going = true,
                "--verbose" => args.is_verbose = true,
                "--round-seed" => {
                    task = Some(Task::Repeat {
                        seed: number(&value()?)?,
                    })
                }
                "--list" => task = Some(Task::List),
                "--help" | "-h" => task = Some(Task::Help),
                "--work" => {
                    let [run, first, count] =
                        [number(&value()?)?, number(&value()?)?, number(&value()?)?];
                    task = Some(Task::Work { run, first, count });
                }
                "--work-one" => {
                    task = Some(Task::WorkOne {
                        seed: number(&value()?)?,
                    })
                }
                _ => return Err(format!("unknown option {word:?}")),
            }
        }
        args.task = task.unwrap_or(Task::Run { minutes, seed });
        args.make_sense()?;
        Ok(args)
    }

    /// Refuses options that would run nothing or have no effect.
    fn make_sense(&self) -> Result<(), String> {
        if self.times == 0 {
            return Err("--times 0 would run nothing".into());
        }
        match self.task {
            Task::Run { .. } if !self.just.is_empty() || self.chaos.is_some() => {
                Err("--just and --chaos need --round-seed".into())
            }
            Task::Repeat { seed } => self.fits_round(seed),
            _ => Ok(()),
        }
    }

    fn fits_round(&self, seed: u64) -> Result<(), String> {
        if self.chaos.is_some() && Kind::of(seed) != Kind::Chaos {
            let kind = Kind::of(seed);
            return Err(format!("--chaos: round {seed:#x} is of kind {kind:?}"));
        }
        let plan = Plan::new(seed, &self.only);
        if !plan.clone().narrow(&self.just).mixes.is_empty() {
            return Ok(());
        }
        Err(format!("--just: the round has none of these: {plan}"))
    }

    /// The options that give a child process the same mixes.
    pub fn mix_options(&self) -> Vec<String> {
        let mut words = Vec::new();
        for (option, mixes) in [("--only", &self.only), ("--just", &self.just)] {
            if !mixes.is_empty() {
                let names: Vec<_> = mixes.iter().map(|at| mixes::ALL[*at].name).collect();
                words.extend([option.to_owned(), names.join(",")]);
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Args, String> {
        Args::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn what_is_asked_for_is_understood() {
        let args = parse("--minutes 0.5 --seed 0x10 --only chan,locks").unwrap();
        let seed = Some(16);
        assert_eq!(args.task, Task::Run { minutes: 0.5, seed });
        assert_eq!(args.only.len(), 2);
        assert_eq!(parse("--list").unwrap().task, Task::List);
    }

    #[test]
    fn mistakes_are_named() {
        for (line, says) in [
            ("--sede 3", "unknown option \"--sede\""),
            ("--seed", "--seed needs a value"),
            ("--seed x", "\"x\" is no number"),
            ("--minutes -1", "\"-1\" is no time"),
            ("--minutes nan", "\"nan\" is no time"),
            (
                "--minutes 99999999999999999999",
                "--minutes 99999999999999999999: at most 1000000 are possible",
            ),
            ("--round-seed 5 --times 0", "--times 0 would run nothing"),
            ("--only ,", "--only needs the name of a mix"),
            ("--round-seed 5 --just ,", "--just needs the name of a mix"),
            ("--just chan", "--just and --chaos need --round-seed"),
            (
                "--round-seed 5 --chaos 3",
                "--chaos: round 0x5 is of kind Any",
            ),
            (
                "--only chess",
                "no mix is called \"chess\"; --list names them",
            ),
        ] {
            assert_eq!(parse(line).unwrap_err(), says);
        }
    }

    #[test]
    fn a_round_that_would_be_empty_is_refused() {
        let only_chan = |just: &str| parse(&format!("--round-seed 5 --only chan --just {just}"));
        assert!(only_chan("chan").is_ok());
        let text = only_chan("locks").unwrap_err();
        assert!(
            text.starts_with("--just: the round has none of these: Any, "),
            "{text}"
        );
        assert!(text.ends_with(": chan"), "{text}");
    }
}
