//! The supervisor: starts a worker for each batch of rounds, adds up its figures, and reports
//! failures.
//!
//! It is a process of its own because a worker may crash or hang.

use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use crate::args::Args;
use crate::plan::{Kind, batch_from, round_seed};
use crate::report::Figures;
use crate::{system, work};

/// A worker that prints nothing for this long hangs, and so does its watchdog.
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
    /// The worker failed for all of its rounds together.
    grows: bool,
    failures: Vec<String>,
}

/// A run of this many minutes.
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
        let count = batch_from(first);
        let words = ["--work".to_owned()]
            .into_iter()
            .chain([seed, first, count].map(|n| n.to_string()))
            .collect();
        let chaos = Kind::chaos(round_seed(seed, first));
        supervisor.batch(&Batch { words, chaos }, Some(until));
        first += count;
    }
    supervisor.report()
}

/// One round, as often as asked for.
pub fn repeat(args: &Args, seed: u64) -> ExitCode {
    let mut supervisor = Supervisor::new(args);
    let words = [
        "--work-one",
        &seed.to_string(),
        "--times",
        &args.times.to_string(),
    ]
    .map(str::to_owned)
    .to_vec();
    let chaos = args.chaos.or(Kind::chaos(seed));
    supervisor.batch(&Batch { words, chaos }, None);
    supervisor.report()
}

/// How a worker is started.
struct Batch {
    words: Vec<String>,
    /// The library's chaos seed; one for a process.
    chaos: Option<u64>,
}

impl Batch {
    /// Which rounds of which run these are.
    fn name(&self) -> String {
        let number = |at: usize| self.words.get(at).and_then(|word| word.parse::<u64>().ok());
        match (number(1), number(2), number(3)) {
            (Some(seed), Some(first), Some(count)) => {
                let last = (first + count).saturating_sub(1);
                format!("rounds {first} to {last} of --seed {seed}")
            }
            _ => self.words.join(" "),
        }
    }
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
            grows: false,
            failures: Vec::new(),
        }
    }

    /// Runs one worker. At `until` it is ended, between two rounds.
    fn batch(&mut self, batch: &Batch, until: Option<Instant>) {
        self.last.clear();
        self.grows = false;
        let mut worker = match self.start(batch) {
            Ok(worker) => worker,
            Err(error) => return self.failures.push(format!("no worker: {error}")),
        };
        let lines = lines_of(&mut worker);
        let is_cut = self.listen(&mut worker, &lines, until);
        match worker.wait() {
            Ok(status) if status.success() || is_cut => {}
            Ok(status) => self.failed(batch, status),
            Err(error) => self.failures.push(format!("the worker is lost: {error}")),
        }
    }

    fn start(&self, batch: &Batch) -> std::io::Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(&batch.words)
            .args(self.args.mix_options())
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if let Some(chaos) = batch.chaos {
            command.env("GOSCHED_DEBUG", format!("chaos={chaos}"));
        }
        command.spawn()
    }

    /// Reads the worker's lines until it ends; returns true if it was ended because the time is up.
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
                Ok(line) if line == work::GROWS => self.grows = true,
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
                    eprintln!("the worker has printed nothing for {SILENCE:?}");
                    let _ = worker.kill();
                }
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    fn failed(&mut self, batch: &Batch, status: ExitStatus) {
        let text = match self.grows {
            true => format!("memory grows: {}", batch.name()),
            false => format!("{status} in {}", self.last),
        };
        let command = self.repetition(batch);
        let text = format!("{text}\n  repeat: {command}");
        eprintln!("FAILED: {text}");
        self.failures.push(text);
    }

    /// The command that repeats the failure: all rounds of the worker if they failed together, else
    /// the last round.
    fn repetition(&self, batch: &Batch) -> String {
        let mut words = vec!["cargo run --release -p gosched-stress --".to_owned()];
        match self.grows {
            true => words.extend_from_slice(&batch.words),
            false => {
                let seed = self.last.split_whitespace().nth(2).unwrap_or("?");
                words.push(format!("--round-seed {seed}"));
                words.extend(batch.chaos.map(|chaos| format!("--chaos {chaos}")));
            }
        }
        words.extend(self.args.mix_options());
        words.join(" ")
    }

    /// Shows progress now and then: in place on a terminal.
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

    fn report(mut self) -> ExitCode {
        if self.total.get("rounds") == 0 {
            self.failures.push("no round came to its end".into());
        }
        println!("\n{}", self.total.table());
        println!(
            "this process at the end: {} files, {} threads, {} MiB",
            system::fds(),
            system::threads(),
            system::rss_kib() >> 10
        );
        if self.failures.is_empty() {
            println!("all checks passed");
            return ExitCode::SUCCESS;
        }
        println!("{} failures:", self.failures.len());
        for failure in &self.failures {
            println!("{failure}");
        }
        ExitCode::FAILURE
    }
}

/// The worker's lines, read by a thread.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn repetition(last: &str, grows: bool, words: &str, chaos: Option<u64>) -> String {
        let args = Args::parse(["--only".into(), "chan,tcp".into()].into_iter()).unwrap();
        let mut supervisor = Supervisor::new(&args);
        supervisor.last = last.to_owned();
        supervisor.grows = grows;
        let words = words.split(' ').map(str::to_owned).collect();
        let text = supervisor.repetition(&Batch { words, chaos });
        let (_, options) = text.split_once(" -- ").unwrap();
        options.to_owned()
    }

    #[test]
    fn a_repetition_has_the_disorder_of_the_batch() {
        let last = "round 9 0x1e6a Chaos, 2 Ps";
        let options = repetition(last, false, "--work 1 8 4", Some(77));
        assert_eq!(options, "--round-seed 0x1e6a --chaos 77 --only chan,tcp");
        let words = options.split(' ').map(str::to_owned);
        assert_eq!(Args::parse(words).unwrap().chaos, Some(77));
    }

    #[test]
    fn memory_that_grows_is_repeated_with_all_rounds() {
        let last = "round 23 0x1e68 Clean, 2 Ps";
        let options = repetition(last, true, "--work 1 12 12", None);
        assert_eq!(options, "--work 1 12 12 --only chan,tcp");
        let words = ["--work", "1", "12", "12"].map(str::to_owned).to_vec();
        let batch = Batch { words, chaos: None };
        assert_eq!(batch.name(), "rounds 12 to 23 of --seed 1");
    }
}
