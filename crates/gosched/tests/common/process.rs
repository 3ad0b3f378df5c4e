//! This process as the kernel sees it.
//!
//! Counts of threads, memory, files and CPU time are those of the whole process, so a test that
//! asserts on them runs in a child.

use std::time::Duration;

/// The number of the calling thread.
pub fn tid() -> i32 {
    // SAFETY: a system call without arguments.
    unsafe { libc::gettid() }
}

/// How many threads this process has.
pub fn thread_count() -> usize {
    status_number("Threads:")
}

/// Resident memory of this process, in KiB.
pub fn rss_kib() -> usize {
    status_number("VmRSS:")
}

fn status_number(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("own status");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).expect("a number")
}

/// How many files this process has open.
pub fn fd_count() -> usize {
    // The listing itself is one.
    std::fs::read_dir("/proc/self/fd")
        .expect("own files")
        .count()
        - 1
}

/// The CPU time that this process has used.
pub fn process_cpu_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The CPU time that the calling thread has used.
pub fn thread_cpu_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes to `time` of this frame.
    assert_eq!(unsafe { libc::clock_gettime(id, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Lets this process map `more` bytes beyond those it has; returns the limit of before. For
/// children only.
pub fn limit_address_space(more: u64) -> libc::rlimit {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("own memory");
    let pages = statm.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let mut old = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a limit of this process; the calls read and write variables of this frame.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_AS, &mut old), 0);
        let new = libc::rlimit {
            rlim_cur: pages.expect("a number") * 4096 + more,
            rlim_max: old.rlim_max,
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &new), 0);
    }
    old
}

/// One line per thread of a process: its name, and where it is in the kernel.
pub fn threads_of(pid: &str) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return String::new();
    };
    let line = |path: std::path::PathBuf| {
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let stat = read("stat");
        // Empty if the thread has ended meanwhile.
        let state = stat.rsplit(')').next().and_then(|rest| rest.get(..2));
        format!(
            "{}:{} syscall {}",
            read("comm").trim(),
            state.unwrap_or(" ?"),
            read("syscall").trim()
        )
    };
    let lines: Vec<_> = tasks.flatten().map(|task| line(task.path())).collect();
    lines.join("\n")
}
