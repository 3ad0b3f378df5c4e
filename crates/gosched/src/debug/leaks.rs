//! The leak check: finds the goroutines that can never be woken, marks them and lists them.
//!
//! 1. The world stops. The goroutines that the last check has marked are Waiting again.
//! 2. `leak_analysis` decides anew and marks.
//! 3. The marked goroutines are copied as for a dump.
//! 4. The world runs again, and symbols are looked up.

use std::fmt;
use std::sync::atomic::Ordering::Acquire;

use super::collect::Snapshot;
use super::dump::{Goroutine, name_awaited};
use super::symbols::{Symbols, with_room};
use crate::debug::leak_analysis::{Survey, Why};
use crate::sched::Sched;
use crate::sched::model::switch;
use crate::sched::model::switch::Probe;
use crate::sched::park::enter;
use crate::sys;
use crate::sys::PageVec;

/// The most goroutines whose stacks are taken.
const STACKS_MAX: usize = 1000;

/// The goroutines of a runtime that can never be woken: what [`debug::leaks`](crate::debug::leaks)
/// returns.
///
/// Displays as a [`Dump`](super::Dump) does, with the reason for each.
///
/// None of its methods blocks.
///
/// ```
/// use gosched::{debug, thread};
///
/// gosched::run(|| {
///     gosched::go(thread::park); // no goroutine has a handle to it
///     let leaks = loop {
///         thread::yield_now();
///         let leaks = debug::leaks();
///         if !leaks.is_empty() {
///             break leaks;
///         }
///     };
///     let leak = &leaks.goroutines()[0];
///     assert_eq!(leak.goroutine().wait_reason(), Some("park"));
///     assert_eq!(leak.why(), "nobody has a handle to unpark it with");
///     assert!(leaks.to_string().contains("[park (leaked)]:"));
///     assert!(debug::dump().goroutines()[1].is_leaked());
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Leaks {
    leaks: Vec<Leak>,
    elided: usize,
}

/// A goroutine that can never be woken.
///
/// None of its methods blocks.
///
/// See the example of [`Leaks`].
#[derive(Clone, Debug)]
pub struct Leak {
    goroutine: Goroutine,
    why: Box<str>,
}

impl Leaks {
    /// The goroutines, by id.
    ///
    /// See the example of [`Leaks`].
    #[must_use]
    pub fn goroutines(&self) -> &[Leak] {
        &self.leaks
    }

    /// Whether none was found.
    ///
    /// See the example of [`Leaks`].
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leaks.is_empty() && self.elided == 0
    }

    fn new(found: &LeakFindings, symbolise: bool) -> Leaks {
        let mut symbols = match symbolise {
            true => Symbols::default(),
            false => Symbols::addresses_only(),
        };
        let (records, whys) = (found.snapshot.records(), found.whys.as_slice());
        let goroutines = records
            .iter()
            .map(|record| Goroutine::new(&found.snapshot, record, &mut symbols));
        let mut goroutines: Vec<_> = goroutines.collect();
        name_awaited(&mut goroutines, records);
        let why_of = |id: u64| {
            let at = whys.binary_search_by_key(&id, |why| why.0);
            at.map_or_else(|_| String::new(), |at| whys[at].1.to_string())
        };
        let leak = |goroutine: Goroutine| Leak {
            why: why_of(goroutine.id()).into(),
            goroutine,
        };
        Leaks {
            leaks: goroutines.into_iter().map(leak).collect(),
            elided: found.snapshot.elided,
        }
    }
}

impl Leak {
    /// The goroutine: its id and name, where it was started, what it waits for and where.
    ///
    /// See the example of [`Leaks`].
    #[must_use]
    pub fn goroutine(&self) -> &Goroutine {
        &self.goroutine
    }

    /// Why it can never be woken.
    ///
    /// See the example of [`Leaks`].
    #[must_use]
    pub fn why(&self) -> &str {
        &self.why
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}can never be woken: {}", self.goroutine, self.why)
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "no goroutine is known to be leaked");
        }
        for (at, leak) in self.leaks.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{leak}")?;
        }
        if self.elided > 0 {
            writeln!(f, "\n...{} goroutines elided...", self.elided)?;
        }
        Ok(())
    }
}

/// What is copied while the world is stopped.
struct LeakFindings {
    snapshot: Snapshot,
    /// In the order of the ids.
    whys: PageVec<(u64, Why)>,
}

/// The leak check of `sched`, from any thread, in user context.
pub(crate) fn leaks_of(sched: &Sched) -> Leaks {
    let found = look(sched);
    with_room(|| Leaks::new(&found, true)).unwrap_or_else(|| Leaks::new(&found, false))
}

#[inline(never)]
fn look(sched: &Sched) -> LeakFindings {
    let mut found = LeakFindings {
        snapshot: Snapshot::new(),
        whys: PageVec::new(),
    };
    let mut survey = Survey::new();
    switch::backtrace_here(&mut Probe::new()); // the unwinder's first use may initialise it
    if sched.dead.load(Acquire) {
        return found; // a dropped runtime: its world cannot be stopped
    }
    let rt = enter();
    let outstanding = sched.blocks.outstanding();
    drop(rt);
    survey.reserve(outstanding);
    crate::sys::objects::prepare();
    let Some(stopped) = sched.stop_the_world() else {
        return found;
    };
    sched.update_clock(sys::monotonic_ns());
    switch::systemstack(|| {
        let LeakFindings { snapshot, whys } = &mut found;
        // Without memory for its reason, a goroutine is still marked, and listed without the
        // reason.
        survey.judge(sched, |id, why| _ = whys.push((id, why)));
        snapshot.collect_leaked(sched, STACKS_MAX);
    });
    drop(stopped);
    found
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::sched::Sched;
    use crate::sched::model::gstatus::Status;
    use crate::tests::NEVER;
    use crate::{Runtime, thread};

    /// Marks the one goroutine of the runtime that waits; false if it has ended before.
    fn mark(sched: &Sched, waiter: &thread::JoinHandle<()>) -> bool {
        let started = Instant::now();
        let mut is_marked = false;
        while !is_marked && !waiter.is_finished() {
            sched
                .blocks
                .for_each(|g| is_marked |= g.status.mark_leaked());
            assert!(started.elapsed() < NEVER, "nobody waits");
        }
        is_marked
    }

    /// If the analysis were wrong, the goroutine could still be woken.
    #[test]
    fn rd_a_goroutine_that_is_marked_can_be_woken() {
        let runtime = Runtime::builder().procs(2).build().expect("a runtime");
        let parked = runtime.spawn(thread::park);
        let sched = runtime.sched();
        assert!(mark(sched, &parked));
        runtime.check().unwrap_or_else(|v| panic!("{v}"));
        parked.thread().unpark();
        parked.join().expect("no panic");
        // On a slow machine the sleeper has ended before it is marked: then another one sleeps.
        loop {
            let sleeper = runtime.spawn(|| thread::sleep(Duration::from_millis(200)));
            let is_marked = mark(sched, &sleeper);
            sleeper.join().expect("no panic");
            if is_marked {
                break;
            }
        }
    }

    /// Only a goroutine that waits is marked, and the next check removes the mark.
    #[test]
    fn g0_the_next_check_takes_the_mark_off() {
        let runtime = Runtime::builder().procs(2).build().expect("a runtime");
        let parked = runtime.spawn(thread::park);
        let sched = runtime.sched();
        assert!(mark(sched, &parked));
        assert!(runtime.dump().goroutines()[0].is_leaked());
        assert!(runtime.leaks().is_empty(), "somebody has a handle");
        let mut all = Vec::new();
        sched.blocks.for_each(|g| all.push(g.status.get()));
        let alive = all.iter().filter(|status| **status != Status::Dead);
        assert_eq!(alive.collect::<Vec<_>>(), [&Status::Waiting]);
        parked.thread().unpark();
        parked.join().expect("no panic");
    }
}
