//! Raises the limit of open files as far as the system allows.
//!
//! `tcp_idle` needs thousands. Children inherit the limit.

use std::io;

/// Open files of a process besides the connections it counts.
const OTHERS: usize = 100;

/// Raises the limit as far as possible. If the system refuses, it stays as it is.
pub fn raise_files() {
    if let Ok(mut limit) = files() {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the kernel reads one `rlimit` in this frame.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

/// Checks that this many connections are possible; the error has the limit that is needed.
pub fn need_files(connections: usize) -> io::Result<()> {
    let needed = connections + OTHERS;
    let limit = files()?;
    if limit.rlim_cur >= needed as libc::rlim_t {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "it needs {needed} open files and may have {} (the hard limit is {}); \
         raise it: `ulimit -Hn {needed}` as root, or `nofile` in /etc/security/limits.conf",
        limit.rlim_cur, limit.rlim_max
    )))
}

fn files() -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one `rlimit` in this frame.
    match unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } {
        0 => Ok(limit),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_says_what_is_needed() {
        need_files(1).expect("tests have that many");
        let most = files().expect("a limit").rlim_cur;
        // Without a limit there is nothing to check.
        if most < 1 << 40 {
            let complaint = need_files(most as usize).expect_err("too many").to_string();
            assert!(complaint.contains(&(most as usize + OTHERS).to_string()));
        }
    }
}
