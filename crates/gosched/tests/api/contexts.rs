//! Contexts: which ones end when, which waiters wake up, and that no memory is left behind.

use std::error::Error;
use std::fmt::Debug;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::{
    HOUR, LONG, Rng, allocated_bytes, allocations, child, child_of, thread_count, thread_cpu_time,
    within,
};
use gosched::chan::{self, TryRecvError};
use gosched::context::Context;
use gosched::context::ContextError::{self, Canceled, DeadlineExceeded};
use gosched::{Runtime, thread};

fn root() -> Context {
    Context::background().with_cancel()
}

/// What both ways of looking say.
#[track_caller]
fn state(ctx: &Context) -> Option<ContextError> {
    let err = ctx.err();
    let expected = match err {
        Some(_) => TryRecvError::Disconnected,
        None => TryRecvError::Empty,
    };
    // A deadline may have passed in between.
    match ctx.done().try_recv() {
        found if found == Err(expected) => {}
        found => assert!(
            err.is_none() && found.is_err() && ctx.err().is_some(),
            "{err:?} and {found:?}"
        ),
    }
    err
}

// What ends what.

#[test]
fn the_end_passes_down_and_nowhere_else() {
    let above = root();
    let ctx = above.with_cancel();
    let beside = above.with_cancel();
    let below = [ctx.with_cancel(), ctx.with_timeout(HOUR)];
    let deeper = below[1].with_cancel();
    ctx.cancel();
    ctx.cancel();
    for ended in [&ctx, &below[0], &below[1], &deeper] {
        assert_eq!(state(ended), Some(Canceled));
    }
    for not in [&above, &beside, &Context::background()] {
        assert_eq!(state(not), None);
    }
    above.cancel();
    assert_eq!(state(&beside), Some(Canceled));
}

#[test]
fn handles_are_of_one_context() {
    let ctx = root();
    let clone = ctx.clone();
    assert!(ctx.done().same_channel(clone.done()));
    drop(ctx);
    let below = clone.with_cancel();
    clone.clone().cancel();
    assert_eq!([state(&clone), state(&below)], [Some(Canceled); 2]);
}

/// Handles between two contexts may be gone: the end passes through.
#[test]
fn the_end_passes_through_contexts_nobody_holds() {
    let above = root();
    let below = above
        .with_cancel()
        .with_timeout(HOUR)
        .with_cancel()
        .with_deadline(Instant::now() + HOUR);
    assert_eq!(state(&below), None);
    above.cancel();
    assert_eq!(state(&below), Some(Canceled));
}

#[test]
fn a_child_of_an_ended_context_has_ended() {
    let ctx = root();
    ctx.cancel();
    assert_eq!(state(&ctx.with_cancel()), Some(Canceled));
    assert_eq!(state(&ctx.with_timeout(HOUR)), Some(Canceled));
    assert_eq!(
        state(&ctx.with_timeout(Duration::ZERO)),
        Some(DeadlineExceeded)
    );
    let over = root().with_timeout(Duration::ZERO);
    assert_eq!(state(&over), Some(DeadlineExceeded));
    assert_eq!(state(&over.with_cancel()), Some(DeadlineExceeded));
    assert_eq!(
        state(&over.with_cancel().with_timeout(HOUR)),
        Some(DeadlineExceeded)
    );
    // Not seen by any caller yet.
    let over = root().with_timeout(Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(state(&over.with_cancel()), Some(DeadlineExceeded));
}

#[test]
fn the_background_never_ends() {
    static BACKGROUND: Context = Context::background();
    BACKGROUND.cancel();
    assert_eq!(state(&BACKGROUND), None);
    assert_eq!(BACKGROUND.deadline(), None);
    assert!(!BACKGROUND.done().close());
    let waited = BACKGROUND.done().recv_timeout(Duration::from_millis(5));
    assert_eq!(waited, Err(chan::RecvTimeoutError::Timeout));
}

// Deadlines.

#[test]
fn the_earliest_deadline_counts() {
    let now = Instant::now();
    let [soon, late] = [now + HOUR, now + 2 * HOUR];
    let ctx = root().with_deadline(soon);
    assert_eq!(ctx.deadline(), Some(soon));
    assert_eq!(ctx.with_deadline(late).deadline(), Some(soon));
    assert_eq!(ctx.with_cancel().deadline(), Some(soon));
    assert_eq!(ctx.with_timeout(Duration::MAX).deadline(), Some(soon));
    assert_eq!(
        root().with_deadline(late).with_deadline(soon).deadline(),
        Some(soon)
    );
    assert_eq!(root().deadline(), None);
    let ever = root().with_timeout(Duration::MAX);
    assert_eq!((ever.deadline(), state(&ever)), (None, None));
    let far = root().with_timeout(Duration::from_secs(u64::MAX / 4));
    assert_eq!(state(&far), None);
    far.cancel();
    assert_eq!(state(&far), Some(Canceled));
}

#[test]
fn a_deadline_is_never_early() {
    for ms in [0, 1, 3, 10, 30] {
        let start = Instant::now();
        let timeout = Duration::from_millis(ms);
        let ctx = root().with_timeout(timeout);
        let below = ctx.with_cancel();
        assert!(below.done().recv().is_err());
        assert!(start.elapsed() >= timeout);
        assert!(Instant::now() >= ctx.deadline().unwrap());
        assert_eq!([state(&ctx), state(&below)], [Some(DeadlineExceeded); 2]);
    }
}

#[test]
fn the_first_reason_stays() {
    let soon = Duration::from_millis(20);
    let cancelled = root().with_timeout(soon);
    let below = cancelled.with_cancel();
    cancelled.cancel();
    let (over, above) = (root().with_timeout(soon), root());
    let of_above = above.with_timeout(soon);
    std::thread::sleep(2 * soon);
    // No caller has looked before these come.
    over.cancel();
    above.cancel();
    for ctx in [&over, &of_above] {
        assert_eq!(state(ctx), Some(DeadlineExceeded));
    }
    // The first ones may have been late on a busy machine, but do not change.
    let first = [state(&cancelled), state(&below)];
    assert!(first.iter().all(Option::is_some));
    cancelled.cancel();
    assert_eq!([state(&cancelled), state(&below)], first);
    let cancelled = root().with_timeout(HOUR);
    cancelled.cancel();
    assert_eq!(
        state(&cancelled.with_timeout(HOUR)),
        Some(Canceled),
        "a deadline to come is no reason"
    );
}

// Waiting.

/// Goroutines of two runtimes and plain threads, in plain receives and in selects: one call wakes
/// them all.
#[test]
fn cancelling_wakes_everybody() {
    let runtimes = [(); 2].map(|()| Runtime::builder().procs(2).build().unwrap());
    let ctx = root();
    let waits = Arc::new(AtomicUsize::new(0));
    let wait = |number: usize| {
        let ctx = if number.is_multiple_of(2) {
            ctx.clone()
        } else {
            ctx.with_timeout(HOUR)
        };
        let waits = Arc::clone(&waits);
        move || {
            waits.fetch_add(1, SeqCst);
            let (_s, nothing) = chan::unbounded::<()>();
            match number % 3 {
                0 => assert!(ctx.done().recv().is_err()),
                1 => chan::select! {
                    recv(nothing) -> _ => panic!("nothing was sent"),
                    recv(ctx.done()) -> end => assert!(end.is_err()),
                },
                _ => assert_eq!(ctx.done().iter().count(), 0),
            }
            assert_eq!(ctx.err(), Some(Canceled));
        }
    };
    let threads: Vec<_> = (0..12).map(|n| std::thread::spawn(wait(n))).collect();
    let goroutines: Vec<_> = (0..300).map(|n| runtimes[n % 2].spawn(wait(n))).collect();
    within(LONG, "the waiters", || {
        while waits.load(SeqCst) < 312 {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(10));
        ctx.cancel();
        threads.into_iter().for_each(|t| t.join().unwrap());
        goroutines.into_iter().for_each(|g| g.join().unwrap());
    });
}

#[test]
fn a_deadline_wakes_everybody() {
    let runtime = Runtime::builder().procs(2).build().unwrap();
    let ctx = root().with_timeout(Duration::from_millis(50));
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let below = ctx.with_cancel();
            runtime.spawn(move || {
                let never = chan::never::<()>();
                chan::select! {
                    recv(never) -> _ => unreachable!(),
                    recv(below.done()) -> _ => below.err(),
                }
            })
        })
        .collect();
    within(LONG, "the waiters", || {
        for waiter in waiters {
            assert_eq!(waiter.join().unwrap(), Some(DeadlineExceeded));
        }
    });
}

#[test]
fn a_select_with_default_looks_only() {
    let ctx = root();
    let is_over = || {
        chan::select! {
            recv(ctx.done()) -> _ => true,
            default => false,
        }
    };
    assert!(!is_over());
    ctx.cancel();
    assert!(is_over());
}

/// Receivers look on; the end is the context's.
#[test]
fn receivers_cannot_end_it() {
    let ctx = root();
    assert!(!ctx.done().close());
    assert!(!ctx.done().clone().close());
    drop(ctx.done().clone());
    assert_eq!(state(&ctx), None);
    let clone = ctx.done().clone();
    ctx.cancel();
    assert_eq!(clone.try_recv(), Err(TryRecvError::Disconnected));
}

/// A clone of `done` does not keep the context, and never waits for what cannot come.
#[test]
fn done_ends_with_the_last_handle() {
    let ctx = root();
    let below = ctx.with_cancel();
    let [of_ctx, of_below] = [&ctx, &below].map(|ctx| ctx.done().clone());
    drop(ctx);
    assert_eq!(
        of_ctx.try_recv(),
        Err(TryRecvError::Empty),
        "its child holds it"
    );
    drop(below);
    assert!(of_ctx.recv().is_err());
    assert!(of_below.recv().is_err());
}

/// A caller that sees the end in one way sees it in the other way at once, too.
#[test]
fn err_and_done_agree() {
    let turns = 300;
    for turn in 0..turns {
        let above = root();
        let ctx = match turn % 2 {
            0 => above.with_cancel(),
            _ => above.with_timeout(Duration::from_micros(200)),
        };
        let start = Arc::new(Barrier::new(3));
        let watch = |by_err: bool| {
            let (ctx, start) = (ctx.clone(), Arc::clone(&start));
            std::thread::spawn(move || {
                start.wait();
                if by_err {
                    while ctx.err().is_none() {}
                    assert_eq!(ctx.done().try_recv(), Err(TryRecvError::Disconnected));
                } else {
                    while ctx.done().try_recv() != Err(TryRecvError::Disconnected) {}
                    assert!(ctx.err().is_some());
                }
                ctx.err()
            })
        };
        let watchers = [watch(true), watch(false)];
        start.wait();
        above.cancel();
        let [one, other] = watchers.map(|w| w.join().unwrap());
        assert_eq!(one, other);
        assert_eq!(state(&ctx), one);
    }
}

// Trees.

/// Random trees: every context has ended exactly if one from it to the root was cancelled.
#[test]
fn random_trees() {
    struct Entry {
        ctx: Option<Context>,
        parent: Option<usize>,
        has_ended: bool,
    }
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut tree = vec![Entry {
            ctx: Some(root()),
            parent: None,
            has_ended: false,
        }];
        for _ in 0..400 {
            let at = rng.below(tree.len() as u64) as usize;
            match (rng.below(10), &tree[at].ctx) {
                (0..7, Some(ctx)) => {
                    let ctx = match rng.below(3) {
                        0 => ctx.with_cancel(),
                        1 => ctx.with_timeout(HOUR),
                        _ => ctx.with_timeout(Duration::MAX),
                    };
                    let has_ended = tree[at].has_ended;
                    tree.push(Entry {
                        ctx: Some(ctx),
                        parent: Some(at),
                        has_ended,
                    });
                }
                (7, Some(ctx)) if at != 0 || rng.one_in(20) => {
                    ctx.cancel();
                    tree[at].has_ended = true;
                    for below in at + 1..tree.len() {
                        let above = tree[below].parent.is_some_and(|p| tree[p].has_ended);
                        tree[below].has_ended |= above;
                    }
                }
                (8..10, Some(_)) => tree[at].ctx = None,
                _ => {}
            }
            for entry in &tree {
                if let Some(ctx) = &entry.ctx {
                    assert_eq!(state(ctx).is_some(), entry.has_ended, "seed {seed}");
                }
            }
        }
    }
}

/// Runs `f` where recursion as deep as the trees of these tests would overflow the stack.
fn on_a_small_stack(f: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(64 * 1024);
    thread.spawn(f).unwrap().join().unwrap();
}

const MANY: usize = 100_000;

#[test]
fn a_chain_of_a_hundred_thousand() {
    for is_cancelled in [true, false] {
        on_a_small_stack(move || {
            let first = root();
            let mut last = first.clone();
            let mut some = Vec::new();
            for n in 0..MANY {
                last = last.with_cancel();
                if n % 1000 == 0 {
                    some.push(last.clone());
                }
            }
            if is_cancelled {
                first.cancel();
                assert!(some.iter().all(|ctx| ctx.err() == Some(Canceled)));
            }
            assert_eq!(last.err().is_some(), is_cancelled);
            let done = some[0].done().clone();
            drop((first, some));
            drop(last);
            assert!(done.recv().is_err());
        });
    }
}

#[test]
fn a_hundred_thousand_children() {
    on_a_small_stack(|| {
        let ctx = root();
        let children: Vec<_> = (0..MANY).map(|_| ctx.with_cancel()).collect();
        ctx.cancel();
        assert!(children.iter().all(|ctx| ctx.err() == Some(Canceled)));
    });
}

/// The cost of cancelling grows as the number of contexts: fifty times as many take about fifty
/// times as long. If the cost were quadratic, they would take 2,500 times as long.
#[test]
fn cancelling_is_linear() {
    let time = |children: usize, rounds: usize| {
        let once = || {
            let ctx = root();
            let all: Vec<_> = (0..children).map(|_| ctx.with_cancel()).collect();
            let start = thread_cpu_time();
            ctx.cancel();
            let took = thread_cpu_time() - start;
            drop(all);
            took
        };
        (0..rounds).map(|_| once()).min().unwrap()
    };
    let (few, mut many) = (time(1_000, 5), time(50_000, 2));
    for _ in 0..4 {
        if many < 400 * few {
            return;
        }
        many = many.min(time(50_000, 2)); // a machine may lose its CPU now and then
    }
    assert!(many < 400 * few, "{few:?} and {many:?}");
}

// What is left.

/// To the byte: contexts that were made and dropped, cancelled or not, of a parent that stays.
#[test]
fn nothing_is_left() {
    child("nothing_is_left", || {
        let above = root();
        let round = |count: usize| {
            for n in 0..count {
                let ctx = above.with_cancel();
                let timed = ctx.with_timeout(HOUR);
                let below = [ctx.with_cancel(), timed.with_cancel()];
                let done = timed.done().clone();
                match n % 4 {
                    0 => ctx.cancel(),
                    1 => below[0].cancel(),
                    2 => drop(ctx),
                    _ => {}
                }
                drop(below);
                drop(timed);
                assert!(done.recv().is_err());
            }
        };
        round(10);
        let before = allocated_bytes();
        round(MANY / 4); // four contexts each
        assert_eq!(allocated_bytes(), before);
        assert_eq!(state(&above), None);
        assert_eq!(thread_count(), 1);
    })
    .succeeded();
}

/// A context is its memory and nothing else: no thread, no goroutine, no timer; cancelling
/// allocates nothing.
#[test]
fn a_context_is_only_memory() {
    child("a_context_is_only_memory", || {
        let make = || {
            let ctx = root();
            let all: Vec<_> = (0..1000).map(|_| ctx.with_timeout(HOUR)).collect();
            (ctx, all)
        };
        let (ctx, all) = make();
        assert_eq!(thread_count(), 1);
        let (before, blocks) = (allocated_bytes(), allocations());
        ctx.cancel();
        assert_eq!((allocated_bytes(), allocations()), (before, blocks));
        assert!(all.iter().all(|ctx| ctx.err() == Some(Canceled)));
        Runtime::builder().procs(1).build().unwrap().run(|| {
            let _contexts = make();
            let metrics = gosched::debug::metrics();
            assert_eq!((metrics.timers, metrics.goroutines), (0, 1));
        });
    })
    .succeeded();
}

/// Threads and goroutines make, look at, cancel and drop contexts of the same few trees, all at
/// once.
#[test]
fn everybody_at_once() {
    let body = || {
        let runtime = Runtime::builder().procs(2).build().unwrap();
        let before = AtomicIsize::new(0);
        for round in 0..8 {
            let trees: Arc<Vec<_>> = Arc::new((0..3).map(|_| root()).collect());
            let ends = Arc::new(AtomicBool::new(false));
            let work = |seed: u64| {
                let (trees, ends) = (Arc::clone(&trees), Arc::clone(&ends));
                move || {
                    let mut rng = Rng::new(seed);
                    let mut held: Vec<Context> = Vec::new();
                    while !ends.load(SeqCst) {
                        let tree = &trees[rng.below(3) as usize];
                        match rng.below(8) {
                            0..3 => held.push(tree.with_cancel()),
                            3 if !held.is_empty() => {
                                let at = rng.below(held.len() as u64) as usize;
                                let below = held[at].with_timeout(HOUR);
                                held.push(below);
                            }
                            4 if !held.is_empty() => {
                                let at = rng.below(held.len() as u64) as usize;
                                held[at].cancel();
                                assert_eq!(held[at].err(), Some(Canceled));
                            }
                            _ if !held.is_empty() => {
                                let at = rng.below(held.len() as u64) as usize;
                                held.swap_remove(at);
                            }
                            _ => {}
                        }
                        if held.len() > 50 {
                            held.clear();
                        }
                    }
                    assert!(trees.iter().all(|tree| tree.err() == Some(Canceled)));
                    for ctx in held {
                        assert_eq!(ctx.err(), Some(Canceled));
                        assert!(ctx.done().recv().is_err());
                    }
                }
            };
            let threads: Vec<_> = (0..2).map(|n| std::thread::spawn(work(n))).collect();
            let goroutines: Vec<_> = (0..4).map(|n| runtime.spawn(work(n + 10))).collect();
            std::thread::sleep(Duration::from_millis(60));
            trees.iter().for_each(Context::cancel);
            ends.store(true, SeqCst);
            threads.into_iter().for_each(|t| t.join().unwrap());
            goroutines.into_iter().for_each(|g| g.join().unwrap());
            drop(trees);
            if round == 2 {
                before.store(allocated_bytes(), SeqCst);
            }
        }
        // Threads and goroutines have memory of their own, which comes and goes; contexts would be
        // far more.
        let left = allocated_bytes() - before.load(SeqCst);
        assert!(left < 100_000, "{left} bytes");
    };
    child("everybody_at_once", || within(LONG, "everybody", body)).succeeded();
}

// Deadlocks.

#[test]
fn u6_a_deadline_is_hope() {
    child("u6_a_deadline_is_hope", || {
        gosched::run(|| {
            let ctx = root().with_timeout(Duration::from_millis(1200));
            assert!(ctx.done().recv().is_err());
        });
    })
    .succeeded();
}

#[test]
fn u6_a_context_that_nobody_cancels_is_none() {
    for variant in [
        "the background",
        "with_cancel",
        "cancelled by somebody who waits",
    ] {
        let out = child_of(
            "u6_a_context_that_nobody_cancels_is_none",
            variant,
            |variant| {
                gosched::run(|| {
                    let ctx = match variant {
                        "the background" => Context::background(),
                        _ => root(),
                    };
                    if variant == "cancelled by somebody who waits" {
                        let [ctx, other] = [ctx.clone(), ctx.with_cancel()];
                        thread::spawn(move || {
                            let _ = other.done().recv();
                            ctx.cancel();
                        });
                    }
                    let _ = ctx.done().recv();
                });
            },
        );
        out.died_with(&["fatal error: all goroutines are asleep - deadlock!"]);
        out.says(&["chan receive"]);
    }
}

// What it is.

#[test]
fn traits_and_texts() {
    fn is_all<T: Send + Sync + Clone + Debug + UnwindSafe + RefUnwindSafe + 'static>(_: &T) {}
    let ctx = root();
    is_all(&ctx);
    is_all(&Canceled);
    assert_eq!(format!("{ctx:?}"), "Context { err: None, deadline: None }");
    ctx.cancel();
    assert_eq!(
        format!("{ctx:?}"),
        "Context { err: Some(Canceled), deadline: None }"
    );
    assert_eq!(
        format!("{:?}", Context::background()),
        "Context(background)"
    );
    let errors: [Box<dyn Error + Send + Sync>; 2] = [Canceled.into(), DeadlineExceeded.into()];
    assert_eq!(
        errors.map(|error| error.to_string()),
        ["context canceled", "context deadline exceeded"]
    );
}
