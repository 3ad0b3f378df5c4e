//! The arena against a model, against the kernel (guards, limits, resident memory) and across
//! threads.
//!
//! A test that changes or ends a process runs in a forked child, which only uses the arena and
//! exits.

mod model;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::stack::tests::model::random;
use crate::stack::*;
use crate::tls::Room;

/// 256 KiB.
const USUAL: u8 = 4;

/// Runs `f` in a forked child; returns the signal that ended it, or 0 if it succeeded.
fn in_child(f: impl FnOnce()) -> i32 {
    // SAFETY: the child has this one thread, runs `f` and leaves without returning to the test.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0, "fork");
        if pid == 0 {
            libc::alarm(120);
            crate::sched::life::forked::ignore();
            let failed = catch_unwind(AssertUnwindSafe(f)).is_err();
            libc::_exit(failed.into());
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        let ended_well = libc::WIFSIGNALED(status) || libc::WEXITSTATUS(status) == 0;
        assert!(ended_well, "the child failed: status {status:#x}");
        if libc::WIFSIGNALED(status) {
            libc::WTERMSIG(status)
        } else {
            0
        }
    }
}

fn write(address: usize, value: u64) {
    // SAFETY: tests write to stacks they have taken, or to guards in order to die.
    unsafe { at(address).cast::<u64>().write_volatile(value) };
}

fn read(address: usize) -> u64 {
    // SAFETY: tests read stacks they have taken, or guards in order to die.
    unsafe { at(address).cast::<u64>().read_volatile() }
}

/// Marks the tops of stacks.
fn touch(stacks: &[Stack]) {
    for stack in stacks {
        write(stack.hi - 8, stack.lo as u64);
    }
}

/// Whether the mark is still there.
fn is_intact(stack: &Stack) -> bool {
    read(stack.hi - 8) == stack.lo as u64
}

/// The signal that ends a child which writes one word below a stack.
fn overflow(stack: &Stack) -> i32 {
    in_child(|| write(stack.lo - 8, 1))
}

/// Touches every page of a stack.
fn use_deeply(stack: Stack) {
    for page in (stack.lo..stack.hi).step_by(PAGE) {
        write(page, 1);
    }
}

/// Whether this kernel has guards that cost no mapping.
fn has_lightweight_guards() -> bool {
    arena_with(0, 1).stats().guard == Guard::Lightweight
}

fn arena_with(class: u8, n: usize) -> Arena {
    let arena = Arena::new(false, Room::SHARED);
    arena.reserve(class, n).expect("address space");
    arena
}

fn take_many(arena: &Arena, class: u8, n: usize) -> Vec<Stack> {
    (0..n).map(|_| arena.take(class)).collect()
}

fn scavenge_all(arena: &Arena) {
    let mut calls = 0;
    while arena.scavenge(64, std::iter::empty) {
        calls += 1;
        assert!(calls < 1_000_000, "the scavenger never ends");
    }
}

fn check(arena: &Arena) {
    for class in &arena.classes {
        class.lock().check(&arena.guards);
    }
}

/// A field of /proc/self/statm, in bytes: 0 is address space, 1 is resident memory.
fn statm(field: usize) -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages = text.split(' ').nth(field).expect("field");
    pages.parse::<usize>().expect("number") * PAGE
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    maps.lines().count()
}

/// Limits the address space to what there is and `more` bytes.
fn limit_addresses(more: usize) {
    let bytes = (statm(0) + more) as u64;
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: a plain call with a valid pointer, in a child of the test.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

#[test]
fn sizes_round_up_to_classes() {
    assert_eq!(class_for(0), None);
    assert_eq!(class_for(1), Some(0));
    assert_eq!(class_for(16 << 10), Some(0));
    assert_eq!(class_for((16 << 10) + 1), Some(1));
    assert_eq!(class_for(256 << 10), Some(USUAL));
    assert_eq!(class_for(1 << 30), Some(16));
    assert_eq!(class_for((1 << 30) + 1), None);
    assert_eq!(class_for(usize::MAX), None);
    for class in 0..CLASSES as u8 {
        assert_eq!(class_for(class_size(class)), Some(class));
    }
}

#[test]
fn stacks_offer_their_size_in_every_class() {
    let arena = Arena::new(false, Room::SHARED);
    for class in 0..CLASSES as u8 {
        arena.reserve(class, 3).expect("address space");
        let mut ends = Vec::new();
        for stack in take_many(&arena, class, 3) {
            assert!(stack.hi - stack.lo >= class_size(class) && stack.hi.is_multiple_of(LINE));
            assert_eq!(stack.class, class);
            assert_eq!(Arena::guard_range(&stack), (stack.lo - GUARD, stack.lo));
            write(stack.hi - 8, 1);
            write(stack.lo, 1);
            ends.push((stack.lo - GUARD, stack.end(&Room::SHARED)));
        }
        ends.sort_unstable();
        assert!(
            ends.windows(2).all(|pair| pair[0].1 <= pair[1].0),
            "slots overlap"
        );
    }
    check(&arena);
    assert_eq!(arena.stats().in_use, 3 * CLASSES);
}

#[test]
fn tops_spread_over_pages_and_lines() {
    for class in 0..CLASSES as u8 {
        let tops = (0..16).map(|i| {
            Stack::in_slot(
                class,
                i,
                i as usize * stride(class, &Room::SHARED),
                &Room::SHARED,
            )
            .end(&Room::SHARED)
        });
        let offsets: HashSet<_> = tops.map(|top| top % (64 << 10)).collect();
        assert_eq!(offsets.len(), 16, "class {class}");

        let his = (0..512).map(|i| {
            Stack::in_slot(
                class,
                i,
                i as usize * stride(class, &Room::SHARED),
                &Room::SHARED,
            )
        });
        let mut places = HashSet::new();
        let mut colours = HashSet::new();
        for stack in his {
            let colour = stack.end(&Room::SHARED) - stack.hi;
            assert!(colour < 2048);
            places.insert(stack.hi % (64 << 10));
            colours.insert(colour);
        }
        assert_eq!(colours.len(), COLOURS);
        assert_eq!(places.len(), 512, "class {class}");
        let neighbours = (0..100).map(|i| Stack::in_slot(class, i, 0, &Room::SHARED).hi);
        let differ = neighbours
            .clone()
            .zip(neighbours.skip(1))
            .all(|(a, b)| a != b);
        assert!(differ, "class {class}");
    }
}

/// Where libc's surplus is reserved, block and frames of a waiting goroutine lie in one page, with
/// any colour. Larger blocks have all colours.
#[test]
fn a_small_block_leaves_the_frames_their_page() {
    for (total, expected) in [(2_592, 4), (2_816, 1), (3_072, 32), (6_700, 4), (64, 32)] {
        let mut room = Room::SHARED;
        (room.total, room.surplus) = (total, Surplus::Reserved);
        assert_eq!(colours(&room), expected, "{total}");
        for class in 0..CLASSES as u8 {
            let stride = stride(class, &room);
            assert!((stride / PAGE) % 2 == 1 && stride.is_multiple_of(PAGE));
            for index in 0..64 {
                let stack = Stack::in_slot(class, index, index as usize * stride, &room);
                assert!(stack.hi - stack.lo >= class_size(class));
                assert!(stack.end(&room) <= (index as usize + 1) * stride);
                let is_one_page = stack.hi % PAGE >= FRAMES;
                assert!(is_one_page || total == 3_072, "{total}: {index}");
            }
        }
    }
}

#[test]
fn the_stack_given_last_is_taken_first() {
    let arena = arena_with(USUAL, 100);
    let stacks = take_many(&arena, USUAL, 100);
    arena.give_batch(&stacks);
    let again = take_many(&arena, USUAL, 100);
    assert!(again.iter().eq(stacks.iter().rev()));
    check(&arena);
}

#[test]
fn a_small_program_carves_little() {
    if !has_lightweight_guards() {
        return;
    }
    let arena = arena_with(USUAL, 1000);
    let carved = || {
        let stats = arena.stats();
        stats.in_use + stats.free_hot + stats.free_cold
    };
    assert_eq!(carved(), 1);
    let mut steps = Vec::new();
    for _ in 0..1000 {
        arena.take(USUAL);
        steps.push(carved());
    }
    steps.dedup();
    assert_eq!(steps[..8], [1, 2, 4, 8, 16, 32, 64, 128]);
    assert!(steps[8..].windows(2).all(|pair| pair[1] - pair[0] <= 64));
    assert_eq!(carved(), 1000);
}

#[test]
fn batches_take_what_is_free_and_carve_only_for_the_first() {
    if !has_lightweight_guards() {
        return;
    }
    let arena = arena_with(USUAL, 40);
    arena.set_slack(USUAL, 32).expect("address space");
    let mut out = [Stack::from_parts(0, 0, 0); 32];
    assert_eq!(arena.take_batch(USUAL, &mut out[..0]), 0);
    assert_eq!(arena.take_batch(USUAL, &mut out), 1);
    arena.give(out[0]);
    let stacks = take_many(&arena, USUAL, 40);
    arena.give_batch(&stacks);
    assert_eq!(arena.take_batch(USUAL, &mut out), 32);
    assert!(out.iter().eq(stacks.iter().rev().take(32)));
    assert_eq!(arena.stats().in_use, 32);
    check(&arena);
}

#[test]
fn slack_and_reservations_are_kept_apart() {
    let arena = arena_with(USUAL, 10);
    arena.set_slack(USUAL, 500).expect("address space");
    assert!(arena.stats().mapped_bytes >= 510 * stride(USUAL, &Room::SHARED));
    assert_eq!(arena.stats().reserved, 10);
    take_many(&arena, USUAL, 510);
    check(&arena);
    assert_eq!(arena.reserve(USUAL, usize::MAX), Err(class::FULL));
    assert_eq!(arena.reserve(USUAL, usize::MAX / 2), Err(class::FULL));
    assert_eq!(arena.set_slack(USUAL, usize::MAX), Err(class::FULL));
    assert_eq!(arena.stats().reserved, 10);
    check(&arena);
}

#[test]
fn guards_fault_in_both_modes_and_stay_when_memory_goes() {
    for force in [false, true] {
        let arena = Arena::new(force, Room::SHARED);
        arena.reserve(USUAL, 2000).expect("address space");
        let expected = if force {
            Guard::Mprotect
        } else {
            arena.stats().guard
        };
        assert_eq!(arena.stats().guard, expected);
        let stacks = take_many(&arena, USUAL, 2000);
        touch(&stacks);
        arena.give_batch(&stacks);
        scavenge_all(&arena);
        let stacks = take_many(&arena, USUAL, 2000);
        for stack in [stacks[0], stacks[700], stacks[1999]] {
            let (from, to) = Arena::guard_range(&stack);
            for address in [from, to - PAGE, to - 8] {
                assert_eq!(in_child(|| write(address, 1)), libc::SIGSEGV);
                assert_eq!(in_child(|| _ = read(address)), libc::SIGSEGV);
            }
            assert_eq!(in_child(|| use_deeply(stack)), 0);
            assert_eq!(in_child(|| write(stack.hi - 8, 1)), 0);
        }
    }
}

#[test]
fn locked_memory_falls_back_to_protection() {
    let died = in_child(|| {
        let arena = arena_with(USUAL, 20);
        let first = arena.take(USUAL);
        let next = first.end(&Room::SHARED);
        // SAFETY: the second slot of the chunk: reserved address space that no code uses yet.
        assert_eq!(unsafe { libc::mlock(at(next).cast(), GUARD) }, 0);
        let before = arena.stats().guard;
        let stacks = take_many(&arena, USUAL, 19);
        assert!(before == Guard::Mprotect || arena.stats().guard == Guard::Mprotect);
        assert_eq!(stacks[0].lo, next + GUARD);
        assert_eq!(overflow(&stacks[0]), libc::SIGSEGV);
        assert_eq!(overflow(&stacks[18]), libc::SIGSEGV);
        // From now on guards may run out, so they are made with the reservation.
        arena.reserve(USUAL, 30).expect("address space");
        assert!(arena.stats().free_cold >= 30);
        check(&arena);
    });
    assert_eq!(died, 0);
}

/// Runs `f` in a child and returns what it wrote to stderr.
fn stderr_of(f: impl FnOnce()) -> String {
    let mut ends = [0; 2];
    // SAFETY: plain calls with valid pointers; the descriptors are this function's.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        assert_eq!(in_child(|| _ = (libc::dup2(ends[1], 2), f())), 0);
        libc::close(ends[1]);
        let mut text = vec![0u8; 4096];
        let len = libc::read(ends[0], text.as_mut_ptr().cast(), text.len());
        libc::close(ends[0]);
        text.truncate(usize::try_from(len).expect("read"));
        String::from_utf8(text).expect("text")
    }
}

#[test]
fn running_out_of_mappings_is_an_error_of_reserve_that_names_the_setting() {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("limit");
    let limit = limit.trim().parse::<usize>().expect("number");
    if limit > 300_000 {
        return;
    }
    let text = stderr_of(|| {
        let arena = Arena::new(true, Room::SHARED);
        arena.reserve(0, 1000).expect("few");
        assert_eq!(arena.reserve(0, limit), Err(Errno(libc::ENOMEM)));
        assert_eq!(arena.reserve(0, limit), Err(Errno(libc::ENOMEM)));
        let stats = arena.stats();
        assert_eq!(stats.reserved, 1000);
        let guarded = stats.free_cold * stride(0, &Room::SHARED);
        assert!(stats.mapped_bytes - guarded < 2 << 30, "{stats:?}");
        check(&arena);
        // The guards that the failed call made serve the next one, and every promise is kept.
        arena.reserve(0, 20_000).expect("these exist already");
        take_many(&arena, 0, 21_000);
        check(&arena);
    });
    assert_eq!(text.matches("vm.max_map_count").count(), 1, "{text}");
    assert!(
        text.starts_with("gosched: ") && text.ends_with('\n'),
        "{text}"
    );
}

#[test]
fn few_protected_stacks_warn_of_nothing_and_return_their_mappings() {
    let text = stderr_of(|| {
        let before = mappings();
        for _ in 0..5 {
            let arena = Arena::new(true, Room::SHARED);
            arena.reserve(0, 10_000).expect("address space");
            assert!(mappings() > before + 19_000);
        }
        assert!(mappings() < before + 20);
    });
    assert_eq!(text, "");
}

#[test]
fn address_space_limits_are_errors_only_when_they_must() {
    let died = in_child(|| {
        let arena = arena_with(USUAL, 1);
        let room = 200 << 20;
        limit_addresses(room);
        let before = arena.stats();
        assert_eq!(arena.reserve(USUAL, 10_000), Err(Errno(libc::ENOMEM)));
        assert_eq!(arena.reserve(16, 1), Err(Errno(libc::ENOMEM)));
        assert_eq!(arena.stats(), before);
        let mut n = 1;
        while arena.reserve(USUAL, 1).is_ok() {
            n += 1;
        }
        let fit = room / stride(USUAL, &Room::SHARED);
        assert!(n * 10 > fit * 9, "{n} of {fit}");
        let stacks = take_many(&arena, USUAL, n);
        check(&arena);
        arena.give_batch(&stacks);
        arena.unreserve(USUAL, n);
        scavenge_all(&arena);
        arena
            .reserve(USUAL, n / 2)
            .expect("the addresses came back");
    });
    assert_eq!(died, 0);
}

#[test]
fn refused_mappings_change_nothing() {
    let died = in_child(|| {
        for passes in 0..8 {
            let arena = Arena::new(false, Room::SHARED);
            sys::FAIL_MAP_AFTER.store(passes, Relaxed);
            let answer = arena.reserve(USUAL, 3);
            sys::FAIL_MAP_AFTER.store(-1, Relaxed);
            check(&arena);
            match answer {
                Ok(()) => assert_eq!(arena.stats().reserved, 3),
                Err(_) => assert_eq!((arena.stats().reserved, arena.stats().mapped_bytes), (0, 0)),
            }
            arena.reserve(USUAL, 3).expect("allowed again");
            take_many(&arena, USUAL, 3);
        }
    });
    assert_eq!(died, 0);
}

#[test]
fn a_million_stacks_are_reserved_in_few_mappings_and_given_up_again() {
    if !has_lightweight_guards() {
        return;
    }
    let died = in_child(|| {
        let (before, resident) = (mappings(), statm(1));
        let arena = arena_with(USUAL, 1_000_000);
        assert!(mappings() < before + 400);
        let stats = arena.stats();
        assert!(
            stats.mapped_bytes >= 1_000_000 * stride(USUAL, &Room::SHARED) && stats.in_use == 0
        );
        assert!(statm(1) < resident + (4 << 20));
        let stacks = take_many(&arena, USUAL, 5_000);
        arena.give_batch(&stacks);
        arena.unreserve(USUAL, 1_000_000);
        assert!(arena.scavenge_due());
        scavenge_all(&arena);
        assert!(arena.stats().mapped_bytes <= 1 << 30);
        check(&arena);
        arena.reserve(USUAL, 10_000).expect("again");
        take_many(&arena, USUAL, 10_000);
        check(&arena);
    });
    assert_eq!(died, 0);
}

#[test]
fn scavenging_returns_the_memory() {
    let died = in_child(|| {
        let n = 20_000;
        let arena = arena_with(USUAL, n);
        let before = statm(1);
        let mut stacks = take_many(&arena, USUAL, n);
        touch(&stacks);
        assert!(statm(1) >= before + n * PAGE);
        // Given back in random order.
        let mut seed = 1;
        for i in (1..n).rev() {
            stacks.swap(i, random(&mut seed) % (i + 1));
        }
        arena.give_batch(&stacks);
        assert_eq!(arena.stats().free_hot, n);
        scavenge_all(&arena);
        assert!(arena.stats().free_hot <= 1024);
        assert!(
            statm(1) < before + (9 << 20),
            "{} MiB",
            (statm(1) - before) >> 20
        );
        check(&arena);
    });
    assert_eq!(died, 0);
}

#[test]
fn deep_stacks_are_trimmed_though_they_are_kept() {
    let died = in_child(|| {
        for (class, n) in [(USUAL, 500), (USUAL + 2, 100), (9, 4)] {
            let arena = arena_with(class, n);
            let before = statm(1);
            let stacks = take_many(&arena, class, n);
            stacks.iter().for_each(|&stack| use_deeply(stack));
            arena.give_batch(&stacks);
            assert!(statm(1) - before > n * class_size(class));
            scavenge_all(&arena);
            assert_eq!(arena.stats().free_hot, n);
            let kept = statm(1).saturating_sub(before);
            assert!(kept < (20 << 20), "class {class} keeps {} MiB", kept >> 20);
            // A stack that was trimmed and not used again is not trimmed again.
            assert!(!arena.scavenge_due());
            let again = arena.take(class);
            assert_eq!(again, stacks[n - 1]);
            arena.give(again);
            check(&arena);
        }
    });
    assert_eq!(died, 0);
}

#[test]
fn stacks_given_after_a_trim_are_trimmed_too() {
    let died = in_child(|| {
        let arena = arena_with(USUAL, 1400);
        let stacks = take_many(&arena, USUAL, 1400);
        touch(&stacks);
        let before = statm(1);
        arena.give_batch(&stacks[..1024]);
        scavenge_all(&arena);
        stacks[1024..].iter().for_each(|&stack| use_deeply(stack));
        // The hot ones overflow here, and the older half, all trimmed, leaves them.
        arena.give_batch(&stacks[1024..]);
        check(&arena);
        scavenge_all(&arena);
        let kept = statm(1).saturating_sub(before);
        assert!(kept < (20 << 20), "{} MiB", kept >> 20);
    });
    assert_eq!(died, 0);
}

#[test]
fn shrinking_keeps_what_lies_above_the_stack_pointer() {
    let arena = arena_with(USUAL, 1);
    let stack = arena.take(USUAL);
    for words_below_top in [1, 100, 4000, 20_000] {
        for address in (stack.lo..stack.hi).step_by(8) {
            write(address, 7);
        }
        let sp = stack.hi - words_below_top * 8;
        // SAFETY: nothing runs on this stack.
        unsafe { Arena::shrink_below(stack, sp) };
        let kept = sp - RED_ZONE - PAGE;
        assert!(
            (kept..stack.hi)
                .step_by(8)
                .all(|address| read(address) == 7)
        );
        let lost = (stack.lo..kept & !(PAGE - 1)).step_by(8);
        assert!(lost.into_iter().all(|address| read(address) == 0));
    }
    // SAFETY: nothing runs on this stack; so near the bottom nothing is left to return.
    unsafe { Arena::shrink_below(stack, stack.lo) };
    arena.give(stack);
}

#[test]
fn release_leaks_what_is_in_use_and_nothing_else() {
    for every in [97, 20_000] {
        let died = in_child(|| {
            let (addresses, resident) = (statm(0), statm(1));
            let mut arena = arena_with(USUAL, 20_000);
            let stacks = take_many(&arena, USUAL, 20_000);
            touch(&stacks);
            let leaked: Vec<_> = stacks.iter().step_by(every).collect();
            for run in stacks.chunks(every) {
                arena.give_batch(&run[1..]);
            }
            arena.release();
            check(&arena);
            assert_eq!(arena.stats().mapped_bytes, 0);
            assert!(leaked.iter().all(|stack| is_intact(stack)));
            assert_eq!(overflow(leaked[0]), libc::SIGSEGV);
            // The bound allows for what the test itself touches; the stacks touched 80 MiB.
            assert!(statm(1) < resident + (8 << 20) + leaked.len() * 2 * PAGE);
            if leaked.len() == 1 {
                assert!(statm(0) < addresses + (1 << 30) + (64 << 20));
            }
            // The arena is as new.
            arena.reserve(USUAL, 10).expect("address space");
            arena.give_batch(&take_many(&arena, USUAL, 10));
        });
        assert_eq!(died, 0);
    }
}

#[test]
fn bursts_with_pauses_keep_their_stacks() {
    let arena = Arena::new(false, Room::SHARED);
    let mut seen = HashSet::new();
    for _ in 0..5 {
        arena.reserve(USUAL, 1000).expect("address space");
        let stacks = take_many(&arena, USUAL, 1000);
        seen.extend(stacks.iter().map(|stack| stack.lo));
        arena.give_batch(&stacks);
        arena.unreserve(USUAL, 1000);
        scavenge_all(&arena);
        assert_eq!((seen.len(), arena.stats().free_hot), (1000, 1000));
    }
}

#[test]
fn a_stack_in_use_holds_its_chunk() {
    let arena = arena_with(USUAL, 10_000);
    let mut stacks = take_many(&arena, USUAL, 10_000);
    let last = stacks.pop().expect("many");
    touch(&[last]);
    arena.give_batch(&stacks);
    arena.unreserve(USUAL, 9_999);
    scavenge_all(&arena);
    let mapped = arena.stats().mapped_bytes;
    assert!(is_intact(&last) && mapped >= 10_000 * stride(USUAL, &Room::SHARED));
    check(&arena);
    arena.give(last);
    arena.unreserve(USUAL, 1);
    scavenge_all(&arena);
    assert!(arena.stats().mapped_bytes < mapped / 2);
    check(&arena);
}

#[test]
fn nothing_remains_when_nothing_is_in_use() {
    let died = in_child(|| {
        let (before, addresses) = (mappings(), statm(0));
        let arena = arena_with(USUAL, 10_000);
        arena.reserve(10, 100).expect("address space");
        let stacks = take_many(&arena, USUAL, 10_000);
        arena.give_batch(&stacks);
        drop(arena);
        assert!(mappings() <= before + 4 && statm(0) < addresses + (64 << 20));
    });
    assert_eq!(died, 0);
}

/// A promised stack may be losing its memory at the moment: the taker waits for that.
#[test]
fn a_promise_is_kept_while_a_scavenger_is_at_work() {
    /// 8 MiB: few of them are kept with their memory.
    const LARGE: u8 = USUAL + 5;
    let arena = Arena::new(false, Room::SHARED);
    let all = 64;
    arena.reserve(LARGE, all).expect("address space");
    let stacks: Vec<Stack> = (0..all).map(|_| arena.take(LARGE)).collect();
    touch(&stacks);
    arena.give_batch(&stacks);
    // One run of the scavenger, stopped while its memory is returned.
    let run = loop {
        let step = arena.class(LARGE).scavenge(all, std::iter::empty());
        match step {
            class::Step::Going(run) => break run,
            class::Step::Freed(_) => {}
            class::Step::Retired(_) | class::Step::Done => panic!("nothing to return"),
        }
    };
    let others: Vec<Stack> = (run.n..all).map(|_| arena.take(LARGE)).collect();
    std::thread::scope(|s| {
        let taker = s.spawn(|| arena.take(LARGE));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!taker.is_finished(), "a stack out of nothing");
        run.drop_pages(&Room::SHARED);
        arena.class(LARGE).cooled(&run);
        let last = taker.join().expect("a promise is a promise");
        assert!(!others.iter().any(|other| other.lo == last.lo));
    });
}
