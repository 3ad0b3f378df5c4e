//! Threads are not without end: at `max_threads` hogs that have one take turns, the others wait,
//! and all come to an end.

use super::*;

/// The words by which the runtime says that it is at its limit.
const SAYS: &str = "goroutines that never wait hold as many threads as they may have";

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
            most > 16 && metrics.threads_held_by_preempted > 20,
            "not near the limit: {metrics:?}"
        );
    });
    output.succeeded();
    assert!(output.stderr.matches(SAYS).count() <= 1, "{output:#?}");
}

/// Hogs that never end use up all threads that they may have. Goroutines that had begun continue:
/// the ticker, and each hog that has a thread.
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
    // A machine may stand still for a second or two.
    let on_the_way = (0..10).any(|_| ticks(Duration::from_secs(1)) >= 2);
    assert!(on_the_way, "no ticks on the way to the limit");
    let before = hogs.done();
    let there = (0..10).any(|_| ticks(Duration::from_secs(2)) >= 3);
    assert!(there, "no ticks at the limit");
    // On a busy machine a round of all of them may take its time.
    let (patience, mut after, mut stuck) = (Instant::now() + Duration::from_secs(30), vec![], 1);
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

/// How long a yield takes at the limit, at best, with so many goroutines queued that have not
/// begun.
fn yield_at_limit(queued: usize) -> Duration {
    let runtime = Runtime::builder().procs(1).max_threads(8).build().unwrap();
    let best = within(LONG, "the yields", || {
        runtime.run(move || {
            let hogs = Hogs::new(20);
            let metrics = || debug::metrics();
            let began = Instant::now();
            while metrics().parked_threads < 2 || metrics().threads < 7 {
                thread::sleep(Duration::from_millis(5));
                assert!(
                    began.elapsed() < LONG,
                    "the limit is not reached: {}",
                    metrics()
                );
            }
            let crowd = (0..queued)
                .map(|_| thread::spawn(|| ()))
                .collect::<Vec<_>>();
            let some = |_| {
                let began = Instant::now();
                (0..20).for_each(|_| gosched::yield_now());
                began.elapsed() / 20
            };
            let best = (0..200).map(some).min().unwrap();
            assert!(
                metrics().parked_threads > 0 && hogs.begun() < 20,
                "{}",
                metrics()
            );
            hogs.end();
            crowd.into_iter().for_each(|one| one.join().unwrap());
            best
        })
    });
    drop(runtime);
    best
}

/// A goroutine that yields at the limit does not pay for those that wait to begin.
#[test]
fn d7_a_yield_at_the_limit_costs_the_same_whatever_is_queued() {
    let _turn = beside();
    let name = "limits::d7_a_yield_at_the_limit_costs_the_same_whatever_is_queued";
    let output = child(name, || {
        let (few, many) = (yield_at_limit(0), yield_at_limit(50_000));
        // A walk over them took 20,000 times as long. The rest is for caches, and for a busy
        // machine.
        assert!(
            many < 20 * few,
            "{many:?} with many queued, {few:?} with none"
        );
    });
    output.succeeded();
}
