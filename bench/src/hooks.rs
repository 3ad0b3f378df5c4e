//! Measures what hooks do that no clock shows: system calls for an echo, and the cost of a hooked
//! call on a plain thread.
//!
//! strace counts the system calls of `std_echo`, in two runs of different length. Their difference
//! has no start of the program, no connections and no end. strace slows every call down, so the
//! times of such a run mean nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::child::die_with_parent;
use crate::compare::contestants::{HOOKED, build_hooked, build_peers};
use crate::compare::round;
use crate::existing::STD_ECHO;
use crate::golang::scratch;
use crate::progress::Progress;

/// Echoes of the two runs.
const SIZES: [usize; 2] = [20_000, 60_000];
/// The most system calls of an echo with hooks.
const GOAL: f64 = 6.5;
/// Calls that are rarer than this, for each echo, have no line of their own.
const RARE: f64 = 0.05;

/// The number of calls of each system call.
type Calls = BTreeMap<String, u64>;

/// Prints both reports.
pub fn run(procs: usize) -> io::Result<()> {
    let mut progress = Progress::new();
    let hooked = build_hooked(&mut |text| progress.note(text))?;
    let peers = build_peers(&mut |text| progress.note(text))?;
    progress.clear();
    plain(&hooked)?;
    let own = std::env::current_exe()?;
    for (runtime, program, arguments) in [
        ("gosched-hooked", &hooked, &[HOOKED][..]),
        ("gosched", &own, &[round::FLAG, "own"]),
        ("tokio", &peers, &["tokio"]),
        ("std", &peers, &["std"]),
    ] {
        let [few, many] = SIZES.map(|echoes| calls(program, arguments, echoes, procs));
        crate::print(&lines(runtime, &few?, &many?))?;
    }
    crate::print(&format!(
        "{} gosched-hooked calls_goal {GOAL} count\n",
        STD_ECHO.name
    ))
}

/// The cost of a hooked call on a plain thread, as the program with hooks prints it.
fn plain(hooked: &Path) -> io::Result<()> {
    let output = Command::new(hooked)
        .arg("plain")
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        let status = output.status;
        return Err(io::Error::other(format!("gosched-hooked plain: {status}")));
    }
    crate::print(&String::from_utf8_lossy(&output.stdout))
}

/// The system calls of a whole process with one round of this many echoes.
fn calls(program: &Path, arguments: &[&str], echoes: usize, procs: usize) -> io::Result<Calls> {
    let place = scratch()?;
    fs::create_dir_all(&place)?;
    let counts = place.join(format!("strace-{}", std::process::id()));
    let mut command = Command::new("strace");
    command
        .args(["--follow-forks", "--summary-only", "--output"])
        .arg(&counts)
        .arg(program)
        .args(arguments)
        .arg(STD_ECHO.name)
        .args([echoes.to_string(), procs.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = die_with_parent(&mut command)
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("strace: {error}; install it")))?;
    let input = child.stdin.take();
    input.map_or(Ok(()), |mut input| input.write_all(b"round\n"))?;
    let output = child.wait_with_output()?;
    let table = fs::read_to_string(&counts);
    // Only this function has the file.
    let _ = fs::remove_file(&counts);
    match String::from_utf8_lossy(&output.stdout).contains("done\n") {
        true => parse(&table?).ok_or_else(|| io::Error::other("strace printed no table")),
        false => Err(io::Error::other(format!(
            "{} did no round under strace: {}",
            program.display(),
            output.status
        ))),
    }
}

/// The table of strace: five or six columns, of which the fourth has the calls and the last the
/// name; the one between them, of errors, may be empty.
fn parse(table: &str) -> Option<Calls> {
    let mut calls = Calls::new();
    for line in table.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        let (Some(number), Some(name)) = (words.get(3), words.last()) else {
            continue;
        };
        if let Ok(number) = number.parse()
            && *name != "total"
        {
            calls.insert((*name).to_owned(), number);
        }
    }
    (!calls.is_empty()).then_some(calls)
}

/// The lines of one runtime: all system calls of an echo, and each that is not rare.
fn lines(runtime: &str, few: &Calls, many: &Calls) -> String {
    let echoes = (SIZES[1] - SIZES[0]) as f64;
    let each = |name: &str| {
        let of = |calls: &Calls| calls.get(name).copied().unwrap_or_default() as f64;
        (of(many) - of(few)) / echoes
    };
    let line = |metric: &str, value: f64| {
        format!("{} {runtime} {metric} {value:.2} count\n", STD_ECHO.name)
    };
    let all: Vec<_> = many.keys().map(|name| (name, each(name))).collect();
    let mut text = line("calls", all.iter().map(|(_, each)| each).sum());
    for (name, each) in all.iter().filter(|(_, each)| *each >= RARE) {
        text += &line(&format!("calls_{name}"), *each);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.100000           1    120000     20000 recvfrom
 40.00    0.050000           1     60000           sendto
------ ----------- ----------- --------- --------- ----------------
100.00    0.150000           0    180000     20000 total
";

    #[test]
    fn the_table_is_read_with_and_without_errors() {
        let calls = parse(TABLE).expect("a table");
        assert_eq!(calls.len(), 2);
        assert_eq!((calls["recvfrom"], calls["sendto"]), (120_000, 60_000));
        assert!(parse("").is_none());
    }

    #[test]
    fn what_both_runs_have_is_left_out() {
        let many = parse(TABLE).expect("a table");
        let few = Calls::from([("recvfrom".to_owned(), 40_000), ("close".to_owned(), 7)]);
        let expected = "std_echo own calls 3.50 count\nstd_echo own calls_recvfrom 2.00 count\n\
                        std_echo own calls_sendto 1.50 count\n";
        assert_eq!(lines("own", &few, &many), expected);
    }
}
