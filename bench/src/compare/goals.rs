//! Compares the figures of a run with their goals.

use super::child::Verdict;
use super::contestants::HOOKED;
use super::{Contestant, Outcome, PEERS};
use crate::numbers::number;
use crate::workload::{Goal, When};

/// A goal and its result.
pub struct Reach {
    pub workload: &'static str,
    /// The runtime, or the two whose difference or ratio it is.
    pub runtime: &'static str,
    pub metric: &'static str,
    pub when: When,
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
            when: goal.when,
            goal: goal.value,
            measured: measured(contestants, outcome, goal),
            unit: goal.unit,
        }));
    }
    all
}

/// `gosched`, `gosched-shared`, `gosched-hooked`, or two of the short names with `-` or `/`; `peers` is the best
/// peer.
fn measured(contestants: &[Contestant], outcome: &Outcome, goal: &Goal) -> Option<f64> {
    let value = |name: &str| {
        if name == "peers" {
            return best_peer(contestants, outcome, goal);
        }
        let place = contestants.iter().position(|c| c.name == name)?;
        value_at(place, outcome, goal)
    };
    match goal.runtime {
        "gosched" => value("own"),
        "gosched-shared" => value("shared"),
        "gosched-hooked" => value(HOOKED),
        both => match (both.split_once('-'), both.split_once('/')) {
            (Some((this, other)), _) => Some(value(this)? - value(other)?),
            (_, Some((this, other))) => Some(value(this)? / value(other)?),
            _ => None,
        },
    }
}

/// A goal of first or second rounds needs this many fresh processes: a median of fewer is chance.
const PROCESSES_MIN: usize = 3;

fn value_at(place: usize, outcome: &Outcome, goal: &Goal) -> Option<f64> {
    let cell = &outcome.cells[place];
    let figure = cell.figure(outcome.entry, goal.metric, goal.when)?;
    let nth = match goal.when {
        When::Best => return Some(figure.value),
        When::First => 0,
        When::Second => 1,
    };
    let processes = cell.rounds.iter().filter(|round| round.nth == nth).count();
    (processes >= PROCESSES_MIN).then_some(figure.value)
}

/// The smallest figure of the peers. There is none unless every peer was there; a peer that failed
/// or stalled is behind.
fn best_peer(contestants: &[Contestant], outcome: &Outcome, goal: &Goal) -> Option<f64> {
    let is_here = |(name, _): &(&str, &str)| {
        let place = contestants.iter().position(|c| c.name == *name);
        let verdict = place.map(|place| &outcome.cells[place].verdict);
        verdict.is_some_and(|verdict| !matches!(verdict, Some(Verdict::Absent(_))))
    };
    if !PEERS.iter().all(is_here) {
        return None;
    }
    let peers = (0..contestants.len()).filter(|place| !contestants[*place].is_gosched());
    peers
        .filter_map(|place| value_at(place, outcome, goal))
        .min_by(f64::total_cmp)
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
            "| {} | {} {}{} | {relation} {} {} | {measured} | {verdict} |\n",
            reach.workload,
            reach.runtime,
            reach.metric,
            reach.when.suffix(),
            number(reach.goal),
            reach.unit,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::contestants::tests::contestant;
    use super::super::plan::Entry;
    use super::super::table::tests::{cell as warm_cell, cold_cell, empty};
    use super::*;

    const NAMES: [&str; 7] = ["own", "shared", "go", "tokio", "smol", "may", "std"];

    /// gosched and all peers at a workload, each with three fresh processes of two rounds.
    fn outcome() -> (Vec<Contestant>, Outcome) {
        let contestants = NAMES.map(contestant).into();
        let rounds = |first: f64| cold_cell(&[&[first, 40.0], &[first, 40.0], &[first, 20.0]]);
        let mut cells: Vec<_> = [60.0, 10.0, 100.0, 50.0, 200.0, 1.0, 300.0]
            .map(rounds)
            .into();
        cells[5] = empty(Verdict::Failed("no memory".into()));
        let entry = Entry::find("spawn_burst").expect("a workload");
        (contestants, Outcome { entry, cells })
    }

    fn goal(runtime: &'static str, when: When) -> Goal {
        Goal::new(runtime, "time", 0.6, "x").when(when)
    }

    #[test]
    fn a_goal_is_for_its_own_rounds() {
        let (contestants, outcome) = outcome();
        let value = |runtime, when| measured(&contestants, &outcome, &goal(runtime, when));
        assert_eq!(value("gosched", When::First), Some(60.0));
        assert_eq!(value("own/go", When::First), Some(0.6));
        assert_eq!(value("own/go", When::Best), Some(1.0));
        assert_eq!(value("own-go", When::Second), Some(0.0));
        assert_eq!(value("own/may", When::First), None);
    }

    #[test]
    fn goroutines_with_hooks_have_goals_of_their_own() {
        let contestants: Vec<_> = ["own", HOOKED].map(contestant).into();
        let cells = [10.0, 12.0].map(|value| warm_cell(&[value])).into();
        let entry = Entry::find("std_mpsc").expect("a workload");
        let outcome = Outcome { entry, cells };
        let value = |runtime| measured(&contestants, &outcome, &goal(runtime, When::Best));
        assert_eq!(value("hooked/own"), Some(1.2));
        assert_eq!(value("gosched-hooked"), Some(12.0));
        assert_eq!(value("hooked/go"), None);
    }

    #[test]
    fn two_processes_are_too_few_for_a_goal_of_first_rounds() {
        let (contestants, mut outcome) = outcome();
        outcome.cells[0].rounds.truncate(4);
        let value = |when| measured(&contestants, &outcome, &goal("own/go", when));
        assert_eq!(value(When::First), None);
        assert_eq!(value(When::Second), None);
        assert!(value(When::Best).is_some());
    }

    #[test]
    fn ahead_of_all_means_ahead_of_the_best_peer() {
        let (mut contestants, mut outcome) = outcome();
        let ahead = goal("own/peers", When::First);
        // Neither the other mode nor the peer that failed counts.
        assert_eq!(measured(&contestants, &outcome, &ahead), Some(60.0 / 50.0));
        outcome.cells[5] = empty(Verdict::Absent("no cargo".into()));
        assert_eq!(measured(&contestants, &outcome, &ahead), None);
        contestants.truncate(5);
        assert_eq!(measured(&contestants, &outcome, &ahead), None);
    }

    #[test]
    fn the_table_names_the_rounds_and_the_verdict() {
        let (contestants, outcome) = outcome();
        let table = table(&reach(&contestants, &[outcome]));
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                "| spawn_burst | own/go time_first | ≤ 0.600 x | 0.600 x | held |",
                "| spawn_burst | own/go time_second | ≤ 0.600 x | 1.00 x | **missed** |",
                "| spawn_burst | own/go time | ≤ 0.600 x | 1.00 x | **missed** |",
            ]
        );
    }
}
