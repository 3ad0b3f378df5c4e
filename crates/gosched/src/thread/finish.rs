//! The last steps of a goroutine on its own stack: its last destructors, and the report of a panic.

use std::any::Any;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Exited, Result};
use crate::sched::life::thread_locals;
use crate::sched::model::current::{current_g, current_m};

/// Runs the last destructors of a goroutine. The hook reports a panic in them, and it ends here.
/// Returns false then.
pub(super) fn catch_last_panic(f: impl FnOnce()) -> bool {
    let result = catch_unwind(AssertUnwindSafe(f));
    let ok = result.is_ok();
    if !ok {
        report_panic();
        std::mem::forget(result); // dropping the payload might panic again
    }
    ok
}

/// With `panic_abort` any panic ends the process, as in Go. Exception: goroutines that outlive the
/// drop of their runtime.
pub(crate) fn report_abort<T>(result: &Result<T>) {
    if let Err(payload) = result
        && !payload.is::<Exited>()
        && let Some(m) = current_m()
        && m.sched().config.panic_abort
        && !m.sched().is_dead()
    {
        report_panic();
        crate::sys::exit_process(2);
    }
}

/// The last step of a goroutine without a handle: reports its panic.
pub(crate) fn finish_report(result: std::result::Result<(), Box<dyn Any + Send>>) {
    report_abort(&result);
    if let Err(payload) = &result
        && !payload.is::<Exited>()
    {
        report_panic();
    }
    catch_last_panic(|| drop(result));
    thread_locals::end();
    super::release_inner();
}

fn report_panic() {
    if let Some(g) = current_g().filter(|g| !g.sched().is_dead()) {
        let name = g
            .name()
            .map(|name| format!(" [{name}]"))
            .unwrap_or_default();
        let site = g.site.get().map(|site| format!(", spawned at {site}"));
        let site = site.unwrap_or_default();
        // A closed stderr is not an error.
        let _ = writeln!(io::stderr(), "goroutine {}{name}{site}", g.id());
    }
}
