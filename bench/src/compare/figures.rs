//! Chooses the figure that stands for the rounds of a cell, and compares two of them.

use super::Cell;
use super::plan::Entry;
use crate::rounds::median;
use crate::workload::When;

/// Which round stands for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    Smallest,
    Largest,
    Median,
}

impl Kept {
    /// Its name, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Kept::Smallest => "smallest",
            Kept::Largest => "largest",
            Kept::Median => "median",
        }
    }
}

/// The result of all rounds of a cell, in one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The round that is kept.
    pub value: f64,
    /// The median, if there are several rounds.
    pub median: Option<f64>,
    pub unit: String,
}

impl Figure {
    /// The same figure where the median of all rounds is not shown.
    pub fn without_median(&self) -> Figure {
        Figure {
            median: None,
            ..self.clone()
        }
    }
}

impl Cell {
    /// Whether it has no figures.
    pub fn is_empty(&self) -> bool {
        self.verdict.is_some() || self.rounds.is_empty()
    }

    /// Its figure of a metric, if it has one.
    pub fn figure(&self, entry: &Entry, metric: &str, when: When) -> Option<Figure> {
        if self.verdict.is_some() {
            return None;
        }
        let nth = match when {
            When::Best => None,
            _ if !entry.manner.is_cold() => return None,
            When::First => Some(0),
            When::Second => Some(1),
        };
        let rounds = self.rounds.iter();
        let rounds = rounds.filter(|round| nth.is_none_or(|nth| round.nth == nth));
        let measures = rounds.flat_map(|round| &round.measures);
        let told: Vec<_> = measures.filter(|m| m.metric == metric).collect();
        let unit = told.first()?.unit.clone();
        let mut values: Vec<f64> = told.iter().map(|measure| measure.value).collect();
        let middle = median(&mut values);
        let value = match entry.kept(metric, when) {
            Kept::Smallest => values[0],
            Kept::Largest => values[values.len() - 1],
            Kept::Median => middle,
        };
        Some(Figure {
            value,
            median: (values.len() > 1).then_some(middle),
            unit,
        })
    }
}

/// The ratio of two costs; None if it makes no sense.
pub fn ratio(metric: &str, this: &Figure, other: &Figure) -> Option<f64> {
    let ratio = this.value / other.value;
    (Entry::is_cost(metric) && ratio.is_finite() && other.value > 0.0).then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::super::child::Verdict;
    use super::super::table::tests::{cell, cold_cell, empty};
    use super::*;

    #[test]
    fn a_cell_without_rounds_is_as_empty_as_one_that_failed() {
        assert!(!cell(&[1.0]).is_empty());
        assert!(cell(&[]).is_empty());
        assert!(empty(Verdict::Failed("x".into())).is_empty());
    }

    #[test]
    fn first_rounds_are_the_median_of_fresh_processes() {
        let cold = Entry::find("spawn_burst").expect("a workload");
        let cell = cold_cell(&[&[90.0, 30.0, 20.0], &[70.0, 50.0, 25.0], &[80.0, 40.0]]);
        let figure = |when| cell.figure(cold, "time", when).expect("a figure");
        assert_eq!(figure(When::First).value, 80.0);
        assert_eq!(figure(When::Second).value, 40.0);
        assert_eq!(figure(When::Best).value, 20.0);
        // One round in each process: there is no second.
        let once = cold_cell(&[&[90.0], &[70.0]]);
        assert!(once.figure(cold, "time", When::Second).is_none());
        // A warm process has no first round that counts.
        let warm = Entry::find("yield").expect("a workload");
        assert!(cell.figure(warm, "time", When::First).is_none());
    }
}
