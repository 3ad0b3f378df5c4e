//! Panics and exits: destructors run, and may wait; locks are poisoned as they should be; joins get
//! the panic (G, U).

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Arc;

use gosched::sync::Mutex;
use gosched::thread::{self, Exited};

use crate::env::{Actor, Planned, resume_unplanned};
use crate::ledger::Token;

pub fn root(a: &mut Actor) {
    while !a.over() {
        match a.rng.below(5) {
            0 => caught(a),
            1 => poisoned(a),
            2 => exits(a),
            3 => in_a_scope(a),
            _ => in_a_destructor(a),
        }
        a.op();
        a.nap();
    }
}

/// A destructor that waits, also while its goroutine unwinds.
struct Lingers {
    a: Actor,
    token: Token,
    unwinds: bool,
}

impl Lingers {
    fn new(a: &mut Actor, unwinds: bool) -> Lingers {
        let (token, rng) = (a.token(), crate::rng::Rng::new(a.rng.next()));
        let a = Actor {
            env: Arc::clone(&a.env),
            mix: a.mix,
            rng,
        };
        Lingers { a, token, unwinds }
    }
}

impl Drop for Lingers {
    fn drop(&mut self) {
        let is_so = std::thread::panicking();
        self.a
            .expect(is_so || !self.unwinds, "the count of panics is wrong");
        for _ in 0..3 {
            self.a.nap();
        }
        let is_still = std::thread::panicking();
        self.a
            .expect(is_still == is_so, "the count of panics changed");
        self.token.check();
    }
}

fn caught(a: &mut Actor) {
    let lingers = Lingers::new(a, true);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _lingers = lingers;
        panic_any(Planned);
    }));
    a.expect(!std::thread::panicking(), "a caught panic continues");
    let Err(payload) = caught;
    resume_unplanned(payload);
}

fn poisoned(a: &mut Actor) {
    let mutex = Arc::new(Mutex::new(a.token()));
    let holds = Arc::clone(&mutex);
    let panics = a.spawn(move |a| {
        let guard = holds.lock();
        a.nap();
        let _lingers = Lingers::new(a, true);
        if true {
            panic_any(Planned);
        }
        drop(guard);
    });
    let Some(panics) = panics else { return };
    if let Err(payload) = panics.join() {
        a.judge(payload.as_ref());
    }
    let is_calm = !a.env.may_refuse();
    a.expect(!is_calm || mutex.is_poisoned(), "a lock is not poisoned");
    mutex.clear_poison();
    a.expect(mutex.lock().is_ok(), "a lock stays poisoned");
}

fn exits(a: &mut Actor) {
    let exits = a.spawn(|a| {
        let _lingers = Lingers::new(a, false);
        a.nap();
        if a.rng.one_in(2) {
            gosched::goexit();
        }
        panic_any(Planned);
    });
    let Some(exits) = exits else { return };
    match exits.join() {
        Ok(()) => a.complain("one that exits has returned"),
        Err(payload) => {
            let is_planned = payload.is::<Exited>() || payload.is::<Planned>();
            a.expect(is_planned, "an exiting goroutine ended in another way");
        }
    }
}

fn in_a_scope(a: &mut Actor) {
    let token = a.token();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        thread::scope(|s| {
            let body = a.goroutine(|a: &mut Actor| {
                token.check();
                a.nap();
                panic_any(Planned);
            });
            let Some(body) = body else { return true };
            match a.accept(thread::Builder::new().spawn_scoped(s, body)) {
                Some(handle) => handle.join().is_err(),
                None => true,
            }
        })
    }));
    match caught {
        Ok(has_panicked) => a.expect(has_panicked, "a scoped panic was lost"),
        Err(payload) => resume_unplanned(payload),
    }
}

/// A destructor that panics by itself.
fn in_a_destructor(a: &mut Actor) {
    struct Panics(#[expect(dead_code, reason = "dropped with it")] Token);
    impl Drop for Panics {
        fn drop(&mut self) {
            if !std::thread::panicking() {
                panic_any(Planned);
            }
        }
    }
    let panics = Panics(a.token());
    let other = a.spawn(move |a| {
        a.nap();
        drop(panics);
    });
    let Some(other) = other else { return };
    if let Err(payload) = other.join() {
        a.judge(payload.as_ref());
    }
}
