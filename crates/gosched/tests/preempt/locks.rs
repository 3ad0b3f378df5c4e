//! A goroutine that is preempted while it holds a lock delays those who want it, and nobody else; the process never stands still.

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

/// A holder of malloc's lock that is preempted makes others wait in the kernel for it; each such thread is replaced, and that must end
/// somewhere.
#[test]
fn d7_allocating_hogs_in_one_arena_do_not_breed_threads() {
    let _turn = beside();
    let name = "locks::d7_allocating_hogs_in_one_arena_do_not_breed_threads";
    let set = |command: &mut _| holders::set(command, true, None);
    let output = child_with(name, "", set, |_| {
        let runtime = runtime(2);
        let most = most_threads(|| {
            within(LONG, "the allocating goroutines", || {
                checked(&runtime, allocating_goroutines);
            });
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

fn allocating_goroutines() {
    let stop = Arc::new(AtomicBool::new(false));
    let hog = |seed| {
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            let (mut rng, mut kept) = (common::Rng::new(seed), Default::default());
            while !stop.load(Relaxed) {
                allocate(&mut rng, &mut kept);
            }
        })
    };
    let hogs: Vec<_> = (0..200).map(hog).collect();
    let other = |seed| {
        thread::spawn(move || {
            let (mut rng, mut kept) = (common::Rng::new(seed), Default::default());
            for round in 0..200 {
                allocate(&mut rng, &mut kept);
                if round % 50 == 0 {
                    gosched::yield_now();
                }
            }
        })
    };
    let others: Vec<_> = (0..5000).map(other).collect();
    others.into_iter().for_each(|h| h.join().unwrap());
    stop.store(true, SeqCst);
    hogs.into_iter().for_each(|h| h.join().unwrap());
}
