//! A heap of goroutines by deadline, the earliest at its root (PL).
//!
//! It exists because a timer must be removed from the middle without a search and without a
//! tombstone.
//!
//! Each entry has four children, which share one cache line. A heap of a hundred thousand is nine
//! levels deep. The deadline is in the entry, so ordering the heap reads no goroutine. Nor does it
//! write any: an entry holds a *slot*, a small number that a goroutine keeps while it is in the
//! heap. A separate table has the position of each slot, sixteen to a cache line. So a removal from
//! the middle costs the depth of the heap.
//!
//! The heap has no lock; `timers` guards it.

use crate::base::fatal;
use crate::sched::model::ptr::Gp;
use crate::sys::{Errno, PageVec};

const ARITY: usize = 4;
/// The root's index. The entries before it are unused. With them an entry's children begin at a
/// multiple of four, and so share a cache line.
const ROOT: usize = ARITY - 1;
/// No slot: the end of the list of free slots.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Entry {
    when: u64,
    slot: u32,
}

const _: () = assert!(size_of::<Entry>() * ARITY == 64, "four to a cache line");

pub(crate) struct Heap {
    entries: PageVec<Entry>,
    /// The position of a slot's entry; for a free slot, the next free one.
    places: PageVec<u32>,
    /// The goroutine of a slot; for a free slot, its last one.
    owners: PageVec<Gp>,
    free: u32,
    /// How many entries all three have room for.
    room: usize,
}

#[inline]
fn parent_of(at: usize) -> usize {
    at / ARITY + ROOT - 1
}

#[inline]
fn children_of(at: usize) -> usize {
    (at - ROOT + 1) * ARITY
}

impl Heap {
    pub(crate) const fn new() -> Heap {
        Heap {
            entries: PageVec::new(),
            places: PageVec::new(),
            owners: PageVec::new(),
            free: NONE,
            room: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len().saturating_sub(ROOT)
    }

    /// The earliest deadline; `u64::MAX` if the heap is empty.
    #[inline]
    pub(crate) fn next_ns(&self) -> u64 {
        self.entries
            .as_slice()
            .get(ROOT)
            .map_or(u64::MAX, |e| e.when)
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<Gp> {
        let first = self.entries.as_slice().get(ROOT)?;
        Some(self.owners.as_slice()[first.slot as usize])
    }

    /// Makes room for `n` more goroutines.
    #[inline]
    pub(crate) fn reserve(&mut self, n: usize) -> Result<(), Errno> {
        if self.entries.len() + n <= self.room {
            return Ok(());
        }
        self.grow(n)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, n: usize) -> Result<(), Errno> {
        self.entries.reserve(n + ROOT)?;
        while self.entries.len() < ROOT {
            self.entries.push(Entry {
                when: 0,
                slot: NONE,
            })?;
        }
        // There are never more slots than entries.
        let room = self.entries.capacity();
        self.places.reserve(room - self.places.len())?;
        self.owners.reserve(room - self.owners.len())?;
        self.room = room;
        Ok(())
    }

    /// Inserts a goroutine, for which there is room; returns whether it is now the first.
    pub(crate) fn insert(&mut self, g: Gp, when: u64) -> bool {
        let slot = self.take_slot(g);
        g.timer_slot.set(slot);
        let at = self.entries.len();
        let entry = Entry { when, slot };
        if at < ROOT || self.entries.push(entry).is_err() {
            fatal::throw("a timer without the room that was made for it");
        }
        self.raise(at, entry) == ROOT
    }

    #[inline]
    fn take_slot(&mut self, g: Gp) -> u32 {
        let slot = self.free;
        if slot != NONE {
            self.free = self.places.as_slice()[slot as usize];
            self.owners.as_mut_slice()[slot as usize] = g;
            return slot;
        }
        if self.owners.push(g).is_err() || self.places.push(NONE).is_err() {
            fatal::throw("a timer without the slot that was made for it");
        }
        self.owners.len() as u32 - 1
    }

    #[inline]
    fn give_slot(&mut self, slot: u32) {
        self.places.as_mut_slice()[slot as usize] = self.free;
        self.free = slot;
    }

    pub(crate) fn pop(&mut self) -> Option<Gp> {
        let g = self.first()?;
        self.take_out(ROOT);
        Some(g)
    }

    pub(crate) fn remove(&mut self, g: Gp) {
        let slot = g.timer_slot.get() as usize;
        debug_assert!(self.owners.as_slice()[slot] == g, "G4");
        self.take_out(self.places.as_slice()[slot] as usize);
    }

    #[inline]
    fn take_out(&mut self, at: usize) {
        self.give_slot(self.entries.as_slice()[at].slot);
        if let Some(last) = self.entries.pop()
            && at < self.entries.len()
        {
            // The last entry nearly always belongs far down. So the gap sinks to a leaf, and the
            // entry rises from there.
            let at = self.sink_gap(at);
            self.raise(at, last);
        }
    }

    /// Removes any goroutine, with its deadline: to empty one heap into another.
    pub(crate) fn take_any(&mut self) -> Option<(u64, Gp)> {
        if self.len() == 0 {
            return None;
        }
        let last = self.entries.pop()?;
        self.give_slot(last.slot);
        Some((last.when, self.owners.as_slice()[last.slot as usize]))
    }

    /// Puts `entry` into the gap at `at`, or above it; returns its position.
    #[inline]
    fn raise(&mut self, mut at: usize, entry: Entry) -> usize {
        let (entries, places) = (self.entries.as_mut_slice(), self.places.as_mut_slice());
        while at > ROOT {
            let above = parent_of(at);
            let parent = entries[above];
            if parent.when <= entry.when {
                break;
            }
            entries[at] = parent;
            places[parent.slot as usize] = at as u32;
            at = above;
        }
        entries[at] = entry;
        places[entry.slot as usize] = at as u32;
        at
    }

    /// Moves a gap down to a leaf, each time raising its earliest child; returns the leaf's
    /// position.
    #[inline]
    fn sink_gap(&mut self, mut at: usize) -> usize {
        let (entries, places) = (self.entries.as_mut_slice(), self.places.as_mut_slice());
        loop {
            let first = children_of(at);
            let least = match entries.get(first..) {
                None | Some([]) => return at,
                Some([a, b, c, d, ..]) => {
                    let (ab, first_two) = least_of(a, b);
                    let (cd, last_two) = least_of(c, d);
                    if last_two < first_two { 2 + cd } else { ab }
                }
                Some(few) => (1..few.len()).fold(0, |least, at| {
                    if few[at].when < few[least].when {
                        at
                    } else {
                        least
                    }
                }),
            };
            let child = entries[first + least];
            entries[at] = child;
            places[child.slot as usize] = at as u32;
            at = first + least;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Gp> + '_ {
        let entries = self.entries.as_slice().iter().skip(ROOT);
        entries.map(|e| self.owners.as_slice()[e.slot as usize])
    }

    /// Whether the order and all positions are right, for checks.
    pub(crate) fn is_sound(&self) -> bool {
        let (entries, places) = (self.entries.as_slice(), self.places.as_slice());
        (ROOT..entries.len()).all(|at| {
            let entry = entries[at];
            let owner = self.owners.as_slice()[entry.slot as usize];
            places[entry.slot as usize] as usize == at
                && owner.timer_slot.get() == entry.slot
                && (at == ROOT || entries[parent_of(at)].when <= entry.when)
        })
    }
}

/// Which of two entries is earlier, and its deadline.
#[inline]
fn least_of(a: &Entry, b: &Entry) -> (usize, u64) {
    (usize::from(b.when < a.when), a.when.min(b.when))
}

#[cfg(test)]
mod tests {
    use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
    use std::collections::BTreeSet;
    use std::ptr::NonNull;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::sched::model::g::G;

    /// Gs that no M runs; leaked.
    fn some_gs(n: usize) -> Vec<Gp> {
        let layout = Layout::array::<G>(n).unwrap();
        // SAFETY: `n` Gs have a layout of non-zero size.
        let block = unsafe { alloc_zeroed(layout) }.cast::<G>();
        let block = NonNull::new(block).unwrap_or_else(|| handle_alloc_error(layout));
        // SAFETY: GF. The block has `n` Gs and is leaked, so it lives for ever. All-zero memory is
        // a valid G.
        (0..n).map(|i| unsafe { Gp::new(block.add(i)) }).collect()
    }

    fn address(g: Gp) -> usize {
        g.as_ptr() as usize
    }

    fn put_in(heap: &mut Heap, g: Gp, when: u64) -> bool {
        heap.reserve(1).unwrap();
        heap.insert(g, when)
    }

    /// Inserts, removals and pops in random order, many with equal deadlines, against an ordered
    /// set.
    #[test]
    fn pl_the_heap_agrees_with_a_model() {
        for seed in 0..4 {
            let mut rng = StdRng::seed_from_u64(seed);
            let gs = some_gs(2000);
            let (mut heap, mut model) = (Heap::new(), BTreeSet::new());
            let mut outside = gs.clone();
            for step in 0..20_000 {
                // The heap grows for a while, then shrinks.
                let grows = step % 5000 < 2500;
                let chance = if grows { 70 } else { 30 };
                if rng.random_range(0..100) < chance && !outside.is_empty() {
                    let g = outside.swap_remove(rng.random_range(0..outside.len()));
                    let when = rng.random_range(0..200);
                    let is_first = put_in(&mut heap, g, when);
                    let is_least = model.first().is_none_or(|(least, _)| when < *least);
                    assert_eq!(is_first, is_least, "seed {seed}");
                    model.insert((when, address(g)));
                } else if rng.random_bool(0.5) {
                    let when = heap.next_ns();
                    let popped = heap.pop();
                    assert_eq!(popped.is_some(), !model.is_empty(), "seed {seed}");
                    if let Some(g) = popped {
                        assert_eq!(model.first().unwrap().0, when, "seed {seed}");
                        assert!(model.remove(&(when, address(g))), "seed {seed}");
                        outside.push(g);
                    }
                } else if let Some(&(when, addr)) = pick(&model, &mut rng) {
                    model.remove(&(when, addr));
                    let g = gs[(addr - address(gs[0])) / size_of::<G>()];
                    heap.remove(g);
                    outside.push(g);
                }
                assert_eq!(heap.len(), model.len());
                assert_eq!(
                    heap.next_ns(),
                    model.first().map_or(u64::MAX, |(when, _)| *when)
                );
                if step % 100 == 0 {
                    assert!(heap.is_sound(), "seed {seed}, step {step}");
                }
            }
            assert_empties_in_order(heap, model);
        }
    }

    /// Some member, not always the first.
    fn pick<'a>(model: &'a BTreeSet<(u64, usize)>, rng: &mut StdRng) -> Option<&'a (u64, usize)> {
        let from = (rng.random_range(0..200), 0);
        model.range(from..).next().or_else(|| model.first())
    }

    fn assert_empties_in_order(mut heap: Heap, mut model: BTreeSet<(u64, usize)>) {
        while let Some((when, _)) = model.first().copied() {
            assert_eq!(heap.next_ns(), when);
            let g = heap.pop().unwrap();
            assert!(model.remove(&(when, address(g))));
        }
        assert!(heap.pop().is_none());
    }

    #[test]
    fn pl_slots_are_used_again() {
        let gs = some_gs(100);
        let mut heap = Heap::new();
        for round in 0..1000u64 {
            for (i, g) in gs.iter().enumerate() {
                put_in(&mut heap, *g, round + i as u64);
            }
            while heap.pop().is_some() {}
        }
        assert_eq!(heap.owners.len(), 100);
    }

    #[test]
    fn pl_a_heap_is_emptied_into_another() {
        let gs = some_gs(1000);
        let (mut from, mut to) = (Heap::new(), Heap::new());
        let mut rng = StdRng::seed_from_u64(1);
        for g in &gs {
            put_in(&mut from, *g, rng.random_range(0..1_000_000));
        }
        while let Some((when, g)) = from.take_any() {
            put_in(&mut to, g, when);
        }
        assert!(from.len() == 0 && from.next_ns() == u64::MAX);
        assert!(to.len() == 1000 && to.is_sound());
        let order: Vec<u64> = std::iter::from_fn(|| {
            let when = to.next_ns();
            to.pop().map(|_| when)
        })
        .collect();
        assert!(order.is_sorted() && order.len() == 1000);
    }
}
