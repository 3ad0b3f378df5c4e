//! R1–R7, I3, I4, I9 as a program sees them: bursts larger than every ring, from inside and
//! outside.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use crate::common::{LONG, eventually, runtime};
use gosched::{debug, go, thread};

#[test]
fn r1_r6_r7_a_burst_overflows_to_the_global_queue_and_all_of_it_runs() {
    const BURST: usize = 20_000;
    for procs in [1, 2] {
        runtime(procs).run(|| {
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..BURST {
                let ran = Arc::clone(&ran);
                go(move || {
                    ran.fetch_add(1, SeqCst);
                });
            }
            debug::check().unwrap();
            // The last one may be asked to yield before it ends.
            assert!(eventually(|| {
                gosched::yield_now();
                ran.load(SeqCst) == BURST && debug::metrics().global_queue == 0
            }));
            let metrics = debug::metrics();
            assert!(metrics.overflows > 0);
            assert_eq!(metrics.rescues, 0);
        });
    }
}

#[test]
fn r7_spawns_from_outside_all_run() {
    let runtime = runtime(2);
    let ran = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..2_000 {
                    let ran = Arc::clone(&ran);
                    runtime.go(move || {
                        ran.fetch_add(1, SeqCst);
                    });
                }
            });
        }
    });
    assert!(eventually(|| ran.load(SeqCst) == 8_000));
    runtime.check().unwrap();
    assert_eq!(runtime.metrics().rescues, 0);
}

/// One P fills its ring and is kept busy; the others take halves of it, and all they take runs.
#[test]
fn i3_i4_i9_thieves_empty_the_ring_of_a_busy_p() {
    runtime(3).run(|| {
        let began = Instant::now();
        // If thieves get no CPU, sysmon takes the P away, and its next M empties the ring.
        while debug::metrics().steals == 0 {
            assert!(began.elapsed() < LONG / 2, "nobody steals");
            let ran = Arc::new(AtomicUsize::new(0));
            for _ in 0..200 {
                let ran = Arc::clone(&ran);
                thread::spawn(move || ran.fetch_add(1, SeqCst));
            }
            // Blocks its thread and with it the P.
            assert!(eventually(|| ran.load(SeqCst) == 200));
        }
        let metrics = debug::metrics();
        assert!(metrics.stolen >= metrics.steals);
        assert_eq!(metrics.rescues, 0);
    });
}
