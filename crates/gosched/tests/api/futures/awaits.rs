//! A `JoinHandle` as a future: polled by hand, by an executor made by hand, by `block_on`.

use std::cell::RefCell;
use std::future::poll_fn;
use std::marker::PhantomPinned;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::pin::pin;

use gosched::future::block_on;
use gosched::thread::{Exited, JoinHandle};
use gosched::{chan, thread};

use super::*;
use crate::common::{Alive, Planned, eventually, quiet_planned_panics};

/// Awaits a handle; what it gives is looked at by the caller.
fn value<T>(handle: JoinHandle<T>) -> std::thread::Result<T> {
    block_on(handle)
}

#[test]
fn a_goroutine_awaits_others() {
    quiet_planned_panics();
    run(2, "block_on a handle", || {
        assert_eq!(value(thread::spawn(|| 7)).unwrap(), 7);
        let panics = thread::spawn(|| panic_any(Planned));
        assert!(value(panics).unwrap_err().is::<Planned>());
        let exits = thread::spawn(|| gosched::goexit());
        assert!(value(exits).unwrap_err().is::<Exited>());
        let slow = thread::spawn(|| {
            thread::sleep(ms(5));
            String::from("slow")
        });
        assert_eq!(value(slow).unwrap(), "slow");
        let ended = thread::spawn(|| 3);
        while !ended.is_finished() {
            thread::yield_now();
        }
        assert_eq!(value(ended).unwrap(), 3);
    });
}

/// An executor that knows nothing of goroutines awaits a thousand of them, on a plain thread.
#[test]
fn an_executor_awaits_goroutines() {
    const MANY: usize = 1000;
    let runtime = runtime(2);
    let sum = Arc::new(AtomicUsize::new(0));
    let task = |n: usize| -> Task {
        let first = runtime.spawn(move || {
            (0..n % 5).for_each(|_| thread::yield_now());
            n
        });
        let handle = runtime.handle();
        let sum = Arc::clone(&sum);
        Box::pin(async move {
            let n = first.await.unwrap();
            let next = handle.spawn(move || {
                if n % 7 == 0 {
                    thread::sleep(ms(1));
                }
                n + 1
            });
            sum.fetch_add(next.await.unwrap(), SeqCst);
        })
    };
    within(LONG, "the executor", || {
        execute((0..MANY).map(task).collect())
    });
    assert_eq!(sum.load(SeqCst), MANY * (MANY + 1) / 2);
    assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
}

/// The last waker counts: it is called once, the others not at all, and none is kept.
#[test]
fn a_new_waker_replaces_the_old_one() {
    run(2, "wakers", || {
        let (go_on, wait) = chan::bounded::<()>(0);
        let mut handle = thread::spawn(move || wait.recv().unwrap());
        let (first, first_waker) = Counter::new();
        let (second, second_waker) = Counter::new();
        for _ in 0..3 {
            assert!(poll(&mut handle, &first_waker).is_pending());
        }
        assert_eq!(Arc::strong_count(&first), 3, "one copy is in the handle");
        for _ in 0..3 {
            assert!(poll(&mut handle, &second_waker).is_pending());
            assert!(poll(&mut handle, &first_waker).is_pending());
        }
        assert!(poll(&mut handle, &second_waker).is_pending());
        assert_eq!(Arc::strong_count(&first), 2, "the old one is gone");
        go_on.send(()).unwrap();
        while second.calls() == 0 {
            thread::yield_now();
        }
        assert!(handle.is_finished(), "the answer is there when it is woken");
        assert!(matches!(
            poll(&mut handle, &second_waker),
            Poll::Ready(Ok(()))
        ));
        drop(handle);
        while Arc::strong_count(&second) > 2 {
            thread::yield_now(); // the goroutine has called it, and is about to drop it
        }
        assert_eq!((first.calls(), second.calls()), (0, 1));
    });
}

/// A handle is dropped while a task awaits it: the waker is dropped, the goroutine runs, its value
/// is dropped once.
#[test]
fn dropped_while_pending_it_detaches() {
    run(2, "detached", || {
        let (go_on, wait) = chan::bounded::<()>(0);
        let alive = Arc::new(AtomicUsize::new(0));
        let given = Alive::new(&alive);
        let mut handle = thread::spawn(move || {
            wait.recv().unwrap();
            given
        });
        let (counter, waker) = Counter::new();
        assert!(poll(&mut handle, &waker).is_pending());
        drop(handle);
        assert_eq!(Arc::strong_count(&counter), 2, "it is not kept");
        assert_eq!(alive.load(SeqCst), 1);
        go_on.send(()).unwrap();
        while alive.load(SeqCst) > 0 {
            thread::yield_now();
        }
        assert_eq!(counter.calls(), 0);
    });
}

/// The result is given once: a second request panics with a clear text.
#[test]
fn the_result_is_given_once() {
    run(2, "twice", || {
        let text = |caught: std::thread::Result<()>| {
            *caught.unwrap_err().downcast::<&'static str>().unwrap()
        };
        let alive = Arc::new(AtomicUsize::new(0));
        let mut handle = thread::spawn({
            let value = Alive::new(&alive);
            move || value
        });
        let taken = block_on(&mut handle).unwrap();
        let again = catch_unwind(AssertUnwindSafe(|| _ = block_on(&mut handle)));
        assert!(text(again).contains("gives its result once"));
        let joined = catch_unwind(AssertUnwindSafe(|| _ = handle.join()));
        assert!(text(joined).contains("gives its result once"));
        assert_eq!(alive.load(SeqCst), 1, "the one we have");
        drop(taken);
        assert_eq!(alive.load(SeqCst), 0);
    });
}

/// `join` after a poll that was in vain: on a goroutine, on a plain thread, before and after the
/// end.
#[test]
fn join_works_after_a_pending_poll() {
    let runtime = runtime(2);
    let story = |runtime: Handle| {
        for pause in [0, 3] {
            let (go_on, wait) = chan::bounded::<()>(0);
            let mut handle = runtime.spawn(move || {
                wait.recv().unwrap();
                5
            });
            let (counter, waker) = Counter::new();
            assert!(poll(&mut handle, &waker).is_pending());
            let sends = runtime.spawn(move || {
                thread::sleep(ms(3 - pause));
                go_on.send(()).unwrap();
            });
            thread::sleep(ms(pause));
            assert_eq!(handle.join().unwrap(), 5);
            assert!(counter.calls() <= 1);
            sends.join().unwrap();
        }
    };
    let handle = runtime.handle();
    within(LONG, "join on a thread", || story(handle));
    let handle = runtime.handle();
    within(LONG, "join on a goroutine", || {
        runtime.run(move || story(handle))
    });
}

/// The first of several wins; the others are dropped where they are, and their values with them.
#[test]
fn the_first_of_several_wins() {
    run(2, "a race", || {
        let alive = Arc::new(AtomicUsize::new(0));
        for round in 0..300u64 {
            let runner = |n: u64| {
                let value = Alive::new(&alive);
                thread::spawn(move || {
                    (0..(n * 7 + round) % 11).for_each(|_| thread::yield_now());
                    (n, value)
                })
            };
            let mut runners: Vec<_> = (0..4).map(runner).collect();
            let (n, value) = block_on(poll_fn(|context| {
                let polled = runners
                    .iter_mut()
                    .map(|runner| Pin::new(runner).poll(context));
                let first = polled.into_iter().find(Poll::is_ready);
                first.unwrap_or(Poll::Pending)
            }))
            .unwrap();
            assert!(n < 4);
            drop((runners, value));
        }
        while alive.load(SeqCst) > 0 {
            thread::yield_now();
        }
    });
}

thread_local! {
    static OWN: RefCell<Option<Alive>> = const { RefCell::new(None) };
}

/// The goroutine's thread-locals have ended when its result is to be had, as after a join. Those
/// that the waker uses are new, and end as well: the next goroutine on that stack finds none of
/// them.
#[test]
fn u10_thread_locals_end_before_and_after_the_waker() {
    let runtime = runtime(1);
    let (alive, wakers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..100 {
        let (go_on, wait) = chan::bounded::<()>(0);
        let own = Arc::clone(&alive);
        let mut handle = runtime.spawn(move || {
            OWN.with_borrow_mut(|value| {
                assert!(value.is_none(), "left by another goroutine");
                *value = Some(Alive::new(&own));
            });
            wait.recv().unwrap();
        });
        let (woken, is_woken) = mpsc::channel();
        let (woken, alive_then, of_waker) =
            (Mutex::new(woken), Arc::clone(&alive), Arc::clone(&wakers));
        let waker = waker(move || {
            let own = OWN.with_borrow_mut(|value| value.replace(Alive::new(&of_waker)));
            let left = (own.is_some(), alive_then.load(SeqCst));
            woken.lock().unwrap().send(left).unwrap();
        });
        assert!(poll(&mut handle, &waker).is_pending());
        go_on.send(()).unwrap();
        assert_eq!(is_woken.recv_timeout(LONG), Ok((false, 0)));
        assert!(eventually(|| wakers.load(SeqCst) == 0), "it ends, too");
        assert!(poll(&mut handle, &waker).is_ready());
    }
}

/// A waker is user code like any other: it may wait, panic, start goroutines.
#[test]
fn d9_wakers_may_do_what_they_like() {
    quiet_planned_panics();
    let runtime = runtime(2);
    let (go_on, wait) = chan::bounded::<()>(0);
    let start = || {
        let wait = wait.clone();
        runtime.spawn(move || wait.recv().unwrap())
    };
    within(LONG, "wakers", || {
        let (mut waits, mut spawns, mut panics) = (start(), start(), start());
        let (tx, rx) = chan::bounded(0);
        let sends = tx.clone();
        let waiting = waker(move || {
            thread::sleep(ms(1));
            sends.send("waited").unwrap();
        });
        let spawning = waker(move || {
            let tx = tx.clone();
            thread::spawn(move || tx.send("spawned").unwrap())
                .join()
                .unwrap();
        });
        let panicking = waker(|| panic_any(Planned));
        assert!(poll(&mut waits, &waiting).is_pending());
        assert!(poll(&mut spawns, &spawning).is_pending());
        assert!(poll(&mut panics, &panicking).is_pending());
        (0..3).for_each(|_| go_on.send(()).unwrap());
        let mut heard = [rx.recv().unwrap(), rx.recv().unwrap()];
        heard.sort_unstable();
        assert_eq!(heard, ["spawned", "waited"]);
        assert!(poll(&mut waits, &waiting).is_ready());
        assert!(poll(&mut spawns, &spawning).is_ready());
        assert!(panics.join().is_ok(), "its waker's panic is not its own");
    });
    assert!(eventually(|| runtime.metrics().goroutines == 0));
    runtime.check().unwrap();
}

/// Two goroutines that poll and end at the same time agree, again and again.
#[test]
fn polls_meet_the_end() {
    run(4, "polls and ends", || {
        for round in 0..3000u32 {
            let turns = round % 4;
            let mut handle = pin!(thread::spawn(move || {
                (0..turns).for_each(|_| std::hint::spin_loop());
                round
            }));
            let (counter, waker) = Counter::new();
            let mut pending = 0;
            let value = loop {
                // The last poll that is in vain leaves a waker that is called: else this one spins
                // for ever.
                let calls = counter.calls();
                match handle.as_mut().poll(&mut Context::from_waker(&waker)) {
                    Poll::Ready(value) => break value.unwrap(),
                    Poll::Pending => pending += 1,
                }
                while round % 2 == 0 && counter.calls() == calls {
                    thread::yield_now();
                }
            };
            assert_eq!(value, round);
            assert!(counter.calls() <= pending);
        }
    });
}

#[test]
fn the_handle_is_unpin_send_and_sync() {
    fn is<T: Unpin + Send + Sync>() {}
    is::<JoinHandle<PhantomPinned>>();
    is::<JoinHandle<std::rc::Rc<()>>>();
}
