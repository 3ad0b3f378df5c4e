//! Stacks: deep and shallow, of many sizes, with their contents checked after every wait; and
//! memory passed between goroutines.

use std::hint::black_box;

use gosched::thread;

use crate::env::Actor;

pub fn root(a: &mut Actor) {
    while !a.over() {
        let mut handles = Vec::new();
        for _ in 0..a.rng.few(16) {
            let size = 256usize << a.rng.within(10, 14);
            let depth = a.rng.below(size as u64 / 8192);
            let body = a.goroutine(move |a| {
                a.nap();
                let word = a.rng.next();
                let back = descend(a, depth, word);
                a.expect(back == word, "a stack changed");
                a.op();
            });
            let Some(body) = body else { continue };
            handles.push(a.accept(thread::Builder::new().stack_size(size).spawn(body)));
        }
        let many = a.rng.few(2000);
        let boxed = a.spawn(move |a| {
            a.nap();
            (0..many).map(Box::new).collect::<Vec<_>>()
        });
        if let Some(boxes) = boxed.and_then(|boxed| a.join(boxed)) {
            let is_whole = boxes.iter().enumerate().all(|(n, boxed)| **boxed == n);
            a.expect(is_whole, "memory from another goroutine changed");
        }
        a.join_all(handles);
        a.nap();
    }
}

/// Descends `depth` frames of half a kilobyte or more, with a wait at the bottom.
fn descend(a: &mut Actor, depth: u64, word: u64) -> u64 {
    let frame = black_box([word ^ depth; 64]);
    let below = if depth == 0 {
        a.nap();
        thread::yield_now();
        word
    } else {
        descend(a, depth - 1, word)
    };
    let is_whole = frame.iter().all(|w| *w == word ^ depth);
    if is_whole { below } else { !word }
}
