//! The supervisor: starts a worker for each batch of rounds, adds up what it says, and reports what it died of.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use crate::args::Args;
use crate::plan::{Kind, round_seed};
use crate::report::Figures;
use crate::system;

/// A worker that says nothing for so long hangs, and its watchdog as well.
const SILENCE: Duration = Duration::from_secs(150);
/// How often progress is shown.
const SHOW: Duration = Duration::from_secs(3);

struct Supervisor<'a> {
    args: &'a Args,
    began: Instant,
    shown: Instant,
    total: Figures,
    /// The last round that a worker has begun.
    last: String,
    failures: Vec<String>,
}

/// A run, for so many minutes.
pub fn run(args: &Args, minutes: f64, seed: Option<u64>) -> ExitCode {
    let seed = seed.unwrap_or_else(|| {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        crate::rng::scatter(clock.map_or(1, |time| time.as_nanos() as u64)) >> 16
    });
    println!("gosched-stress: --seed {seed}, {minutes} minutes");
    let mut supervisor = Supervisor::new(args);
    let until = supervisor.began + Duration::from_secs_f64(minutes * 60.0);
    let mut first = 0;
    while Instant::now() < until && (supervisor.failures.is_empty() || args.keeps_going) {
        let count = Kind::of(round_seed(seed, first)).batch();
        let words = [
            "--work".to_owned(),
            seed.to_string(),
            first.to_string(),
            count.to_string(),
        ];
        supervisor.batch(&words, round_seed(seed, first), Some(until));
        first += count;
    }
    supervisor.report()
}

/// One round, as often as asked for.
pub fn repeat(args: &Args, seed: u64) -> ExitCode {
    let mut supervisor = Supervisor::new(args);
    let words = [
        "--work-one".to_owned(),
        seed.to_string(),
        "--times".to_owned(),
        args.times.to_string(),
    ];
    supervisor.batch(&words, seed, None);
    supervisor.report()
}

impl Supervisor<'_> {
    fn new(args: &Args) -> Supervisor<'_> {
        let now = Instant::now();
        Supervisor {
            args,
            began: now,
            shown: now,
            total: Figures::default(),
            last: String::new(),
            failures: Vec::new(),
        }
    }

    /// One worker. At `until` it is ended, between two rounds.
    fn batch(&mut self, words: &[String], seed: u64, until: Option<Instant>) {
        self.last.clear();
        let mut worker = match self.start(words, seed) {
            Ok(worker) => worker,
            Err(error) => return self.failures.push(format!("no worker: {error}")),
        };
        let lines = lines_of(&mut worker);
        let is_cut = self.listen(&mut worker, &lines, until);
        match worker.wait() {
            Ok(status) if status.success() || is_cut => {}
            Ok(status) => self.failed(status),
            Err(error) => self.failures.push(format!("the worker is lost: {error}")),
        }
    }

    fn start(&self, words: &[String], seed: u64) -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(words)
            .args(self.args.mix_options())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if Kind::of(seed) == Kind::Chaos {
            command.env("GOSCHED_DEBUG", format!("chaos={}", (seed >> 2) | 1));
        }
        command.spawn()
    }

    /// Takes what the worker says, until it ends; true if it was ended because the time is up.
    fn listen(
        &mut self,
        worker: &mut Child,
        lines: &Receiver<String>,
        until: Option<Instant>,
    ) -> bool {
        loop {
            match lines.recv_timeout(SILENCE) {
                Ok(line) if line.starts_with("round ") => {
                    if self.args.is_verbose {
                        println!("{line}");
                    }
                    self.last = line;
                }
                Ok(line) => {
                    self.total.add_line(&line);
                    self.show();
                    let has_failed = line.ends_with(" failed=1");
                    if !has_failed && until.is_some_and(|until| Instant::now() > until) {
                        let _ = worker.kill();
                        return true;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("the worker says nothing for {SILENCE:?}");
                    let _ = worker.kill();
                }
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn failed(&mut self, status: ExitStatus) {
        let seed = self
            .last
            .split_whitespace()
            .nth(2)
            .unwrap_or("?")
            .to_owned();
        let mut command = format!("cargo run --release -p gosched-stress -- --round-seed {seed}");
        for word in self.args.mix_options() {
            command += &format!(" {word}");
        }
        let text = format!("{status} in {}\n  repeat: {command}", self.last);
        eprintln!("FAILED: {text}");
        self.failures.push(text);
    }

    /// A line now and then: in place on a terminal.
    fn show(&mut self) {
        if self.shown.elapsed() < SHOW {
            return;
        }
        self.shown = Instant::now();
        let is_terminal = std::io::stdout().is_terminal();
        print!(
            "{}{:>5} s  {} rounds, {} operations, {} goroutines{}",
            if is_terminal { "\r" } else { "" },
            self.began.elapsed().as_secs(),
            self.total.get("rounds"),
            self.total.ops(),
            self.total.get("goroutines"),
            if is_terminal { "" } else { "\n" },
        );
        let _ = std::io::stdout().flush();
    }

    fn report(self) -> ExitCode {
        println!("\n{}", self.total.table());
        println!(
            "this process at the end: {} files, {} threads, {} MiB",
            system::fds(),
            system::threads(),
            system::rss_kib() >> 10
        );
        if self.failures.is_empty() {
            println!("everything held");
            return ExitCode::SUCCESS;
        }
        println!("{} failures:", self.failures.len());
        for failure in &self.failures {
            println!("{failure}");
        }
        ExitCode::FAILURE
    }
}

/// The worker's lines, from a thread of their own.
fn lines_of(worker: &mut Child) -> Receiver<String> {
    let (send, receive) = channel();
    if let Some(out) = worker.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
    }
    receive
}
