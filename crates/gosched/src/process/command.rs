//! The command of a child process: std's builder, and what it takes to start one as a goroutine.
//!
//! std starts the process, in a marked call.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::{CommandArgs, CommandEnvs, ExitStatus, Output, Stdio};

use crate::process::Child;
use crate::sched::model::current::current_g;

/// Starts processes, with std's methods.
///
/// As [`std::process::Command`]. [`as_std_mut`](Command::as_std_mut) gives access to std's command
/// for the methods of [`CommandExt`](std::os::unix::process::CommandExt).
///
/// ```
/// use gosched::process::Command;
///
/// # fn main() -> std::io::Result<()> {
/// gosched::run(|| {
///     let output = Command::new("sh").arg("-c").arg("echo out; echo err >&2; exit 3").output()?;
///     assert_eq!(output.status.code(), Some(3));
///     assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
///     Ok(())
/// })
/// # }
/// ```
pub struct Command {
    inner: std::process::Command,
    /// Which of the three streams were set; the others depend on the method that starts the child.
    is_set: [bool; 3],
}

const STDIN: usize = 0;
const STDOUT: usize = 1;
const STDERR: usize = 2;

/// Methods that call std's method of the same name and return the command.
macro_rules! forward {
    ($( $(#[$doc:meta])* fn $name:ident $([$($generics:tt)*])? ($($arg:ident: $type:ty),*); )*) => {
        $(
            $(#[$doc])*
            pub fn $name $(<$($generics)*>)? (&mut self $(, $arg: $type)*) -> &mut Command {
                self.inner.$name($($arg),*);
                self
            }
        )*
    };
}

impl Command {
    /// A command that starts this program, without arguments, in this process's folder and
    /// environment.
    ///
    /// Never blocks. See the example of [`Command`].
    pub fn new<S: AsRef<OsStr>>(program: S) -> Command {
        std::process::Command::new(program).into()
    }

    forward! {
        /// Adds an argument.
        ///
        /// Never blocks. See the example of [`Command`].
        fn arg[S: AsRef<OsStr>](arg: S);

        /// Adds arguments.
        ///
        /// Never blocks.
        ///
        /// ```
        /// # fn main() -> std::io::Result<()> {
        /// let mut command = gosched::process::Command::new("sh");
        /// command.args(["-c", "echo $A$B; pwd"]).env_clear();
        /// command.env("A", "a").envs([("B", "b"), ("C", "c")]).env_remove("C").current_dir("/");
        /// assert_eq!(command.get_program(), "sh");
        /// assert_eq!(command.get_args().count(), 2);
        /// assert_eq!(command.get_current_dir(), Some("/".as_ref()));
        /// assert!(command.get_envs().any(|(name, _)| name == "B"));
        /// assert_eq!(command.output()?.stdout, b"ab\n/\n");
        /// # Ok(())
        /// # }
        /// ```
        fn args[I: IntoIterator<Item = S>, S: AsRef<OsStr>](args: I);

        /// Sets a variable of the environment.
        ///
        /// Never blocks. See the example of [`args`](Command::args).
        fn env[K: AsRef<OsStr>, V: AsRef<OsStr>](key: K, value: V);

        /// Sets variables of the environment.
        ///
        /// Never blocks. See the example of [`args`](Command::args).
        fn envs[I: IntoIterator<Item = (K, V)>, K: AsRef<OsStr>, V: AsRef<OsStr>](variables: I);

        /// Removes a variable of the environment.
        ///
        /// Never blocks. See the example of [`args`](Command::args).
        fn env_remove[K: AsRef<OsStr>](key: K);

        /// Removes all variables of the environment.
        ///
        /// Never blocks. See the example of [`args`](Command::args).
        fn env_clear();

        /// Sets the folder in which the child starts.
        ///
        /// Never blocks. See the example of [`args`](Command::args).
        fn current_dir[P: AsRef<Path>](folder: P);
    }

    /// Sets the child's standard input.
    ///
    /// Otherwise it is that of this process, and empty for [`output`](Command::output). Never
    /// blocks. See the example of [`Child`].
    pub fn stdin<T: Into<Stdio>>(&mut self, stdin: T) -> &mut Command {
        self.inner.stdin(stdin);
        self.is_set[STDIN] = true;
        self
    }

    /// Sets the child's standard output.
    ///
    /// Otherwise it is that of this process, and captured by [`output`](Command::output). Never
    /// blocks. See the example of [`Child`].
    pub fn stdout<T: Into<Stdio>>(&mut self, stdout: T) -> &mut Command {
        self.inner.stdout(stdout);
        self.is_set[STDOUT] = true;
        self
    }

    /// Sets the child's standard error.
    ///
    /// Otherwise it is that of this process, and captured by [`output`](Command::output). Never
    /// blocks.
    ///
    /// ```
    /// use gosched::process::{Command, Stdio};
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut command = Command::new("sh");
    /// command.args(["-c", "echo lost >&2"]).stderr(Stdio::null());
    /// assert!(command.output()?.stderr.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn stderr<T: Into<Stdio>>(&mut self, stderr: T) -> &mut Command {
        self.inner.stderr(stderr);
        self.is_set[STDERR] = true;
        self
    }

    /// Starts the child.
    ///
    /// The start is a [`blocking`](crate::blocking()) call. Eight goroutines of a runtime start
    /// children at a time; further ones wait in order and hold no thread. See the example of
    /// [`Child`].
    ///
    /// # Errors
    /// Errors of the system: there is no such program, for one.
    pub fn spawn(&mut self) -> io::Result<Child> {
        let mut start = || self.inner.spawn();
        let started = match current_g() {
            Some(g) => g.sched().starts.run(start),
            None => start(),
        };
        started.map(Child::from)
    }

    /// Starts the child, waits until it ends, and returns its status.
    ///
    /// Blocks the goroutine.
    ///
    /// # Errors
    /// Errors of the system.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// gosched::run(|| {
    ///     assert!(gosched::process::Command::new("true").status()?.success());
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn status(&mut self) -> io::Result<ExitStatus> {
        self.spawn()?.wait()
    }

    /// Starts the child, waits until it ends, and returns its output and its status.
    ///
    /// Standard output and standard error are captured, and standard input is empty, unless they
    /// were set. Blocks the goroutine. See the example of [`Command`].
    ///
    /// # Errors
    /// Errors of the system.
    pub fn output(&mut self) -> io::Result<Output> {
        self.set_others(Stdio::null, Stdio::piped);
        let child = self.spawn();
        self.set_others(Stdio::inherit, Stdio::inherit);
        child?.wait_with_output()
    }

    /// Sets the streams that the user has not set.
    fn set_others(&mut self, input: fn() -> Stdio, output: fn() -> Stdio) {
        let Command { inner, is_set } = self;
        if !is_set[STDIN] {
            inner.stdin(input());
        }
        if !is_set[STDOUT] {
            inner.stdout(output());
        }
        if !is_set[STDERR] {
            inner.stderr(output());
        }
    }

    /// Returns the program.
    ///
    /// Never blocks. See the example of [`args`](Command::args).
    #[must_use]
    pub fn get_program(&self) -> &OsStr {
        self.inner.get_program()
    }

    /// Returns the arguments.
    ///
    /// Never blocks. See the example of [`args`](Command::args).
    pub fn get_args(&self) -> CommandArgs<'_> {
        self.inner.get_args()
    }

    /// Returns the variables that were set or removed.
    ///
    /// Never blocks. See the example of [`args`](Command::args).
    pub fn get_envs(&self) -> CommandEnvs<'_> {
        self.inner.get_envs()
    }

    /// Returns the folder in which the child starts, if it was set.
    ///
    /// Never blocks. See the example of [`args`](Command::args).
    #[must_use]
    pub fn get_current_dir(&self) -> Option<&Path> {
        self.inner.get_current_dir()
    }

    /// Returns std's command.
    ///
    /// Never blocks. See the example of [`as_std_mut`](Command::as_std_mut).
    #[must_use]
    pub fn as_std(&self) -> &std::process::Command {
        &self.inner
    }

    /// Returns std's command, to be changed.
    ///
    /// [`output`](Command::output) captures a stream that was set only there. Never blocks.
    ///
    /// ```
    /// use gosched::process::Command;
    /// use std::os::unix::process::CommandExt;
    ///
    /// # fn main() -> std::io::Result<()> {
    /// let mut command = Command::new("sh");
    /// command.args(["-c", "echo $0"]);
    /// command.as_std_mut().arg0("other");
    /// assert_eq!(command.as_std().get_program(), "sh");
    /// assert!(command.output()?.status.success());
    /// let std: std::process::Command = command.into();
    /// assert_eq!(Command::from(std).get_args().count(), 2);
    /// # Ok(())
    /// # }
    /// ```
    pub fn as_std_mut(&mut self) -> &mut std::process::Command {
        &mut self.inner
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// [`output`](Command::output) captures the streams that were set before: set them again.
impl From<std::process::Command> for Command {
    fn from(inner: std::process::Command) -> Command {
        Command {
            inner,
            is_set: [false; 3],
        }
    }
}

impl From<Command> for std::process::Command {
    fn from(command: Command) -> std::process::Command {
        command.inner
    }
}
