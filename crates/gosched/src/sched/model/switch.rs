//! Leaving a goroutine's stack and coming back to it: `suspend`, `resume`, `systemstack`.
//!
//! A goroutine may continue on another thread, so every switch goes through these functions.
//! **After a switch everything thread-bound is stale**: no value read from `current_m` may be used
//! across `suspend`.

use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

use crate::arch;
use crate::base::closure::call_once;
use crate::sched::model::asan;
use crate::sched::model::current::{self, current_m};
use crate::sched::model::m::M;
use crate::sched::model::ptr::{Gp, Mp};

/// The bit in the word with which a goroutine is resumed. Set: the word is the address of a
/// [`Probe`]. Clear: the word is the M that runs the goroutine from now on, so that the goroutine
/// need not look it up.
const PROBE: usize = 1;

/// The word with which a goroutine is resumed.
enum Resumed {
    By(Mp),
    /// `Probe::collect` lends its probe to the goroutine until the goroutine switches back (G6).
    ToAnswer(NonNull<Probe>),
}

impl Resumed {
    /// # Safety
    /// [`resume`] or [`Probe::collect`] passed the word.
    #[inline(always)]
    unsafe fn from_word(word: usize) -> Resumed {
        if word & PROBE != 0
            && let Some(probe) = NonNull::new((word & !PROBE) as *mut Probe)
        {
            return Resumed::ToAnswer(probe);
        }
        // SAFETY: `resume` passes its own M, which is never freed.
        match unsafe { Mp::from_raw(word as *mut M) } {
            Some(m) => Resumed::By(m),
            None => crate::base::fatal::throw("a goroutine was resumed without an M"),
        }
    }
}

/// Frames of one goroutine that a dump keeps.
pub(crate) const FRAMES_MAX: usize = 100;

/// A request to a suspended goroutine: unwind yourself, write the addresses here, suspend again.
///
/// The goroutine switches to its own frames only to be their innermost one. The unwinder itself
/// runs below the frames of the prober. The goroutine may have little room left. Or it may have
/// gone to another stack by itself, whose size the runtime does not know.
pub(crate) struct Probe {
    back: usize,
    /// The goroutine's stack pointer; 0: unknown.
    pub(crate) sp: usize,
    pub(crate) len: usize,
    pub(crate) pcs: [usize; FRAMES_MAX],
}

impl Probe {
    pub(crate) const fn new() -> Probe {
        Probe {
            back: 0,
            sp: 0,
            len: 0,
            pcs: [0; FRAMES_MAX],
        }
    }

    /// Collects the return addresses of a suspended goroutine.
    ///
    /// # Safety
    /// `g` is suspended, and the caller holds it: by the Scan bit over Waiting or Runnable, or
    /// because the world is stopped. So no other thread resumes it (G6). The caller has some 12 KiB
    /// of stack left.
    pub(crate) unsafe fn collect(&mut self, g: Gp) {
        self.len = 0;
        self.sp = 0;
        let (sp, lo) = (g.sp.get(), g.stack_lo.get());
        if lo == 0 || g.is_own_stack(sp) && sp < lo + PROBE_ROOM {
            return;
        }
        let probe: *mut Probe = self;
        let left = asan::leave_for(g);
        // The goroutine stays on the prober's FS: no state of its own may change.
        let tp = arch::thread_pointer();
        let record = AtomicUsize::new(tp);
        let arg = probe as usize | PROBE;
        // SAFETY: G6, the caller holds `g`, so its frames stay as they are. `answer` switches back
        // to `back` before any other code of the goroutine runs.
        unsafe { arch::enter(&raw mut (*probe).back, sp, arg, tp, &raw const record) };
        asan::arrive(left);
        self.sp = sp;
    }
}

/// The room that an answer needs below a suspended goroutine's stack pointer: a few small frames.
const PROBE_ROOM: usize = 1024;

/// Leaves the goroutine's stack for g0's. Returns when the goroutine is resumed, with the M that it
/// is on then.
#[inline(always)]
pub(crate) fn suspend(m: Mp, g: Gp) -> Mp {
    m.sched().tls.return_malloc(&m.tp);
    let left = asan::leave_g(g);
    // SAFETY: D5, this code runs on g's stack, and g0's frame on this M waits in `resume`. FS stays
    // as it is: g0 touches no thread-local (D6).
    let resumed = unsafe { Resumed::from_word(arch::leave(g.sp.as_ptr(), m.g0_sp.get())) };
    let from = asan::arrive(left);
    match resumed {
        Resumed::By(m) => m,
        Resumed::ToAnswer(probe) => answer(g, probe, from),
    }
}

/// A probed goroutine unwinds itself and suspends again, until it is resumed to run.
#[cold]
#[inline(never)]
fn answer(g: Gp, mut probe: NonNull<Probe>, mut from: asan::Bounds) -> Mp {
    loop {
        // SAFETY: G6, `collect` waits until this goroutine switches back. So the probe is this
        // goroutine's, and the memory below `back`, where the prober's frames end, is free.
        // `collect` has made sure that it is large enough. `backtrace_here` does not switch.
        let (back, left) = unsafe {
            let probe = probe.as_mut();
            let back = probe.back;
            let from = call_on(back, asan::leave(from), || backtrace_here(probe));
            (back, asan::leave(from))
        };
        // SAFETY: D5, `back` is the saved stack pointer of the prober, which waits in `collect`.
        let resumed = unsafe { Resumed::from_word(arch::leave(g.sp.as_ptr(), back)) };
        from = asan::arrive(left);
        match resumed {
            Resumed::By(m) => return m,
            Resumed::ToAnswer(again) => probe = again,
        }
    }
}

/// Calls `f` on the stack that ends at `sp`, which `left` announces. Returns that stack's bounds.
///
/// # Safety
/// The memory below `sp` is free to use and large enough. `f` does not switch.
unsafe fn call_on(sp: usize, left: asan::Left, f: impl FnOnce()) -> asan::Bounds {
    let there = || {
        let from = asan::arrive(asan::Left::NOTHING);
        f();
        asan::leave(from);
    };
    call_once(there, |callback, data| {
        // SAFETY: `sp` and `f` are as required (see "Safety"). A callback cannot unwind (extern
        // "C").
        unsafe { arch::call_on(sp, callback, data) };
    });
    asan::arrive(left)
}

/// Writes the caller's return addresses, innermost first.
#[inline(never)]
pub(crate) fn backtrace_here(probe: &mut Probe) {
    probe.len = 0;
    probe.sp = current::goroutine_sp();
    let _served = crate::sys::objects::serve();
    // SAFETY: the callback only writes into the probe, which the exclusive borrow gives to it.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            if probe.len < FRAMES_MAX {
                probe.pcs[probe.len] = frame.ip() as usize;
                probe.len += 1;
            }
            probe.len < FRAMES_MAX
        });
    }
}

/// Runs a goroutine on its FS until it leaves through [`suspend`]. Called on g0.
#[inline(always)]
pub(crate) fn resume(m: Mp, g: Gp, tp: usize) {
    let left = asan::leave_for(g);
    // SAFETY: G2/S1, g is Running, and this M alone runs it. `suspend` or `prepare` left its saved
    // stack pointer. D6, `tp` is the goroutine's own thread pointer, or this thread's.
    unsafe {
        let (arg, record) = (m.as_ptr() as usize, m.tp.record());
        arch::enter(m.g0_sp.as_ptr(), g.sp.get(), arg, tp, record);
    }
    asan::arrive(left);
}

/// Runs `f`, which does not switch, on g0's stack and returns to the goroutine (Go's
/// `systemstack`). On g0, and outside a runtime, it is a plain call.
pub(crate) fn systemstack<R>(f: impl FnOnce() -> R) -> R {
    let Some(m) = current_m() else { return f() };
    if current::on_g0(m) {
        return f();
    }
    debug_assert!(current::on_curg(m), "systemstack in a signal handler");
    let mut out = None;
    // SAFETY: D5, g0's frames end at `g0_sp` while a goroutine runs.
    unsafe { call_on(m.g0_sp.get(), asan::leave_for_g0(m), || out = Some(f())) };
    match out {
        Some(out) => out,
        None => unreachable!("the call has returned"),
    }
}
