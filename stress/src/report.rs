//! The figures of a round: a line from the worker, and the sums that the supervisor makes of all
//! lines.
//!
//! A worker may crash, so its figures must leave it after each round. A line is `done key=value …`.
//! Numbers are added up; for keys that begin with `max.` the largest is kept.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering::SeqCst;

use crate::ledger::{REFUSALS, WAITS};
use crate::mixes;
use crate::plan::KINDS;
use crate::round::Outcome;
use crate::system;

/// The figures of one round or of many.
#[derive(Default)]
pub struct Figures(BTreeMap<String, u64>);

/// Prefix of the keys of which the largest is kept.
const LARGEST: &str = "max.";

impl Figures {
    fn add(&mut self, key: &str, value: u64) {
        let entry = self.0.entry(key.to_owned()).or_default();
        if key.starts_with(LARGEST) {
            *entry = (*entry).max(value);
        } else {
            *entry += value;
        }
    }

    /// The figure with this key; 0 if there is none.
    pub fn get(&self, key: &str) -> u64 {
        self.0.get(key).copied().unwrap_or(0)
    }

    /// The figures of one round.
    pub fn of(outcome: &Outcome) -> Figures {
        let mut figures = Figures::default();
        let ledger = &outcome.env.ledger;
        for (column, mix) in ledger.columns.iter().zip(mixes::ALL) {
            figures.add(&format!("ops.{}", mix.name), column.ops.load(SeqCst));
            let ran = column.ran.load(SeqCst);
            if ran > 0 {
                figures.add(&format!("rounds.{}", mix.name), 1);
                figures.add(&format!("ran.{}", mix.name), ran);
            }
        }
        for (at, _) in WAITS.iter().enumerate() {
            figures.add(&format!("max.wait{at}"), ledger.worst[at].load(SeqCst));
        }
        figures.add("max.decisions", ledger.decisions.load(SeqCst));
        for (what, count) in REFUSALS.iter().zip(&ledger.refusals) {
            figures.add(&format!("refusals.{what}"), count.load(SeqCst));
        }
        let sums = ledger.sums();
        figures.add("rounds", 1);
        figures.add(&format!("kind.{:?}", outcome.env.plan.kind), 1);
        figures.add("refused.goroutines", ledger.refused_goroutines.load(SeqCst));
        figures.add("refused.sockets", ledger.refused_sockets.load(SeqCst));
        figures.add("max.given_up_early", sums.given_up_early());
        figures.add("checks", ledger.checks.load(SeqCst));
        figures.add("goroutines", outcome.goroutines);
        figures.add("values", sums.made);
        figures.add("abandoned", sums.ran - sums.ended);
        figures.add("rescues", outcome.rescues);
        figures.add("max.peak_kib", system::peak_kib() as u64);
        figures.add("max.rss_kib", outcome.rss_kib as u64);
        figures.add("max.fds_kept", outcome.fds_kept.max(0) as u64);
        figures
    }

    /// As a line for the supervisor.
    pub fn line(&self) -> String {
        let mut line = String::from("done");
        for (key, value) in self.0.iter().filter(|(_, value)| **value != 0) {
            let _ = write!(line, " {key}={value}");
        }
        line
    }

    /// Adds the figures of such a line.
    pub fn add_line(&mut self, line: &str) {
        for word in line.split_whitespace() {
            if let Some((key, value)) = word.split_once('=')
                && let Ok(value) = value.parse()
            {
                self.add(key, value);
            }
        }
    }

    /// The sum of all operations.
    pub fn ops(&self) -> u64 {
        let ops = self.0.iter().filter(|(key, _)| key.starts_with("ops."));
        ops.map(|(_, value)| value).sum()
    }

    /// How many rounds there were of each kind, and which kinds a short run did not reach.
    fn kinds(&self) -> String {
        let all = KINDS.map(|kind| (kind, self.get(&format!("kind.{kind:?}"))));
        let (missing, there): (Vec<_>, Vec<_>) = all.iter().partition(|(_, rounds)| *rounds == 0);
        let there: Vec<_> = there
            .iter()
            .map(|(kind, n)| format!("{n} {kind:?}"))
            .collect();
        let mut text = format!("rounds by kind: {}", there.join(", "));
        if !missing.is_empty() {
            let missing: Vec<_> = missing
                .iter()
                .map(|(kind, _)| format!("{kind:?}"))
                .collect();
            let _ = write!(text, "; not reached: {}", missing.join(", "));
        }
        text + "\n"
    }

    /// How often refusals were switched on, and what they refused.
    fn refusals(&self) -> String {
        let times = |what: &&str| format!("{} of {what}", self.get(&format!("refusals.{what}")));
        let times: Vec<_> = REFUSALS.iter().map(times).collect();
        format!(
            "refusals switched on: {}; {} goroutines and {} sockets refused\n",
            times.join(", "),
            self.get("refused.goroutines"),
            self.get("refused.sockets"),
        )
    }

    /// The report at the end.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<10} {:>8} {:>12} {:>14}\n",
            "mix", "rounds", "actors", "operations"
        );
        for mix in mixes::ALL {
            let get = |what: &str| self.get(&format!("{what}.{}", mix.name));
            let (rounds, ran, ops) = (get("rounds"), get("ran"), get("ops"));
            let _ = writeln!(text, "{:<10} {rounds:>8} {ran:>12} {ops:>14}", mix.name);
        }
        let _ = writeln!(
            text,
            "\n{} rounds, {} closures run, {} values, {} operations, {} invariants checked",
            self.get("rounds"),
            self.get("goroutines"),
            self.get("values"),
            self.ops(),
            self.get("checks"),
        );
        text += &self.kinds();
        text += &self.refusals();
        let _ = writeln!(
            text,
            "{} goroutines abandoned with dropped runtimes, at most {} of a round before their call; \
             {} lost wake-ups repaired",
            self.get("abandoned"),
            self.get("max.given_up_early"),
            self.get("rescues"),
        );
        text += "longest:";
        for (at, name) in WAITS.iter().enumerate() {
            let us = self.get(&format!("max.wait{at}"));
            let _ = write!(text, " {name} {:.1} ms,", us as f64 / 1000.0);
        }
        text.pop();
        let _ = write!(
            text,
            "\na goroutine waited for at most {} scheduling decisions of its Ps",
            self.get("max.decisions")
        );
        let _ = write!(
            text,
            "\nmemory: at most {} MiB, {} MiB between rounds; at most {} files kept by abandoned \
             goroutines of a round",
            self.get("max.peak_kib") >> 10,
            self.get("max.rss_kib") >> 10,
            self.get("max.fds_kept"),
        );
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_survive_the_way_to_the_supervisor() {
        let (mut one, mut sum) = (Figures::default(), Figures::default());
        one.add("rounds", 1);
        one.add("ops.chan", 7);
        one.add("max.wait0", 30);
        sum.add_line(&one.line());
        sum.add_line("done rounds=1 max.wait0=20");
        assert_eq!(sum.get("rounds"), 2);
        assert_eq!(sum.ops(), 7);
        assert_eq!(sum.get("max.wait0"), 30);
    }

    #[test]
    fn kinds_that_did_not_come_are_named() {
        let mut sum = Figures::default();
        sum.add_line("done rounds=3 kind.Clean=2 kind.Any=1 refusals.epoll=4 refused.sockets=1");
        let (kinds, refusals) = (sum.kinds(), sum.refusals());
        let expected = "rounds by kind: 2 Clean, 1 Any; not reached: Chaos, Faults\n";
        assert_eq!(kinds, expected);
        assert!(
            refusals.contains("0 of mappings, 0 of threads, 4 of epoll;"),
            "{refusals}"
        );
        assert!(
            refusals.contains("0 goroutines and 1 sockets"),
            "{refusals}"
        );
        sum.add_line("done kind.Chaos=1 kind.Faults=1");
        assert!(!sum.kinds().contains("not reached"));
    }
}
