//! The report of a run: tables for people; all figures with machine and versions for programs; and
//! a chart.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::child::Verdict;
use super::figures::ratio;
use super::readme::Readme;
use super::{Cell, Contestant, Entry, Options, Outcome, PlayedRound, contestants, goals, table};
use crate::chart::{self, Bars, Group, Row};
use crate::files::Files;
use crate::json::Json;
use crate::numbers::number;
use crate::workload::When;

/// The report of a run so far.
pub struct Report<'c> {
    contestants: &'c [Contestant],
    versions: Vec<(&'static str, String)>,
    machine: Machine,
    date: String,
    procs: usize,
    /// The number of fresh processes of a cold workload.
    processes: usize,
    is_quick: bool,
    outcomes: Vec<Outcome>,
}

impl<'c> Report<'c> {
    /// For a run that is about to begin.
    pub fn new(options: &Options, contestants: &'c [Contestant]) -> Report<'c> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Report {
            contestants,
            versions: contestants::versions(contestants),
            machine: Machine::look(),
            date: date(now.unwrap_or_default().as_secs()),
            procs: options.procs,
            processes: options.processes(),
            is_quick: options.is_quick,
            outcomes: Vec::new(),
        }
    }

    /// Adds the results of an entry.
    pub fn add(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// Writes all files.
    pub fn write(&self, files: &mut Files) {
        let json = self.json().to_string();
        files.write([&self.markdown(), &json, &self.picture()]);
    }

    /// Writes the short tables.
    pub fn write_readme(&self, readme: &Readme) -> io::Result<()> {
        readme.write(self.contestants, &self.outcomes)
    }

    /// The entries at which gosched itself failed, or was not measured.
    pub fn failures_of_gosched(&self) -> Vec<String> {
        let mut failed = Vec::new();
        for outcome in &self.outcomes {
            for (contestant, cell) in self.contestants.iter().zip(&outcome.cells) {
                let is_asked = cell.verdict != Some(Verdict::NotAsked);
                if contestant.is_gosched() && is_asked && cell.is_empty() {
                    failed.push(format!("{} {}", outcome.entry.name, contestant.title));
                }
            }
        }
        failed
    }

    /// The tables, with all that is needed to read them.
    pub fn markdown(&self) -> String {
        let Machine {
            cpu,
            cpus,
            memory_gib,
            kernel,
        } = &self.machine;
        let mut text = format!(
            "# gosched and its peers\n\n{}, on {cpus} CPUs ({cpu}), {memory_gib:.0} GiB, \
             Linux {kernel}; {} processors for each runtime.\n\n",
            self.date, self.procs
        );
        for (contestant, (_, version)) in self.contestants.iter().zip(&self.versions) {
            text += &format!("- {}: {version}\n", contestant.title);
        }
        if self.is_quick {
            text +=
                "\n**A quick run**: the work is too small and the rounds are too few to quote.\n";
        }
        text += "\nA cell is `best · median (ratio×)`: the best round, the median of all rounds, and \
                 the ratio to gosched. Below 1× the runtime is ahead of gosched. Some figures are \
                 of another round: the worst one for `wakeups`, and for `cpu` of `idle_cpu`; the \
                 smallest one for `share`, where 1 is fair; the median for `added_time`, a \
                 difference.\n\n";
        text += &format!(
            "Workloads that allocate have two columns for each runtime. `first` is the first round \
             of a fresh process, the median of {} processes that took turns. Nothing runs between \
             the start of the runtime and that round. `best` is the best round of all these \
             processes.\n\n",
            self.processes
        );
        text += &table::tables(self.contestants, &self.outcomes);
        let reach = self.reach();
        if !reach.is_empty() {
            let is_held = |held| reach.iter().filter(|r| r.is_held() == Some(held)).count();
            text += &format!(
                "## Goals\n\n{} held, {} missed, of {}.\n\n{}",
                is_held(true),
                is_held(false),
                reach.len(),
                goals::table(&reach)
            );
        }
        text
    }

    /// The results of the goals. They are meant for the full work, so a quick run has none.
    fn reach(&self) -> Vec<goals::Reach> {
        match self.is_quick {
            true => Vec::new(),
            false => goals::reach(self.contestants, &self.outcomes),
        }
    }

    /// The report as JSON.
    fn json(&self) -> Json {
        let machine = Json::object([
            ("cpu", Json::Text(self.machine.cpu.clone())),
            ("cpus", Json::Number(self.machine.cpus as f64)),
            ("memory_gib", Json::Number(self.machine.memory_gib)),
            ("kernel", Json::Text(self.machine.kernel.clone())),
        ]);
        let versions = self.versions.iter();
        let versions = versions.map(|(name, version)| (name.to_string(), text(version)));
        let workloads = self.outcomes.iter().map(|o| self.outcome_json(o));
        let reach = self.reach();
        Json::object([
            ("date", text(&self.date)),
            ("machine", machine),
            ("versions", Json::Object(versions.collect())),
            ("procs", Json::Number(self.procs as f64)),
            ("processes", Json::Number(self.processes as f64)),
            ("quick", Json::Bool(self.is_quick)),
            ("workloads", Json::List(workloads.collect())),
            ("goals", Json::List(reach.iter().map(goal_json).collect())),
        ])
    }

    fn outcome_json(&self, outcome: &Outcome) -> Json {
        let pairs = self.contestants.iter().zip(&outcome.cells);
        let asked = pairs.filter(|(_, cell)| cell.verdict != Some(Verdict::NotAsked));
        let base = &outcome.cells[0];
        let runtimes =
            asked.map(|(contestant, cell)| cell_json(outcome.entry, contestant.name, cell, base));
        Json::object([
            ("name", text(outcome.entry.name)),
            ("group", text(outcome.entry.group)),
            ("runtimes", Json::List(runtimes.collect())),
        ])
    }

    /// The most important figure of an entry, as ratios.
    fn drawn(&self, outcome: &Outcome, when: When) -> Group {
        let metric = outcome.entry.shown[0];
        let figures: Vec<_> = outcome
            .cells
            .iter()
            .map(|cell| cell.figure(outcome.entry, metric, when))
            .collect();
        let mut rows = Vec::new();
        for ((contestant, cell), figure) in
            self.contestants.iter().zip(&outcome.cells).zip(&figures)
        {
            let drawn = match (figure, &cell.verdict) {
                (_, Some(Verdict::NotAsked)) => continue,
                (Some(figure), _) => {
                    let base = figures[0].as_ref();
                    let ratio = base.and_then(|base| ratio(metric, figure, base));
                    let label = format!("{} {}", number(figure.value), figure.unit);
                    chart::Cell::Ratio(ratio.unwrap_or(f64::NAN), label)
                }
                (None, verdict) => chart::Cell::Missing(short(verdict.as_ref())),
            };
            rows.push(Row {
                name: contestant.title.into(),
                cell: drawn,
            });
        }
        Group {
            name: outcome.entry.name.into(),
            metric: format!("{metric}{}", when.suffix()),
            rows,
        }
    }

    /// The chart: a group for every entry, and two for a cold one.
    fn picture(&self) -> String {
        let mut groups = Vec::new();
        for outcome in &self.outcomes {
            if outcome.entry.manner.is_cold() {
                groups.push(self.drawn(outcome, When::First));
            }
            groups.push(self.drawn(outcome, When::Best));
        }
        let quick = if self.is_quick { ", a quick run" } else { "" };
        chart::bars(&Bars {
            title: "gosched and its peers: ratio to the cost of gosched".into(),
            note: format!(
                "best rounds, and first rounds of fresh processes{quick}; shorter is better. {}, \
                 {} CPUs, {}",
                self.date, self.machine.cpus, self.machine.cpu
            ),
            groups,
        })
    }
}

/// The chart's word for a runtime without a figure.
fn short(verdict: Option<&Verdict>) -> String {
    match verdict {
        Some(Verdict::Failed(_)) => "failed".into(),
        Some(Verdict::Stalled(_)) => "stalled".into(),
        _ => "–".into(),
    }
}

fn text(text: &str) -> Json {
    Json::Text(text.into())
}

/// A cell, with its ratios to the base.
fn cell_json(entry: &Entry, name: &str, cell: &Cell, base: &Cell) -> Json {
    let (state, reason) = match &cell.verdict {
        None => ("measured", None),
        Some(Verdict::Unsupported(reason)) => ("unsupported", Some(reason)),
        Some(Verdict::Failed(reason)) => ("failed", Some(reason)),
        Some(Verdict::Stalled(reason)) => ("stalled", Some(reason)),
        Some(Verdict::Absent(reason)) => ("absent", Some(reason)),
        Some(Verdict::NotAsked) => ("not asked", None),
    };
    let mut fields = vec![
        ("name".to_owned(), text(name)),
        ("n".to_owned(), Json::Number(cell.n as f64)),
        ("state".to_owned(), text(state)),
    ];
    if let Some(reason) = reason {
        fields.push(("reason".to_owned(), text(reason)));
    }
    if let Some(PlayedRound { measures, .. }) = cell.rounds.first() {
        let units = measures.iter().map(|m| (m.metric.clone(), text(&m.unit)));
        fields.push(("units".to_owned(), Json::Object(units.collect())));
        let metrics = measures.iter().map(|m| m.metric.as_str());
        let figures = metrics.flat_map(|metric| figures_json(entry, metric, cell, base));
        fields.push(("figures".to_owned(), Json::Object(figures.collect())));
    }
    let rounds = cell.rounds.iter().map(|round| {
        let nth = ("nth".to_owned(), Json::Number(round.nth as f64));
        let took = round.took.as_secs_f64();
        let took = ("seconds".to_owned(), Json::Number(took));
        let told = round.measures.iter();
        let told = told.map(|m| (m.metric.clone(), Json::Number(m.value)));
        Json::Object([nth, took].into_iter().chain(told).collect())
    });
    fields.push(("rounds".to_owned(), Json::List(rounds.collect())));
    Json::Object(fields)
}

/// The figures of a cell in one metric: of all rounds, of first and of second ones.
fn figures_json(entry: &Entry, metric: &str, cell: &Cell, base: &Cell) -> Vec<(String, Json)> {
    let all = [When::Best, When::First, When::Second];
    let figures = all.into_iter();
    let figures = figures.filter_map(|when| figure_json(entry, metric, when, cell, base));
    figures.collect()
}

/// The figure of a cell, as in the tables.
fn figure_json(
    entry: &Entry,
    metric: &str,
    when: When,
    cell: &Cell,
    base: &Cell,
) -> Option<(String, Json)> {
    let figure = cell.figure(entry, metric, when)?;
    let base = base.figure(entry, metric, when);
    let ratio = base.and_then(|base| ratio(metric, &figure, &base));
    let json = Json::object([
        ("kept", text(entry.kept(metric, when).name())),
        ("value", Json::Number(figure.value)),
        ("median", figure.median.map_or(Json::Null, Json::Number)),
        ("ratio", ratio.map_or(Json::Null, Json::Number)),
    ]);
    Some((format!("{metric}{}", when.suffix()), json))
}

fn goal_json(reach: &goals::Reach) -> Json {
    Json::object([
        ("workload", text(reach.workload)),
        ("runtime", text(reach.runtime)),
        (
            "metric",
            text(&format!("{}{}", reach.metric, reach.when.suffix())),
        ),
        ("unit", text(reach.unit)),
        ("goal", Json::Number(reach.goal)),
        ("measured", reach.measured.map_or(Json::Null, Json::Number)),
        ("held", reach.is_held().map_or(Json::Null, Json::Bool)),
    ])
}

/// The machine of the run.
struct Machine {
    cpu: String,
    cpus: usize,
    memory_gib: f64,
    kernel: String,
}

impl Machine {
    /// Reads it from the kernel; what is missing is unknown.
    fn look() -> Machine {
        let read = |path: &str| fs::read_to_string(Path::new(path)).unwrap_or_default();
        let field = |text: &str, label: &str| {
            let line = text.lines().find(|line| line.starts_with(label));
            let value = line.and_then(|line| line.split_once(':'));
            value.map(|(_, value)| value.trim().to_owned())
        };
        let cpu = field(&read("/proc/cpuinfo"), "model name");
        let memory = field(&read("/proc/meminfo"), "MemTotal");
        let memory_kib = memory.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
        Machine {
            cpu: cpu.unwrap_or_else(|| "unknown".into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: memory_kib.unwrap_or_default() / 1024.0 / 1024.0,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        }
    }
}

/// A moment, in seconds since 1970, as `2026-11-16T12:00:00Z`.
fn date(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hours, minutes, seconds) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!(
        "{year}-{month:02}-{:02}T{hours:02}:{minutes:02}:{seconds:02}Z",
        days + 1
    )
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{cell, cold_cell, empty};
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(date(1_794_830_400), "2026-11-16T12:00:00Z");
    }

    #[test]
    fn every_round_is_written_and_what_stands_for_all() {
        let entry = Entry::find("yield").expect("a workload");
        let (own, go) = (cell(&[1.5, 2.0]), cell(&[3.0]));
        let json = cell_json(entry, "own", &own, &own).to_string();
        let expected = "{\n  \"name\": \"own\",\n  \"n\": 7,\n  \"state\": \"measured\",\n  \
                        \"units\": {\"time\": \"ns\"},\n  \"figures\": {\n    \
                        \"time\": {\"kept\": \"smallest\", \"value\": 1.5, \"median\": 2, \"ratio\": 1}\n  },\n  \
                        \"rounds\": [\n    \
                        {\"nth\": 1, \"seconds\": 0.005, \"time\": 1.5},\n    \
                        {\"nth\": 2, \"seconds\": 0.005, \"time\": 2}\n  ]\n}\n";
        assert_eq!(json, expected);
        let json = cell_json(entry, "go", &go, &own).to_string();
        assert!(
            json.contains("\"value\": 3, \"median\": null, \"ratio\": 2}"),
            "{json}"
        );
        let stalled = empty(Verdict::Stalled("after 60 s".into()));
        let json = cell_json(entry, "may", &stalled, &own).to_string();
        assert!(json.contains("\"state\": \"stalled\",\n  \"reason\": \"after 60 s\""));
        assert!(json.contains("\"figures\": {}"), "{json}");
    }

    #[test]
    fn first_and_second_rounds_have_figures_of_their_own() {
        let entry = Entry::find("spawn_burst").expect("a workload");
        let own = cold_cell(&[&[4.0, 3.0, 1.0]]);
        let go = cold_cell(&[&[6.0, 6.0, 3.0]]);
        let figures = figures_json(entry, "time", &go, &own);
        let names: Vec<_> = figures.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["time", "time_first", "time_second"]);
        let text = Json::Object(figures).to_string();
        for part in [
            "\"time\": {\"kept\": \"smallest\", \"value\": 3, \"median\": 6, \"ratio\": 3}",
            "\"time_first\": {\"kept\": \"median\", \"value\": 6, \"median\": null, \"ratio\": 1.5}",
            "\"time_second\": {\"kept\": \"median\", \"value\": 6, \"median\": null, \"ratio\": 2}",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }
}
