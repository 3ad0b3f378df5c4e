//! A program whose main returns while goroutines run ends with main's status and prints nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gosched::sync::WaitGroup;

use super::*;

/// What goroutines do when main returns; each does it for ever.
const WORK: [fn(); 9] = [
    || spawns(|| gosched::go(|| ())),
    || spawns(|| drop(thread::spawn(|| ()))),
    || spawns(|| thread::scope(|s| _ = s.spawn(|| ()))),
    || {
        let group = WaitGroup::new();
        spawns(|| group.go(|| ()));
    },
    || {
        let handle = Handle::current();
        spawns(|| {
            handle.go(|| ());
            drop(handle.spawn(|| ()));
        });
    },
    || spawns(|| drop(gosched::time::after_func(Duration::ZERO, || ()))),
    || {
        let (s, r) = gosched::chan::bounded(1);
        gosched::go(move || while r.recv().is_ok() {});
        loop {
            s.send(1).unwrap();
        }
    },
    || loop {
        thread::sleep(Duration::from_micros(20));
    },
    || loop {
        std::hint::spin_loop();
    },
];

/// Starts goroutines for ever, and lets them run: the queues stay short.
fn spawns(one: impl Fn()) {
    loop {
        one();
        compute(Duration::from_micros(5)); // most ends of the runtime find it at work
        thread::yield_now();
    }
}

/// Each run is a process: `GOSCHED_ROUNDS=1000` sets their number.
#[test]
fn d2_main_returns_while_others_work() {
    let name = "quiet::d2_main_returns_while_others_work";
    for round in 0..passed_on::rounds(50) {
        let variant = if round % 2 == 0 { "" } else { "abort" };
        let output = crate::common::child_of(name, variant, |variant| {
            let runtime = Runtime::builder()
                .procs(2)
                .panic_abort(variant == "abort")
                .build()
                .unwrap();
            runtime.run(|| {
                WORK.into_iter().for_each(gosched::go);
                thread::sleep(Duration::from_millis(2));
            });
            drop(runtime);
        });
        output.succeeded();
        assert_eq!(output.stderr, "", "round {round}, {variant:?}");
    }
}

/// The status is the program's own: `exit` says it, in main or elsewhere, while the others work.
#[test]
fn d2_the_process_exits_while_others_work() {
    let name = "quiet::d2_the_process_exits_while_others_work";
    for round in 0..passed_on::rounds(50) {
        let variant = ["main", "elsewhere", "main, abort", "elsewhere, abort"][round % 4];
        let output = crate::common::child_of(name, variant, |variant| {
            let runtime = Runtime::builder()
                .procs(2)
                .panic_abort(variant.contains("abort"))
                .build()
                .unwrap();
            let exits = || {
                thread::sleep(Duration::from_millis(2));
                std::process::exit(7)
            };
            runtime.run(|| {
                WORK.into_iter().for_each(gosched::go);
                if variant.contains("main") {
                    exits();
                }
                gosched::go(exits);
                thread::park();
            });
        });
        assert_eq!(output.code(), 7, "round {round}: {output:#?}");
        assert_eq!(output.stderr, "", "round {round}, {variant:?}");
    }
}

/// The same for what a goroutine does when its runtime shuts down: it unwinds, as a waiting
/// goroutine does.
#[test]
fn shutdown_unwinds_a_goroutine_that_starts_others() {
    for work in &WORK[..5] {
        let stopped = runtime(2);
        let working = stopped.spawn(*work);
        std::thread::sleep(Duration::from_millis(5));
        within(LONG, "shutdown", || stopped.shutdown(LONG));
        assert_exited(within(LONG, "join", || working.join()));
    }
}

/// A caller that is not one of its goroutines gets an error.
#[test]
fn d2_a_stranger_is_told_that_the_runtime_has_gone() {
    let (other, gone) = (runtime(1), runtime(1));
    let handle = gone.handle();
    drop(gone);
    let told = |handle: Handle| {
        let refused = handle.try_spawn(|| ()).unwrap_err().to_string();
        assert_eq!(refused, "the gosched runtime has been dropped");
        catch_unwind(AssertUnwindSafe(|| handle.go(|| ()))).unwrap_err();
        catch_unwind(AssertUnwindSafe(|| drop(handle.spawn(|| ())))).unwrap_err();
    };
    told(handle.clone());
    other.run(|| told(handle));
}

/// A goroutine that a dropped runtime has left to itself ends only itself by a panic.
#[test]
fn d2_a_panic_after_the_drop_does_not_end_the_process() {
    let output = child(
        "quiet::d2_a_panic_after_the_drop_does_not_end_the_process",
        || {
            static PHASE: AtomicUsize = AtomicUsize::new(0);
            struct Ends;
            impl Drop for Ends {
                fn drop(&mut self) {
                    PHASE.store(3, SeqCst);
                }
            }
            let runtime = Runtime::builder().panic_abort(true).build().unwrap();
            runtime.go(|| {
                let _ends = Ends;
                PHASE.store(1, SeqCst);
                while PHASE.load(SeqCst) < 2 {
                    std::hint::spin_loop();
                }
                panic!("late");
            });
            assert!(eventually(|| PHASE.load(SeqCst) == 1));
            drop(runtime);
            PHASE.store(2, SeqCst);
            assert!(eventually(|| PHASE.load(SeqCst) == 3));
            std::thread::sleep(Duration::from_millis(50));
        },
    );
    output.succeeded();
    assert!(!output.stderr.contains("spawned at"), "{output:#?}");
}
