//! The number of Ps changes, and nothing that was queued is lost (U7).

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gosched::thread;

use crate::env::Actor;

pub fn root(a: &mut Actor) {
    let first = gosched::gomaxprocs(0);
    let planned = [Some(a.env.plan.procs), a.env.plan.there];
    a.expect(
        planned.contains(&Some(first)),
        format_args!("{first} Ps, and not {planned:?}"),
    );
    let mut procs = first;
    while !a.over() {
        let many = match a.rng.below(4) {
            0 => 1,
            1 => a.rng.within(1, 64),
            _ => a.rng.within(1, 4),
        };
        set(a, &mut procs, many);
        a.op();
        if a.rng.one_in(3) {
            // Changes it again at once, in the middle of the first change.
            let many = a.rng.within(1, 8);
            set(a, &mut procs, many);
        }
        let handles = (0..a.rng.few(100)).map(|n| a.spawn(move |_| n)).collect();
        a.join_all(handles);
        thread::sleep(Duration::from_micros(300 + a.rng.below(8000)));
    }
    set(a, &mut procs, first);
}

/// Changes the number of Ps and checks the old one: a round has one actor that does so. A runtime
/// that ends may refuse.
fn set(a: &Actor, procs: &mut usize, many: usize) {
    let before = gosched::gomaxprocs(many);
    let after = gosched::gomaxprocs(0);
    let is_set = after == many || after == before && a.env.is_ending.load(SeqCst);
    a.expect(
        before == *procs && is_set,
        format_args!("{before} Ps were to be {procs}, {after} to be {many}"),
    );
    *procs = after;
}
