//! The plan of a round: everything that its seed decides.
//!
//! A failed round can be repeated from its seed alone.

use std::fmt;
use std::time::Duration;

use crate::mixes;
use crate::rng::{Rng, scatter};

/// How a runtime ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// All its goroutines finish.
    Drained,
    /// They are unwound, with enough time.
    ShutDown,
    /// They are unwound within a few milliseconds; the rest are abandoned.
    CutOff(u64),
    /// They are abandoned: by the main thread, by a goroutine of the same runtime, or by one of
    /// another.
    Dropped,
    DroppedInside,
    DroppedElsewhere,
}

impl Ending {
    /// Whether goroutines may be abandoned.
    pub fn abandons(self) -> bool {
        !matches!(self, Ending::Drained | Ending::ShutDown)
    }
}

/// The kind of process a round runs in; the lowest bits of its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Nothing is abandoned, so all resources must be returned.
    Clean,
    /// Every ending.
    Any,
    /// Every ending, with chaos from the library itself.
    Chaos,
    /// Every ending, with failures of memory, threads and the poller.
    Faults,
}

pub const KINDS: [Kind; 4] = [Kind::Clean, Kind::Any, Kind::Chaos, Kind::Faults];
/// The processes of a run and the rounds of each, repeated. A short run has every kind. Growing
/// memory shows only in many rounds of one process.
const BATCHES: [(Kind, u64); 7] = [
    (Kind::Faults, 4),
    (Kind::Any, 4),
    (Kind::Chaos, 4),
    (Kind::Clean, 24),
    (Kind::Faults, 8),
    (Kind::Any, 8),
    (Kind::Chaos, 8),
];

impl Kind {
    /// The kind of the round with this seed.
    pub fn of(seed: u64) -> Kind {
        KINDS[(seed & 3) as usize]
    }

    /// The chaos seed of a process whose first round has this seed.
    pub fn chaos(seed: u64) -> Option<u64> {
        (Kind::of(seed) == Kind::Chaos).then_some((seed >> 2) | 1)
    }
}

/// The kind of the `n`-th round of a run, and how many rounds its process has from there on.
fn batch(n: u64) -> (Kind, u64) {
    let cycle: u64 = BATCHES.iter().map(|(_, rounds)| rounds).sum();
    let (mut at, mut which) = (n % cycle, 0);
    while at >= BATCHES[which].1 {
        at -= BATCHES[which].1;
        which += 1;
    }
    (BATCHES[which].0, BATCHES[which].1 - at)
}

/// How many rounds the process runs that begins with the `n`-th round of a run.
pub fn batch_from(n: u64) -> u64 {
    batch(n).1
}

/// The seed of the `n`-th round of a run; its lowest bits are the kind.
pub fn round_seed(run: u64, n: u64) -> u64 {
    let mixed = scatter(run ^ scatter(n.wrapping_add(0x5EED)));
    mixed & !3 | batch(n).0 as u64
}

/// What the system refuses now and then.
#[derive(Clone, Copy, Default, Debug)]
pub struct Inject {
    pub map: bool,
    pub thread: bool,
    pub epoll: bool,
}

/// Whether the system refuses threads all the time, to loops that never wait and to sleepers beside
/// them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    No,
    /// For the first half of a round; then threads are made again.
    Ends,
    ForGood,
}

/// The mixes of a round in which threads are refused all the time. None of them blocks a thread, so
/// no goroutine may starve.
const UNDER_REFUSAL: [&str; 3] = ["heart", "hogs", "park"];

/// A round's parameters.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub kind: Kind,
    pub procs: usize,
    /// The number of Ps of the second runtime, if there is one.
    pub there: Option<usize>,
    /// Goroutines have their own thread-locals.
    pub own: bool,
    pub preemption: bool,
    pub mprotect: bool,
    /// Deadlocks are reported whatever plain threads exist; there must be none.
    pub is_closed: bool,
    pub endings: [Ending; 2],
    /// Whether the actors are asked to stop before the end begins.
    pub is_gentle: bool,
    pub inject: Inject,
    pub refusal: Refusal,
    pub mixes: Vec<usize>,
    pub length: Duration,
    /// How many goroutines may exist at once.
    pub room: i64,
}

impl Plan {
    /// The round with this seed; `only` limits it to certain mixes.
    pub fn new(seed: u64, only: &[usize]) -> Plan {
        let mut rng = Rng::new(seed);
        let kind = Kind::of(seed);
        let procs = match rng.below(8) {
            0..=1 => 1,
            2..=4 => 2,
            5 => rng.within(3, 4),
            6 => rng.within(5, 16),
            _ => 64,
        };
        let there = (!rng.one_in(3)).then(|| rng.within(1, 4));
        let own = !rng.one_in(4);
        let mut plan = Plan {
            seed,
            kind,
            procs,
            there,
            own,
            preemption: !rng.one_in(12),
            mprotect: rng.one_in(8) && procs < 64,
            is_closed: rng.one_in(4),
            endings: [ending(&mut rng, kind), ending(&mut rng, kind)],
            is_gentle: rng.one_in(3),
            inject: inject(&mut rng, kind),
            refusal: Refusal::No,
            mixes: Vec::new(),
            length: Duration::from_millis(200 + rng.below(1000) + rng.below(1800) * rng.below(2)),
            room: 20 + (1 << rng.below(12)),
        };
        if there.is_none() {
            plan.endings[1] = Ending::Drained;
        }
        if kind == Kind::Faults && only.is_empty() && rng.one_in(4) {
            plan.refuse_threads(&mut rng);
        } else {
            plan.choose(&mut rng, only);
        }
        plan
    }

    /// Makes the system refuse threads all the time, and nothing else.
    fn refuse_threads(&mut self, rng: &mut Rng) {
        self.refusal = match rng.one_in(2) {
            true => Refusal::Ends,
            false => Refusal::ForGood,
        };
        (self.preemption, self.inject) = (true, Inject::default());
        (self.there, self.endings[1]) = (None, Ending::Drained);
        self.procs = self.procs.min(4);
        let names = UNDER_REFUSAL.map(|name| mixes::ALL.iter().position(|mix| mix.name == name));
        self.mixes = names.into_iter().flatten().collect();
        self.mixes.sort_unstable();
    }

    /// The mixes that this round can have.
    fn fit(&self, only: &[usize]) -> Vec<usize> {
        let is_fit = |at: &usize| {
            let mix = &mixes::ALL[*at];
            let is_wanted = only.is_empty() || only.contains(at);
            is_wanted
                && (self.own || mix.may_share)
                && !(self.inject.map && mix.needs_memory)
                && !(self.inject.thread && mix.needs_threads)
                && (self.preemption || !mix.hogs)
        };
        (0..mixes::ALL.len()).filter(is_fit).collect()
    }

    fn choose(&mut self, rng: &mut Rng, only: &[usize]) {
        let mut fit = self.fit(only);
        if fit.is_empty() {
            // A round without mixes would check nothing. So the round is changed to fit the wanted
            // mixes.
            (self.own, self.preemption) = (true, true);
            (self.inject.map, self.inject.thread) = (false, false);
            fit = self.fit(only);
        }
        let heart = fit.iter().copied().find(|at| is_heart(*at));
        let many = match rng.below(4) {
            0 => rng.within(1, 3),
            1..=2 => rng.within(3, 8),
            _ => fit.len(),
        };
        while fit.len() > many.max(1) {
            fit.swap_remove(rng.below(fit.len() as u64) as usize);
        }
        // In most rounds the heart notices starvation. Not in all: each beat wakes threads, which
        // hides a lost wake-up.
        if let Some(heart) = heart
            && !fit.contains(&heart)
            && !rng.one_in(4)
        {
            fit.push(heart);
        }
        fit.sort_unstable();
        self.mixes = fit;
    }

    /// The same round with fewer mixes.
    pub fn narrow(mut self, just: &[usize]) -> Plan {
        self.mixes
            .retain(|mix| just.is_empty() || just.contains(mix));
        self
    }

    /// Whether all goroutines finish by themselves.
    pub fn is_calm(&self) -> bool {
        self.endings == [Ending::Drained; 2]
    }

    /// Whether the round has this mix.
    pub fn has(&self, name: &str) -> bool {
        self.mixes.iter().any(|at| mixes::ALL[*at].name == name)
    }

    /// Whether a goroutine of this round may be abandoned.
    pub fn may_abandon(&self) -> bool {
        self.endings.iter().any(|ending| ending.abandons())
    }
}

fn is_heart(mix: usize) -> bool {
    mixes::ALL[mix].name == "heart"
}

fn ending(rng: &mut Rng, kind: Kind) -> Ending {
    let any = match rng.below(12) {
        0..=2 => Ending::Drained,
        3..=4 => Ending::ShutDown,
        5..=6 => Ending::CutOff(rng.below(12)),
        7..=8 => Ending::Dropped,
        9 => Ending::DroppedInside,
        _ => Ending::DroppedElsewhere,
    };
    match kind {
        Kind::Clean if rng.one_in(4) => Ending::ShutDown,
        Kind::Clean => Ending::Drained,
        Kind::Faults if rng.one_in(2) => Ending::Drained,
        _ => any,
    }
}

fn inject(rng: &mut Rng, kind: Kind) -> Inject {
    if kind != Kind::Faults {
        return Inject::default();
    }
    let which = 1 + rng.below(7);
    Inject {
        map: which & 1 != 0,
        thread: which & 2 != 0,
        epoll: which & 4 != 0,
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} Ps", self.kind, self.procs)?;
        if let Some(there) = self.there {
            write!(f, " and {there}")?;
        }
        write!(
            f,
            ", {} thread-locals, {:?}",
            if self.own { "own" } else { "shared" },
            self.endings[0]
        )?;
        if self.there.is_some() {
            write!(f, " and {:?}", self.endings[1])?;
        }
        let flags = [
            (self.is_gentle, "gentle"),
            (!self.preemption, "no preemption"),
            (self.mprotect, "mprotect"),
            (self.is_closed, "closed"),
            (self.inject.map, "memory refused"),
            (self.inject.thread, "threads refused"),
            (self.inject.epoll, "epoll refused"),
            (self.refusal == Refusal::Ends, "no threads at first"),
            (self.refusal == Refusal::ForGood, "no threads"),
        ];
        for (_, flag) in flags.iter().filter(|(is_on, _)| *is_on) {
            write!(f, ", {flag}")?;
        }
        write!(f, ", {} ms, room {}", self.length.as_millis(), self.room)?;
        let names: Vec<_> = self.mixes.iter().map(|at| mixes::ALL[*at].name).collect();
        write!(f, ": {}", names.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_made_of_processes_of_one_kind_each() {
        let (mut first, mut parts) = (0, Vec::new());
        while parts.len() < 2 * BATCHES.len() {
            let rounds = batch_from(first);
            let kind = |n: u64| Kind::of(round_seed(42, n));
            assert!((first..first + rounds).all(|n| kind(n) == kind(first)));
            parts.push((kind(first), rounds));
            first += rounds;
        }
        assert_eq!(parts, BATCHES.repeat(2));
    }

    #[test]
    fn every_kind_comes_early() {
        let early: Vec<Kind> = (0..13).map(|n| Kind::of(round_seed(1, n))).collect();
        assert!(KINDS.iter().all(|kind| early.contains(kind)), "{early:?}");
    }

    #[test]
    fn no_round_is_without_mixes() {
        for at in 0..mixes::ALL.len() {
            for n in 0..200 {
                let plan = Plan::new(round_seed(7, n), &[at]);
                assert_eq!(plan.mixes, [at], "{plan}");
            }
        }
    }

    #[test]
    fn both_refusals_of_threads_come_early_and_have_hogs_and_a_heart() {
        let plans: Vec<_> = (0..400).map(|n| Plan::new(round_seed(5, n), &[])).collect();
        for refusal in [Refusal::Ends, Refusal::ForGood] {
            let such = plans.iter().filter(|plan| plan.refusal == refusal);
            assert!(such.clone().count() > 3, "{refusal:?}");
            for plan in such {
                assert!(
                    plan.has("hogs") && plan.has("heart") && plan.preemption,
                    "{plan}"
                );
                assert!(!plan.inject.thread && plan.there.is_none(), "{plan}");
            }
        }
    }

    #[test]
    fn most_rounds_have_a_heart_and_some_do_not() {
        let hearts = (0..400).filter(|n| Plan::new(round_seed(3, *n), &[]).has("heart"));
        assert!((280..400).contains(&hearts.count()));
    }
}
