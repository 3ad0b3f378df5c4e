//! The door: which M is this thread? No other code reads the answer's sources, and no answer
//! survives a switch.
//!
//! The platform leaves one register free for programs (`arch`: the runtime's register). Each M
//! keeps its own address there. Reading it takes one instruction and no thread-local, so the
//! scheduler can run on any goroutine's thread-locals (D6). Three traps are closed here:
//! - A thread outside the runtime has 0 in the register.
//! - A thread that a goroutine started inherits its M's register. So a flag among the thread-locals
//!   marks Ms (`tls/flag.rs`). If it is up, the M's address is read through the register, which is
//!   far cheaper than reading the register itself. If it is not up, or has no fixed place, the
//!   register is read, and the thread pointer is compared with the one that the M has recorded. M
//!   structs are never freed, so this comparison is safe even after the runtime is gone.
//! - Where programs may not use the register (old CPUs, valgrind), a thread-local replaces it.
//!   Goroutines then share their thread's thread-locals, the mode in which a thread-local gives the
//!   right answer.

use std::cell::Cell;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Relaxed;

use crate::arch;
use crate::base::lock::ranks;
use crate::sched::model::m::M;
use crate::sched::model::ptr::{Gp, Mp};
use crate::tls::flag;

const UNKNOWN: u8 = 0;
const REGISTER: u8 = 1;
const TLS: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

thread_local! {
    static CURRENT: Cell<Option<Mp>> = const { Cell::new(None) };
}

fn uses_register() -> bool {
    match MODE.load(Relaxed) {
        REGISTER => true,
        TLS => false,
        _ => detect(),
    }
}

#[cold]
#[inline(never)]
fn detect() -> bool {
    let has_register = arch::has_runtime_register();
    flag::note_first_place();
    MODE.store(if has_register { REGISTER } else { TLS }, Relaxed);
    has_register
}

/// The M of this thread, if it is one and is running under its own identity.
#[inline]
pub(crate) fn current_m() -> Option<Mp> {
    if !flag::is_up() {
        return slow_current();
    }
    // SAFETY: D5, the flag is up only on threads whose register holds their M's address
    // (`become_m`); `this` is that address too.
    unsafe {
        let m = arch::load_by_runtime_register::<{ std::mem::offset_of!(M, this) }>();
        Mp::from_raw(m as *mut M)
    }
}

/// Whether `m`, the M of this thread, is on the block that its record shows.
pub(crate) fn is_settled(m: Mp) -> bool {
    m.tp.is_settled()
}

/// The goroutine that is running here; None on g0 and on threads outside every runtime.
#[inline]
pub(crate) fn current_g() -> Option<Gp> {
    current_m()?.curg()
}

/// The M of the thread that a signal has just interrupted, whichever block the thread is on;
/// CONTEXT: signal. A thread that only inherited the register has another thread id.
pub(crate) fn interrupted_m() -> Option<Mp> {
    if MODE.load(Relaxed) != REGISTER {
        return slow_current(); // the thread is always on its own block
    }
    registered_m().filter(|m| m.tid.load(Relaxed) == crate::sys::gettid())
}

/// The M in the register, maybe another thread's; None where programs may not use the register.
fn registered_m() -> Option<Mp> {
    if MODE.load(Relaxed) != REGISTER {
        return None;
    }
    // SAFETY: D5, the register is there by the mode, and holds 0 or an M (`set`), which is never
    // freed.
    unsafe { Mp::from_raw(arch::runtime_register() as *mut M) }
}

#[cold]
#[inline(never)]
fn slow_current() -> Option<Mp> {
    if uses_register() {
        return registered_m().filter(|m| m.tp.is_settled());
    }
    CURRENT.try_with(Cell::get).ok().flatten()
}

/// Makes this thread `m`, before it first schedules.
pub(crate) fn become_m(m: Mp) {
    m.this.set(m.as_ptr());
    m.tp.begin();
    set(Some(m));
    if uses_register() {
        flag::raise();
    }
}

/// This thread is no M any more. It is on its own block.
pub(crate) fn resign_m(m: Mp) {
    flag::lower();
    m.tp.end();
    set(None);
}

fn set(m: Option<Mp>) {
    if uses_register() {
        let word = m.map_or(0, |m| m.as_ptr() as usize);
        // SAFETY: D5, the register is there by the mode; on this thread only the door uses it.
        unsafe { arch::set_runtime_register(word) };
    } else {
        set_fallback(m);
    }
}

/// A function of its own, so that no function which switches touches a thread-local (D6).
#[cold]
#[inline(never)]
fn set_fallback(m: Option<Mp>) {
    CURRENT.set(m);
}

/// Whether this code runs on `m`'s scheduling stack.
#[inline]
pub(crate) fn on_g0(m: Mp) -> bool {
    (m.g0_lo.get()..m.g0_hi.get()).contains(&arch::stack_pointer())
}

/// Whether this code runs on the thread's signal stack.
#[inline]
fn on_signal_stack(m: Mp) -> bool {
    (m.signal_lo.get()..m.signal_hi.get()).contains(&arch::stack_pointer())
}

/// Whether this code is `m`'s current goroutine: on its own stack, or on another that the goroutine
/// itself has switched to (`stacker`, a coroutine). So the test is that the code is on neither
/// stack of the thread.
#[inline]
pub(crate) fn on_curg(m: Mp) -> bool {
    m.curg().is_some() && !on_g0(m) && !on_signal_stack(m)
}

/// The stack pointer of the goroutine that runs here; 0 on g0, in a signal handler and on other
/// threads.
pub(crate) fn goroutine_sp() -> usize {
    match current_m() {
        Some(m) if on_curg(m) => arch::stack_pointer(),
        _ => 0,
    }
}

/// D9: user code is about to run; it must not find itself inside the runtime.
#[inline]
pub(crate) fn assert_user_context() {
    if cfg!(debug_assertions) {
        ranks::assert_none("user code");
        if let Some(m) = current_m()
            && (m.claim.depth() != 0 || on_g0(m))
        {
            crate::base::fatal::throw("user code inside the runtime");
        }
    }
}
