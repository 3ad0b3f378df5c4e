//! Compares the figures of a run with their goals.

use super::plan::Entry;
use super::{Contestant, Outcome};
use crate::numbers::number;
use crate::workload::Goal;

/// A goal and its result.
pub struct Reach {
    pub workload: &'static str,
    /// The runtime, or the two whose difference or ratio it is.
    pub runtime: &'static str,
    pub metric: &'static str,
    pub goal: f64,
    /// The measured value, if there is one.
    pub measured: Option<f64>,
    pub unit: &'static str,
}

impl Reach {
    /// Whether the goal was reached; None if it was not measured.
    pub fn is_held(&self) -> Option<bool> {
        let measured = self.measured?;
        Some(match self.is_least() {
            true => measured >= self.goal,
            false => measured <= self.goal,
        })
    }

    /// Whether it is a share, which should be at least the goal.
    fn is_least(&self) -> bool {
        self.metric == "share"
    }
}

/// The results of all goals of these outcomes.
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
