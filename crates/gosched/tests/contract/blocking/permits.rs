//! At most GOMAXPROCS goroutines run user code at any instant (U3), counted from inside that code.
//!
//! Without preemption a counter is enough: it goes up before a stretch of code and down after it.
//! With preemption it is not, because a preempted goroutine is inside the stretch and does not run.
//! There each goroutine records the time again and again, as fast as it can. While its entries
//! follow each other closely, it has been running. Two such *stretches* that overlap in time ran at
//! the same time.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};

use gosched::blocking;

use super::*;

// By counting.

/// How many goroutines are inside, how many may be, and how often there were more.
#[derive(Default)]
struct Inside {
    count: AtomicUsize,
    most: AtomicUsize,
    allowed: AtomicUsize,
    excess: AtomicUsize,
}

impl Inside {
    /// A stretch of user code that makes no calls.
    fn section(&self, time: Duration) {
        let count = self.count.fetch_add(1, SeqCst) + 1;
        // GOMAXPROCS does not go down while a goroutine is here: the world would have to stop for
        // it.
        if count > self.allowed.load(SeqCst) {
            self.excess.fetch_add(1, SeqCst);
        }
        self.most.fetch_max(count, SeqCst);
        compute(time);
        self.count.fetch_sub(1, SeqCst);
    }

    /// GOMAXPROCS, and how many may be inside: the greater number while it changes.
    fn resize(&self, n: usize) {
        self.allowed.fetch_max(n, SeqCst);
        gosched::gomaxprocs(n);
        self.allowed.store(n, SeqCst);
    }
}

/// Calls of both kinds, yields, waits and changes of GOMAXPROCS, without preemption. A goroutine
/// that has made an unmarked call enters the runtime before it is counted.
#[test]
fn u3_no_more_than_gomaxprocs_run_when_nobody_is_interrupted() {
    let runtime = Runtime::builder().procs(2).preemption(false).build();
    let runtime = runtime.unwrap();
    let (inside, is_over) = (Inside::default(), AtomicBool::new(false));
    inside.allowed.store(2, SeqCst);
    let us = Duration::from_micros;
    let steps: [&(dyn Fn(u64) + Sync); 6] = [
        &|at| blocking(|| std::thread::sleep(us(at % 7 * 40))),
        &|_| blocking(gosched::yield_now),
        &|_| gosched::yield_now(),
        &|at| thread::sleep(us(at % 5 * 50)),
        &|at| {
            std::thread::sleep(us(at % 3 * 1000));
            gosched::yield_now();
        },
        &|_| thread::spawn(|| ()).join().unwrap(),
    ];
    crate::common::within(LONG, "the mix", || {
        runtime.run(|| {
            thread::scope(|s| {
                for (who, step) in steps.iter().cycle().take(18).enumerate() {
                    let (inside, is_over) = (&inside, &is_over);
                    s.spawn(move || {
                        for at in who as u64.. {
                            if is_over.load(SeqCst) {
                                break;
                            }
                            step(at);
                            inside.section(us(at % 4 * 20));
                        }
                    });
                }
                let began = Instant::now();
                for round in 0..400 {
                    inside.resize(1 + round % 4);
                    thread::sleep(us(2000));
                    if round >= 20 && began.elapsed() > ms(1500) {
                        break;
                    }
                }
                is_over.store(true, SeqCst);
            });
        });
    });
    assert_eq!(inside.excess.load(SeqCst), 0, "U3");
    // The measure works: with more Ps there were more inside.
    assert!(inside.most.load(SeqCst) >= 2);
    assert_eq!(runtime.metrics().rescues, 0);
}

// By the clock.

/// Entries further apart than this belong to two stretches: no goroutine leaves a thread and
/// returns in less.
const GAP_NS: u64 = 3_000;
/// Less than this is no overlap.
const SURE_NS: u64 = 1_000;

const NORMAL: u8 = 0;
/// Back from an unmarked call, and not yet in the runtime.
const STRAY: u8 = 1;

/// One goroutine's book: since when it has been running, and its last entry.
#[derive(Default)]
#[repr(align(128))]
struct Book {
    start_ns: AtomicU64,
    last_ns: AtomicU64,
    kind: AtomicU8,
}

/// All of them.
struct Books {
    epoch: Instant,
    books: [Book; 8],
    /// Since when there has been one P; `u64::MAX`: there are more.
    single_since_ns: AtomicU64,
    is_over: AtomicBool,
    /// Overlaps while there was one P, those with a stray left out.
    excess: AtomicUsize,
    /// Overlaps while there were more.
    pairs: AtomicUsize,
}

impl Books {
    fn new() -> Books {
        Books {
            epoch: Instant::now(),
            books: Default::default(),
            single_since_ns: AtomicU64::new(u64::MAX),
            is_over: AtomicBool::new(false),
            excess: AtomicUsize::new(0),
            pairs: AtomicUsize::new(0),
        }
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn is_over(&self) -> bool {
        self.is_over.load(SeqCst)
    }

    /// Runs for a while and keeps book `me`, looking at the others' once in a while. Begins when
    /// the caller has just begun to run: after every call of whatever kind. Makes no call itself.
    fn keep(&self, me: usize, kind: u8, time: Duration) {
        let book = &self.books[me];
        let begun = self.now_ns();
        let (mut start, mut last) = (begun, begun);
        // The start is stored first: a reader that loads the last entry and then the start never
        // sees a stretch that did not exist.
        book.start_ns.store(start, SeqCst);
        book.kind.store(kind, SeqCst);
        book.last_ns.store(last, SeqCst);
        let end = begun + time.as_nanos() as u64;
        let mut turn = 0u32;
        while last < end && !self.is_over() {
            let now = self.now_ns();
            if now - last > GAP_NS {
                start = now;
                book.start_ns.store(now, SeqCst);
            }
            book.last_ns.store(now, SeqCst);
            last = now;
            turn += 1;
            if turn.is_multiple_of(8) {
                self.compare(me, kind, start, last);
            }
        }
    }

    /// Looks whether others have been running during our stretch.
    fn compare(&self, me: usize, kind: u8, start: u64, last: u64) {
        let single_since = self.single_since_ns.load(SeqCst);
        for (_, other) in self.books.iter().enumerate().filter(|(at, _)| *at != me) {
            let other_last = other.last_ns.load(SeqCst);
            let other_kind = other.kind.load(SeqCst);
            let other_start = other.start_ns.load(SeqCst);
            if self.single_since_ns.load(SeqCst) != single_since {
                return;
            }
            let is_single = single_since != u64::MAX;
            let since = if is_single { single_since } else { 0 };
            let from = start.max(other_start).max(since);
            if last.min(other_last).saturating_sub(from) < SURE_NS {
                continue;
            }
            match (is_single, kind.max(other_kind)) {
                (false, _) => self.pairs.fetch_add(1, SeqCst),
                (true, STRAY) => continue,
                (true, _) => self.excess.fetch_add(1, SeqCst),
            };
        }
    }

    fn resize(&self, n: usize) {
        self.single_since_ns.store(u64::MAX, SeqCst);
        gosched::gomaxprocs(n);
        if n == 1 {
            self.single_since_ns.store(self.now_ns(), SeqCst);
        }
    }
}

/// A mix of goroutines that never call and some that make calls, while GOMAXPROCS goes up and down.
/// Also returns how often sysmon found a goroutine that computed without a P.
fn overlaps(has_unmarked: bool) -> (Books, u64) {
    let books = Books::new();
    let us = Duration::from_micros;
    let overshoots = run(1, "the mix", || {
        let books = &books;
        thread::scope(|s| {
            for me in 0..2 {
                s.spawn(move || books.keep(me, NORMAL, LONG));
            }
            for me in 2..5 {
                s.spawn(move || {
                    while !books.is_over() {
                        blocking(|| std::thread::sleep(us(200 * me as u64)));
                        books.keep(me, NORMAL, us(300));
                        gosched::yield_now();
                        books.keep(me, NORMAL, us(300));
                        thread::sleep(us(100));
                        books.keep(me, NORMAL, us(100));
                    }
                });
            }
            for me in 5..8 {
                if !has_unmarked {
                    break;
                }
                s.spawn(move || {
                    while !books.is_over() {
                        std::thread::sleep(us(1000 * me as u64));
                        books.keep(me, STRAY, us(1500));
                        gosched::yield_now();
                        books.keep(me, NORMAL, us(300));
                    }
                });
            }
            for round in 0..30 {
                books.resize(if round % 4 == 3 { 2 } else { 1 });
                thread::sleep(ms(60));
            }
            books.resize(2);
            let began = Instant::now();
            while books.pairs.load(SeqCst) == 0 && began.elapsed() < LONG / 3 {
                thread::sleep(ms(10));
            }
            books.is_over.store(true, SeqCst);
        });
        gosched::debug::metrics().overshoots
    });
    if std::thread::available_parallelism().is_ok_and(|cpus| cpus.get() > 1) {
        let pairs = books.pairs.load(SeqCst);
        assert!(
            pairs > 0,
            "the measure works: with two Ps two are seen to run"
        );
    }
    (books, overshoots)
}

#[test]
fn u3_no_more_than_gomaxprocs_run_among_marked_calls_and_hogs() {
    let (books, _) = overlaps(false);
    assert_eq!(books.excess.load(SeqCst), 0, "U3");
}

/// A goroutine that returns from an unmarked call may run beside the others for a moment. No other
/// goroutine may.
#[test]
fn u3_only_unmarked_calls_overshoot() {
    let (books, overshoots) = overlaps(true);
    assert_eq!(books.excess.load(SeqCst), 0, "U3");
    assert!(overshoots > 0, "U3: and that is counted");
}

/// A goroutine that returns without a P computes for at most one or two ticks of the kernel, also
/// while a P is idle.
#[test]
fn u3_who_comes_back_is_soon_noticed() {
    let runtime = Runtime::builder().procs(1).build().unwrap();
    // How long they computed without a P, on the average of one round.
    let round = |_| {
        let before = runtime.metrics();
        runtime.run(|| {
            let sleeper = |_| {
                thread::spawn(|| {
                    std::thread::sleep(Duration::from_millis(60));
                    let until = Instant::now() + Duration::from_millis(60);
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                })
            };
            let sleepers: Vec<_> = (0..3).map(sleeper).collect();
            sleepers.into_iter().for_each(|s| s.join().unwrap());
        });
        let after = runtime.metrics();
        let ns = after.overshoot_ns - before.overshoot_ns;
        ns.checked_div(after.overshoots - before.overshoots)
    };
    let mut means: Vec<_> = (0..8).filter_map(round).collect();
    println!("overshoots of {means:?} ns");
    means.sort_unstable();
    // A loose bound: ticks are up to 10 ms apart, and may miss a thread that shares its CPU. A CPU
    // that is away for a second is away in one round or two.
    let middle = means.get(means.len() / 2);
    let middle = middle.expect("somebody computed without a P");
    assert!(*middle < 25_000_000, "{means:?} ns");
}
