//! Results as Markdown: a table for each group of workloads with a column for each runtime, and
//! below it the reasons for missing figures.

use super::child::Verdict;
use super::figures::{Figure, ratio};
use super::{Cell, Contestant, Outcome, plan};
use crate::numbers::{number, times};
use crate::workload::When;

/// The most letters of a reason in a table.
const REASON_MAX: usize = 32;

/// The tables of all groups.
pub fn tables(contestants: &[Contestant], outcomes: &[Outcome]) -> String {
    let titles: Vec<_> = contestants.iter().map(|c| c.title).collect();
    let mut groups: Vec<&str> = Vec::new();
    for outcome in outcomes {
        if !groups.contains(&outcome.entry.group) {
            groups.push(outcome.entry.group);
        }
    }
    let mut text = String::new();
    for group in groups {
        let is_in_it = |outcome: &&Outcome| outcome.entry.group == group;
        let members: Vec<_> = outcomes.iter().filter(is_in_it).collect();
        let players = asked(titles.len(), &members);
        let table = match group == plan::COLD {
            true => cold_table(&titles, &players, &members),
            false => table(&titles, &players, &members),
        };
        text += &format!("## {group}\n\n{table}\n");
        let missing = missing(&titles, &members);
        if !missing.is_empty() {
            text += &format!("{missing}\n");
        }
    }
    text
}

/// The places of the contestants that take part in any of these outcomes.
pub fn asked(contestants: usize, outcomes: &[&Outcome]) -> Vec<usize> {
    let is_asked = |nth: &usize| {
        let mut cells = outcomes.iter().map(|outcome| &outcome.cells[*nth]);
        cells.any(|cell| cell.verdict != Some(Verdict::NotAsked))
    };
    (0..contestants).filter(is_asked).collect()
}

fn table(titles: &[&str], players: &[usize], outcomes: &[&Outcome]) -> String {
    let titles: Vec<_> = players.iter().map(|nth| titles[*nth]).collect();
    let mut text = format!("| workload | figure | {} |\n", titles.join(" | "));
    text += &format!("|---|---|{}\n", "--:|".repeat(titles.len()));
    for outcome in outcomes {
        let mut name = outcome.entry.name;
        for metric in outcome.entry.shown {
            let figures = figures(outcome, metric, When::Best);
            let label = label(metric, &figures);
            let cells: Vec<_> = players
                .iter()
                .map(|&nth| {
                    let (cell, figure) = (&outcome.cells[nth], figures[nth].as_ref());
                    // The first runtime is the base of the ratios.
                    let base = figures[0].as_ref().filter(|_| nth > 0);
                    cell_text(cell, figure, base, metric, !name.is_empty())
                })
                .collect();
            text += &format!("| {name} | {label} | {} |\n", cells.join(" | "));
            name = "";
        }
    }
    text
}

/// The table of cold workloads: two columns for each runtime, the first round and the best.
fn cold_table(titles: &[&str], players: &[usize], outcomes: &[&Outcome]) -> String {
    let columns: String = players
        .iter()
        .map(|nth| format!(" {} first | best |", titles[*nth]))
        .collect();
    let mut text = format!("| workload | figure |{columns}\n");
    text += &format!("|---|---|{}\n", "--:|--:|".repeat(players.len()));
    for outcome in outcomes {
        let mut name = outcome.entry.name;
        for metric in outcome.entry.shown {
            let first = figures(outcome, metric, When::First);
            let best = figures(outcome, metric, When::Best);
            let label_of_both = label(metric, &best);
            let row = cold_row(outcome, players, metric, [&first, &best], !name.is_empty());
            text += &format!("| {name} | {label_of_both} |{row}\n");
            name = "";
            if outcome.entry.shows_second() {
                let second = figures(outcome, metric, When::Second);
                let row = cold_row(outcome, players, metric, [&second, &[]], false);
                text += &format!("|  | {}, second round |{row}\n", label(metric, &second));
            }
        }
    }
    text
}

/// Two cells for each runtime; the second one is empty if there are no figures for it.
fn cold_row(
    outcome: &Outcome,
    players: &[usize],
    metric: &str,
    columns: [&[Option<Figure>]; 2],
    is_first: bool,
) -> String {
    let mut text = String::new();
    for &nth in players {
        let cell = &outcome.cells[nth];
        for (column, has_verdict) in columns.into_iter().zip([is_first, false]) {
            if column.is_empty() {
                text += "  |";
                continue;
            }
            let figure = column[nth].as_ref();
            let figure = figure.map(Figure::without_median);
            let base = column[0].as_ref().filter(|_| nth > 0);
            let told = cell_text(cell, figure.as_ref(), base, metric, has_verdict);
            text += &format!(" {told} |");
        }
    }
    text
}

/// The figures of all runtimes.
fn figures(outcome: &Outcome, metric: &str, when: When) -> Vec<Option<Figure>> {
    let cells = outcome.cells.iter();
    cells
        .map(|c| c.figure(outcome.entry, metric, when))
        .collect()
}

/// The metric with its unit.
fn label(metric: &str, figures: &[Option<Figure>]) -> String {
    let unit = figures.iter().flatten().next().map(|f| f.unit.as_str());
    match unit {
        Some("x") | None => metric.to_owned(),
        Some("count") => format!("{metric} (count)"),
        Some(unit) => format!("{metric} ({unit})"),
    }
}

/// `466 · 480 (3.7×)`, or the verdict, in the first row of the workload.
fn cell_text(
    cell: &Cell,
    figure: Option<&Figure>,
    base: Option<&Figure>,
    metric: &str,
    is_first: bool,
) -> String {
    let Some(figure) = figure else {
        return match &cell.verdict {
            Some(_) if !is_first => String::new(),
            None | Some(Verdict::Unsupported(_) | Verdict::Absent(_)) => "—".into(),
            Some(Verdict::NotAsked) => String::new(),
            Some(verdict) => clip(&verdict_text(verdict)).replace('|', "\\|"),
        };
    };
    let mut text = number(figure.value);
    if let Some(median) = figure.median {
        text += &format!(" · {}", number(median));
    }
    if let Some(ratio) = base.and_then(|base| ratio(metric, figure, base)) {
        text += &format!(" ({})", times(ratio));
    }
    text
}

/// A verdict in words.
pub fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Unsupported(reason) => format!("unsupported: {reason}"),
        Verdict::Failed(reason) => format!("failed: {reason}"),
        Verdict::Stalled(how) if how.starts_with("after ") => format!("stalled {how}"),
        Verdict::Stalled(how) => format!("stalled: {how}"),
        Verdict::Absent(reason) => format!("absent: {reason}"),
        Verdict::NotAsked => "not asked".into(),
    }
}

fn clip(text: &str) -> String {
    if text.chars().count() <= REASON_MAX {
        return text.into();
    }
    let kept = text.chars().take(REASON_MAX - 1);
    kept.chain(['…']).collect()
}

/// Every verdict in full, equal ones together.
fn missing(titles: &[&str], outcomes: &[&Outcome]) -> String {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for (nth, title) in titles.iter().enumerate() {
        for outcome in outcomes {
            let verdict = match &outcome.cells[nth].verdict {
                None | Some(Verdict::NotAsked) => continue,
                Some(verdict) => format!("{title}: {}", verdict_text(verdict)),
            };
            match reasons.iter_mut().find(|(reason, _)| *reason == verdict) {
                Some((_, names)) => names.push(outcome.entry.name),
                None => reasons.push((verdict, vec![outcome.entry.name])),
            }
        }
    }
    let line =
        |(reason, names): &(String, Vec<&str>)| format!("- {}, {reason}\n", names.join(", "));
    reasons.iter().map(line).collect()
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use super::super::PlayedRound;
    use super::super::child::Measure;
    use super::super::plan::Entry;
    use super::*;

    /// A cell with these rounds of `time`, after a warm-up.
    pub fn cell(values: &[f64]) -> Cell {
        let rounds = values.iter().enumerate();
        cell_of(rounds.map(|(nth, value)| round(nth + 1, *value)).collect())
    }

    /// A cell with fresh processes, and the rounds of each.
    pub fn cold_cell(processes: &[&[f64]]) -> Cell {
        let rounds = processes
            .iter()
            .flat_map(|values| values.iter().enumerate());
        cell_of(rounds.map(|(nth, value)| round(nth, *value)).collect())
    }

    fn cell_of(rounds: Vec<PlayedRound>) -> Cell {
        Cell {
            n: 7,
            rounds,
            verdict: None,
        }
    }

    fn round(nth: usize, value: f64) -> PlayedRound {
        let measure = Measure {
            metric: "time".into(),
            value,
            unit: "ns".into(),
        };
        PlayedRound {
            nth,
            took: Duration::from_millis(5),
            measures: vec![measure],
        }
    }

    /// A cell without figures.
    pub fn empty(verdict: Verdict) -> Cell {
        Cell {
            verdict: Some(verdict),
            ..cell(&[1.0])
        }
    }

    fn outcome(cells: Vec<Cell>) -> Outcome {
        Outcome {
            entry: Entry::find("yield").expect("a workload"),
            cells,
        }
    }

    #[test]
    fn a_cell_has_its_best_its_median_and_its_ratio() {
        let outcome = outcome(vec![
            cell(&[42.0, 40.0, 41.0]),
            cell(&[20.0]),
            cell(&[200.0, 148.0]),
        ]);
        assert_eq!(
            table(&["a", "b", "c"], &[0, 1, 2], &[&outcome]),
            "| workload | figure | a | b | c |\n|---|---|--:|--:|--:|\n\
             | yield | time (ns) | 40.0 · 41.0 | 20.0 (0.50×) | 148 · 200 (3.7×) |\n"
        );
    }

    #[test]
    fn a_cold_workload_has_a_first_and_a_best_column_for_every_runtime() {
        let outcome = Outcome {
            entry: Entry::find("spawn_burst").expect("a workload"),
            cells: vec![
                cold_cell(&[&[200.0, 150.0, 100.0], &[220.0, 160.0, 110.0]]),
                cold_cell(&[&[440.0, 320.0, 250.0]]),
                empty(Verdict::Failed("no memory".into())),
            ],
        };
        assert_eq!(
            cold_table(&["a", "b", "c"], &[0, 1, 2], &[&outcome]),
            "| workload | figure | a first | best | b first | best | c first | best |\n\
             |---|---|--:|--:|--:|--:|--:|--:|\n\
             | spawn_burst | time (ns) | 220 | 100 | 440 (2.0×) | 250 (2.5×) \
             | failed: no memory |  |\n\
             |  | time (ns), second round | 160 |  | 320 (2.0×) |  |  |  |\n"
        );
    }

    #[test]
    fn what_is_missing_has_a_reason() {
        let reason = "a reason that is too long for a table | really";
        let outcome = outcome(vec![
            cell(&[40.0]),
            empty(Verdict::Failed(reason.into())),
            empty(Verdict::Stalled("after 60 s".into())),
            empty(Verdict::Unsupported("no such thing".into())),
            empty(Verdict::Absent("no network".into())),
            empty(Verdict::NotAsked),
        ]);
        let titles = ["own", "a", "b", "c", "d", "e"];
        let players = asked(6, &[&outcome]);
        assert_eq!(players, [0, 1, 2, 3, 4], "the last one takes no part");
        let table = table(&titles, &players, &[&outcome]);
        let row = table.lines().last().expect("a row");
        let expected = "| yield | time (ns) | 40.0 | failed: a reason that is too lo… \
                        | stalled after 60 s | — | — |";
        assert_eq!(row, expected);
        assert_eq!(
            missing(&titles, &[&outcome]),
            format!(
                "- yield, a: failed: {reason}\n- yield, b: stalled after 60 s\n\
                 - yield, c: unsupported: no such thing\n- yield, d: absent: no network\n"
            )
        );
    }

    #[test]
    fn without_gosched_there_are_no_ratios() {
        let failed = empty(Verdict::Failed("x".into()));
        let outcome = outcome(vec![failed, cell(&[20.0])]);
        let table = table(&["a", "b"], &[0, 1], &[&outcome]);
        assert!(table.ends_with("| failed: x | 20.0 |\n"), "{table}");
    }
}
