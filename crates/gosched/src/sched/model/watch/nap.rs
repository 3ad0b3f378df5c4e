//! sysmon's pause between two scans, and the events that end it early.
//!
//! It has a file of its own so that `gosched-loom` explores it.
//!
//! ```text
//!  sysmon                               a timer that no M watches      a goroutine that finds no P
//!  1 store `until_ns` and the word      1 set the timer                1 store `pressed`
//!  2 full barrier             (nap/2)   2 full barrier       (nap/1)   2 both words are SeqCst
//!  3 load the timers and `pressed`      3 asleep past it: wake sysmon  3 NAP or DOZE: wake sysmon
//!  4 sleep until the first of them
//! ```
//!
//! Proof sketch. One of the two barriers is first. If it is nap/1, sysmon's load in step 3 finds
//! the timer. If it is nap/2, the other thread finds the word and `until_ns` of the pause and wakes
//! sysmon. Without step 3 sysmon oversleeps by at most one pause (10 ms).
//!
//! ORDER: the three words are stored SeqCst. They are loaded SeqCst where the load decides whether
//! sysmon sleeps on. A Relaxed load is a hint that the next scan makes good, or follows a fence.

use crate::shim::{AtomicBool, AtomicU64, Futex, Relaxed, SeqCst, fence};

pub(crate) const AWAKE: u32 = 0;
pub(crate) const ASLEEP: u32 = 1;
pub(crate) const CALLED: u32 = 2;
pub(crate) const NAP: u32 = 3;
pub(crate) const DOZE: u32 = 4;
pub(crate) const REST: u32 = 5;

/// sysmon's word, the end of its pause, and the request that ends a nap.
pub(crate) struct Nap {
    pub(crate) word: Futex,
    /// When the nap, doze or rest ends; read by a goroutine that sets a timer that no M watches.
    until_ns: AtomicU64,
    /// A goroutine was readied and found no P.
    pressed: AtomicBool,
    /// The last scan has seen `pressed`, so `pressed` need not end the pause. sysmon's own.
    is_heard: AtomicBool,
}

impl Nap {
    pub(crate) fn new() -> Nap {
        Nap {
            word: Futex::new(AWAKE),
            until_ns: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
            is_heard: AtomicBool::new(false),
        }
    }

    /// Ends any sleep of sysmon, also a pause between two scans.
    #[cold]
    pub(crate) fn wake(&self) {
        self.word.0.store(CALLED, SeqCst);
        Futex::wake_one(&self.word);
    }

    /// A goroutine was readied and no P is idle.
    #[inline]
    pub(crate) fn press(&self) {
        if !self.pressed.load(Relaxed) {
            self.pressed.store(true, SeqCst);
            if matches!(self.word.0.load(SeqCst), NAP | DOZE) {
                self.wake();
            }
        }
    }

    /// Whether a goroutine has pressed since the last press was served. sysmon's scan.
    pub(crate) fn is_pressed(&self) -> bool {
        let is_pressed = self.pressed.load(SeqCst);
        self.is_heard.store(is_pressed, Relaxed);
        is_pressed
    }

    /// Withdraws the press if `is_served` returns that no goroutine waits. sysmon.
    ///
    /// It clears `pressed` before it looks at the queues: a goroutine that is queued after that
    /// look finds `pressed` clear and presses again.
    pub(crate) fn unpress_if(&self, is_served: impl FnOnce() -> bool) -> bool {
        self.pressed.store(false, SeqCst);
        // FENCE: press/2 — the clearing before the look at the queues; meets wake/1 (press/1),
        // which lies between the enqueue and `press`.
        fence(SeqCst);
        let is_served = is_served();
        if !is_served {
            self.pressed.store(true, SeqCst);
        }
        is_served
    }

    /// A timer for `when` was set, or exists, that no M watches.
    pub(crate) fn timer_set(&self, when: u64) {
        // FENCE: nap/1 — the timer before the load of the word; meets nap/2 in `pause`.
        fence(SeqCst);
        let is_paused = matches!(self.word.0.load(SeqCst), NAP | DOZE | REST);
        if is_paused && self.until_ns.load(SeqCst) > when {
            self.wake();
        }
    }

    /// Sleeps until `end`, the time that `wanted` returns, or a call. `word` is the kind of pause.
    /// sysmon.
    pub(crate) fn pause(&self, word: u32, end: u64, wanted: impl FnOnce() -> u64) {
        self.until_ns.store(end, SeqCst);
        self.word.0.store(word, SeqCst);
        // FENCE: nap/2 — the pause before the loads of the timers and of `pressed`; meets nap/1 in
        // `timer_set`, and the two words in `press`.
        fence(SeqCst);
        let wanted = wanted();
        // A press that came after the scan ends the pause now. No press ends a rest.
        let was_heard = self.is_heard.load(Relaxed) || word == REST;
        if was_heard || !self.pressed.load(SeqCst) {
            let word = self.word.0.load(Relaxed);
            if word != CALLED {
                self.word.wait(word, Some(end.min(wanted)));
            }
        }
        self.word.0.store(AWAKE, SeqCst);
        // The next scan may skip `is_pressed`. A press that comes meanwhile must not count as seen.
        self.is_heard.store(false, Relaxed);
    }
}
