//! Decides how many files the program may have open: as many as the system
//! allows, since `tcp_idle` needs thousands. Children inherit it.

use std::io;

/// Files that a process has open beside those it counts.
const OTHERS: usize = 100;

/// Raises the limit as far as it goes. A system that refuses leaves it as it is.
pub fn raise_files() {
    if let Ok(mut limit) = files() {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the kernel reads one `rlimit`.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

/// Whether so many connections can be had; if not, says what is needed.
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
    // SAFETY: the kernel writes one `rlimit`, which lives in this frame.
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
        // Where there is no limit there is nothing to say.
        if most < 1 << 40 {
            let complaint = need_files(most as usize).expect_err("too many").to_string();
            assert!(complaint.contains(&(most as usize + OTHERS).to_string()));
        }
    }
}
