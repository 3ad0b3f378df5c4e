//! Goroutines locked to their threads (U9): they stay there, and one that ends while locked ends
//! its thread.

use gosched::thread;

use crate::env::Actor;
use crate::system::tid;

pub fn root(a: &mut Actor) {
    while !a.over() {
        let mut handles = Vec::new();
        for _ in 0..a.rng.few(6) {
            handles.push(a.spawn(live));
        }
        a.join_all(handles);
        thread::sleep(a.rng.micros(2000));
    }
}

fn live(a: &mut Actor) {
    let depth = a.rng.few(3);
    (0..depth).for_each(|_| gosched::lock_os_thread());
    let own = tid();
    for _ in 0..a.rng.few(8) {
        match a.rng.below(5) {
            0 => {
                let other = a.spawn(move |a| {
                    a.expect(tid() != own, "another goroutine on a locked thread");
                    a.nap();
                });
                a.join_all(vec![other]);
            }
            1 => std::thread::sleep(a.rng.micros(200)),
            2 => thread::sleep(a.rng.micros(200)),
            _ => a.nap(),
        }
        a.expect(tid() == own, "a locked goroutine changed its thread");
        a.op();
    }
    if a.rng.one_in(3) {
        return; // the thread ends too
    }
    (0..depth).for_each(|_| gosched::unlock_os_thread());
    a.nap();
}
