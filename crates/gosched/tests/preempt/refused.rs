//! The system refuses threads: goroutines that have begun continue on the existing threads, and
//! threads are made again when the system grants them.

use super::*;
use gosched::testing::fail_thread_after;

/// Endless loops, a few times as many as there are threads.
const HOGS: usize = 30;

/// How often a goroutine comes round that sleeps 5 ms at a time.
fn ticks(time: Duration) -> u32 {
    let (until, mut ticks) = (Instant::now() + time, 0);
    while Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
        ticks += 1;
    }
    ticks
}

/// Asserts that it comes round so often in a second. A machine may stand still for one.
#[track_caller]
fn assert_ticks(at_least: u32) {
    let seen: Vec<_> = (0..10)
        .map(|_| ticks(Duration::from_secs(1)))
        .take_while(|ticks| *ticks < at_least)
        .collect();
    assert!(seen.len() < 10, "{seen:?} ticks");
}

/// Reports from a plain thread: a goroutine that starves cannot.
fn within_a_child(runtime: Runtime, body: impl FnOnce() + Send + 'static) {
    within(LONG, "the sleeper", || {
        runtime.run(body);
        drop(runtime);
    });
}

/// Threads are refused for good after `more` of them, before or while the loops begin.
#[test]
fn d7_a_sleeper_ticks_beside_hogs_while_threads_are_refused() {
    let _turn = beside();
    for more in ["1", "4", "8"] {
        let name = "refused::d7_a_sleeper_ticks_beside_hogs_while_threads_are_refused";
        let output = child_of(name, more, |more| {
            let runtime = runtime(1);
            fail_thread_after(more.parse().unwrap());
            within_a_child(runtime, || {
                let hogs = Hogs::new(HOGS);
                // On the way to the limit, and there.
                assert_ticks(2);
                assert_ticks(5);
                assert_eq!(debug::metrics().rescues, 0);
                hogs.end();
            });
        });
        output.succeeded();
    }
}

/// The refusals end: loops that had no thread begin.
#[test]
fn mg_threads_are_made_again_when_refusals_end() {
    let _turn = beside();
    let name = "refused::mg_threads_are_made_again_when_refusals_end";
    let output = child(name, || {
        let runtime = runtime(1);
        fail_thread_after(6);
        within_a_child(runtime, || {
            let hogs = Hogs::new(HOGS);
            ticks(Duration::from_millis(1500));
            let (begun, threads) = (hogs.begun(), debug::metrics().threads);
            assert!(begun < HOGS, "threads were not refused");
            fail_thread_after(-1);
            let began = Instant::now();
            while debug::metrics().threads <= threads {
                thread::sleep(Duration::from_millis(5));
                assert!(began.elapsed() < Duration::from_secs(30), "no new thread");
            }
            while hogs.begun() < HOGS {
                thread::sleep(Duration::from_millis(5));
                assert!(
                    began.elapsed() < Duration::from_secs(60),
                    "{}",
                    hogs.begun()
                );
            }
            hogs.end();
        });
    });
    output.succeeded();
    assert!(
        output.stderr.matches("refuses another thread").count() <= 1,
        "{output:#?}"
    );
}

/// A goroutine that leaves by itself at the end of each slice waits behind the loops, not for ever.
#[test]
fn l2_one_that_uses_up_its_slices_goes_on_beside_hogs_while_threads_are_refused() {
    let _turn = beside();
    let name =
        "refused::l2_one_that_uses_up_its_slices_goes_on_beside_hogs_while_threads_are_refused";
    let output = child(name, || {
        let runtime = runtime(1);
        fail_thread_after(4);
        within_a_child(runtime, || {
            // It makes calls all the time, so it is asked and never signalled: it has no thread of
            // its own.
            let (polite, stop) = (
                Arc::new(AtomicU64::new(0)),
                Arc::new(AtomicBool::new(false)),
            );
            let (counts, stops) = (Arc::clone(&polite), Arc::clone(&stop));
            let worker = thread::spawn(move || {
                while !stops.load(Relaxed) {
                    spin(100);
                    gosched::testing::enter_and_leave();
                    counts.fetch_add(1, Relaxed);
                }
            });
            thread::sleep(Duration::from_millis(20));
            let hogs = Hogs::new(HOGS);
            ticks(Duration::from_secs(1));
            for _ in 0..3 {
                let (before, began) = (polite.load(Relaxed), Instant::now());
                while polite.load(Relaxed) == before {
                    thread::sleep(Duration::from_millis(5));
                    assert!(began.elapsed() < Duration::from_secs(30), "it starves");
                }
            }
            stop.store(true, SeqCst);
            worker.join().unwrap();
            hogs.end();
        });
    });
    output.succeeded();
}
