//! Timers, tickers, deadlines: never early, nothing stale, nothing lost.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use crate::common::{HOUR, LONG, Rng, eventually, within};
use gosched::chan::{Receiver, RecvTimeoutError, after, at, never, select, tick, unbounded};
use gosched::time::{Ticker, Timer, after_func, sleep, sleep_until};
use gosched::{Runtime, thread};

const MS: Duration = Duration::from_millis(1);

/// Runs in a goroutine, then on a plain thread without any runtime.
fn both(f: impl Fn() + Send + Sync) {
    within(LONG, "time", || {
        gosched::run(&f);
        f();
    });
}

#[test]
fn nothing_is_early() {
    both(|| {
        for n in 0..10 {
            let (start, wait) = (Instant::now(), n * MS);
            sleep(wait);
            assert!(start.elapsed() >= wait);
            let until = Instant::now() + wait;
            sleep_until(until);
            assert!(Instant::now() >= until);
            assert!(at(until).recv().unwrap() == until);
            let start = Instant::now();
            let due = after(wait).recv().unwrap();
            assert!(due >= start + wait && due <= Instant::now());
            let start = Instant::now();
            Timer::new(wait).chan().recv().unwrap();
            assert!(start.elapsed() >= wait);
            let (start, nothing) = (Instant::now(), never::<()>());
            assert_eq!(nothing.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
            assert!(start.elapsed() >= wait);
        }
    });
}

#[test]
fn what_has_passed_is_now_and_what_is_too_far_never_comes() {
    both(|| {
        let past = Instant::now() - MS;
        sleep_until(past);
        sleep(Duration::ZERO);
        assert_eq!(at(past).recv(), Ok(past));
        Timer::new(Duration::ZERO).chan().recv().unwrap();
        for far in [
            Duration::MAX,
            Duration::from_secs(u64::MAX / 2),
            1000 * HOUR,
        ] {
            let timer = Timer::new(far);
            assert!(timer.chan().try_recv().is_err());
            assert!(after(far).try_recv().is_err());
            assert!(tick(far).try_recv().is_err());
            assert!(timer.chan().recv_timeout(MS).is_err());
            assert!(
                timer.stop(),
                "it was still to come, though it never would have"
            );
            assert!(!timer.reset(far));
            assert!(timer.reset(Duration::ZERO));
            timer.chan().recv().unwrap();
        }
    });
}

/// Go ≥ 1.23: what was not received before `stop` or `reset` is never received.
#[test]
fn there_is_no_stale_value() {
    both(|| {
        let timer = Timer::new(Duration::ZERO);
        assert!(timer.stop(), "due, but not received");
        assert!(!timer.stop());
        assert!(timer.chan().try_recv().is_err());
        assert!(!timer.reset(Duration::ZERO));
        assert!(timer.reset(HOUR), "due, but not received");
        assert!(timer.chan().try_recv().is_err());
        assert!(timer.reset(Duration::ZERO));
        timer.chan().recv().unwrap();
        assert!(!timer.stop(), "received");

        let ticker = Ticker::new(Duration::from_nanos(1));
        ticker.reset(HOUR);
        assert!(ticker.chan().try_recv().is_err());
        ticker.reset(MS);
        ticker.chan().recv().unwrap();
        ticker.stop();
        assert!(ticker.chan().try_recv().is_err());
    });
}

/// A waiter uses the new time.
#[test]
fn a_reset_reaches_those_who_wait() {
    within(LONG, "resets", || {
        gosched::run(|| {
            let timer = Timer::new(HOUR);
            let receivers: Vec<_> = (0..3).map(|_| timer.chan().clone()).collect();
            let total = Arc::new(AtomicUsize::new(0));
            let waits = receivers.into_iter().map(|receiver| {
                let total = Arc::clone(&total);
                thread::spawn(move || {
                    select! {
                        recv(receiver) -> _ => total.fetch_add(1, SeqCst),
                        recv(never::<()>()) -> _ => unreachable!(),
                    }
                })
            });
            let waits: Vec<_> = waits.collect();
            for n in 1..=3 {
                sleep(5 * MS);
                timer.reset(MS);
                while total.load(SeqCst) < n {
                    sleep(MS);
                }
                sleep(5 * MS);
                assert_eq!(total.load(SeqCst), n, "one value, one receiver");
            }
            for wait in waits {
                wait.join().unwrap();
            }
        });
    });
}

#[test]
fn missed_ticks_are_dropped_and_the_phase_is_kept() {
    both(|| {
        let period = 20 * MS;
        let ticks = tick(period);
        let first = ticks.recv().unwrap();
        sleep(3 * period);
        let slept = Instant::now();
        let late = ticks.recv().unwrap();
        let next = ticks.recv().unwrap();
        for tick in [late, next] {
            let since = (tick - first).as_nanos() % period.as_nanos();
            assert_eq!(since, 0, "the phase");
        }
        assert!(next > slept, "those between were missed");
        assert!(next - late >= period && Instant::now() >= next);
    });
}

/// Keeps the only P busy.
fn compute_for(duration: Duration) {
    let start = Instant::now();
    while start.elapsed() < duration {
        std::hint::spin_loop();
    }
}

/// The ticks of a goroutine that always waits, on a P that is busy for some periods: one that came
/// late, and three more.
fn late_ticks(receive: impl Fn(&Receiver<Instant>) -> Instant + Send + Sync) -> Vec<Instant> {
    let runtime = Runtime::builder().procs(1).preemption(false).build();
    runtime.unwrap().run(|| {
        let ticks = tick(PERIOD);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                loop {
                    let tick = receive(&ticks);
                    if tick.elapsed() >= PERIOD * 5 / 2 {
                        let more = (0..3).map(|_| receive(&ticks));
                        return std::iter::once(tick).chain(more).collect();
                    }
                }
            });
            sleep(PERIOD / 10); // it waits now
            compute_for(PERIOD * 7 / 2); // a tick is due in the first period of it
            waits.join().unwrap()
        })
    })
}

const PERIOD: Duration = Duration::from_millis(40);

/// A tick goes to the goroutine that waits, when it is due. So there is room for the next one,
/// however late that goroutine runs.
///
/// If the machine stands still before that goroutine waits, no goroutine can get the tick. So the
/// test has three tries.
fn assert_room_for_one(receive: impl Fn(&Receiver<Instant>) -> Instant + Send + Sync) {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let ticks = late_ticks(&receive);
        let after = |n: usize| ticks[n] - ticks[0];
        let has_phase = |n| after(n).as_nanos().is_multiple_of(PERIOD.as_nanos());
        assert!(has_phase(2) && has_phase(3), "the phase: {ticks:?}");
        if after(1) == PERIOD && after(2) > 2 * PERIOD {
            return;
        }
        seen.push(ticks);
    }
    panic!("there was room for the next, and for one: {seen:?}");
}

#[test]
fn a_receiver_that_waited_and_ran_late_loses_no_tick_that_there_was_room_for() {
    assert_room_for_one(|ticks| ticks.recv().unwrap());
}

#[test]
fn a_select_that_waited_and_ran_late_loses_no_tick_that_there_was_room_for() {
    assert_room_for_one(|ticks| {
        select! {
            recv(ticks) -> tick => tick.unwrap(),
            recv(never::<()>()) -> _ => unreachable!(),
        }
    });
}

/// A late receiver leaves the oldest tick to the goroutine that waits, and gets the buffered one.
#[test]
fn a_receiver_that_comes_by_does_not_take_the_tick_of_one_that_waits() {
    let runtime = Runtime::builder().procs(1).preemption(false).build();
    runtime.unwrap().run(|| {
        let ticks = tick(PERIOD);
        thread::scope(|scope| {
            let mut waits = scope.spawn(|| ticks.recv().unwrap());
            sleep(PERIOD / 10);
            while waits.is_finished() {
                waits = scope.spawn(|| ticks.recv().unwrap()); // a busy machine
                sleep(PERIOD / 10);
            }
            compute_for(PERIOD * 5 / 2);
            let other = ticks.try_recv().unwrap();
            let first = waits.join().unwrap();
            let between = first.max(other) - first.min(other);
            assert_eq!(between, PERIOD, "one each, the first two");
        });
    });
}

/// Goroutines in great number receive from one ticker. Returns how often one went to sleep per
/// tick.
fn sleeps_per_tick(receive: impl Fn(&Receiver<Instant>) -> Instant + Send + Sync) -> u64 {
    const RECEIVERS: usize = 200;
    const TICKS: usize = 30;
    let runtime = Runtime::builder().procs(2).build().unwrap();
    within(LONG, "many receivers", || {
        runtime.run(|| {
            let (ticks, taken) = (tick(10 * MS), AtomicUsize::new(0));
            let is_over = AtomicBool::new(false);
            let mut sleeps = 0;
            thread::scope(|scope| {
                for _ in 0..RECEIVERS {
                    scope.spawn(|| {
                        while !is_over.load(SeqCst) {
                            receive(&ticks);
                            taken.fetch_add(1, SeqCst);
                        }
                    });
                }
                sleep(50 * MS); // they wait
                let (parks, from) = (gosched::debug::metrics().park_count, taken.load(SeqCst));
                while taken.load(SeqCst) < from + TICKS {
                    sleep(10 * MS);
                }
                let parks = gosched::debug::metrics().park_count - parks;
                sleeps = parks / (taken.load(SeqCst) - from) as u64;
                is_over.store(true, SeqCst);
            });
            sleeps
        })
    })
}

/// A tick wakes the receiver that it is for. The others sleep on.
#[test]
fn a_tick_wakes_one_of_many_receivers() {
    let sleeps = sleeps_per_tick(|ticks| ticks.recv().unwrap());
    assert!(sleeps < 20, "{sleeps} goroutines woken by a tick");
}

#[test]
fn a_tick_wakes_one_of_many_selects() {
    let sleeps = sleeps_per_tick(|ticks| {
        select! {
            recv(ticks) -> tick => tick.unwrap(),
            recv(never::<()>()) -> _ => unreachable!(),
        }
    });
    assert!(sleeps < 20, "{sleeps} goroutines woken by a tick");
}

/// `first` waits for a timer before another does, and leaves. Returns whether it had the value: if
/// not, the other one gets it.
fn leaves_it_to_the_next(first: impl Fn(Receiver<Instant>) -> bool) {
    within(LONG, "the next in line", || {
        for on_goroutine in [false, true] {
            let (began, timer) = (Instant::now(), Timer::new(500 * MS));
            let values = timer.chan().clone();
            let next = std::thread::spawn(move || {
                std::thread::sleep(50 * MS); // the first waits
                let receive = || _ = values.recv().unwrap();
                match on_goroutine {
                    true => gosched::run(receive),
                    false => receive(),
                }
            });
            // On a busy machine the value came before the first had left, which may have had it.
            if first(timer.chan().clone()) || began.elapsed() >= 500 * MS {
                timer.reset(MS);
            }
            next.join().unwrap();
        }
    });
}

fn select_or(values: &Receiver<Instant>, other: &Receiver<()>) -> bool {
    select! {
        recv(values) -> _ => true,
        recv(other) -> _ => false,
    }
}

#[test]
fn a_receiver_whose_time_is_over_leaves_the_clock_to_the_next() {
    leaves_it_to_the_next(|values| values.recv_timeout(100 * MS).is_ok());
}

#[test]
fn a_select_that_has_something_else_leaves_the_clock_to_the_next() {
    leaves_it_to_the_next(|values| {
        let (send, other) = unbounded();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(100 * MS);
            _ = send.send(());
        });
        let is_value = select_or(&values, &other);
        sender.join().unwrap();
        is_value
    });
}

#[test]
fn a_receiver_that_unwinds_leaves_the_clock_to_the_next() {
    leaves_it_to_the_next(|values| {
        let runtime = Runtime::builder().procs(1).build().unwrap();
        runtime.go(move || _ = values.recv());
        std::thread::sleep(100 * MS);
        runtime.shutdown(LONG);
        false
    });
}

#[test]
fn a_receiver_whose_runtime_is_gone_leaves_the_clock_to_the_next() {
    for is_select in [false, true] {
        leaves_it_to_the_next(|values| {
            let runtime = Runtime::builder().procs(1).build().unwrap();
            runtime.go(move || match is_select {
                true => _ = select_or(&values, &never()),
                false => _ = values.recv(),
            });
            std::thread::sleep(100 * MS);
            drop(runtime);
            false
        });
    }
}

/// A thread that waits for the clock before all others, for a while.
fn leaver(values: &Receiver<Instant>) -> std::thread::JoinHandle<bool> {
    let values = values.clone();
    let leaver = std::thread::spawn(move || values.recv_timeout(100 * MS).is_ok());
    std::thread::sleep(10 * MS);
    leaver
}

/// One is woken to look after the clock, and finds something else.
#[test]
fn who_is_told_to_look_and_leaves_tells_the_next() {
    leaves_it_to_the_next(|values| {
        let leaver = leaver(&values);
        let runtime = Runtime::builder().procs(1).preemption(false).build();
        let is_value = runtime.unwrap().run(|| {
            let (send, other) = unbounded();
            let told = thread::spawn(move || select_or(&values, &other));
            sleep(10 * MS); // it waits
            compute_for(200 * MS); // it is told
            send.send(()).unwrap();
            told.join().unwrap()
        });
        leaver.join().unwrap() || is_value
    });
}

/// One is woken to look after the clock, and its runtime ends before it can.
fn who_is_told_to_look(end: fn(Runtime)) {
    for is_select in [false, true] {
        leaves_it_to_the_next(|values| {
            let leaver = leaver(&values);
            let runtime = Runtime::builder().procs(1).preemption(false).build();
            let runtime = runtime.unwrap();
            runtime.go(move || match is_select {
                true => _ = select_or(&values, &never()),
                false => _ = values.recv(),
            });
            std::thread::sleep(20 * MS);
            runtime.go(|| compute_for(300 * MS));
            let is_value = leaver.join().unwrap();
            std::thread::sleep(20 * MS);
            end(runtime);
            is_value
        });
    }
}

#[test]
fn who_is_told_to_look_and_never_runs_tells_the_next() {
    who_is_told_to_look(drop);
}

#[test]
fn who_is_told_to_look_and_unwinds_tells_the_next() {
    who_is_told_to_look(|runtime| runtime.shutdown(LONG));
}

/// The second of three leaves, so the third is to have the second tick. No receiver waits for the
/// one after it.
#[test]
fn a_tick_is_not_late_for_those_behind_one_that_left() {
    const PERIOD: Duration = Duration::from_secs(2);
    let are_in_time = || {
        let ticks = tick(PERIOD);
        let receivers = [None, Some(200 * MS), None].map(|timeout| {
            let ticks = ticks.clone();
            let receiver = std::thread::spawn(move || {
                let tick = match timeout {
                    Some(timeout) => ticks.recv_timeout(timeout).ok(),
                    None => ticks.recv().ok(),
                };
                tick.map(|tick| tick.elapsed())
            });
            std::thread::sleep(20 * MS);
            receiver
        });
        let lates = receivers.map(|receiver| receiver.join().unwrap());
        lates.iter().flatten().all(|late| *late < PERIOD)
    };
    // A machine may stand still for a period; a tick that waits for the next one does so each time.
    let is_in_time = within(LONG, "the third", || (0..3).any(|_| are_in_time()));
    assert!(is_in_time, "a tick is a period late");
}

#[test]
#[should_panic(expected = "the period must not be zero")]
fn a_ticker_needs_a_period() {
    let _ = Ticker::new(Duration::ZERO);
}

#[test]
fn after_func_calls_once_for_each_time_it_is_set() {
    within(LONG, "calls", || {
        gosched::run(|| {
            let (send, calls) = unbounded();
            let timer = after_func(MS, move || send.send(gosched::num_goroutines()).unwrap());
            assert!(timer.chan().try_recv().is_err());
            assert!(calls.recv().unwrap() >= 2, "a goroutine of its own");
            assert!(!timer.stop(), "it was called");
            assert!(!timer.reset(HOUR));
            assert!(timer.reset(HOUR));
            // The goroutine that made the call may still be about to end.
            let is_alone = eventually(|| gosched::num_goroutines() == 1);
            assert!(is_alone, "it is none before its time");
            assert!(timer.stop());
            assert!(!timer.stop());
            assert!(!timer.reset(MS));
            calls.recv().unwrap();
            timer.reset(MS);
            drop(timer); // changes nothing
            calls.recv().unwrap();
            assert!(calls.recv_timeout(20 * MS).is_err());
        });
    });
}

#[test]
fn after_func_on_a_plain_thread_says_what_to_do() {
    let refused = std::panic::catch_unwind(|| after_func(MS, || {}));
    let payload = refused.unwrap_err();
    let text = payload.downcast_ref::<String>().unwrap();
    assert!(
        text.contains("after_func") && text.contains("goroutine"),
        "{text}"
    );
}

/// A panic in the function is reported like any goroutine's, and the runtime continues. A runtime
/// that is dropped drops the function.
#[test]
fn functions_go_with_their_runtime() {
    within(LONG, "a drop", || {
        let kept = Arc::new(());
        let runtime = Runtime::builder().procs(2).build().unwrap();
        let held = Arc::clone(&kept);
        let timer = runtime.run(move || {
            after_func(HOUR, move || {
                let _ = &held;
            })
        });
        assert_eq!(Arc::strong_count(&kept), 2);
        drop(runtime);
        assert!(!timer.stop(), "its runtime is gone");
        drop(timer);
        assert!(eventually(|| Arc::strong_count(&kept) == 1));
    });
}

/// 100,000 pending at once; some are stopped, some set anew, at random: the others all fire, none
/// of the stopped does.
#[test]
fn none_of_100000_is_lost_early_or_stale() {
    within(LONG, "100,000 timers", || {
        gosched::run(|| {
            let fired: Arc<Vec<AtomicUsize>> =
                Arc::new((0..100_000).map(|_| AtomicUsize::new(0)).collect());
            let mut rng = Rng::new(5);
            let (begin, mut timers) = (Instant::now(), Vec::new());
            for n in 0..fired.len() {
                let fired = Arc::clone(&fired);
                let wait = Duration::from_micros(300_000 + rng.below(300_000));
                timers.push(after_func(wait, move || {
                    assert!(begin.elapsed() >= Duration::from_millis(300), "early");
                    fired[n].fetch_add(1, SeqCst);
                }));
            }
            let mut expect = |timer: &Timer| match rng.below(4) {
                0 => usize::from(!timer.stop()),
                // Twice, if it had been called before.
                1 => 2 - usize::from(timer.reset(Duration::from_millis(400 + rng.below(300)))),
                _ => 1,
            };
            let expected: Vec<usize> = timers.iter().map(&mut expect).collect();
            let all = || (0..fired.len()).all(|n| fired[n].load(SeqCst) >= expected[n]);
            while !all() {
                sleep(10 * MS);
            }
            sleep(50 * MS);
            let wrong = (0..fired.len()).find(|n| fired[*n].load(SeqCst) != expected[*n]);
            assert_eq!(wrong, None);
        });
    });
}

/// A thread waits for timers between two goroutines. Its timer slack is what the program has set,
/// before and after.
#[test]
fn waiting_for_timers_leaves_the_slack_of_a_thread_alone() {
    const SLACK_NS: libc::c_int = 77_000;
    let runtime = Runtime::builder().procs(1).build().unwrap();
    let seen_again = runtime.run(|| {
        let (mut threads, mut seen_again) = (std::collections::HashSet::new(), 0);
        for _ in 0..200 {
            // SAFETY: the calls take numbers and touch no memory.
            unsafe {
                if threads.insert(libc::gettid()) {
                    assert_eq!(libc::prctl(libc::PR_SET_TIMERSLACK, SLACK_NS), 0);
                } else {
                    assert_eq!(libc::prctl(libc::PR_GET_TIMERSLACK), SLACK_NS);
                    seen_again += 1;
                }
            }
            sleep(MS);
        }
        seen_again
    });
    assert!(seen_again > 0, "it came back to some thread");
}
