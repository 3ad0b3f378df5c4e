//! `future::block_on`: on goroutines and plain threads, with wakers called from everywhere, at
//! every moment.

use std::future::{pending, poll_fn, ready};
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use gosched::future::block_on;
use gosched::{chan, go, thread};

use super::*;
use crate::common::{Alive, Planned, allocations, child, quiet_planned_panics};

/// Waits `rounds` times for an event that `fire` is given.
fn wait_for_each(rounds: usize, fire: impl Fn(Arc<Event>)) {
    for _ in 0..rounds {
        let event = Event::new();
        fire(Arc::clone(&event));
        block_on(event.wait());
    }
}

#[test]
fn a_goroutine_is_woken_by_another() {
    for procs in [1, 2, 4] {
        run(procs, "by a goroutine", || {
            wait_for_each(1000, |event| go(move || event.fire()));
        });
    }
}

#[test]
fn a_goroutine_is_woken_by_a_plain_thread() {
    run(2, "by a thread", || {
        let (events, due) = mpsc::channel::<Arc<Event>>();
        let fires = std::thread::spawn(move || due.iter().for_each(|event| event.fire()));
        wait_for_each(2000, |event| events.send(event).unwrap());
        drop(events);
        fires.join().unwrap();
    });
}

#[test]
fn a_goroutine_is_woken_by_one_of_another_runtime() {
    let other = runtime(2);
    let handle = other.handle();
    run(2, "by another runtime", || {
        wait_for_each(2000, |event| handle.go(move || event.fire()));
    });
}

#[test]
fn a_plain_thread_is_woken_by_a_goroutine() {
    let runtime = runtime(2);
    within(LONG, "a thread, by a goroutine", || {
        wait_for_each(2000, |event| runtime.go(move || event.fire()));
    });
}

/// There is no runtime in the whole process.
#[test]
fn no_runtime_is_needed() {
    let output = child("blocks::no_runtime_is_needed", || {
        let (events, due) = mpsc::channel::<Arc<Event>>();
        let fires = std::thread::spawn(move || due.iter().for_each(|event| event.fire()));
        wait_for_each(1000, |event| events.send(event).unwrap());
        assert_eq!(block_on(ready(7)), 7);
        assert_eq!(crate::common::thread_count(), 2, "the two of us");
        drop(events);
        fires.join().unwrap();
    });
    output.succeeded();
}

/// A waker that is called during the poll, once or often, is answered by one more poll.
#[test]
fn a_wake_during_the_poll_is_not_lost() {
    let story = || {
        let mut polls = 0;
        block_on(poll_fn(|context| {
            polls += 1;
            for _ in 0..polls {
                context.waker().wake_by_ref();
                let other = context.waker().clone();
                other.wake();
            }
            if polls < 1000 {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        }));
        assert_eq!(polls, 1000);
    };
    run(2, "a goroutine that wakes itself", story);
    within(LONG, "a thread that wakes itself", story);
}

/// The waker was called before the goroutine could wait; and a future that is ready is polled once.
#[test]
fn a_wake_before_the_wait_is_not_lost() {
    run(2, "woken before", || {
        let event = Event::new();
        let fires = Arc::clone(&event);
        let mut polls = 0;
        block_on(poll_fn(|context| {
            polls += 1;
            let polled = event.poll(context);
            fires.fire();
            polled
        }));
        assert_eq!(polls, 2);
        polls = 0;
        block_on(poll_fn(|context| {
            polls += 1;
            event.poll(context)
        }));
        assert_eq!(polls, 1);
    });
}

/// Many wakes while it waits make one poll, or few; those after the end make none at all, in no
/// later `block_on`.
#[test]
fn wakes_after_the_end_go_nowhere() {
    run(2, "late wakes", || {
        let mut kept = Vec::new();
        for round in 0..100 {
            let event = Event::new();
            let mut polls = 0;
            let polled = poll_fn(|context| {
                polls += 1;
                if polls == 1 {
                    kept.push(context.waker().clone());
                    let event = Arc::clone(&event);
                    go(move || event.fire());
                }
                // Those of the rounds before belong to other calls.
                kept[..round].iter().for_each(Waker::wake_by_ref);
                event.poll(context)
            });
            block_on(polled);
            assert!(polls <= 2, "{polls} polls for one wake");
            kept.iter().for_each(Waker::wake_by_ref);
        }
        let (a, b) = (kept.clone(), kept.clone());
        let on_thread = std::thread::spawn(move || a.into_iter().for_each(Waker::wake));
        let on_goroutine = thread::spawn(move || b.into_iter().for_each(Waker::wake));
        on_thread.join().unwrap();
        on_goroutine.join().unwrap();
        drop(kept);
    });
}

/// A waker may outlive everything: its goroutine, and the runtime.
#[test]
fn a_waker_may_outlive_the_runtime() {
    let (keep, kept) = mpsc::channel();
    run(2, "the runtime", move || {
        let mut polls = 0;
        block_on(poll_fn(|context| {
            polls += 1;
            keep.send(context.waker().clone()).unwrap();
            context.waker().wake_by_ref();
            if polls < 10 {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        }));
    });
    let wakers: Vec<Waker> = kept.iter().collect();
    assert_eq!(wakers.len(), 10);
    assert!(wakers.iter().all(|waker| waker.will_wake(&wakers[0])));
    wakers.into_iter().for_each(Waker::wake);
}

/// `park` and `unpark` know nothing of it: a token that was there is there afterwards, and none is
/// left behind.
#[test]
fn the_tokens_of_park_are_left_alone() {
    let story = |wait: fn(Arc<Event>)| {
        let me = thread::current();
        me.unpark();
        let event = Event::new();
        wait(Arc::clone(&event));
        thread::park(); // would hang if the token had been used up
        let event = Event::new();
        wait(Arc::clone(&event));
        let began = Instant::now();
        thread::park_timeout(ms(50));
        assert!(began.elapsed() >= ms(50), "a token was left");
    };
    run(2, "tokens of a goroutine", move || {
        story(|event| {
            let fires = Arc::clone(&event);
            go(move || fires.fire());
            block_on(event.wait());
        });
    });
    // An unpark that comes while it waits neither wakes it nor is lost.
    run(2, "a token during the wait", || {
        let event = Event::new();
        let waits = Arc::clone(&event);
        let waiter = thread::spawn(move || {
            let mut polls = 0;
            block_on(poll_fn(|context| {
                polls += 1;
                waits.poll(context)
            }));
            thread::park();
            polls
        });
        until_waiting_in(&Handle::current(), 1, &["future"]);
        waiter.thread().unpark();
        thread::sleep(ms(20));
        event.fire();
        assert_eq!(waiter.join().unwrap(), 2);
    });
    within(LONG, "tokens of a thread", move || {
        story(|event| {
            let fires = Arc::clone(&event);
            let fires = std::thread::spawn(move || fires.fire());
            block_on(event.wait());
            fires.join().unwrap();
        });
    });
}

#[test]
fn ten_thousand_wait_and_one_wakes_them() {
    const MANY: usize = 10_000;
    run(2, "ten thousand", || {
        let events: Vec<_> = (0..MANY).map(|_| Event::new()).collect();
        let wait = |event: &Arc<Event>| {
            let event = Arc::clone(event);
            thread::spawn(move || block_on(event.wait()))
        };
        let waiters: Vec<_> = events.iter().map(wait).collect();
        let metrics = gosched::debug::metrics;
        while metrics().waiting != MANY {
            thread::sleep(ms(1));
        }
        events.iter().for_each(|event| event.fire());
        waiters.into_iter().for_each(|w| w.join().unwrap());
    });
}

#[test]
fn calls_nest() {
    run(2, "nested", || {
        let (outer, inner) = (Event::new(), Event::new());
        let mut is_first = true;
        block_on(poll_fn(|context| {
            let polled = outer.poll(context);
            if std::mem::take(&mut is_first) {
                // The waker of the outer one is called while the inner one waits.
                let (fires_outer, fires_inner) = (Arc::clone(&outer), Arc::clone(&inner));
                go(move || {
                    fires_outer.fire();
                    thread::sleep(ms(5));
                    fires_inner.fire();
                });
                block_on(Arc::clone(&inner).wait());
            }
            polled
        }));
        assert_eq!(
            block_on(async { block_on(async { block_on(ready(3)) }) }),
            3
        );
    });
}

#[test]
fn a_panic_in_the_poll_is_passed_on() {
    quiet_planned_panics();
    let story = || {
        let alive = Arc::new(AtomicUsize::new(0));
        let value = Alive::new(&alive);
        let event = Event::new();
        let fires = Arc::clone(&event);
        go_or_thread(move || fires.fire());
        let caught = catch_unwind(AssertUnwindSafe(|| {
            block_on(async move {
                let _value = value;
                event.wait().await;
                panic_any(Planned);
            })
        }));
        assert!(caught.unwrap_err().is::<Planned>());
        assert_eq!(alive.load(SeqCst), 0, "what the future held is dropped");
        assert_eq!(block_on(ready(1)), 1);
    };
    run(2, "a panic", story);
    story();
}

fn go_or_thread(f: impl FnOnce() + Send + 'static) {
    if thread::current().id().goroutine().is_some() {
        go(f);
    } else {
        std::thread::spawn(f);
    }
}

/// A future that wakes itself without end lets the others run on its P, with preemption and
/// without.
#[test]
fn one_that_always_wakes_itself_starves_nobody() {
    for preemption in [true, false] {
        let builder = Runtime::builder().procs(1).preemption(preemption);
        let runtime = builder.build().unwrap();
        within(LONG, "one that wakes itself", || {
            runtime.run(|| {
                let is_over = Arc::new(AtomicBool::new(false));
                let ends = Arc::clone(&is_over);
                go(move || {
                    (0..100).for_each(|_| thread::yield_now());
                    ends.store(true, SeqCst);
                });
                block_on(poll_fn(|context| {
                    context.waker().wake_by_ref();
                    if is_over.load(SeqCst) {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                }));
            });
        });
    }
}

/// The same for a future that is woken all the time, during its polls: it never waits, and never
/// calls into the runtime.
#[test]
fn one_that_is_always_woken_starves_nobody() {
    let runtime = Runtime::builder().procs(1).preemption(false);
    let runtime = runtime.build().unwrap();
    let (is_over, wakes) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (keep, kept) = mpsc::channel::<Waker>();
    let (is_over, wakes) = (&is_over, &wakes);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let waker = kept.recv().unwrap();
            while !is_over.load(SeqCst) {
                waker.wake_by_ref();
                wakes.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        within(LONG, "one that is always woken", || {
            runtime.run(|| {
                let other = thread::spawn(|| (0..10).for_each(|_| thread::yield_now()));
                block_on(poll_fn(|context| {
                    let _ = keep.send(context.waker().clone());
                    let before = wakes.load(SeqCst);
                    while wakes.load(SeqCst) < before + 2 {
                        std::hint::spin_loop();
                    }
                    if other.is_finished() {
                        Poll::Ready(())
                    } else {
                        Poll::Pending
                    }
                }));
                is_over.store(true, SeqCst);
            });
        });
    });
}

/// Where the goroutine is special: wired to its thread, in a blocking call, in a scope.
#[test]
fn it_works_wherever_a_goroutine_may_wait() {
    run(2, "special places", || {
        let fire_soon = || {
            let event = Event::new();
            let fires = Arc::clone(&event);
            go(move || fires.fire());
            event.wait()
        };
        gosched::lock_os_thread();
        block_on(fire_soon());
        gosched::unlock_os_thread();
        gosched::blocking(|| block_on(fire_soon()));
        thread::scope(|s| s.spawn(|| block_on(fire_soon())).join().unwrap());
    });
}

/// What the future's other side wrote is seen.
#[test]
fn u10_what_came_before_the_wake_is_seen_by_the_poll() {
    run(4, "happens before", || {
        for round in 0..2000usize {
            let (tx, rx) = chan::bounded::<Waker>(1);
            let cell = Arc::new(AtomicUsize::new(0));
            let writes = Arc::clone(&cell);
            go(move || {
                let waker = rx.recv().unwrap();
                writes.store(round + 1, Relaxed);
                waker.wake();
            });
            let mut polls = 0;
            let seen = block_on(poll_fn(|context| {
                polls += 1;
                if polls == 1 {
                    tx.send(context.waker().clone()).unwrap();
                    return Poll::Pending;
                }
                Poll::Ready(cell.load(Relaxed))
            }));
            assert_eq!(seen, round + 1);
        }
    });
}

/// Dumps show it, and a future that can never be woken is a deadlock like any other.
#[test]
fn u6_a_future_that_never_comes_is_a_deadlock() {
    let output = child("blocks::u6_a_future_that_never_comes_is_a_deadlock", || {
        gosched::run(|| block_on(pending::<()>()));
    });
    output.died_with(&["fatal error: all goroutines are asleep - deadlock!"]);
    output.says(&["goroutine 1 [future] {name: main}:"]);
}

/// One call allocates once, however often its future is polled.
#[test]
fn polls_allocate_nothing() {
    const POLLS: usize = 20_000;
    let output = child("blocks::polls_allocate_nothing", || {
        run(2, "polls", || {
            let turn = Arc::new(AtomicUsize::new(0));
            let (tx, rx) = chan::bounded::<Waker>(1);
            let polls = Arc::clone(&turn);
            let wakes = thread::spawn(move || {
                let waker = rx.recv().unwrap();
                while polls.load(SeqCst) <= POLLS {
                    waker.wake_by_ref();
                    thread::yield_now();
                }
            });
            let before = allocations();
            block_on(poll_fn(|context| match turn.fetch_add(1, SeqCst) {
                0 => {
                    tx.send(context.waker().clone()).unwrap();
                    Poll::Pending
                }
                n if n < POLLS => Poll::Pending,
                _ => Poll::Ready(()),
            }));
            let more = allocations() - before;
            assert!(more < 200, "{more} allocations");
            wakes.join().unwrap();
        });
    });
    output.succeeded();
}
