//! Thread-locals: each goroutine finds its own, whatever it did before and wherever it runs.
//! Destructors run once, at the goroutine's end, on the goroutine itself (D6).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use gosched::thread;

use crate::env::Actor;
use crate::ledger::Token;

/// A value in a thread-local. It stays with the goroutine that made it.
struct Kept {
    owner: std::thread::ThreadId,
    token: Token,
    /// Makes the type `!Send`.
    _alone: Rc<()>,
}

impl Kept {
    fn new(a: &Actor) -> Kept {
        Kept {
            owner: std::thread::current().id(),
            token: a.token(),
            _alone: Rc::default(),
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let is_own = self.owner == std::thread::current().id();
        assert!(is_own, "a thread-local was dropped by another goroutine");
        self.token.check();
        // Destructors may wait, and continue on another thread.
        thread::yield_now();
        assert_eq!(self.owner, std::thread::current().id());
    }
}

thread_local! {
    static MARK: Cell<u64> = const { Cell::new(0) };
    static WORDS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static KEPT: RefCell<Vec<Kept>> = const { RefCell::new(Vec::new()) };
}

pub fn root(a: &mut Actor) {
    while !a.over() {
        let mut handles = Vec::new();
        for _ in 0..a.rng.few(60) {
            handles.push(a.spawn(live));
        }
        a.join_all(handles);
        thread::sleep(a.rng.micros(500));
    }
}

fn live(a: &mut Actor) {
    a.expect(
        MARK.get() == 0,
        "a thread-local did not begin with its initial value",
    );
    a.expect(
        WORDS.with_borrow(Vec::is_empty),
        "a thread-local was not empty",
    );
    let (mark, id) = (a.rng.next() | 1, std::thread::current().id());
    MARK.set(mark);
    for _ in 0..a.rng.few(12) {
        match a.rng.below(8) {
            0 => borrow_over_a_switch(a),
            1 => KEPT.with_borrow_mut(|kept| kept.push(Kept::new(a))),
            2 => errno(a),
            3 => hash(a),
            4 => {
                let other = a.spawn(|a| a.expect(MARK.get() == 0, "inherited a thread-local"));
                a.join_all(vec![other]);
            }
            5 => {
                let took = a.rng.micros(50);
                std::thread::sleep(took);
            }
            _ => a.nap(),
        }
        a.expect(MARK.get() == mark, "a thread-local changed");
        a.expect(std::thread::current().id() == id, "std's thread id changed");
        a.op();
    }
}

fn borrow_over_a_switch(a: &mut Actor) {
    let word = a.rng.next();
    WORDS.with_borrow_mut(|words| {
        words.push(word);
        a.nap();
        thread::yield_now();
        a.expect(
            words.last() == Some(&word),
            "a borrowed thread-local changed",
        );
        if words.len() > 6 {
            words.clear();
        }
    });
}

fn errno(a: &mut Actor) {
    // SAFETY: the call closes no file and sets errno.
    let closed = unsafe { libc::close(-1) };
    a.nap();
    let error = std::io::Error::last_os_error().raw_os_error();
    a.expect(closed == -1 && error == Some(libc::EBADF), "errno changed");
}

/// Hash keys come from a thread-local.
fn hash(a: &mut Actor) {
    let mut map = HashMap::new();
    for n in 0..20u64 {
        map.insert(n, n * n);
    }
    a.nap();
    a.expect(
        (0..20).all(|n| map[&n] == n * n),
        "a hash map lost something",
    );
}
