//! Measures how costs grow with the work: one operation among 10 others and among a million, on 1 P
//! and on 64.
//!
//! It shows costs that depend on the number of goroutines, which the scheduler should not have.
//!
//! A *curve* is the cost of one kind of operation over sizes; a *point* is that cost at one size.
//! The number of operations in a round is about the same at every size. So all points take about
//! the same time, and a cost that does not depend on the size is a flat line.
//!
//! Every point is a process of its own, because a million goroutines leave caches behind that would
//! make the next point look better. The program starts itself again with `--point`. The child runs
//! its rounds and prints the best one. A point that takes too long is ended and shown as `stalled`,
//! one that fails as `failed`, one without enough memory as `no memory`. The others continue.

mod curves;
mod limit;
mod procs;
mod report;
mod threads;

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::child::die_with_parent;
use crate::files::Files;
use crate::port::{self, Mode};
use crate::progress::Progress;
use curves::{CURVES, Curve, Effort, Size};
use report::{Point, Traced};

/// The argument that makes the program measure one point; not for users.
pub const FLAG: &str = "--point";

const FULL: Effort = Effort {
    work: 400_000,
    rounds: 3,
    n_max: 1_000_000,
};
const QUICK: Effort = Effort {
    work: 40_000,
    rounds: 1,
    n_max: 100_000,
};
/// A point that takes longer never ends.
const PATIENCE: Duration = Duration::from_secs(300);
/// The share of the free memory that a point may need.
const MEMORY_PART: f64 = 0.8;

/// Measures every point and writes `growth.md`, `growth.json` and `growth.svg` after each curve, by
/// default to the program's own directory. Also prints the first file, even if the files cannot be
/// written.
///
/// `only`: the curves whose names contain this text.
pub fn run(out: Option<&Path>, quick: bool, only: &str) -> io::Result<()> {
    let effort = if quick { QUICK } else { FULL };
    let mut progress = Progress::new();
    let mut files = Files::new(out, "growth")?;
    let mut traced = Vec::with_capacity(CURVES.len());
    let mut failed = Vec::new();
    for curve in CURVES.iter().filter(|curve| curve.name.contains(only)) {
        traced.push(trace(curve, &effort, &mut progress, &mut failed));
        let json = report::json(&traced).to_string();
        files.write([&report::markdown(&traced), &json, &report::svg(&traced)]);
    }
    crate::print(&report::markdown(&traced))?;
    files.finish(&failed, &mut progress)
}

/// Whether the name of any curve contains this text.
pub fn has_curve(text: &str) -> bool {
    CURVES.iter().any(|curve| curve.name.contains(text))
}

/// Measures all points of a curve; failures are appended to `failed`.
fn trace(
    curve: &'static Curve,
    effort: &Effort,
    progress: &mut Progress,
    failed: &mut Vec<String>,
) -> Traced {
    let mut points = Vec::new();
    for size in curve.sizes(effort) {
        let place = format!("{} at {}", curve.name, curve.at(&size));
        let point = match take(curve, &size, effort.rounds) {
            Ok(value) => Point::value(&size, value),
            Err(failure) => {
                progress.note(&format!("growth: {place}: {failure}"));
                if !failure.is_excused {
                    failed.push(place.clone());
                }
                Point::missing(&size, failure.short)
            }
        };
        progress.note(&format!("growth: {place}: {}", point.text(curve)));
        points.push(point);
    }
    Traced { curve, points }
}

/// Why there is no value.
struct Failure {
    /// For the table.
    short: &'static str,
    why: String,
    /// It was not tried, for a good reason.
    is_excused: bool,
}

impl Failure {
    fn new(short: &'static str, why: impl ToString) -> Failure {
        Failure {
            short,
            why: why.to_string(),
            is_excused: false,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.short, self.why)
    }
}

/// The cost at a size: the best of all rounds.
fn take(curve: &Curve, size: &Size, rounds: usize) -> Result<f64, Failure> {
    let wanted = (curve.bytes_each * size.n) as f64;
    let free = free_bytes().map_err(|error| Failure::new("failed", error))?;
    if wanted > MEMORY_PART * free {
        return Err(Failure {
            short: "no memory",
            why: format!(
                "needs {:.1} GB, {:.1} GB are free",
                wanted / 1e9,
                free / 1e9
            ),
            is_excused: true,
        });
    }
    if !curve.is_fresh {
        return in_child(curve, size);
    }
    let values = (0..rounds).map(|_| in_child(curve, size));
    let values = values.collect::<Result<Vec<_>, _>>()?;
    Ok(values.into_iter().fold(f64::INFINITY, f64::min))
}

/// Measures a point in a process of its own.
fn in_child(curve: &Curve, size: &Size) -> Result<f64, Failure> {
    let numbers = [size.n, size.procs, size.work, size.rounds];
    let program = std::env::current_exe().map_err(|error| Failure::new("failed", error))?;
    let mut command = Command::new(program);
    command
        .args([FLAG, curve.name])
        .args(numbers.map(|number| number.to_string()))
        .arg(Mode::Own.short())
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = die_with_parent(&mut command)
        .spawn()
        .map_err(|error| Failure::new("failed", error))?;
    let answer = answer_of(&mut child);
    // Both fail only for a child that has already been waited for.
    let _ = child.kill();
    let _ = child.wait();
    answer
}

fn answer_of(child: &mut Child) -> Result<f64, Failure> {
    let failed = |error: io::Error| Failure::new("failed", error);
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        if start.elapsed() > PATIENCE {
            let why = format!("no answer after {PATIENCE:?}");
            return Err(Failure::new("stalled", why));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if !status.success() {
        return Err(Failure::new("failed", status));
    }
    let mut said = String::new();
    let output = child.stdout.as_mut().expect("the output is a pipe");
    output.read_to_string(&mut said).map_err(failed)?;
    let value = said.trim().parse();
    value.map_err(|_| Failure::new("failed", format!("its process printed `{said}`")))
}

/// The memory that is available without swapping.
fn free_bytes() -> io::Result<f64> {
    let info = fs::read_to_string("/proc/meminfo")?;
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<f64>().ok());
    let kib = kib.ok_or_else(|| io::Error::other("/proc/meminfo has no MemAvailable"))?;
    Ok(kib * 1024.0)
}

/// The child's part: `CURVE n procs work rounds MODE`, as `in_child` writes it. Started by hand
/// with shared thread-locals, it can run under valgrind.
pub fn point(arguments: &[String]) -> io::Result<()> {
    let nonsense = || io::Error::other(format!("`{FLAG}` is for the program itself"));
    let [name, numbers @ .., mode] = arguments else {
        return Err(nonsense());
    };
    let numbers = numbers.iter().map(|number| number.parse().ok());
    let numbers = numbers.map(|number| number.filter(|number| *number >= 1));
    let numbers = numbers.collect::<Option<Vec<usize>>>();
    let Some(&[n, procs, work, rounds]) = numbers.as_deref() else {
        return Err(nonsense());
    };
    let curve = CURVES.iter().find(|curve| curve.name == name);
    let curve = curve.ok_or_else(nonsense)?;
    let mode = Mode::find(mode).ok_or_else(nonsense)?;
    let size = Size {
        n,
        procs,
        work,
        rounds,
        has_warm_up: !curve.is_fresh,
    };
    let runtime = port::runtime(mode, procs)?;
    let best = runtime.run(|| (curve.play)(&size))?;
    crate::print(&format!("{best}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_program_itself_asks_for_points() {
        let complaint = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            point(&words).expect_err(line).to_string()
        };
        for line in [
            "",
            "spawn",
            "spawn 1 1 1 own",
            "spawn 0 1 1 1 own",
            "juggle 1 1 1 1 own",
            "spawn 1 1 1 1 borrowed",
        ] {
            assert!(complaint(line).contains(FLAG), "{line}");
        }
    }

    #[test]
    fn every_curve_can_be_played() {
        let size = Size {
            n: 20,
            procs: 2,
            work: 200,
            rounds: 2,
            has_warm_up: true,
        };
        let runtime = port::runtime(Mode::Own, size.procs).expect("a runtime");
        for curve in &CURVES {
            let value = runtime.run(|| (curve.play)(&size));
            let value = value.unwrap_or_else(|error| panic!("{}: {error}", curve.name));
            assert!(value.is_finite() && value >= 0.0, "{}: {value}", curve.name);
        }
    }

    #[test]
    fn what_a_process_says_or_does_not_is_understood() {
        let run = |script: &str| {
            let child = Command::new("sh")
                .args(["-c", script])
                .stdout(Stdio::piped())
                .spawn();
            answer_of(&mut child.expect("a shell"))
        };
        assert_eq!(run("echo 12.5").ok(), Some(12.5));
        for script in ["echo twelve", "exit 3", "kill -9 $$"] {
            let failure = run(script).expect_err(script);
            assert_eq!(failure.short, "failed", "{failure}");
        }
    }

    #[test]
    fn memory_is_known() {
        assert!(free_bytes().expect("a number") > 0.0);
    }
}
