//! Leaving a goroutine's stack and coming back to it: `suspend`, `resume`, `systemstack`.
//!
//! A goroutine may continue on another thread, so every switch goes through these functions.
//! **After a switch everything thread-bound is stale**: no value read from `current_m` may be used
//! across `suspend`.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::atomic::AtomicUsize;

use crate::arch;
use crate::sched::model::asan;
use crate::sched::model::current::{self, current_m};
use crate::sched::model::m::M;
use crate::sched::model::ptr::{Gp, Mp};

/// The bit in the word with which a goroutine is resumed. Set: the word is the address of a
/// [`Probe`]. Clear: the word is the M that runs the goroutine from now on, so that the goroutine
/// need not look it up.
const PROBE: usize = 1;

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

/// The room that an answer needs below a suspended goroutine's stack pointer: two frames.
const PROBE_ROOM: usize = 1024;

/// Leaves the goroutine's stack for g0's. Returns when the goroutine is resumed, with the M that it
/// is on then.
#[inline(always)]
pub(crate) fn suspend(m: Mp, g: Gp) -> Mp {
    m.sched().tls.return_malloc(&m.tp);
    let left = asan::leave_g(g);
    // SAFETY: D5, this code runs on g's stack, and g0's frame on this M waits in `resume`. FS stays
    // as it is: g0 touches no thread-local (D6).
    let mut command = unsafe { arch::leave(g.sp.as_ptr(), m.g0_sp.get()) };
    let mut from = asan::arrive(left);
    while command & PROBE != 0 {
        (command, from) = answer(g, command, from);
    }
    // SAFETY: `resume` passes its own M, which is never freed.
    match unsafe { Mp::from_raw(command as *mut M) } {
        Some(m) => m,
        None => crate::base::fatal::throw("a goroutine was resumed without an M"),
    }
}

/// A probed goroutine unwinds itself and suspends again, until it is resumed to run.
#[cold]
#[inline(never)]
fn answer(g: Gp, command: usize, from: asan::Bounds) -> (usize, asan::Bounds) {
    let probe = (command & !PROBE) as *mut Probe;
    // SAFETY: G6, `collect` waits with the probe on its stack until this goroutine switches back.
    let back = unsafe { (*probe).back };
    let left = asan::leave(from);
    // SAFETY: D5, the prober's frames end at `back`, and the prober does not run. `unwind_for`
    // cannot unwind (extern "C").
    unsafe { arch::call_on(back, unwind_for, probe.cast()) };
    let left = asan::leave(asan::arrive(left));
    // SAFETY: D5, `back` is the prober's saved stack pointer.
    let command = unsafe { arch::leave(g.sp.as_ptr(), back) };
    (command, asan::arrive(left))
}

/// Writes the return addresses of the goroutine that answers. Runs on the prober's stack.
unsafe extern "C" fn unwind_for(probe: *mut u8) {
    let from = asan::arrive(asan::Left::NOTHING);
    // SAFETY: G6, the prober lends its probe to the goroutine that calls this, until that goroutine
    // switches back.
    backtrace_here(unsafe { &mut *probe.cast::<Probe>() });
    asan::leave(from);
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

/// Runs `f` on g0's stack and returns to the goroutine (Go's `systemstack`). On g0, and outside a
/// runtime, it is a plain call.
pub(crate) fn systemstack<R>(f: impl FnOnce() -> R) -> R {
    let Some(m) = current_m() else { return f() };
    if current::on_g0(m) {
        return f();
    }
    debug_assert!(current::on_curg(m), "systemstack in a signal handler");
    struct Call<F, R> {
        f: ManuallyDrop<F>,
        out: MaybeUninit<R>,
    }
    unsafe extern "C" fn thunk<F: FnOnce() -> R, R>(data: *mut u8) {
        let from = asan::arrive(asan::Left::NOTHING);
        // SAFETY: `data` is the `Call` below, which outlives `call_on` and which no other code uses
        // meanwhile.
        let call = unsafe { &mut *data.cast::<Call<F, R>>() };
        // SAFETY: `thunk` runs once per `Call`, so `f` is taken once.
        let f = unsafe { ManuallyDrop::take(&mut call.f) };
        call.out.write(f());
        asan::leave(from);
    }
    let mut call = Call {
        f: ManuallyDrop::new(f),
        out: MaybeUninit::uninit(),
    };
    let data: *mut Call<_, R> = &mut call;
    fn pick<F: FnOnce() -> R, R>(_: *mut Call<F, R>) -> unsafe extern "C" fn(*mut u8) {
        thunk::<F, R>
    }
    let left = asan::leave_for_g0(m);
    // SAFETY: D5, g0's frames end at `g0_sp` while a goroutine runs. `thunk` cannot unwind (extern
    // "C").
    unsafe { arch::call_on(m.g0_sp.get(), pick(data), data.cast()) };
    asan::arrive(left);
    // SAFETY: `call_on` has returned, so `thunk` has written `out`.
    unsafe { call.out.assume_init() }
}
