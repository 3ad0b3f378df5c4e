//! Tasks that wait: `mutex`, `timers`, `timers_10k`, `timer_reset`, `idle_1m`, `idle_cpu`,
//! `foreign_wake`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Countdown, Counter, Runtime, Signal};
use crate::common::{
    Figures, LOCKERS, Lateness, Offer, QUIET_MARGIN, QUIET_TASKS, idle_figures, metric, ns_each,
    own_cpu, own_memory_bytes, rounds, spans,
};
use crate::hogs::{self, Bell};

/// One lock, used by many tasks and by one.
pub fn mutex<R: Runtime>(times: usize) -> Figures {
    let (contended_ns, alone_ns) =
        R::run(async move { (contended_ns::<R>(times).await, alone_ns::<R>(times).await) });
    Ok(vec![
        metric("time", contended_ns, "ns"),
        metric("uncontended_time", alone_ns, "ns"),
    ])
}

async fn contended_ns<R: Runtime>(times: usize) -> f64 {
    let counter = Arc::new(R::Counter::zero());
    let start = Instant::now();
    let tasks = [(); LOCKERS].map(|()| {
        let counter = Arc::clone(&counter);
        R::spawn(async move {
            for _ in 0..times {
                counter.count().await;
            }
        })
    });
    for task in tasks {
        R::join(task).await;
    }
    let each_ns = ns_each(start, LOCKERS * times);
    let value = counter.value().await;
    assert_eq!(value, LOCKERS * times, "two held the lock at once");
    each_ns
}

async fn alone_ns<R: Runtime>(times: usize) -> f64 {
    let counter = R::Counter::zero();
    let start = Instant::now();
    for _ in 0..LOCKERS * times {
        counter.count().await;
    }
    ns_each(start, LOCKERS * times)
}

/// Many tasks sleep: the total time, the CPU time, and how late they wake.
pub fn timers<R: Runtime>(sleepers: usize) -> Figures {
    let late = Arc::new(Lateness::of(sleepers));
    let noted = Arc::clone(&late);
    let (time, cpu) = R::run(async move {
        let running = Countdown::<R::Signal>::leaked();
        running.expect(sleepers);
        let cpu_before = own_cpu();
        let start = Instant::now();
        for sleeper in 0..sleepers {
            let late = Arc::clone(&noted);
            R::detach(async move {
                for (nth, span) in spans(sleeper).enumerate() {
                    let start = Instant::now();
                    R::sleep(span).await;
                    late.note(sleeper, nth, start, span);
                }
                drop(late);
                running.arrive();
            });
        }
        running.wait().await;
        (start.elapsed(), own_cpu() - cpu_before)
    });
    late.figures(time, cpu)
}

/// A timer is set and stopped.
pub fn timer_reset<R: Runtime>(times: usize) -> Figures {
    let each_ns = R::run(async move { R::timer_reset_ns(times).await });
    Ok(vec![metric("time", each_ns, "ns")])
}

/// Tasks that wait for a signal each.
struct Parked<S: Signal> {
    signals: &'static [S],
    finished: &'static Countdown<S>,
}

impl<S: Signal> Parked<S> {
    /// Starts them and returns when each is about to wait.
    async fn spawn<R: Runtime<Signal = S>>(count: usize) -> Parked<S> {
        let parked = Countdown::<S>::leaked();
        let finished = Countdown::<S>::leaked();
        parked.expect(count);
        finished.expect(count);
        let signals: Vec<S> = (0..count).map(|_| S::new()).collect();
        let signals: &'static [S] = signals.leak();
        for signal in signals {
            R::detach(async move {
                parked.arrive();
                signal.wait().await;
                finished.arrive();
            });
        }
        parked.wait().await;
        Parked { signals, finished }
    }

    /// Gives every signal, and returns when all have ended.
    async fn wake_all(&self) {
        for signal in self.signals {
            signal.give();
        }
        self.finished.wait().await;
    }
}

/// Tasks that do nothing: their memory, and the time to start and end them.
pub fn idle<R: Runtime>(n: usize) -> Figures {
    R::run(async move {
        let bytes_before = own_memory_bytes();
        let start = Instant::now();
        let parked = Parked::spawn::<R>(n).await;
        let park_ns = ns_each(start, n);
        let bytes = own_memory_bytes().saturating_sub(bytes_before);
        let start = Instant::now();
        parked.wake_all().await;
        let wake_ns = ns_each(start, n);
        idle_figures(n, bytes, park_ns, wake_ns)
    })
}

/// All tasks are parked except one, which sleeps; the driver measures from outside.
pub fn quiet<R: Runtime>(seconds: usize) -> Offer {
    R::run(async {
        Parked::spawn::<R>(QUIET_TASKS).await;
    });
    rounds(move || {
        let span = Duration::from_secs(seconds as u64) + QUIET_MARGIN;
        R::run(async move { R::sleep(span).await });
        Ok(Vec::new())
    })
}

/// A plain thread wakes a task of a runtime that is asleep.
pub fn foreign_wake<R: Runtime>(wakes: usize) -> Figures {
    let bell = Arc::new(Bell::new());
    let signal = Arc::new(R::Signal::new());
    let listener = R::spawn({
        let (bell, signal) = (Arc::clone(&bell), Arc::clone(&signal));
        async move {
            while bell.listen() {
                signal.wait().await;
            }
        }
    });
    let figures = hogs::foreign_wakes(wakes, &bell, || signal.give());
    R::wait(listener);
    figures
}
