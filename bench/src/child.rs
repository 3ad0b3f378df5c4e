//! Runs a workload in a fresh process. The program starts itself again with `--child WORKLOAD n
//! procs MODE`, which selects that workload's role.
//!
//! A fresh process is needed because memory that a process once used stays with its allocator and
//! in its page tables. A second measurement in it would be wrong. And only a process that is
//! watched from outside is not disturbed by the measurement. The child reports to its parent
//! through standard output. Its messages to the user go to standard error, which both share.
//!
//! No child outlives its parent, however the parent ends: see `die_with_parent`.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::port::Mode;
use crate::workload::Params;

/// The argument that makes the program a child.
pub const FLAG: &str = "--child";

/// Makes the kernel kill the command's process when the thread that starts it ends, even by a
/// signal. So start children from the main thread, which ends with the process.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes two system calls. It allocates nothing and
    // takes no lock.
    unsafe { command.pre_exec(move || ask_for_death_with(parent)) }
}

/// In the child, before exec.
fn ask_for_death_with(parent: u32) -> io::Result<()> {
    // SAFETY: the call takes numbers and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A parent that ended before this call sends no signal.
    match std::os::unix::process::parent_id() == parent {
        true => Ok(()),
        false => Err(io::ErrorKind::BrokenPipe.into()),
    }
}

/// A child process; dropping it ends it.
pub struct Role {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Role {
    /// Starts a process that runs the child's part of `workload`.
    pub fn start(workload: &str, params: &Params, mode: Mode) -> io::Result<Role> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([FLAG, workload])
            .args([params.n.to_string(), params.procs.to_string()])
            .arg(mode.short())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = die_with_parent(&mut command).spawn()?;
        let output = child.stdout.take().expect("the output is a pipe");
        Ok(Role {
            child,
            output: BufReader::new(output),
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that the child prints; an error if it ends instead.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            let status = self.child.wait()?;
            return Err(io::Error::other(format!("its child process: {status}")));
        }
        Ok(line.trim_end().to_owned())
    }

    /// Waits for the child's end, which must be a success.
    pub fn finish(mut self) -> io::Result<()> {
        let status = self.child.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(io::Error::other(format!("its child process: {status}")))
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        // Both fail only for a child that has already been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn is_alive(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn a_child_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            die_with_parent(command.arg("600")).spawn()
        };
        let mut ours = start().expect("a child");
        let theirs = std::thread::spawn(start).join().expect("no panic");
        let mut theirs = theirs.expect("a child");
        let deadline = Instant::now() + Duration::from_secs(60);
        while is_alive(theirs.id()) {
            assert!(Instant::now() < deadline, "{} is still there", theirs.id());
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(is_alive(ours.id()));
        ours.kill().expect("it still runs");
        ours.wait().and(theirs.wait()).expect("both have ended");
    }
}
