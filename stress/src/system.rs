//! Open files, threads and memory of this process, as the system counts them.
//!
//! The library's own counters cannot show what the library has lost.

use std::time::{Duration, Instant};

fn status_number(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).unwrap_or(0)
}

pub fn threads() -> usize {
    status_number("Threads:")
}

/// Resident memory, in KiB.
pub fn rss_kib() -> usize {
    status_number("VmRSS:")
}

/// The peak of resident memory, in KiB.
pub fn peak_kib() -> usize {
    status_number("VmHWM:")
}

/// How many files are open.
pub fn fds() -> usize {
    // The listing itself is one.
    std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1))
}

/// The open files by type, for a report.
pub fn fd_list() -> String {
    let Ok(files) = std::fs::read_dir("/proc/self/fd") else {
        return String::new();
    };
    let mut names: Vec<String> = files
        .flatten()
        .map(|file| {
            let link = std::fs::read_link(file.path()).unwrap_or_default();
            let name = link.display().to_string();
            match name.starts_with("anon_inode") {
                true => name,
                false => name.split('[').next().unwrap_or_default().to_owned(),
            }
        })
        .collect();
    names.sort();
    let mut text = String::new();
    for run in names.chunk_by(|a, b| a == b) {
        text += &format!(" {}×{}", run.len(), run[0]);
    }
    text
}

/// One line per thread: its name, its state, the system call it is in.
pub fn thread_list() -> String {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
        return String::new();
    };
    let line = |path: std::path::PathBuf| {
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let stat = read("stat");
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        let state = state.split(' ').next().unwrap_or_default().to_owned();
        let call = read("syscall");
        let call: Vec<_> = call.split_whitespace().take(3).collect();
        format!("  {} {state} {}\n", read("comm").trim(), call.join(" "))
    };
    let mut lines: Vec<String> = tasks.flatten().map(|task| line(task.path())).collect();
    lines.sort();
    lines.concat()
}

/// Waits, on a plain thread, until `is_so` returns true; returns false if that takes too long.
pub fn eventually(patience: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// The id of the calling thread.
pub fn tid() -> i32 {
    // SAFETY: a system call without arguments, which touches no memory.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Raises the limit of open files as far as the system allows.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls use the struct in this frame.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max.min(1 << 16);
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}
