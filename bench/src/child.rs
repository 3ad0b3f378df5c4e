//! Decides how a workload gets a fresh process: the program starts itself again
//! with `--child WORKLOAD n procs MODE`, which makes it play that workload's role.
//!
//! Memory that a process once used stays with its allocator and in its page
//! tables, so a second measurement in it would begin from a false start. And
//! watching a process from outside is the only way not to be part of what is
//! watched. The child talks to its parent through its standard output; what it
//! has to say to the user goes to standard error, which both share.
//!
//! No child of any kind outlives who started it, however that ends: see
//! `die_with_parent`.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::port::Mode;
use crate::workload::Params;

/// The argument that makes the program a child.
pub const FLAG: &str = "--child";

/// Has the kernel kill what the command starts when the thread that starts it
/// ends, even if it is killed itself. So start children from the main thread,
/// which ends with the process.
pub fn die_with_parent(command: &mut Command) -> &mut Command {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure does two system calls, and
    // allocates nothing.
    unsafe { command.pre_exec(move || ask_for_death_with(parent)) }
}

/// In a child, before it becomes another program.
fn ask_for_death_with(parent: u32) -> io::Result<()> {
    // SAFETY: asks for a signal, and reads no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // A parent that ended before the kernel was asked sends no signal.
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
    /// Starts a process that plays the child's part of `workload`.
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

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line the child prints; an error if it ends instead.
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
