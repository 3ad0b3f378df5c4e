//! Runtimes that end while goroutines are in `block_on`, and while tasks await their goroutines.

use std::future::{pending, poll_fn};
use std::sync::atomic::AtomicBool;

use gosched::future::block_on;
use gosched::thread::{Exited, JoinHandle};
use gosched::{chan, thread};

use super::*;
use crate::common::{Alive, Planned, eventually, quiet_planned_panics, until_parked};

/// Unwinds out of `block_on` and drops the future, as out of any wait.
#[test]
fn shutdown_unwinds_out_of_block_on() {
    let runtime = runtime(2);
    let alive = Arc::new(AtomicUsize::new(0));
    let wait = |n: usize| {
        let value = Alive::new(&alive);
        runtime.spawn(move || {
            block_on(async move {
                let _value = value;
                if n.is_multiple_of(2) {
                    // A call inside another call.
                    block_on(pending::<()>());
                }
                pending::<()>().await;
            })
        })
    };
    let handles: Vec<_> = (0..100).map(wait).collect();
    until_waiting_in(&runtime.handle(), 100, &["future"]);
    within(LONG, "shutdown", || runtime.shutdown(LONG / 2));
    assert_eq!(alive.load(SeqCst), 0, "all futures are dropped");
    for handle in handles {
        assert!(handle.join().unwrap_err().is::<Exited>());
    }
}

/// A call that never waits ends, too, at its next poll.
#[test]
fn shutdown_ends_a_future_that_always_wakes_itself() {
    let runtime = runtime(1);
    let handle = runtime.spawn(|| {
        block_on(poll_fn(|context| {
            context.waker().wake_by_ref();
            Poll::<()>::Pending
        }));
    });
    assert!(eventually(|| runtime.metrics().running == 1));
    within(LONG, "shutdown", || runtime.shutdown(LONG / 2));
    assert!(handle.join().unwrap_err().is::<Exited>());
}

/// Where nothing can unwind, in a destructor that runs because of the shutdown, it waits for its
/// future after all.
#[test]
fn during_an_unwinding_it_waits() {
    struct Waits(Arc<Event>, Arc<AtomicBool>);
    impl Drop for Waits {
        fn drop(&mut self) {
            block_on(Arc::clone(&self.0).wait());
            self.1.store(true, SeqCst);
        }
    }
    let (runtime, event) = (runtime(2), Event::new());
    let has_waited = Arc::new(AtomicBool::new(false));
    let waits = Waits(Arc::clone(&event), Arc::clone(&has_waited));
    runtime.go(move || {
        let _waits = waits;
        thread::park();
    });
    let fires = std::thread::spawn(move || {
        std::thread::sleep(ms(50));
        event.fire();
    });
    within(LONG, "shutdown", || runtime.shutdown(LONG / 2));
    assert!(has_waited.load(SeqCst));
    fires.join().unwrap();
}

/// Its waker is called when its goroutine was abandoned long ago, and while that happens.
#[test]
fn d2_wakers_of_goroutines_that_were_abandoned() {
    for round in 0..20 {
        let runtime = runtime(2);
        let events: Vec<_> = (0..50).map(|_| Event::new()).collect();
        for event in &events {
            let event = Arc::clone(event);
            runtime.go(move || block_on(event.wait()));
        }
        until_waiting_in(&runtime.handle(), 50, &["future"]);
        let fires = std::thread::spawn(move || events.iter().for_each(|event| event.fire()));
        if round % 2 == 0 {
            fires.join().unwrap();
            drop(runtime);
        } else {
            drop(runtime);
            fires.join().unwrap();
        }
    }
}

/// The end of the runtime answers every task that awaits its goroutines: waiting ones, running
/// ones, and ones that never ran. The wakers may do anything, also wait for each other and panic.
#[test]
fn d2_a_dropped_runtime_answers_who_awaits() {
    quiet_planned_panics();
    // Without preemption the third goroutine never gets the P.
    let runtime = Runtime::builder().procs(1).preemption(false);
    let runtime = runtime.build().unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let parked = runtime.spawn(thread::park);
    until_parked(&runtime.handle(), 1);
    let spins = Arc::clone(&is_over);
    let running = runtime.spawn(move || while !spins.load(SeqCst) {});
    assert!(eventually(|| runtime.metrics().running == 1));
    let alive = Arc::new(AtomicUsize::new(0));
    let value = Alive::new(&alive);
    let unstarted = runtime.spawn(move || drop(value));
    let mut handles = [parked, running, unstarted];
    let (tx, rx) = chan::unbounded();
    for (number, handle) in handles.iter_mut().enumerate() {
        let tx = tx.clone();
        let waker = waker(move || {
            thread::sleep(ms(1)); // of the thread that drops the runtime
            tx.send(number).unwrap();
            std::panic::panic_any(Planned);
        });
        assert!(poll(handle, &waker).is_pending());
    }
    within(LONG, "the drop", || drop(runtime));
    let mut woken: Vec<_> = rx.try_iter().collect();
    woken.sort_unstable();
    assert_eq!(woken, [0, 1, 2], "the dropper has called them");
    is_over.store(true, SeqCst);
    for mut handle in handles {
        let Poll::Ready(answer) = poll(&mut handle, Waker::noop()) else {
            panic!("no answer");
        };
        assert!(answer.unwrap_err().is::<Exited>());
    }
    assert!(eventually(|| alive.load(SeqCst) == 0));
}

/// A goroutine drops its own runtime: the wakers are called on a thread that outlives it.
#[test]
fn d2_a_runtime_dropped_by_its_own_goroutine_answers() {
    let runtime = runtime(2);
    let parked = runtime.spawn(thread::park);
    until_parked(&runtime.handle(), 1);
    let handle = runtime.handle();
    let dropper = handle.spawn(move || {
        thread::sleep(ms(10));
        drop(runtime);
    });
    within(LONG, "the answers", || {
        let answers = block_on(async { (parked.await, dropper.await) });
        assert!(answers.0.unwrap_err().is::<Exited>());
        assert!(answers.1.unwrap_err().is::<Exited>(), "it is given up, too");
    });
}

/// A handle of a runtime that is gone is ready at once; a task that awaits one of a runtime that
/// shuts down is woken.
#[test]
fn awaiting_after_and_during_the_end() {
    let runtime = runtime(2);
    let (late, early) = (runtime.spawn(thread::park), runtime.spawn(thread::park));
    let (woken, is_woken) = mpsc::channel();
    let awaits = std::thread::spawn(move || woken.send(block_on(early)).unwrap());
    until_parked(&runtime.handle(), 2);
    within(LONG, "shutdown", || runtime.shutdown(LONG / 2));
    let answer = is_woken.recv_timeout(LONG).unwrap();
    assert!(answer.unwrap_err().is::<Exited>());
    assert!(block_on(late).unwrap_err().is::<Exited>());
    awaits.join().unwrap();
}

/// Goroutines of one runtime await those of another, which is dropped under them.
#[test]
fn d2_goroutines_await_those_of_a_runtime_that_goes() {
    let (one, other) = (runtime(2), runtime(2));
    let parked: Vec<JoinHandle<()>> = (0..200).map(|_| other.spawn(thread::park)).collect();
    let wait = |handle| one.spawn(move || block_on(handle));
    let waiters: Vec<_> = parked.into_iter().map(wait).collect();
    until_waiting_in(&one.handle(), 200, &["future"]);
    until_parked(&other.handle(), 200);
    drop(other);
    within(LONG, "the answers", || {
        for waiter in waiters {
            assert!(waiter.join().unwrap().unwrap_err().is::<Exited>());
        }
    });
    assert_eq!(one.metrics().rescues, 0, "WK: a wake-up was lost");
}
