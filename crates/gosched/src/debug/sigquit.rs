//! A dump of every goroutine when the process gets SIGQUIT.
//!
//! The handler is in `signal/quit.rs`. It only wakes the thread that is here, which takes the dump
//! and prints it.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use crate::base::real_thread;
use crate::sched::life::registry;
use crate::signal;
use crate::signal::quit;

/// Installs the handler and starts its thread, once per process.
pub(super) fn install() -> io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        let _turn = signal::turn();
        real_thread::spawn("gosched-sigquit", answer)?;
        quit::install()?;
        *done = true;
    }
    Ok(())
}

fn answer() {
    registry::add_thread();
    let mut answered = 0;
    loop {
        answered = quit::wait(answered);
        for runtime in registry::snapshot() {
            let dump = super::dump::dump_of(&runtime);
            // The thread waits for the next signal even if stderr is closed.
            let _ = writeln!(io::stderr(), "SIGQUIT: quit\n\n{dump}");
        }
    }
}
