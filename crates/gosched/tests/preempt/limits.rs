//! Threads are not without end: at `max_threads` hogs that have one take turns, the others wait, and all come to an end.

use super::*;

/// The words by which the runtime says that it is at its limit.
const SAYS: &str = "threads hold goroutines that never wait";

/// Looks at the runtime every few milliseconds while `body` runs: the most threads it had.
fn most_threads(runtime: &Runtime, body: impl FnOnce()) -> usize {
    let (over, handle) = (Arc::new(AtomicBool::new(false)), runtime.handle());
    let is_over = Arc::clone(&over);
    let watcher = std::thread::spawn(move || {
        let mut most = 0;
        while !is_over.load(SeqCst) {
            most = most.max(handle.metrics().unwrap().threads);
            std::thread::sleep(Duration::from_millis(5));
        }
        most
    });
    body();
    over.store(true, SeqCst);
    watcher.join().unwrap()
}

/// Rounds of `spin` in a millisecond.
fn rounds_per_ms() -> u64 {
    let best = (0..20).map(|_| {
        let began = Instant::now();
        spin(1_000_000);
        began.elapsed()
    });
    let best = best.min().unwrap().as_nanos().max(1);
    (1_000_000u128 * 1_000_000 / best) as u64
}

#[test]
fn d7_hogs_beyond_the_thread_limit_all_end() {
    let _turn = beside();
    let output = child("limits::d7_hogs_beyond_the_thread_limit_all_end", || {
        let piece = rounds_per_ms() * 12;
        let ended = Arc::new(AtomicUsize::new(0));
        let runtime = Runtime::builder().procs(2).max_threads(64).build().unwrap();
        let most = most_threads(&runtime, || {
            within(LONG, "the hogs", || {
                checked(&runtime, || {
                    let hog = |_| {
                        let ended = Arc::clone(&ended);
                        thread::spawn(move || {
                            spin(piece);
                            ended.fetch_add(1, SeqCst);
                        })
                    };
                    let hogs: Vec<_> = (0..500).map(hog).collect();
                    hogs.into_iter().for_each(|h| h.join().unwrap());
                });
            });
        });
        assert_eq!(ended.load(SeqCst), 500);
        assert!(most <= 64, "{most} threads");
        let metrics = runtime.metrics();
        assert!(
            most > 16 && metrics.parked > 20,
            "not near the limit: {metrics:?}"
        );
    });
    output.succeeded();
    assert!(output.stderr.matches(SAYS).count() <= 1, "{output:#?}");
}

/// Hogs that never end use up all threads that they may have. Whoever had begun goes on: the ticker, and each of the hogs that have
/// a thread.
#[test]
fn d7_a_ticker_goes_on_among_endless_hogs_at_the_thread_limit() {
    let _turn = beside();
    let output = child(
        "limits::d7_a_ticker_goes_on_among_endless_hogs_at_the_thread_limit",
        || {
            let runtime = Runtime::builder().procs(2).max_threads(16).build().unwrap();
            let most = most_threads(&runtime, || {
                within(LONG, "the ticker", || runtime.run(endless))
            });
            assert!(most <= 16, "{most} threads");
            let metrics = runtime.metrics();
            assert_eq!(
                (metrics.rescues, metrics.parked_threads),
                (0, 0),
                "{metrics:?}"
            );
        },
    );
    output.succeeded();
    assert!(output.stderr.matches(SAYS).count() <= 1, "{output:#?}");
}

fn endless() {
    let hogs = Hogs::new(40);
    let ticks = |time| {
        let (until, mut ticks) = (Instant::now() + time, 0);
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
            ticks += 1;
        }
        ticks
    };
    assert!(
        ticks(Duration::from_secs(1)) >= 2,
        "on the way to the limit"
    );
    let before = hogs.done();
    let ticks = ticks(Duration::from_secs(2));
    assert!(ticks >= 3, "{ticks} ticks at the limit");
    // On a busy machine a round of all of them may take its time.
    let (patience, mut after, mut stuck) = (Instant::now() + Duration::from_secs(20), vec![], 1);
    while stuck > 0 && Instant::now() < patience {
        after = hogs.done();
        let stands = before.iter().zip(&after).filter(|(b, a)| **b > 0 && a == b);
        stuck = stands.count();
        thread::sleep(Duration::from_millis(1));
    }
    let begun = hogs.begun();
    assert!(begun >= 4, "{begun} have begun: {after:?}");
    assert_eq!(stuck, 0, "of those that had begun: {before:?} {after:?}");
    hogs.end();
}
