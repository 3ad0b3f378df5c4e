//! Where goroutines cannot have their own thread-locals, `build` says why and what to do (D6).

use std::io::ErrorKind;

use gosched::Runtime;
use gosched::testing::refuse_own_thread_locals;

#[test]
fn d6_a_refusal_names_the_reason_and_the_way_out() {
    let out = crate::common::child("d6_a_refusal_names_the_reason_and_the_way_out", || {
        refuse_own_thread_locals(true);
        let error = Runtime::builder().build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        for part in [
            "goroutines cannot have their own thread-locals here",
            "a test has refused it",
            "unsafe { builder.shared_thread_locals() }",
        ] {
            assert!(text.contains(part), "no {part:?} in {text:?}");
        }
        // SAFETY: the goroutine touches no thread-local across a switch.
        let shared = unsafe { Runtime::builder().shared_thread_locals() };
        assert_eq!(shared.build().unwrap().run(|| 6 * 7), 42);
        refuse_own_thread_locals(false);
        assert_eq!(Runtime::builder().build().unwrap().run(|| 6 * 7), 42);
    });
    out.succeeded();
}

#[test]
fn d6_run_panics_with_the_reason() {
    let out = crate::common::child("d6_run_panics_with_the_reason", || {
        refuse_own_thread_locals(true);
        gosched::run(|| ());
    });
    assert_eq!(out.code(), 101);
    out.says(&[
        "gosched: cannot start the runtime",
        "a test has refused it",
        "shared_thread_locals",
    ]);
}

/// glibc's malloc that checks is a library of its own, whose symbols are found by their version
/// only. It keeps nothing for a thread.
#[test]
fn d6_a_malloc_that_checks_is_no_reason() {
    const NAME: &str = "d6_a_malloc_that_checks_is_no_reason";
    for level in ["0", "3"] {
        let preload = |command: &mut std::process::Command| {
            command
                .env("LD_PRELOAD", "libc_malloc_debug.so.0")
                .env("GLIBC_TUNABLES", format!("glibc.malloc.check={level}"));
        };
        let out = crate::common::child_with(NAME, level, preload, |_| {
            let runtime = Runtime::builder().procs(2).build().unwrap();
            runtime.run(|| {
                let all = (0..1000).map(|n| gosched::thread::spawn(move || vec![n; 1 + n % 97]));
                let all: Vec<_> = all.collect();
                for (n, one) in all.into_iter().enumerate() {
                    assert_eq!(one.join().unwrap().len(), 1 + n % 97);
                }
            });
        });
        out.succeeded();
    }
}
