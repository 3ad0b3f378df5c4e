//! Compares gosched in both modes with its peers: each does the same work in a process of its own.
//!
//! They take turns, so that disturbances of the machine hit all alike.
//!
//! A *contestant* is a runtime that takes part. An *entry* is a workload as it is compared. A
//! contestant's *cell* is its result at one entry: figures or a *verdict*. For each entry all
//! contestants are started. Then each does one round that is not measured, and then all take turns
//! with measured rounds.
//!
//! A contestant that fails or stalls is out, and the others continue. A slow contestant has fewer
//! rounds: its turns end when its budget is used up. After every entry all results so far are
//! written, so that an interrupted run has results too.

mod child;
mod contestants;
mod figures;
mod goals;
mod plan;
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
    /// The number of Ps or worker threads.
    pub procs: usize,
    /// The directory for results.
    pub out: Option<PathBuf>,
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
/// The number of rounds of a quick run.
const ROUNDS_QUICK: usize = 2;

pub fn all() -> Vec<&'static Entry> {
    plan::ALL.iter().collect()
}

/// The result of one contestant at one entry.
pub struct Cell {
    /// The size of its work.
    n: usize,
    /// The duration and the figures of each measured round.
    rounds: Vec<(Duration, Vec<Measure>)>,
    /// Why it has no figures.
    verdict: Option<Verdict>,
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
    let contestants = contestants::gather(&options.peers, &mut progress);
    let mut report = Report::new(options, &contestants);
    for (nth, entry) in options.entries.iter().enumerate() {
        let place = format!("{}/{} {}", nth + 1, options.entries.len(), entry.name);
        report.add(play(entry, options, &contestants, &mut progress, &place));
        report.write(&mut files);
    }
    progress.clear();
    crate::print(&report.markdown())?;
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
    let workload = entry.workload();
    let rounds = match (options.rounds, options.is_quick) {
        (Some(rounds), _) => rounds,
        (None, true) => ROUNDS_QUICK.min(workload.rounds),
        (None, false) => workload.rounds,
    };
    let n = entry.n(options.is_quick);
    let mut game = Game::new(options.limit);
    let mut players: Vec<_> = contestants
        .iter()
        .map(|contestant| {
            progress.step(place, &format!("making {} ready", contestant.title));
            let seat = Seat::new(contestant, entry, n, options.procs);
            game.seat(seat, contestant.title)
        })
        .collect();
    let warm_ups = usize::from(workload.has_warm_up);
    for turn in 0..warm_ups + rounds {
        for player in &mut players {
            let step = match turn.checked_sub(warm_ups) {
                None => format!("{}'s warm-up", player.title),
                Some(round) => format!("{}'s round {} of {rounds}", player.title, round + 1),
            };
            if player.is_playing() {
                progress.step(place, &step);
                game.turn(player, turn >= warm_ups);
                if let Some(text) = player.fresh_verdict() {
                    progress.note(&format!("{} {}: {text}", entry.name, player.title));
                }
            }
        }
    }
    let cells = players.into_iter().map(Player::finish).collect();
    Outcome { entry, cells }
}

/// What the players of one entry share.
struct Game {
    limit_min: Duration,
    /// The fastest round so far.
    fastest: Option<Duration>,
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

impl Game {
    fn new(limit_min: Duration) -> Game {
        Game {
            limit_min,
            fastest: None,
        }
    }

    fn limit(&self) -> Duration {
        let of_fastest = self.fastest.map(|fastest| LIMIT_FACTOR * fastest);
        self.limit_min.max(of_fastest.unwrap_or_default())
    }

    /// Starts a contestant.
    fn seat<'c>(&self, mut seat: Seat<'c>, title: &'static str) -> Player<'c> {
        let is_ready = seat.check().and_then(|()| seat.make_ready(self.limit()));
        let verdict = is_ready.err();
        Player {
            title,
            spent: Duration::ZERO,
            cell: Cell {
                n: seat.n,
                rounds: Vec::new(),
                verdict: verdict.clone(),
            },
            seat: verdict.is_none().then_some(seat),
            is_told: false,
        }
    }

    /// Lets a player do a round.
    fn turn(&mut self, player: &mut Player<'_>, is_measured: bool) {
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
                    player.cell.rounds.push((took, measures));
                }
            }
            Err(verdict) => {
                player.cell.verdict = Some(verdict);
                player.seat = None;
            }
        }
    }
}

impl Player<'_> {
    /// Whether it has another turn: while its budget lasts, and at least once.
    fn is_playing(&self) -> bool {
        self.seat.is_some() && (self.spent < BUDGET || self.cell.rounds.is_empty())
    }

    /// A verdict that was not reported yet.
    fn fresh_verdict(&mut self) -> Option<String> {
        let verdict = self.cell.verdict.as_ref()?;
        let is_told = std::mem::replace(&mut self.is_told, true);
        (!is_told).then(|| table::verdict_text(verdict))
    }

    /// Ends it. An unclean end is a failure too.
    fn finish(self) -> Cell {
        let mut cell = self.cell;
        if let Some(Err(verdict)) = self.seat.map(Seat::put_away) {
            cell.verdict = Some(verdict);
        }
        cell
    }
}
