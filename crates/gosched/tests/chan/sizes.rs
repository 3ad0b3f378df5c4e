//! How much memory a channel, a timer, a context and a select take: bytes asked of the allocator,
//! and how often it is asked. Each test runs in a process of its own, where all allocations are
//! counted.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use gosched::chan::{self, Select, bounded, select, unbounded};
use gosched::context::Context;
use gosched::time::{Ticker, Timer};

use super::*;
use crate::common::{allocated_bytes, allocations, child};

const HOUR: Duration = Duration::from_secs(3600);

/// Bytes of a channel without a buffer, of a clock, and of a context: as the guide has them. None
/// may be above 200.
const ZERO: isize = 120;
const CLOCK: isize = 144;
const CONTEXT: isize = 200;
/// Bytes of a channel besides its buffer: three times two cache lines.
const LARGE: isize = 384;

/// How many allocations `f` makes, and how many bytes its result has.
fn cost_of<T>(f: impl FnOnce() -> T) -> (usize, isize) {
    let before = (allocations(), allocated_bytes());
    let made = black_box(f());
    let cost = (allocations() - before.0, allocated_bytes() - before.1);
    drop(made);
    assert_eq!(allocated_bytes(), before.1, "something is left");
    cost
}

/// Asserts that it is one allocation of so many bytes.
#[track_caller]
fn assert_one<T>(what: &str, bytes: isize, f: impl FnOnce() -> T) {
    assert_eq!(cost_of(f), (1, bytes), "{what}: allocations, bytes");
}

/// A slot has the message and a word.
#[test]
fn a_channel_is_one_allocation() {
    child("sizes::a_channel_is_one_allocation", || {
        assert_one("bounded(0)", ZERO, || bounded::<u64>(0));
        assert_one("bounded(0), 4 KB", ZERO, || bounded::<[u8; 4096]>(0));
        assert_one("bounded(1)", LARGE + 16, || bounded::<u64>(1));
        assert_one("bounded(100)", LARGE + 1600, || bounded::<u64>(100));
        assert_one("bounded(3), 1 KB", LARGE + 3 * 1032, || {
            bounded::<[u8; 1024]>(3)
        });
        assert_one("bounded(2), no bytes", LARGE + 16, || bounded::<()>(2));
        assert_one("unbounded", LARGE, unbounded::<u64>);
        assert_one("unbounded, 4 KB", LARGE, unbounded::<[u8; 4096]>);
        assert_eq!(cost_of(chan::never::<u64>), (0, 0));
    })
    .succeeded();
}

/// A message with a large alignment: the slots begin where one may.
#[test]
fn slots_are_aligned() {
    #[repr(align(256))]
    struct Aligned(u8);
    let at = |n: usize| {
        let (s, r) = bounded(n);
        let (any_s, any_r) = unbounded();
        for k in 0..n as u8 {
            s.send(Aligned(k)).unwrap();
            any_s.send(Aligned(k)).unwrap();
        }
        drop((s, any_s));
        for r in [r, any_r] {
            let got: Vec<_> = r.iter().map(|msg| msg.0).collect();
            assert_eq!(got, (0..n as u8).collect::<Vec<_>>());
        }
    };
    (1..70).for_each(at);
}

#[test]
fn timers_and_contexts_are_small() {
    child("sizes::timers_and_contexts_are_small", || {
        drop(chan::after(HOUR)); // sets up the conversion of moments
        assert_one("after", CLOCK, || chan::after(HOUR));
        assert_one("at", CLOCK, || chan::at(Instant::now() + HOUR));
        assert_one("tick", CLOCK, || chan::tick(HOUR));
        assert_one("Timer", CLOCK, || Timer::new(HOUR));
        assert_one("Ticker", CLOCK, || Ticker::new(HOUR));
        let parent = Context::background().with_cancel();
        let kinds: [(&str, &dyn Fn() -> Context); 5] = [
            ("with_cancel", &|| Context::background().with_cancel()),
            ("with_timeout", &|| Context::background().with_timeout(HOUR)),
            ("with_deadline", &|| {
                Context::background().with_deadline(Instant::now() + HOUR)
            }),
            ("a child", &|| parent.with_cancel()),
            ("a child with a deadline", &|| parent.with_timeout(HOUR)),
        ];
        for (what, make) in kinds {
            assert_eq!(cost_of(make), (2, CONTEXT), "{what}");
        }
        assert_eq!(cost_of(|| parent.clone()), (0, 0));
        assert_eq!(cost_of(Context::background), (0, 0));
    })
    .succeeded();
}

/// Bytes of the first block of an unbounded channel: at most a page of messages, or three messages.
#[test]
fn the_first_send_allocates_a_block() {
    fn block_of<const N: usize>() -> isize {
        let (s, r) = unbounded::<[u8; N]>();
        let before = (allocations(), allocated_bytes());
        s.send([7; N]).unwrap();
        assert_eq!(allocations() - before.0, 1);
        let bytes = allocated_bytes() - before.1;
        s.send([8; N]).unwrap();
        assert_eq!(allocations() - before.0, 1, "the block has room");
        assert_eq!(r.try_iter().map(|msg| msg[0]).collect::<Vec<_>>(), [7, 8]);
        bytes
    }
    child("sizes::the_first_send_allocates_a_block", || {
        assert_eq!(block_of::<8>(), 16 + 31 * 16);
        assert_eq!(block_of::<132>(), 16 + 31 * 144);
        assert_eq!(block_of::<133>(), 16 + 15 * 144);
        assert_eq!(block_of::<273>(), 16 + 15 * 288);
        assert_eq!(block_of::<274>(), 16 + 7 * 288);
        assert_eq!(block_of::<585>(), 16 + 7 * 600);
        assert_eq!(block_of::<586>(), 16 + 3 * 600);
        assert_eq!(block_of::<4096>(), 16 + 3 * 4104);
    })
    .succeeded();
}

/// Messages of any size cross from block to block, in order.
#[test]
fn blocks_of_any_size_carry_on() {
    fn through<const N: usize>() {
        let (s, r) = unbounded();
        for round in 0..3u8 {
            (0..100u8).for_each(|k| s.send([k ^ round; N]).unwrap());
            assert_eq!(r.len(), 100);
            for k in 0..100u8 {
                let msg = r.try_recv().unwrap();
                assert!(msg.iter().all(|byte| *byte == k ^ round));
            }
            assert!(r.try_recv().is_err() && r.is_empty());
        }
        s.send([1; N]).unwrap(); // one is left
    }
    through::<1>();
    through::<140>();
    through::<300>();
    through::<600>();
    through::<2000>();
}

/// A channel that is closed or dropped before its first send.
#[test]
fn a_list_without_a_block_ends() {
    let (s, r) = unbounded::<Box<u8>>();
    assert!(r.is_empty() && s.is_empty() && !s.is_full());
    assert!(r.try_recv().is_err());
    let mut sel = Select::new();
    sel.recv(&r);
    assert!(sel.try_ready().is_err());
    assert!(s.close());
    assert!(s.send(Box::new(1)).is_err());
    assert_eq!(r.try_recv(), Err(chan::TryRecvError::Disconnected));
    drop(unbounded::<Box<u8>>());
    let (s, r) = unbounded::<Box<u8>>();
    drop(r);
    assert!(s.send(Box::new(1)).is_err());
}

/// Asserts that selects over messages of `N` bytes allocate nothing: at once, with a default, while
/// they wait, and as senders.
fn selects_of<const N: usize>() {
    let (any, quiet) = (unbounded::<[u8; N]>(), bounded::<[u8; N]>(1));
    let (zero, back) = (bounded::<[u8; N]>(0), bounded::<()>(0));
    let full = bounded::<[u8; N]>(1);
    full.0.send([0; N]).unwrap();
    // The runtime makes memory of its own now and then, such as a heap of timers. What a select
    // allocates it allocates each time.
    let mut fewest = usize::MAX;
    for _ in 0..5 {
        any.0.send([1; N]).unwrap();
        let (s, r, done) = (zero.0.clone(), zero.1.clone(), back.0.clone());
        gosched::go(move || {
            send_to_a_waiter(&s, [2; N]);
            assert_eq!(r.recv(), Ok([3; N]));
            done.send(()).unwrap();
        });
        let before = allocations();
        let at_once = select! {
            recv(any.1) -> msg => msg,
            recv(quiet.1) -> msg => msg,
        };
        let in_vain = select! {
            recv(any.1) -> _ => true,
            recv(quiet.1) -> _ => true,
            default => false,
        };
        let in_vain_too = select! {
            recv(any.1) -> _ => true,
            recv(quiet.1) -> _ => true,
            default(Duration::from_millis(1)) => false,
        };
        let waits = select! {
            recv(quiet.1) -> msg => msg,
            recv(zero.1) -> msg => msg,
            send(full.0, [4; N]) -> _ => panic!("there is no room"),
        };
        let sends = select! {
            send(zero.0, [3; N]) -> sent => sent,
            recv(any.1) -> _ => panic!("nothing is there"),
        };
        let after = allocations();
        assert_eq!((at_once, waits), (Ok([1; N]), Ok([2; N])));
        assert!(!in_vain && !in_vain_too && sends.is_ok());
        back.1.recv().unwrap();
        fewest = fewest.min(after - before);
    }
    assert_eq!(fewest, 0, "messages of {N} bytes");
}

#[test]
fn selects_allocate_nothing_for_messages_of_any_size() {
    child(
        "sizes::selects_allocate_nothing_for_messages_of_any_size",
        || {
            run(1, "selects of sizes", || {
                selects_of::<0>();
                selects_of::<8>();
                selects_of::<48>();
                selects_of::<49>();
                selects_of::<64>();
                selects_of::<256>();
                selects_of::<1024>();
            });
        },
    )
    .succeeded();
}

/// Messages of different sizes and alignments in one select: there is room for the largest. The
/// messages are there already, or the select waits for them.
#[test]
fn a_select_has_room_for_its_largest_message() {
    #[repr(align(64))]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Aligned([u8; 64]);
    for cap in [1, 0] {
        let (small, large) = (bounded::<u8>(cap), bounded::<[u64; 100]>(cap));
        let (aligned, none) = (bounded::<Aligned>(cap), bounded::<()>(cap));
        let send = |k: u8| match k % 4 {
            0 => send_to_a_waiter(&small.0, k),
            1 => send_to_a_waiter(&large.0, [k.into(); 100]),
            2 => send_to_a_waiter(&aligned.0, Aligned([k; 64])),
            _ => send_to_a_waiter(&none.0, ()),
        };
        let receive = |k: u8| {
            select! {
                recv(small.1) -> msg => assert_eq!(msg, Ok(k)),
                recv(large.1) -> msg => assert_eq!(msg, Ok([k.into(); 100])),
                recv(aligned.1) -> msg => assert_eq!(msg, Ok(Aligned([k; 64]))),
                recv(none.1) -> msg => assert_eq!(msg, Ok(())),
            }
        };
        run(2, "messages of any size", || {
            thread::scope(|scope| {
                if cap == 0 {
                    scope.spawn(|| (0..100).for_each(send));
                }
                for k in 0..100 {
                    if cap > 0 {
                        send(k); // there is room
                    }
                    receive(k);
                }
            });
        });
    }
}

/// Runs a select of sixteen cases. Only the last one gets a message.
macro_rules! of_sixteen {
    ($quiet:expr, $busy:expr $(, $default:tt)*) => {
        select! {
            recv($quiet) -> _ => None, recv($quiet) -> _ => None, recv($quiet) -> _ => None,
            recv($quiet) -> _ => None, recv($quiet) -> _ => None, recv($quiet) -> _ => None,
            recv($quiet) -> _ => None, recv($quiet) -> _ => None, recv($quiet) -> _ => None,
            recv($quiet) -> _ => None, recv($quiet) -> _ => None, recv($quiet) -> _ => None,
            recv($quiet) -> _ => None, recv($quiet) -> _ => None, recv($quiet) -> _ => None,
            recv($busy) -> msg => msg.ok(),
            $($default => None,)*
        }
    };
}

#[test]
fn selects_allocate_nothing_for_sixteen_cases() {
    child("sizes::selects_allocate_nothing_for_sixteen_cases", || {
        run(1, "selects of many cases", || {
            let (quiet, zero) = (bounded::<u64>(0), bounded::<u64>(0));
            let mut fewest = usize::MAX;
            for _ in 0..5 {
                let s = zero.0.clone();
                gosched::go(move || send_to_a_waiter(&s, 7));
                let before = allocations();
                let in_vain = of_sixteen!(quiet.1, quiet.1, default);
                let got = of_sixteen!(quiet.1, zero.1);
                fewest = fewest.min(allocations() - before);
                assert_eq!((in_vain, got), (None, Some(7)));
            }
            assert_eq!(fewest, 0, "allocations");
        });
    })
    .succeeded();
}

/// How many bytes of its stack a call of `f` uses. The stack below the caller is filled with one
/// byte, and what has another value afterwards was used. The fewest of several tries: the frame of
/// a signal handler may lie there as well.
fn stack_of(f: impl Fn()) -> usize {
    const FILL: u8 = 0xa7;
    const DEPTH: usize = 32 << 10;
    #[inline(never)]
    fn fill() -> usize {
        let mut room = [0; DEPTH];
        black_box(&mut room).fill(FILL);
        black_box(&room).as_ptr().addr()
    }
    #[inline(never)]
    fn call(f: &impl Fn()) {
        f();
        black_box(f); // not a tail call: the frame is there
    }
    // The file reads memory that no variable has any more. The read itself uses little stack.
    let memory = File::open("/proc/self/mem").unwrap();
    let mut seen = vec![0; DEPTH];
    let tries = (0..5).map(|_| {
        let bottom = fill();
        call(&f);
        memory.read_exact_at(&mut seen, bottom as u64).unwrap();
        let unused = seen.iter().take_while(|byte| **byte == FILL).count();
        assert!(unused > 0, "there may be more");
        DEPTH - unused
    });
    tries.min().unwrap()
}

/// The stack that a wait uses, its wake-up included. The limits are about twice what is used, for
/// the sake of other compilers.
#[test]
fn waits_use_little_stack() {
    let [idle, recv, two, sixteen] = run(1, "stacks of waits", || {
        let (quiet, zero) = (bounded::<u64>(0), bounded::<u64>(0));
        let s = zero.0.clone();
        gosched::go(move || (0..15).for_each(|k| send_to_a_waiter(&s, k)));
        [
            stack_of(|| ()),
            stack_of(|| _ = zero.1.recv().unwrap()),
            stack_of(|| {
                select! {
                    recv(quiet.1) -> _ => panic!("nothing is there"),
                    recv(zero.1) -> msg => _ = msg.unwrap(),
                }
            }),
            stack_of(|| assert!(of_sixteen!(quiet.1, zero.1).is_some())),
        ]
    });
    let all = format!("idle {idle}, recv {recv}, select of 2 {two}, of 16 {sixteen} bytes");
    println!("{all}");
    let limits = match cfg!(debug_assertions) {
        true => [4096, 8192, 14336],
        false => [1024, 3072, 5120],
    };
    assert!(
        idle > 0 && idle < recv && recv < two && two < sixteen,
        "{all}"
    );
    assert!(recv <= limits[0], "{all}");
    assert!(two <= limits[1], "{all}");
    assert!(sixteen <= limits[2], "{all}");
}
