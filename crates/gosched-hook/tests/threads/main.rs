//! `std::thread`, pthreads and crates that start threads, with the feature `thread`.
//!
//! What std promises is one list of cases (`cases.rs`). Each runs on a goroutine, where threads are
//! goroutines, and on a plain thread. Then all run once more with disorder from the runtime.

#[path = "../../../gosched/tests/common/mod.rs"]
mod common;

mod cases;
mod ends;
mod mixtures;
mod pthread;
mod scale;

use common::{LONG, child_with, within};
use gosched_hook as _;

#[test]
fn the_hooks_are_installed() {
    gosched_hook::install().unwrap();
}

#[test]
fn every_case_holds_with_disorder() {
    let run = |seed: u64| {
        child_with(
            "every_case_holds_with_disorder",
            &seed.to_string(),
            common::chaos(seed),
            |_| {
                within(LONG, "the cases", || {
                    gosched::run(|| {
                        for (name, case) in cases::ALL {
                            eprintln!("{name}");
                            case();
                        }
                    });
                });
            },
        )
        .succeeded();
    };
    run(7);
    run(1234567);
}
