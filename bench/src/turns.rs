//! Lets the ports of a workload take turns, one round each, until every port has done all of its
//! rounds.
//!
//! If the machine is busy for a second, it slows down all ports alike. Every port has the same
//! chance of a quiet moment, so their figures can be compared. All ports are started before the
//! first round and ended after the last. A port that waits for its turn sleeps.

use std::io;
use std::panic::{self, AssertUnwindSafe};

use crate::rounds::{self, Round, Sample};
use crate::workload::{Params, Port, When, Workload};

/// The result of the ports of one workload.
pub struct Outcome {
    /// What to print, one line per figure.
    pub lines: Vec<String>,
    /// The failed ports, by name, and why. The others continued.
    pub failures: Vec<(&'static str, io::Error)>,
}

/// A port and its rounds.
struct Player {
    port: &'static Port,
    round: Round,
    /// The samples of each measured round.
    taken: Vec<Vec<Sample>>,
}

/// Runs all rounds of all ports.
pub fn play(workload: &Workload, params: &Params) -> Outcome {
    let mut failures = Vec::new();
    let mut players = Vec::new();
    for port in workload.ports {
        match caught(|| port.start(params)) {
            Ok(round) => players.push(Player {
                port,
                round,
                taken: Vec::with_capacity(params.rounds),
            }),
            Err(error) => failures.push((port.runtime, error)),
        }
    }
    let warm_ups = usize::from(workload.has_warm_up);
    for turn in 0..warm_ups + params.rounds {
        players.retain_mut(|player| match caught(&mut player.round) {
            Ok(samples) => {
                if turn >= warm_ups {
                    player.taken.push(samples);
                }
                true
            }
            Err(error) => {
                failures.push((player.port.runtime, error));
                failures.extend(player.put_away());
                false
            }
        });
    }
    Outcome {
        lines: lines(workload, &players),
        failures,
    }
}

impl Player {
    /// Releases its resources before the end; returns an error from that.
    fn put_away(&mut self) -> Option<(&'static str, io::Error)> {
        let over = Box::new(|| Err(io::Error::other("it is over")));
        let round: Round = std::mem::replace(&mut self.round, over);
        let end = caught(|| {
            drop(round);
            Ok(())
        });
        end.err().map(|error| (self.port.runtime, error))
    }
}

/// Makes a panic of a port a failure of that port alone. What it leaves half done is its own: no
/// port uses the data of another.
fn caught<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    panic::catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("of no words");
        Err(io::Error::other(format!("a panic: {text}")))
    })
}

/// The figures of each port, then the comparisons of the workload's first port with the others,
/// then the goals.
fn lines(workload: &Workload, players: &[Player]) -> Vec<String> {
    let mut lines = Vec::new();
    for player in players {
        let name = format!("{} {}", workload.name, player.port.runtime);
        let figures = rounds::figures(&player.taken);
        lines.extend(figures.iter().map(|figure| figure.line(&name)));
    }
    lines.extend(comparisons(workload, players));
    // No port here has a process of its own, so there are no first rounds.
    let goals = workload.goals.iter().filter(|goal| goal.when == When::Best);
    lines.extend(goals.map(|goal| goal.line(workload.name)));
    lines
}

/// The workload's first port against each of the others, unless it failed.
fn comparisons(workload: &Workload, players: &[Player]) -> Vec<String> {
    let mut lines = Vec::new();
    let Some((first, others)) = players.split_first() else {
        return lines;
    };
    if first.port.short != workload.ports[0].short {
        return lines;
    }
    for other in others {
        for metric in workload.compared {
            let comparison = rounds::compare(metric, &first.taken, &other.taken);
            let (first, other) = (first.port.short, other.port.short);
            lines.extend(comparison.lines(workload.name, first, other));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::port::Mode;
    use crate::workload::Goal;

    /// The test's ports record their turns here.
    static TURNS: Mutex<String> = Mutex::new(String::new());

    fn counting(params: &Params, mode: Mode) -> io::Result<Round> {
        let (mark, step) = match mode {
            Mode::Own => ('o', 10.0),
            Mode::Shared => ('s', 4.0),
        };
        let mut value = 0.0;
        let zero = params.n as f64;
        Ok(Box::new(move || {
            TURNS.lock().expect("no test panics here").push(mark);
            value += step;
            Ok(vec![Sample::best("m", zero + value, "ns")])
        }))
    }

    fn failing(_: &Params) -> io::Result<Round> {
        let mut is_first = true;
        Ok(Box::new(move || {
            TURNS.lock().expect("no test panics here").push('f');
            if std::mem::take(&mut is_first) {
                return Ok(vec![Sample::best("m", 1.0, "ns")]);
            }
            Err(io::Error::other("tired"))
        }))
    }

    /// Panics in its second round, and again when it is dropped.
    fn panicking(_: &Params) -> io::Result<Round> {
        struct Brittle;
        impl Drop for Brittle {
            fn drop(&mut self) {
                panic!("broken");
            }
        }
        let (brittle, mut is_first) = (Brittle, true);
        Ok(Box::new(move || {
            let _held = &brittle;
            TURNS.lock().expect("no test panics here").push('p');
            assert!(std::mem::take(&mut is_first), "dropped it");
            Ok(vec![Sample::best("m", 1.0, "ns")])
        }))
    }

    fn hopeless(_: &Params) -> io::Result<Round> {
        panic!("{} tries", 3);
    }

    fn refusing(_: &Params) -> io::Result<Round> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    const COUNTING: Workload = Workload {
        name: "w",
        about: "",
        n: 0,
        rounds: 3,
        has_warm_up: true,
        ports: &[
            Port::gosched(Mode::Own, counting),
            Port::gosched(Mode::Shared, counting),
            Port::std(failing),
            Port::std(refusing),
            Port::std(panicking),
            Port::std(hopeless),
        ],
        compared: &["m"],
        goals: &[
            Goal::new("gosched", "m", 12.5, "ns"),
            Goal::new("gosched", "m", 15.0, "ns").when(When::First),
        ],
        child: None,
    };

    #[test]
    fn ports_take_turns_and_a_failure_stops_only_its_own() {
        let params = Params {
            n: COUNTING.n,
            rounds: COUNTING.rounds,
            procs: 1,
        };
        let outcome = play(&COUNTING, &params);
        // The warm-up is a turn as well; a failed port has no further one.
        assert_eq!(*TURNS.lock().expect("no test panics here"), "osfposfposos");
        let failures = outcome.failures.iter();
        let failures: Vec<_> = failures.map(|(_, error)| error.to_string()).collect();
        let refusal = io::Error::from(io::ErrorKind::Unsupported).to_string();
        let panics = ["a panic: dropped it", "a panic: broken"];
        assert_eq!(
            failures,
            [&refusal, "a panic: 3 tries", "tired", panics[0], panics[1]]
        );
        // The warm-up is not among the rounds, whose values are 20, 30, 40 and 8, 12, 16.
        assert_eq!(
            outcome.lines,
            [
                "w gosched m 20 ns\n",
                "w gosched m_median 30 ns\n",
                "w gosched-shared m 8 ns\n",
                "w gosched-shared m_median 12 ns\n",
                "w own-shared m +12 ns\n",
                "w own/shared m 2.500 x\n",
                "w gosched m_goal 12.5 ns\n",
            ]
        );
    }
}
