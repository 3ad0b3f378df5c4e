//! Decides which goals a run has reached: what was aimed at for each figure, and
//! what came of it.

use super::plan::Entry;
use super::{Contestant, Outcome};
use crate::numbers::number;
use crate::workload::Goal;

/// A goal, and what came of it.
pub struct Reach {
    /// What was done.
    pub workload: &'static str,
    /// Whose figure it is, or of which two the difference or the ratio.
    pub runtime: &'static str,
    /// What was measured.
    pub metric: &'static str,
    /// What was aimed at.
    pub goal: f64,
    /// What came of it, if anything.
    pub measured: Option<f64>,
    /// In what.
    pub unit: &'static str,
}

impl Reach {
    /// Whether it was reached; None: it was not measured.
    pub fn is_held(&self) -> Option<bool> {
        let measured = self.measured?;
        Some(match self.is_least() {
            true => measured >= self.goal,
            false => measured <= self.goal,
        })
    }

    /// Whether it is a share, of which there should be at least so much.
    fn is_least(&self) -> bool {
        self.metric == "share"
    }
}

/// What came of all goals of some entries.
pub fn reach(contestants: &[Contestant], outcomes: &[Outcome]) -> Vec<Reach> {
    let mut all = Vec::new();
    for outcome in outcomes {
        let entry = outcome.entry;
        all.extend(entry.workload().goals.iter().map(|goal| Reach {
            workload: entry.name,
            runtime: goal.runtime,
            metric: goal.metric,
            goal: goal.value,
            measured: measured(contestants, outcome, goal),
            unit: goal.unit,
        }));
    }
    all
}

/// `gosched`, `gosched-shared`, or two of the short names with `-` or `/`.
fn measured(contestants: &[Contestant], outcome: &Outcome, goal: &Goal) -> Option<f64> {
    let entry: &Entry = outcome.entry;
    let value = |name: &str| {
        let place = contestants.iter().position(|c| c.name == name)?;
        let figure = outcome.cells[place].figure(entry, goal.metric)?;
        Some(figure.value)
    };
    match goal.runtime {
        "gosched" => value("own"),
        "gosched-shared" => value("shared"),
        both => match (both.split_once('-'), both.split_once('/')) {
            (Some((this, other)), _) => Some(value(this)? - value(other)?),
            (_, Some((this, other))) => Some(value(this)? / value(other)?),
            _ => None,
        },
    }
}

/// The goals as a table.
pub fn table(all: &[Reach]) -> String {
    let mut text =
        String::from("| workload | figure | goal | measured | |\n|---|---|--:|--:|---|\n");
    for reach in all {
        let relation = if reach.is_least() { "≥" } else { "≤" };
        let measured = match reach.measured {
            Some(value) => format!("{} {}", number(value), reach.unit),
            None => "not measured".into(),
        };
        let verdict = match reach.is_held() {
            Some(true) => "held",
            Some(false) => "**missed**",
            None => "",
        };
        text += &format!(
            "| {} | {} {} | {relation} {} {} | {measured} | {verdict} |\n",
            reach.workload,
            reach.runtime,
            reach.metric,
            number(reach.goal),
            reach.unit,
        );
    }
    text
}
