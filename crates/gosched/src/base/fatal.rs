//! Fatal errors: the runtime cannot continue after them. The text goes out by `write(2)` first,
//! then the goroutines, and the process exits with status 2, as Go's does.
//!
//! One thread reports. A second error on that thread exits at once; an error on another thread
//! waits for the end of the process.

use std::fmt;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicUsize};

use crate::base::this_m;
use crate::base::upcall::Upcall;
use crate::sys;

/// Prints the goroutines after the text of a fatal error. `debug/attach.rs` sets it.
pub(crate) static PRINT_GOROUTINES: Upcall<fn()> = Upcall::new();

/// How many seconds [`PRINT_GOROUTINES`] may take. Only tests change it.
pub(crate) static PATIENCE_S: AtomicUsize = AtomicUsize::new(5);

/// The kernel's id of the thread that reports; 0: none does yet.
static REPORTER: AtomicI32 = AtomicI32::new(0);

/// Reports a bug of the runtime, or a limit that was exceeded.
#[cold]
#[inline(never)]
pub(crate) fn throw(message: &str) -> ! {
    throw_fmt(format_args!("{message}"))
}

/// As [`throw`], with arguments.
#[cold]
#[inline(never)]
pub(crate) fn throw_fmt(message: fmt::Arguments<'_>) -> ! {
    begin();
    sys::eprint_raw(format_args!("fatal error: {message}\n"));
    end()
}

/// Reports that the limit of threads is exceeded (MG).
#[cold]
pub(crate) fn thread_exhaustion(limit: u32) -> ! {
    begin();
    sys::eprint_raw(format_args!(
        "runtime: program exceeds {limit}-thread limit\nfatal error: thread exhaustion\n"
    ));
    end()
}

/// Whether this thread reports. Lock ranks do not matter then: the thread may hold any lock.
#[cfg(debug_assertions)]
pub(crate) fn is_reporting() -> bool {
    REPORTER.load(SeqCst) != 0 && REPORTER.load(SeqCst) == sys::gettid()
}

/// Prepares a report. Returns once in the process, to the thread that reports.
pub(crate) fn begin() {
    let me = sys::gettid();
    match REPORTER.compare_exchange(0, me, SeqCst, SeqCst) {
        // The report is the last thing this thread does, so it never leaves the runtime again.
        Ok(_) => std::mem::forget(this_m::enter()),
        Err(other) if other == me => sys::exit_process(2),
        Err(_) => loop {
            sys::sleep_ns(1_000_000_000);
        },
    }
}

/// Prints the goroutines and ends the process.
pub(crate) fn end() -> ! {
    if let Some(print_goroutines) = PRINT_GOROUTINES.get() {
        print_goroutines();
    }
    sys::exit_process(2)
}
