//! What the kernel says about this process: memory and threads, from `/proc/self/status`.

use std::fs;
use std::io;

/// Figures of one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    /// Memory in use, page tables included.
    pub(crate) memory_bytes: u64,
    pub(crate) threads: u64,
}

/// Reads them. The kernel's count of memory may be off by some hundred KiB.
pub(crate) fn status() -> io::Result<Status> {
    let text = fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| {
        number(&text, name)
            .ok_or_else(|| io::Error::other(format!("/proc/self/status has no {name}")))
    };
    Ok(Status {
        memory_bytes: (field("VmRSS:")? + field("VmPTE:")?) * 1024,
        threads: field("Threads:")?,
    })
}

/// The number behind a field's name.
fn number(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "VmRSS:\t     240 kB\nVmPTE:\t      48 kB\nThreads:\t7\n";
        assert_eq!(number(text, "VmRSS:"), Some(240));
        assert_eq!(number(text, "Threads:"), Some(7));
        assert_eq!(number(text, "Vm:"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_thread() {
        let status = status().unwrap();
        assert!(status.memory_bytes > 0 && status.threads > 0);
    }
}
