//! A worker: runs rounds one after another and prints the figures of each. A failed round is the
//! last one.
//!
//! Rounds of one kind share a process, so that growing memory shows.

use std::io::Write;
use std::process::ExitCode;

use crate::args::Args;
use crate::plan::{Kind, Plan, round_seed};
use crate::report::Figures;
use crate::{round, system, watch};

/// How much memory may grow from one third of a process's rounds to the next, in KiB. A large round
/// leaves up to 40 MiB in caches, once.
const GROWTH_KIB: usize = 32 << 10;

fn prepare() {
    system::raise_file_limit();
    // SAFETY: the call takes numbers and touches no memory. The process is killed with its
    // supervisor.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    watch::install_hook();
    // Two threads that a process keeps once it has them: one delivers signals, one polls for plain
    // threads.
    crate::mixes::signals::prepare();
    crate::mixes::tcp::prepare();
    watch::start();
}

/// What a worker prints when it fails for all its rounds together.
pub const GROWS: &str = "grows";

/// Prints a line for the supervisor.
fn tell(text: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Runs one round; returns false if it failed, and the resident memory.
fn run(args: &Args, n: u64, seed: u64) -> (bool, usize) {
    let plan = Plan::new(seed, &args.only).narrow(&args.just);
    let what = format!("round {n} {seed:#x} {plan}");
    tell(&what);
    watch::begin(what.clone());
    let outcome = round::run(plan);
    watch::end();
    let figures = Figures::of(&outcome).line();
    if outcome.complaints.is_empty() {
        tell(&figures);
        return (true, outcome.rss_kib);
    }
    watch::say(&format!("FAILED: {what}"));
    for complaint in &outcome.complaints {
        watch::say(&format!("  {complaint}"));
    }
    watch::say(&outcome.env.ledger.open_entries(&crate::mixes::names()));
    tell(&format!("{figures} failed=1"));
    (false, outcome.rss_kib)
}

/// Runs some rounds of a run, all of one kind.
pub fn rounds(args: &Args, run_seed: u64, first: u64, count: u64) -> ExitCode {
    prepare();
    let mut memory = Vec::new();
    for n in first..first + count {
        let (is_good, rss_kib) = run(args, n, round_seed(run_seed, n));
        memory.push(rss_kib);
        if !is_good {
            return ExitCode::FAILURE;
        }
    }
    if Kind::of(round_seed(run_seed, first)) == Kind::Clean && grows(&memory) {
        let last = first + count - 1;
        watch::say(&format!(
            "FAILED: rounds {first} to {last}: memory grows, in KiB after each: {memory:?}"
        ));
        tell(GROWS);
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Whether memory grew by more than caches explain, twice: a cache grows only once.
fn grows(memory: &[usize]) -> bool {
    let third = memory.len() / 3;
    if third < 4 {
        return false;
    }
    let most = |part: &[usize]| part.iter().copied().max().unwrap_or(0);
    let most: Vec<usize> = memory.chunks_exact(third).take(3).map(most).collect();
    most.windows(2).all(|pair| pair[1] > pair[0] + GROWTH_KIB)
}

/// Runs one round repeatedly.
pub fn one(args: &Args, seed: u64) -> ExitCode {
    prepare();
    for n in 0..args.times {
        if !run(args, n, seed).0 {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
        sizes.map(|mib| mib << 10).collect()
    }

    #[test]
    fn what_each_round_leaves_behind_is_growth() {
        assert!(grows(&mib((0..24).map(|n| 60 + 5 * n))));
        assert!(!grows(&mib((0..24).map(|n| 60 + n))));
        assert!(!grows(&mib((0..6).map(|n| 60 + 50 * n))), "too few to tell");
    }

    #[test]
    fn what_one_large_round_leaves_is_not() {
        for large in 0..24 {
            let sizes = (0..24).map(|n| if n < large { 6 } else { 80 });
            assert!(!grows(&mib(sizes)), "{large}");
        }
    }
}
