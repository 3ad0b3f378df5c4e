//! The watcher: the one M that sleeps until the next timer, without a P.
//!
//! ```text
//!  until          meaning
//!  NOBODY         nobody watches
//!  COMING         somebody is about to
//!  anything else  somebody watches, until then (ns)
//! ```
//!
//! It publishes until when it sleeps and looks at the timers again; who puts in an earlier one shows it and then looks at the
//! watcher. With a barrier on both sides one of them sees the other (timer/1, timer/2).

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use crate::os;
use crate::sched::note::Note;
use crate::shim;

const NOBODY: u64 = 0;
const COMING: u64 = 1;
/// How late the kernel may wake the watcher. What is due within it of each other costs one wake-up.
const SLACK_NS: u64 = 20_000;

/// Who waits for the next timer.
pub(crate) struct Poller {
    until: AtomicU64,
    note: Note,
}

impl Poller {
    pub(crate) fn new() -> Poller {
        Poller {
            until: AtomicU64::new(NOBODY),
            note: Note::new(),
        }
    }

    pub(crate) fn is_watching(&self) -> bool {
        self.until.load(Relaxed) != NOBODY
    }

    /// Becomes the watcher, if nobody is; true: `sleep` must follow. Under the scheduler lock, so that who queues a P for the next
    /// free M sees either that M or a watcher to wake.
    #[must_use = "the watcher must sleep"]
    pub(crate) fn begin(&self) -> bool {
        self.until
            .compare_exchange(NOBODY, COMING, SeqCst, Relaxed)
            .is_ok()
    }

    /// The watcher sleeps until the next timer is due or somebody kicks.
    pub(crate) fn sleep(&self, next: impl Fn() -> u64) {
        loop {
            let until = next();
            if until == u64::MAX {
                break;
            }
            self.until.store(until.max(COMING), SeqCst);
            // FENCE: timer/2 — the announcement before the second look at the timers; meets timer/1 in `kick`.
            fence(SeqCst);
            if next() >= until {
                os::set_timer_slack_ns(SLACK_NS);
                self.note.sleep_until(until);
                os::set_timer_slack_ns(0);
                break;
            }
        }
        // Cleared before the next watcher can come, never after: a wake meant for that one must stay. One meant for us
        // that comes late costs the next a needless turn.
        self.note.clear();
        self.until.store(NOBODY, SeqCst);
    }

    /// A timer for `when` was put in as the first of its heap, and the heap's lock released: the watcher must not oversleep. False:
    /// nobody watches.
    pub(crate) fn kick(&self, when: u64) -> bool {
        // FENCE: timer/1 — the timer, by the release of the heap's lock, before the look at the watcher; meets timer/2 in `sleep`.
        shim::fence_after_rmw();
        let until = self.until.load(SeqCst);
        if until > when && !self.note.is_set() {
            self.note.wakeup();
        }
        until != NOBODY
    }

    /// Ends any wait: a P waits for a thread, or the runtime is being dropped.
    pub(crate) fn wake(&self) {
        self.note.wakeup();
    }
}
