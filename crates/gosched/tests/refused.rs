//! Where goroutines cannot have their own thread-locals, `build` says why and what to do (D6).

mod common;

use std::io::ErrorKind;

use gosched::Runtime;
use gosched::testing::refuse_own_thread_locals;

#[test]
fn d6_a_refusal_names_the_reason_and_the_way_out() {
    let out = common::child("d6_a_refusal_names_the_reason_and_the_way_out", || {
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
    let out = common::child("d6_run_panics_with_the_reason", || {
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
