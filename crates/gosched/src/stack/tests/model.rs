//! Random use of the arena, against a model and across threads.

use std::collections::{HashMap, HashSet};

use crate::stack::Arena;
use crate::stack::tests::Room;
use crate::stack::tests::{
    Stack, USUAL, check, in_child, is_intact, read, scavenge_all, touch, write,
};

/// A step of SplitMix64.
pub(super) fn random(seed: &mut u64) -> usize {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *seed;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) as usize
}

/// The expected state of a class, as its users see it.
#[derive(Default)]
struct Model {
    reserved: usize,
    slack: usize,
    out: Vec<Stack>,
    /// Every slot ever seen, with its top.
    tops: HashMap<usize, usize>,
    last_given: Option<Stack>,
}

impl Model {
    /// Makes one random step; returns whether the scavenger ran.
    fn step(&mut self, arena: &Arena, class: u8, seed: &mut u64) -> bool {
        let choice = random(seed) % 100;
        let many = 1 + random(seed)
            % if random(seed).is_multiple_of(20) {
                2000
            } else {
                20
            };
        match choice {
            0..12 if self.reserved < 8000 => {
                arena.reserve(class, many).expect("address space");
                self.reserved += many;
            }
            0..20 => {
                let promised = self.reserved + self.slack - self.out.len();
                let n = many.min(self.reserved).min(promised);
                arena.unreserve(class, n);
                self.reserved -= n;
            }
            20..23 if self.out.len() <= self.reserved => {
                arena.set_slack(class, many).expect("address space");
                self.slack = many;
            }
            23..60 => self.take(arena, class, many),
            60..97 => self.give(arena, many, seed),
            _ => _ = arena.scavenge(many, std::iter::empty),
        }
        choice >= 97
    }

    /// After scavenging a retired slot may come back with another number, and so with another
    /// colour.
    fn forget_free(&mut self) {
        let out: HashSet<_> = self.out.iter().map(|stack| stack.lo).collect();
        self.tops.retain(|lo, _| out.contains(lo));
        self.last_given = None;
    }

    fn take(&mut self, arena: &Arena, class: u8, many: usize) {
        let n = many.min(self.reserved + self.slack - self.out.len());
        let mut taken = vec![Stack::from_parts(0, 0, 0); n];
        let mut filled = 0;
        if n > 8 {
            filled = arena.take_batch(class, &mut taken[..n / 2]);
            assert!(filled >= 1);
        }
        for place in &mut taken[filled..] {
            *place = arena.take(class);
        }
        for stack in taken {
            if let Some(last) = self.last_given.take() {
                assert_eq!(stack, last);
            }
            assert_eq!(*self.tops.entry(stack.lo).or_insert(stack.hi), stack.hi);
            touch(&[stack]);
            self.out.push(stack);
        }
    }

    fn give(&mut self, arena: &Arena, many: usize, seed: &mut u64) {
        let mut given = Vec::new();
        for _ in 0..many.min(self.out.len()) {
            let stack = self.out.swap_remove(random(seed) % self.out.len());
            assert!(is_intact(&stack), "memory of a stack in use was lost");
            given.push(stack);
        }
        arena.give_batch(&given);
        self.last_given = given.last().copied().or(self.last_given);
    }
}

#[test]
fn random_use_agrees_with_a_model() {
    for (force, seed) in [(false, 11), (false, 12), (true, 13)] {
        let died = in_child(|| {
            let mut seed = seed;
            let arena = Arena::new(force, Room::SHARED);
            let classes = [0, USUAL, 7];
            let mut models = classes.map(|_| Model::default());
            for step in 0..6000 {
                let k = random(&mut seed) % classes.len();
                if models[k].step(&arena, classes[k], &mut seed) {
                    models.iter_mut().for_each(Model::forget_free);
                }
                if step % 16 == 0 {
                    check(&arena);
                    let stats = arena.stats();
                    assert_eq!(
                        stats.in_use,
                        models.iter().map(|m| m.out.len()).sum::<usize>()
                    );
                    assert_eq!(
                        stats.reserved,
                        models.iter().map(|m| m.reserved).sum::<usize>()
                    );
                }
            }
            for model in models {
                assert_eq!(
                    model.out.iter().map(|s| s.lo).collect::<HashSet<_>>().len(),
                    model.out.len()
                );
                assert!(model.out.iter().all(is_intact));
            }
        });
        assert_eq!(died, 0, "seed {seed}");
    }
}

#[test]
fn threads_never_share_a_stack() {
    let arena = Arena::new(false, Room::SHARED);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let arena = &arena;
            scope.spawn(move || {
                let mut seed = thread;
                let mut mine = Vec::new();
                for _ in 0..20_000 {
                    match random(&mut seed) % 8 {
                        0..4 if mine.len() < 600 => {
                            arena.reserve(USUAL, 1).expect("address space");
                            let stack = arena.take(USUAL);
                            write(stack.hi - 8, thread);
                            mine.push(stack);
                        }
                        4..7 if !mine.is_empty() => {
                            let stack = mine.swap_remove(random(&mut seed) % mine.len());
                            assert_eq!(read(stack.hi - 8), thread);
                            arena.give(stack);
                            arena.unreserve(USUAL, 1);
                        }
                        7 if arena.scavenge_due() => _ = arena.scavenge(8, std::iter::empty),
                        _ => {}
                    }
                }
                arena.give_batch(&mine);
                arena.unreserve(USUAL, mine.len());
            });
        }
    });
    check(&arena);
    scavenge_all(&arena);
    assert_eq!((arena.stats().in_use, arena.stats().reserved), (0, 0));
}
