//! Random mixtures of goroutines and threads on a few words; nothing is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use libc::{FUTEX_REQUEUE, FUTEX_WAIT, FUTEX_WAKE_OP};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::common::{LONG, within};
use crate::raw::{PRIVATE, REST, Rest, address, futex, wait, wake};
use crate::{Kind, common};

const WORDS: usize = 3;
const PARTIES: usize = 12;

/// Permits in words: a party takes one where it is, or waits there, and puts it into another word.
/// A lost wake-up leaves parties asleep beside permits, and the test hangs.
struct Words {
    permits: [AtomicU32; WORDS],
    turns: AtomicUsize,
}

impl Words {
    fn take(&self, rng: &mut StdRng, at: usize) {
        let word = &self.permits[at];
        loop {
            let found = word.load(SeqCst);
            if found > 0
                && word
                    .compare_exchange(found, found - 1, SeqCst, SeqCst)
                    .is_ok()
            {
                return;
            }
            if found > 0 {
                continue;
            }
            match rng.random_range(0..4) {
                0 => {
                    let time = libc::timespec {
                        tv_sec: 0,
                        tv_nsec: rng.random_range(0..300_000),
                    };
                    let third = std::ptr::from_ref(&time).addr();
                    futex(address(word), FUTEX_WAIT | PRIVATE, Rest { third, ..REST });
                }
                _ => _ = wait(word, 0),
            }
        }
    }

    fn put(&self, rng: &mut StdRng, at: usize) {
        let word = &self.permits[at];
        word.fetch_add(1, SeqCst);
        // More than one wake-up is allowed; fewer are not.
        match rng.random_range(0..8) {
            0 => _ = wake(word, u32::MAX),
            // Wakes all as well, by the other way.
            1 => {
                let rest = Rest {
                    value: 100,
                    third: 100,
                    second_word: address(word),
                    last: 0,
                };
                futex(address(word), FUTEX_REQUEUE | PRIVATE, rest);
            }
            2 => {
                // Adds nothing to the second word, and wakes on the first.
                let other = &self.permits[(at + 1) % WORDS];
                let rest = Rest {
                    value: 1,
                    third: 1,
                    second_word: address(other),
                    last: 1 << 28,
                };
                futex(address(word), FUTEX_WAKE_OP | PRIVATE, rest);
            }
            _ => _ = wake(word, 1),
        }
    }
}

fn play(seed: u64, turns: usize) {
    let words = Arc::new(Words {
        permits: [const { AtomicU32::new(1) }; WORDS],
        turns: AtomicUsize::new(0),
    });
    gosched::run(|| {
        let parties: Vec<_> = (0..PARTIES)
            .map(|n| {
                let words = Arc::clone(&words);
                let mut rng = StdRng::seed_from_u64(seed ^ n as u64);
                Kind::of(n).start(move || {
                    while words.turns.fetch_add(1, SeqCst) < turns {
                        let at = rng.random_range(0..WORDS);
                        words.take(&mut rng, at);
                        if rng.random_range(0..8) == 0 {
                            std::thread::yield_now();
                        }
                        words.put(&mut rng, at);
                    }
                })
            })
            .collect();
        parties.into_iter().for_each(|party| party.join());
        let left: u32 = words.permits.iter().map(|word| word.load(SeqCst)).sum();
        assert_eq!(left as usize, WORDS);
    });
}

#[test]
fn nothing_is_lost() {
    let seed = std::env::var("GOSCHED_STRESS_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    println!("GOSCHED_STRESS_SEED={seed}");
    within(LONG, &format!("seed {seed}"), || play(seed, 30_000));
}

/// The same, with disorder from the runtime.
#[test]
fn nothing_is_lost_in_disorder() {
    let seed = rand::random();
    println!("GOSCHED_STRESS_SEED={seed}");
    let done = common::child_with(
        "nothing_is_lost_in_disorder",
        "",
        common::chaos(seed),
        |_| {
            within(LONG, &format!("seed {seed}"), || play(seed, 10_000));
        },
    );
    done.succeeded();
}
