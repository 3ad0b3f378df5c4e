//! Prints the goroutines in a fatal error, as far as possible.
//!
//! Nothing can be relied on: other threads run, locks may be held, malloc may be broken. So the
//! report has two parts:
//!
//! 1. A compact one that needs neither malloc nor a stopped world: one line per goroutine with the
//!    addresses on its stack, good enough for `addr2line`.
//! 2. The readable form, on a thread of its own: the thread that failed may have little stack left.
//!
//! Two watchdogs end a report that hangs: an alarm signal, which needs no thread, and sysmon, in
//! case the program blocks that signal everywhere.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::collect::{Record, Snapshot, View};
use super::dump::{Goroutine, name_awaited};
use super::out::Out;
use super::symbols::{Symbols, on_thread};
use crate::base::fatal::PATIENCE_S;
use crate::sched::Sched;
use crate::sched::life::registry;
use crate::sched::model::current::current_m;
use crate::sched::model::ptr::Mp;
use crate::sched::model::switch;
use crate::sched::model::switch::Probe;
use crate::sys;

/// The most goroutines, and addresses of each, in the compact part.
const LINES_MAX: usize = 100;
const ADDRESSES_MAX: usize = 16;
/// The most goroutines in the readable part.
const GOROUTINES_MAX: usize = 1000;
/// The most runtimes that are shown.
const RUNTIMES_MAX: usize = 8;

/// Prints every goroutine of the process that it can get at. Called once, by the thread that
/// reports a fatal error.
pub(crate) fn print_fatal() {
    set_alarm();
    let m = current_m();
    if let Some(m) = m {
        watch(m.sched());
    }
    let mut stack = Probe::new();
    switch::backtrace_here(&mut stack);
    let mut snapshots = [const { Snapshot::new() }; RUNTIMES_MAX];
    let mut ids = [0; RUNTIMES_MAX];
    let count = collect(m, &stack, &mut snapshots, &mut ids);
    let runtime_stack = m.filter(|m| is_scheduling(*m)).map(|_| &stack);
    print_addresses(runtime_stack, &snapshots[..count]);
    let readable = on_thread(|| print_readable(runtime_stack, &snapshots[..count], &ids));
    if readable.is_none() {
        sys::write_stderr(b"(no thread to look up symbols)\n");
    }
}

/// Has the kernel end the process if the report hangs. Replaces the program's own handler of the
/// signal.
fn set_alarm() {
    // SAFETY: D9, the handler is async-signal-safe: it makes bare system calls only.
    let installed = unsafe { sys::sigaction_install(libc::SIGALRM, on_alarm, libc::SA_ONSTACK) };
    if installed.is_ok() {
        // SAFETY: alarm(2) takes a number and touches no memory.
        unsafe { sys::syscall1(libc::SYS_alarm, patience_s()) };
    }
}

extern "C" fn on_alarm(_: c_int, _: sys::Info<'_>, _: sys::Context<'_>) {
    sys::write_stderr(b"\n(the report was cut short: it took too long)\n");
    sys::exit_process(2)
}

/// How long the report may take.
fn patience_s() -> usize {
    // ORDER: Relaxed; a number that guards nothing.
    PATIENCE_S.load(Relaxed)
}

/// Has sysmon end the process if the report hangs.
fn watch(sched: &Sched) {
    let deadline = sys::monotonic_ns().saturating_add(patience_s() as u64 * 1_000_000_000);
    sched.sysmon.fatal_deadline_ns.store(deadline, SeqCst);
    sched.sysmon.wake();
}

/// Whether the scheduler itself failed, so that its stack is worth showing: this M has a P and is
/// on g0. The report of a deadlock has no such stack: sysmon reports it.
fn is_scheduling(m: Mp) -> bool {
    m.curg().is_none() && m.p.load(Relaxed).is_some()
}

fn collect(
    m: Option<Mp>,
    stack: &Probe,
    snapshots: &mut [Snapshot; RUNTIMES_MAX],
    ids: &mut [u32; RUNTIMES_MAX],
) -> usize {
    let caller = m.and_then(|m| m.curg()).map(|g| (g, stack));
    let registry = registry::lock();
    let mut count = 0;
    for sched in registry.runtimes().take(RUNTIMES_MAX) {
        watch(sched);
        sched.update_clock(sys::monotonic_ns());
        snapshots[count].collect(sched, caller, GOROUTINES_MAX, false);
        ids[count] = sched.id;
        count += 1;
    }
    count
}

fn print_addresses(runtime_stack: Option<&Probe>, snapshots: &[Snapshot]) {
    // This is the stack of the thread that failed, so the buffer is small.
    let mut out = Out::<1024>::new();
    out.put(format_args!("\n"));
    if let Some(stack) = runtime_stack {
        out.put(format_args!("runtime stack"));
        put_addresses(&mut out, &stack.pcs[..stack.len]);
    }
    let mut left = LINES_MAX;
    for snapshot in snapshots {
        let shown = &snapshot.records()[..snapshot.records().len().min(left)];
        for record in shown {
            out.put(format_args!("{}", snapshot.heading(record)));
            match record.view {
                View::NotStarted => out.put(format_args!(" (not started)\n")),
                View::Elsewhere => out.put(format_args!(" (stack unavailable)\n")),
                View::Whole | View::Cut | View::NoRoom | View::Left => {
                    put_addresses(&mut out, snapshot.pcs(record));
                }
            }
        }
        left -= shown.len();
        let elided = snapshot.elided + snapshot.records().len() - shown.len();
        if elided > 0 {
            out.put(format_args!("...{elided} goroutines elided...\n"));
        }
    }
}

fn put_addresses(out: &mut Out<1024>, pcs: &[usize]) {
    out.put(format_args!(" pcs:"));
    for pc in pcs.iter().take(ADDRESSES_MAX) {
        out.put(format_args!(" {pc:#x}"));
    }
    out.put(format_args!("\n"));
}

/// Prints the readable part. It allocates; the watchdogs are set.
fn print_readable(runtime_stack: Option<&Probe>, snapshots: &[Snapshot], ids: &[u32]) {
    let mut symbols = Symbols::default();
    let mut out = <Out>::new();
    if let Some(stack) = runtime_stack {
        out.put(format_args!("\nruntime stack:\n"));
        for frame in symbols.whole_stack(&stack.pcs[..stack.len]) {
            out.put(format_args!("{frame}\n"));
        }
    }
    for (snapshot, id) in snapshots.iter().zip(ids) {
        if snapshots.len() > 1 {
            out.put(format_args!("\nruntime {id}:\n"));
        }
        let readable = |record: &Record| {
            let goroutine = Goroutine::new(snapshot, record, &mut symbols);
            if record.is_caller {
                // The runtime's own frames show what went wrong.
                goroutine.with_frames(symbols.whole_stack(snapshot.pcs(record)))
            } else {
                goroutine
            }
        };
        let mut goroutines: Vec<_> = snapshot.records().iter().map(readable).collect();
        name_awaited(&mut goroutines, snapshot.records());
        for goroutine in &goroutines {
            out.put(format_args!("\n{goroutine}"));
            out.flush();
        }
        if snapshot.elided > 0 {
            out.put(format_args!(
                "\n...{} goroutines elided...\n",
                snapshot.elided
            ));
        }
    }
}
