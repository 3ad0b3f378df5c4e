//! A goroutine's `thread_local!`s move with it from thread to thread, as if it were a thread
//! itself.
//!
//! Each goroutine stores a number of its own in the same thread-local, and then yields repeatedly.
//! After each yield it checks the number. Now and then it records the thread that it runs on.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use gosched::{Runtime, thread};

use crate::machine;
use crate::stage::Stage;
use crate::text::{Ink, grouped, large, paint};

const PROCS: usize = 4;
const GOROUTINES: usize = 64;
/// How many of them are drawn.
const SHOWN: usize = 6;
const NOTES: usize = 40;
const SPAN: Duration = Duration::from_millis(1_500);
const SPAN_QUICK: Duration = Duration::from_millis(200);
/// Work between two yields, so that other goroutines run on other threads meanwhile.
const WORK: u32 = 2_000;

static DESTROYED: AtomicUsize = AtomicUsize::new(0);

/// Its destructor runs when its goroutine ends.
struct Mine(Cell<usize>);

impl Drop for Mine {
    fn drop(&mut self) {
        DESTROYED.fetch_add(1, Relaxed);
    }
}

thread_local! {
    static MINE: Mine = const { Mine(Cell::new(0)) };
}

/// What the goroutines record for the picture.
struct Shared {
    /// The ids of the threads that each goroutine ran on.
    paths: [[AtomicU64; NOTES]; GOROUTINES],
    looks: AtomicU64,
    wrong: AtomicU64,
}

pub(super) fn run(stage: &mut Stage) -> io::Result<()> {
    let span = stage.size(SPAN, SPAN_QUICK);
    let runtime = Runtime::builder().procs(PROCS).name("locals").build()?;
    if !runtime.metrics().own_thread_locals {
        return Err(io::Error::other(
            "this build shares thread-locals between goroutines",
        ));
    }
    let shared = Arc::new(Shared {
        paths: [const { [const { AtomicU64::new(0) }; NOTES] }; GOROUTINES],
        looks: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
    });
    let for_work = Arc::clone(&shared);
    let destroyed = DESTROYED.load(Relaxed);
    stage.watch(
        move || {
            let wander = |i| {
                let shared = Arc::clone(&for_work);
                thread::spawn(move || wander(i, &shared, span))
            };
            let ended = runtime.run(|| {
                let goroutines: Vec<_> = (0..GOROUTINES).map(wander).collect();
                goroutines
                    .into_iter()
                    .try_for_each(thread::JoinHandle::join)
            });
            ended.map_err(|_| io::Error::other("a goroutine panicked"))
        },
        || {
            let looks = large(shared.looks.load(Relaxed) as f64);
            format!("{}{looks} reads so far\n", picture(&shared))
        },
    )?;
    tell(stage, &shared, DESTROYED.load(Relaxed) - destroyed);
    Ok(())
}

/// One goroutine: it never names the thread it is on, and need not know it.
fn wander(i: usize, shared: &Shared, span: Duration) {
    let number = i + 1;
    MINE.with(|mine| mine.0.set(number));
    let start = Instant::now();
    let (mut looks, mut wrong, mut notes) = (0, 0, 0);
    while start.elapsed() < span {
        for _ in 0..WORK {
            std::hint::black_box(());
        }
        gosched::yield_now();
        looks += 1;
        wrong += u64::from(MINE.with(|mine| mine.0.get()) != number);
        if notes < NOTES && start.elapsed() >= span * notes as u32 / NOTES as u32 {
            shared.paths[i][notes].store(machine::thread(), Relaxed);
            notes += 1;
        }
        if looks % 64 == 0 {
            shared.looks.fetch_add(64, Relaxed);
        }
    }
    shared.looks.fetch_add(looks % 64, Relaxed);
    shared.wrong.fetch_add(wrong, Relaxed);
}

/// The recorded threads of one goroutine.
fn path(shared: &Shared, i: usize) -> Vec<u64> {
    let notes = shared.paths[i].iter().map(|thread| thread.load(Relaxed));
    notes.take_while(|thread| *thread != 0).collect()
}

/// All recorded threads, in a fixed order.
fn threads(shared: &Shared) -> Vec<u64> {
    let mut all: Vec<_> = (0..GOROUTINES).flat_map(|i| path(shared, i)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// A line for each of some goroutines, a letter for each thread.
fn picture(shared: &Shared) -> String {
    let threads = threads(shared);
    let letter = |thread: u64| {
        let n = threads.partition_point(|other| *other < thread);
        let letter = char::from(b'A' + (n % 26) as u8);
        paint(Ink::Nth(n), &letter.to_string())
    };
    let mut text = String::new();
    for i in 0..SHOWN {
        let path = path(shared, i);
        let blanks = " ".repeat(NOTES - path.len());
        let letters: String = path.into_iter().map(letter).collect();
        text += &format!("goroutine {} on thread │{letters}{blanks}│\n", i + 1);
    }
    text
}

fn tell(stage: &mut Stage, shared: &Shared, destroyed: usize) {
    let (looks, wrong) = (shared.looks.load(Relaxed), shared.wrong.load(Relaxed));
    let moves: usize = (0..GOROUTINES)
        .map(|i| {
            path(shared, i)
                .windows(2)
                .filter(|pair| pair[0] != pair[1])
                .count()
        })
        .sum();
    let threads = threads(shared).len();
    stage.say(&format!(
        "{}{GOROUTINES} goroutines on {threads} threads (A, B, ...) read the same thread_local!\n\
         {} times, each its own value, and found another's {} times.\n\
         Its destructor ran {destroyed} times, once for each goroutine.\n",
        picture(shared),
        paint(Ink::Strong, &large(looks as f64)),
        paint(Ink::Strong, &grouped(wrong)),
    ));
    stage.figure("goroutines", GOROUTINES as f64, "goroutines");
    stage.figure("threads", threads as f64, "threads");
    stage.figure("moves_seen", moves as f64, "times");
    stage.figure("looks", looks as f64, "times");
    stage.figure("wrong", wrong as f64, "times");
    stage.figure("destructors", destroyed as f64, "times");
    stage.check(wrong == 0, || {
        format!("{wrong} values belonged to another goroutine")
    });
    stage.check(destroyed == GOROUTINES, || {
        format!("{destroyed} of {GOROUTINES} destructors ran")
    });
    if moves == 0 {
        stage.note("no goroutine was seen to move this time, so there was little to keep.".into());
    }
}
