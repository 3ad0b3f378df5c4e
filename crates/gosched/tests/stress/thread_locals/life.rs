//! One goroutine's life, and the books that count all of them.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::steps::{self, step};
use crate::common::{Planned, Rng, tid};
use gosched::thread;

static MADE: AtomicUsize = AtomicUsize::new(0);
static DROPPED: AtomicUsize = AtomicUsize::new(0);
static LIVES: AtomicUsize = AtomicUsize::new(0);
static SWITCHES: AtomicUsize = AtomicUsize::new(0);
static MOVES: AtomicUsize = AtomicUsize::new(0);
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// All counts, since they were opened.
pub(crate) struct Books {
    moves: usize,
    switches: usize,
}

impl Books {
    pub(crate) fn open() -> Books {
        Books {
            moves: MOVES.load(SeqCst),
            switches: SWITCHES.load(SeqCst),
        }
    }

    /// What was made in thread-locals has been dropped, and no more than that.
    pub(crate) fn assert_closed(&self) {
        let (made, dropped) = (MADE.load(SeqCst), DROPPED.load(SeqCst));
        assert_eq!(made, dropped, "values made and dropped in thread-locals");
        let (keys, ended) = steps::key_values();
        assert_eq!(
            keys, ended,
            "values of pthread keys, and calls of their destructor"
        );
    }

    /// A run without migrations would prove nothing.
    pub(crate) fn assert_migrated(&self, procs: usize) {
        let moves = MOVES.load(SeqCst) - self.moves;
        assert!(moves > 100, "{moves} migrations with {procs} Ps");
    }
}

impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let get = |count: &AtomicUsize| count.load(SeqCst);
        let (switches, moves) = (get(&SWITCHES) - self.switches, get(&MOVES) - self.moves);
        write!(
            f,
            "{switches} switches, {moves} migrations; {} lives, {} panics, {} values so far",
            get(&LIVES),
            get(&PANICS),
            get(&DROPPED)
        )
    }
}

/// A value in a thread-local, counted in and out. It stays with the goroutine that made it.
pub(crate) struct Counted {
    owner: std::thread::ThreadId,
    /// Not to be shared by threads, as the compiler sees it.
    _alone: Rc<()>,
}

impl Counted {
    fn new() -> Counted {
        MADE.fetch_add(1, Relaxed);
        Counted {
            owner: std::thread::current().id(),
            _alone: Rc::default(),
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let id = std::thread::current().id();
        assert_eq!(self.owner, id, "dropped by another goroutine");
        // Destructors may wait, and move.
        if DROPPED.fetch_add(1, Relaxed).is_multiple_of(7) {
            thread::yield_now();
            assert_eq!(self.owner, std::thread::current().id());
        }
    }
}

thread_local! {
    /// Who this is, by its own count.
    pub(crate) static MARK: Cell<u64> = const { Cell::new(0) };
    pub(crate) static COUNTED: Counted = Counted::new();
    pub(crate) static LATE: Counted = Counted::new();
    static MANY: RefCell<Vec<Counted>> = const { RefCell::new(Vec::new()) };
}

/// A switch of one kind or another, after which this may be another thread.
pub(crate) fn switch(rng: &mut Rng) {
    let before = tid();
    match rng.below(24) {
        0 => thread::sleep(std::time::Duration::from_micros(rng.below(100))),
        1 => thread::park_timeout(std::time::Duration::from_micros(rng.below(100))),
        2 => {
            let own = thread::current();
            gosched::go(move || own.unpark());
            thread::park();
        }
        3 => {
            let value = rng.next();
            assert_eq!(thread::spawn(move || value).join().unwrap(), value);
        }
        _ => thread::yield_now(),
    }
    SWITCHES.fetch_add(1, Relaxed);
    MOVES.fetch_add(usize::from(tid() != before), Relaxed);
}

/// Panics and is caught, with switches while it unwinds.
pub(crate) fn panic_and_recover(rng: &mut Rng) {
    struct Switches(Rng);
    impl Drop for Switches {
        fn drop(&mut self) {
            assert!(std::thread::panicking());
            (0..3).for_each(|_| switch(&mut self.0));
            assert!(std::thread::panicking());
        }
    }
    let switches = Switches(Rng::new(rng.next()));
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _switches = switches;
        std::panic::panic_any(Planned);
    }));
    assert!(caught.is_err_and(|payload| payload.is::<Planned>()));
    assert!(!std::thread::panicking());
    PANICS.fetch_add(1, Relaxed);
}

/// Keeps one more value until the end, or drops some.
pub(crate) fn keep_counted(rng: &mut Rng) {
    MANY.with(|many| {
        let mut many = many.borrow_mut();
        many.push(Counted::new());
        switch(rng);
        if many.len() > 4 {
            many.truncate(rng.below(4) as usize);
        }
    });
}

/// A goroutine: some steps, then one of several ends.
pub(crate) fn live(mut rng: Rng, steps: u64, depth: u32) {
    assert_eq!(MARK.get(), 0, "the mark of another goroutine");
    let mark = rng.next() | 1;
    MARK.set(mark);
    let id = std::thread::current().id();
    LIVES.fetch_add(1, Relaxed);
    for _ in 0..rng.below(steps) + 1 {
        step(&mut rng);
        assert_eq!(MARK.get(), mark);
        assert_eq!(std::thread::current().id(), id);
        if depth < 2 && rng.one_in(50) {
            let rng = Rng::new(rng.next());
            // Some are not joined.
            if rng.clone().one_in(2) {
                gosched::go(move || {
                    let lived = catch_unwind(AssertUnwindSafe(|| live(rng, steps, depth + 1)));
                    if let Err(payload) = lived
                        && !payload.is::<Planned>()
                        && !payload.is::<thread::Exited>()
                    {
                        // It has been reported; nothing would fail otherwise.
                        std::process::abort();
                    }
                });
            } else {
                super::end(thread::spawn(move || live(rng, steps, depth + 1)));
            }
        }
    }
    match rng.below(20) {
        0 => std::panic::panic_any(Planned),
        1 => gosched::goexit(),
        _ => {}
    }
}
