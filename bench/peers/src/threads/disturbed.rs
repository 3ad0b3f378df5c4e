//! `hog…` and `block…` with blocking calls: a ticker among tasks that do not release their thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Tasks;
use crate::common::Figures;
use crate::hogs::{self, DISTURBERS, Kind, Mail, Mailbox, NAP, PATIENCE, TICK, is_over, late_ms};

/// Runs the ticker among disturbers for `ms` milliseconds.
pub fn round<T: Tasks>(kind: Kind, ms: usize) -> Figures {
    let span = Duration::from_millis(ms as u64);
    let stop = Arc::new(AtomicBool::new(false));
    let late_ms = start_ticker::<T>(kind, &stop);
    let disturbers = [(); DISTURBERS].map(|()| {
        let stop = Arc::clone(&stop);
        T::spawn(move || disturb::<T>(kind, &stop))
    });
    std::thread::sleep(span);
    // ORDER: Relaxed; the flag publishes no other data.
    stop.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + PATIENCE;
    hogs::wait_until(deadline, || T::is_finished(&late_ms))?;
    let late_ms = T::join(late_ms);
    let mut work = Vec::with_capacity(DISTURBERS);
    for disturber in disturbers {
        hogs::wait_until(deadline, || T::is_finished(&disturber))?;
        work.push(T::join(disturber));
    }
    hogs::figures(kind, late_ms, &work, span)
}

fn disturb<T: Tasks>(kind: Kind, stop: &AtomicBool) -> u64 {
    match kind {
        Kind::Hog | Kind::Relay => hogs::spin(stop),
        Kind::Slept => {
            T::sleep(TICK);
            hogs::spin(stop)
        }
        // Threads need no mark, and coroutines have none.
        Kind::Block | Kind::Marked => {
            let mut naps = 0;
            while !is_over(stop) {
                std::thread::sleep(NAP);
                naps += 1;
            }
            naps
        }
    }
}

/// Starts the ticker, and the relay if there is one. Returns the task that measures the lateness of
/// all ticks.
fn start_ticker<T: Tasks>(kind: Kind, stop: &Arc<AtomicBool>) -> T::Handle<Vec<f64>> {
    let stop = Arc::clone(stop);
    if kind != Kind::Relay {
        return T::spawn(move || {
            let mut late = Vec::new();
            while !is_over(&stop) {
                let wanted = Instant::now() + TICK;
                T::sleep(TICK);
                late.push(late_ms(wanted));
            }
            late
        });
    }
    let mailbox = Arc::new(Mailbox::new());
    let relay = T::spawn({
        let mailbox = Arc::clone(&mailbox);
        move || {
            let mut late = Vec::new();
            loop {
                match mailbox.take() {
                    Mail::Tick(wanted) => late.push(late_ms(wanted)),
                    Mail::None => T::park(),
                    Mail::Over => return late,
                }
            }
        }
    });
    let relay_thread = T::thread(&relay);
    drop(T::spawn(move || {
        while !is_over(&stop) {
            let wanted = Instant::now() + TICK;
            T::sleep(TICK);
            mailbox.post(wanted);
            T::unpark(&relay_thread);
        }
        mailbox.close();
        T::unpark(&relay_thread);
    }));
    relay
}

/// Endless loops beside a server.
pub fn hogs_for_good<T: Tasks>() {
    static NEVER: AtomicBool = AtomicBool::new(false);
    for _ in 0..DISTURBERS {
        drop(T::spawn(|| hogs::spin(&NEVER)));
    }
}
