//! The door to "which M am I": nothing else reads it, and nothing read through it survives a switch.
//!
//! On x86-64 Linux the GS base is free for programs. Each M keeps its own address there; reading it takes
//! one instruction and no thread-local, so the scheduler can run on any goroutine's thread-locals (D6).
//! Three traps are closed here:
//! - A thread outside the runtime has GS 0.
//! - A thread that a goroutine started inherits its M's GS. So a thread-local word says whether this is an M: libc starts
//!   every thread with 0 in it, an M's own thread-locals and every goroutine's have 1. With 1 the M's address is read through
//!   GS, which is far cheaper than asking for GS itself. Where the word has no fixed place in the thread-locals, and on threads
//!   with 0 in it, GS is asked for, and FS is compared with the one that the M has recorded. M structs are never
//!   freed, so the look is safe even after the runtime is gone.
//! - Without the FSGSBASE instructions (old CPUs, valgrind) a thread-local stands in; then goroutines share
//!   their thread's thread-locals, which is the mode in which it is right.

use std::arch::asm;
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicIsize, AtomicU8};

use crate::base::lock::ranks;
use crate::sched::model::m::M;
use crate::sched::model::ptr::{Gp, Mp};

const UNKNOWN: u8 = 0;
const GS: u8 = 1;
const TLS: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// HWCAP2 bit by which the kernel says that user code may use the FSGSBASE instructions.
const HWCAP2_FSGSBASE: u64 = 1 << 1;

thread_local! {
    static CURRENT: Cell<*mut M> = const { Cell::new(ptr::null_mut()) };
    /// 1: this is an M's thread. A whole word, so that no other thread-local shares it.
    static IS_M: Cell<u64> = const { Cell::new(0) };
}

/// Where `IS_M` is, from FS; until that is known, and where there is no such place, a byte that is 0 on every thread: the highest
/// of the address at FS.
static IS_M_AT: AtomicIsize = AtomicIsize::new(NOWHERE);
const NOWHERE: isize = 7;
/// Where it is on the thread that asked first.
static FIRST_AT: AtomicIsize = AtomicIsize::new(NOWHERE);

/// Whether the door relies on the flag.
pub(crate) fn uses_flag() -> bool {
    IS_M_AT.load(Relaxed) != NOWHERE
}

/// Writes the flag of a block that no thread is on, or that is this thread's.
///
/// # Safety
/// `fs` is a whole block, and the flag has a place in blocks.
pub(crate) unsafe fn set_flag(fs: usize, value: u64) {
    // SAFETY: D6, by the caller's promise.
    unsafe { (fs.wrapping_add_signed(flag_offset()) as *mut u64).write(value) };
}

/// Where `IS_M` of this thread is, from its FS. On a thread's own FS.
#[inline(never)]
pub(crate) fn flag_offset() -> isize {
    IS_M.with(|flag| ptr::from_ref(flag).addr().wrapping_sub(read_fs()) as isize)
}

/// Whether this machine lets programs read and write FS and GS.
pub(crate) fn has_fsgsbase() -> bool {
    // SAFETY: a look into the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

fn uses_gs() -> bool {
    match MODE.load(Relaxed) {
        GS => true,
        TLS => false,
        _ => detect(),
    }
}

#[cold]
fn detect() -> bool {
    let gs = has_fsgsbase();
    FIRST_AT.store(flag_offset(), Relaxed);
    MODE.store(if gs { GS } else { TLS }, Relaxed);
    gs
}

/// The M of this thread, if it is one and is running under its own identity.
#[inline]
pub(crate) fn current_m() -> Option<Mp> {
    if !is_m() {
        return slow_current();
    }
    let m: *mut M;
    // SAFETY: D5, the flag says that GS is the M's address, and the M's first word is its address. Not `pure`: the answer
    // changes with every switch.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) m, const std::mem::offset_of!(M, this),
            options(readonly, nostack, preserves_flags));
        Mp::from_raw(m)
    }
}

/// Reads the flag, on whichever FS this is.
#[inline(always)]
fn is_m() -> bool {
    let flag: u32;
    // SAFETY: D6, a place in every thread's block, or the thread pointer's highest byte. Not `pure`, as above.
    unsafe {
        asm!("movzx {:e}, byte ptr fs:[{}]", out(reg) flag, in(reg) IS_M_AT.load(Relaxed),
            options(readonly, nostack, preserves_flags));
    }
    flag != 0
}

/// Whether `m`, the M of this thread, is on the FS that it says it is on.
pub(crate) fn is_settled(m: Mp) -> bool {
    m.fs.load(Relaxed) == read_fs()
}

/// The goroutine that is running here; None on g0 and on threads outside every runtime.
#[inline]
pub(crate) fn current_g() -> Option<Gp> {
    current_m()?.curg()
}

/// The M of the thread that a signal has just interrupted, whatever FS it is on; CONTEXT: signal. The thread id tells it
/// from a thread that merely inherited GS.
pub(crate) fn interrupted_m() -> Option<Mp> {
    if MODE.load(Relaxed) != GS {
        return slow_current(); // FS is the thread's own, always
    }
    // SAFETY: Ms are never freed (see above).
    let m = unsafe { Mp::from_raw(read_gs()) }?;
    (m.tid.load(Relaxed) == crate::sys::gettid()).then_some(m)
}

#[inline(always)]
fn read_gs() -> *mut M {
    let base: usize;
    // SAFETY: D5, only where FSGSBASE was found. Not `pure`: the answer changes with every switch.
    unsafe { asm!("rdgsbase {}", out(reg) base, options(nomem, nostack, preserves_flags)) };
    base as *mut M
}

/// The thread pointer: FS's first word points to itself, a nanosecond cheaper to read than the base itself. g0 may be on a
/// block that its next goroutine is just making new on another thread; that word of a block never changes (D6).
#[inline(always)]
pub(crate) fn read_fs() -> usize {
    let base: usize;
    // SAFETY: every thread of the System V ABI has it. Not `pure`, as above.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) base, options(readonly, nostack, preserves_flags));
    }
    base
}

#[cold]
#[inline(never)]
fn slow_current() -> Option<Mp> {
    if uses_gs() {
        // SAFETY: Ms are never freed (see above).
        let m = unsafe { Mp::from_raw(read_gs()) }?;
        return (m.fs.load(Relaxed) == read_fs()).then_some(m);
    }
    let raw = CURRENT.try_with(Cell::get).unwrap_or(ptr::null_mut());
    // SAFETY: Ms are never freed (see above).
    unsafe { Mp::from_raw(raw) }
}

/// Makes this thread `m`, before it first schedules.
pub(crate) fn become_m(m: Mp) {
    m.this.set(m.as_ptr());
    m.own_fs.set(read_fs());
    m.fs.store(read_fs(), Relaxed);
    set(m.as_ptr());
    if uses_gs() {
        raise_flag();
    }
}

/// This thread is an M's from now on. Its GS is set.
fn raise_flag() {
    IS_M.set(1);
    let at = flag_offset();
    if at == FIRST_AT.load(Relaxed) && crate::tls::has_flag(at) {
        let known = IS_M_AT.swap(at, Relaxed);
        assert!(
            known == NOWHERE || known == at,
            "a fixed thread-local has two places"
        );
    }
}

/// This thread is no M any more. It is on its own FS.
pub(crate) fn resign_m(m: Mp) {
    debug_assert_eq!(m.own_fs.get(), read_fs(), "D6: an M ends on its own FS");
    IS_M.set(0);
    m.fs.store(0, Relaxed);
    m.own_fs.set(0);
    set(ptr::null_mut());
}

fn set(raw: *mut M) {
    if uses_gs() {
        // SAFETY: D5, FSGSBASE was found; nothing else in the process uses GS on this thread.
        unsafe { asm!("wrgsbase {}", in(reg) raw, options(nostack, preserves_flags)) };
    } else {
        set_fallback(raw);
    }
}

/// Apart, so that no function which switches touches a thread-local (D6).
#[cold]
#[inline(never)]
fn set_fallback(raw: *mut M) {
    CURRENT.set(raw);
}

/// The stack pointer.
#[inline]
pub(crate) fn sp() -> usize {
    let sp: usize;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rsp", out(reg) sp, options(nomem, nostack, preserves_flags)) };
    sp
}

/// Whether this code runs on m's scheduling stack.
#[inline]
pub(crate) fn on_g0(m: Mp) -> bool {
    (m.g0_lo.get()..m.g0_hi.get()).contains(&sp())
}

/// Whether this code runs on the thread's signal stack.
#[inline]
fn on_signal_stack(m: Mp) -> bool {
    (m.signal_lo.get()..m.signal_hi.get()).contains(&sp())
}

/// Whether this code is m's current goroutine: on its stack, or on another that the goroutine has
/// gone to itself (`stacker`, a coroutine). So what counts is where it is not: on neither stack of
/// the thread.
#[inline]
pub(crate) fn on_curg(m: Mp) -> bool {
    m.curg().is_some() && !on_g0(m) && !on_signal_stack(m)
}

/// The stack pointer of the goroutine that runs here; 0 on g0, in a signal handler and on other
/// threads.
pub(crate) fn goroutine_sp() -> usize {
    match current_m() {
        Some(m) if on_curg(m) => sp(),
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
