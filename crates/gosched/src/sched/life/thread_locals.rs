//! When a goroutine makes, uses and finishes its thread block (D6). The blocks themselves are in
//! `tls/`.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::sched::Sched;
use crate::sched::model::current::current_m;
use crate::sched::model::g::ENDING;
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::park::{enter_m, left_switch};
use crate::tls;
use crate::tls::{Spare, call_on_tp};

/// A goroutine's first step, on its own stack. If it has begun on the thread's own block, it makes
/// its block and changes over to it. In user context; no code before it has touched a thread-local.
#[inline]
pub(crate) fn settle(m: Mp, g: Gp) {
    if m.tp.is_on_own() && m.sched().tls.is_own() {
        settle_slow(m, g);
    }
}

#[cold]
#[inline(never)]
fn settle_slow(m: Mp, g: Gp) {
    let room = &m.sched().tls;
    let take_spare = || {
        let m = enter_m(m);
        let spare = Spare::take();
        left_switch(m); // not the moment to yield: the goroutine has no block yet
        spare
    };
    let tp = tls::make_block(g.stack_lo.get(), g.stack_hi.get(), room, take_spare);
    let m = enter_m(m);
    // SAFETY: D6, the block is complete and its goroutine is this one; no thread-local is in use
    // here.
    unsafe { tls::move_to(tp, &m.tp, room) };
    left_switch(m);
}

/// A goroutine's last step before its end is known: destructors of its thread-locals and pthread
/// keys, and the block is as new. In user context, on its stack. The goroutine may wait in a
/// destructor; afterwards it touches no thread-local.
#[inline]
pub(crate) fn end() {
    if let Some(m) = current_m()
        && let Some(g) = m.curg()
    {
        let (room, hi) = (&m.sched().tls, g.stack_hi.get());
        if tls::is_block_touched(hi, room) {
            g.started.store(ENDING, Relaxed);
            tls::finish_block(hi, room);
        }
    }
}

/// Whether the goroutine that runs here is on the block it should be on.
pub(crate) fn is_home(m: Mp, g: Gp) -> bool {
    m.tp.current() == m.sched().tls.tp(&m.tp, g.stack_hi.get())
}

/// Runs `f` on the thread's own block: for what belongs to the thread and not to the goroutine. A
/// plain call on threads outside the runtime. `f` must not wait, and what it knows of thread-locals
/// must not leave it.
#[inline]
pub(crate) fn on_thread<R>(f: impl FnOnce() -> R) -> R {
    match current_m() {
        Some(m) if !m.tp.is_on_own() => {
            let out = call_on_tp(m.tp.own(), m.tp.record(), f);
            m.sched().tls.take_over_malloc(&m.tp);
            out
        }
        _ => f(),
    }
}

/// The thread pointers that Ms with a P are on: g0 stays on that of the goroutine it ran last until
/// it runs another, searches or gives up its P. Each M without a P is on its own block, or on that
/// of a goroutine that it still has and that has not ended. So if a stack was free before the look
/// and none of these lies above it, no M is on its block, and none comes to it while it is free.
pub(crate) fn standing(sched: &Sched) -> impl Iterator<Item = usize> {
    // ORDER: Acquire; pairs with the Release in `release_p`, which an M passes after it has left
    // the block. Relaxed in `current`: the M's store came before its goroutine was last suspended
    // there, and the stack came to the caller through that goroutine's end.
    let ms = sched.procs().filter_map(|p| p.m.load(Acquire));
    ms.map(|m| m.tp.current())
}
