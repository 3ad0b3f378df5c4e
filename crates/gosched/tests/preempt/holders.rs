//! A mix of goroutines that are preempted while they hold what others want: locks of std, of libc,
//! of the loader, of the allocator, and borrows of thread-locals.
//!
//! Sleepers wake up all the time, so computing goroutines are preempted after half a millisecond.
//! Each kind of holder counts what it has done. At the end every kind must have made progress and
//! every goroutine must have ended.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use gosched::{Runtime, debug, thread};

use crate::common::{self, Rng, within};
use crate::spin::spin;

/// A long hold in the middle of something: some hundred microseconds.
const HOLD: u64 = 300_000;

/// What a kind of holder does in one round.
type Round = fn(&Shared, &mut Rng);

const KINDS: [(&str, Round); 11] = [
    ("mutex", mutex),
    ("rwlock", rwlock),
    ("malloc", malloc),
    ("stdout", stdout),
    ("stderr", stderr),
    ("thread-local", thread_local),
    ("backtrace", backtrace),
    ("loader", loader),
    ("panic", panic),
    ("threads", threads),
    ("environment", environment),
];

/// What they fight for.
#[derive(Default)]
struct Shared {
    list: Mutex<Vec<u64>>,
    map: RwLock<HashMap<u64, String>>,
}

fn mutex(shared: &Shared, rng: &mut Rng) {
    let mut list = shared.list.lock().unwrap();
    let value = rng.next();
    list.push(value);
    let len = list.len();
    spin(rng.below(HOLD));
    assert_eq!((list.len(), list.last()), (len, Some(&value)));
    if len > 1000 {
        *list = Vec::new();
    }
}

fn rwlock(shared: &Shared, rng: &mut Rng) {
    if rng.one_in(3) {
        let mut map = shared.map.write().unwrap();
        spin(rng.below(HOLD));
        let key = rng.below(200);
        map.insert(key, key.to_string());
    } else {
        let map = shared.map.read().unwrap();
        spin(rng.below(HOLD / 4));
        assert!(
            map.iter()
                .take(10)
                .all(|(key, text)| key.to_string() == *text)
        );
    }
}

/// Blocks of all sizes, some of them from the system, each full of one byte.
fn malloc(_: &Shared, rng: &mut Rng) {
    let mut blocks: Vec<(u8, Vec<u8>)> = Vec::new();
    for _ in 0..300 {
        let size = match rng.below(40) {
            0 => 200_000,
            1..=5 => 5000,
            _ => 1 + rng.below(600) as usize,
        };
        let byte = rng.next() as u8;
        blocks.push((byte, vec![byte; size]));
        if blocks.len() > 40 {
            let (byte, block) = blocks.swap_remove(rng.below(40) as usize);
            assert!(block.iter().step_by(97).all(|b| *b == byte));
        }
    }
}

/// Holds the lock of stdout over a line in two parts.
fn stdout(_: &Shared, rng: &mut Rng) {
    let mut out = std::io::stdout().lock();
    write!(out, "<one line ").unwrap();
    spin(rng.below(HOLD));
    writeln!(out, "of {}>", rng.below(100)).unwrap();
    drop(out);
    spin(HOLD);
}

fn stderr(_: &Shared, rng: &mut Rng) {
    let mut err = std::io::stderr().lock();
    write!(err, "<one line ").unwrap();
    spin(rng.below(HOLD));
    writeln!(err, "of {}>", rng.below(100)).unwrap();
    drop(err);
    eprintln!("<one line>");
    spin(HOLD);
}

/// A borrow is the goroutine's own: no other goroutine sees it.
fn thread_local(_: &Shared, rng: &mut Rng) {
    thread_local! {
        static OWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }
    OWN.with(|own| {
        let mut own = own.try_borrow_mut().expect("somebody else's borrow");
        let value = rng.next();
        own.push(value);
        spin(rng.below(HOLD));
        assert_eq!(own.last(), Some(&value));
        if own.len() > 100 {
            own.clear();
        }
    });
}

/// Walks the stack under std's own lock, and through the loader's lists.
fn backtrace(_: &Shared, rng: &mut Rng) {
    let trace = std::backtrace::Backtrace::force_capture();
    if rng.one_in(200) {
        assert!(!trace.to_string().is_empty());
    }
}

/// Holds the loader's lock while it spins.
fn loader(_: &Shared, rng: &mut Rng) {
    extern "C" fn each(_: *mut libc::dl_phdr_info, _: usize, data: *mut libc::c_void) -> i32 {
        // SAFETY: `data` is the caller's number.
        spin(unsafe { *data.cast::<u64>() });
        0
    }
    let mut rounds = rng.below(HOLD / 4);
    // SAFETY: the callback only reads the number that it is given.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut rounds).cast()) };
}

/// Unwinds through a destructor that takes its time.
fn panic(shared: &Shared, rng: &mut Rng) {
    struct Slow(u64);
    impl Drop for Slow {
        fn drop(&mut self) {
            spin(self.0);
            assert!(std::thread::panicking());
        }
    }
    let rounds = rng.below(HOLD);
    let caught = std::panic::catch_unwind(|| {
        let _slow = Slow(rounds);
        std::panic::panic_any(common::Planned);
    });
    assert!(caught.is_err_and(|payload| payload.is::<common::Planned>()));
    assert!(!std::thread::panicking());
    mutex(shared, rng);
}

/// Threads come and go: libc's own lists of stacks and thread-locals.
fn threads(_: &Shared, rng: &mut Rng) {
    let rounds = rng.below(HOLD / 4);
    let made = std::thread::spawn(move || {
        spin(rounds);
        vec![1u8; 1000].len()
    });
    assert_eq!(made.join().unwrap(), 1000);
}

/// std's lock around the environment, libc's around the time zone.
fn environment(_: &Shared, rng: &mut Rng) {
    assert!(std::env::vars_os().count() > 0);
    let now = rng.below(1 << 31) as libc::time_t;
    // SAFETY: plain memory, filled by the call.
    let time = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::localtime_r(&now, &mut time);
        time
    };
    assert!((0..12).contains(&time.tm_mon));
}

/// Runs the mix on a runtime of its own. In a child process whose stdout and stderr are read.
pub fn mix(time: Duration, each: usize) {
    common::quiet_planned_panics();
    let runtime = Runtime::builder().procs(2).build().unwrap();
    within(Duration::from_secs(110), "the mix", || {
        runtime.run(|| run_mix(time, each));
    });
    let metrics = runtime.metrics();
    assert_eq!(metrics.rescues, 0, "WK: a wake-up was lost");
    assert!(
        metrics.threads_held_by_preempted + metrics.claimed > 10,
        "hardly anybody was taken by surprise: {metrics:?}"
    );
}

fn run_mix(time: Duration, each: usize) {
    let (stop, shared) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Shared::default()),
    );
    let sleepers: Vec<_> = (0..3).map(|_| thread::spawn(sleeper(&stop))).collect();
    let mut counts = Vec::new();
    let mut handles = Vec::new();
    for (seed, (name, round)) in KINDS.into_iter().enumerate() {
        let count = Arc::new(AtomicU64::new(0));
        counts.push((name, Arc::clone(&count)));
        for turn in 0..each {
            let (stop, shared, count) =
                (Arc::clone(&stop), Arc::clone(&shared), Arc::clone(&count));
            handles.push(thread::spawn(move || {
                let mut rng = Rng::new((seed * each + turn) as u64);
                while !stop.load(Relaxed) {
                    round(&shared, &mut rng);
                    count.fetch_add(1, Relaxed);
                }
            }));
        }
    }
    // Those that wait for the loader or the allocator may wait long on a busy machine, but not for
    // ever.
    let until = Instant::now() + time;
    let at_last = until + Duration::from_secs(60);
    let mut rng = Rng::new(0);
    let stuck = || {
        let behind = counts.iter().filter(|(_, count)| count.load(SeqCst) == 0);
        behind.map(|(name, _)| *name).collect::<Vec<_>>()
    };
    while Instant::now() < until || !stuck().is_empty() && Instant::now() < at_last {
        thread::sleep(Duration::from_millis(20));
        if rng.one_in(20) {
            debug::check().unwrap(); // stops the world
        }
    }
    for (name, count) in &counts {
        println!("{name}: {} rounds", count.load(SeqCst));
    }
    assert_eq!(stuck(), Vec::<&str>::new(), "did nothing");
    stop.store(true, SeqCst);
    handles.into_iter().for_each(|h| h.join().unwrap());
    let ticks: u64 = sleepers.into_iter().map(|h| h.join().unwrap()).sum();
    assert!(ticks >= 3, "{ticks} ticks");
    debug::check().unwrap();
}

/// Wakes up all the time, so that another goroutine is preempted.
fn sleeper(stop: &Arc<AtomicBool>) -> impl FnOnce() -> u64 + Send + 'static {
    let stop = Arc::clone(stop);
    move || {
        let mut ticks = 0;
        while !stop.load(SeqCst) {
            thread::sleep(Duration::from_micros(300));
            ticks += 1;
        }
        ticks
    }
}

/// How a child that runs the mix is started: with malloc's only arena, with disorder.
pub fn set(command: &mut std::process::Command, one_arena: bool, chaos: Option<u64>) {
    if one_arena {
        command.env("MALLOC_ARENA_MAX", "1");
    }
    if let Some(seed) = chaos {
        command.env("GOSCHED_DEBUG", format!("chaos={seed}"));
    }
}
