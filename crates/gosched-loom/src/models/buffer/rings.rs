//! The ring of a bounded channel. At most four preemptions; two or three with three threads.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use loom::thread;

use super::ring::{NewRing, No, ReservedPlace, Ring};
use crate::models::{Calm, Items, Plain, explore_in_turn};
use crate::shim::{self, Part};

/// Memory for the slots of a ring, as a channel has it behind the ring. It is freed after the ring.
struct Memory(NonNull<u8>, Layout);

// SAFETY: any thread may free the memory: the global allocator allocated it.
unsafe impl Send for Memory {}
// SAFETY: a shared `Memory` does nothing.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(layout: Layout) -> Memory {
        // SAFETY: a ring has a slot, and a slot is not empty.
        let at = NonNull::new(unsafe { alloc(layout) }).unwrap();
        Memory(at, layout)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and its ring is gone.
        unsafe { dealloc(self.0.as_ptr(), self.1) };
    }
}

/// A ring, the items that go through it, and a field per receive, written just before it.
struct Story {
    ring: Calm<Ring<usize>>,
    _memory: Memory,
    items: Items,
    marks: Vec<Plain>,
}

impl Story {
    fn new(cap: usize, items: usize) -> Arc<Story> {
        let ring = NewRing::new(cap).unwrap();
        let memory = Memory::new(ring.slots_layout());
        // SAFETY: the memory was just allocated for this, and the ring is dropped first.
        let ring = unsafe { ring.place(memory.0) };
        Arc::new(Story {
            ring: Calm::new(ring),
            _memory: memory,
            items: Items::new(items),
            marks: (0..items).map(|_| Plain::new(0)).collect(),
        })
    }

    fn push(&self, item: usize) -> Result<(), No> {
        self.items.make(item);
        // SAFETY: D1, the item is a number.
        unsafe { self.ring.push(&item) }
    }

    fn fill(&self, place: ReservedPlace, item: usize) {
        self.items.make(item);
        // SAFETY: D1, the item is a number, and its holder fills the place once.
        unsafe { self.ring.fill(place, &item) };
    }

    /// Takes one and runs it.
    fn pop(&self) -> Result<usize, No> {
        let mut item = usize::MAX;
        // SAFETY: D1, the item is a number.
        unsafe { self.ring.pop(&mut item)? };
        Ok(self.items.run(self.items.at(item)))
    }

    /// Takes up to `n`, as long as there is something.
    fn take(&self, n: usize) -> Vec<usize> {
        (0..n).map_while(|_| self.pop().ok()).collect()
    }

    /// What is left, after all threads have ended.
    fn drain(&self) -> Vec<usize> {
        self.take(usize::MAX)
    }
}

fn spawn<T: 'static>(
    story: &Arc<Story>,
    f: impl FnOnce(&Story) -> T + 'static,
) -> thread::JoinHandle<T> {
    let story = story.clone();
    thread::spawn(move || f(&story))
}

/// One sender and one receiver go round a ring of `cap` slots.
fn round_the_ring(cap: usize) {
    explore_in_turn(Some(4), move || {
        let story = Story::new(cap, cap + 2);
        let sender = spawn(&story, move |story| {
            for item in 0..cap + 2 {
                if story.push(item).is_err() {
                    return item;
                }
                if let Some(receive) = item.checked_sub(cap) {
                    assert_eq!(
                        story.marks[receive].get(),
                        1,
                        "U10: k receives, k + cap sends"
                    );
                }
            }
            cap + 2
        });
        let mut got = Vec::new();
        for mark in &story.marks {
            mark.set(1);
            match story.pop() {
                Ok(item) => got.push(item),
                Err(no) => {
                    assert_eq!(no, No::NotNow);
                    break;
                }
            }
        }
        let sent = sender.join().unwrap();
        got.extend(story.drain());
        assert_eq!(got, (0..sent).collect::<Vec<_>>(), "in order, each once");
    });
}

/// Explored: a full and an empty ring, seen as such while the other side is between its two steps.
/// Fails if either stamp is stored before the value is in or out, or if a position is taken without
/// looking at the stamp.
#[test]
fn u10_one_slot_is_used_again_and_again() {
    round_the_ring(1);
}

#[test]
fn u10_two_slots_are_used_again_and_again() {
    round_the_ring(2);
}

/// The sender's stamp publishes the value, the receiver's the room.
#[test]
#[should_panic(expected = "Causality violation")]
fn u10_without_release_a_stamp_says_nothing() {
    shim::without(Part::Release, || round_the_ring(1));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn u10_without_acquire_a_stamp_says_nothing() {
    shim::without(Part::Acquire, || round_the_ring(1));
}

/// Two senders, `cap` slots: each position has one of them.
fn two_senders(cap: usize) {
    explore_in_turn(Some(2), move || {
        let story = Story::new(cap, 3);
        let other = spawn(&story, |story| story.push(2).is_ok());
        let first = spawn(&story, |story| {
            (0..2).take_while(|item| story.push(*item).is_ok()).count()
        });
        let mut got = story.take(2);
        let (sent, other) = (first.join().unwrap(), other.join().unwrap());
        got.extend(story.drain());
        assert_eq!(got.len(), sent + usize::from(other), "each once");
        let of_first: Vec<_> = got.into_iter().filter(|item| *item < 2).collect();
        assert_eq!(
            of_first,
            (0..sent).collect::<Vec<_>>(),
            "in the sender's order"
        );
    });
}

/// Fails if a position can be taken twice.
#[test]
fn u10_two_senders_never_share_a_position() {
    two_senders(1);
    two_senders(2);
}

/// Fails if a value can be taken twice, or is skipped by one receiver because of the other.
#[test]
fn u10_two_receivers_never_share_a_value() {
    explore_in_turn(Some(2), || {
        let story = Story::new(2, 3);
        story.push(0).unwrap();
        let receivers = [0, 1].map(|_| spawn(&story, |story| story.take(1)));
        story.push(1).unwrap();
        let last = story.push(2).is_ok();
        let mut got: Vec<_> = receivers
            .into_iter()
            .flat_map(|r| r.join().unwrap())
            .collect();
        got.extend(story.drain());
        got.sort();
        assert_eq!(got, if last { vec![0, 1, 2] } else { vec![0, 1] });
    });
}

/// A pop that finds nothing has seen every push that was complete before: here, through the field
/// of another thread.
#[test]
fn u10_nothing_is_seen_only_when_there_is_nothing() {
    explore_in_turn(Some(4), || {
        let story = Story::new(1, 1);
        let told = Arc::new(crate::shim::AtomicUsize::new(0));
        let sender = spawn(&story, {
            let told = told.clone();
            move |story| {
                story.push(0).unwrap();
                told.store(1, shim::Release);
            }
        });
        let is_told = told.load(shim::Acquire) == 1;
        let got = story.pop();
        assert!(got.is_ok() || !is_told, "told, and nothing there");
        sender.join().unwrap();
    });
}

/// The end against a sender: what was pushed comes out before the end is seen, nothing afterwards.
#[test]
fn u10_the_end_comes_after_the_last_value() {
    explore_in_turn(Some(3), || {
        let story = Story::new(1, 2);
        let sender = spawn(&story, |story| match story.push(0) {
            Ok(()) => usize::from(story.push(1).is_ok()) + 1,
            Err(no) => {
                assert_eq!(no, No::Closed);
                0
            }
        });
        let closer = spawn(&story, |story| assert!(story.ring.close()));
        let mut got = Vec::new();
        let end = loop {
            match story.pop() {
                Ok(item) => got.push(item),
                Err(no) => break no,
            }
        };
        let sent = sender.join().unwrap();
        closer.join().unwrap();
        if end == No::Closed {
            assert_eq!(got.len(), sent, "the end was seen before a value");
        }
        got.extend(story.drain());
        assert_eq!(got, (0..sent).collect::<Vec<_>>());
        assert_eq!(story.pop(), Err(No::Closed));
        assert!(!story.ring.close());
    });
}

/// A place that is filled or given up while other threads push behind it and pop. What is behind it
/// waits for it.
fn a_place(is_filled: bool) {
    explore_in_turn(Some(2), move || {
        let story = Story::new(2, 3);
        story.push(0).unwrap();
        let place = story.ring.reserve().unwrap();
        let other = spawn(&story, |story| story.push(2).is_ok());
        let holder = spawn(&story, move |story| {
            if is_filled {
                story.fill(place, 1);
            } else {
                story.ring.void(place);
            }
        });
        let mut got = story.take(3);
        holder.join().unwrap();
        let sent = other.join().unwrap();
        got.extend(story.drain());
        let all = [0, 1, 2].into_iter();
        let expected: Vec<_> = all.filter(|item| [true, is_filled, sent][*item]).collect();
        assert_eq!(got, expected, "in the order of their places");
    });
}

/// Fails if a receiver takes a reserved place for a value or passes it, or if it does not pass one
/// that was given up.
#[test]
fn u10_a_reserved_place_keeps_its_turn() {
    a_place(true);
    a_place(false);
}
