//! The curves: for each what is done, how often, and what is measured.
//!
//! If an operation needs other goroutines around it, these are made first. The clock starts once
//! all are in place.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gosched::chan::bounded;
use gosched::sync::Mutex;
use gosched::thread::{self, JoinHandle};
use gosched::time::Timer;

use super::limit::at_limit;
use crate::port::{Countdown, Parked};
use crate::proc;
use crate::rounds;
use crate::sleeps::scramble;

use super::procs;
use super::threads::{past_peak, sleepers};

/// The size of a point.
pub struct Size {
    /// How many there are of what the curve counts.
    pub n: usize,
    /// The number of Ps.
    pub procs: usize,
    /// Operations in a round, roughly.
    pub work: usize,
    /// Rounds, of which the best counts.
    pub rounds: usize,
    /// Whether an unmeasured round comes first.
    pub has_warm_up: bool,
}

impl Size {
    /// Runs all rounds; returns the cost of the best one.
    pub fn best(&self, mut round: impl FnMut() -> f64) -> f64 {
        if self.has_warm_up {
            round();
        }
        (0..self.rounds)
            .map(|_| round())
            .fold(f64::INFINITY, f64::min)
    }
}

/// How much work every point does.
pub struct Effort {
    /// Operations in a round, roughly.
    pub work: usize,
    /// Rounds, of which the best counts.
    pub rounds: usize,
    /// The largest size.
    pub n_max: usize,
}

/// What grows along a curve.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Along {
    /// `n`, from this value on, in powers of ten.
    Count(usize),
    /// The number of Ps, with this `n`.
    Procs(usize),
}

/// Curves that are shown together, with one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Family {
    pub title: &'static str,
    /// What grows.
    pub across: &'static str,
    pub unit: &'static str,
}

/// The cost of one kind of operation over sizes.
pub struct Curve {
    /// In one word.
    pub name: &'static str,
    /// What is done.
    pub about: &'static str,
    /// The curves that are shown with it.
    pub family: Family,
    pub along: Along,
    /// It measures what happens the first time, so every round has a process of its own.
    pub is_fresh: bool,
    /// Its memory for each of `n`, roughly.
    pub bytes_each: usize,
    /// The largest possible `n`.
    pub n_max: usize,
    /// Runs all rounds on the runtime it is called in; returns the cost of the best.
    pub play: fn(&Size) -> io::Result<f64>,
}

/// The number of Ps, unless it grows.
const PROCS: usize = 2;
const PROCS_GROWING: [usize; 6] = [1, 2, 4, 16, 64, 256];
/// The memory of a parked goroutine and what belongs to it, with a reserve.
const GOROUTINE_BYTES: usize = 10_000;
/// The same for a thread.
const THREAD_BYTES: usize = 100_000;

impl Curve {
    /// The sizes of its points.
    pub fn sizes(&self, effort: &Effort) -> Vec<Size> {
        let size = |n, procs| Size {
            n,
            procs,
            work: effort.work,
            // A first time happens once in a process.
            rounds: if self.is_fresh { 1 } else { effort.rounds },
            has_warm_up: !self.is_fresh,
        };
        match self.along {
            Along::Count(from) => {
                let counts = (1..).map(|power| 10_usize.pow(power));
                let counts = counts.take_while(|n| *n <= effort.n_max.min(self.n_max));
                let counts = counts.filter(|n| *n >= from);
                counts.map(|n| size(n, PROCS)).collect()
            }
            Along::Procs(n) => PROCS_GROWING.map(|procs| size(n, procs)).into(),
        }
    }

    /// The value that grows, at this size.
    pub fn at(&self, size: &Size) -> usize {
        match self.along {
            Along::Count(_) => size.n,
            Along::Procs(_) => size.procs,
        }
    }

    const fn new(name: &'static str, family: Family, along: Along, play: Play) -> Curve {
        Curve {
            name,
            about: "",
            family,
            along,
            is_fresh: false,
            bytes_each: 0,
            n_max: usize::MAX,
            play,
        }
    }

    const fn about(mut self, about: &'static str) -> Curve {
        self.about = about;
        self
    }

    const fn goroutines(mut self) -> Curve {
        self.bytes_each = GOROUTINE_BYTES;
        self
    }

    /// The curve counts threads: a runtime has at most 10,000.
    const fn threads(mut self) -> Curve {
        self.bytes_each = THREAD_BYTES;
        self.n_max = 1_000;
        self
    }

    const fn fresh(mut self) -> Curve {
        self.is_fresh = true;
        self
    }
}

type Play = fn(&Size) -> io::Result<f64>;

const GOROUTINES: Family = Family {
    title: "Per goroutine",
    across: "goroutines",
    unit: "ns",
};
const MEMORY: Family = Family {
    title: "Memory of a parked goroutine",
    across: "goroutines",
    unit: "bytes",
};
const MESSAGES: Family = Family {
    title: "Per message",
    across: "goroutines",
    unit: "ns",
};
const TIMERS: Family = Family {
    title: "Per timer",
    across: "timers pending",
    unit: "ns",
};
const PAST: Family = Family {
    title: "After many threads",
    across: "ended threads",
    unit: "ns",
};
const SLEEPERS: Family = Family {
    title: "CPU of a runtime whose goroutines sleep in the kernel",
    across: "goroutines in std::thread::sleep",
    unit: "µs/s",
};
const LIMIT: Family = Family {
    title: "At the thread limit",
    across: "goroutines that have not begun",
    unit: "ns",
};
const PS: Family = Family {
    title: "By processors",
    across: "processors (GOMAXPROCS)",
    unit: "ns",
};

const PS_SYSMON: Family = Family {
    title: "sysmon, by processors",
    across: "processors (GOMAXPROCS)",
    unit: "µs",
};

/// Every curve, in this order; curves of a family follow each other.
pub static CURVES: [Curve; 19] = [
    Curve::new("spawn", GOROUTINES, Along::Count(10), spawn)
        .about("n goroutines are spawned, then joined; wall time per goroutine")
        .goroutines(),
    Curve::new("first", GOROUTINES, Along::Count(10), first)
        .about("the first n goroutines of a process are spawned and park; wall time per goroutine")
        .goroutines()
        .fresh(),
    Curve::new("wake", GOROUTINES, Along::Count(10), wake)
        .about("n parked goroutines are woken one by one and park again; wall time per goroutine")
        .goroutines(),
    Curve::new("memory", MEMORY, Along::Count(1_000), memory)
        .about("memory of the first n goroutines of a process, parked; bytes per goroutine")
        .goroutines()
        .fresh(),
    Curve::new("fan_in", MESSAGES, Along::Count(10), fan_in)
        .about("n goroutines send to one channel of capacity 128, one receives; wall time per message")
        .goroutines(),
    Curve::new("pairs", MESSAGES, Along::Count(10), pairs)
        .about("n goroutines in pairs, an unbuffered channel each, 4 messages in a row; wall time per message")
        .goroutines(),
    Curve::new("sleep", TIMERS, Along::Count(10), sleep)
        .about("n goroutines sleep repeatedly, for random times up to n × 0.5 µs; CPU time per sleep")
        .goroutines(),
    Curve::new("reset", TIMERS, Along::Count(10), reset)
        .about("a timer is set and stopped among n pending ones; wall time for both"),
    Curve::new("procs_spawn", PS, Along::Procs(1_000), spawn)
        .about("1,000 goroutines are spawned, then joined; wall time per goroutine"),
    Curve::new("procs_pairs", PS, Along::Procs(64), pairs)
        .about("32 pairs, an unbuffered channel each, 4 messages in a row; wall time per message"),
    Curve::new("procs_mpmc", PS, Along::Procs(4), mpmc)
        .about("one channel of capacity 128, 4 send, 4 receive; wall time per message"),
    Curve::new("procs_sleep", PS, Along::Procs(10_000), sleep)
        .about("10,000 goroutines sleep again and again; CPU time for a sleep"),
    Curve::new("procs_mutex", PS, Along::Procs(8), mutex)
        .about("8 goroutines lock and unlock one Mutex; wall time for both"),
    Curve::new("procs_yield", PS, Along::Procs(512), procs::yields)
        .about("512 goroutines yield to the global queue; wall time per yield"),
    Curve::new("procs_idle", PS, Along::Procs(2), procs::idle)
        .about("2 goroutines exchange messages, all other processors are idle; CPU time per message"),
    Curve::new("procs_sysmon", PS_SYSMON, Along::Procs(512), procs::sysmon)
        .about("512 goroutines yield all the time; CPU time of sysmon's thread per look")
        .fresh(),
    Curve::new("past_peak", PAST, Along::Count(10), past_peak)
        .about("after n threads have ended, 20,000 stacks are returned; worst spawn of a plain thread meanwhile")
        .threads()
        .fresh(),
    Curve::new("sleepers", SLEEPERS, Along::Count(10), sleepers)
        .about("n goroutines are in std::thread::sleep, unmarked; CPU time of the process per second")
        .threads()
        .fresh(),
    Curve::new("limit_yield", LIMIT, Along::Count(10), at_limit)
        .about("a goroutine yields at the thread limit, among n that wait to begin; wall time per yield")
        .goroutines(),
];

/// The capacity of the buffered channels.
const CAPACITY: usize = 128;
/// Longer than any run.
const SPAN_FAR: Duration = Duration::from_secs(3_600);

fn join_all<T>(handles: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    let join = |handle: JoinHandle<T>| handle.join().expect("it does not panic");
    handles.into_iter().map(join).collect()
}

fn spawn(size: &Size) -> io::Result<f64> {
    let batches = size.work.div_ceil(size.n);
    let mut handles = Vec::with_capacity(size.n);
    Ok(size.best(|| {
        let start = Instant::now();
        for _ in 0..batches {
            handles.extend((0..size.n).map(|_| thread::spawn(|| ())));
            for handle in handles.drain(..) {
                handle.join().expect("nothing does not panic");
            }
        }
        rounds::ns_each(start, batches * size.n)
    }))
}

/// Has a single round by its nature, as `memory` has.
fn first(size: &Size) -> io::Result<f64> {
    let start = Instant::now();
    let parked = Parked::spawn(size.n);
    let each_ns = rounds::ns_each(start, size.n);
    parked.wake_all();
    Ok(each_ns)
}

fn memory(size: &Size) -> io::Result<f64> {
    let before = proc::own_memory_bytes()?;
    let parked = Parked::spawn(size.n);
    let bytes = proc::own_memory_bytes()?.saturating_sub(before);
    parked.wake_all();
    Ok(bytes as f64 / size.n as f64)
}

/// Goroutines that repeat the same action whenever they are woken, and are parked in between.
struct Troupe {
    /// The number of the current pass; `OVER` ends them.
    pass: Arc<AtomicUsize>,
    done: &'static Countdown,
    players: Vec<JoinHandle<()>>,
}

/// In `Troupe::pass`: there are no more.
const OVER: usize = usize::MAX;

impl Troupe {
    /// Goroutines that do `acts` in each pass; returns when all are about to park.
    fn new<A: FnMut() + Send + 'static>(acts: impl Iterator<Item = A>, count: usize) -> Troupe {
        let done = Countdown::leaked();
        let pass = Arc::new(AtomicUsize::new(0));
        done.expect(count);
        let player = |mut act: A| {
            let pass = Arc::clone(&pass);
            thread::spawn(move || {
                let mut seen = 0;
                loop {
                    done.arrive();
                    // ORDER: Acquire; pairs with Release in `call`.
                    while pass.load(Ordering::Acquire) == seen {
                        thread::park();
                    }
                    // ORDER: Acquire; pairs with Release in `call`.
                    seen = pass.load(Ordering::Acquire);
                    if seen == OVER {
                        return;
                    }
                    act();
                }
            })
        };
        let players = acts.map(player).collect();
        done.wait();
        Troupe {
            pass,
            done,
            players,
        }
    }

    /// Wakes them one by one.
    fn call(&self, pass: usize) {
        // ORDER: Release; pairs with Acquire in the goroutines — a goroutine that loads the pass
        // sees the count that was set for it.
        self.pass.store(pass, Ordering::Release);
        for player in &self.players {
            player.thread().unpark();
        }
    }

    /// Runs this many passes.
    fn play(&self, passes: usize) {
        // ORDER: Relaxed; only this goroutine writes it.
        let last = self.pass.load(Ordering::Relaxed);
        for pass in last + 1..=last + passes {
            self.done.expect(self.players.len());
            self.call(pass);
            self.done.wait();
        }
    }

    /// Ends them.
    fn end(self) {
        self.call(OVER);
        join_all(self.players);
    }
}

fn wake(size: &Size) -> io::Result<f64> {
    let troupe = Troupe::new((0..size.n).map(|_| || ()), size.n);
    let passes = size.work.div_ceil(size.n);
    let each_ns = size.best(|| {
        let start = Instant::now();
        troupe.play(passes);
        rounds::ns_each(start, passes * size.n)
    });
    troupe.end();
    Ok(each_ns)
}

/// Before the clock starts, all senders have begun to send, so all but a few wait for room. Each
/// has further messages.
fn fan_in(size: &Size) -> io::Result<f64> {
    let (sender, receiver) = bounded(CAPACITY);
    let sending = Countdown::leaked();
    sending.expect(size.n);
    let senders: Vec<_> = (0..size.n)
        .map(|_| {
            let sender = sender.clone();
            thread::spawn(move || {
                sending.arrive();
                // Ends when the receiver is dropped.
                (0_usize..).try_for_each(|message| sender.send(message))
            })
        })
        .collect();
    sending.wait();
    let each_ns = size.best(|| {
        let start = Instant::now();
        let received = receiver.iter().take(size.work).count();
        assert_eq!(received, size.work, "the senders never end");
        rounds::ns_each(start, size.work)
    });
    drop((sender, receiver));
    join_all(senders);
    Ok(each_ns)
}

/// In each pass every pair exchanges a few messages, so that each pair runs.
fn pairs(size: &Size) -> io::Result<f64> {
    const MESSAGES: usize = 4;
    let pairs = size.n / 2;
    let (mut acts, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let (sender, receiver) = bounded(0);
        receivers.push(thread::spawn(move || receiver.iter().sum::<usize>()));
        acts.push(move || {
            for message in 0..MESSAGES {
                sender.send(message).expect("there are receivers");
            }
        });
    }
    let troupe = Troupe::new(acts.into_iter(), pairs);
    let passes = size.work.div_ceil(pairs * MESSAGES);
    let each_ns = size.best(|| {
        let start = Instant::now();
        troupe.play(passes);
        rounds::ns_each(start, passes * pairs * MESSAGES)
    });
    troupe.end();
    let rounds = size.rounds + usize::from(size.has_warm_up);
    let sum = rounds * passes * (MESSAGES * (MESSAGES - 1) / 2);
    assert!(join_all(receivers).into_iter().all(|found| found == sum));
    Ok(each_ns)
}

/// The durations are so short, and the sleepers so many, that the next one is nearly always due.
/// CPU time counts, not waiting.
fn sleep(size: &Size) -> io::Result<f64> {
    const SLEEPS_MIN: usize = 2;
    const SPAN_EACH_NS: usize = 500;
    let sleeps = (size.work / 2).div_ceil(size.n).max(SLEEPS_MIN);
    let room_ns = (size.n * SPAN_EACH_NS) as u64;
    let sleeper = |number: usize| {
        move || {
            for nth in 0..sleeps {
                let span_ns = scramble((number * sleeps + nth) as u64) % room_ns;
                thread::sleep(Duration::from_nanos(span_ns + 1));
            }
        }
    };
    let troupe = Troupe::new((0..size.n).map(sleeper), size.n);
    let mut failure = None;
    let each_ns = size.best(|| {
        let before = proc::own_cpu();
        troupe.play(1);
        match before.and_then(|before| Ok(proc::own_cpu()? - before)) {
            Ok(spent) => spent.as_nanos() as f64 / (sleeps * size.n) as f64,
            Err(error) => {
                failure = Some(error);
                f64::INFINITY
            }
        }
    });
    troupe.end();
    failure.map_or(Ok(each_ns), Err)
}

/// The pending timers are set to moments before and after that of the measured one, in no order.
fn reset(size: &Size) -> io::Result<f64> {
    let far = |number: usize| {
        let ms = scramble(number as u64) % SPAN_FAR.as_millis() as u64;
        SPAN_FAR + Duration::from_millis(ms)
    };
    let pending: Vec<_> = (0..size.n).map(|number| Timer::new(far(number))).collect();
    let timer = Timer::new(SPAN_FAR);
    timer.stop();
    let each_ns = size.best(|| {
        let start = Instant::now();
        for number in 0..size.work {
            assert!(!timer.reset(far(number)), "it was stopped");
            assert!(timer.stop(), "it was set");
        }
        rounds::ns_each(start, size.work)
    });
    drop(pending);
    Ok(each_ns)
}

fn mpmc(size: &Size) -> io::Result<f64> {
    Ok(size.best(|| mpmc_round(size)))
}

fn mpmc_round(size: &Size) -> f64 {
    let messages = size.work.div_ceil(size.n);
    let (sender, receiver) = bounded(CAPACITY);
    let start = Instant::now();
    let receivers: Vec<_> = (0..size.n)
        .map(|_| {
            let receiver = receiver.clone();
            thread::spawn(move || receiver.iter().sum::<usize>())
        })
        .collect();
    let senders: Vec<_> = (0..size.n)
        .map(|_| {
            let sender = sender.clone();
            thread::spawn(move || {
                for message in 0..messages {
                    sender.send(message).expect("there are receivers");
                }
            })
        })
        .collect();
    drop((sender, receiver));
    join_all(senders);
    let sum: usize = join_all(receivers).into_iter().sum();
    let each_ns = rounds::ns_each(start, messages * size.n);
    assert_eq!(sum, size.n * (messages * (messages - 1) / 2));
    each_ns
}

fn mutex(size: &Size) -> io::Result<f64> {
    Ok(size.best(|| mutex_round(size)))
}

fn mutex_round(size: &Size) -> f64 {
    let times = 4 * size.work.div_ceil(size.n);
    let counter = Arc::new(Mutex::new(0));
    let start = Instant::now();
    let tasks: Vec<_> = (0..size.n)
        .map(|_| {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                for _ in 0..times {
                    *counter.lock().expect("an addition does not panic") += 1;
                }
            })
        })
        .collect();
    join_all(tasks);
    let each_ns = rounds::ns_each(start, times * size.n);
    let counted = *counter.lock().expect("an addition does not panic");
    assert_eq!(counted, times * size.n, "two held the lock at once");
    each_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effort(n_max: usize) -> Effort {
        Effort {
            work: 1,
            rounds: 3,
            n_max,
        }
    }

    #[test]
    fn the_best_round_counts_and_the_first_does_not() {
        let size = |has_warm_up| Size {
            n: 1,
            procs: 1,
            work: 1,
            rounds: 2,
            has_warm_up,
        };
        let best = |has_warm_up| {
            let mut costs = [1.0, 3.0, 2.0].into_iter();
            size(has_warm_up).best(|| costs.next().expect("three at most"))
        };
        assert_eq!((best(true), best(false)), (2.0, 1.0));
    }

    #[test]
    fn curves_have_sizes_and_names_of_their_own() {
        for (nth, curve) in CURVES.iter().enumerate() {
            assert!(CURVES[..nth].iter().all(|other| other.name != curve.name));
            assert!(!curve.about.is_empty());
            let sizes = curve.sizes(&effort(1_000_000));
            let at: Vec<_> = sizes.iter().map(|size| curve.at(size)).collect();
            match curve.along {
                Along::Count(_) => assert_eq!(at.last(), Some(&curve.n_max.min(1_000_000))),
                Along::Procs(_) => assert_eq!(at, PROCS_GROWING),
            }
        }
        let counts = |curve: &Curve| curve.sizes(&effort(1_000)).len();
        assert_eq!((counts(&CURVES[0]), counts(&CURVES[3])), (3, 1));
    }
}
