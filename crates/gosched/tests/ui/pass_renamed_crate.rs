//! `crate = "…"` decides where the library is found, and nothing else does.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static RUNS: AtomicUsize = AtomicUsize::new(0);

/// A library of another name that counts its uses.
mod other {
    pub mod name {
        pub use gosched::{Builder, main, num_goroutines};

        pub fn run<T: Send>(f: impl FnOnce() -> T + Send) -> T {
            crate::RUNS.fetch_add(1, super::super::Relaxed);
            gosched::run(f)
        }

        pub struct Runtime;

        impl Runtime {
            pub fn builder() -> Builder {
                crate::RUNS.fetch_add(10, super::super::Relaxed);
                gosched::Runtime::builder()
            }
        }
    }
}

extern crate gosched as renamed;

#[renamed::main(crate = "renamed")]
fn by_extern_crate() {
    assert_eq!(renamed::num_goroutines(), 1);
}

#[other::name::main(crate = "other::name")]
fn by_path() {
    assert_eq!(other::name::num_goroutines(), 1);
}

#[other::name::main(crate = "crate::other::name", procs = 2)]
fn by_path_with_options() {
    assert_eq!(other::name::num_goroutines(), 1);
}

fn main() {
    by_extern_crate();
    assert_eq!(RUNS.load(Relaxed), 0);
    by_path();
    assert_eq!(RUNS.load(Relaxed), 1);
    by_path_with_options();
    assert_eq!(RUNS.load(Relaxed), 11);
}
