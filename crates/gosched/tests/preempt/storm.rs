//! SIGURG from outside, ten thousand times a second, to the process and to any of its threads: it
//! costs time and changes nothing.

use super::*;

static STOP: AtomicBool = AtomicBool::new(false);
static SENT: AtomicU64 = AtomicU64::new(0);

fn pid() -> i32 {
    std::process::id() as i32
}

/// The threads of this process.
fn tids() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let tids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    tids.collect()
}

/// One signal every 100 µs: to the process, to a random thread, to a random thread with a value.
fn storm() {
    let mut rng = common::Rng::new(5);
    let mut known = tids();
    while !STOP.load(SeqCst) {
        if rng.one_in(100) {
            known = tids();
        }
        let tid = known[rng.below(known.len() as u64) as usize];
        // SAFETY: signals to this process, whose runtime has a handler for them.
        unsafe {
            match rng.below(3) {
                0 => libc::kill(pid(), libc::SIGURG),
                1 => libc::sigqueue(
                    pid(),
                    libc::SIGURG,
                    libc::sigval {
                        sival_ptr: std::ptr::null_mut(),
                    },
                ),
                // The thread may be gone by now.
                _ => libc::syscall(libc::SYS_tgkill, pid(), tid, libc::SIGURG) as i32,
            }
        };
        SENT.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The same rounds give the same sum, storm or not.
fn sum_of(seed: u64) -> f64 {
    let mut rng = common::Rng::new(seed);
    (0..200_000)
        .map(|_| 1.0 / (rng.below(1000) + 1) as f64)
        .sum()
}

fn compute(seed: u64) {
    let expected = sum_of(seed);
    while !STOP.load(SeqCst) {
        assert_eq!(sum_of(seed), expected);
    }
}

/// std does not notice either: a sleep is as long as it was to be, a pipe brings what was put in.
fn use_std(seed: u64) {
    use std::io::{Read, Write};
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    while !STOP.load(SeqCst) {
        let began = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(began.elapsed() >= Duration::from_millis(2));
        writer.write_all(&seed.to_ne_bytes()).unwrap();
        let mut back = [0; 8];
        reader.read_exact(&mut back).unwrap();
        assert_eq!(u64::from_ne_bytes(back), seed);
    }
}

fn allocate(seed: u64) {
    let mut rng = common::Rng::new(seed);
    let mut kept: Vec<String> = Vec::new();
    while !STOP.load(SeqCst) {
        kept.push(rng.next().to_string());
        if kept.len() > 500 {
            assert!(kept.drain(..).all(|text| text.parse::<u64>().is_ok()));
        }
    }
}

/// Goroutines that come, wait, wake each other and go.
fn churn(_: u64) {
    while !STOP.load(SeqCst) {
        let handles = [(); 8].map(|()| {
            thread::spawn(|| {
                gosched::yield_now();
                thread::park_timeout(Duration::from_micros(200));
                7
            })
        });
        let sum: i32 = handles.map(|handle| handle.join().unwrap()).iter().sum();
        assert_eq!(sum, 56);
    }
}

fn all_at_once() {
    let kinds: [fn(u64); 4] = [compute, use_std, allocate, churn];
    let hogs = Hogs::new(4);
    let spawn = |at: usize| thread::spawn(move || kinds[at % 4](at as u64));
    let handles: Vec<_> = (0..8).map(spawn).collect();
    let (until, mut ticks) = (Instant::now() + Duration::from_secs(3), 0);
    while Instant::now() < until || ticks < 3 {
        thread::sleep(Duration::from_millis(5));
        ticks += 1;
    }
    hogs.all_begin();
    STOP.store(true, SeqCst);
    handles.into_iter().for_each(|h| h.join().unwrap());
    assert!(hogs.end().iter().all(|work| *work > 0), "a hog was starved");
}

fn weather() {
    let runtime = runtime(2);
    let sender = std::thread::spawn(storm);
    let plain = [3, 4].map(|seed| std::thread::spawn(move || compute(seed)));
    within(LONG, "the storm", || checked(&runtime, all_at_once));
    sender.join().unwrap();
    plain.into_iter().for_each(|thread| thread.join().unwrap());
    let sent = SENT.load(SeqCst);
    assert!(sent > 100, "{sent} signals are no storm");
    let metrics = runtime.metrics();
    assert!(
        metrics.threads_held_by_preempted > 3,
        "hardly anybody was preempted: {metrics:?}"
    );
}

#[test]
fn d7_a_storm_of_signals_changes_nothing() {
    let _turn = beside();
    child("storm::d7_a_storm_of_signals_changes_nothing", weather).succeeded();
}

#[test]
fn d7_a_storm_of_signals_under_chaos() {
    let _turn = beside();
    let set = |command: &mut _| holders::set(command, false, Some(17));
    child_with("storm::d7_a_storm_of_signals_under_chaos", "", set, |_| {
        weather()
    })
    .succeeded();
}
