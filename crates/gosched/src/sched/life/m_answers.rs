//! The scheduler's table of functions for questions about this thread's M (`base/this_m.rs`).
//!
//! The floors below the scheduler cannot import the M, so they ask through this table.

#[cfg(debug_assertions)]
use crate::base::this_m::Locks;
use crate::base::this_m::{self, Answers, AnyM};
#[cfg(debug_assertions)]
use crate::sched::model::current::current_m;
use crate::sched::model::ptr::Mp;
use crate::sched::park;

/// Sets the table. Called before a runtime is built.
pub(crate) fn install() {
    static ANSWERS: Answers = Answers {
        enter,
        leave,
        #[cfg(debug_assertions)]
        locks,
    };
    this_m::set(&ANSWERS);
}

fn enter() -> Option<AnyM> {
    let entered = park::enter();
    let m = entered.m();
    std::mem::forget(entered); // `leave` follows
    m.map(|m| m.non_null().cast())
}

/// # Safety
/// `enter` returned `m` to this thread, and no switch came between.
unsafe fn leave(m: AnyM) {
    // SAFETY: GF, `enter` returned the address of an M, and Ms are never freed.
    park::leave(unsafe { Mp::new(m.cast()) });
}

#[cfg(debug_assertions)]
fn locks() -> Option<Locks> {
    current_m().map(|m| Locks {
        // SAFETY: GF, Ms are never freed. Only the M's own thread uses the cell.
        held: unsafe { &(*m.as_ptr()).held },
        is_inside: m.claim.depth() != 0,
    })
}
