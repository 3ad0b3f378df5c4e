//! The parking table against a model, with keys that all fall into one bucket.
//!
//! Each key must have its own queue, for every shape of the tree.

use std::collections::{BTreeMap, VecDeque};

use crate::sched::waiting::sema::*;

/// A waiter in the table without a goroutine or thread behind it.
struct Dummy {
    place: ParkedWaiter<'static>,
    _waiter: Box<Waiter>,
}

impl Dummy {
    fn new(key: usize) -> Box<Dummy> {
        let waiter = Box::new(Waiter::new());
        // SAFETY: the waiter is boxed and dropped after the place.
        let place = place(unsafe { NonNull::from(&*waiter).as_ref() }, key);
        let _waiter = waiter;
        Box::new(Dummy { place, _waiter })
    }

    /// # Safety
    /// The dummy is out of the table before it is dropped.
    unsafe fn at(&self) -> PlacePtr {
        // SAFETY: the dummy is boxed, so its place does not move. The caller promises the rest.
        unsafe { Pinned::new(NonNull::from(&self.place)) }
    }
}

/// `n` keys of different objects that fall into one bucket.
fn keys(n: usize) -> Vec<usize> {
    let bucket = |key: usize| (key as u64).wrapping_mul(MIX) >> (u64::BITS - BUCKET_BITS);
    let first = 0x10_0000; // no lock has this address
    let all = (first..).step_by(8);
    all.filter(|key| bucket(*key) == bucket(first))
        .take(n)
        .collect()
}

fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    *state >> 33
}

#[test]
fn g4_each_key_has_its_own_queue() {
    for seed in 1..=20 {
        let mut rng = seed;
        let keys = keys(1 + seed as usize * 3);
        let mut model: BTreeMap<usize, VecDeque<Box<Dummy>>> = BTreeMap::new();
        let mut wake = WakeList::new();
        let mut table = lock(keys[0]);
        for _ in 0..3000 {
            // An object has several keys.
            let key = keys[random(&mut rng) as usize % keys.len()] + random(&mut rng) as usize % 3;
            let queue = model.entry(key).or_default();
            match random(&mut rng) % 9 {
                0..4 => {
                    let dummy = Dummy::new(key);
                    let at_front = random(&mut rng).is_multiple_of(2);
                    // SAFETY: the dummy is boxed, and the model keeps it until it is out of the
                    // table.
                    table.push(unsafe { dummy.at() }, QueueEnd::front_if(at_front));
                    match at_front {
                        true => queue.push_front(dummy),
                        false => queue.push_back(dummy),
                    }
                }
                4..7 => {
                    let popped = table.pop(key);
                    let expected = queue.pop_front();
                    assert_eq!(popped.is_some(), expected.is_some(), "seed {seed}");
                    if let (Some(popped), Some(expected)) = (popped, expected) {
                        assert!(ptr::eq(&*popped.0, &expected.place.node), "seed {seed}");
                        popped.finish(7, &mut wake);
                        assert_eq!(expected.place.node.word.get(), 7);
                    }
                }
                7 if !queue.is_empty() => {
                    let at = random(&mut rng) as usize % queue.len();
                    let gone = queue.remove(at).unwrap();
                    assert!(table.remove(&gone.place), "seed {seed}");
                    assert!(!table.remove(&gone.place), "seed {seed}");
                }
                _ if random(&mut rng).is_multiple_of(40) => {
                    let mut admitted = 0;
                    table.pop_all(key, || admitted += 1, &mut wake);
                    assert_eq!(admitted, queue.len(), "seed {seed}");
                    queue.clear();
                }
                _ => assert_eq!(table.has(key), !queue.is_empty(), "seed {seed}"),
            }
        }
        for (key, queue) in model {
            table.pop_all(key, || {}, &mut wake);
            assert!(!table.has(key), "seed {seed}");
            drop(queue);
        }
        drop(table);
        wake.wake();
    }
}

/// A waiter that is claimed already is not popped, and leaves its queue.
#[test]
fn g4_a_wait_that_is_over_is_passed_by() {
    let key = keys(1)[0] + 4; // no other test uses this key
    let all: Vec<_> = (0..4).map(|_| Dummy::new(key)).collect();
    let mut wake = WakeList::new();
    let mut table = lock(key);
    for dummy in &all {
        // SAFETY: the dummies are boxed, and out of the table before they are dropped.
        table.push(unsafe { dummy.at() }, QueueEnd::Back);
    }
    // The first and the third waiter are claimed by another event.
    for over in [0, 2] {
        // SAFETY: the dummies are boxed, and dropped after all claims are finished.
        let node = unsafe { Pinned::new(NonNull::from(&all[over].place.node)) };
        ClaimedWaiter::claim(node).unwrap().finish(&mut wake);
    }
    for waits in [1, 3] {
        let popped = table.pop(key).unwrap();
        assert!(ptr::eq(&*popped.0, &all[waits].place.node));
        popped.finish(0, &mut wake);
        assert!(!table.remove(&all[waits - 1].place), "it is out already");
    }
    assert!(table.pop(key).is_none() && !table.has(key));
    drop(table);
    wake.wake();
}

/// The tree stays shallow with many keys.
#[test]
fn the_tree_does_not_degenerate() {
    fn depth(place: Link) -> usize {
        match place {
            Some(place) => 1 + depth(place.below[0].get()).max(depth(place.below[1].get())),
            None => 0,
        }
    }
    let keys = keys(4096);
    let all: Vec<_> = keys.iter().map(|key| Dummy::new(*key)).collect();
    let mut table = lock(keys[0]);
    for dummy in &all {
        // SAFETY: the dummies are boxed, and out of the table before they are dropped.
        table.push(unsafe { dummy.at() }, QueueEnd::Back);
    }
    let depth = depth(table.bucket.top.get());
    assert!(depth <= 40, "4096 keys are {depth} deep");
    for dummy in &all {
        assert!(table.remove(&dummy.place));
    }
    assert!(keys.iter().all(|key| !table.has(*key)));
}
