//! What shared thread-locals do to safe code that migrates, and own ones do not. Each case is one
//! body that runs as a swarm. Under own thread-locals it must be right. Under shared ones it must
//! go wrong, so the first result is not luck.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::hint::black_box;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rand::Rng;

use crate::common;
use crate::tools::{
    PROCS, Trip, is_hazard, is_hazard_of, own, plan_panic, swarm, tid, works_shared_too,
};
use gosched::thread;

thread_local! {
    static PLACE: Cell<usize> = const { Cell::new(0) };
    static COUNTED: Rc<Cell<usize>> = Rc::new(Cell::new(0));
    static LIST: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

#[inline(never)]
fn place_now() -> usize {
    PLACE.with(|place| ptr::from_ref(place).addr())
}

/// A compiler may compute the address of a thread-local once and use it again; safe code may hold a
/// reference to it.
fn address_kept(trip: &Trip<'_>) {
    // Called where the optimiser cannot know what it returns.
    let place_now = black_box(place_now as fn() -> usize);
    PLACE.with(|kept| {
        for turn in trip.turns() {
            let mark = trip.number << 32 | turn;
            kept.set(mark);
            trip.step();
            trip.expect(ptr::from_ref(kept).addr() == place_now());
            trip.expect(kept.get() == mark);
        }
    });
}

/// The same as a compiler sees it: two uses in one function, a switch between them.
fn value_kept(trip: &Trip<'_>) {
    for turn in trip.turns() {
        PLACE.set(turn);
        trip.step();
        PLACE.set(PLACE.get() + trip.number);
        trip.step();
        trip.expect(PLACE.get() == turn + trip.number);
    }
}

#[test]
fn an_address_kept_over_a_switch_stays_right() {
    swarm(address_kept);
    swarm(value_kept);
}

#[test]
fn shared_an_address_kept_over_a_switch_is_stale() {
    is_hazard(
        "table::shared_an_address_kept_over_a_switch_is_stale",
        address_kept,
    );
}

#[test]
fn shared_a_value_kept_over_a_switch_is_lost() {
    is_hazard(
        "table::shared_a_value_kept_over_a_switch_is_lost",
        value_kept,
    );
}

/// Its count is not atomic: one thread at a time may have clones.
fn rc_cloned(trip: &Trip<'_>) {
    let own = COUNTED.with(Rc::clone);
    let before = own.get();
    let mut turns = 0;
    for _ in trip.turns() {
        let other = COUNTED.with(Rc::clone);
        trip.expect(Rc::ptr_eq(&own, &other));
        trip.expect(Rc::strong_count(&other) == 3);
        other.set(other.get() + 1);
        trip.step();
        drop(other);
        trip.expect(Rc::strong_count(&own) == 2);
        turns += 1;
    }
    trip.expect(own.get() == before + turns);
}

#[test]
fn an_rc_from_a_thread_local_is_the_goroutines_alone() {
    swarm(rc_cloned);
}

#[test]
fn shared_an_rc_from_a_thread_local_is_everybodys() {
    is_hazard(
        "table::shared_an_rc_from_a_thread_local_is_everybodys",
        rc_cloned,
    );
}

/// rand's generator of the thread, which is an `Rc` of a state without locks. Used from two threads
/// at once it gives both the same numbers, or destroys itself.
fn rng_kept(trip: &Trip<'_>, seen: &Mutex<HashSet<u64>>) {
    let mut rng = rand::rng();
    for _ in trip.turns() {
        let mut numbers: [u64; 32] = rng.random();
        trip.step();
        numbers[..16].fill_with(|| rand::rng().random());
        let mut seen = seen.lock().unwrap();
        let is_new = numbers.iter().all(|number| seen.insert(*number));
        drop(seen);
        trip.expect(is_new);
    }
}

#[test]
fn rands_generator_is_the_goroutines_alone() {
    let seen = Mutex::default();
    swarm(|trip| rng_kept(trip, &seen));
}

#[test]
fn shared_rands_generator_is_used_by_two_threads_at_once() {
    let seen = Mutex::default();
    is_hazard(
        "table::shared_rands_generator_is_used_by_two_threads_at_once",
        |trip| {
            // What it does to itself may also be a panic.
            let used = catch_unwind(AssertUnwindSafe(|| rng_kept(trip, &seen)));
            trip.expect(used.is_ok());
        },
    );
}

fn borrow_held(trip: &Trip<'_>) {
    for turn in trip.turns() {
        LIST.with(|list| match list.try_borrow_mut() {
            Ok(mut list) => {
                list.clear();
                list.push(trip.number);
                trip.step();
                list.push(turn);
                trip.expect(*list == [trip.number, turn]);
            }
            Err(_) => trip.expect(false),
        });
    }
}

#[test]
fn a_borrow_held_over_a_yield_meets_no_other() {
    swarm(borrow_held);
}

#[test]
fn shared_a_borrow_held_over_a_yield_meets_others() {
    is_hazard(
        "table::shared_a_borrow_held_over_a_yield_meets_others",
        borrow_held,
    );
}

/// Leaves its thread, or tries to, while a panic unwinds.
struct Leaves<'a>(&'a Trip<'a>, fn(&Trip<'_>));

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.expect(std::thread::panicking());
        self.1(self.0);
        self.0.expect(std::thread::panicking());
    }
}

/// Every other goroutine panics and yields while it unwinds; the rest look whether they do.
fn yields_in_drop(trip: &Trip<'_>) {
    leaves_in_drop(trip, |trip| trip.step());
}

/// The same with a call that loses the P, behind which others have it.
fn blocks_in_drop(trip: &Trip<'_>) {
    leaves_in_drop(trip, |_| {
        gosched::blocking(|| std::thread::sleep(Duration::from_millis(1)));
    });
}

fn leaves_in_drop(trip: &Trip<'_>, leave: fn(&Trip<'_>)) {
    for _ in trip.turns() {
        trip.expect(!std::thread::panicking());
        if trip.number.is_multiple_of(2) {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                let _leaves = Leaves(trip, leave);
                plan_panic();
            }));
            trip.expect(caught.is_err());
        } else {
            trip.step();
        }
        trip.expect(!std::thread::panicking());
    }
}

#[test]
fn panicking_is_right_after_a_yield_in_drop() {
    swarm(yields_in_drop);
}

/// The one case that the runtime handles under shared thread-locals too: a goroutine that unwinds
/// keeps its thread.
#[test]
fn shared_who_unwinds_keeps_the_thread() {
    works_shared_too("table::shared_who_unwinds_keeps_the_thread", yields_in_drop);
}

#[test]
fn shared_who_unwinds_in_a_call_keeps_the_thread() {
    works_shared_too(
        "table::shared_who_unwinds_in_a_call_keeps_the_thread",
        blocks_in_drop,
    );
}

fn id_kept(trip: &Trip<'_>, seen: &Mutex<HashSet<std::thread::ThreadId>>) {
    let id = std::thread::current().id();
    trip.expect(seen.lock().unwrap().insert(id));
    for _ in trip.turns() {
        trip.step();
        trip.expect(std::thread::current().id() == id);
    }
}

#[test]
fn stds_thread_ids_are_unique_and_stable() {
    let seen = Mutex::default();
    swarm(|trip| id_kept(trip, &seen));
    let seen: HashSet<_> = seen.into_inner().unwrap();
    assert_eq!(seen.len(), PROCS.len() * 64, "64 each time, all different");
}

#[test]
fn shared_stds_thread_ids_are_those_of_threads() {
    let seen = Mutex::default();
    is_hazard(
        "table::shared_stds_thread_ids_are_those_of_threads",
        |trip| id_kept(trip, &seen),
    );
}

/// stdout's lock belongs to the thread as std identifies it, and is reentrant for it.
fn stdout_locked(trip: &Trip<'_>, inside: &AtomicUsize) {
    for _ in trip.turns() {
        let out = std::io::stdout().lock();
        trip.expect(inside.swap(trip.number, SeqCst) == 0);
        trip.step();
        trip.expect(inside.swap(0, SeqCst) == trip.number);
        drop(out);
        trip.step();
    }
}

/// As many goroutines as Ps want the lock: each waiter blocks a P, and the last P is the holder's.
#[test]
fn stdouts_lock_over_a_switch_is_the_goroutines() {
    const NAME: &str = "table::stdouts_lock_over_a_switch_is_the_goroutines";
    for procs in PROCS {
        let output = common::child_of(NAME, &procs.to_string(), |procs| {
            let procs = procs.parse().unwrap();
            hold_stdout_and_move(procs);
        });
        output.succeeded();
        let lines: Vec<_> = output
            .stdout
            .lines()
            .filter(|line| line.contains(['<', '>']))
            .collect();
        assert!(lines.len() >= 500, "{} lines", lines.len());
        for line in lines {
            let words = line
                .strip_prefix('<')
                .and_then(|line| line.strip_suffix('>'));
            let words: Vec<_> = words.unwrap_or_default().split(' ').collect();
            let is_whole = words.len() == 4 && words[0] == words[3] && words[1] == words[2];
            assert!(is_whole, "a torn line: {line:?}");
        }
    }
}

/// Lines under the lock, each over two switches, until many of these were migrations.
fn hold_stdout_and_move(procs: usize) {
    let (moves, lines, printers) = (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicUsize::new(procs),
    );
    let step = || {
        let before = tid();
        thread::yield_now();
        moves.fetch_add(usize::from(tid() != before), SeqCst);
    };
    let print_lines = |number: usize| {
        while moves.load(SeqCst) < 50 || lines.load(SeqCst) < 500 {
            let line = lines.fetch_add(1, SeqCst);
            let mut out = std::io::stdout().lock();
            write!(out, "<{number} {line} ").unwrap();
            step();
            print!("{line} ");
            step();
            writeln!(out, "{number}>").unwrap();
            drop(out);
            thread::yield_now();
        }
        printers.fetch_sub(1, SeqCst);
    };
    // Keeps a P busy for a moment, so that others take what waits there. Rests, so that a P has
    // time to take the holder from one that is blocked.
    let burn = || {
        while printers.load(SeqCst) > 0 {
            for _ in 0..10 {
                let began = Instant::now();
                while began.elapsed() < Duration::from_micros(20) {}
                thread::yield_now();
            }
            thread::sleep(Duration::from_micros(200));
        }
    };
    own(procs).run(|| {
        thread::scope(|s| {
            (0..3).for_each(|_| drop(s.spawn(burn)));
            let print_lines = &print_lines;
            (0..procs).for_each(|number| drop(s.spawn(move || print_lines(number))));
        });
    });
}

#[test]
fn shared_stdouts_lock_over_a_switch_lets_others_in() {
    let inside = AtomicUsize::new(0);
    is_hazard_of(
        "table::shared_stdouts_lock_over_a_switch_lets_others_in",
        2,
        |trip| {
            stdout_locked(trip, &inside);
        },
    );
}
