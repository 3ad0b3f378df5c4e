//! Small pictures in text: bars, and lines of levels over time.

use std::time::{Duration, Instant};

use crate::text::time;

/// Columns of a picture over time.
pub(crate) const COLUMNS: usize = 56;

const EIGHTHS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
const LEVELS: [char; 9] = ['·', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A bar of `value` out of `max`, `width` characters wide. Any value above zero is visible.
pub(crate) fn bar(value: f64, max: f64, width: usize) -> String {
    let share = if max > 0.0 {
        (value / max).clamp(0.0, 1.0)
    } else {
        0.0
    };
    let mut eighths = (share * width as f64 * 8.0).round() as usize;
    if value > 0.0 {
        eighths = eighths.max(1);
    }
    let mut text = "█".repeat(eighths / 8);
    if !eighths.is_multiple_of(8) {
        text.push(EIGHTHS[eighths % 8]);
    }
    format!("{text:<width$}")
}

/// One column: `·` for zero, else a level from the lowest to the highest.
pub(crate) fn level(value: u64, max: u64) -> char {
    let (value, max) = (value.min(max) as u128, max as u128);
    match max {
        0 => LEVELS[0],
        _ => LEVELS[(value * 8).div_ceil(max) as usize],
    }
}

/// Samples at roughly equal intervals. When there are too many, every other sample is dropped, and
/// the interval doubles.
pub(crate) struct Timeline<T> {
    begin: Instant,
    every: Duration,
    moments: Vec<(Duration, T)>,
}

impl<T> Timeline<T> {
    /// A timeline with one sample per interval, from now on.
    pub(crate) fn new(every: Duration) -> Timeline<T> {
        Timeline {
            begin: Instant::now(),
            every,
            moments: Vec::with_capacity(COLUMNS + 2),
        }
    }

    /// Takes a sample if it is time.
    pub(crate) fn look(&mut self, see: impl FnOnce() -> T) {
        let now = self.begin.elapsed();
        let last = self.moments.last().map(|(when, _)| *when);
        if last.is_some_and(|last| now < last + self.every) {
            return;
        }
        self.add(see());
    }

    /// Adds a sample now.
    pub(crate) fn add(&mut self, seen: T) {
        self.moments.push((self.begin.elapsed(), seen));
        // One more sample than columns, because a difference needs two.
        if self.moments.len() > COLUMNS + 1 {
            let mut i = 0;
            self.moments.retain(|_| {
                i += 1;
                i % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// All samples.
    pub(crate) fn seen(&self) -> impl Iterator<Item = &T> {
        self.moments.iter().map(|(_, seen)| seen)
    }

    /// The time from the first sample to the last.
    pub(crate) fn length(&self) -> Duration {
        self.moments
            .last()
            .map_or(Duration::ZERO, |(when, _)| *when)
    }

    /// The growth of a count between samples, per second.
    pub(crate) fn rates(&self, count: impl Fn(&T) -> u64) -> Vec<u64> {
        let pairs = self.moments.windows(2);
        let rate = |pair: &[(Duration, T)]| {
            let grown = count(&pair[1].1).saturating_sub(count(&pair[0].1));
            (grown as f64 / (pair[1].0 - pair[0].0).as_secs_f64()) as u64
        };
        pairs.map(rate).collect()
    }

    /// A line of a picture, with a sign for every sample, or for all but the last. While the line
    /// grows each sign has one column. Once it `is_over`, the signs are spread over the whole width
    /// in proportion to time.
    pub(crate) fn line(&self, signs: &[char], is_over: bool) -> String {
        let mut line: String = signs.iter().take(COLUMNS).collect();
        if let (true, Some(last)) = (is_over, signs.len().checked_sub(1)) {
            let sign = |column: usize| {
                let when = self.length() * (2 * column as u32 + 1) / (2 * COLUMNS as u32);
                let later = self.moments.partition_point(|(then, _)| *then <= when);
                signs[later.saturating_sub(1).min(last)]
            };
            line = (0..COLUMNS).map(sign).collect();
        }
        format!("{line:<COLUMNS$}")
    }

    /// The axis below such lines at the end.
    pub(crate) fn axis(&self) -> String {
        format!("0{:>w$}", time(self.length()), w = COLUMNS - 1)
    }
}

/// A level for each of the `values`.
pub(crate) fn levels(values: impl IntoIterator<Item = u64>, max: u64) -> Vec<char> {
    values.into_iter().map(|value| level(value, max)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_keep_their_width_and_never_hide_a_value() {
        assert_eq!(bar(0.0, 10.0, 4), "    ");
        assert_eq!(bar(1.0, 1000.0, 4), "▏   ");
        assert_eq!(bar(5.0, 10.0, 4), "██  ");
        assert_eq!(bar(4.0, 10.0, 4), "█▋  ");
        assert_eq!(bar(10.0, 10.0, 4), "████");
        assert_eq!(bar(99.0, 10.0, 4), "████");
        assert_eq!(bar(0.0, 0.0, 4), "    ");
    }

    #[test]
    fn levels_tell_nothing_from_little() {
        assert_eq!(level(0, 100), '·');
        assert_eq!(level(1, 100), '▁');
        assert_eq!(level(100, 100), '█');
        assert_eq!(level(u64::MAX, 3), '█');
        assert_eq!(level(7, 0), '·');
        assert_eq!(levels([0, 50, 100], 100), ['·', '▄', '█']);
    }

    #[test]
    fn a_timeline_forgets_every_other_moment_when_it_is_full() {
        let mut timeline = Timeline::new(Duration::ZERO);
        for i in 0..=COLUMNS {
            timeline.look(|| i as u64);
        }
        assert_eq!(timeline.seen().count(), COLUMNS + 1);
        assert_eq!(timeline.rates(|count| *count).len(), COLUMNS);
        timeline.look(|| COLUMNS as u64 + 1);
        let seen: Vec<_> = timeline.seen().copied().collect();
        assert_eq!(seen[..3], [0, 2, 4]);
        assert!(seen.len() == COLUMNS / 2 + 1);
    }

    #[test]
    fn a_timeline_looks_only_when_it_is_time() {
        let mut timeline = Timeline::new(Duration::from_secs(3_600));
        timeline.look(|| 1);
        timeline.look(|| unreachable!("too soon"));
        assert_eq!(timeline.seen().count(), 1);
        assert!(timeline.rates(|count| *count).is_empty());
    }

    #[test]
    fn a_line_grows_and_is_laid_out_at_the_end() {
        let mut timeline: Timeline<()> = Timeline::new(Duration::ZERO);
        assert_eq!(timeline.line(&[], true).chars().count(), COLUMNS);
        timeline.moments = [0, 10, 30, 40].map(|s| (Duration::from_secs(s), ())).into();
        let growing = timeline.line(&['a', 'b', 'c'], false);
        assert_eq!(growing, format!("{:<COLUMNS$}", "abc"));
        let over = timeline.line(&['a', 'b', 'c'], true);
        assert_eq!(over, "a".repeat(14) + &"b".repeat(28) + &"c".repeat(14));
        assert!(timeline.axis().ends_with("40.00 s") && timeline.axis().len() == COLUMNS);
    }
}
