//! One round: makes runtimes, runs mixes in them for a while, ends all, and checks the ledger.
//!
//! Each round checks on its own that nothing is lost, so that a failure has few possible causes.
//!
//! ```text
//!  build ─► roots of the mixes ─► time passes, failures are injected ─► runtimes end ─► checks
//! ```
//!
//! - Drained: every closure ran or was dropped, and all have ended. All values are dropped. No
//!   goroutine, timer, file or thread is left.
//! - Shut down: the same; joins may return `Exited`.
//! - Dropped, cut off: every closure ran or was dropped, except the few that were about to be
//!   called. No value is dropped twice. Joins are answered. Threads end.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use gosched::{Deadlock, Runtime, testing};

use crate::env::Env;
use crate::ledger::{BEATS, DRAIN, DROP, HEARTBEAT, Ledger, SHUTDOWN, Sums, YIELD};
use crate::plan::{Ending, Kind, Plan, Refusal};
use crate::rng::Rng;
use crate::{mixes, system, watch};

/// How long released files and threads may take to disappear.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a shutdown may take: all actors end by themselves.
const UNWINDING: Duration = Duration::from_secs(40);
/// How late a goroutine may be, in addition to the delays of the machine itself.
const LATE: Duration = Duration::from_secs(12);
/// The same with chaos from the library itself.
const LATE_CHAOS: Duration = Duration::from_secs(15);
/// A round waits at its end for a goroutine of the heart that has not run for this long. Many
/// rounds are shorter than the allowed delay.
const AWAITED: Duration = Duration::from_millis(100);
/// Threads of this process before its first round.
static THREADS_FIRST: OnceLock<usize> = OnceLock::new();

/// The result of a round.
pub struct Outcome {
    pub env: Arc<Env>,
    pub complaints: Vec<String>,
    pub rss_kib: usize,
    pub goroutines: u64,
    /// Files that stayed open with abandoned goroutines.
    pub fds_kept: i64,
    pub rescues: u64,
}

/// What the process had before the round.
struct Before {
    fds: usize,
    threads: usize,
}

fn build(plan: &Plan, procs: usize, name: &str) -> std::io::Result<Runtime> {
    let mut builder = Runtime::builder()
        .procs(procs)
        .name(name)
        .preemption(plan.preemption)
        .mprotect_guards(plan.mprotect)
        .deadlock(if plan.is_closed {
            Deadlock::Closed
        } else {
            Deadlock::Auto
        });
    if !plan.own {
        // SAFETY: the mixes of a round with shared thread-locals keep nothing of a thread-local
        // over a call (D6): `Plan::fit` does not choose the others.
        builder = unsafe { builder.shared_thread_locals() };
    }
    builder.build()
}

/// Runs the round of a plan.
pub fn run(plan: Plan) -> Outcome {
    let threads = system::threads();
    // One more after each round would be a leak too.
    let first = *THREADS_FIRST.get_or_init(|| threads);
    let before = Before {
        fds: system::fds(),
        threads: threads.min(first),
    };
    let mut rng = Rng::new(plan.seed ^ 0xA5A5);
    let here = build(&plan, plan.procs, "here").expect("a runtime");
    let there = plan
        .there
        .map(|n| build(&plan, n, "there").expect("a runtime"));
    let env = Arc::new(Env {
        ledger: Arc::new(Ledger::new(mixes::ALL.len())),
        stop: AtomicBool::new(false),
        is_ending: AtomicBool::new(false),
        has_no_threads: AtomicBool::new(false),
        here: here.handle(),
        there: there.as_ref().map(Runtime::handle),
        seeds: AtomicU64::new(rng.next()),
        room: AtomicI64::new(plan.room),
        plan,
    });
    watch::built(&env);
    watch::stage("starting");
    refuse_threads(&env, &mut rng);
    start(&env, &mut rng, &here);
    watch::stage("running");
    let machine_late = pass_time(&env, &mut rng);
    let mut closing = Closing {
        env: &env,
        rng,
        rescues: 0,
    };
    closing.end_all(here, there);
    watch::stage("checking");
    check_heart(&env.plan, &env.ledger, machine_late);
    check_books(&env);
    let fds_kept = check_system(&env, &before);
    Outcome {
        complaints: env.ledger.complaints(),
        rss_kib: system::rss_kib(),
        goroutines: env.ledger.sums().ran,
        fds_kept,
        rescues: closing.rescues,
        env,
    }
}

/// Starts the roots of the mixes, from this thread or from a main goroutine.
fn start(env: &Arc<Env>, rng: &mut Rng, here: &Runtime) {
    let mut roots = Vec::new();
    for &mix in &env.plan.mixes {
        for _ in 0..rng.few(mixes::ALL[mix].roots) {
            roots.push((mix, rng.one_in(4)));
        }
    }
    if env.plan.has("heart") {
        // From here on, so that a heart that never begins is missed as well.
        env.ledger.beat(HEARTBEAT);
    }
    let start_all = || {
        for (mix, elsewhere) in roots {
            let mut actor = env.actor(mix);
            let place = if elsewhere {
                crate::env::Place::There
            } else {
                crate::env::Place::Here
            };
            // Roots do not compete for room.
            env.room.fetch_add(1, SeqCst);
            drop(actor.start(place, mixes::ALL[mix].root));
            env.room.fetch_sub(1, SeqCst);
        }
    };
    if rng.one_in(2) {
        here.run(start_all);
    } else {
        start_all();
    }
}

/// Lets time pass, with failures now and then. Returns how late the machine woke this thread.
fn pass_time(env: &Arc<Env>, rng: &mut Rng) -> Duration {
    let until = Instant::now() + env.plan.length;
    let allowed = Instant::now() + env.plan.length / 2;
    let mut late = Duration::ZERO;
    while env.ledger.complaints().is_empty()
        && (Instant::now() < until || is_awaited(&env.plan, &env.ledger, late))
    {
        let began = Instant::now();
        refuse(env, rng);
        let pauses = [
            Duration::from_micros(200 + rng.below(4000)),
            rng.micros(3000),
        ];
        std::thread::sleep(pauses[0]);
        if env.plan.refusal == Refusal::No
            || env.plan.refusal == Refusal::Ends && Instant::now() >= allowed
        {
            refuse_nothing(env);
        }
        std::thread::sleep(pauses[1]);
        late = late.max(began.elapsed().saturating_sub(pauses[0] + pauses[1]));
    }
    // A goroutine that still waits has waited at least this long.
    (0..BEATS).for_each(|who| env.ledger.took(who, env.ledger.silence(who)));
    refuse_nothing(env);
    late
}

/// Lets some of the plan's refusals begin, after a few more successes.
fn refuse(env: &Env, rng: &mut Rng) {
    let inject = env.plan.inject;
    let switches: [(bool, fn(i64)); 3] = [
        (inject.map, testing::fail_map_after),
        (inject.thread, testing::fail_thread_after),
        (inject.epoll, testing::fail_epoll_after),
    ];
    for ((is_wanted, fail_after), count) in switches.into_iter().zip(&env.ledger.refusals) {
        if is_wanted && rng.one_in(3) {
            fail_after(rng.below(1 << rng.clone().below(8)) as i64);
            count.fetch_add(1, SeqCst);
        }
    }
}

/// From now on the system makes a few more threads, and then none.
fn refuse_threads(env: &Env, rng: &mut Rng) {
    if env.plan.refusal != Refusal::No {
        env.has_no_threads.store(true, SeqCst);
        // At least two more than there are Ps. If each P ran a loop and these held the only
        // threads, no other goroutine would get one.
        testing::fail_thread_after(rng.within(env.plan.procs + 2, env.plan.procs + 12) as i64);
        env.ledger.refusals[1].fetch_add(1, SeqCst);
    }
}

/// Ends all refusals.
fn refuse_nothing(env: &Env) {
    env.has_no_threads.store(false, SeqCst);
    testing::fail_map_after(-1);
    testing::fail_thread_after(-1);
    testing::fail_epoll_after(-1);
}

/// The end of a round's runtimes.
struct Closing<'a> {
    env: &'a Arc<Env>,
    rng: Rng,
    rescues: u64,
}

impl Closing<'_> {
    fn end_all(&mut self, here: Runtime, there: Option<Runtime>) {
        let [ends_here, ends_there] = self.env.plan.endings;
        if self.env.plan.is_gentle {
            self.env.stop.store(true, SeqCst);
        }
        let (mut drained, mut others) = (Vec::new(), Vec::new());
        let all = [
            Some((here, ends_here)),
            there.map(|there| (there, ends_there)),
        ];
        for (runtime, ending) in all.into_iter().flatten() {
            match ending {
                Ending::Drained => drained.push(runtime),
                _ => others.push((runtime, ending)),
            }
        }
        if self.rng.one_in(2) {
            others.reverse();
        }
        if !others.is_empty() {
            self.env.is_ending.store(true, SeqCst);
        }
        while let Some((runtime, ending)) = others.pop() {
            self.count_rescues(&runtime);
            self.end(runtime, ending, drained.first());
        }
        self.env.stop.store(true, SeqCst);
        watch::stage("draining");
        let began = Instant::now();
        self.wait_for(&drained);
        self.env.ledger.took(DRAIN, began.elapsed());
        drained.into_iter().for_each(|runtime| self.close(runtime));
    }

    fn count_rescues(&mut self, runtime: &Runtime) {
        let metrics = runtime.metrics();
        self.rescues += metrics.rescues;
        if metrics.rescues != 0 && !self.env.plan.inject.thread {
            let text = format!("WK: {} wake-ups were lost\n{metrics}", metrics.rescues);
            self.env.ledger.complain(text);
        }
        if metrics.signal_lost {
            self.env.ledger.complain("the preemption signal is lost");
        }
    }

    /// Ends a runtime while its actors run.
    fn end(&mut self, runtime: Runtime, ending: Ending, other: Option<&Runtime>) {
        let began = Instant::now();
        match ending {
            Ending::ShutDown => {
                watch::stage("shutting down");
                // Actors in calls and loops end once `stop` is set.
                let (env, time) = (Arc::clone(self.env), self.rng.micros(50_000));
                let tells = std::thread::spawn(move || {
                    std::thread::sleep(time);
                    env.stop.store(true, SeqCst);
                });
                runtime.shutdown(UNWINDING);
                let _ = tells.join();
            }
            Ending::CutOff(ms) => {
                watch::stage("cutting off");
                runtime.shutdown(Duration::from_millis(ms));
            }
            _ => self.drop(runtime, ending, other),
        }
        let is_unwound = matches!(ending, Ending::ShutDown | Ending::CutOff(_));
        let kind = if is_unwound { SHUTDOWN } else { DROP };
        self.env.ledger.took(kind, began.elapsed());
    }

    fn drop(&mut self, runtime: Runtime, ending: Ending, other: Option<&Runtime>) {
        watch::stage("dropping");
        match (ending, other) {
            (Ending::DroppedInside, _) => {
                let handle = runtime.handle();
                if let Ok(dropper) = handle.try_spawn(move || drop(runtime))
                    && dropper.join().is_ok()
                {
                    let text = "a goroutine of a dropped runtime was joined as if it had ended";
                    self.env.ledger.complain(text);
                }
            }
            (Ending::DroppedElsewhere, Some(other)) => {
                let dropper = other.handle().try_spawn(move || drop(runtime));
                let is_over = dropper.is_ok_and(|dropper| dropper.join().is_ok());
                if !is_over && !self.env.may_refuse() {
                    self.env
                        .ledger
                        .complain("the goroutine that drops a runtime is lost");
                }
            }
            _ => drop(runtime),
        }
    }

    /// Waits until these runtimes are empty and no plain thread is at work.
    fn wait_for(&self, drained: &[Runtime]) {
        let is_empty = |runtime: &Runtime| {
            let metrics = runtime.metrics();
            metrics.goroutines == 0 && metrics.timers == 0
        };
        loop {
            let threads = self.env.ledger.sums().threads;
            if threads == 0 && drained.iter().all(is_empty) {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Checks an empty runtime, and drops it.
    fn close(&mut self, runtime: Runtime) {
        watch::stage("closing");
        if let Err(violations) = runtime.check() {
            self.env.ledger.complain(violations);
        }
        self.count_rescues(&runtime);
        let metrics = runtime.metrics();
        if metrics.spawns != metrics.ends || metrics.goroutines != 0 {
            self.env
                .ledger
                .complain(format_args!("S2: goroutines are left\n{metrics}"));
        }
        let leaks = runtime.leaks();
        if !leaks.is_empty() {
            self.env
                .ledger
                .complain(format_args!("an empty runtime leaks: {leaks}"));
        }
        watch::stage("dropping an empty runtime");
        let began = Instant::now();
        drop(runtime);
        self.env.ledger.took(DROP, began.elapsed());
    }
}

/// How late a goroutine may be in this round; None if starvation is allowed.
fn late_max(plan: &Plan, machine_late: Duration) -> Option<Duration> {
    if plan.inject.thread || plan.inject.map || !plan.preemption {
        return None;
    }
    let late = match plan.kind {
        Kind::Chaos => LATE_CHAOS,
        _ => LATE,
    };
    Some(late + 5 * machine_late)
}

/// Whether the round waits for a goroutine of the heart that may still run in time.
fn is_awaited(plan: &Plan, ledger: &Ledger, machine_late: Duration) -> bool {
    let longest = (0..BEATS).map(|who| ledger.silence(who)).max();
    let (longest, most) = (longest.unwrap_or_default(), late_max(plan, machine_late));
    longest >= AWAITED && most.is_some_and(|most| longest <= most)
}

/// Checks that no goroutine starved.
fn check_heart(plan: &Plan, ledger: &Ledger, machine_late: Duration) {
    let Some(limit) = late_max(plan, machine_late) else {
        return;
    };
    for (wait, what) in [(HEARTBEAT, "a sleeper"), (YIELD, "a yielding goroutine")] {
        let worst = Duration::from_micros(ledger.worst[wait].load(SeqCst));
        ledger.checks.fetch_add(1, SeqCst);
        if worst > limit {
            ledger.complain(format_args!(
                "U4, L2: {what} starved for {worst:?} (the machine was {machine_late:?} late)"
            ));
        }
    }
}

/// Checks that every closure and every value is accounted for.
fn check_books(env: &Env) {
    let plan = &env.plan;
    let is_settled = |sums: &Sums| {
        let Sums {
            born,
            ran,
            ended,
            unrun,
            made,
            dropped,
            ..
        } = *sums;
        if !plan.may_abandon() {
            return born == ended + unrun && made == dropped && sums.fds == 0;
        }
        // The exception: closures that were abandoned just before they were called.
        let about = 2 * (plan.procs + plan.there.unwrap_or(0)) as u64 + 16;
        born >= ran + unrun
            && sums.given_up_early() <= about
            && ended <= ran
            && dropped <= made
            && sums.fds >= 0
    };
    env.ledger.checks.fetch_add(1, SeqCst);
    if !system::eventually(PATIENCE, || is_settled(&env.ledger.sums())) {
        env.ledger.complain(format_args!(
            "the ledger does not balance: {:?}\n{}",
            env.ledger.sums(),
            env.ledger.open_entries(&mixes::names())
        ));
    }
}

/// Checks that files and threads are back. Returns the number of files that stayed with abandoned
/// goroutines.
fn check_system(env: &Env, before: &Before) -> i64 {
    let plan = &env.plan;
    let mut patience = PATIENCE;
    if !system::eventually(patience, || system::threads() <= before.threads) {
        env.ledger.complain(format_args!(
            "{} threads, {} before the round:\n{}",
            system::threads(),
            before.threads,
            system::thread_list()
        ));
        patience = Duration::from_secs(1);
    }
    let given_up = || env.ledger.sums().fds;
    // A runtime that was dropped while its threads were in calls may keep its poller.
    let pollers = 2 * i64::from(plan.may_abandon()) * plan.endings.len() as i64;
    let extra = || system::fds() as i64 - before.fds as i64;
    env.ledger.checks.fetch_add(2, SeqCst);
    if !system::eventually(patience, || extra() <= given_up() + pollers) {
        env.ledger.complain(format_args!(
            "{} files are open, {} before the round, {} belong to abandoned goroutines:{}",
            system::fds(),
            before.fds,
            given_up(),
            system::fd_list()
        ));
    }
    extra()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plan of this kind in which no goroutine may starve.
    fn plan(kind: Kind) -> Plan {
        let mut plan = Plan::new(kind as u64, &[]);
        plan.preemption = true;
        plan
    }

    fn complaints(plan: &Plan, who: usize, wait: Duration, machine_late: Duration) -> usize {
        let ledger = Ledger::new(mixes::ALL.len());
        ledger.took(who, wait);
        check_heart(plan, &ledger, machine_late);
        ledger.complaints().len()
    }

    #[test]
    fn who_waits_for_long_has_starved_unless_the_machine_was_late_as_well() {
        let (clean, chaos) = (plan(Kind::Clean), plan(Kind::Chaos));
        let (wait, late) = (LATE + Duration::from_secs(1), Duration::from_secs(1));
        for who in [HEARTBEAT, YIELD] {
            assert_eq!(complaints(&clean, who, LATE / 2, Duration::ZERO), 0);
            assert_eq!(complaints(&clean, who, wait, Duration::ZERO), 1);
            assert_eq!(complaints(&clean, who, wait, late), 0);
            assert_eq!(complaints(&chaos, who, wait, Duration::ZERO), 0);
            assert_eq!(complaints(&chaos, who, LATE_CHAOS * 2, Duration::ZERO), 1);
        }
    }

    #[test]
    fn a_round_goes_on_for_one_who_does_not_come_round() {
        let (plan, late) = (plan(Kind::Clean), Duration::ZERO);
        let ledger = Ledger::new(mixes::ALL.len());
        assert!(
            !is_awaited(&plan, &ledger, late),
            "there is no such goroutine"
        );
        ledger.beat(HEARTBEAT);
        std::thread::sleep(AWAITED);
        assert!(ledger.silence(HEARTBEAT) >= AWAITED);
        assert!(is_awaited(&plan, &ledger, Duration::from_secs(3600)));
        let mut none = plan;
        none.preemption = false;
        assert!(!is_awaited(&none, &ledger, late), "starvation is allowed");
    }
}
