//! Decides how many times work is done and what is kept of the times.
//!
//! Words: a *sample* is one number out of one round; a *figure* is what is
//! printed for all samples of one metric. A round may give several samples, and
//! every round gives the same ones in the same order.
//!
//! On a shared machine noise only ever adds time, so the best round is the one
//! nearest to the cost of the work, and the median tells how far from it an
//! ordinary round lies. Where the promise is a bound, the worst round counts.

use std::io;
use std::time::{Duration, Instant};

use crate::workload::Params;

/// Which of the rounds' samples become figures.
#[derive(Clone, Copy)]
pub enum Keep {
    /// The smallest, and beside it the median as `metric_median`.
    Best,
    /// The median alone: a ratio has no lucky side.
    Median,
    /// The largest: the metric is promised to stay under a bound.
    Worst,
}

/// One number out of one round.
pub struct Sample {
    metric: &'static str,
    value: f64,
    unit: &'static str,
    keep: Keep,
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

    fn new(metric: &'static str, value: f64, unit: &'static str, keep: Keep) -> Sample {
        Sample {
            metric,
            value,
            unit,
            keep,
        }
    }
}

/// What is printed of one metric.
pub struct Figure {
    metric: String,
    value: f64,
    unit: &'static str,
}

impl Figure {
    /// The figure as a line of output; `name` is its first two words.
    pub fn line(&self, name: &str) -> String {
        let value = self.value;
        let digits = match value.abs() {
            size if size >= 1000.0 || value.fract() == 0.0 => 0,
            size if size >= 10.0 => 1,
            _ => 3,
        };
        format!("{name} {} {value:.digits$} {}\n", self.metric, self.unit)
    }
}

/// Does a warm-up round whose samples are dropped, then the measured rounds.
/// The warm-up fills the caches of the runtime and of the kernel.
pub fn measure(
    params: &Params,
    mut round: impl FnMut() -> io::Result<Vec<Sample>>,
) -> io::Result<Vec<Figure>> {
    round()?;
    measure_cold(params, round)
}

/// Does the measured rounds only: for work that would be the same after a
/// warm-up and takes long.
pub fn measure_cold(
    params: &Params,
    mut round: impl FnMut() -> io::Result<Vec<Sample>>,
) -> io::Result<Vec<Figure>> {
    let rounds: Vec<Vec<Sample>> = (0..params.rounds)
        .map(|_| round())
        .collect::<io::Result<_>>()?;
    let samples_per_round = rounds[0].len();
    assert!(rounds.iter().all(|round| round.len() == samples_per_round));
    Ok((0..samples_per_round)
        .flat_map(|index| figures_of(rounds.iter().map(|round| &round[index]).collect()))
        .collect())
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
    }
}

/// Sorts the values and returns the middle one (of an even number, the upper).
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The time since `start`, divided by the number of things done in it.
pub fn ns_each(start: Instant, things: usize) -> f64 {
    start.elapsed().as_nanos() as f64 / things as f64
}

/// A span in microseconds.
pub fn micros(span: Duration) -> f64 {
    span.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(sample: fn(f64) -> Sample, values: &[f64]) -> Vec<String> {
        let mut values = values.iter();
        let params = Params {
            n: 1,
            rounds: values.len(),
            procs: 1,
        };
        let round = || Ok(vec![sample(*values.next().expect("one value per round"))]);
        let figures = measure_cold(&params, round).expect("no round fails");
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
    }

    #[test]
    fn the_warm_up_is_not_kept() {
        let params = Params {
            n: 1,
            rounds: 2,
            procs: 1,
        };
        let mut rounds = 0;
        let figures = measure(&params, || {
            rounds += 1;
            Ok(vec![Sample::best("m", f64::from(rounds), "ns")])
        });
        assert_eq!(figures.expect("no round fails")[0].value, 2.0);
        assert_eq!(rounds, 3);
    }
}
