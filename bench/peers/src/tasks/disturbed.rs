//! `hog…` and `block…` with tasks: a ticker among tasks that do not release their thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Runtime, Signal};
use crate::common::Figures;
use crate::hogs::{self, DISTURBERS, Kind, Mail, Mailbox, NAP, PATIENCE, TICK, is_over, late_ms};

/// Runs the ticker among disturbers for `ms` milliseconds.
pub fn round<R: Runtime>(kind: Kind, ms: usize) -> Figures {
    let span = Duration::from_millis(ms as u64);
    let stop = Arc::new(AtomicBool::new(false));
    let late_ms = start_ticker::<R>(kind, &stop);
    let disturbers = [(); DISTURBERS].map(|()| R::spawn(disturb::<R>(kind, Arc::clone(&stop))));
    std::thread::sleep(span);
    // ORDER: Relaxed; the flag publishes no other data.
    stop.store(true, Ordering::Relaxed);
    let deadline = Instant::now() + PATIENCE;
    hogs::wait_until(deadline, || R::is_finished(&late_ms))?;
    let late_ms = R::wait(late_ms);
    let mut work = Vec::with_capacity(DISTURBERS);
    for disturber in disturbers {
        hogs::wait_until(deadline, || R::is_finished(&disturber))?;
        work.push(R::wait(disturber));
    }
    hogs::figures(kind, late_ms, &work, span)
}

async fn disturb<R: Runtime>(kind: Kind, stop: Arc<AtomicBool>) -> u64 {
    let nap = || std::thread::sleep(NAP);
    let mut naps = 0;
    match kind {
        Kind::Hog | Kind::Relay => return hogs::spin(&stop),
        Kind::Slept => {
            R::sleep(TICK).await;
            return hogs::spin(&stop);
        }
        Kind::Block => {
            while !is_over(&stop) {
                nap();
                naps += 1;
            }
        }
        Kind::Marked => {
            while !is_over(&stop) {
                R::blocking(nap).await;
                naps += 1;
            }
        }
    }
    naps
}

/// Starts the ticker, and the relay if there is one. Returns the task that measures the lateness of
/// all ticks.
fn start_ticker<R: Runtime>(kind: Kind, stop: &Arc<AtomicBool>) -> R::Handle<Vec<f64>> {
    let stop = Arc::clone(stop);
    if kind != Kind::Relay {
        return R::spawn(async move {
            let mut late = Vec::new();
            while !is_over(&stop) {
                let wanted = Instant::now() + TICK;
                R::sleep(TICK).await;
                late.push(late_ms(wanted));
            }
            late
        });
    }
    let shared = Arc::new((Mailbox::new(), R::Signal::new()));
    let relay = R::spawn({
        let shared = Arc::clone(&shared);
        async move {
            let (mailbox, signal) = &*shared;
            let mut late = Vec::new();
            loop {
                match mailbox.take() {
                    Mail::Tick(wanted) => late.push(late_ms(wanted)),
                    Mail::None => signal.wait().await,
                    Mail::Over => return late,
                }
            }
        }
    });
    R::detach(async move {
        let (mailbox, signal) = &*shared;
        while !is_over(&stop) {
            let wanted = Instant::now() + TICK;
            R::sleep(TICK).await;
            mailbox.post(wanted);
            signal.give();
        }
        mailbox.close();
        signal.give();
    });
    relay
}

/// Endless loops beside a server.
pub fn hogs_for_good<R: Runtime>() {
    static NEVER: AtomicBool = AtomicBool::new(false);
    for _ in 0..DISTURBERS {
        R::detach(async { _ = hogs::spin(&NEVER) });
    }
}
