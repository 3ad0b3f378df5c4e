//! Blocks from the inside: geometry, the comparison with the image, tables and their spares.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use crate::Runtime;
use crate::arch;
use crate::sched::life::thread_locals::{on_thread, standing};
use crate::sched::model::current::{current_g, current_m};
use crate::stack::{Arena, Stack};
use crate::tests::child;
use crate::tls::block::Block;
use crate::tls::dtv::{Dtv, Owned, SpareState};
use crate::tls::glibc;
use crate::tls::image;
use crate::tls::image::Image;
use crate::tls::static_object::Object;
use crate::tls::*;

/// What is known of this libc.
fn support() -> &'static glibc::Glibc {
    glibc::support(false, crate::interpose::install).unwrap()
}

/// A block outside any stack, and what it was made from.
struct Alone {
    memory: *mut u8,
    layout: Layout,
    block: Block,
    image: &'static Image,
}

impl Alone {
    fn new() -> Alone {
        crate::interpose::own_room(false).expect("this machine has what it takes");
        // SAFETY: `own_room` has published one, and images are never freed.
        Alone::of(unsafe { &*image::current() })
    }

    fn of(image: &'static Image) -> Alone {
        let room = crate::interpose::own_room(false).expect("this machine has what it takes");
        let layout = Layout::from_size_align(room.total + room.align, room.align).unwrap();
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        let block = Block::at(room.fit(memory as usize), &room);
        let owned = Dtv::allocate(image).unwrap();
        // SAFETY: D6, memory of the test's own, which no code is on.
        unsafe { block.imprint(image, owned) };
        Alone {
            memory,
            layout,
            block,
            image,
        }
    }

    /// Changes a byte at an offset from the thread pointer, compares, and changes it back.
    fn is_seen_at(&self, offset: isize) -> bool {
        let byte = self.block.tp().wrapping_add_signed(offset) as *mut u8;
        // SAFETY: D6, a byte of the test's own block.
        unsafe {
            *byte ^= 0x40;
            let seen = self.block.is_touched();
            *byte ^= 0x40;
            seen
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // SAFETY: D6, no code is on the block; its table and memory are the test's.
        unsafe {
            Dtv::of(self.block.tp()).free();
            dealloc(self.memory, self.layout);
        }
    }
}

#[test]
fn d6_a_block_lies_above_its_stack_and_below_the_next_guard() {
    let room = crate::interpose::own_room(false).unwrap();
    let glibc = support();
    assert!(room.above >= glibc.kept + glibc::HEADER);
    assert!(room.total >= room.above + glibc.pthread);
    let arena = Arena::new(false, room);
    for class in [0, 4, 9] {
        let _rt = crate::sched::park::enter();
        arena.reserve(class, 40).unwrap();
        let mut stacks: Vec<_> = (0..40).map(|_| arena.take(class)).collect();
        stacks.sort_by_key(|stack| stack.lo);
        for (stack, next) in stacks.iter().zip(&stacks[1..]) {
            assert!((stack.hi + room.above).is_multiple_of(glibc.align));
            assert!(stack.hi - stack.lo >= crate::stack::class_size(class));
            let (guard, _) = Arena::guard_range(next);
            assert!(stack.hi + room.total <= guard);
        }
        stacks.into_iter().for_each(|stack| arena.give(stack));
        arena.unreserve(class, 40);
    }
}

/// libc has given all of its surplus. Blocks have no place for it.
#[test]
fn d6_the_surplus_is_reserved_to_its_last_byte() {
    let (room, glibc) = (crate::interpose::own_room(false).unwrap(), support());
    assert_eq!(glibc.surplus, Surplus::Reserved);
    assert!(glibc.kept < glibc.below && glibc.reservation != 0);
    assert!(room.above < glibc.below, "frames begin in the reservation");
    let image = Alone::new().image;
    assert!(image.used <= glibc.kept.next_multiple_of(8));
    let is_reservation = |module: &modules::Module| module.offset > glibc.kept;
    assert!(!image.modules.iter().any(is_reservation));
    assert!(surplus::is_used_up(glibc));
}

/// A refusal leaves libc as it was: a late library finds the surplus, and a second attempt too.
#[test]
fn d6_a_refusal_returns_the_surplus() {
    if !child::is_one() {
        let output = child::run(module_path!(), "d6_a_refusal_returns_the_surplus");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    for _ in 0..2 {
        let refused = glibc::support(false, || Err("a test refuses"));
        assert_eq!(refused.err(), Some("a test refuses"));
        assert!(!late_libraries::has_blocks());
        let late = Object::new(1_000).into_file().unwrap();
        // SAFETY: an object without code, closed once.
        unsafe {
            let handle = libc::dlopen(late.path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null(), "libc has no room for it");
            assert_eq!(libc::dlclose(handle), 0);
        }
    }
    assert_eq!(support().surplus, Surplus::Reserved);
}

/// The reservation rules it out. If it happens all the same, no goroutine may run on.
#[test]
fn d6_a_library_placed_in_the_frames_is_fatal() {
    const TEXT: &str = "where goroutines have their stacks";
    if !child::is_one() {
        child::assert_dies(
            module_path!(),
            "d6_a_library_placed_in_the_frames_is_fatal",
            TEXT,
        );
        return;
    }
    let mut glibc = *support();
    let mut image = Image::new(&glibc).ok().unwrap();
    glibc.kept = image.used - 8;
    let reason = Image::new(&glibc).err().unwrap();
    assert!(reason.contains(TEXT), "{reason}");
    image.glibc = glibc;
    let image = Box::leak(Box::new(image));
    image::publish(image, image.next);
    image::renew();
}

#[test]
fn d6_every_thread_local_is_compared_but_mallocs_own() {
    let alone = Alone::new();
    assert!(!alone.block.is_touched());
    let glibc = &alone.image.glibc;
    let mut ignored = vec![glibc.resolver_word];
    ignored.extend(glibc.malloc_words.into_iter().flatten());
    for offset in -(alone.image.used as isize)..0 {
        let is_ignored = ignored
            .iter()
            .any(|word| (*word..*word + 8).contains(&offset));
        assert_eq!(alone.is_seen_at(offset), !is_ignored, "at tp{offset}");
    }
    assert!(alone.is_seen_at(glibc.keys_used as isize));
    assert!(alone.is_seen_at(glibc.resolver as isize + 8));
    for word in glibc.text_words {
        assert!(word != 0 && alone.is_seen_at(word));
    }
    assert!(!alone.block.is_touched());
}

#[test]
fn d6_malloc_is_known_to_be_glibcs_here() {
    let words = support().malloc_words;
    let [cache, arena] = words.expect("these tests run on glibc's malloc");
    assert_ne!(cache, arena);
}

/// If a libc kept one more word than is known here, that word would be lost with every goroutine.
#[test]
fn d6_a_cache_of_malloc_that_was_not_found_is_a_refusal() {
    let mut glibc = *support();
    let [one, two] = glibc.malloc_words.expect("glibc's malloc");
    for known in [one, two] {
        glibc.malloc_words = Some([known; 2]);
        let image = Box::leak(Box::new(Image::new(&glibc).ok().unwrap()));
        let rehearsal = std::thread::spawn(|| selftest::run(image));
        let reason = rehearsal.join().unwrap().unwrap_err();
        assert!(reason.contains("malloc keeps something"), "{reason}");
    }
}

#[test]
fn d6_each_block_has_a_thread_id_that_no_thread_has() {
    let (one, two) = (Alone::new(), Alone::new());
    let tid = |alone: &Alone| {
        let at = alone.block.tp() + alone.image.glibc.tid;
        // SAFETY: D6, a word of the test's own block.
        unsafe { *(at as *const u32) }
    };
    assert_ne!(tid(&one), tid(&two));
    assert!(tid(&one) > 1 << 22 && tid(&one) < 1 << 30);
}

/// Gives a table to the spares and looks for it there. None: another test has taken it meanwhile.
fn give_and_take(owned: Owned) -> Option<Owned> {
    let _rt = crate::sched::park::enter();
    // SAFETY: D6, the table is the caller's own, and clean.
    unsafe { owned.give_spare() };
    let mut others = Vec::new();
    let found = loop {
        match Dtv::take_spare() {
            Some(found) if found.dtv.as_ptr() == owned.dtv.as_ptr() => break Some(found),
            Some(other) => others.push(other),
            None => break None,
        }
    };
    for other in others {
        // SAFETY: D6, taken off the list just now, so it is this test's.
        unsafe { other.give_spare() };
    }
    found
}

#[test]
fn d6_a_spare_table_comes_back_with_what_belongs_to_it() {
    if !child::is_one() {
        // Goroutines of other tests must not get what it puts on the lists.
        return child::succeeds(
            module_path!(),
            "d6_a_spare_table_comes_back_with_what_belongs_to_it",
        );
    }
    let alone = Alone::new();
    let came_back = (0..100).any(|_| {
        let owned = Owned {
            random: 0x5eed0,
            ..Dtv::allocate(alone.image).unwrap()
        };
        let Some(its) = give_and_take(owned) else {
            return false;
        };
        assert_eq!((its.tid, its.random), (owned.tid, owned.random));
        let dtv = its.dtv;
        dtv.fill(alone.image, alone.block.tp());
        assert!(!dtv.differs(alone.image, alone.block.tp()));
        // SAFETY: D6, taken back from the list, so it is this test's again.
        unsafe { dtv.free() };
        true
    });
    assert!(came_back);
}

/// Such a state exists only from glibc 2.41 and Linux 6.11 on; elsewhere an unused word replaces
/// libc's.
#[test]
fn d6_a_random_state_stays_with_its_block_and_outlives_it() {
    if !child::is_one() {
        // Goroutines of other tests must not get what it puts on the lists.
        return child::succeeds(
            module_path!(),
            "d6_a_random_state_stays_with_its_block_and_outlives_it",
        );
    }
    const STATE: usize = 0x5eed0;
    let glibc = support();
    let unused = glibc.pthread as isize - 8;
    let at = glibc.random_word.unwrap_or(unused);
    let mut glibc = *glibc;
    glibc.random_word = Some(at);
    let image = Image::new(&glibc);
    let image = Box::leak(Box::new(image.ok().unwrap()));
    let came_back = (0..100).any(|_| {
        let alone = Alone::of(image);
        let block = alone.block;
        let word = block.tp().wrapping_add_signed(at) as *mut usize;
        // SAFETY: D6, a word of the test's own block, on which no code is.
        unsafe {
            word.write(STATE);
            assert!(!block.is_touched(), "the state is not the goroutine's");
            block.imprint(image, block.owned(image));
            assert_eq!(*word, STATE, "made new without its state");
            word.write(STATE | 1);
            assert_eq!(block.owned(image).random, 0, "abandoned while in use");
            word.write(STATE);
        }
        // SAFETY: D6, the test's own block; the table goes to the spares, and comes back to be
        // freed with the block.
        let owned = unsafe { block.owned(image) };
        match give_and_take(owned) {
            Some(found) => assert_eq!(found.random, STATE, "the spare has lost it"),
            None => {
                std::mem::forget(alone); // its table is another test's
                return false;
            }
        }
        // SAFETY: D6, the table is the test's own again; the block gets another one, for its end.
        unsafe {
            let other = Dtv::allocate(image).unwrap();
            block.imprint(image, other);
            owned.free();
        }
        true
    });
    assert!(came_back);
    let take = || {
        let _rt = crate::sched::park::enter();
        SpareState::take()
    };
    let states = std::iter::from_fn(|| Some(take().unpack()).filter(|state| *state != 0));
    let states: Vec<usize> = states.collect();
    assert!(states.contains(&STATE), "a freed table has taken it along");
}

/// All tables in the list of spares; they stay there.
fn spares() -> Vec<usize> {
    let _rt = crate::sched::park::enter();
    let taken: Vec<_> = std::iter::from_fn(Dtv::take_spare).collect();
    for spare in &taken {
        // SAFETY: D6, taken off the list just now, so it is this test's.
        unsafe { spare.give_spare() };
    }
    let tables = taken.iter().map(|spare| spare.dtv.as_ptr() as usize);
    tables.collect()
}

#[test]
fn d6_what_a_block_owns_survives_its_stack() {
    const MANY: usize = 200;
    // Few large stacks stay hot, so most of these lose their memory.
    const LARGE: u8 = 9;
    let room = crate::interpose::own_room(false).unwrap();
    let arena = Arena::new(false, room);
    // SAFETY: `own_room` has published one, and images are never freed.
    let image = unsafe { &*image::current() };
    arena.reserve(LARGE, MANY).unwrap();
    let stacks: Vec<_> = (0..MANY).map(|_| arena.take(LARGE)).collect();
    let mut tables = Vec::new();
    for stack in &stacks {
        let owned = Dtv::allocate(image).unwrap();
        // SAFETY: D6, the stack was taken, and no code is on its block.
        unsafe { Block::at(stack.hi, &room).imprint(image, owned) };
        tables.push(owned.dtv.as_ptr() as usize);
    }
    let _rt = crate::sched::park::enter();
    arena.give_batch(&stacks);
    while arena.scavenge(MANY, std::iter::empty) {}
    let spares = spares();
    let kept = tables.iter().filter(|table| spares.contains(table)).count();
    // Other tests may have taken some. The tables of stacks that stay hot are with their blocks.
    assert!(kept > MANY / 4, "{kept} of {MANY} tables are there");
}

#[test]
fn d6_the_fs_of_an_m_with_a_p_is_known() {
    let runtime = Runtime::builder().procs(2).build().unwrap();
    runtime.run(|| {
        let g = current_g().unwrap();
        let room = g.sched().tls;
        if room.is_own() {
            let home = g.stack_hi.get() + room.above;
            assert!(standing(g.sched()).any(|tp| tp == home));
            assert!(
                standing(g.sched()).count() <= 2,
                "no more than there are Ps"
            );
        }
    });
}

/// The stack keeps its memory, the others lose theirs. The Ms are read once for many stacks.
#[test]
fn d6_a_stack_whose_block_an_m_is_on_keeps_its_memory() {
    const MANY: usize = 400;
    // Few large stacks stay hot, so most of these lose their memory.
    const LARGE: u8 = 9;
    let room = crate::interpose::own_room(false).unwrap();
    let arena = Arena::new(false, room);
    arena.reserve(LARGE, MANY).unwrap();
    let stacks: Vec<_> = (0..MANY).map(|_| arena.take(LARGE)).collect();
    let word = |stack: &Stack| (stack.hi - 64) as *mut u64;
    for stack in &stacks {
        // SAFETY: D4, inside a stack that was taken.
        unsafe { word(stack).write(7) };
    }
    let _rt = crate::sched::park::enter();
    arena.give_batch(&stacks);
    let kept = stacks[MANY / 4];
    let asked = std::cell::Cell::new(0);
    let standing = || {
        asked.set(asked.get() + 1);
        std::iter::once(kept.hi + room.above)
    };
    // While the M stays there the scavenger has work left, and continues later.
    (0..20).for_each(|_| assert!(arena.scavenge(MANY, standing)));
    // SAFETY: D4, memory of the arena, which is mapped.
    let is_there = |stack: &&Stack| unsafe { word(stack).read() } == 7;
    assert!(is_there(&&kept), "an M is on it");
    assert!(stacks.iter().filter(is_there).count() > 1);
    asked.set(0);
    while arena.scavenge(MANY, || {
        asked.set(asked.get() + 1);
        std::iter::empty()
    }) {}
    assert!(!is_there(&&kept), "nobody is on it any more");
    assert!(asked.get() < MANY / 4, "asked {} times", asked.get());
}

#[test]
fn d6_on_thread_runs_on_the_threads_own_fs_and_comes_back() {
    let runtime = Runtime::builder().procs(2).build().unwrap();
    runtime.run(|| {
        let m = current_m().unwrap();
        let (home, own) = (m.tp.current(), m.tp.own());
        let inside = on_thread(|| (current_m() == Some(m), m.tp.current()));
        assert_eq!(inside, (true, own));
        assert_eq!(m.tp.current(), home);
        assert_eq!(arch::thread_pointer(), home);
    });
    assert_eq!(on_thread(|| 5), 5);
}

#[test]
fn d6_the_record_follows_fs() {
    let alone = Alone::new();
    let record = AtomicUsize::new(1);
    let before = arch::thread_pointer();
    let seen = call_on_tp(alone.block.tp(), &raw const record, || {
        (arch::thread_pointer(), record.load(Relaxed))
    });
    assert_eq!(seen, (alone.block.tp(), alone.block.tp()));
    assert_eq!(record.load(Relaxed), before);
    assert_eq!(arch::thread_pointer(), before);
}
