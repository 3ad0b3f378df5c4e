//! Drives a child of the comparison: starts it, orders rounds, reads its answers for a limited
//! time, and ends it.
//!
//! All contestants speak the same protocol, so that the driver treats them alike. A child prints
//! `ready`, or `port P` if it is a server, or `unsupported REASON`; earlier lines are ignored. It
//! answers each input line `round` with lines `METRIC VALUE UNIT` and `done`. It ends with its
//! input.
//!
//! A child leads a process group of its own. A driver that gives up kills the whole group, so that
//! processes of the child end with it. The kernel kills the child if this process ends first.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::child::die_with_parent;

/// How long a child may take to end once it has nothing left to do.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to check whether a child has ended.
const LOOK: Duration = Duration::from_millis(2);

/// One number of one round, as a child printed it.
#[derive(Clone, Debug, PartialEq)]
pub struct Measure {
    pub metric: String,
    pub value: f64,
    pub unit: String,
}

/// Why a runtime has no figure.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// The runtime has no such feature.
    Unsupported(String),
    /// It failed.
    Failed(String),
    /// It made no progress.
    Stalled(String),
    /// The runtime is not available here.
    Absent(String),
    /// The workload concerns another runtime.
    NotAsked,
}

impl Verdict {
    /// A failure, or a stall if the reason begins so.
    pub fn failed(reason: &str) -> Verdict {
        match reason.split_once("stalled: ") {
            Some((_, how)) => Verdict::Stalled(how.into()),
            None => Verdict::Failed(reason.into()),
        }
    }

    /// It took too long.
    pub fn stalled_after(limit: Duration) -> Verdict {
        Verdict::Stalled(format!("after {} s", limit.as_secs_f64().round()))
    }
}

/// A child's first answer.
#[derive(Debug, PartialEq)]
pub enum Greeting {
    /// It waits for rounds.
    Ready,
    /// It serves at this port.
    Port(u16),
}

/// A child process; dropping it ends it and all its processes.
pub struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    errors: Arc<Mutex<LastWords>>,
    errors_end: Receiver<()>,
}

impl Child {
    pub fn start(command: &mut Command) -> Result<Child, Verdict> {
        let pipes = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Only the message of a panic is wanted, not a backtrace.
            .env("RUST_BACKTRACE", "0")
            .process_group(0);
        let started = die_with_parent(pipes).spawn();
        let mut process =
            started.map_err(|error| Verdict::Failed(format!("cannot be started: {error}")))?;
        let input = process.stdin.take();
        let output = process.stdout.take().expect("the output is a pipe");
        let (line, lines) = mpsc::channel();
        std::thread::spawn(move || forward(output, &line));
        let (end, errors_end) = mpsc::channel();
        let errors = Arc::new(Mutex::new(LastWords::default()));
        let stderr = process.stderr.take().expect("the errors are a pipe");
        std::thread::spawn({
            let errors = Arc::clone(&errors);
            move || listen(stderr, &errors, end)
        });
        Ok(Child {
            process,
            input,
            lines,
            errors,
            errors_end,
        })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until it is ready.
    pub fn greeting(&mut self, limit: Duration) -> Result<Greeting, Verdict> {
        let deadline = Instant::now() + limit;
        loop {
            let line = self.line(deadline, limit)?;
            if let Some(reason) = line.strip_prefix("unsupported ") {
                return Err(Verdict::Unsupported(reason.into()));
            }
            match line.strip_prefix("port ").map(str::parse) {
                Some(Ok(port)) => return Ok(Greeting::Port(port)),
                Some(Err(_)) => return Err(Verdict::Failed(format!("it printed `{line}`"))),
                None if line == "ready" => return Ok(Greeting::Ready),
                None => {}
            }
        }
    }

    /// Orders a round.
    pub fn begin(&mut self) -> Result<(), Verdict> {
        self.order().map_err(|_| self.why_it_ended())
    }

    /// Orders the first round before the child is ready. The child then finds the order and does
    /// not wait between the start of its runtime and the round. If the child has already ended, its
    /// greeting has the reason.
    pub fn begin_early(&mut self) {
        let _ = self.order();
    }

    fn order(&mut self) -> io::Result<()> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(b"round\n").and_then(|()| input.flush())
    }

    /// Reads the figures of the round that was begun.
    pub fn figures(&mut self, limit: Duration) -> Result<Vec<Measure>, Verdict> {
        let deadline = Instant::now() + limit;
        let mut measures = Vec::new();
        loop {
            let line = self.line(deadline, limit)?;
            if line == "done" {
                return Ok(measures);
            }
            match measure(&line) {
                Some(measure) => measures.push(measure),
                None => return Err(Verdict::Failed(format!("it printed `{line}`"))),
            }
        }
    }

    /// A whole round.
    pub fn round(&mut self, limit: Duration) -> Result<Vec<Measure>, Verdict> {
        self.begin()?;
        self.figures(limit)
    }

    /// Closes its input and waits for its end, which must be a success.
    pub fn finish(mut self) -> Result<(), Verdict> {
        drop(self.input.take());
        match self.wait(PATIENCE) {
            Some(status) if status.success() => Ok(()),
            Some(_) => Err(self.why_it_ended()),
            None => Err(Verdict::Failed("it did not end with its input".into())),
        }
    }

    /// A watchdog that kills it unless called off in time.
    pub fn watchdog(&self, limit: Duration) -> Watchdog {
        let (call_off, called_off) = mpsc::channel::<()>();
        let pid = self.pid();
        let thread = std::thread::spawn(move || {
            let has_bitten = called_off.recv_timeout(limit) == Err(RecvTimeoutError::Timeout);
            if has_bitten {
                kill_group(pid);
            }
            has_bitten
        });
        Watchdog { call_off, thread }
    }

    /// Whether it has ended, by itself or killed.
    pub fn has_ended(&mut self) -> bool {
        self.wait(Duration::from_millis(100)).is_some()
    }

    /// Why it has ended, or is about to. Only call it once the child is of no more use.
    pub fn why_it_ended(&mut self) -> Verdict {
        let status = self.wait(PATIENCE);
        kill_group(self.pid());
        // Its error output ends with the last process that could write to it.
        let _ = self.errors_end.recv_timeout(PATIENCE);
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        match (status, errors.reason()) {
            (None, _) => Verdict::Failed("it stopped answering".into()),
            (Some(status), None) => Verdict::Failed(how(status)),
            (Some(status), Some(words)) => match status.signal() {
                Some(_) => Verdict::Failed(format!("{}: {words}", how(status))),
                None => Verdict::failed(&words),
            },
        }
    }

    /// The next line it prints.
    fn line(&mut self, deadline: Instant, limit: Duration) -> Result<String, Verdict> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(left) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(Verdict::stalled_after(limit)),
            Err(RecvTimeoutError::Disconnected) => Err(self.why_it_ended()),
        }
    }

    /// Its status, if it ends in time.
    fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            match self.process.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                _ => return None,
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        kill_group(self.pid());
        // Fails only for a child that has already been waited for.
        let _ = self.process.wait();
    }
}

/// Kills a child's group unless it is called off in time.
pub struct Watchdog {
    call_off: Sender<()>,
    thread: JoinHandle<bool>,
}

impl Watchdog {
    /// Calls it off; returns whether it was too late.
    pub fn call_off(self) -> bool {
        drop(self.call_off);
        self.thread.join().expect("it does not panic")
    }
}

/// Kills every process of a child's group. There may be none left.
fn kill_group(leader: u32) {
    // SAFETY: the call takes numbers and touches no memory. The group was made for this child.
    unsafe { libc::killpg(leader as libc::pid_t, libc::SIGKILL) };
}

/// Forwards lines until there are no more, or the receiver is dropped.
fn forward(output: impl Read, to: &Sender<String>) {
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else { return };
        if to.send(line).is_err() {
            return;
        }
    }
}

/// The important lines of a child's error output.
#[derive(Default)]
struct LastWords {
    /// The line with which a fatal error begins; details follow.
    fatal: Option<String>,
    last: Option<String>,
}

impl LastWords {
    fn hear(&mut self, line: &str) {
        const FATAL: [&str; 3] = ["panic: ", "fatal error: ", "runtime: "];
        // Rust's advice after a panic.
        const ADVICE: &str = "note: ";
        let line = line.trim();
        if line.is_empty() || line.starts_with(ADVICE) {
            return;
        }
        if self.fatal.is_none() && FATAL.iter().any(|start| line.starts_with(start)) {
            self.fatal = Some(line.to_owned());
        }
        self.last = Some(line.to_owned());
    }

    fn reason(&self) -> Option<String> {
        let line = self.fatal.as_ref().or(self.last.as_ref())?;
        let names = ["gosched-peers: ", "gosched-bench: ", "gopeer: "];
        let bare = names.iter().find_map(|name| line.strip_prefix(name));
        Some(bare.unwrap_or(line).to_owned())
    }
}

/// Keeps the important lines until the output ends.
fn listen(stderr: impl Read, errors: &Mutex<LastWords>, end: Sender<()>) {
    let mut stderr = BufReader::new(stderr);
    let mut line = Vec::new();
    while let Ok(1..) = stderr.read_until(b'\n', &mut line) {
        let text = String::from_utf8_lossy(&line);
        let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.hear(&text);
        line.clear();
    }
    drop(end);
}

/// `METRIC VALUE UNIT`.
fn measure(line: &str) -> Option<Measure> {
    let mut words = line.split(' ');
    let (metric, value, unit) = (words.next()?, words.next()?, words.next()?);
    let value: f64 = value.parse().ok()?;
    (words.next().is_none() && value.is_finite()).then(|| Measure {
        metric: metric.into(),
        value,
        unit: unit.into(),
    })
}

/// How a process ended.
fn how(status: ExitStatus) -> String {
    match status.signal() {
        Some(libc::SIGSEGV) => "killed by SIGSEGV".into(),
        Some(libc::SIGABRT) => "killed by SIGABRT".into(),
        Some(libc::SIGKILL) => "killed by SIGKILL (out of memory?)".into(),
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("{status}"),
    }
}

#[cfg(test)]
#[path = "child_tests.rs"]
mod tests;
