//! The number of Ps changes, and nothing that was queued is lost (U7).

use gosched::thread;
use std::time::Duration;

use crate::env::Actor;

pub fn root(a: &mut Actor) {
    let first = gosched::gomaxprocs(0);
    while !a.over() {
        let procs = match a.rng.below(4) {
            0 => 1,
            1 => a.rng.within(1, 64),
            _ => a.rng.within(1, 4),
        };
        let before = gosched::gomaxprocs(procs);
        a.expect(before >= 1, "there were no Ps");
        a.op();
        if a.rng.one_in(3) {
            // At once again, in the middle of it.
            gosched::gomaxprocs(a.rng.within(1, 8));
        }
        let handles = (0..a.rng.few(100)).map(|n| a.spawn(move |_| n)).collect();
        a.join_all(handles);
        thread::sleep(Duration::from_micros(300 + a.rng.below(8000)));
    }
    gosched::gomaxprocs(first);
}
