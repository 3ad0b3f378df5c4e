//! Counts the instructions of an operation, and compares them with a file in the repository. CI
//! makes this check.
//!
//! Unlike time, instructions are the same on a busy machine.
//!
//! A *counted* run is a child process under `valgrind --tool=callgrind` that runs a workload on one
//! P. It uses shared thread-locals, because valgrind does not know the instruction that sets own
//! ones. Preemption is off, because its moments depend on time. Each workload runs twice, with few
//! rounds and with more. The difference, divided by its operations, contains neither the program's
//! start nor the first round. sysmon's thread does not count, because its work depends on time.
//!
//! The counts hold for one compiler and one build of the libraries below; `BOUND` allows for small
//! differences. A higher count fails the check until `--write` confirms it. So does a lower one: a
//! gain that is not written down could be lost again unnoticed.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::die_with_parent;
use crate::port::{self, Mode};
use crate::workload::{self, Params};

/// The argument that makes the program a counted child.
pub const FLAG: &str = "--counted";

/// Up to this ratio, in both directions, a count is the same.
const BOUND: f64 = 1.02;
/// The rounds of the two runs whose difference counts.
const ROUNDS: [usize; 2] = [2, 6];

/// What is counted: a workload, its n, and the operations of one round.
struct Counted {
    workload: &'static str,
    n: usize,
    operations: usize,
}

const fn each(workload: &'static str, n: usize, operations: usize) -> Counted {
    Counted {
        workload,
        n,
        operations,
    }
}

/// In the order of the file. A round of `spawn` is n with handles and n without.
const COUNTED: [Counted; 10] = [
    each("yield", 20_000, 40_000),
    each("spawn", 5_000, 10_000),
    each("fib", 22, 10),
    each("pingpong_1w", 10_000, 10_000),
    each("chan_spsc", 50_000, 50_000),
    each("chan_unbounded", 50_000, 50_000),
    each("select_2", 25_600, 25_600),
    each("select_8", 25_600, 25_600),
    each("mutex", 20_000, 320_000),
    each("timer_reset", 25_000, 25_000),
];

/// Counts everything and compares it with the file, or writes the file.
pub fn run(must_write: bool) -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt");
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let (mut text, mut changed) = (header(), Vec::new());
    for counted in &COUNTED {
        let count = counted.count()?;
        writeln!(text, "{} {count:.1}", counted.workload).expect("a String takes every write");
        let verdict = verdict(count, before(&written, counted.workload));
        crate::print(&format!(
            "{} instructions {count:.1} {verdict}\n",
            counted.workload
        ))?;
        if !verdict.starts_with(SAME) {
            changed.push(counted.workload);
        }
    }
    if must_write {
        return std::fs::write(&path, text);
    }
    if changed.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{}: not the instructions that bench/instructions.txt says; if that is meant, or a gain \
         to be kept: `cargo run --release -p gosched-bench -- instructions --write`",
        changed.join(", ")
    )))
}

/// The first lines of the file.
fn header() -> String {
    "# Instructions per operation, on one P with shared thread-locals, by valgrind's callgrind.\n\
     # Written by `cargo run --release -p gosched-bench -- instructions --write`.\n"
        .to_owned()
}

/// The file's count of a workload, if it is a valid number.
fn before(written: &str, workload: &str) -> Option<f64> {
    let line = written
        .lines()
        .find_map(|line| line.strip_prefix(workload)?.strip_prefix(' '))?;
    let count = line.trim().parse().ok();
    count.filter(|count: &f64| count.is_finite() && *count > 0.0)
}

/// The first word of the only verdict that is no error.
const SAME: &str = "same";

/// How a count compares with the one in the file, as text.
fn verdict(count: f64, before: Option<f64>) -> String {
    let Some(before) = before else {
        return "unknown: the file has no count for it".to_owned();
    };
    let change = 100.0 * (count / before - 1.0);
    match count / before {
        ratio if ratio > BOUND => format!("worse: {change:+.1} % of {before}"),
        ratio if ratio < 1.0 / BOUND => format!("better: {change:+.1} % of {before}"),
        _ => format!("{SAME}: {change:+.1} %"),
    }
}

impl Counted {
    /// Instructions of one operation.
    fn count(&self) -> io::Result<f64> {
        let [few, many] = ROUNDS;
        let totals = [self.total(few)?, self.total(many)?];
        let more = difference(totals)
            .map_err(|error| io::Error::other(format!("{}: {error}", self.workload)))?;
        Ok(more as f64 / ((many - few) * self.operations) as f64)
    }

    /// Instructions of a whole run.
    fn total(&self, rounds: usize) -> io::Result<u64> {
        let scratch = Scratch::new()?;
        let mut command = Command::new("valgrind");
        command
            .args(["--tool=callgrind", "--separate-threads=yes"])
            .arg(format!(
                "--callgrind-out-file={}",
                scratch.0.join("counts").display()
            ))
            .arg(std::env::current_exe()?)
            .args([FLAG, self.workload])
            .args([self.n.to_string(), rounds.to_string()])
            .stdin(Stdio::null());
        let output = die_with_parent(&mut command).output().map_err(|error| {
            io::Error::other(format!(
                "valgrind does not start ({error}); is it installed?"
            ))
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("{}: {said}", self.workload)));
        }
        total_in(&scratch.0)
    }
}

/// How many more instructions the longer run took. None at all means that the work was not done, or
/// not counted.
fn difference([few, many]: [u64; 2]) -> Result<u64, String> {
    match many.checked_sub(few) {
        Some(more @ 1..) => Ok(more),
        _ => Err(format!(
            "{} rounds took {many} instructions, {} took {few}; that cannot be",
            ROUNDS[1], ROUNDS[0]
        )),
    }
}

/// A directory for callgrind's files; dropping it removes it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Scratch> {
        let place = std::env::temp_dir().join(format!("gosched-counted.{}", std::process::id()));
        std::fs::create_dir_all(&place)?;
        Ok(Scratch(place))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A directory that cannot be removed stays among the temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The sum over the threads; callgrind writes a file for each.
fn total_in(directory: &Path) -> io::Result<u64> {
    let mut total = 0;
    for file in std::fs::read_dir(directory)? {
        total += total_of(&std::fs::read_to_string(file?.path())?).unwrap_or(0);
    }
    match total {
        0 => Err(io::Error::other("callgrind wrote no totals")),
        _ => Ok(total),
    }
}

/// The sum of all functions of a thread, in callgrind's line `totals:`; None for sysmon.
fn total_of(text: &str) -> Option<u64> {
    if text.contains("::sysmon::run") {
        return None;
    }
    text.lines()
        .find_map(|line| line.strip_prefix("totals:")?.trim().parse().ok())
}

/// `--counted WORKLOAD n ROUNDS`: the child's part.
pub fn child(words: &[String]) -> io::Result<()> {
    let [name, n, rounds] = words else {
        return Err(io::Error::other(format!(
            "`{FLAG}` is for the program itself"
        )));
    };
    let number = |word: &String| word.parse().map_err(io::Error::other);
    let params = Params {
        n: number(n)?,
        rounds: number(rounds)?,
        procs: 1,
    };
    port::without_preemption();
    let workload = workload::find(name).ok_or_else(|| io::Error::other("no such workload"))?;
    let mut ports = workload.ports.iter();
    let port = ports
        .find(|port| port.runtime == Mode::Shared.runtime())
        .ok_or_else(|| io::Error::other("no port with shared thread-locals"))?;
    let mut round = port.start(&params)?;
    (0..params.rounds).try_for_each(|_| round().map(drop))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_is_the_same() {
        let is_same = |count, before| verdict(count, before).starts_with(SAME);
        assert!(is_same(101.9, Some(100.0)) && is_same(98.1, Some(100.0)));
        assert!(verdict(103.0, Some(100.0)).starts_with("worse: +3.0 %"));
        assert!(verdict(90.0, Some(100.0)).starts_with("better: -10.0 %"));
        assert!(verdict(90.0, None).starts_with("unknown"));
        assert!(!is_same(f64::NAN, None) && !is_same(0.0, Some(100.0)));
    }

    #[test]
    fn a_workload_is_found_by_its_whole_name() {
        let written = format!("{}chan_spsc_2 7\nchan_spsc 12.5\n", header());
        assert_eq!(before(&written, "chan_spsc"), Some(12.5));
        assert_eq!(before(&written, "chan"), None);
    }

    #[test]
    fn what_is_no_count_is_none() {
        for word in ["0", "-1", "inf", "NaN", "many", ""] {
            assert_eq!(before(&format!("yield {word}\n"), "yield"), None, "{word}");
        }
    }

    #[test]
    fn more_rounds_take_more_instructions() {
        assert_eq!(difference([1_000, 1_600]), Ok(600));
        for totals in [[1_000, 1_000], [1_000, 999]] {
            difference(totals).expect_err("nothing was done in between");
        }
    }

    #[test]
    fn the_file_has_a_count_of_everything() {
        let written = include_str!("../instructions.txt");
        for counted in &COUNTED {
            assert!(before(written, counted.workload).is_some());
        }
    }

    #[test]
    fn the_totals_are_read() {
        assert_eq!(total_of("events: Ir\ntotals: 1234\n"), Some(1234));
        assert_eq!(total_of("events: Ir\n"), None);
        assert_eq!(total_of("fn=(1) a::sysmon::run\ntotals: 1234\n"), None);
    }

    #[test]
    fn what_is_counted_exists() {
        for counted in &COUNTED {
            let workload = workload::find(counted.workload).expect("a workload");
            assert!(
                workload
                    .ports
                    .iter()
                    .any(|p| p.runtime == Mode::Shared.runtime())
            );
        }
    }
}
