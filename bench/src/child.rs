//! Decides how a workload gets a fresh process: the program starts itself again
//! with `--child WORKLOAD n procs MODE`, which makes it play that workload's role.
//!
//! Memory that a process once used stays with its allocator and in its page
//! tables, so a second measurement in it would begin from a false start. And
//! watching a process from outside is the only way not to be part of what is
//! watched. The child talks to its parent through its standard output; what it
//! has to say to the user goes to standard error, which both share.

use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::port::Mode;
use crate::workload::Params;

/// The argument that makes the program a child.
pub const FLAG: &str = "--child";

/// A child process; dropping it ends it.
pub struct Role {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Role {
    /// Starts a process that plays the child's part of `workload`.
    pub fn start(workload: &str, params: &Params, mode: Mode) -> io::Result<Role> {
        let mut child = Command::new(std::env::current_exe()?)
            .args([FLAG, workload])
            .args([params.n.to_string(), params.procs.to_string()])
            .arg(mode.short())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
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
