//! The ledger of a round: every closure and every value is entered, and accounted for at the end.
//!
//! It finds values that are lost or dropped twice, which no single mix would notice.
//!
//! ```text
//!  ticket  one for each closure that is to run: born, then either ran and ended, or dropped unrun
//!  token   one for each value with a destructor: made, then dropped, once
//!  fd      a token for an open file
//! ```
//!
//! Values on the stack of an abandoned goroutine of a dropped runtime are never dropped, by
//! contract (D2). So such a round may end with tokens that are made and not dropped. It may end
//! with tickets that ran and have not ended. It never ends with a value dropped twice. Nor does it
//! end with a closure that neither ran nor was dropped, with one exception: closures that were
//! about to be called when the runtime was dropped. These are at most two for each P, and a few on
//! threads that had just taken one. The report has their number.

use std::fmt::Display;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How many complaints are kept; the first ones show what is wrong.
const COMPLAINTS_MAX: usize = 40;

/// Locks and ignores poison: the panic is reported elsewhere.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The counts of one mix.
#[derive(Default)]
pub struct Column {
    /// Closures made; run; dropped after they ran; dropped unrun.
    pub born: AtomicU64,
    pub ran: AtomicU64,
    pub ended: AtomicU64,
    pub unrun: AtomicU64,
    /// Operations done.
    pub ops: AtomicU64,
    /// Values made and dropped.
    pub made: AtomicU64,
    pub dropped: AtomicU64,
    /// Open files.
    pub fds: AtomicI64,
    /// Plain threads at work.
    pub threads: AtomicI64,
}

/// All counts of a round.
pub struct Ledger {
    /// One for each mix.
    pub columns: Vec<Column>,
    /// How many invariants were checked.
    pub checks: AtomicU64,
    /// The longest wait of each kind, in microseconds.
    pub worst: [AtomicU64; WAITS.len()],
    /// The longest wait of the mix `heart`, in decisions of the scheduler.
    pub decisions: AtomicU64,
    /// When the waits of the first kinds last ended, in microseconds since the beginning; 0: there
    /// is no such goroutine.
    beats: [AtomicU64; BEATS],
    /// How often refusals were switched on, by what is refused.
    pub refusals: [AtomicU64; REFUSALS.len()],
    /// Goroutines and sockets refused because of that. Refused threads are not counted: only the
    /// library sees them.
    pub refused_goroutines: AtomicU64,
    pub refused_sockets: AtomicU64,
    began: Instant,
    complaints: Mutex<Vec<String>>,
}

/// The kinds of waits whose longest is kept.
pub const WAITS: [&str; 9] = [
    "heartbeat late",
    "yield",
    "spawn to join",
    "timer late",
    "drain",
    "shutdown",
    "drop",
    "dump",
    "check",
];
pub const HEARTBEAT: usize = 0;
pub const YIELD: usize = 1;
/// The first kinds are waits of goroutines that wait repeatedly.
pub const BEATS: usize = 2;
pub const SPAWN: usize = 2;
pub const TIMER: usize = 3;
pub const DRAIN: usize = 4;
pub const SHUTDOWN: usize = 5;
pub const DROP: usize = 6;
pub const DUMP: usize = 7;
pub const CHECK: usize = 8;

/// What the system is made to refuse.
pub const REFUSALS: [&str; 3] = ["mappings", "threads", "epoll"];

/// The sums over all mixes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sums {
    pub born: u64,
    pub ran: u64,
    pub ended: u64,
    pub unrun: u64,
    pub made: u64,
    pub dropped: u64,
    pub fds: i64,
    pub threads: i64,
}

impl Sums {
    /// Closures that were abandoned just before they were called.
    pub fn given_up_early(&self) -> u64 {
        self.born.saturating_sub(self.ran + self.unrun)
    }
}

impl Ledger {
    /// An empty ledger for this many mixes.
    pub fn new(mixes: usize) -> Ledger {
        Ledger {
            columns: (0..mixes).map(|_| Column::default()).collect(),
            checks: AtomicU64::new(0),
            worst: Default::default(),
            decisions: AtomicU64::new(0),
            beats: Default::default(),
            refusals: Default::default(),
            refused_goroutines: AtomicU64::new(0),
            refused_sockets: AtomicU64::new(0),
            began: Instant::now(),
            complaints: Mutex::default(),
        }
    }

    /// Records that an invariant does not hold.
    pub fn complain(&self, text: impl Display) {
        let mut complaints = lock(&self.complaints);
        if complaints.len() < COMPLAINTS_MAX {
            complaints.push(text.to_string());
        }
    }

    /// All recorded complaints.
    pub fn complaints(&self) -> Vec<String> {
        lock(&self.complaints).clone()
    }

    /// Records how long a wait took.
    pub fn took(&self, what: usize, time: Duration) {
        self.worst[what].fetch_max(time.as_micros() as u64, SeqCst);
    }

    /// Records how many scheduling decisions were made before a goroutine of the heart ran.
    pub fn waited(&self, decisions: u64) {
        self.decisions.fetch_max(decisions, SeqCst);
    }

    /// A goroutine of this kind has waited and run again.
    pub fn beat(&self, who: usize) {
        let now = self.began.elapsed().as_micros() as u64;
        self.beats[who].store(now.max(1), SeqCst);
    }

    /// How long no such goroutine has run; zero if there is none.
    pub fn silence(&self, who: usize) -> Duration {
        match self.beats[who].load(SeqCst) {
            0 => Duration::ZERO,
            beat => self
                .began
                .elapsed()
                .saturating_sub(Duration::from_micros(beat)),
        }
    }

    /// The sums; counts of ends are read before counts of beginnings.
    pub fn sums(&self) -> Sums {
        let sum = |pick: fn(&Column) -> &AtomicU64| -> u64 {
            self.columns.iter().map(|c| pick(c).load(SeqCst)).sum()
        };
        let count = |pick: fn(&Column) -> &AtomicI64| -> i64 {
            self.columns.iter().map(|c| pick(c).load(SeqCst)).sum()
        };
        let (ended, unrun, ran) = (sum(|c| &c.ended), sum(|c| &c.unrun), sum(|c| &c.ran));
        let dropped = sum(|c| &c.dropped);
        Sums {
            ended,
            unrun,
            ran,
            dropped,
            born: sum(|c| &c.born),
            made: sum(|c| &c.made),
            fds: count(|c| &c.fds),
            threads: count(|c| &c.threads),
        }
    }

    /// One line for each mix with open entries.
    pub fn open_entries(&self, names: &[&str]) -> String {
        let mut text = String::new();
        for (column, name) in self.columns.iter().zip(names) {
            let get = |count: &AtomicU64| count.load(SeqCst);
            let (born, ran) = (get(&column.born), get(&column.ran));
            let (ended, unrun) = (get(&column.ended), get(&column.unrun));
            let (made, dropped) = (get(&column.made), get(&column.dropped));
            let (fds, threads) = (column.fds.load(SeqCst), column.threads.load(SeqCst));
            if born != ended + unrun || made != dropped || fds != 0 || threads != 0 {
                text += &format!(
                    "  {name}: born {born} ran {ran} ended {ended} unrun {unrun}; \
                     made {made} dropped {dropped}; files {fds} threads {threads}\n"
                );
            }
        }
        text
    }
}

/// A closure's entry; dropped with the closure.
pub struct Ticket {
    ledger: Arc<Ledger>,
    mix: usize,
    has_run: bool,
}

impl Ticket {
    /// Enters a closure.
    pub fn new(ledger: &Arc<Ledger>, mix: usize) -> Ticket {
        ledger.columns[mix].born.fetch_add(1, SeqCst);
        Ticket {
            ledger: Arc::clone(ledger),
            mix,
            has_run: false,
        }
    }

    /// The closure is called.
    pub fn run(&mut self) {
        self.ledger.columns[self.mix].ran.fetch_add(1, SeqCst);
        if std::mem::replace(&mut self.has_run, true) {
            self.ledger.complain("a closure ran twice");
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let column = &self.ledger.columns[self.mix];
        let count = if self.has_run {
            &column.ended
        } else {
            &column.unrun
        };
        count.fetch_add(1, SeqCst);
    }
}

const ALIVE: u64 = 0xA11C_E5AF_E15A_11FE;
const DEAD: u64 = 0xDEAD_DEAD_DEAD_DEAD;

/// A value's entry, with a word that shows whether the value is intact.
pub struct Token {
    ledger: Arc<Ledger>,
    mix: usize,
    fds: i64,
    word: u64,
}

impl Token {
    /// Enters a value.
    pub fn new(ledger: &Arc<Ledger>, mix: usize) -> Token {
        Token::files(ledger, mix, 0)
    }

    /// Enters a value with this many open files.
    pub fn files(ledger: &Arc<Ledger>, mix: usize, fds: i64) -> Token {
        let column = &ledger.columns[mix];
        column.made.fetch_add(1, SeqCst);
        column.fds.fetch_add(fds, SeqCst);
        Token {
            ledger: Arc::clone(ledger),
            mix,
            fds,
            word: ALIVE,
        }
    }

    /// Checks that the value is intact.
    pub fn check(&self) {
        // SAFETY: the word is a field of `self`. The read is volatile, so that the compiler does
        // not replace it by the expected value.
        let word = unsafe { (&raw const self.word).read_volatile() };
        if word != ALIVE {
            self.ledger
                .complain(format_args!("a value was overwritten: {word:#x}"));
        }
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the word is a field of `self`. The write is volatile, so that a second drop finds
        // it.
        unsafe { (&raw mut self.word).write_volatile(DEAD) };
        let column = &self.ledger.columns[self.mix];
        column.dropped.fetch_add(1, SeqCst);
        column.fds.fetch_sub(self.fds, SeqCst);
    }
}
