//! Deadlines that have come are due at once, even if the process was interrupted while it compared
//! its two clocks. That happens once in a process, so this file has one test.

use std::time::{Duration, Instant};

use gosched::chan::{after, at, select, select_biased, tick, unbounded};
use gosched::time::{Timer, sleep_until};

const RUNS: usize = 1000;

#[test]
fn what_is_due_is_there_though_the_clocks_were_read_late() {
    gosched::testing::interrupt_clock(i64::MAX);
    let (s, messages) = unbounded::<i32>();
    s.send(1).unwrap();
    for run in 0..RUNS {
        assert!(after(Duration::ZERO).try_recv().is_ok(), "after, {run}");
        assert!(tick(Duration::ZERO).try_recv().is_ok(), "tick, {run}");
        assert!(Timer::new(Duration::ZERO).chan().try_recv().is_ok());
        let now = Instant::now();
        assert_eq!(at(now).try_recv(), Ok(now), "at, {run}");
        select_biased! {
            recv(after(Duration::ZERO)) -> _ => {}
            recv(messages) -> _ => panic!("after lost, {run}"),
        }
        select_biased! {
            recv(at(Instant::now())) -> _ => {}
            recv(messages) -> _ => panic!("at lost, {run}"),
        }
        select! {
            recv(tick(Duration::ZERO)) -> _ => {}
            default => panic!("tick lost, {run}"),
        }
    }
    // Nor is anything early.
    for _ in 0..RUNS {
        let start = Instant::now();
        let when = after(Duration::from_micros(1)).recv().unwrap();
        assert!(when >= start + Duration::from_micros(1));
        assert!(Instant::now() >= when);
        let until = Instant::now() + Duration::from_micros(1);
        sleep_until(until);
        assert!(Instant::now() >= until);
        assert_eq!(at(until).recv(), Ok(until));
        assert!(messages.recv_deadline(Instant::now()).is_ok());
        s.send(1).unwrap();
    }
}
