//! The command line.

use crate::mixes;

/// How it is called.
pub const USAGE: &str = "\
usage: gosched-stress [--minutes N] [--seed S] [--only MIX,MIX...] [--keep-going] [--verbose]
       gosched-stress --round-seed S [--times N] [--just MIX,MIX...]
       gosched-stress --list

  --minutes N     for so long (fractions are fine); 1 unless set
  --seed S        decides everything that can be decided; a fresh one is taken, and printed, unless set
  --only MIXES    these mixes only; --list names them
  --keep-going    goes on after a failure
  --verbose       a line for each round
  --round-seed S  one round, as a failure names it; --times N repeats it, --just has only some of its mixes

exit status: 0 if everything held, 1 if something did not, 2 for a mistake in the command line";

/// What is to be done.
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
    /// Rounds `first` and following of a run; what the supervisor starts.
    Work {
        run: u64,
        first: u64,
        count: u64,
    },
    WorkOne {
        seed: u64,
    },
}

/// The command line, understood.
#[derive(Clone, PartialEq, Debug)]
pub struct Args {
    pub task: Task,
    /// Numbers of the mixes wanted; empty: all.
    pub only: Vec<usize>,
    /// Of a round's mixes, those to be kept; empty: all.
    pub just: Vec<usize>,
    pub keeps_going: bool,
    pub is_verbose: bool,
    pub times: u64,
}

/// A number, also as `0x…`.
fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no number"))
}

fn mixes_of(text: &str) -> Result<Vec<usize>, String> {
    let find = |name: &str| {
        let at = mixes::ALL.iter().position(|mix| mix.name == name);
        at.ok_or_else(|| format!("no mix is called {name:?}; --list names them"))
    };
    let names = text.split(',').filter(|name| !name.is_empty());
    let found: Vec<usize> = names.map(find).collect::<Result<_, _>>()?;
    if found.is_empty() {
        return Err("--only needs the name of a mix".into());
    }
    Ok(found)
}

impl Args {
    /// Understands the words after the program's name.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut args = Args {
            task: Task::Help,
            only: Vec::new(),
            just: Vec::new(),
            keeps_going: false,
            is_verbose: false,
            times: 1,
        };
        let (mut minutes, mut seed, mut task) = (1.0, None, None);
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--minutes" => {
                    let text = value()?;
                    let parsed: Result<f64, _> = text.parse();
                    let is_time = |n: &f64| n.is_finite() && *n > 0.0;
                    minutes = parsed
                        .ok()
                        .filter(is_time)
                        .ok_or(format!("{text:?} is no time"))?;
                }
                "--seed" => seed = Some(number(&value()?)?),
                "--only" => args.only = mixes_of(&value()?)?,
                "--just" => args.just = mixes_of(&value()?)?,
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
        Ok(args)
    }

    /// The options by which a child process has the same mixes.
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
            (
                "--only chess",
                "no mix is called \"chess\"; --list names them",
            ),
        ] {
            assert_eq!(parse(line).unwrap_err(), says);
        }
    }
}
