//! A goroutine that is preempted while it holds a lock delays the waiters for that lock, and no
//! other; the process always makes progress.

use super::*;

const TIME: Duration = Duration::from_secs(4);

#[test]
fn d7_d9_preempted_holders_of_locks_never_stop_the_process() {
    let _turn = beside();
    let name = "locks::d7_d9_preempted_holders_of_locks_never_stop_the_process";
    child_of(name, "", |_| holders::mix(TIME, 2)).succeeded();
}

#[test]
fn d7_d9_preempted_holders_of_malloc_s_only_arena_never_stop_the_process() {
    let _turn = beside();
    let name = "locks::d7_d9_preempted_holders_of_malloc_s_only_arena_never_stop_the_process";
    let set = |command: &mut _| holders::set(command, true, None);
    child_with(name, "", set, |_| holders::mix(TIME, 2)).succeeded();
}

#[test]
fn d7_d9_preempted_holders_of_locks_under_chaos() {
    let _turn = beside();
    let name = "locks::d7_d9_preempted_holders_of_locks_under_chaos";
    let seed = common::env("GOSCHED_STRESS_SEED").unwrap_or(11);
    let set = |command: &mut _| holders::set(command, false, Some(seed));
    child_with(name, "", set, |_| holders::mix(TIME, 2)).succeeded();
}

#[test]
fn d7_d9_preempted_holders_of_malloc_s_only_arena_under_chaos() {
    let _turn = beside();
    let name = "locks::d7_d9_preempted_holders_of_malloc_s_only_arena_under_chaos";
    let seed = common::env("GOSCHED_STRESS_SEED").unwrap_or(12);
    let set = |command: &mut _| holders::set(command, true, Some(seed));
    child_with(name, "", set, |_| holders::mix(TIME, 2)).succeeded();
}

/// More threads than this process ever has, as seen every millisecond while `body` runs.
fn most_threads(body: impl FnOnce()) -> usize {
    let over = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&over);
    let watcher = std::thread::spawn(move || {
        let mut most = 0;
        while !is_over.load(SeqCst) {
            most = most.max(thread_count());
            std::thread::sleep(Duration::from_millis(1));
        }
        most
    });
    body();
    over.store(true, SeqCst);
    watcher.join().unwrap()
}

/// A holder of malloc's lock that is preempted makes others wait in the kernel for it; each such
/// thread is replaced, and that must end somewhere.
#[test]
fn d7_allocating_hogs_in_one_arena_do_not_breed_threads() {
    let _turn = beside();
    let name = "locks::d7_allocating_hogs_in_one_arena_do_not_breed_threads";
    let set = |command: &mut _| holders::set(command, true, None);
    let output = child_with(name, "", set, |_| {
        let runtime = runtime(2);
        let most = most_threads(|| {
            within(LONG, "the allocating goroutines", || {
                allocating_goroutines(&runtime);
            });
            checked(&runtime, || ());
        });
        println!("most threads: {most}");
        assert!(most < 300, "{most} threads");
    });
    output.succeeded();
}

fn allocate(rng: &mut common::Rng, kept: &mut [Vec<u8>; 16]) {
    let at = rng.below(16) as usize;
    kept[at] = vec![1; 1 + rng.below(2000) as usize];
}

/// Each ends when told to; those that have not begun by then end at once. Started and told from
/// outside: a goroutine that allocates among them would have its own troubles.
fn allocating_goroutines(runtime: &Runtime) {
    let (stop, begun) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let allocates = |seed| {
        let (stop, begun) = (Arc::clone(&stop), Arc::clone(&begun));
        // The first 200 never leave by themselves.
        let rounds = if seed < 200 { u64::MAX } else { 200 };
        runtime.spawn(move || {
            begun.fetch_add(1, Relaxed);
            let (mut rng, mut kept) = (common::Rng::new(seed), Default::default());
            for round in 0..rounds {
                if stop.load(Relaxed) {
                    break;
                }
                allocate(&mut rng, &mut kept);
                if seed >= 200 && round % 50 == 0 {
                    gosched::yield_now();
                }
            }
        })
    };
    let handles: Vec<_> = (0..5200).map(allocates).collect();
    std::thread::sleep(Duration::from_secs(6));
    println!("{} of 5200 have begun in time", begun.load(Relaxed));
    assert!(begun.load(Relaxed) >= 20, "all are stuck");
    stop.store(true, SeqCst);
    handles.into_iter().for_each(|h| h.join().unwrap());
}

/// Many goroutines contend for a lock all the time, and are taken for blocked and preempted while
/// they hold it. New and woken goroutines are not starved by them.
#[test]
fn l2_nobody_is_kept_out_by_those_who_fight_for_a_lock() {
    let _turn = alone();
    let (stop, lock) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(std::sync::Mutex::new(0u64)),
    );
    let fights = |_| {
        let (stop, lock) = (Arc::clone(&stop), Arc::clone(&lock));
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                let mut count = lock.lock().unwrap();
                *count += 1;
                spin(3_000_000);
            }
        })
    };
    within(LONG, "those who fight", || {
        checked(&runtime(2), || {
            let handles: Vec<_> = (0..30).map(fights).collect();
            thread::sleep(Duration::from_millis(300));
            let mut waits = Vec::new();
            for _ in 0..20 {
                let began = Instant::now();
                thread::spawn(gosched::yield_now).join().unwrap();
                waits.push(began.elapsed());
                thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, SeqCst);
            handles.into_iter().for_each(|h| h.join().unwrap());
            waits.sort();
            println!("the longest wait was {:?}", waits[19]);
            // A machine that stands still for seconds meets one of them, or two.
            assert!(waits[17] < Duration::from_secs(2), "{waits:?}");
        });
    });
    assert!(*lock.lock().unwrap() > 10);
}
