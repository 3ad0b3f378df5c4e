//! Writes the short tables of a run into a Markdown file such as the project's README.
//!
//! A README has one line for each figure that a reader may ask for, with words in place of the
//! metric's name. The tables stand between comments that name them, and the rest of the file stays
//! as it is:
//!
//! - `<!-- compare: first and best -->`: cold workloads, two columns for each runtime;
//! - `<!-- compare: best -->`: all others, one column for each runtime;
//! - `<!-- compare: existing code -->`: the same for code with hooks, which has columns of its own.
//!
//! Each ends at the next `<!-- compare: end -->`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::child::Verdict;
use super::contestants::HOOKED;
use super::figures::{Figure, ratio};
use super::table::asked;
use super::{Contestant, Entry, Options, Outcome};
use crate::numbers::{number, times};
use crate::workload::When;

/// A table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The cold workloads.
    FirstAndBest,
    /// The workloads of existing code.
    Existing,
    /// All others.
    Best,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::FirstAndBest, Kind::Best, Kind::Existing];

    fn of(entry: &Entry) -> Kind {
        match entry.manner.is_cold() {
            true => Kind::FirstAndBest,
            false if entry.is_hooked() => Kind::Existing,
            false => Kind::Best,
        }
    }

    /// The name in its comment.
    fn name(self) -> &'static str {
        match self {
            Kind::FirstAndBest => "first and best",
            Kind::Best => "best",
            Kind::Existing => "existing code",
        }
    }
}

/// The name of the comment that ends a table.
const END: &str = "end";

/// The figures in a README: workload, metric, and what it is, with its unit.
const ROWS: [(&str, &str, &str); 45] = [
    ("spawn_burst", "time", "spawn 100,000, then join, ns"),
    ("go_burst", "time", "`go` 100,000, then wait, ns"),
    ("submit_16", "time", "16 threads submit 320,000 tasks, ns"),
    ("skynet", "time", "a tree of a million tasks, ms"),
    ("timers", "time", "100,000 tasks × 5 sleeps of 1–50 ms, ms"),
    ("timers", "cpu", "the same: CPU time, ms"),
    ("timers", "late_p99", "the same: p99 too late, µs"),
    ("idle_1m", "memory", "a parked task, bytes"),
    ("idle_1m", "park_time", "spawn and park a million, ns"),
    ("idle_1m", "wake_time", "wake them, ns"),
    (
        "accept_burst",
        "time",
        "10,000 connections in waves of 2,000, µs",
    ),
    ("accept_burst", "cpu", "the same: the server's CPU time, µs"),
    (
        "resize_chain",
        "time",
        "changing GOMAXPROCS beside a chain of spawns, ms",
    ),
    ("yield", "time", "a yield to another task, ns"),
    ("spawn", "time", "spawn and join, ns"),
    ("spawn", "go_time", "`go`, ns"),
    ("fib", "time", "`fib(30)`, a task per call above 15, ms"),
    (
        "pingpong_1w",
        "time",
        "there and back over two channels, 1 P, ns",
    ),
    ("pingpong_2w", "time", "the same, 2 Ps, ns"),
    (
        "chan_spsc",
        "time",
        "a message, one to one, room for 128, ns",
    ),
    ("chan_mpmc", "time", "the same, four to four, ns"),
    ("chan_unbounded", "time", "a message, any room, ns"),
    ("select_2", "time", "a select over 2 ready channels, ns"),
    ("select_8", "time", "the same over 8, ns"),
    ("sieve", "time", "2,000 primes by a chain of tasks, ms"),
    ("mutex", "time", "a contended lock, 8 tasks, ns"),
    (
        "timers_10k",
        "late_p99",
        "10,000 tasks that sleep: p99 too late, µs",
    ),
    ("timer_reset", "time", "reset and stop of a timer, ns"),
    ("foreign_wake", "time", "a thread wakes a task, µs"),
    ("stw", "time", "changing GOMAXPROCS, µs"),
    (
        "hog",
        "late_p99",
        "1 ms ticker beside 4 tight loops: p99 late, ms",
    ),
    (
        "block",
        "late_p99",
        "the same beside 4 × `std::thread::sleep`, ms",
    ),
    ("tcp_echo", "time", "echo, 256 connections, µs a request"),
    ("tcp_echo", "p99", "the same: p99, ms"),
    ("tcp_idle", "time", "echo, 64 among 5,000 idle, µs"),
    ("tcp_accept", "time", "connect, one request, close, µs"),
    ("tcp_hogs", "p99", "echo beside 4 tight loops: p99, ms"),
    ("http_hello", "time", "HTTP hello, 64 connections, µs"),
    ("http_hello", "p99", "the same: p99, ms"),
    (
        "std_echo",
        "cpu",
        "an echo, 1,000 connections: CPU time, µs",
    ),
    ("std_echo", "time", "the same: time, µs"),
    ("std_mutex", "time", "a contended lock, 8 tasks, ns"),
    ("std_mpsc", "time", "there and back over two channels, ns"),
    ("ureq_4000", "threads", "4,000 requests at once: threads"),
    ("ureq_4000", "cpu", "the same: CPU time of a request, µs"),
];

/// A file with places for all tables.
pub struct Readme {
    path: PathBuf,
    text: String,
}

impl Readme {
    /// Reads the file. An error if it has no places for the tables, or if the run will not have
    /// all figures: a long run must not fail at its end.
    pub fn open(path: &Path, options: &Options) -> io::Result<Readme> {
        let explain = |why: &str| io::Error::other(format!("--readme {}: {why}", path.display()));
        if options.is_quick {
            return Err(explain("a quick run has no figures to quote"));
        }
        let is_played = |name: &str| options.entries.iter().any(|entry| entry.name == name);
        if let Some((missing, ..)) = ROWS.iter().find(|(name, ..)| !is_played(name)) {
            return Err(explain(&format!("the run leaves out {missing}")));
        }
        let text = fs::read_to_string(path).map_err(|error| explain(&error.to_string()))?;
        filled(&text, |_| String::new()).map_err(|why| explain(&why))?;
        Ok(Readme {
            path: path.to_owned(),
            text,
        })
    }

    /// Writes the tables into the file.
    pub fn write(&self, contestants: &[Contestant], outcomes: &[Outcome]) -> io::Result<()> {
        let text = filled(&self.text, |kind| table(contestants, outcomes, kind));
        let text = text.map_err(io::Error::other)?;
        fs::write(&self.path, text).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
        })
    }
}

/// The text with all tables in their places.
fn filled(text: &str, table: impl Fn(Kind) -> String) -> Result<String, String> {
    let fill = |text: String, kind: Kind| replaced(&text, kind.name(), &table(kind));
    Kind::ALL.into_iter().try_fold(text.to_owned(), fill)
}

/// The text with one table in its place.
fn replaced(text: &str, name: &str, table: &str) -> Result<String, String> {
    let comment = |name: &str| format!("<!-- compare: {name} -->\n");
    let (begin, end) = (comment(name), comment(END));
    let (before, rest) = text
        .split_once(&begin)
        .ok_or_else(|| format!("it has no line `{}`", begin.trim_end()))?;
    let (_, after) = rest.split_once(&end).ok_or_else(|| {
        format!(
            "no line `{}` follows `{}`",
            end.trim_end(),
            begin.trim_end()
        )
    })?;
    Ok(format!("{before}{begin}{table}{end}{after}"))
}

/// One table, with a column for each contestant that takes part in any of its workloads.
fn table(contestants: &[Contestant], outcomes: &[Outcome], kind: Kind) -> String {
    let columns = match kind {
        Kind::FirstAndBest => &[When::First, When::Best][..],
        Kind::Best | Kind::Existing => &[When::Best],
    };
    let members = outcomes.iter().filter(|o| Kind::of(o.entry) == kind);
    let players = asked(contestants.len(), &members.collect::<Vec<_>>());
    let titles = players.iter().map(|nth| title(&contestants[*nth], kind));
    let titles: String = titles.collect();
    let lines = "--:|".repeat(players.len() * columns.len());
    let mut text = format!("| workload | |{titles}\n|---|---|{lines}\n");
    for (name, metric, what) in ROWS {
        let Some(outcome) = outcomes.iter().find(|outcome| outcome.entry.name == name) else {
            continue;
        };
        if Kind::of(outcome.entry) == kind {
            text += &row(outcome, &players, metric, what, columns);
            if outcome.entry.shows_second() {
                let what = "the same: second round";
                text += &row(outcome, &players, metric, what, &[When::Second]);
            }
        }
    }
    text
}

/// The head of a runtime's columns.
fn title(contestant: &Contestant, kind: Kind) -> String {
    let title = match contestant.name {
        "shared" => "shared",
        HOOKED => "hooked",
        _ => contestant.title,
    };
    match kind {
        Kind::FirstAndBest => format!(" {title} first | best |"),
        Kind::Best | Kind::Existing => format!(" {title} |"),
    }
}

/// A line of a table. A cold workload has two columns for each runtime; if there is a figure for
/// the first only, the second is empty.
fn row(outcome: &Outcome, players: &[usize], metric: &str, what: &str, columns: &[When]) -> String {
    let mut text = format!("| `{}` | {what} |", outcome.entry.name);
    let is_half = columns == [When::Second];
    for nth in players {
        for when in columns {
            text += &format!(" {} |", cell(outcome, *nth, metric, *when));
        }
        if is_half {
            text += "  |";
        }
    }
    text + "\n"
}

/// A figure with its ratio to gosched's, in the same column; or a word for a missing one.
fn cell(outcome: &Outcome, nth: usize, metric: &str, when: When) -> String {
    let entry: &Entry = outcome.entry;
    let figure = |nth: usize| outcome.cells[nth].figure(entry, metric, when);
    let Some(this) = figure(nth) else {
        return match outcome.cells[nth].verdict {
            Some(Verdict::Failed(_)) => "fails".into(),
            Some(Verdict::Stalled(_)) => "stalls".into(),
            _ => "–".into(),
        };
    };
    if nth == 0 {
        return format!("**{}**", number(this.value));
    }
    with_ratio(metric, &this, figure(0).as_ref())
}

fn with_ratio(metric: &str, this: &Figure, base: Option<&Figure>) -> String {
    let value = number(this.value);
    match base.and_then(|base| ratio(metric, this, base)) {
        Some(ratio) => format!("{value} ({})", times(ratio)),
        None => value,
    }
}

#[cfg(test)]
mod tests {
    use super::super::contestants::tests::contestant;
    use super::super::table::tests::{cell as warm_cell, cold_cell, empty};
    use super::super::{LIMIT, all};
    use super::*;

    const EMPTY: &str = "# a\n<!-- compare: first and best -->\n<!-- compare: end -->\nb\n\
                         <!-- compare: best -->\nold\n<!-- compare: end -->\nc\n\
                         <!-- compare: existing code -->\n<!-- compare: end -->\nd\n";

    fn outcomes() -> Vec<Outcome> {
        let failed = || empty(Verdict::Failed("no memory".into()));
        let cold = vec![
            cold_cell(&[&[200.0, 150.0, 100.0]]),
            cold_cell(&[&[400.0, 300.0, 250.0]]),
            failed(),
        ];
        let warm = vec![warm_cell(&[40.0]), warm_cell(&[60.0, 50.0]), failed()];
        let existing = vec![
            warm_cell(&[9.0]),
            warm_cell(&[18.0]),
            empty(Verdict::NotAsked),
        ];
        let entry = |name| Entry::find(name).expect("a workload");
        vec![
            Outcome {
                entry: entry("spawn_burst"),
                cells: cold,
            },
            Outcome {
                entry: entry("yield"),
                cells: warm,
            },
            Outcome {
                entry: entry("std_mpsc"),
                cells: existing,
            },
        ]
    }

    #[test]
    fn tables_replace_what_stands_between_their_comments() {
        let contestants = ["own", "go", "may"].map(contestant);
        let table = |kind| table(&contestants, &outcomes(), kind);
        assert_eq!(
            filled(EMPTY, table).expect("all places"),
            "# a\n<!-- compare: first and best -->\n\
             | workload | | own first | best | go first | best | may first | best |\n\
             |---|---|--:|--:|--:|--:|--:|--:|\n\
             | `spawn_burst` | spawn 100,000, then join, ns \
             | **200** | **100** | 400 (2.0×) | 250 (2.5×) | fails | fails |\n\
             | `spawn_burst` | the same: second round \
             | **150** |  | 300 (2.0×) |  | fails |  |\n\
             <!-- compare: end -->\nb\n<!-- compare: best -->\n\
             | workload | | own | go | may |\n|---|---|--:|--:|--:|\n\
             | `yield` | a yield to another task, ns | **40.0** | 50.0 (1.25×) | fails |\n\
             <!-- compare: end -->\nc\n<!-- compare: existing code -->\n\
             | workload | | own | go |\n|---|---|--:|--:|\n\
             | `std_mpsc` | there and back over two channels, ns | **9.00** | 18.0 (2.0×) |\n\
             <!-- compare: end -->\nd\n"
        );
    }

    #[test]
    fn a_place_that_is_missing_is_named() {
        let nothing = |_| String::new();
        let complaint = filled("nothing", nothing).expect_err("no place");
        assert!(complaint.contains("compare: first and best"), "{complaint}");
        let endless = EMPTY.replace("<!-- compare: end -->\nd", "d");
        let complaint = filled(&endless, nothing).expect_err("no end");
        assert!(
            complaint.contains("follows `<!-- compare: existing code -->`"),
            "{complaint}"
        );
    }

    #[test]
    fn the_project_has_places_and_only_a_whole_run_fills_them() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
        let mut options = Options {
            entries: all(),
            peers: Vec::new(),
            rounds: None,
            processes: None,
            procs: 2,
            out: None,
            readme: None,
            is_quick: false,
            limit: LIMIT,
        };
        assert!(Readme::open(&path, &options).is_ok());
        options.is_quick = true;
        assert!(Readme::open(&path, &options).is_err());
        options.is_quick = false;
        options.entries.retain(|entry| entry.name != "fib");
        let complaint = Readme::open(&path, &options).err().expect("fib is missing");
        assert!(
            complaint.to_string().contains("leaves out fib"),
            "{complaint}"
        );
    }

    #[test]
    fn every_row_is_a_figure_that_is_shown() {
        for (name, metric, _) in ROWS {
            let entry = Entry::find(name).expect(name);
            assert!(entry.shown.contains(&metric), "{name} {metric}");
        }
    }
}
