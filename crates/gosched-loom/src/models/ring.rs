//! The local run queue: the owner against one or two thieves, on a ring of four slots.
//!
//! Every item has a plain field, which the thread that takes the item writes. So loom reports an
//! item that two Ms hold, and one that a thief sees before its owner's writes (R4). After the
//! threads have ended and the queues are drained, each field must be exactly 1 (S1, S2).

use std::ptr::{self, NonNull};
use std::sync::Arc;

use loom::thread;

use super::{Items, Plain, explore};
use crate::runq::{OVERFLOW, Owner, RunQueue, Steal};
use crate::shim::{Acquire, AtomicU32, RING, Release};

/// The P whose queue is stolen from.
const VICTIM: usize = 0;

/// Where the counters start: every story takes them past the end of their range (R1).
const ALMOST: u32 = u32::MAX - 1;

/// Ps with their queues, and the items.
struct Ps {
    queues: Vec<RunQueue<Plain>>,
    items: Items,
}

impl Ps {
    fn new(queues: usize, items: usize) -> Arc<Ps> {
        Arc::new(Ps {
            queues: (0..queues).map(|_| RunQueue::starting_at(ALMOST)).collect(),
            items: Items::new(items),
        })
    }

    /// A world whose victim has `n` items in its ring at the start.
    fn with_ring(queues: usize, items: usize, n: usize) -> Arc<Ps> {
        let ps = Ps::new(queues, items);
        for item in 0..n {
            assert!(ps.owner(VICTIM).put(ps.items.make(item)).is_ok());
        }
        ps
    }

    fn owner(&self, p: usize) -> Owner<'_, Plain> {
        // SAFETY: R2. In every story below one thread at a time acts as the M of p.
        unsafe { self.queues[p].owner() }
    }

    fn put(&self, p: usize, item: usize) {
        assert!(self.owner(p).put(self.items.make(item)).is_ok());
    }

    /// Runs all that p still has; returns the items in order.
    fn drain(&self, p: usize) -> Vec<usize> {
        std::iter::from_fn(|| self.owner(p).get())
            .map(|(item, _)| self.items.run(item))
            .collect()
    }

    fn run_all(&self, items: impl IntoIterator<Item = NonNull<Plain>>) {
        for item in items {
            self.items.run(item);
        }
    }

    /// One steal into p's queue, which is empty, and a run of all stolen items.
    fn steal(&self, p: usize, take_next: bool) -> Vec<usize> {
        let stolen = self.queues[VICTIM].steal_into(&self.owner(p), take_next, || {});
        let Steal::Moved(item, n) = stolen else {
            return Vec::new();
        };
        let last = self.items.run(item);
        let mut all = self.drain(p);
        all.push(last);
        assert_eq!(all.len(), n as usize, "a steal says how many it moved");
        assert!(all.len() <= RING / 2, "I4: at most half a ring");
        assert!(all.is_sorted(), "I3: thieves take the oldest, in order");
        all
    }

    /// The library's `runq_put`: an item that does not fit goes to the global queue with half the
    /// ring (R6).
    fn put_or_overflow(&self, item: NonNull<Plain>, global: &mut Vec<NonNull<Plain>>) {
        let owner = self.owner(VICTIM);
        let Err(item) = owner.put(item) else { return };
        let mut half = [ptr::null_mut(); OVERFLOW];
        match owner.take_half(&mut half) {
            Some(n) => {
                assert_eq!(n, RING / 2, "R6: half the ring");
                global.extend(half[..n].iter().filter_map(|&item| NonNull::new(item)));
                global.push(item);
            }
            // S4: a refusal means that a thief made room, so the second try is the last.
            None => assert!(owner.put(item).is_ok(), "S4: put had to be tried again"),
        }
    }
}

/// The owner fills and empties its ring while a thief steals twice. Explored: a thief that loads
/// the tail before and after each put, and both taking the same last item. Fails
///
/// - if the tail is stored without Release,
/// - if either side moves the head without a swap, or
/// - if the thief does not load the tail with Acquire.
#[test]
fn r2_r3_r4_an_owner_and_a_thief_share_a_ring() {
    explore(None, || {
        let ps = Ps::new(2, 3);
        let thief = thread::spawn({
            let ps = ps.clone();
            move || {
                ps.steal(1, false);
                ps.steal(1, false);
            }
        });
        ps.put(VICTIM, 0);
        ps.put(VICTIM, 1);
        if let Some((item, inherits)) = ps.owner(VICTIM).get() {
            assert!(!inherits, "only `next` inherits the time slice");
            ps.items.run(item);
        }
        ps.put(VICTIM, 2);
        ps.drain(VICTIM);
        thief.join().unwrap();
        ps.items.assert_each_ran_once();
    });
}

/// A full ring: the thief has loaded head, tail and slots and is about to swap. Meanwhile the owner
/// takes one item and reuses its slot. The thief's swap must fail, or it would run the new item
/// twice and lose the old one. Fails if the head is moved by a store, or if `put` does not compare
/// with the head.
#[test]
fn r1_r3_a_slot_is_reused_under_a_slow_thief() {
    explore(None, || {
        let ps = Ps::with_ring(2, 6, RING);
        let thief = thread::spawn({
            let ps = ps.clone();
            move || ps.steal(1, false).len()
        });
        let mut global = Vec::new();
        if let Some((item, _)) = ps.owner(VICTIM).get() {
            ps.items.run(item);
        }
        ps.put(VICTIM, 4);
        ps.put_or_overflow(ps.items.make(5), &mut global);
        ps.drain(VICTIM);
        ps.run_all(global);
        thief.join().unwrap();
        ps.items.assert_each_ran_once();
    });
}

/// Two thieves and the owner, which drains. Explored: all three swapping the same head.
#[test]
fn r3_two_thieves_and_the_owner() {
    explore(Some(4), || {
        let ps = Ps::with_ring(3, 3, 3);
        let thieves = [1, 2].map(|p| {
            let ps = ps.clone();
            thread::spawn(move || drop(ps.steal(p, false)))
        });
        ps.drain(VICTIM);
        for thief in thieves {
            thief.join().unwrap();
        }
        ps.items.assert_each_ran_once();
    });
}

/// Two items, two thieves, no other thread: if one swap fails, the other thief has made progress
/// and one item is left. So neither returns empty. Fails if a thief gives up after a lost swap.
#[test]
fn s5_a_lost_swap_means_that_the_other_thief_won() {
    explore(None, || {
        let ps = Ps::with_ring(3, 2, 2);
        let thieves = [1, 2].map(|p| {
            let ps = ps.clone();
            thread::spawn(move || assert_eq!(ps.steal(p, false).len(), 1, "S5"))
        });
        for thief in thieves {
            thief.join().unwrap();
        }
        ps.items.assert_each_ran_once();
    });
}

/// Stolen items are stolen again from the thief, by an M that never loaded the first victim. Fails
/// if the thief publishes them without Release.
#[test]
fn r4_loot_is_stolen_again() {
    explore(None, || {
        let ps = Ps::new(3, 3);
        let first = thread::spawn({
            let ps = ps.clone();
            move || {
                let stolen = ps.queues[VICTIM].steal_into(&ps.owner(1), false, || {});
                if let Steal::Moved(item, _) = stolen {
                    ps.items.run(item);
                }
            }
        });
        let second = thread::spawn({
            let ps = ps.clone();
            move || {
                let stolen = ps.queues[1].steal_into(&ps.owner(2), false, || {});
                if let Steal::Moved(item, n) = stolen {
                    assert_eq!(n, 1, "at most one was left there");
                    ps.items.run(item);
                }
            }
        });
        (0..3).for_each(|item| ps.put(VICTIM, item));
        first.join().unwrap();
        second.join().unwrap();
        ps.drain(VICTIM);
        ps.drain(1);
        ps.items.assert_each_ran_once();
    });
}

/// Alone, a thief takes the larger half from the front and leaves the rest in order.
#[test]
fn i3_i4_a_steal_takes_the_larger_half_from_the_front() {
    for (full, stolen) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
        explore(None, move || {
            let ps = Ps::with_ring(2, full, full);
            assert_eq!(ps.steal(1, false), Vec::from_iter(0..stolen));
            assert_eq!(ps.drain(VICTIM), Vec::from_iter(stolen..full));
            ps.items.assert_each_ran_once();
        });
    }
}

/// A full ring overflows while a thief steals from it. Explored: the thief makes room before the
/// overflow, during it (the owner's swap fails) and after it. None of these may make the owner try
/// a third time (S4). Fails if `take_half` ignores its swap's result.
#[test]
fn r6_s4_an_overflow_against_a_thief() {
    explore(None, || {
        let ps = Ps::with_ring(2, 6, RING);
        let thief = thread::spawn({
            let ps = ps.clone();
            move || ps.steal(1, false).len()
        });
        let mut global = Vec::new();
        ps.put_or_overflow(ps.items.make(4), &mut global);
        ps.put_or_overflow(ps.items.make(5), &mut global);
        ps.drain(VICTIM);
        ps.run_all(global);
        thief.join().unwrap();
        ps.items.assert_each_ran_once();
    });
}

/// The owner measures the room, then puts that many while a thief takes. Only the owner reduces the
/// room.
#[test]
fn r1_measured_room_is_there() {
    explore(None, || {
        let ps = Ps::with_ring(2, 5, 3);
        let thief = thread::spawn({
            let ps = ps.clone();
            move || ps.steal(1, false).len()
        });
        let room = (ps.owner(VICTIM).room() as usize).min(2);
        assert!(room > 0, "R1: three of four slots were in use");
        (3..3 + room).for_each(|item| ps.put(VICTIM, item));
        assert!(ps.queues[VICTIM].len() as usize <= RING, "R1");
        ps.drain(VICTIM);
        ps.run_all((3 + room..5).map(|item| ps.items.make(item)));
        thief.join().unwrap();
        ps.items.assert_each_ran_once();
    });
}

/// The owner makes 0 and then 1 the next to run, so 0 is kicked to the ring, and runs what is left.
/// The thief may take `next` (fourth round). Explored: the thief takes 0 or 1 out of `next` before,
/// during and after the kick, or 0 from the ring. Fails if `next` is taken by load and store.
#[test]
fn r5_next_is_kicked_while_a_thief_wants_it() {
    explore(None, || {
        let ps = Ps::new(2, 2);
        let thief = thread::spawn({
            let ps = ps.clone();
            move || {
                ps.steal(1, true);
                ps.steal(1, true);
            }
        });
        for item in 0..2 {
            if let Some(kicked) = ps.owner(VICTIM).put_next(ps.items.make(item)) {
                assert!(ps.owner(VICTIM).put(kicked).is_ok());
            }
        }
        ps.drain(VICTIM);
        thief.join().unwrap();
        ps.items.assert_each_ran_once();
    });
}

/// Two thieves and the owner want one `next`: one of the three gets it.
#[test]
fn r5_next_is_taken_once() {
    explore(None, || {
        let ps = Ps::new(3, 1);
        assert!(ps.owner(VICTIM).put_next(ps.items.make(0)).is_none());
        let thieves = [1, 2].map(|p| {
            let ps = ps.clone();
            thread::spawn(move || ps.steal(p, true).len())
        });
        let own = ps.drain(VICTIM).len();
        let stolen = thieves.map(|thief| thief.join().unwrap());
        assert_eq!(own + stolen[0] + stolen[1], 1);
        ps.items.assert_each_ran_once();
    });
}

/// A thief in its first three rounds does not touch `next`, and takes from the ring behind it.
#[test]
fn i8_an_early_round_leaves_next_alone() {
    explore(None, || {
        let ps = Ps::new(2, 2);
        assert!(ps.owner(VICTIM).put_next(ps.items.make(0)).is_none());
        let thief = thread::spawn({
            let ps = ps.clone();
            move || assert!(!ps.steal(1, false).contains(&0), "I8")
        });
        ps.put(VICTIM, 1);
        assert_eq!(ps.drain(VICTIM)[0], 0, "`next` comes first");
        thief.join().unwrap();
        ps.items.assert_each_ran_once();
    });
}

/// The feared story of `is_empty`. 0 is in `next`. The owner makes 1 the next, kicks 0 to the ring,
/// and takes 1 to run it. At every moment one of them is queued, so the queue is never empty. But
/// an observer that loads the ring before the kick and `next` after the take sees neither. Fails
/// without the second load of the tail.
#[test]
fn r5_is_empty_does_not_miss_a_kicked_goroutine() {
    explore(None, || {
        let ps = Ps::new(1, 2);
        assert!(ps.owner(VICTIM).put_next(ps.items.make(0)).is_none());
        let observer = thread::spawn({
            let ps = ps.clone();
            move || assert!(!ps.queues[VICTIM].is_empty(), "a goroutine was missed")
        });
        let kicked = ps.owner(VICTIM).put_next(ps.items.make(1)).unwrap();
        assert!(ps.owner(VICTIM).put(kicked).is_ok());
        let (item, inherits) = ps.owner(VICTIM).get().unwrap();
        assert!(inherits && ps.items.run(item) == 1);
        observer.join().unwrap();
        assert_eq!(ps.drain(VICTIM), [0]);
        ps.items.assert_each_ran_once();
    });
}

/// The same kick with a thief instead of the take. While the owner has 0 and the thief has 1 the
/// queue may look empty (the owner's barrier is still to come, wake/1). Once the owner has put 0,
/// it may not.
#[test]
fn r5_is_empty_once_the_kick_is_over() {
    explore(Some(4), || {
        let ps = Ps::new(2, 2);
        assert!(ps.owner(VICTIM).put_next(ps.items.make(0)).is_none());
        let is_put = Arc::new(AtomicU32::new(0));
        let thief = thread::spawn({
            let ps = ps.clone();
            move || {
                let stolen = ps.queues[VICTIM].steal_into(&ps.owner(1), true, || {});
                if let Steal::Moved(item, _) = stolen {
                    ps.items.run(item);
                }
            }
        });
        let observer = thread::spawn({
            let (ps, is_put) = (ps.clone(), is_put.clone());
            move || {
                // ORDER: Acquire; pairs with the Release below, as the fences of the wake protocol
                // would.
                let kick_is_over = is_put.load(Acquire) == 1;
                let looks_empty = ps.queues[VICTIM].is_empty();
                assert!(!(kick_is_over && looks_empty), "a goroutine was missed");
            }
        });
        let kicked = ps.owner(VICTIM).put_next(ps.items.make(1));
        if let Some(kicked) = kicked {
            assert!(ps.owner(VICTIM).put(kicked).is_ok());
            // ORDER: Release; pairs with the Acquire above.
            is_put.store(1, Release);
        }
        thief.join().unwrap();
        observer.join().unwrap();
        ps.drain(VICTIM);
        ps.items.assert_each_ran_once();
    });
}
