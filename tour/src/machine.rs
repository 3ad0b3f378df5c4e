//! CPUs, memory, threads and mappings of this machine and this process.

use std::fs;
use std::io;
use std::path::Path;

/// CPUs that this process may use.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Their number, with the noun.
pub(crate) fn cpus_in_words() -> String {
    match cpus() {
        1 => "1 CPU".into(),
        n => format!("{n} CPUs"),
    }
}

/// Figures of this process at one moment.
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

/// The kernel's id of the calling thread; 0 if `/proc` does not show it.
pub(crate) fn thread() -> u64 {
    let link = fs::read_link("/proc/thread-self").ok();
    let number = link.and_then(|link| link.file_name()?.to_str()?.parse().ok());
    number.unwrap_or(0)
}

/// How many memory mappings a process may have, if the system shows it.
pub(crate) fn mappings_max() -> Option<u64> {
    read_number(Path::new("/proc/sys/vm/max_map_count"))
}

/// How many bytes can still be allocated without swapping, if known: the least of the machine and
/// of every control group around this process.
pub(crate) fn memory_available() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| number(&text, "MemAvailable:"));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let groups = groups
        .lines()
        .filter_map(|line| group_available(root, line));
    groups.chain(machine.map(|kib| kib * 1024)).min()
}

/// What the groups of one line of `/proc/self/cgroup` leave, from the innermost outwards. A
/// container may see its own group as the outermost, whatever the line contains.
fn group_available(root: &Path, line: &str) -> Option<u64> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    let root = match controllers {
        "" => root.to_path_buf(),
        "memory" => root.join("memory"),
        _ => return None,
    };
    let path = path.trim_start_matches('/');
    let groups = Path::new(path).ancestors().map(|path| root.join(path));
    groups.filter_map(|group| left_in(&group)).min()
}

/// What one group leaves: its limit minus memory in use that cannot be dropped.
fn left_in(group: &Path) -> Option<u64> {
    let either = |new: &str, old: &str| {
        read_number(&group.join(new)).or_else(|| read_number(&group.join(old)))
    };
    let limit = either("memory.max", "memory.limit_in_bytes")?;
    let used = either("memory.current", "memory.usage_in_bytes")?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let files =
        number(&stat, "inactive_file ").unwrap_or(0) + number(&stat, "active_file ").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(files)))
}

fn read_number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number after a field's name.
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
    fn this_process_has_memory_threads_and_a_machine() {
        let status = status().unwrap();
        assert!(status.memory_bytes > 0 && status.threads > 0);
        assert!(memory_available().is_some_and(|bytes| bytes > 0));
        assert!(mappings_max().is_some_and(|n| n > 0));
        assert!(cpus() > 0);
        let (here, other) = (thread(), std::thread::spawn(thread).join().unwrap());
        assert!(here > 0 && here == thread() && here != other);
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = std::env::temp_dir().join(format!("gosched-tour-{}", std::process::id()));
        let inner = root.join("a/b");
        fs::create_dir_all(&inner).unwrap();
        let put =
            |folder: &Path, file: &str, text: &str| fs::write(folder.join(file), text).unwrap();
        put(&inner, "memory.max", "max\n");
        put(&inner, "memory.current", "5\n");
        put(&root.join("a"), "memory.max", "1000\n");
        put(&root.join("a"), "memory.current", "700\n");
        put(
            &root.join("a"),
            "memory.stat",
            "anon 100\ninactive_file 250\nactive_file 50\n",
        );
        fs::create_dir_all(root.join("memory")).unwrap();
        put(&root.join("memory"), "memory.limit_in_bytes", "2000\n");
        put(&root.join("memory"), "memory.usage_in_bytes", "500\n");
        let available = |line| group_available(&root, line);
        assert_eq!(available("0::/a/b"), Some(600));
        assert_eq!(available("0::/"), None);
        assert_eq!(available("4:memory:/gone"), Some(1_500));
        assert_eq!(available("5:cpu,cpuacct:/a"), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
