//! Tasks that wait: `mutex`, `std_mutex`, `timers`, `timers_10k`, `idle_1m`, `idle_cpu`, `foreign_wake`.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::{Countdown, Counter, Tasks};
use crate::common::{
    Figures, LOCKERS, Lateness, Offer, QUIET_MARGIN, QUIET_TASKS, idle_figures, metric, ns_each,
    own_cpu, own_memory_bytes, rounds, spans,
};
use crate::hogs::{self, Bell};

/// One lock, used by many tasks and by one.
pub fn mutex<T: Tasks>(times: usize) -> Figures {
    let (contended_ns, alone_ns) = T::run(move || (contended_ns::<T>(times), alone_ns::<T>(times)));
    Ok(vec![
        metric("time", contended_ns, "ns"),
        metric("uncontended_time", alone_ns, "ns"),
    ])
}

fn contended_ns<T: Tasks>(times: usize) -> f64 {
    let counter = Arc::new(T::Counter::zero());
    let start = Instant::now();
    let tasks = [(); LOCKERS].map(|()| {
        let counter = Arc::clone(&counter);
        T::spawn(move || (0..times).for_each(|_| counter.count()))
    });
    tasks.into_iter().for_each(T::join);
    let each_ns = ns_each(start, LOCKERS * times);
    let value = counter.value();
    assert_eq!(value, LOCKERS * times, "two held the lock at once");
    each_ns
}

fn alone_ns<T: Tasks>(times: usize) -> f64 {
    let counter = T::Counter::zero();
    let start = Instant::now();
    (0..LOCKERS * times).for_each(|_| counter.count());
    ns_each(start, LOCKERS * times)
}

/// Many tasks sleep: the total time, the CPU time, and how late they wake.
pub fn timers<T: Tasks>(sleepers: usize) -> Figures {
    let late = Arc::new(Lateness::of(sleepers));
    let noted = Arc::clone(&late);
    let (time, cpu) = T::run(move || {
        let running = Countdown::<T>::leaked();
        running.expect(sleepers);
        let cpu_before = own_cpu();
        let start = Instant::now();
        for sleeper in 0..sleepers {
            let late = Arc::clone(&noted);
            drop(T::spawn(move || {
                for (nth, span) in spans(sleeper).enumerate() {
                    let start = Instant::now();
                    T::sleep(span);
                    late.note(sleeper, nth, start, span);
                }
                drop(late);
                running.arrive();
            }));
        }
        running.wait();
        (start.elapsed(), own_cpu() - cpu_before)
    });
    late.figures(time, cpu)
}

/// Tasks that are parked until all are woken.
struct Parked<T: Tasks> {
    gate: &'static Gate<T>,
    tasks: Vec<T::Handle<()>>,
}

struct Gate<T: Tasks> {
    parked: &'static Countdown<T>,
    /// The countdown of the task that wakes them; set when the gate opens.
    finished: OnceLock<&'static Countdown<T>>,
}

impl<T: Tasks> Parked<T> {
    /// Starts them and returns when each is about to park.
    fn spawn(count: usize) -> Parked<T> {
        let gate: &'static Gate<T> = Box::leak(Box::new(Gate {
            parked: Countdown::leaked(),
            finished: OnceLock::new(),
        }));
        gate.parked.expect(count);
        let mut tasks = Vec::with_capacity(count);
        tasks.extend((0..count).map(|_| T::spawn(|| gate.pass())));
        gate.parked.wait();
        Parked { gate, tasks }
    }

    /// Unparks every task and returns when all have ended.
    fn wake_all(&self) {
        let finished = self.gate.finished.get_or_init(|| {
            let finished = Countdown::leaked();
            finished.expect(self.tasks.len());
            finished
        });
        for task in &self.tasks {
            T::unpark(&T::thread(task));
        }
        finished.wait();
    }
}

impl<T: Tasks> Gate<T> {
    fn pass(&self) {
        self.parked.arrive();
        loop {
            match self.finished.get() {
                Some(finished) => return finished.arrive(),
                None => T::park(),
            }
        }
    }
}

/// Tasks that do nothing: their memory, and the time to start and end them.
pub fn idle<T: Tasks>(n: usize) -> Figures {
    T::run(move || {
        let bytes_before = own_memory_bytes();
        let start = Instant::now();
        let parked = Parked::<T>::spawn(n);
        let park_ns = ns_each(start, n);
        let bytes = own_memory_bytes().saturating_sub(bytes_before);
        let start = Instant::now();
        parked.wake_all();
        let wake_ns = ns_each(start, n);
        idle_figures(n, bytes, park_ns, wake_ns)
    })
}

/// All tasks are parked except one, which sleeps; the driver measures from outside.
pub fn quiet<T: Tasks>(seconds: usize) -> Offer {
    // They are never woken, so their handles are kept for good.
    T::run(|| std::mem::forget(Parked::<T>::spawn(QUIET_TASKS)));
    rounds(move || {
        let span = Duration::from_secs(seconds as u64) + QUIET_MARGIN;
        T::run(move || T::sleep(span));
        Ok(Vec::new())
    })
}

/// A plain thread wakes a task of a runtime that is asleep.
pub fn foreign_wake<T: Tasks>(wakes: usize) -> Figures {
    let bell = Arc::new(Bell::new());
    let listener = T::spawn({
        let bell = Arc::clone(&bell);
        move || {
            while bell.listen() {
                T::park();
            }
        }
    });
    let thread = T::thread(&listener);
    let figures = hogs::foreign_wakes(wakes, &bell, || T::unpark(&thread));
    T::join(listener);
    figures
}
