//! Runtimes with n Ps, checks after they have run, panics and deep stacks.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gosched::{Runtime, debug};

use super::waiting::{LONG, within};

/// A runtime with so many Ps.
pub fn runtime(procs: usize) -> Runtime {
    Runtime::builder().procs(procs).build().expect("a runtime")
}

/// Runs `f` as the main goroutine of a runtime with so many Ps, within [`LONG`]. Afterwards the
/// structures of the runtime agree and no wake-up was lost.
pub fn run<T: Send>(procs: usize, what: &str, f: impl FnOnce() -> T + Send) -> T {
    let runtime = runtime(procs);
    let result = within(LONG, what, || runtime.run(f));
    runtime.check().unwrap();
    assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
    result
}

/// Runs `f` as the main goroutine. At its end, still on the goroutine, the structures of the
/// runtime agree and no wake-up was lost.
pub fn checked<T: Send>(runtime: &Runtime, f: impl FnOnce() -> T + Send) -> T {
    runtime.run(|| {
        let value = f();
        debug::check().unwrap();
        assert_eq!(debug::metrics().rescues, 0, "WK: a wake-up was lost");
        value
    })
}

/// The text with which `f` panics.
#[track_caller]
pub fn panic_text<T>(f: impl FnOnce() -> T) -> String {
    let Err(payload) = catch_unwind(AssertUnwindSafe(f)) else {
        panic!("no panic");
    };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => (*payload.downcast::<&str>().expect("a text")).to_owned(),
    }
}

/// Touches about `kib` KiB of stack and returns `kib`.
#[inline(never)]
pub fn deep(kib: usize) -> usize {
    let frame = std::hint::black_box([kib as u8; 1024]);
    match kib {
        0 => 0,
        _ => deep(kib - 1) + usize::from(frame[kib % 1024] == kib as u8),
    }
}
