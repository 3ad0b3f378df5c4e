//! What the runtime reports about itself.
//!
//! | module | topic |
//! |---|---|
//! | `dumps` | every goroutine with its state, what it waits for, its backtrace |
//! | `metrics`, `checks` | counters; `debug::check` under load |
//! | `schedtrace` | the lines of `GOSCHED_DEBUG=schedtrace` |
//! | `fatal` | the report of a fatal error |
//! | `leaks` | `debug::leaks`, and the targets of waits |
//! | `calls_seen` | all of that for goroutines that compute or block their thread |
//! | `backtraces`, `sigquit` | std's and gdb's backtraces; the dump on SIGQUIT |
//!
//! A binary of its own because: it resolves symbols all the time, which takes time in proportion to
//! the size of the binary.

mod backtraces;
mod calls_seen;
mod checks;
#[path = "../common/mod.rs"]
mod common;
mod dumps;
mod fatal;
mod leaks;
mod metrics;
mod schedtrace;
mod sigquit;
