//! P1–P6, S3 as a program sees them: processors come, go and agree with everything else.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::{eventually, runtime};
use gosched::{debug, thread};

#[test]
fn p1_p2_p6_s3_processors_agree_under_load() {
    runtime(3).run(|| {
        let is_over = AtomicBool::new(false);
        thread::scope(|s| {
            for _ in 0..6 {
                s.spawn(|| {
                    while !is_over.load(SeqCst) {
                        thread::spawn(|| ()).join().unwrap();
                        thread::sleep(Duration::from_micros(30));
                    }
                });
            }
            for _ in 0..100 {
                debug::check().unwrap();
                gosched::yield_now();
            }
            is_over.store(true, SeqCst);
        });
        assert_eq!(debug::metrics().rescues, 0);
    });
}

#[test]
fn p2_without_work_every_p_is_idle() {
    let runtime = runtime(4);
    runtime.run(|| thread::sleep(Duration::from_millis(1)));
    let quiet = eventually(|| {
        let metrics = runtime.metrics();
        metrics.idle_procs == 4 && metrics.spinning_threads == 0
    });
    assert!(quiet, "{:?}", runtime.metrics());
    runtime.check().unwrap();
}

#[test]
fn p4_a_stopped_world_goes_on() {
    runtime(2).run(|| {
        let ran = std::sync::atomic::AtomicUsize::new(0);
        thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..100 {
                        ran.fetch_add(1, SeqCst);
                        gosched::yield_now();
                    }
                });
            }
            // Each of these stops the world: several leaders at a time take turns.
            for _ in 0..2 {
                s.spawn(|| (0..20).for_each(|_| debug::check().unwrap()));
            }
        });
        assert_eq!(ran.load(SeqCst), 400);
        let status: Vec<_> = debug::metrics().per_proc.iter().map(|p| p.status).collect();
        assert!(!status.contains(&debug::ProcStatus::GcStop), "{status:?}");
    });
}

#[test]
fn p5_removed_processors_come_back() {
    runtime(4).run(|| {
        for n in [1, 4, 2, 8, 3, 1, 4] {
            gosched::gomaxprocs(n);
            debug::check().unwrap();
            let metrics = debug::metrics();
            assert_eq!((metrics.procs, metrics.per_proc.len()), (n, n));
        }
    });
}
