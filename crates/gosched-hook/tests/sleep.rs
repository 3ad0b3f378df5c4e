//! Sleeping goroutines hold no threads.

use std::time::{Duration, Instant};

use gosched_hook as _;

/// The threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn goroutines_in_std_sleep_hold_no_threads() {
    gosched_hook::install().unwrap();
    // A preempted goroutine keeps a thread, which is not what is counted here.
    let runtime = gosched::Runtime::builder()
        .preemption(false)
        .build()
        .unwrap();
    let most = runtime.run(|| {
        let begun = Instant::now();
        let sleepers: Vec<_> = (0..5_000)
            .map(|_| gosched::thread::spawn(|| std::thread::sleep(Duration::from_millis(300))))
            .collect();
        let mut most = 0;
        while begun.elapsed() < Duration::from_millis(200) {
            most = most.max(threads());
            gosched::yield_now();
        }
        sleepers.into_iter().for_each(|s| s.join().unwrap());
        assert!(begun.elapsed() >= Duration::from_millis(300));
        most
    });
    assert!(most < 32, "{most} threads");
}

#[test]
fn bad_times_are_refused_as_libc_does() {
    let sleep = |tv_sec, tv_nsec| {
        let time = libc::timespec { tv_sec, tv_nsec };
        // SAFETY: both pointers are null or to a timespec of this frame.
        unsafe {
            (
                libc::nanosleep(&time, std::ptr::null_mut()),
                *libc::__errno_location(),
            )
        }
    };
    gosched::run(move || {
        assert_eq!(sleep(-1, 0), (-1, libc::EINVAL));
        assert_eq!(sleep(0, 1_000_000_000), (-1, libc::EINVAL));
        assert_eq!(sleep(0, 1).0, 0);
    });
}
