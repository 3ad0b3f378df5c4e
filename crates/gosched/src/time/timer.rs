//! `Timer`, `Ticker` and `after_func`: Go's, with its guarantees since 1.23.
//!
//! Their channels are evaluated by whoever looks (see `chan/timer.rs`): nothing is queued for a timer, none has to be stopped to
//! be freed, and after `stop` or `reset` there is no stale value.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::chan::{self, Receiver};
use crate::sched::model::m::PreemptOff;
use crate::sched::park::no_preempt;
use crate::sched::sources::timer_spawn;
use crate::sched::sources::timer_spawn::Dormant;
use crate::sys;
use crate::thread::ending::{own_home, refused};

/// A single event in the future: a channel that gets the time, once.
///
/// As Go's: [`stop`](Timer::stop) and [`reset`](Timer::reset) also take back a value that was not received yet, so none comes from
/// before them. Dropping a timer ends its channel for nobody: clones of the receiver go on.
///
/// None of its methods blocks; receiving from its channel does.
///
/// ```
/// use gosched::time::Timer;
/// use std::time::{Duration, Instant};
///
/// gosched::run(|| {
///     let start = Instant::now();
///     let timer = Timer::new(Duration::from_millis(5));
///     let due = timer.chan().recv().unwrap();
///     assert!(due >= start + Duration::from_millis(5));
///     assert!(!timer.stop()); // it has fired and was received
///
///     timer.reset(Duration::from_secs(3600));
///     assert!(timer.stop());
///     assert!(timer.chan().try_recv().is_err());
/// });
/// ```
pub struct Timer {
    chan: Receiver<Instant>,
    /// What [`after_func`] was given.
    func: Option<Func>,
}

/// A function that a timer calls, in a goroutine of its own, each time it fires.
struct Func {
    f: Arc<dyn Fn() + Send + Sync>,
    /// The goroutine that the timer starts, or has started. A goroutine makes no room while it has
    /// the lock: a drop of its runtime would leave the timer locked for ever (D2).
    next: Mutex<Dormant>,
}

impl Timer {
    /// A timer that fires once, `duration` from now. `Duration::MAX` never comes.
    ///
    /// See the example of [`Timer`].
    #[must_use]
    pub fn new(duration: Duration) -> Timer {
        Timer {
            chan: chan::resettable(sys::deadline_after(duration), 0),
            func: None,
        }
    }

    /// Where the time comes, for receives and `select!`. Nothing ever comes on that of [`after_func`].
    ///
    /// See the example of [`Timer`].
    #[must_use]
    pub fn chan(&self) -> &Receiver<Instant> {
        &self.chan
    }

    /// Stops it; whether that kept a value from being received.
    ///
    /// Blocks nothing. See the example of [`Timer`].
    pub fn stop(&self) -> bool {
        match &self.func {
            Some(func) => func.stop(),
            None => self.chan.set_clock(None, 0),
        }
    }

    /// Sets it anew, `duration` from now; whether it was still to fire, or to be received.
    ///
    /// Blocks nothing.
    ///
    /// # Panics
    /// On a timer of [`after_func`], if its runtime is gone or shuts down, or there is no memory for a goroutine.
    ///
    /// See the example of [`Timer`].
    #[track_caller]
    pub fn reset(&self, duration: Duration) -> bool {
        let when = sys::deadline_after(duration);
        match &self.func {
            Some(func) => func.reset(when),
            None => self.chan.set_clock(Some(when), 0),
        }
    }
}

impl Func {
    #[cold]
    #[inline(never)]
    fn stop(&self) -> bool {
        let next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let _whole = no_preempt(PreemptOff::HalfDone);
        next.cancel()
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn reset(&self, when: u64) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let whole = no_preempt(PreemptOff::HalfDone);
        if next.postpone(when) {
            return true;
        }
        let f = Arc::clone(&self.f);
        match next.start_another(when, move || f()) {
            Ok(another) => *next = another,
            Err(error) => {
                let home = next.home_ptr();
                drop(next);
                drop(whole);
                refused(home, "gosched::time::Timer::reset", &error)
            }
        }
        false
    }
}

/// Calls `f`, in a goroutine of its own, `duration` from now; as Go's `time.AfterFunc`.
///
/// Blocks nothing. Until then it costs no goroutine. [`stop`](Timer::stop) says whether it kept `f` from being called; it does not
/// wait for a call that has begun. [`reset`](Timer::reset) has `f` called again. Dropping the timer changes nothing: `f` is called.
///
/// # Panics
/// Outside a goroutine; if there is no memory for a goroutine. When the caller's runtime ends it does not return, as
/// [`go`](crate::go).
///
/// ```
/// use gosched::time::after_func;
/// use std::time::Duration;
///
/// gosched::run(|| {
///     let (send, receive) = gosched::chan::unbounded();
///     let timer = after_func(Duration::from_millis(1), move || send.send("now").unwrap());
///     assert_eq!(receive.recv(), Ok("now"));
///     assert!(!timer.stop()); // it was called
///     assert!(!timer.reset(Duration::from_millis(1)));
///     assert_eq!(receive.recv(), Ok("now"));
/// });
/// ```
#[track_caller]
pub fn after_func(duration: Duration, f: impl Fn() + Send + Sync + 'static) -> Timer {
    let f: Arc<dyn Fn() + Send + Sync> = Arc::new(f);
    let call = Arc::clone(&f);
    let started = timer_spawn::start(
        "time::after_func",
        sys::deadline_after(duration),
        move || {
            call();
        },
    );
    match started {
        Ok(next) => Timer {
            chan: chan::never(),
            func: Some(Func {
                f,
                next: Mutex::new(next),
            }),
        },
        Err(error) => refused(own_home(), "gosched::time::after_func", &error),
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Timer { .. }")
    }
}

/// A channel that gets the time again and again.
///
/// There is room for one tick. A tick goes to a receiver that waits, however late that runs; otherwise it fills the room, or is
/// missed if the room is filled. The next comes when it would have anyway.
///
/// None of its methods blocks; receiving from its channel does.
///
/// ```
/// use gosched::time::Ticker;
/// use std::time::Duration;
///
/// gosched::run(|| {
///     let ticker = Ticker::new(Duration::from_millis(2));
///     let first = ticker.chan().recv().unwrap();
///     let second = ticker.chan().recv().unwrap();
///     assert!(second >= first + Duration::from_millis(2));
///     ticker.stop();
///     assert!(ticker.chan().try_recv().is_err());
/// });
/// ```
pub struct Ticker {
    chan: Receiver<Instant>,
}

impl Ticker {
    /// A ticker whose first tick comes `period` from now.
    ///
    /// # Panics
    /// If `period` is zero.
    ///
    /// See the example of [`Ticker`].
    #[must_use]
    #[track_caller]
    pub fn new(period: Duration) -> Ticker {
        let (when, period_ns) = first_tick(period, "Ticker::new");
        Ticker {
            chan: chan::resettable(when, period_ns),
        }
    }

    /// Where the ticks come.
    ///
    /// See the example of [`Ticker`].
    #[must_use]
    pub fn chan(&self) -> &Receiver<Instant> {
        &self.chan
    }

    /// No more ticks; one that was not received is gone, too. The channel does not end.
    ///
    /// Blocks nothing. See the example of [`Ticker`].
    pub fn stop(&self) {
        self.chan.set_clock(None, 0);
    }

    /// Begins anew with another period; the next tick comes `period` from now.
    ///
    /// Blocks nothing.
    ///
    /// # Panics
    /// If `period` is zero.
    ///
    /// ```
    /// use gosched::time::Ticker;
    /// use std::time::Duration;
    ///
    /// let ticker = Ticker::new(Duration::from_secs(3600));
    /// ticker.reset(Duration::from_millis(1));
    /// ticker.chan().recv().unwrap();
    /// ```
    #[track_caller]
    pub fn reset(&self, period: Duration) {
        let (when, period_ns) = first_tick(period, "Ticker::reset");
        self.chan.set_clock(Some(when), period_ns);
    }
}

#[track_caller]
fn first_tick(period: Duration, what: &str) -> (u64, u64) {
    assert!(
        !period.is_zero(),
        "gosched::time::{what}: the period must not be zero"
    );
    let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
    (sys::deadline_after(period), period_ns)
}

impl fmt::Debug for Ticker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Ticker { .. }")
    }
}
