//! [`Timer`], [`Ticker`] and [`after_func`]: Go's, with its guarantees since Go 1.23.
//!
//! They turn points in time into channel messages or calls, so that `select!` can wait for them.
//!
//! A receive on their channels evaluates the clock (`chan/timer.rs`). So a timer queues nothing,
//! need not be stopped to be freed, and leaves no stale value after `stop` or `reset`.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::chan::{self, Receiver};
use crate::sched::model::m::PreemptOff;
use crate::sched::park::no_preempt;
use crate::sys;
use crate::thread::ending::{own_home, refused};
use crate::time::timer_spawn;
use crate::time::timer_spawn::Dormant;

/// A single event in the future: a channel that receives the time once.
///
/// As in Go, [`stop`](Timer::stop) and [`reset`](Timer::reset) also take back a value that is not
/// received yet. So no value from before such a call arrives after it. Dropping a timer does not
/// stop it: clones of its receiver still get the value.
///
/// None of its methods blocks. Receiving from its channel does.
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
    /// The function of [`after_func`].
    func: Option<Func>,
}

/// A function that a timer calls, in a new goroutine each time it fires.
struct Func {
    f: Arc<dyn Fn() + Send + Sync>,
    /// The goroutine that the timer starts, or has started. No goroutine is preempted while it
    /// holds the lock: a drop of its runtime would leave the timer locked for ever (D2).
    next: Mutex<Dormant>,
}

impl Timer {
    /// Creates a timer that fires once, `duration` from now.
    ///
    /// `Duration::MAX` means never.
    ///
    /// See the example of [`Timer`].
    #[must_use]
    pub fn new(duration: Duration) -> Timer {
        Timer {
            chan: chan::resettable(sys::deadline_after(duration), 0),
            func: None,
        }
    }

    /// Returns the channel that receives the time, for receives and `select!`.
    ///
    /// The channel of [`after_func`] never receives anything.
    ///
    /// See the example of [`Timer`].
    #[must_use]
    pub fn chan(&self) -> &Receiver<Instant> {
        &self.chan
    }

    /// Stops the timer and returns whether it was active.
    ///
    /// A timer is active until its value is received. A timer of [`after_func`] is active until its
    /// function is called. Never blocks. See the example of [`Timer`].
    pub fn stop(&self) -> bool {
        match &self.func {
            Some(func) => func.stop(),
            None => self.chan.set_clock(None, 0),
        }
    }

    /// Sets the timer to `duration` from now and returns whether it was active.
    ///
    /// See [`stop`](Timer::stop) for what active means. Never blocks.
    ///
    /// # Panics
    /// On a timer of [`after_func`], if its runtime has ended or shuts down, or if memory for a
    /// goroutine is lacking.
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

/// Calls `f` in a new goroutine, `duration` from now, as Go's `time.AfterFunc` does.
///
/// Never blocks. No goroutine exists until then.
/// - [`stop`](Timer::stop) returns whether it prevented the call. It does not wait for a call that
///   has begun.
/// - [`reset`](Timer::reset) schedules a new call.
/// - Dropping the timer does not prevent the call.
///
/// If the caller's runtime ends, this does not return, as [`go`](crate::go).
///
/// # Panics
/// Outside a goroutine, or if memory for a goroutine is lacking.
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

/// A channel that receives the time at regular intervals.
///
/// The channel holds one tick. A tick goes to a waiting receiver, even if that receiver runs late.
/// Without a waiting receiver the tick is stored, or dropped if one is stored already. Neither
/// changes the time of the next tick.
///
/// None of its methods blocks. Receiving from its channel does.
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
    /// Creates a ticker with its first tick `period` from now.
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

    /// Returns the channel that receives the ticks.
    ///
    /// See the example of [`Ticker`].
    #[must_use]
    pub fn chan(&self) -> &Receiver<Instant> {
        &self.chan
    }

    /// Stops the ticker and takes back a tick that is not received yet.
    ///
    /// The channel does not disconnect. Never blocks. See the example of [`Ticker`].
    pub fn stop(&self) {
        self.chan.set_clock(None, 0);
    }

    /// Restarts the ticker with a new period, and its next tick `period` from now.
    ///
    /// Never blocks.
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
