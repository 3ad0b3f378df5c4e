//! The list of an unbounded channel. A block has room for two, so that three values reach the next
//! one. At most four preemptions; two or three with three threads; one if blocks are used again.
//!
//! Blocks are freed while the model runs. Loom learns that from an atomic, and reports an access
//! that is not ordered before it.

use std::sync::Arc;

use loom::thread;

use super::list::{Emptied, List, NoPush};
use super::ring::No;
use crate::models::{Calm, Items, explore_in_turn};
use crate::shim::{self, Part};

struct Story {
    list: Calm<List<usize>>,
    items: Items,
}

impl Story {
    fn new(items: usize) -> Arc<Story> {
        Arc::new(Story {
            list: Calm::new(List::new()),
            items: Items::new(items),
        })
    }

    /// The unbounded flavour's `try_send`. False: it is closed.
    fn push(&self, item: usize) -> bool {
        self.items.make(item);
        let mut spare = self.list.spare();
        loop {
            // SAFETY: D1, the item is a number.
            match unsafe { self.list.push(&item, &mut spare) } {
                Ok(()) => return true,
                Err(NoPush::Closed) => return false,
                Err(NoPush::NeedsBlock) => spare = Some(self.list.fetch_spare()),
            }
        }
    }

    /// Takes one and runs it, as the outside of the runtime does: of emptied blocks one is kept.
    fn pop(&self) -> Result<usize, No> {
        self.pop_and(List::recycle)
    }

    /// As [`Story::pop`], as the inside of the runtime does: emptied blocks are kept for later.
    fn pop_keeping(&self) -> Result<usize, No> {
        self.pop_and(List::keep)
    }

    fn pop_and(&self, then: fn(&List<usize>, Emptied<usize>)) -> Result<usize, No> {
        let mut item = usize::MAX;
        let mut emptied = Emptied::new();
        // SAFETY: D1, the item is a number.
        let popped = unsafe { self.list.pop(&mut item, &mut emptied) };
        then(&self.list, emptied);
        popped?;
        Ok(self.items.run(self.items.at(item)))
    }

    fn take(&self, n: usize) -> Vec<usize> {
        (0..n).map_while(|_| self.pop().ok()).collect()
    }
}

fn spawn<T: 'static>(
    story: &Arc<Story>,
    f: impl FnOnce(&Story) -> T + 'static,
) -> thread::JoinHandle<T> {
    let story = story.clone();
    thread::spawn(move || f(&story))
}

/// One sender, one receiver, over the end of a block, which is freed.
fn over_the_end_of_a_block() {
    explore_in_turn(Some(4), || {
        let story = Story::new(3);
        assert!(story.push(0)); // the list has its first block
        let sender = spawn(&story, |story| {
            (1..3).for_each(|item| assert!(story.push(item)))
        });
        let mut got = story.take(3);
        sender.join().unwrap();
        got.extend(story.take(3));
        assert_eq!(got, [0, 1, 2], "in order, each once");
    });
}

/// Explored: the receiver takes the last place of a block before the sender has linked the next
/// one. Fails if a place is read before it is written, if a block is freed while a thread may still
/// follow a pointer to it, or if a new block is reached before it is whole.
#[test]
fn u10_a_value_crosses_the_end_of_a_block() {
    over_the_end_of_a_block();
}

#[test]
#[should_panic(expected = "Causality violation")]
fn u10_without_release_a_block_is_reached_before_it_is_whole() {
    shim::without(Part::Release, over_the_end_of_a_block);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn u10_without_acquire_a_block_is_reached_before_it_is_whole() {
    shim::without(Part::Acquire, over_the_end_of_a_block);
}

/// Two senders share the places of a block; one of them brings the next. Fails if a place has two
/// senders, or if a sender writes into a block that is not its place's. (No thread receives
/// meanwhile: loom lets two threads that wait for a third wait for ever.)
#[test]
fn u10_two_senders_share_a_block() {
    explore_in_turn(Some(3), || {
        let story = Story::new(4);
        let other = spawn(&story, |story| {
            (2..4).for_each(|item| assert!(story.push(item)))
        });
        (0..2).for_each(|item| assert!(story.push(item)));
        other.join().unwrap();
        let got = story.take(4);
        assert_eq!(got.len(), 4);
        let of_first: Vec<_> = got.into_iter().filter(|item| *item < 2).collect();
        assert_eq!(of_first, [0, 1], "in the sender's order");
    });
}

/// Two senders find a list without a block, and a receiver looks at it meanwhile. Explored: both
/// bring a block, and the receiver sees one end of the list at the block and the other not. Fails
/// if both blocks become the first one, or if the block is reached before it is whole.
#[test]
fn u10_the_first_send_brings_a_block() {
    explore_in_turn(Some(2), || {
        let story = Story::new(2);
        let senders = [0, 1].map(|item| spawn(&story, move |story| assert!(story.push(item))));
        let mut got: Vec<_> = story.pop().into_iter().collect();
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(story.list.len(), 2 - got.len());
        got.extend(story.take(2));
        got.sort();
        assert_eq!(got, [0, 1], "each once");
        assert_eq!(story.pop(), Err(No::NotNow));
    });
}

/// A list to which nothing was sent ends, also while the first sender brings a block. Fails if the
/// head moves to the block before the tail: a receiver would wait for a value that is never sent.
#[test]
fn u10_a_list_ends_before_its_first_block() {
    explore_in_turn(Some(3), || {
        let story = Story::new(1);
        let sender = spawn(&story, |story| story.push(0));
        assert!(story.list.close());
        let got: Vec<_> = story.take(1);
        let sent = sender.join().unwrap();
        let rest = story.take(1);
        assert_eq!(got.len() + rest.len(), usize::from(sent));
        assert_eq!(story.pop(), Err(No::Closed));
    });
}

/// Two receivers empty a block: the last of them frees it, whichever took the last place.
#[test]
fn u10_two_receivers_empty_a_block() {
    explore_in_turn(Some(2), || {
        let story = Story::new(3);
        (0..2).for_each(|item| assert!(story.push(item)));
        let receivers = [0, 1].map(|_| spawn(&story, |story| story.take(2)));
        assert!(story.push(2));
        let mut got: Vec<_> = receivers
            .into_iter()
            .flat_map(|r| r.join().unwrap())
            .collect();
        got.extend(story.take(3));
        got.sort();
        assert_eq!(got, [0, 1, 2]);
    });
}

/// Two receivers empty a block each, one inside the runtime and one outside, while a sender needs a
/// block. Each block is kept, used again or freed by one of them. Fails if it is used again before
/// the last reader has left it.
#[test]
fn d9_an_emptied_block_goes_round() {
    explore_in_turn(Some(1), || {
        let story = Story::new(7);
        (0..4).for_each(|item| assert!(story.push(item)));
        let inside = spawn(&story, |story| {
            (0..2).for_each(|_| _ = story.pop_keeping().unwrap());
        });
        let outside = spawn(&story, |story| {
            (0..2).for_each(|_| _ = story.pop().unwrap());
        });
        let sender = spawn(&story, |story| {
            (4..7).for_each(|item| assert!(story.push(item)));
        });
        sender.join().unwrap();
        inside.join().unwrap();
        outside.join().unwrap();
        assert_eq!(story.take(3), [4, 5, 6]);
        assert_eq!(story.pop(), Err(No::NotNow));
    });
}

/// One sender and one receiver, over the ends of two blocks: the second one is, perhaps, the first
/// one again.
#[test]
fn u10_a_block_is_used_again() {
    explore_in_turn(Some(2), || {
        let story = Story::new(5);
        (0..2).for_each(|item| assert!(story.push(item)));
        let sender = spawn(&story, |story| {
            (2..5).for_each(|item| assert!(story.push(item)));
        });
        let mut got = story.take(5);
        sender.join().unwrap();
        got.extend(story.take(5));
        assert_eq!(got, [0, 1, 2, 3, 4], "in order, each once");
    });
}

/// The end against a sender: what was pushed comes out before the end is seen.
#[test]
fn u10_the_end_comes_after_the_last_value() {
    explore_in_turn(Some(2), || {
        let story = Story::new(3);
        let sender = spawn(&story, |story| {
            (0..3).take_while(|item| story.push(*item)).count()
        });
        let closer = spawn(&story, |story| assert!(story.list.close()));
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
        got.extend(story.take(3));
        assert_eq!(got, (0..sent).collect::<Vec<_>>());
        assert_eq!(story.pop(), Err(No::Closed));
    });
}
