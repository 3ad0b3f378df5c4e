//! Random rounds: a seed, a generator, a watchdog, and panics that are part of the plan.
//!
//! `GOSCHED_STRESS_SEED` repeats a run, as far as the order of threads can be repeated.
//! `GOSCHED_STRESS_SECS` sets its length.

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use gosched::Handle;

use super::waiting::{LONG, ms, show_and_abort};

/// An environment variable, if it is set and can be parsed.
pub fn env<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// The seed of `GOSCHED_STRESS_SEED`, or one from the clock.
pub fn seed() -> u64 {
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    env("GOSCHED_STRESS_SEED").unwrap_or_else(|| clock.expect("after 1970").as_nanos() as u64)
}

/// A small generator of numbers: good enough to mix operations, and the same for the same seed.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// The payload of a panic that is part of the plan.
pub struct Planned;

/// Keeps planned panics off stderr.
pub fn quiet_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Planned>() {
                before(info);
            }
        }));
    });
}

/// Locks a mutex that a panic may have poisoned.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The round that runs now, for the watchdog of [`rounds`].
#[derive(Default)]
pub struct Now(Mutex<Option<Current>>);

struct Current {
    since: Instant,
    what: String,
    handle: Handle,
    describe: Box<dyn Fn() -> String + Send>,
}

impl Now {
    /// A round begins on that runtime. If it hangs, the watchdog prints `what` and a dump of the
    /// runtime.
    pub fn begin(&self, what: String, handle: Handle) {
        self.begin_with(what, handle, String::new);
    }

    /// As [`Now::begin`]; the watchdog also prints what `describe` returns.
    pub fn begin_with(
        &self,
        what: String,
        handle: Handle,
        describe: impl Fn() -> String + Send + 'static,
    ) {
        *lock(&self.0) = Some(Current {
            since: Instant::now(),
            what,
            handle,
            describe: Box::new(describe),
        });
    }

    /// Ends the process if the round takes too long.
    fn watch(&self, what: &str) {
        let now = lock(&self.0);
        let Some(current) = now.as_ref().filter(|now| now.since.elapsed() > LONG) else {
            return;
        };
        // `eprintln` would not do: libtest captures it, and the abort loses it.
        let (round, more) = (&current.what, (current.describe)());
        let _ = writeln!(std::io::stderr(), "{what}, {round} hangs\n{more}");
        show_and_abort(current.handle.clone());
    }
}

/// Runs rounds one after the other for `secs` seconds, unless `GOSCHED_STRESS_SECS` sets another
/// length, and returns their number.
///
/// Only one call at a time runs rounds in a process: they measure nothing, but each is made to use
/// all CPUs. A round that hangs ends the process with the seed and a dump. `what` should name the
/// seed.
pub fn rounds(what: &str, secs: f64, mut round: impl FnMut(&Now)) -> usize {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    quiet_planned_panics();
    println!("{what}");
    let secs = env("GOSCHED_STRESS_SECS").unwrap_or(secs);
    let until = Instant::now() + Duration::from_secs_f64(secs);
    let (now, is_over) = (Now::default(), AtomicBool::new(false));
    let count = thread::scope(|s| {
        s.spawn(|| {
            while !is_over.load(SeqCst) {
                now.watch(what);
                thread::sleep(ms(100));
            }
        });
        let mut count = 0;
        // The scope must end also when an assertion fails.
        let done = catch_unwind(AssertUnwindSafe(|| {
            while Instant::now() < until {
                round(&now);
                count += 1;
            }
        }));
        is_over.store(true, SeqCst);
        if let Err(payload) = done {
            println!("{what} failed in round {count}");
            resume_unwind(payload);
        }
        count
    });
    println!("{what}: {count} rounds");
    count
}
