//! The scheduler's table of functions for questions about this thread's M (`base/this_m.rs`).
//!
//! The floors below the scheduler cannot import the M, so they ask through this table.

#[cfg(debug_assertions)]
use crate::base::this_m::Locks;
use crate::base::this_m::{self, Answers};
use crate::sched::model::current::current_m;
use crate::sched::park;
#[cfg(debug_assertions)]
use std::sync::atomic::Ordering::Relaxed;

/// Sets the table. Called before a runtime is built.
pub(crate) fn install() {
    static ANSWERS: Answers = Answers {
        enter,
        leave,
        #[cfg(debug_assertions)]
        locks,
        #[cfg(debug_assertions)]
        set_held,
    };
    this_m::set(&ANSWERS);
}

fn enter() -> bool {
    let entered = park::enter();
    let is_m = entered.m().is_some();
    std::mem::forget(entered); // `leave` follows
    is_m
}

fn leave() {
    if let Some(m) = current_m() {
        park::leave(m);
    }
}

#[cfg(debug_assertions)]
fn locks() -> Option<Locks> {
    current_m().map(|m| Locks {
        held: m.held.load(Relaxed),
        is_inside: m.claim.depth() != 0,
    })
}

#[cfg(debug_assertions)]
fn set_held(ranks: u32) -> bool {
    let m = current_m();
    m.inspect(|m| m.held.store(ranks, Relaxed)).is_some()
}
