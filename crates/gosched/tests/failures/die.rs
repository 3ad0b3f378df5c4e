//! Programs that must die, and how: each runs as a child process.

use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use crate::common::{HOUR, child, child_of, child_with, thread_count};
use gosched::{Deadlock, Runtime, thread};

const DEADLOCK: &str = "fatal error: all goroutines are asleep - deadlock!";
const NOBODY_LEFT: &str = "fatal error: no goroutines (main called goexit) - deadlock!";

/// What all the others rest on: a child has no thread that the runtime would have to take for hope.
#[test]
fn a_child_has_one_thread() {
    child("a_child_has_one_thread", || assert_eq!(thread_count(), 1)).succeeded();
}

#[test]
fn u6_a_deadlock_ends_the_process() {
    let out = child("u6_a_deadlock_ends_the_process", || {
        gosched::run(thread::park)
    });
    out.died_with(&[DEADLOCK]);
}

#[test]
fn u6_a_deadlock_report_names_everybody() {
    let out = child("u6_a_deadlock_report_names_everybody", || {
        gosched::run(|| {
            let stuck = thread::Builder::new()
                .name("the stuck one".into())
                .spawn(thread::park)
                .unwrap();
            let _ = thread::spawn(move || stuck.join()).join();
        });
    });
    out.died_with(&[DEADLOCK]);
    out.goroutine("[join]");
    let stuck = out.goroutine("[park] {name: the stuck one}");
    out.says(&[
        "goroutine 1 [join] {name: main}:",
        &format!("waits for goroutine {stuck}\n"),
        "created by main in goroutine 1 at crates/gosched/tests/failures/die.rs:",
    ]);
}

/// A timer that was set and taken back is no hope.
#[test]
fn u6_a_deadlock_after_a_long_timeout_ended_early() {
    let out = child("u6_a_deadlock_after_a_long_timeout_ended_early", || {
        let runtime = Runtime::builder().procs(2).build().unwrap();
        runtime.run(|| {
            let waits = thread::spawn(|| thread::park_timeout(HOUR));
            // Meanwhile the other P's thread settles down to watch the clock.
            std::thread::sleep(Duration::from_millis(50));
            waits.thread().unpark();
            waits.join().unwrap();
            thread::park();
        });
    });
    out.died_with(&[DEADLOCK]);
}

/// A world that is not closed has hope while a foreign thread lives; it ends, and the next look
/// sees that.
#[test]
fn u6_a_deadlock_is_found_after_the_last_foreign_thread_ended() {
    let out = child(
        "u6_a_deadlock_is_found_after_the_last_foreign_thread_ended",
        || {
            std::thread::spawn(|| std::thread::sleep(Duration::from_millis(1500)));
            gosched::run(thread::park);
        },
    );
    out.died_with(&[DEADLOCK]);
    assert!(out.took >= Duration::from_millis(1500), "{out:#?}");
}

#[test]
fn u6_every_runtime_has_to_be_asleep() {
    let out = child("u6_every_runtime_has_to_be_asleep", || {
        let busy = Runtime::builder().procs(1).build().unwrap();
        busy.go(|| {
            std::thread::sleep(Duration::from_millis(700));
            eprintln!("the other one has ended");
        });
        gosched::run(thread::park);
    });
    out.died_with(&["the other one has ended", DEADLOCK]);
}

#[test]
fn u6_locked_goroutines_deadlock_too() {
    let out = child("u6_locked_goroutines_deadlock_too", || {
        gosched::run(|| {
            gosched::lock_os_thread();
            let others: Vec<_> = (0..3)
                .map(|_| {
                    thread::spawn(|| {
                        gosched::lock_os_thread();
                        thread::park();
                    })
                })
                .collect();
            for other in others {
                let _ = other.join();
            }
        });
    });
    out.died_with(&[DEADLOCK]);
}

#[test]
fn mg_thread_limit() {
    let out = child("mg_thread_limit", || {
        let runtime = Runtime::builder().procs(2).max_threads(8).build().unwrap();
        runtime.run(|| {
            let locked = || {
                gosched::lock_os_thread();
                thread::sleep(Duration::from_secs(60));
            };
            let many: Vec<_> = (0..20).map(|_| thread::spawn(locked)).collect();
            for one in many {
                one.join().unwrap();
            }
        });
    });
    out.died_with(&[
        "runtime: program exceeds 8-thread limit",
        "fatal error: thread exhaustion",
    ]);
}

/// Just within the limit nothing happens.
#[test]
fn mg_thread_limit_is_not_reached_by_fewer() {
    let out = child("mg_thread_limit_is_not_reached_by_fewer", || {
        let runtime = Runtime::builder().procs(2).max_threads(16).build().unwrap();
        for _ in 0..50 {
            runtime.run(|| {
                let locked = || {
                    gosched::lock_os_thread();
                    thread::sleep(Duration::from_millis(2));
                    gosched::unlock_os_thread();
                };
                let some: Vec<_> = (0..8).map(|_| thread::spawn(locked)).collect();
                for one in some {
                    one.join().unwrap();
                }
            });
        }
    });
    out.succeeded();
}

#[inline(never)]
fn overflow(depth: u64) -> u64 {
    let frame = black_box([depth; 32]);
    if depth == u64::MAX {
        return 0;
    }
    overflow(depth + 1) + black_box(&frame)[(depth % 32) as usize]
}

#[test]
fn u8_stack_overflow_names_the_goroutine_and_the_setting() {
    for variant in ["", "mprotect"] {
        let out = child_of(
            "u8_stack_overflow_names_the_goroutine_and_the_setting",
            variant,
            |variant| {
                let runtime = Runtime::builder()
                    .mprotect_guards(variant == "mprotect")
                    .build()
                    .unwrap();
                runtime.run(|| {
                    let deep = thread::Builder::new()
                        .name("the deep one".into())
                        .stack_size(64 << 10)
                        .spawn(|| overflow(1));
                    deep.unwrap().join().unwrap();
                });
            },
        );
        out.died_with(&["runtime: goroutine stack exceeds 65536-byte limit"]);
        out.says(&[
            "fatal error: stack overflow",
            "\"the deep one\"",
            "created in goroutine 1 at ",
            "die.rs:",
            "gosched::thread::Builder::stack_size",
            "gosched::Builder::stack_size",
        ]);
    }
}

#[test]
fn u8_stack_overflow_of_the_main_goroutine() {
    let out = child("u8_stack_overflow_of_the_main_goroutine", || {
        gosched::run(|| overflow(1));
    });
    out.died_with(&["runtime: goroutine stack exceeds 8388608-byte limit"]);
    out.says(&[
        "fatal error: stack overflow",
        "goroutine 1 \"main\"",
        "die.rs:",
    ]);
}

/// A goroutine whose stack another one used before, and many that overflow at once: one report,
/// whole.
#[test]
fn u8_stack_overflow_of_many_at_once() {
    let out = child("u8_stack_overflow_of_many_at_once", || {
        let runtime = Runtime::builder()
            .procs(4)
            .stack_size(32 << 10)
            .build()
            .unwrap();
        runtime.run(|| {
            for _ in 0..100 {
                thread::spawn(|| black_box([1u8; 1000])).join().unwrap();
            }
            let many: Vec<_> = (0..50).map(|_| thread::spawn(|| overflow(1))).collect();
            for one in many {
                let _ = one.join();
            }
        });
    });
    out.died_with(&["runtime: goroutine stack exceeds 32768-byte limit"]);
    assert_eq!(
        out.stderr.matches("fatal error: stack overflow").count(),
        1,
        "{out:#?}"
    );
}

/// The overflow of a plain thread is none of ours: std reports it as ever.
#[test]
fn u8_stack_overflow_of_a_plain_thread_is_stds() {
    let out = child("u8_stack_overflow_of_a_plain_thread_is_stds", || {
        gosched::run(|| ());
        let runtime = Runtime::builder().build().unwrap();
        runtime.go(thread::park);
        let plain = std::thread::Builder::new().name("a plain one".into());
        let _ = plain.spawn(|| overflow(1)).unwrap().join();
    });
    assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{out:#?}");
    out.says(&["thread 'a plain one'", "has overflowed its stack"]);
    assert!(!out.stderr.contains("goroutine"), "{out:#?}");
}

#[inline(never)]
fn null_dereference() -> u8 {
    let null = black_box(std::ptr::null::<u8>());
    // SAFETY: there is none: the fault is what the test is about.
    unsafe { null.read_volatile() }
}

/// A fault that is no overflow keeps its meaning.
#[test]
fn a_wild_pointer_still_kills_by_signal() {
    for variant in ["goroutine", "thread"] {
        let out = child_of("a_wild_pointer_still_kills_by_signal", variant, |variant| {
            if variant == "goroutine" {
                gosched::run(null_dereference);
            } else {
                gosched::run(|| ());
                null_dereference();
            }
        });
        assert_eq!(out.status.signal(), Some(libc::SIGSEGV), "{out:#?}");
        assert!(!out.stderr.contains("overflow"), "{out:#?}");
    }
}

#[test]
fn g0_an_illegal_state_change_is_fatal() {
    let out = child("g0_an_illegal_state_change_is_fatal", || {
        gosched::run(gosched::testing::illegal_status_change);
    });
    assert_eq!(out.code(), 2, "{out:#?}");
    let first = out.stderr.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("fatal error: illegal goroutine status change "),
        "{out:#?}"
    );
}

#[test]
#[cfg(debug_assertions)]
fn d9_user_code_inside_the_runtime_is_fatal() {
    let out = child("d9_user_code_inside_the_runtime_is_fatal", || {
        gosched::run(gosched::testing::user_code_inside_the_runtime);
    });
    out.died_with(&["fatal error: user code inside the runtime"]);
}

#[test]
fn exit_in_main_with_nobody_left() {
    let out = child("exit_in_main_with_nobody_left", || {
        gosched::run(|| -> () { gosched::goexit() });
    });
    out.died_with(&[NOBODY_LEFT]);
}

#[test]
fn exit_in_main_lets_the_others_finish() {
    let out = child("exit_in_main_lets_the_others_finish", || {
        gosched::run(|| {
            for _ in 0..3 {
                gosched::go(|| thread::sleep(Duration::from_millis(30)));
            }
            gosched::go(|| {
                thread::sleep(Duration::from_millis(100));
                eprintln!("finished later");
            });
            gosched::goexit();
        });
    });
    out.died_with(&["finished later", NOBODY_LEFT]);
}

/// The others may end the program, as in Go.
#[test]
fn exit_in_main_and_another_ends_the_process() {
    let out = child("exit_in_main_and_another_ends_the_process", || {
        gosched::run(|| {
            gosched::go(|| {
                thread::sleep(Duration::from_millis(50));
                std::process::exit(7);
            });
            gosched::goexit();
        });
    });
    assert_eq!(out.code(), 7, "{out:#?}");
}

/// With a closed world other threads do not count, and another runtime's main that exits is like
/// one's own.
#[test]
fn exit_in_main_in_a_closed_world() {
    let out = child("exit_in_main_in_a_closed_world", || {
        std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
        let runtime = Runtime::builder()
            .deadlock(Deadlock::Closed)
            .build()
            .unwrap();
        runtime.run(|| -> () { gosched::goexit() });
    });
    out.died_with(&[NOBODY_LEFT]);
}

#[test]
fn panic_abort_ends_the_process() {
    for variant in ["go", "spawn", "main", "scope"] {
        let out = child_of("panic_abort_ends_the_process", variant, |variant| {
            let runtime = Runtime::builder().panic_abort(true).build().unwrap();
            runtime.run(|| {
                match variant {
                    "go" => gosched::go(|| panic!("on purpose")),
                    "spawn" => drop(thread::spawn(|| panic!("on purpose"))),
                    "scope" => thread::scope(|s| drop(s.spawn(|| panic!("on purpose")))),
                    _ => panic!("on purpose"),
                }
                thread::sleep(HOUR);
            });
        });
        assert_eq!(out.code(), 2, "{variant}: {out:#?}");
        out.says(&["on purpose", "goroutine "]);
    }
}

/// Leaving a goroutine is no panic, and neither is a panic that is caught.
#[test]
fn panic_abort_spares_exit_and_caught_panics() {
    let out = child("panic_abort_spares_exit_and_caught_panics", || {
        let runtime = Runtime::builder().panic_abort(true).build().unwrap();
        runtime.run(|| {
            assert!(
                thread::spawn(|| -> () { gosched::goexit() })
                    .join()
                    .is_err()
            );
            let caught = thread::spawn(|| std::panic::catch_unwind(|| panic!("caught")).is_err());
            assert!(caught.join().unwrap());
        });
    });
    out.succeeded();
}

/// Errors on several threads at once, and one in the middle of a report: one text, status 2.
#[test]
fn fatal_errors_at_the_same_time_end_the_process_once() {
    let out = child("fatal_errors_at_the_same_time_end_the_process_once", || {
        let runtime = Runtime::builder().procs(4).build().unwrap();
        runtime.run(|| {
            for _ in 0..8 {
                gosched::go(gosched::testing::illegal_status_change);
            }
            thread::sleep(Duration::from_secs(20));
        });
    });
    assert_eq!(out.code(), 2, "{out:#?}");
    assert_eq!(out.stderr.matches("fatal error: ").count(), 1, "{out:#?}");
}

/// No process reads stderr, or the pipe is full of other text: the process ends nevertheless.
#[test]
fn a_fatal_error_without_stderr_still_ends_the_process() {
    let out = child_with(
        "a_fatal_error_without_stderr_still_ends_the_process",
        "",
        |command: &mut Command| {
            command.stderr(std::process::Stdio::null());
        },
        |_| {
            // SAFETY: closes a file that nothing else here uses.
            unsafe { libc::close(2) };
            gosched::run(thread::park);
        },
    );
    assert_eq!(out.code(), 2, "{out:#?}");
}
