//! Memory, CPU time and wake-ups of a process, as the kernel counts them.
//!
//! The kernel's counters cover all threads and do not disturb the measurement.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

/// The memory of this process in bytes: resident pages and page tables. The kernel counts resident
/// pages per CPU and adds them up lazily, so the number may be off by some hundred KiB.
///
/// Never inlined: goroutines that share their thread's thread-locals call it.
#[inline(never)]
pub fn own_memory_bytes() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = field(&status, "VmRSS:")? + field(&status, "VmPTE:")?;
    Ok(kib * 1024)
}

/// The CPU time of all threads of this process so far, in user code and in the kernel, ended
/// threads included.
///
/// Never inlined: goroutines that share their thread's thread-locals call it.
#[inline(never)]
pub fn own_cpu() -> io::Result<Duration> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel writes one `rusage` to memory of this frame.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has written the whole struct.
    let usage = unsafe { usage.assume_init() };
    let span = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    Ok(span(usage.ru_utime) + span(usage.ru_stime))
}

/// The CPU time of all threads of another process so far, ended threads included.
pub fn cpu_of(pid: u32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: libc writes one number in this frame.
    match unsafe { libc::clock_getcpuclockid(pid as libc::pid_t, &mut clock) } {
        0 => {}
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: the kernel writes one `timespec` to memory of this frame.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has written the whole struct.
    let time = unsafe { time.assume_init() };
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The counters of a process's threads at one moment.
pub struct Activity {
    /// By thread id.
    threads: BTreeMap<u32, Thread>,
}

struct Thread {
    switches: u64,
    cpu_ns: u64,
}

/// The difference between two moments.
pub struct Change {
    /// How often a thread was put on a CPU.
    pub wakeups: u64,
    /// CPU time of all threads.
    pub cpu_ns: u64,
}

impl Activity {
    /// Reads the counters of every thread of a process.
    pub fn of(pid: u32) -> io::Result<Activity> {
        let mut threads = BTreeMap::new();
        for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
            let entry = entry?;
            let tid = number(&entry.file_name().to_string_lossy())?;
            match Thread::read(&entry.path()) {
                Ok(thread) => drop(threads.insert(tid as u32, thread)),
                // The thread ended between the listing and the read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        // The process is about to end; zero counts would look like an idle one.
        if threads.is_empty() {
            return Err(io::Error::other(format!("process {pid} has no threads")));
        }
        Ok(Activity { threads })
    }

    /// The difference to an earlier moment. The counts of an ended thread are lost. It had to wake
    /// up to end, so it counts as one wake-up.
    pub fn since(&self, earlier: &Activity) -> Change {
        let is_gone = |tid: &&u32| !self.threads.contains_key(tid);
        let mut change = Change {
            wakeups: earlier.threads.keys().filter(is_gone).count() as u64,
            cpu_ns: 0,
        };
        for (tid, now) in &self.threads {
            let before = earlier.threads.get(tid);
            change.wakeups += now.switches - before.map_or(0, |before| before.switches);
            change.cpu_ns += now.cpu_ns - before.map_or(0, |before| before.cpu_ns);
        }
        change
    }
}

impl Thread {
    fn read(task: &Path) -> io::Result<Thread> {
        let status = fs::read_to_string(task.join("status"))?;
        let voluntary = field(&status, "voluntary_ctxt_switches:")?;
        let forced = field(&status, "nonvoluntary_ctxt_switches:")?;
        let schedstat = fs::read_to_string(task.join("schedstat"))?;
        let cpu_ns = schedstat.split_whitespace().next().unwrap_or_default();
        Ok(Thread {
            switches: voluntary + forced,
            cpu_ns: number(cpu_ns)?,
        })
    }
}

/// The number after a label at the start of a line.
fn field(text: &str, label: &str) -> io::Result<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label));
    let word = rest.and_then(|rest| rest.split_whitespace().next());
    number(word.ok_or_else(|| io::Error::other(format!("/proc has no {label}")))?)
}

fn number(word: &str) -> io::Result<u64> {
    word.parse()
        .map_err(|_| io::Error::other(format!("/proc has `{word}` for a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(threads: &[(u32, u64, u64)]) -> Activity {
        let threads = threads
            .iter()
            .map(|&(tid, switches, cpu_ns)| (tid, Thread { switches, cpu_ns }))
            .collect();
        Activity { threads }
    }

    #[test]
    fn threads_that_stay_come_and_go_are_counted() {
        let before = activity(&[(1, 5, 100), (2, 7, 100)]);
        let after = activity(&[(1, 6, 150), (3, 2, 30)]);
        let change = after.since(&before);
        // One by the first thread, one by the end of the second, two by the third.
        assert_eq!(change.wakeups, 4);
        assert_eq!(change.cpu_ns, 80);
    }

    #[test]
    fn threads_that_have_ended_still_count() {
        let pid = std::process::id();
        let burn = || {
            let start = std::time::Instant::now();
            while start.elapsed() < Duration::from_millis(20) {}
        };
        let before = cpu_of(pid).expect("own clock");
        std::thread::spawn(burn).join().expect("it does not panic");
        let own = own_cpu().expect("own usage");
        let after = cpu_of(pid).expect("own clock");
        assert!(after > before, "{before:?}, {after:?}");
        assert!(own < after + Duration::from_secs(1));
    }

    #[test]
    fn a_live_process_can_be_read() {
        assert!(own_memory_bytes().expect("own status") > 0);
        let look = Activity::of(std::process::id()).expect("own threads");
        assert!(!look.threads.is_empty());
    }
}
