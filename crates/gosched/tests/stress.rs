//! Everything at once, in an order that a seed decides, over 1, 2, 3 and 64 Ps; every goroutine is counted in and out.
//!
//! A *round* makes a runtime, lets goroutines and plain threads do random things to each other for a while, and ends it in
//! one of several ways. The *ledger* counts tickets: each goroutine's closure owns one, which says when it ran and when it
//! was dropped. Whatever the ending, no goroutine may be lost, run twice, or leave a join unanswered:
//!
//! ```text
//!  drained    every goroutine ran and ended
//!  shut down  every goroutine that started has ended, the others' closures were dropped
//!  dropped    every goroutine started, or its closure was dropped; every join is answered
//! ```
//!
//! `GOSCHED_STRESS_SEED` repeats a run (as far as threads can be repeated), `GOSCHED_STRESS_SECS` sets its length per number
//! of Ps. A round that hangs ends the process with the seed, the counters and a dump.

mod common;

use std::any::Any;
use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime};

use common::{Rng, eventually};
use gosched::thread::{Exited, JoinHandle, Thread};
use gosched::{Deadlock, Handle, Runtime, debug, thread};

/// How long a round may take. Most take some milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a shutdown may take; all that is shut down here ends by itself.
const SHUTDOWN: Duration = Duration::from_secs(30);
/// Goroutines of a round that are remembered for stray wake-ups.
const KNOWN_MAX: usize = 64;
/// What a goroutine's children's children may have.
const DEPTH_MAX: u32 = 6;

// What goroutines come to, by plan.
const RETURNS: u8 = 0;
const PANICS: u8 = 1;
const EXITS: u8 = 2;

/// The payload of a panic that is part of the plan.
struct Planned;

/// One goroutine's entry in the ledger; dropped with its closure.
struct Ticket {
    round: Arc<Round>,
    has_run: AtomicBool,
}

impl Ticket {
    fn new(round: &Arc<Round>) -> Ticket {
        round.born.fetch_add(1, SeqCst);
        Ticket {
            round: Arc::clone(round),
            has_run: AtomicBool::new(false),
        }
    }

    fn run(&self) {
        self.round.ran.fetch_add(1, SeqCst);
        if self.has_run.swap(true, SeqCst) {
            self.round.complain("a goroutine ran twice");
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let count = if *self.has_run.get_mut() {
            &self.round.ended
        } else {
            &self.round.unrun
        };
        count.fetch_add(1, SeqCst);
    }
}

/// What everybody in a round shares.
struct Round {
    procs: usize,
    /// The runtime lives until all goroutines have ended.
    is_drained: bool,
    /// The ledger: closures made; run; dropped after they ran; dropped without.
    born: AtomicUsize,
    ran: AtomicUsize,
    ended: AtomicUsize,
    unrun: AtomicUsize,
    /// Goroutines that may still be started.
    budget: AtomicUsize,
    seeds: AtomicU64,
    /// Parked until somebody takes them out of here.
    waiting: Mutex<Vec<(Thread, Arc<AtomicBool>)>>,
    /// Who gets tokens that nobody expects.
    known: Mutex<Vec<Thread>>,
    /// Plain threads that goroutines have started.
    outsiders: AtomicUsize,
    /// The runtime is being ended: joins may be answered with `Exited`.
    is_ending: AtomicBool,
    complaints: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Round {
    fn new(rng: &mut Rng, procs: usize, is_drained: bool) -> Arc<Round> {
        Arc::new(Round {
            procs,
            is_drained,
            born: AtomicUsize::new(0),
            ran: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            unrun: AtomicUsize::new(0),
            budget: AtomicUsize::new(20 + rng.below(1500) as usize),
            seeds: AtomicU64::new(rng.next()),
            waiting: Mutex::default(),
            known: Mutex::default(),
            outsiders: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
            complaints: Mutex::default(),
        })
    }

    fn complain(&self, text: impl Display) {
        lock(&self.complaints).push(text.to_string());
    }

    fn rng(&self) -> Rng {
        Rng::new(self.seeds.fetch_add(0x632B_E593, SeqCst))
    }

    /// Whether one more goroutine may be started.
    fn may_spawn(&self) -> bool {
        let take = |n: usize| n.checked_sub(1);
        self.budget.fetch_update(SeqCst, SeqCst, take).is_ok()
    }

    fn counts(&self) -> (usize, usize, usize, usize) {
        let get = |count: &AtomicUsize| count.load(SeqCst);
        let (ended, unrun) = (get(&self.ended), get(&self.unrun));
        (get(&self.born), get(&self.ran), ended, unrun)
    }

    /// Wakes up to `n` of those that wait.
    fn wake(&self, n: u64) {
        for _ in 0..n {
            let Some((thread, is_wanted)) = lock(&self.waiting).pop() else {
                return;
            };
            is_wanted.store(true, SeqCst);
            thread.unpark();
        }
    }

    /// A token for somebody who does not expect one, and may be gone.
    fn stray(&self, rng: &mut Rng) {
        let known = lock(&self.known);
        let at = rng.below(known.len().max(1) as u64) as usize;
        let thread = known.get(at).cloned();
        drop(known);
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    fn introduce(&self, rng: &mut Rng, thread: &Thread) {
        let mut known = lock(&self.known);
        if known.len() < KNOWN_MAX {
            known.push(thread.clone());
        } else {
            known[rng.below(KNOWN_MAX as u64) as usize] = thread.clone();
        }
    }

    /// What a join may say.
    fn judge(&self, joined: thread::Result<u64>, number: u64, fate: &AtomicU8) {
        let fate = fate.load(SeqCst);
        let as_planned = match &joined {
            Ok(value) => fate == RETURNS && *value == number,
            Err(payload) if payload.is::<Exited>() => fate == EXITS || self.is_ending.load(SeqCst),
            Err(payload) => fate == PANICS && payload.is::<Planned>(),
        };
        if !as_planned {
            self.complain(format_args!(
                "goroutine {number}, planned {fate}, gave {}",
                outcome(&joined)
            ));
        }
    }
}

fn outcome(joined: &thread::Result<u64>) -> String {
    match joined {
        Ok(value) => format!("the value {value}"),
        Err(payload) => format!("the panic {}", text_of(payload.as_ref())),
    }
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    payload
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| {
            let name = if payload.is::<Exited>() {
                "Exited"
            } else {
                "?"
            };
            name.to_owned()
        })
}

/// A goroutine that somebody may join, and what it is to come to.
struct Child {
    handle: JoinHandle<u64>,
    number: u64,
    fate: Arc<AtomicU8>,
}

impl Child {
    /// A closure for a goroutine, with its ticket.
    fn body(round: &Arc<Round>, depth: u32) -> (u64, Arc<AtomicU8>, impl FnOnce() -> u64 + use<>) {
        let ticket = Ticket::new(round);
        let (rng, fate) = (round.rng(), Arc::new(AtomicU8::new(RETURNS)));
        let (number, plan) = (rng.clone().next(), Arc::clone(&fate));
        let body = move || {
            ticket.run();
            let mut life = Life::new(&ticket.round, rng, depth, Some(plan));
            life.live();
            number
        };
        (number, fate, body)
    }

    fn join(self, round: &Round) {
        round.judge(self.handle.join(), self.number, &self.fate);
    }
}

/// One goroutine's doings.
struct Life {
    round: Arc<Round>,
    rng: Rng,
    depth: u32,
    /// Where it says what it comes to; None: it must return.
    fate: Option<Arc<AtomicU8>>,
    children: Vec<Child>,
}

impl Life {
    fn new(round: &Arc<Round>, rng: Rng, depth: u32, fate: Option<Arc<AtomicU8>>) -> Life {
        Life {
            round: Arc::clone(round),
            rng,
            depth,
            fate,
            children: Vec::new(),
        }
    }

    fn live(&mut self) {
        if self.rng.one_in(4) {
            self.round.introduce(&mut self.rng, &thread::current());
        }
        for _ in 0..self.rng.below(16) {
            self.step();
        }
        while let Some(child) = self.children.pop() {
            match self.rng.below(3) {
                0 => drop(child),
                _ => child.join(&self.round),
            }
        }
    }

    /// One random deed; the common ones first.
    fn step(&mut self) {
        let pause = Duration::from_micros(self.rng.below(300));
        match self.rng.below(100) {
            0..=17 => gosched::yield_now(),
            18..=33 => self.spawn(),
            34..=39 => self.go(),
            40..=47 => self.wait(),
            48..=59 => self.round.wake(1 + self.rng.below(3)),
            60..=63 => self.round.stray(&mut self.rng),
            64..=68 => thread::park_timeout(pause),
            69..=73 => thread::sleep(pause),
            74..=80 => self.join_one(),
            81..=83 => self.lock(),
            84..=85 => self.scope(),
            86..=87 => self.die(),
            88..=89 => drop(self.children.pop()),
            90 => std::thread::sleep(pause / 2),
            91..=92 => self.deepen(),
            _ => self.rare_step(),
        }
    }

    /// What is slow, or stops the world.
    fn rare_step(&mut self) {
        match self.rng.below(60) {
            0..=9 => self.check(),
            10..=13 => {
                let procs = 1 + self.rng.below(2 * self.round.procs as u64);
                gosched::gomaxprocs(procs as usize);
            }
            14..=17 => self.thread_outside(),
            18 => drop(debug::dump()),
            19 => self.other_runtime(),
            20..=25 => drop(debug::metrics()),
            _ => gosched::yield_now(),
        }
    }

    fn spawn(&mut self) {
        if self.depth == 0 || !self.round.may_spawn() {
            return;
        }
        let (number, fate, body) = Child::body(&self.round, self.depth - 1);
        let mut builder = thread::Builder::new();
        if self.rng.one_in(8) {
            builder = builder.name(format!("number {number}"));
        }
        if self.rng.one_in(16) {
            builder = builder.stack_size(512 << 10);
        }
        let spawned = builder.spawn(body);
        match spawned {
            Ok(handle) => self.children.push(Child {
                handle,
                number,
                fate,
            }),
            Err(_) if self.round.is_ending.load(SeqCst) => {}
            Err(error) => self.round.complain(error),
        }
    }

    fn go(&mut self) {
        if self.depth == 0 || !self.round.may_spawn() {
            return;
        }
        let (ticket, rng, depth) = (Ticket::new(&self.round), self.round.rng(), self.depth - 1);
        let body = move || {
            ticket.run();
            Life::new(&ticket.round, rng, depth, None).live();
        };
        if self.round.is_drained {
            gosched::go(body);
        } else {
            // `go` panics where this is an error, for the runtime may be ending.
            drop(Handle::current().try_spawn(body));
        }
    }

    /// Waits until somebody takes it out of the list of those that wait.
    fn wait(&mut self) {
        let is_wanted = Arc::new(AtomicBool::new(false));
        let me = (thread::current(), Arc::clone(&is_wanted));
        lock(&self.round.waiting).push(me);
        let has_timeout = self.rng.one_in(3);
        while !is_wanted.load(SeqCst) {
            if has_timeout {
                thread::park_timeout(Duration::from_micros(self.rng.below(500)));
            } else {
                thread::park();
            }
        }
    }

    fn join_one(&mut self) {
        let Some(child) = self.children.pop() else {
            return;
        };
        if self.rng.one_in(4) {
            let _ = child.handle.is_finished();
        }
        child.join(&self.round);
    }

    /// Stays on its thread; ends it, if it ends so.
    fn lock(&mut self) {
        gosched::lock_os_thread();
        let before = tid();
        for _ in 0..self.rng.below(4) {
            match self.rng.below(4) {
                0 => thread::sleep(Duration::from_micros(self.rng.below(100))),
                1 => self.wait(),
                2 => self.spawn(),
                _ => gosched::yield_now(),
            }
            if tid() != before {
                self.round.complain("a locked goroutine changed its thread");
            }
        }
        if !self.rng.one_in(4) {
            gosched::unlock_os_thread();
        }
    }

    fn scope(&mut self) {
        let n = self.rng.below(4);
        let (sum, round) = (AtomicU64::new(0), &self.round);
        thread::scope(|s| {
            for at in 0..n {
                let (ticket, sum) = (Ticket::new(round), &sum);
                let spawned = thread::Builder::new().spawn_scoped(s, move || {
                    ticket.run();
                    let mut life = Life::new(&ticket.round, ticket.round.rng(), 0, None);
                    for _ in 0..at {
                        life.step();
                    }
                    sum.fetch_add(1, SeqCst);
                });
                if let Err(error) = spawned
                    && !round.is_ending.load(SeqCst)
                {
                    round.complain(error);
                }
            }
        });
        if sum.load(SeqCst) != n && !self.round.is_ending.load(SeqCst) {
            self.round.complain("a scope ended before its goroutines");
        }
    }

    /// Ends before its time: a panic or an exit, with a destructor that waits.
    #[cfg(panic = "unwind")]
    fn die(&mut self) {
        struct Lingers(Duration);
        impl Drop for Lingers {
            fn drop(&mut self) {
                gosched::yield_now();
                thread::sleep(self.0);
            }
        }
        let Some(fate) = &self.fate else { return };
        let _lingers = Lingers(Duration::from_micros(self.rng.below(100)));
        if self.rng.one_in(2) {
            fate.store(PANICS, SeqCst);
            std::panic::panic_any(Planned);
        }
        fate.store(EXITS, SeqCst);
        gosched::exit();
    }

    #[cfg(not(panic = "unwind"))]
    fn die(&mut self) {
        let _ = &self.fate;
    }

    fn deepen(&mut self) {
        fn touch(depth: u64) -> u64 {
            let frame = std::hint::black_box([depth; 64]);
            if depth == 0 {
                gosched::yield_now();
                return frame[7];
            }
            touch(depth - 1) + frame[depth as usize % 64] - depth
        }
        let depth = self.rng.below(48);
        if touch(depth) != 0 {
            self.round
                .complain("a stack changed while its goroutine was away");
        }
    }

    fn check(&mut self) {
        if let Err(violations) = debug::check() {
            self.round.complain(violations);
        }
    }

    /// A plain thread of the goroutine's own, which nobody waits for.
    fn thread_outside(&mut self) {
        let (round, mut rng) = (Arc::clone(&self.round), self.round.rng());
        let (me, handle) = (thread::current(), Handle::current());
        round.outsiders.fetch_add(1, SeqCst);
        std::thread::spawn(move || {
            outside_step(&round, &handle, &mut rng, &mut Vec::new());
            round.outsiders.fetch_sub(1, SeqCst);
        });
        std::thread::spawn(move || me.unpark());
    }

    /// A runtime that comes and goes within this one.
    fn other_runtime(&mut self) {
        let procs = 1 + self.rng.below(3) as usize;
        let other = Runtime::builder().procs(procs).build().unwrap();
        let me = thread::current();
        other.run(|| me.unpark());
        let parked: Vec<_> = (0..3).map(|_| other.spawn(thread::park)).collect();
        parked[0].thread().unpark();
        gosched::yield_now();
        drop(other);
        let mut parked = parked.into_iter();
        let first = parked.next().map(JoinHandle::join);
        drop(first); // it may have been quick enough
        if !parked.all(|handle| handle.join().is_err()) {
            self.round.complain("a parked goroutine ended by itself");
        }
    }
}

fn tid() -> i32 {
    // SAFETY: a number is all that is asked for.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// What a plain thread does to a runtime.
fn outside_step(round: &Arc<Round>, handle: &Handle, rng: &mut Rng, children: &mut Vec<Child>) {
    match rng.below(16) {
        0..=4 => round.wake(1 + rng.below(4)),
        5..=7 => round.stray(rng),
        8..=10 if round.may_spawn() => {
            let (number, fate, body) = Child::body(round, 3);
            match handle.try_spawn(body) {
                Ok(handle) => children.push(Child {
                    handle,
                    number,
                    fate,
                }),
                Err(_) if round.is_ending.load(SeqCst) => {}
                Err(error) => round.complain(error),
            }
        }
        11 => children.truncate(rng.below(4) as usize),
        12 => drop(handle.metrics()),
        13 => thread::park_timeout(Duration::from_micros(rng.below(50))),
        _ => std::thread::sleep(Duration::from_micros(rng.below(200))),
    }
}

/// A plain thread for the length of a round. It keeps waking those that wait until the round is over.
fn outside(round: &Arc<Round>, handle: &Handle, is_over: &AtomicBool) {
    let (mut rng, mut children) = (round.rng(), Vec::new());
    while !is_over.load(SeqCst) {
        outside_step(round, handle, &mut rng, &mut children);
        if rng.one_in(64) {
            join_all(round, &mut children);
        }
    }
    join_all(round, &mut children);
}

/// Joins them on a plain thread, while another one wakes those that they may wait for.
fn join_all(round: &Arc<Round>, children: &mut Vec<Child>) {
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            while is_done.try_recv() == Err(mpsc::TryRecvError::Empty) {
                round.wake(8);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        children.drain(..).for_each(|child| child.join(round));
        drop(done);
    });
}

/// How a round ends.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Drained,
    Shutdown,
    Dropped,
    DroppedInside,
    DroppedElsewhere,
}

impl Ending {
    fn random(rng: &mut Rng) -> Ending {
        match rng.below(8) {
            0 => Ending::Dropped,
            1 => Ending::DroppedInside,
            2 => Ending::DroppedElsewhere,
            // A shutdown unwinds.
            3 if cfg!(panic = "unwind") => Ending::Shutdown,
            _ => Ending::Drained,
        }
    }
}

/// Wakes whoever waits until every goroutine has ended, then looks whether all is in order. On a main goroutine.
fn drain(round: &Arc<Round>, rng: &mut Rng, has_helpers: bool) {
    let roots = 1 + rng.below(8);
    let mut life = Life::new(round, rng.clone(), DEPTH_MAX, None);
    for _ in 0..roots {
        life.spawn();
    }
    let is_done = || {
        let (born, _, ended, unrun) = round.counts();
        let is_spent = !has_helpers || round.budget.load(SeqCst) == 0;
        born == ended + unrun && is_spent && round.outsiders.load(SeqCst) == 0
    };
    while !is_done() {
        round.wake(1 + rng.below(16));
        match rng.below(64) {
            0 => life.check(),
            1 => round.budget.store(0, SeqCst),
            2..=40 => gosched::yield_now(),
            _ => thread::sleep(Duration::from_micros(rng.below(400))),
        }
    }
    life.children
        .into_iter()
        .for_each(|child| child.join(round));
}

/// The runtime is drained and its helpers are gone: nothing is left in it.
fn assert_drained(runtime: &Runtime, round: &Round) {
    let is_empty = || {
        round.wake(8);
        round.outsiders.load(SeqCst) == 0 && runtime.metrics().goroutines == 0
    };
    assert!(eventually(is_empty), "{}", runtime.dump());
    runtime.check().unwrap();
    let metrics = runtime.metrics();
    assert_eq!(metrics.spawns, metrics.ends);
    assert_eq!((metrics.rescues, metrics.timers), (0, 0), "{metrics}");
    let (born, ran, ended, unrun) = round.counts();
    assert_eq!((ran, ended, unrun), (born, born, 0));
}

/// Lets goroutines loose and ends the runtime under them.
fn end_midway(runtime: Runtime, round: &Arc<Round>, rng: &mut Rng, ending: Ending) {
    let mut roots = Vec::new();
    for _ in 0..1 + rng.below(12) {
        let (number, fate, body) = Child::body(round, DEPTH_MAX);
        let handle = runtime.spawn(body);
        roots.push(Child {
            handle,
            number,
            fate,
        });
    }
    for _ in 0..rng.below(20) {
        round.wake(rng.below(8));
        match rng.below(16) {
            0 => runtime.check().unwrap(),
            1 => drop(runtime.dump()),
            _ => std::thread::sleep(Duration::from_micros(rng.below(500))),
        }
    }
    assert_eq!(runtime.metrics().rescues, 0);
    round.is_ending.store(true, SeqCst);
    match ending {
        Ending::Shutdown => runtime.shutdown(SHUTDOWN),
        Ending::DroppedInside => {
            let handle = runtime.handle();
            handle.spawn(move || drop(runtime)).join().unwrap_err();
        }
        Ending::DroppedElsewhere => {
            let other = Runtime::builder().procs(1).build().unwrap();
            other.run(|| drop(runtime));
        }
        Ending::Dropped | Ending::Drained => drop(runtime),
    }
    roots.into_iter().for_each(|root| root.join(round));
}

/// One runtime, from beginning to end.
fn run_round(seed: u64, procs: usize, now: &Now) {
    let mut rng = Rng::new(seed);
    let ending = Ending::random(&mut rng);
    let is_drained = matches!(ending, Ending::Drained);
    let round = Round::new(&mut rng, procs, is_drained);
    let helpers = rng.below(4) as usize;
    // Without helpers a main goroutine that never waits for long is all the hope there is.
    let is_closed = helpers == 0 && is_drained && rng.one_in(2);
    // Two mappings per stack, which a dropped runtime keeps: there are only so many.
    let ends_empty = is_drained || matches!(ending, Ending::Shutdown);
    let has_mprotect = ends_empty && procs < 64 && rng.one_in(4);
    let runtime = Runtime::builder()
        .procs(procs)
        .name("stress")
        .deadlock(if is_closed {
            Deadlock::Closed
        } else {
            Deadlock::Auto
        })
        .mprotect_guards(has_mprotect)
        .build()
        .unwrap();
    now.begin(seed, ending, runtime.handle(), &round);
    let (handle, is_over) = (runtime.handle(), AtomicBool::new(false));
    std::thread::scope(|s| {
        for _ in 0..helpers {
            s.spawn(|| outside(&round, &handle, &is_over));
        }
        if is_drained {
            runtime.run(|| drain(&round, &mut rng, helpers > 0));
            is_over.store(true, SeqCst);
        } else {
            end_midway(runtime, &round, &mut rng, ending);
            is_over.store(true, SeqCst);
            return None;
        }
        Some(runtime)
    })
    .inspect(|runtime| assert_drained(runtime, &round));
    settle(&round, ending);
}

/// The ledger is closed: nobody is lost.
fn settle(round: &Round, ending: Ending) {
    let is_settled = || {
        let (born, ran, ended, unrun) = round.counts();
        let ended = match ending {
            Ending::Drained | Ending::Shutdown => ended,
            _ => ran, // the others were given up
        };
        born == ended + unrun
    };
    assert!(eventually(is_settled), "{:?}", round.counts());
    let complaints = lock(&round.complaints);
    assert!(complaints.is_empty(), "{ending:?}: {complaints:#?}");
}

/// A goroutine that answers each time it is unparked.
struct Partner {
    handle: JoinHandle<()>,
    answers: Arc<AtomicUsize>,
}

impl Partner {
    fn new(is_locked: bool, is_over: &Arc<AtomicBool>) -> Partner {
        let (answers, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::clone(is_over));
        let counts = Arc::clone(&answers);
        let handle = thread::spawn(move || {
            if is_locked {
                gosched::lock_os_thread();
            }
            while !is_over.load(SeqCst) {
                thread::park();
                counts.fetch_add(1, SeqCst);
            }
        });
        Partner { handle, answers }
    }
}

/// Keeps the P busy, out of the runtime's sight, until the count is reached.
fn spin_until(round: &Round, count: &AtomicUsize, target: usize) {
    let until = Instant::now() + Duration::from_secs(10);
    while count.load(SeqCst) != target {
        if Instant::now() > until {
            return round.complain("a goroutine did not run though a P was idle");
        }
        std::thread::yield_now();
    }
}

/// A quiet round: a goroutine hands work on and keeps its own P busy until it is done, so that another P must wake up
/// for it. A wake-up that is lost here stays lost until sysmon finds it, and counts it as a rescue (L1, WK).
fn hand_over(round: &Arc<Round>, rng: &mut Rng) {
    let is_over = Arc::new(AtomicBool::new(false));
    let partners = [false, false, true].map(|locked| Partner::new(locked, &is_over));
    let (done, mut expected) = (Arc::new(AtomicUsize::new(0)), [0; 3]);
    for at in 1..=100 {
        // One, or several at a time.
        let first = rng.below(3) as usize;
        for which in first..=first + usize::from(first < 2 && rng.one_in(4)) {
            partners[which].handle.thread().unpark();
            expected[which] += 1;
        }
        for (partner, expected) in partners.iter().zip(expected) {
            spin_until(round, &partner.answers, expected);
        }
        let (ticket, done_there) = (Ticket::new(round), Arc::clone(&done));
        gosched::go(move || {
            ticket.run();
            done_there.fetch_add(1, SeqCst);
        });
        spin_until(round, &done, at);
        // Others are on their way to sleep, at every point of it.
        match rng.below(8) {
            0 => thread::sleep(Duration::from_micros(rng.below(200))),
            1 => gosched::yield_now(),
            _ => (0..rng.below(20_000)).for_each(|_| std::hint::spin_loop()),
        }
    }
    is_over.store(true, SeqCst);
    for partner in partners {
        partner.handle.thread().unpark();
        partner.handle.join().unwrap();
    }
}

fn run_quiet_round(seed: u64, procs: usize, now: &Now) {
    let mut rng = Rng::new(seed);
    let round = Round::new(&mut rng, procs, true);
    let runtime = Runtime::builder().procs(procs).build().unwrap();
    now.begin(seed, Ending::Drained, runtime.handle(), &round);
    runtime.run(|| hand_over(&round, &mut rng));
    assert_drained(&runtime, &round);
    settle(&round, Ending::Drained);
}

/// The round that is going on, for the watchdog.
#[derive(Default)]
struct Now(Mutex<Option<Current>>);

struct Current {
    since: Instant,
    text: String,
    handle: Handle,
    round: Arc<Round>,
}

impl Now {
    fn begin(&self, seed: u64, ending: Ending, handle: Handle, round: &Arc<Round>) {
        *lock(&self.0) = Some(Current {
            since: Instant::now(),
            text: format!("round {seed:#x} ({ending:?})"),
            handle,
            round: Arc::clone(round),
        });
    }

    /// Ends the process if the round takes too long.
    fn watch(&self, what: &str) {
        let now = lock(&self.0);
        let Some(current) = now.as_ref().filter(|now| now.since.elapsed() > PATIENCE) else {
            return;
        };
        // Not `eprintln`: that would be captured, and lost.
        let mut err = std::io::stderr();
        let _ = writeln!(err, "{what}, {} hangs", current.text);
        let _ = writeln!(
            err,
            "(born, ran, ended, unrun) {:?}",
            current.round.counts()
        );
        let _ = writeln!(err, "waiting {}", lock(&current.round.waiting).len());
        let handle = current.handle.clone();
        let shows = std::thread::spawn(move || {
            if let Ok(metrics) = handle.metrics() {
                let _ = writeln!(std::io::stderr(), "{metrics}");
            }
            if let Ok(dump) = handle.dump() {
                let _ = writeln!(std::io::stderr(), "{dump}");
            }
        });
        let until = Instant::now() + Duration::from_secs(10);
        while !shows.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::process::abort();
    }
}

fn env<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Planned panics are not worth a line each.
fn quiet_planned_panics() {
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

fn stress(procs: usize) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = lock(&ONE_AT_A_TIME);
    quiet_planned_panics();
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = env("GOSCHED_STRESS_SEED").unwrap_or_else(|| clock.unwrap().as_nanos() as u64);
    let secs = env("GOSCHED_STRESS_SECS").unwrap_or(3.0);
    let what = format!("stress with {procs} Ps, GOSCHED_STRESS_SEED={seed}");
    println!("{what}");
    let (mut rng, now) = (Rng::new(seed ^ procs as u64), Now::default());
    let (until, is_over) = (
        Instant::now() + Duration::from_secs_f64(secs),
        AtomicBool::new(false),
    );
    let rounds = std::thread::scope(|s| {
        s.spawn(|| {
            while !is_over.load(SeqCst) {
                now.watch(&what);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let mut rounds = 0;
        // Also when an assertion fails: the scope must end.
        let run = std::panic::AssertUnwindSafe(|| {
            while Instant::now() < until {
                if procs > 1 && rng.one_in(3) {
                    run_quiet_round(rng.next(), procs, &now);
                } else {
                    run_round(rng.next(), procs, &now);
                }
                rounds += 1;
            }
        });
        let done = std::panic::catch_unwind(run);
        is_over.store(true, SeqCst);
        if let Err(payload) = done {
            println!("{what} failed in round {rounds}");
            std::panic::resume_unwind(payload);
        }
        rounds
    });
    println!("{what}: {rounds} rounds");
}

#[test]
fn stress_1_p() {
    stress(1);
}

#[test]
fn stress_2_ps() {
    stress(2);
}

#[test]
fn stress_3_ps() {
    stress(3);
}

#[test]
fn stress_64_ps() {
    stress(64);
}
