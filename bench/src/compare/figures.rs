//! Chooses the figure that stands for the rounds of a cell, and compares two of them.

use super::Cell;
use super::plan::Entry;
use crate::rounds::median;

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

impl Cell {
    /// Whether it has no figures.
    pub fn is_empty(&self) -> bool {
        self.verdict.is_some() || self.rounds.is_empty()
    }

    /// Its figure of a metric, if it has one.
    pub fn figure(&self, entry: &Entry, metric: &str) -> Option<Figure> {
        if self.verdict.is_some() {
            return None;
        }
        let measures = self.rounds.iter().flat_map(|(_, measures)| measures);
        let told: Vec<_> = measures.filter(|m| m.metric == metric).collect();
        let unit = told.first()?.unit.clone();
        let mut values: Vec<f64> = told.iter().map(|measure| measure.value).collect();
        let middle = median(&mut values);
        let value = match entry.kept(metric) {
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
    use super::super::table::tests::{cell, empty};

    #[test]
    fn a_cell_without_rounds_is_as_empty_as_one_that_failed() {
        assert!(!cell(&[1.0]).is_empty());
        assert!(cell(&[]).is_empty());
        assert!(empty(Verdict::Failed("x".into())).is_empty());
    }
}
