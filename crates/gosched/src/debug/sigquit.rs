//! A dump of every goroutine when the process gets SIGQUIT.
//!
//! The handler only wakes a thread that does nothing else; that thread dumps and prints.

use std::ffi::{c_int, c_void};
use std::io::{self, Write};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::sched::life::registry;
use crate::shim::Futex;
use crate::signal;
use crate::sys;

/// Signals that have not been answered.
static ASKED: Futex = Futex::new(0);

/// Installs the handler and starts its thread, once per process.
pub(crate) fn install() -> io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        let _turn = signal::turn();
        std::thread::Builder::new()
            .name("gosched-sigquit".into())
            .spawn(answer)?;
        // SAFETY: the handler is async-signal-safe.
        unsafe {
            sys::sigaction_install(libc::SIGQUIT, on_quit, libc::SA_ONSTACK | libc::SA_RESTART)?
        };
        *done = true;
    }
    Ok(())
}

/// Our handler, as the system names it.
pub(crate) fn handler() -> usize {
    on_quit as *const () as usize
}

extern "C" fn on_quit(signal: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    crate::base::signals::note(signal);
    ASKED.0.fetch_add(1, SeqCst);
    Futex::wake_one(&ASKED);
}

fn answer() {
    registry::add_thread();
    let mut answered = 0;
    loop {
        while ASKED.0.load(SeqCst) == answered {
            ASKED.wait(answered, None);
        }
        answered = ASKED.0.load(Relaxed);
        for runtime in registry::snapshot() {
            let dump = super::dump::dump_of(&runtime);
            // A closed stderr is no reason to stop listening.
            let _ = writeln!(io::stderr(), "SIGQUIT: quit\n\n{dump}");
        }
    }
}
