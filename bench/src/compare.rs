//! Compares gosched in both modes, and with hooks, with its peers: each does the same work in a process of its own.
//!
//! They take turns, so that disturbances of the machine hit all alike.
//!
//! A *contestant* is a runtime that takes part. An *entry* is a workload as it is compared. A
//! contestant's *cell* is its result at one entry: figures or a *verdict*. For each *warm* entry
//! all contestants are started. Then each does one round that is not measured, and then all take
//! turns with measured rounds. At a *cold* entry the contestants take turns with fresh processes.
//! Each process does several rounds, all measured, and the first one has a figure of its own.
//!
//! A contestant that fails or stalls is out, and the others continue. A slow contestant has fewer
//! rounds: its turns end when its budget is used up. After every entry all results so far are
//! written, so that an interrupted run has results too.

mod child;
pub mod contestants;
mod figures;
mod goals;
mod plan;
mod readme;
mod report;
pub mod round;
mod seat;
mod table;

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::files::Files;
use crate::progress::Progress;
use child::{Measure, Verdict};
use contestants::Contestant;
pub use contestants::PEERS;
pub use figures::Kept;
pub use plan::Entry;
use readme::Readme;
use report::Report;
use seat::Seat;

/// What the user chose.
pub struct Options {
    /// The entries, in this order.
    pub entries: Vec<&'static Entry>,
    /// The peers.
    pub peers: Vec<&'static str>,
    /// The number of measured rounds, instead of the workload's.
    pub rounds: Option<usize>,
    /// The number of fresh processes of a cold workload, instead of the default.
    pub processes: Option<usize>,
    /// The number of Ps or worker threads.
    pub procs: usize,
    /// The directory for results.
    pub out: Option<PathBuf>,
    /// The file whose tables are to be replaced.
    pub readme: Option<PathBuf>,
    /// Less work, to see whether everything runs.
    pub is_quick: bool,
    /// The least time limit of a round.
    pub limit: Duration,
}

/// The default limit of a round.
pub const LIMIT: Duration = Duration::from_secs(60);
/// A round may take this many times as long as the fastest.
const LIMIT_FACTOR: u32 = 20;
/// A contestant that has taken this long at one entry has no further turns.
const BUDGET: Duration = Duration::from_secs(60);
/// The number of fresh processes of every contestant at a cold workload.
const PROCESSES: usize = 3;
/// The number of rounds, and of fresh processes, of a quick run.
const ROUNDS_QUICK: usize = 2;

pub fn all() -> Vec<&'static Entry> {
    plan::ALL.iter().collect()
}

/// The result of one contestant at one entry.
pub struct Cell {
    /// The size of its work.
    n: usize,
    rounds: Vec<PlayedRound>,
    /// Why it has no figures.
    verdict: Option<Verdict>,
}

/// A measured round.
pub struct PlayedRound {
    /// Its place among the rounds of its process, from 0.
    nth: usize,
    took: Duration,
    measures: Vec<Measure>,
}

/// The results of one entry.
pub struct Outcome {
    entry: &'static Entry,
    /// In the order of the contestants.
    cells: Vec<Cell>,
}

/// Compares, and writes the results. Returns an error if gosched itself failed, or if the results
/// could not be written; they are printed even then.
pub fn run(options: &Options) -> io::Result<()> {
    let mut progress = Progress::new();
    if cfg!(debug_assertions) {
        progress.note("this is a debug build of gosched; use `cargo run --release`");
    }
    let mut files = Files::new(options.out.as_deref(), "compare")?;
    let readme = options.readme.as_deref();
    let readme = readme.map(|path| Readme::open(path, options)).transpose()?;
    let has_hooked = options.entries.iter().any(|entry| entry.is_hooked());
    let contestants = contestants::gather(&options.peers, has_hooked, &mut progress);
    let mut report = Report::new(options, &contestants);
    for (nth, entry) in options.entries.iter().enumerate() {
        let place = format!("{}/{} {}", nth + 1, options.entries.len(), entry.name);
        report.add(play(entry, options, &contestants, &mut progress, &place));
        report.write(&mut files);
    }
    progress.clear();
    crate::print(&report.markdown())?;
    if let Some(readme) = readme {
        report.write_readme(&readme)?;
    }
    files.finish(&report.failures_of_gosched(), &mut progress)
}

/// Runs all rounds of all contestants at one entry.
fn play(
    entry: &'static Entry,
    options: &Options,
    contestants: &[Contestant],
    progress: &mut Progress,
    place: &str,
) -> Outcome {
    let n = entry.n(options.is_quick);
    let players = contestants.iter().map(|contestant| {
        let seat = Seat::new(contestant, entry, n, options.procs);
        Player::new(seat, contestant.title)
    });
    let mut players: Vec<_> = players.collect();
    let mut game = Game {
        entry,
        limit_min: options.limit,
        fastest: None,
        progress,
        place,
    };
    let rounds = options.rounds_of(entry);
    match entry.manner.is_cold() {
        true => game.play_cold(&mut players, options.processes(), rounds),
        false => game.play_warm(&mut players, rounds),
    }
    let cells = players.into_iter().map(Player::finish).collect();
    Outcome { entry, cells }
}

impl Options {
    /// The number of measured rounds; of cold workloads, in each process.
    fn rounds_of(&self, entry: &Entry) -> usize {
        let rounds = entry.workload().rounds;
        let rounds = match (self.rounds, self.is_quick) {
            (Some(rounds), _) => rounds,
            (None, true) => ROUNDS_QUICK.min(rounds),
            (None, false) => rounds,
        };
        entry.rounds_in_process(rounds)
    }

    /// The number of fresh processes of every contestant at a cold workload.
    fn processes(&self) -> usize {
        self.processes.unwrap_or(match self.is_quick {
            true => ROUNDS_QUICK,
            false => PROCESSES,
        })
    }
}

/// What the players of one entry share.
struct Game<'g> {
    entry: &'static Entry,
    limit_min: Duration,
    /// The fastest round so far.
    fastest: Option<Duration>,
    progress: &'g mut Progress,
    /// The entry's place in the whole run, for the progress.
    place: &'g str,
}

/// A contestant at an entry.
struct Player<'c> {
    title: &'static str,
    /// None: it is out.
    seat: Option<Seat<'c>>,
    spent: Duration,
    cell: Cell,
    is_told: bool,
}

impl Game<'_> {
    /// One process for each contestant: a warm-up, then measured rounds in turn.
    fn play_warm(&mut self, players: &mut [Player<'_>], rounds: usize) {
        for player in players.iter_mut() {
            self.step(&format!("making {} ready", player.title));
            self.make_ready(player);
        }
        let warm_ups = usize::from(self.entry.workload().has_warm_up);
        for nth in 0..warm_ups + rounds {
            for player in players.iter_mut().filter(|player| player.is_playing()) {
                match nth.checked_sub(warm_ups) {
                    None => self.step(&format!("{}'s warm-up", player.title)),
                    Some(round) => self.step_of(player, "round", round, rounds),
                }
                self.turn(player, nth, nth >= warm_ups);
            }
        }
    }

    /// Fresh processes in turn, one contestant's after the other's. Every round is measured.
    fn play_cold(&mut self, players: &mut [Player<'_>], processes: usize, rounds: usize) {
        for process in 0..processes {
            for player in players.iter_mut() {
                self.step_of(player, "process", process, processes);
                self.process(player, rounds, BUDGET / processes as u32);
            }
        }
    }

    /// One fresh process of a player. It does at least one round, and no further ones once its
    /// budget is used up.
    fn process(&mut self, player: &mut Player<'_>, rounds: usize, budget: Duration) {
        let start = Instant::now();
        self.make_ready(player);
        for nth in 0..rounds {
            if nth == 0 || start.elapsed() < budget {
                self.turn(player, nth, true);
            }
        }
        player.put_away();
        self.report(player);
    }

    fn limit(&self) -> Duration {
        let of_fastest = self.fastest.map(|fastest| LIMIT_FACTOR * fastest);
        self.limit_min.max(of_fastest.unwrap_or_default())
    }

    /// Starts what a player needs, unless it is out.
    fn make_ready(&mut self, player: &mut Player<'_>) {
        let limit = self.limit();
        if let Some(seat) = &mut player.seat
            && let Err(verdict) = seat.make_ready(limit)
        {
            player.leave(verdict);
        }
        self.report(player);
    }

    /// Lets a player do a round, the `nth` of its process, unless it is out.
    fn turn(&mut self, player: &mut Player<'_>, nth: usize, is_measured: bool) {
        let Some(seat) = &mut player.seat else {
            return;
        };
        let start = Instant::now();
        let result = seat.round(self.limit());
        let took = start.elapsed();
        player.spent += took;
        match result {
            Ok(measures) => {
                self.fastest = Some(self.fastest.map_or(took, |fastest| fastest.min(took)));
                if is_measured {
                    player.cell.rounds.push(PlayedRound {
                        nth,
                        took,
                        measures,
                    });
                }
            }
            Err(verdict) => player.leave(verdict),
        }
        self.report(player);
    }

    fn step(&mut self, step: &str) {
        self.progress.step(self.place, step);
    }

    fn step_of(&mut self, player: &Player<'_>, what: &str, nth: usize, of: usize) {
        if player.seat.is_some() {
            self.step(&format!("{}'s {what} {} of {of}", player.title, nth + 1));
        }
    }

    /// Prints a player's verdict, once.
    fn report(&mut self, player: &mut Player<'_>) {
        if let Some(text) = player.fresh_verdict() {
            let line = format!("{} {}: {text}", self.entry.name, player.title);
            self.progress.note(&line);
        }
    }
}

impl<'c> Player<'c> {
    /// A contestant for which nothing is started yet. It is out if it takes no part.
    fn new(seat: Seat<'c>, title: &'static str) -> Player<'c> {
        let verdict = seat.check().err();
        Player {
            title,
            spent: Duration::ZERO,
            cell: Cell {
                n: seat.n,
                rounds: Vec::new(),
                verdict: verdict.clone(),
            },
            // What keeps it out from the start is not news.
            is_told: verdict.is_some(),
            seat: verdict.is_none().then_some(seat),
        }
    }

    /// Whether it has another turn: while its budget lasts, and at least once.
    fn is_playing(&self) -> bool {
        self.seat.is_some() && (self.spent < BUDGET || self.cell.rounds.is_empty())
    }

    /// It is out.
    fn leave(&mut self, verdict: Verdict) {
        self.cell.verdict = Some(verdict);
        self.seat = None;
    }

    /// A verdict that was not reported yet.
    fn fresh_verdict(&mut self) -> Option<String> {
        let verdict = self.cell.verdict.as_ref()?;
        let is_told = std::mem::replace(&mut self.is_told, true);
        (!is_told).then(|| table::verdict_text(verdict))
    }

    /// Ends its process. An unclean end is a failure too.
    fn put_away(&mut self) {
        if let Some(Err(verdict)) = self.seat.as_mut().map(Seat::put_away) {
            self.leave(verdict);
        }
    }

    fn finish(mut self) -> Cell {
        self.put_away();
        self.cell
    }
}
