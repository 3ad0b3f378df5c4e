//! Decides what an operation may cost in instructions, which unlike time are
//! the same on a busy machine: the check that CI makes against a file in the
//! repository.
//!
//! A *counted* run is a child process under `valgrind --tool=callgrind` that
//! does a workload on one processor, with shared thread-locals (own ones are
//! set with an instruction that valgrind does not know) and without preemption
//! (whose moments depend on time). It is done twice, with few rounds and with
//! more; the difference, divided by the operations that make it, has neither
//! the program's start nor its first round in it. Sysmon's thread does not
//! count, since what it does depends on time.
//!
//! The counts are those of one compiler and one build of the libraries below;
//! `BOUND` leaves room for a little of that. What costs more is refused until
//! somebody says, with `--write`, that it is meant.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::child::die_with_parent;
use crate::port::{self, Mode};
use crate::workload::{self, Params};

/// The argument that makes the program a counted child.
pub const FLAG: &str = "--counted";

/// How much more than written down is still the same.
const BOUND: f64 = 1.02;
/// Rounds of the two runs of which the difference counts.
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

/// Counts everything and compares it with the file, or writes the file anew.
pub fn run(must_write: bool) -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.txt");
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let (mut text, mut worse) = (header(), Vec::new());
    for counted in &COUNTED {
        let count = counted.count()?;
        writeln!(text, "{} {count:.1}", counted.workload).expect("a String takes every write");
        let verdict = verdict(count, before(&written, counted.workload));
        crate::print(&format!(
            "{} instructions {count:.1} {verdict}\n",
            counted.workload
        ))?;
        if verdict.starts_with("worse") {
            worse.push(counted.workload);
        }
    }
    if must_write {
        return std::fs::write(&path, text);
    }
    if worse.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} cost more instructions than bench/instructions.txt says; if that is meant: \
         `cargo run --release -p gosched-bench -- instructions --write`",
        worse.join(", ")
    )))
}

/// The first lines of the file.
fn header() -> String {
    "# Instructions per operation, on one P with shared thread-locals, by valgrind's callgrind.\n\
     # Written by `cargo run --release -p gosched-bench -- instructions --write`.\n"
        .to_owned()
}

/// What the file says of a workload.
fn before(written: &str, workload: &str) -> Option<f64> {
    let line = written
        .lines()
        .find_map(|line| line.strip_prefix(workload)?.strip_prefix(' '))?;
    line.trim().parse().ok()
}

/// How a count compares with the one before, for people.
fn verdict(count: f64, before: Option<f64>) -> String {
    let Some(before) = before else {
        return "worse: the file has no count of it".to_owned();
    };
    let change = 100.0 * (count / before - 1.0);
    match count / before {
        ratio if ratio > BOUND => format!("worse: {change:+.1} % of {before}"),
        ratio if ratio < 1.0 / BOUND => format!("better: {change:+.1} % of {before}"),
        _ => format!("same: {change:+.1} %"),
    }
}

impl Counted {
    /// Instructions of one operation.
    fn count(&self) -> io::Result<f64> {
        let [few, many] = ROUNDS;
        let more = self.total(many)?.saturating_sub(self.total(few)?);
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

/// A directory for what callgrind writes; dropping it removes it.
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
        // What cannot be removed is left to whoever tidies temporary files.
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

/// The sum of all functions of a thread, in callgrind's line `totals:`; none of sysmon's.
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
    fn what_costs_more_is_worse_and_what_is_unknown_too() {
        assert!(verdict(103.0, Some(100.0)).starts_with("worse"));
        assert!(verdict(101.0, Some(100.0)).starts_with("same"));
        assert!(verdict(90.0, Some(100.0)).starts_with("better"));
        assert!(verdict(90.0, None).starts_with("worse"));
    }

    #[test]
    fn a_workload_is_found_by_its_whole_name() {
        let written = format!("{}chan_spsc_2 7\nchan_spsc 12.5\n", header());
        assert_eq!(before(&written, "chan_spsc"), Some(12.5));
        assert_eq!(before(&written, "chan"), None);
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
