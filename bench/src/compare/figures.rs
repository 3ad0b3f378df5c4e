//! Decides which figure stands for the rounds of a cell, and how figures and
//! ratios are written.

use super::Cell;
use super::plan::Entry;
use crate::rounds::median;

/// Which round stands for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kept {
    /// The smallest.
    Smallest,
    /// The largest.
    Largest,
    /// The middle one.
    Median,
}

/// What stands for all rounds of a cell, in one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The round that is kept.
    pub value: f64,
    /// The middle one, if there are several.
    pub median: Option<f64>,
    /// In what.
    pub unit: String,
}

impl Cell {
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

/// How many times as much another one costs; None: it makes no sense to ask.
pub fn ratio(metric: &str, this: &Figure, other: &Figure) -> Option<f64> {
    let ratio = this.value / other.value;
    (Entry::is_cost(metric) && ratio.is_finite() && other.value > 0.0).then_some(ratio)
}

/// Three digits that tell, or all before the point.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 99.95 => grouped(value),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A ratio: `0.66×`, `3.7×`, `120×`.
pub fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 9.95 => format!("{}×", grouped(ratio)),
        ratio if ratio >= 1.995 => format!("{ratio:.1}×"),
        ratio => format!("{ratio:.2}×"),
    }
}

/// A whole number with its thousands apart.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    match value < 0.0 {
        true => format!("-{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_tell() {
        let values = [0.0, 0.0634, 1.5, 12.34, 99.96, 466.4, 1_234_567.0, -1_500.0];
        let texts = [
            "0",
            "0.063",
            "1.50",
            "12.3",
            "100",
            "466",
            "1,234,567",
            "-1,500",
        ];
        assert_eq!(values.map(number), texts);
        let ratios = [0.657, 1.0, 3.74, 9.96, 1_234.5];
        assert_eq!(
            ratios.map(times),
            ["0.66×", "1.00×", "3.7×", "10×", "1,234×"]
        );
    }
}
