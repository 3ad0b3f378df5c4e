//! The plan of the comparison: which workloads, in which groups, by which figures, and how each is
//! run.

use super::Kept;
use crate::workload::{self, When, Workload};

/// How a runtime runs a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// One process does all rounds.
    Rounds,
    /// Fresh processes, one after the other. Each does several rounds, and nothing before the
    /// first.
    Cold,
    /// The same with a single round in each process.
    Fresh,
    /// A process of its own for every round, measured from outside.
    Watched,
    /// A server, the same for all rounds.
    Server,
    /// A cold server: fresh processes as above. The first round is a server's first load.
    ColdServer,
    /// A server of its own for every round: it uses CPU time while it waits for its turn, or holds
    /// too many connections.
    FreshServer,
    /// Only gosched: the ports of the benchmark itself.
    Alone,
}

impl Manner {
    /// Whether the first round of a fresh process has a figure of its own.
    pub fn is_cold(self) -> bool {
        matches!(self, Manner::Cold | Manner::Fresh | Manner::ColdServer)
    }
}

/// A workload as it is compared.
pub struct Entry {
    pub name: &'static str,
    /// The table it is in.
    pub group: &'static str,
    /// The figures that are shown, the most important first.
    pub shown: &'static [&'static str],
    pub manner: Manner,
    /// The n of a quick run.
    quick: usize,
}

pub const COLD: &str = "First and best rounds";
const TASKS: &str = "Tasks";
const MESSAGES: &str = "Messages";
const WAITING: &str = "Locks, timers, waiting";
const DISTURBED: &str = "Among tasks that do not let go";
const SERVERS: &str = "Servers";
/// Code of std and of crates as it is, on goroutines with hooks.
pub const EXISTING: &str = "Existing code";
const ALONE: &str = "gosched alone";

const fn entry(
    name: &'static str,
    group: &'static str,
    manner: Manner,
    shown: &'static [&'static str],
    quick: usize,
) -> Entry {
    Entry {
        name,
        group,
        shown,
        manner,
        quick,
    }
}

/// Every workload of the comparison, in this order.
pub static ALL: [Entry; 43] = {
    use Manner::*;
    const TIME: &[&str] = &["time"];
    const SPAWN: &[&str] = &["time", "go_time"];
    const IDLE: &[&str] = &["memory", "park_time", "wake_time"];
    const LATE: &[&str] = &["late_p99", "late_p50"];
    const SHARED: &[&str] = &["late_p99", "late_p50", "share"];
    const SERVED: &[&str] = &["time", "cpu", "p99"];
    [
        entry("spawn_burst", COLD, Cold, TIME, 5_000),
        entry("go_burst", COLD, Cold, TIME, 5_000),
        entry("submit_16", COLD, Cold, TIME, 3_200),
        entry("skynet", COLD, Cold, TIME, 10_000),
        entry("timers", COLD, Cold, &["time", "cpu", "late_p99"], 5_000),
        entry("idle_1m", COLD, Fresh, IDLE, 20_000),
        entry("idle_100k", COLD, Fresh, IDLE, 10_000),
        entry("accept_burst", COLD, ColdServer, &["time", "cpu"], 4_000),
        entry("resize_chain", COLD, Cold, TIME, 50),
        entry("yield", TASKS, Rounds, TIME, 100_000),
        entry("spawn", TASKS, Rounds, SPAWN, 50_000),
        entry("fib", TASKS, Rounds, TIME, 24),
        entry("pingpong_1w", MESSAGES, Rounds, TIME, 100_000),
        entry("pingpong_2w", MESSAGES, Rounds, TIME, 100_000),
        entry("chan_spsc", MESSAGES, Rounds, TIME, 500_000),
        entry("chan_mpmc", MESSAGES, Rounds, TIME, 400_000),
        entry("chan_unbounded", MESSAGES, Rounds, TIME, 500_000),
        entry("select_2", MESSAGES, Rounds, TIME, 200_000),
        entry("select_8", MESSAGES, Rounds, TIME, 200_000),
        entry("sieve", MESSAGES, Rounds, TIME, 300),
        entry(
            "mutex",
            WAITING,
            Rounds,
            &["time", "uncontended_time"],
            50_000,
        ),
        entry(
            "timers_10k",
            WAITING,
            Rounds,
            &["late_p99", "late_p50"],
            2_000,
        ),
        entry("timer_reset", WAITING, Rounds, TIME, 200_000),
        entry("foreign_wake", WAITING, Rounds, TIME, 300),
        entry("stw", WAITING, Rounds, TIME, 10_000),
        entry("idle_cpu", WAITING, Watched, &["wakeups", "cpu"], 1),
        entry("hog", DISTURBED, Rounds, SHARED, 500),
        entry("hog_relay", DISTURBED, Rounds, SHARED, 500),
        entry("hog_slept", DISTURBED, Rounds, SHARED, 500),
        entry("block", DISTURBED, Rounds, LATE, 500),
        entry("block_marked", DISTURBED, Rounds, LATE, 500),
        entry("tcp_echo", SERVERS, Server, SERVED, 20_000),
        entry("tcp_idle", SERVERS, FreshServer, SERVED, 10_000),
        entry("tcp_accept", SERVERS, Server, &["time", "cpu"], 2_000),
        entry("tcp_hogs", SERVERS, FreshServer, &["p99", "time"], 200),
        entry("http_hello", SERVERS, Server, SERVED, 20_000),
        entry("std_echo", EXISTING, Rounds, &["cpu", "time"], 20_000),
        entry(
            "std_mutex",
            EXISTING,
            Rounds,
            &["time", "uncontended_time"],
            50_000,
        ),
        entry("std_mpsc", EXISTING, Rounds, &["time", "cpu"], 50_000),
        entry(
            "ureq_4000",
            EXISTING,
            Rounds,
            &["threads", "cpu", "time"],
            200,
        ),
        entry("malloc", ALONE, Alone, &["time", "moving_time"], 1_000_000),
        entry(
            "blocking",
            ALONE,
            Alone,
            &["added_time", "blocking_time"],
            100_000,
        ),
        entry("enter", ALONE, Alone, &["added_time", "time"], 1_000_000),
    ]
};

impl Entry {
    /// The entry of that name.
    pub fn find(name: &str) -> Option<&'static Entry> {
        ALL.iter().find(|entry| entry.name == name)
    }

    /// Its workload.
    pub fn workload(&self) -> &'static Workload {
        workload::find(self.name).expect("the comparison is of workloads that exist")
    }

    /// The size of the work.
    pub fn n(&self, is_quick: bool) -> usize {
        match is_quick {
            true => self.quick,
            false => self.workload().n,
        }
    }

    /// The size of the work for one runtime. A thread is slow to start and to wake. So plain
    /// threads do only a part of the work if the figure is per operation and the operations are
    /// sequential.
    pub fn n_for(&self, runtime: &str, n: usize) -> usize {
        let is_slow = matches!(
            self.name,
            "spawn" | "submit_16" | "pingpong_1w" | "pingpong_2w" | "std_mpsc"
        );
        match runtime {
            "std" if is_slow => (n / 20).max(1),
            _ => n,
        }
    }

    /// Whether the second round of a fresh process is shown as well. A second burst shows what the
    /// first one left behind.
    pub fn shows_second(&self) -> bool {
        matches!(self.name, "spawn_burst" | "go_burst")
    }

    /// Whether goroutines with hooks take part: the work is in unmodified code.
    pub fn is_hooked(&self) -> bool {
        self.group == EXISTING
    }

    /// How many rounds each process does, if the run has this many.
    pub fn rounds_in_process(&self, rounds: usize) -> usize {
        match self.manner {
            Manner::Fresh => 1,
            _ => rounds,
        }
    }

    /// Which round stands for all, as in `rounds`. Noise only adds, so it is the best; the worst
    /// where a bound is promised; the median where two times are compared. A process has only one
    /// first round, so of first rounds it is the median of all processes.
    pub fn kept(&self, metric: &str, when: When) -> Kept {
        if when != When::Best {
            return Kept::Median;
        }
        match (self.name, metric) {
            (_, "late_max" | "time_max" | "wakeups" | "threads") | ("idle_cpu", "cpu") => {
                Kept::Largest
            }
            (_, "rate") => Kept::Largest,
            ("foreign_wake", "ratio") | (_, "added_time") => Kept::Median,
            _ => Kept::Smallest,
        }
    }

    /// Whether less is better, so that a ratio is a cost.
    pub fn is_cost(metric: &str) -> bool {
        !matches!(metric, "rate" | "ticks" | "share")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::contestants::HOOKED;
    use super::*;
    use crate::client::Load;
    use crate::proc::Change;
    use crate::rounds::{Keep, Sample};
    use crate::workload::Params;
    use crate::{parked, servers};

    #[test]
    fn every_workload_is_compared_once() {
        for workload in &workload::ALL {
            let entries = ALL.iter().filter(|entry| entry.name == workload.name);
            assert_eq!(entries.count(), 1, "{}", workload.name);
        }
        for entry in &ALL {
            assert!(entry.quick <= entry.workload().n, "{}", entry.name);
        }
    }

    #[test]
    fn groups_are_not_mixed() {
        let groups: Vec<_> = ALL.iter().map(|entry| entry.group).collect();
        assert!(groups.is_sorted_by_key(|group| groups.iter().position(|g| g == group)));
    }

    /// One round's samples of a workload with next to no work. Workloads that run in a child
    /// process do not run here.
    fn samples(name: &str) -> Vec<Sample> {
        let span = Duration::from_secs(1);
        let n = match name {
            "tcp_accept" | "accept_burst" => return servers::connected_samples(1, span, span),
            "idle_1m" | "idle_100k" => return parked::idle_samples(1.0, 1.0, 1.0),
            "idle_cpu" => {
                let (wakeups, cpu_ns) = (0, 0);
                return parked::quiet_samples(&Change { wakeups, cpu_ns });
            }
            name if servers::is_server(name) => {
                let (elapsed, latencies) = (span, vec![1.0]);
                return servers::samples(Load { elapsed, latencies }, span);
            }
            "ureq_4000" => 4,
            "hog" | "hog_relay" | "hog_slept" | "block" | "block_marked" => 300,
            _ => 10,
        };
        let (rounds, procs) = (1, 2);
        let params = Params { n, rounds, procs };
        let workload = workload::find(name).expect("a workload");
        let round = workload.ports[0].start(&params);
        let samples = round.and_then(|mut round| round());
        samples.unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    #[test]
    fn the_same_rounds_are_kept_as_without_a_comparison() {
        for entry in &ALL {
            let samples = samples(entry.name);
            for metric in entry.shown {
                let is_told = samples.iter().any(|sample| sample.metric == *metric);
                assert!(is_told, "{} has no {metric}", entry.name);
            }
            for Sample { metric, keep, .. } in samples {
                let expected = match keep {
                    Keep::Best | Keep::Least => Kept::Smallest,
                    Keep::Worst | Keep::Most => Kept::Largest,
                    Keep::Median => Kept::Median,
                };
                let kept = entry.kept(metric, When::Best);
                assert_eq!(kept, expected, "{} {metric}", entry.name);
            }
        }
    }

    #[test]
    fn only_existing_code_has_goals_with_hooks() {
        for entry in &ALL {
            let mut goals = entry.workload().goals.iter();
            let is_hooked = goals.any(|goal| goal.runtime.contains(HOOKED));
            assert_eq!(is_hooked, entry.is_hooked(), "{}", entry.name);
        }
    }

    #[test]
    fn cold_workloads_have_a_table_of_their_own() {
        for entry in &ALL {
            assert_eq!(
                entry.manner.is_cold(),
                entry.group == COLD,
                "{}",
                entry.name
            );
            let is_for_first = entry.workload().goals.iter().any(|g| g.when != When::Best);
            assert!(entry.manner.is_cold() || !is_for_first, "{}", entry.name);
        }
    }
}
