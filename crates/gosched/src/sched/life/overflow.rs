//! Reports a goroutine's stack overflow, with its name and the setting to change (U8).
//!
//! The fault arrives as SIGSEGV on the M's own signal stack. It is ours if the address is in the
//! guard of the goroutine on this M, and the goroutine was on its own stack. Any other fault goes
//! to the handler that was there before; std reports overflows of plain threads there. A stack that
//! the goroutine has gone to itself (`stacker`, a coroutine) is not ours either, because no setting
//! of the runtime enlarges it.
//!
//! One more fault is the runtime's own: a load of a futex's word that the program has passed
//! (`arch::load_or_fault`).
//!
//! CONTEXT: signal. Nothing here allocates or takes a lock.

use std::ffi::c_int;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::sync::{Mutex, PoisonError};

use crate::base::static_ref::StaticRef;
use crate::sched::model::current::current_m;
use crate::sched::model::ptr::Gp;
use crate::stack::{Arena, class_size};
use crate::sys;
use crate::sys::{Action, Context, Info};

/// The actions before ours, for SIGSEGV and SIGBUS.
static OLD: [StaticRef<Action>; 2] = [const { StaticRef::none() }; 2];
/// The name that `run` gives to a main goroutine.
const MAIN: &str = "main";
const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Installs the handler, once per process. In user context.
pub(crate) fn install() -> io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if !*done {
        for (signal, old) in SIGNALS.into_iter().zip(&OLD) {
            // The old action must be stored before ours can run, so it is read first.
            old.store(Some(Box::leak(Box::new(Action::read(signal)?))));
            // SAFETY: D4, the handler is async-signal-safe and runs on the alternate stack.
            unsafe { sys::sigaction_install(signal, on_fault, libc::SA_ONSTACK)? };
        }
        *done = true;
    }
    Ok(())
}

extern "C" fn on_fault(signal: c_int, info: Info<'_>, mut context: Context<'_>) {
    if context.interrupted().skip_faulted_load() {
        return; // a futex's word has no memory
    }
    let addr = info.fault_address();
    if let Some(g) = current_m().and_then(|m| m.curg())
        && let Some(stack) = g.stack()
    {
        let sp = context.interrupted().sp();
        let (lo, hi) = Arena::guard_range(&stack);
        // A large frame may begin below the guard that it has touched.
        let is_below = (lo.saturating_sub(class_size(stack.class))..hi).contains(&sp);
        if (lo..hi).contains(&addr) && (is_below || stack.contains(sp)) {
            report(g, addr);
        }
    }
    pass_on(signal, info, &mut context);
}

fn report(g: Gp, addr: usize) -> ! {
    static REPORTING: AtomicBool = AtomicBool::new(false);
    if REPORTING.swap(true, Acquire) {
        loop {
            sys::sleep_ns(1_000_000_000);
        }
    }
    let (lo, hi) = (g.stack_lo.get(), g.stack_hi.get());
    let limit = class_size(g.class.get());
    sys::eprint_raw(format_args!(
        "runtime: goroutine stack exceeds {limit}-byte limit\n\
         runtime: address {addr:#x} is in the guard below stack [{lo:#x}, {hi:#x})\n\
         fatal error: stack overflow\n\ngoroutine {}",
        g.id()
    ));
    if let Some(name) = g.name() {
        sys::eprint_raw(format_args!(" \"{name}\""));
    }
    sys::write_stderr(b" [running]");
    if let Some(site) = g.site.get() {
        sys::eprint_raw(format_args!(
            ", created in goroutine {} at {site}",
            g.parent.load(std::sync::atomic::Ordering::Relaxed)
        ));
    }
    let for_one = match g.name() == Some(MAIN) {
        true => "",
        false => "for one goroutine with gosched::thread::Builder::stack_size, ",
    };
    sys::eprint_raw(format_args!(
        "\n\nRaise the limit {for_one}for all with gosched::Builder::stack_size\n\
         or the environment variable RUST_MIN_STACK.\n"
    ));
    sys::exit_process(2)
}

/// The fault is not ours: calls the handler before.
fn pass_on(signal: c_int, info: Info<'_>, context: &mut Context<'_>) {
    let old = SIGNALS.iter().zip(&OLD).find(|(s, _)| **s == signal);
    let Some(old) = old.and_then(|(_, old)| old.load()) else {
        return;
    };
    if !old.call(signal, info, context) {
        // Restore the old action: the faulting instruction runs again and meets it.
        old.restore();
    }
}
