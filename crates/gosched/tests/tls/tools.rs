//! What the tests of thread-locals share: runtimes of both kinds, and goroutines that migrate.
//!
//! A *swarm* is many goroutines with one body that takes *turns*: each turn ends in a yield, after
//! which the goroutine may be on another thread. Turns continue until enough of them were
//! migrations, so no test passes without migrations. A wrong value that a body finds is a *fault*.
//! Under own thread-locals there must be none. Under shared ones the first fault ends the process
//! with a status of its own, because the process is undefined after it.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use gosched::{Runtime, thread};

use crate::common::{self, Output, Planned, quiet_planned_panics};
pub use crate::common::{tid, until};

/// The numbers of Ps that every case is run with.
pub const PROCS: [usize; 2] = [2, 4];
/// Longer than anything takes that ends at all.
pub const LONG: Duration = Duration::from_secs(55);
/// Goroutines of a swarm.
const SWARM: usize = 64;
/// Turns that each of them takes at least.
const TURNS: usize = 100;
/// Migrations that a swarm sees at least.
const MOVES: usize = 2_000;
/// The exit status of a process that saw a fault.
const FAULT: i32 = 3;

/// A runtime whose goroutines have their own thread-locals.
pub fn own(procs: usize) -> Runtime {
    let built = Runtime::builder().procs(procs).build();
    built.expect("own thread-locals are possible here")
}

/// A runtime whose goroutines see their thread's thread-locals.
pub fn shared(procs: usize) -> Runtime {
    let builder = Runtime::builder().procs(procs);
    // SAFETY: D6, not kept by those tests that show why it has to be: they run in processes of
    // their own, which end at the first fault. The others use no thread-local across a switch.
    let builder = unsafe { builder.shared_thread_locals() };
    builder.build().expect("nothing is needed for that")
}

/// What the goroutines of a swarm have been through.
pub struct Sight {
    pub moves: AtomicUsize,
    pub faults: AtomicUsize,
    began: Instant,
    is_shared: bool,
}

/// One goroutine of a swarm.
pub struct Trip<'a> {
    pub number: usize,
    sight: &'a Sight,
}

impl Trip<'_> {
    /// The numbers of the turns, for as long as they are wanted.
    pub fn turns(&self) -> impl Iterator<Item = usize> {
        let goes_on = |turn: &usize| {
            let is_late = self.sight.began.elapsed() > LONG;
            let has_enough = *turn >= TURNS && self.sight.moves.load(SeqCst) >= MOVES;
            !is_late && (self.sight.is_shared || !has_enough)
        };
        (0..).take_while(goes_on)
    }

    /// Yields and continues, maybe on another thread.
    pub fn step(&self) {
        let before = tid();
        thread::yield_now();
        if tid() != before {
            self.sight.moves.fetch_add(1, SeqCst);
        }
    }

    /// What is not so is a fault.
    pub fn expect(&self, is_so: bool) {
        if is_so {
            return;
        }
        if self.sight.is_shared {
            // SAFETY: ends the process on the spot: nothing in it can be trusted any more.
            unsafe { libc::_exit(FAULT) };
        }
        self.sight.faults.fetch_add(1, SeqCst);
    }
}

fn roam(runtime: &Runtime, is_shared: bool, count: usize, body: &(impl Fn(&Trip<'_>) + Sync)) {
    let sight = Sight {
        moves: AtomicUsize::new(0),
        faults: AtomicUsize::new(0),
        began: Instant::now(),
        is_shared,
    };
    runtime.run(|| {
        thread::scope(|s| {
            for number in 1..=count {
                let sight = &sight;
                s.spawn(move || body(&Trip { number, sight }));
            }
        });
    });
    assert_eq!(
        sight.faults.load(SeqCst),
        0,
        "faults under own thread-locals"
    );
    let moves = sight.moves.load(SeqCst);
    assert!(moves >= MOVES, "only {moves} migrations: nothing was shown");
}

/// A swarm under own thread-locals, over 2 and over 4 Ps: no faults.
pub fn swarm(body: impl Fn(&Trip<'_>) + Sync) {
    swarm_of(SWARM, body);
}

/// As [`swarm`], of so many goroutines.
pub fn swarm_of(count: usize, body: impl Fn(&Trip<'_>) + Sync) {
    for procs in PROCS {
        common::within(2 * LONG, "a swarm", || {
            roam(&own(procs), false, count, &body)
        });
    }
}

/// The same body under shared thread-locals, in a process of its own (the test called `name`): it
/// has a fault, or dies.
pub fn is_hazard(name: &str, body: impl Fn(&Trip<'_>) + Sync) {
    is_hazard_of(name, SWARM, body);
}

/// As [`is_hazard`], of so many goroutines.
pub fn is_hazard_of(name: &str, count: usize, body: impl Fn(&Trip<'_>) + Sync) {
    let output = common::child(name, || roam(&shared(2), true, count, &body));
    assert!(shows_hazard(&output), "no fault in {LONG:?}: {output:#?}");
}

/// The same body under shared thread-locals, where the runtime must make it work nevertheless.
pub fn works_shared_too(name: &str, body: impl Fn(&Trip<'_>) + Sync) {
    let output = common::child(name, || {
        let sight = Sight {
            moves: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
            began: Instant::now(),
            is_shared: false,
        };
        let body = &body;
        shared(2).run(|| {
            thread::scope(|s| {
                for number in 1..=SWARM {
                    let sight = &sight;
                    s.spawn(move || body(&Trip { number, sight }));
                }
            });
        });
        assert_eq!(sight.faults.load(SeqCst), 0);
    });
    output.succeeded();
}

/// A fault that was seen, or the end of a process whose memory is in disorder.
fn shows_hazard(output: &Output) -> bool {
    use std::os::unix::process::ExitStatusExt;
    let deaths = [
        libc::SIGSEGV,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGILL,
        libc::SIGTRAP,
    ];
    match output.status.signal() {
        Some(signal) => deaths.contains(&signal),
        None => output.status.code() == Some(FAULT),
    }
}

/// Panics as planned, without a message.
pub fn plan_panic() -> ! {
    quiet_planned_panics();
    std::panic::panic_any(Planned)
}
