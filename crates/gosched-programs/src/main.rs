//! Real programs on unmodified crates whose calls block: `programs NAME [COUNT]`.
//!
//! Each program runs in goroutines, asserts its own results and prints them to stdout, equal in
//! every run. With `GOSCHED_HOOK=off` the same program runs without hooks; a blocked goroutine then
//! holds a thread.
//!
//! A program stops once at its moment of most concurrency, see [`crowd::all_wait`]. The runner
//! takes the highest numbers of threads in the whole run, see [`peak::Peak`], and asserts:
//!
//! | hooks | |
//! |---|---|
//! | on | at most [`MOST_THREADS`] are busy |
//! | on, preemption off | at most [`MOST_THREADS`] exist |
//! | off | there are at least as many as goroutines that block at that moment |
//!
//! A goroutine that is preempted while it computes keeps its thread until its next turn. That has
//! nothing to do with hooks. So the number of all threads is asserted where there are no such
//! goroutines: with `GOSCHED_DEBUG=asyncpreemptoff=1`.

use gosched_hook as _;

mod c_library;
mod crowd;
mod http_server;
mod peak;
mod programs;

use gosched::Runtime;
use peak::Peak;
use programs::Program;

/// Functions that a program may need and that this build does not hook. Without them the program has
/// no bound.
const NOT_IN_THIS_BUILD: &[&str] = if cfg!(feature = "thread") {
    &[]
} else {
    &["pthread_create"]
};

/// The most threads that a program may have with hooks, those of the runtime and of the crates
/// included.
const MOST_THREADS: usize = 32;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    if name == programs::stdin::CHILD {
        gosched::run(programs::stdin::child);
        return;
    }
    let Some(program) = programs::ALL.iter().find(|p| p.name == name) else {
        eprintln!("programs NAME [COUNT]; NAME is one of:");
        programs::ALL.iter().for_each(|p| eprintln!("  {}", p.name));
        std::process::exit(2);
    };
    let count = match arguments.next() {
        Some(count) => count.parse().expect("COUNT is a number"),
        None => program.count,
    };
    gosched_hook::install().expect("the hooks work");
    prepare_descriptors();
    let run = program.run;
    let runtime = Runtime::builder().build().expect("a runtime");
    let peak = peak::during(&runtime, || runtime.run(move || run(count)));
    let preempts = runtime.metrics().preemption;
    judge(program, count, peak, preempts);
}

/// Asserts what the number of threads must be. The number goes to stderr: stdout is equal in every
/// run.
fn judge(program: &Program, count: usize, peak: Peak, preempts: bool) {
    let name = program.name;
    let (on, off): (Vec<&str>, Vec<&str>) = program.needs.iter().partition(|name| is_hooked(name));
    let Peak { all, busy } = peak;
    let with = match preempts {
        true => "preemption",
        false => "no preemption",
    };
    if off.is_empty() {
        eprintln!("{name}: {all} threads, {busy} busy; with hooks and {with}");
        let bounded = if preempts { busy } else { all };
        assert!(
            bounded <= MOST_THREADS,
            "at most {MOST_THREADS} threads expected"
        );
    } else if on.is_empty() {
        eprintln!("{name}: {all} threads, {busy} busy; without hooks");
        let blocked = (program.blocks)(count);
        assert!(all >= blocked, "{blocked} goroutines blocked at once");
    } else {
        if std::env::var("GOSCHED_HOOK").is_ok_and(|hooks| hooks == "on") {
            let mut off = off.iter();
            let is_known = off.all(|name| NOT_IN_THIS_BUILD.contains(name));
            assert!(is_known, "a program needs hooks that do not exist");
        }
        let off = off.join(", ");
        eprintln!("{name}: {all} threads, {busy} busy; no bound, for there are no hooks for {off}");
    }
}

/// Whether calls of this function park goroutines.
fn is_hooked(name: &str) -> bool {
    let mut functions = gosched_hook::FUNCTIONS.iter();
    functions.any(|f| (f.name() == name || f.aliases().contains(&name)) && !f.is_off())
}

/// Some programs open more descriptors than the usual limit of 1,024.
///
/// The kernel's table of descriptors is made large here, too. It grows by doubling. In a process
/// with threads, growing takes milliseconds, and all calls that open a descriptor wait for it: each
/// holds a thread, with hooks or without.
fn prepare_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes the limit, and then reads it. The new descriptor is closed at once.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        let high = libc::fcntl(
            0,
            libc::F_DUPFD_CLOEXEC,
            limit.rlim_max.min(4_000) as i32 - 1,
        );
        assert!(high >= 0, "{}", std::io::Error::last_os_error());
        libc::close(high);
    }
}
