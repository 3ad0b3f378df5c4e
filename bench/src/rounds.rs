//! Turns the samples of rounds into figures, and compares two ports.
//!
//! A *sample* is one number of one round. A *figure* is the result of all samples of one metric. A
//! round may have several samples, and every round has the same ones in the same order.
//!
//! On a shared machine noise only adds time. So the best round is closest to the cost of the work,
//! and the median shows how far from it an ordinary round is. Where the promise is a bound, the
//! worst round counts. Two ports are compared by their best rounds for the same reason. They took
//! turns, so both had the same chance of a quiet moment.

use std::io;
use std::time::{Duration, Instant};

/// Does the work once; dropping it releases its resources.
pub type Round = Box<dyn FnMut() -> io::Result<Vec<Sample>>>;

/// Which samples become figures.
#[derive(Clone, Copy, Debug)]
pub enum Keep {
    /// The smallest, and the median as `metric_median`.
    Best,
    /// Only the median: noise changes a ratio in both directions.
    Median,
    /// The largest: the metric is promised to stay below a bound.
    Worst,
    /// Only the smallest: the metric is promised to stay above a bound.
    Least,
    /// The largest, and the median: more is better.
    Most,
}

/// One number of one round.
pub struct Sample {
    pub metric: &'static str,
    pub value: f64,
    pub unit: &'static str,
    /// Which samples are kept.
    pub keep: Keep,
}

impl Sample {
    /// A number whose smallest and median rounds are printed.
    pub fn best(metric: &'static str, value: f64, unit: &'static str) -> Sample {
        Sample::new(metric, value, unit, Keep::Best)
    }

    /// A number whose median round is printed.
    pub fn median(metric: &'static str, value: f64, unit: &'static str) -> Sample {
        Sample::new(metric, value, unit, Keep::Median)
    }

    /// A number whose largest round is printed.
    pub fn worst(metric: &'static str, value: f64, unit: &'static str) -> Sample {
        Sample::new(metric, value, unit, Keep::Worst)
    }

    /// A number of which only the smallest round is printed.
    pub fn least(metric: &'static str, value: f64, unit: &'static str) -> Sample {
        Sample::new(metric, value, unit, Keep::Least)
    }

    /// A number whose largest and median rounds are printed: a rate.
    pub fn most(metric: &'static str, value: f64, unit: &'static str) -> Sample {
        Sample::new(metric, value, unit, Keep::Most)
    }

    fn new(metric: &'static str, value: f64, unit: &'static str, keep: Keep) -> Sample {
        Sample {
            metric,
            value,
            unit,
            keep,
        }
    }
}

/// The result of one metric.
pub struct Figure {
    metric: String,
    value: f64,
    unit: &'static str,
}

impl Figure {
    /// The figure as a line of output; `name` is its first two words.
    pub fn line(&self, name: &str) -> String {
        let (value, digits) = (self.value, digits(self.value));
        format!("{name} {} {value:.digits$} {}\n", self.metric, self.unit)
    }
}

/// How many digits after the point are significant.
fn digits(value: f64) -> usize {
    match value.abs() {
        size if size >= 1000.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 3,
    }
}

/// The figures of one port, from the samples of its rounds.
pub fn figures(rounds: &[Vec<Sample>]) -> Vec<Figure> {
    let samples_per_round = rounds[0].len();
    assert!(rounds.iter().all(|round| round.len() == samples_per_round));
    (0..samples_per_round)
        .flat_map(|index| figures_of(rounds.iter().map(|round| &round[index]).collect()))
        .collect()
}

/// The figures of one metric, from its samples in all rounds.
fn figures_of(samples: Vec<&Sample>) -> Vec<Figure> {
    let Sample {
        metric, unit, keep, ..
    } = *samples[0];
    assert!(samples.iter().all(|sample| sample.metric == metric));
    let mut values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
    let middle = median(&mut values);
    let (smallest, largest) = (values[0], values[values.len() - 1]);
    let figure = |metric: String, value| Figure {
        metric,
        value,
        unit,
    };
    match keep {
        Keep::Best => vec![
            figure(metric.into(), smallest),
            figure(format!("{metric}_median"), middle),
        ],
        Keep::Median => vec![figure(metric.into(), middle)],
        Keep::Worst => vec![figure(metric.into(), largest)],
        Keep::Least => vec![figure(metric.into(), smallest)],
        Keep::Most => vec![
            figure(metric.into(), largest),
            figure(format!("{metric}_median"), middle),
        ],
    }
}

/// The difference between the best rounds of two ports.
pub struct Comparison {
    metric: &'static str,
    unit: &'static str,
    difference: f64,
    ratio: f64,
}

/// Compares the rounds of one port with those of another.
pub fn compare(metric: &'static str, these: &[Vec<Sample>], others: &[Vec<Sample>]) -> Comparison {
    let (this, unit) = best(metric, these);
    let (other, _) = best(metric, others);
    Comparison {
        metric,
        unit,
        difference: this - other,
        ratio: this / other,
    }
}

/// The smallest sample of a metric, and its unit.
fn best(metric: &str, rounds: &[Vec<Sample>]) -> (f64, &'static str) {
    let samples = rounds.iter().flatten();
    samples
        .filter(|sample| sample.metric == metric)
        .map(|sample| (sample.value, sample.unit))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .expect("what is compared is measured")
}

impl Comparison {
    /// The comparison as lines of output. The second word is the difference or the ratio, as in
    /// `own-shared`. There is no ratio to zero.
    pub fn lines(&self, workload: &str, this: &str, other: &str) -> Vec<String> {
        let (metric, unit) = (self.metric, self.unit);
        let (difference, places) = (self.difference, digits(self.difference));
        let mut lines = vec![format!(
            "{workload} {this}-{other} {metric} {difference:+.places$} {unit}\n"
        )];
        if self.ratio.is_finite() {
            let ratio = self.ratio;
            lines.push(format!("{workload} {this}/{other} {metric} {ratio:.3} x\n"));
        }
        lines
    }
}

/// Sorts the values and returns the middle one; of an even number, the upper.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The smallest of the sorted values that at least this share of them does not exceed.
pub fn quantile(sorted: &[f64], part: f64) -> f64 {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Sorts the values and returns the mean of all but the largest tenth.
pub fn undisturbed_mean(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let kept = &values[..values.len() - values.len() / 10];
    kept.iter().sum::<f64>() / kept.len() as f64
}

/// The time since `start`, divided by the number of operations.
pub fn ns_each(start: Instant, things: usize) -> f64 {
    start.elapsed().as_nanos() as f64 / things as f64
}

/// A duration in microseconds.
pub fn micros(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounds_of(sample: fn(f64) -> Sample, values: &[f64]) -> Vec<Vec<Sample>> {
        values.iter().map(|&value| vec![sample(value)]).collect()
    }

    fn lines(sample: fn(f64) -> Sample, values: &[f64]) -> Vec<String> {
        let figures = figures(&rounds_of(sample, values));
        figures.iter().map(|figure| figure.line("w r")).collect()
    }

    #[test]
    fn each_kind_keeps_its_rounds() {
        let values = [30.0, 10.25, 20.0];
        assert_eq!(
            lines(|v| Sample::best("m", v, "ns"), &values),
            ["w r m 10.2 ns\n", "w r m_median 20 ns\n"]
        );
        assert_eq!(
            lines(|v| Sample::median("m", v, "x"), &values),
            ["w r m 20 x\n"]
        );
        assert_eq!(
            lines(|v| Sample::worst("m", v, "us"), &values),
            ["w r m 30 us\n"]
        );
        assert_eq!(
            lines(|v| Sample::least("m", v, "x"), &values),
            ["w r m 10.2 x\n"]
        );
    }

    #[test]
    fn a_quantile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), 5.0);
        assert_eq!(quantile(&values, 0.91), 10.0);
        assert_eq!(quantile(&values, 0.0), 1.0);
        assert_eq!(quantile(&values[..1], 0.99), 1.0);
    }

    #[test]
    fn the_largest_tenth_is_a_disturbance() {
        let mut values = [1.0, 900.0, 1.0, 3.0, 3.0, 1.0, 3.0, 1.0, 3.0, 2.0];
        assert_eq!(undisturbed_mean(&mut values), 2.0);
        assert_eq!(undisturbed_mean(&mut [1.0, 4.0]), 2.5);
    }

    fn comparison(these: &[f64], others: &[f64]) -> Vec<String> {
        let sample = |value| Sample::best("m", value, "ns");
        let (these, others) = (rounds_of(sample, these), rounds_of(sample, others));
        compare("m", &these, &others).lines("w", "a", "b")
    }

    #[test]
    fn the_best_rounds_are_compared() {
        assert_eq!(
            comparison(&[90.0, 45.0, 60.0], &[30.0, 70.0, 80.0]),
            ["w a-b m +15 ns\n", "w a/b m 1.500 x\n"]
        );
        assert_eq!(
            comparison(&[10.25], &[20.5]),
            ["w a-b m -10.2 ns\n", "w a/b m 0.500 x\n"]
        );
    }

    #[test]
    fn there_is_no_ratio_to_nothing() {
        assert_eq!(comparison(&[0.0], &[0.0]), ["w a-b m +0 ns\n"]);
        assert_eq!(comparison(&[1.0], &[0.0]), ["w a-b m +1 ns\n"]);
    }
}
