//! What an allocator under `OnThread` must stand, whichever it is. Each test file has one as its
//! global allocator and runs these.

use std::alloc::{GlobalAlloc, Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex, Once};
use std::time::Duration;

use gosched::{Runtime, thread};

use crate::common::{self, LONG, Rng, child_of, eventually, rss_kib, runtime, tid, within};

/// More Ps than CPUs here: goroutines change threads at every turn.
const PROCS: usize = 4;

fn shared() -> Runtime {
    let builder = Runtime::builder().procs(PROCS);
    // SAFETY: the goroutines of these tests (`live`) reach a thread-local only inside functions
    // that do not switch.
    unsafe { builder.shared_thread_locals() }.build().unwrap()
}

/// The length of the sequence of numbers that fills a block over and over.
const TURN: usize = 256;

fn turn(seed: u8) -> [u8; TURN] {
    std::array::from_fn(|i| seed.wrapping_add(i as u8))
}

/// A piece of memory straight from the global allocator, full of numbers that no other code writes.
struct Block {
    start: NonNull<u8>,
    layout: Layout,
    seed: u8,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Block {}

impl Block {
    fn new(rng: &mut Rng) -> Block {
        let align = [1, 8, 16, 64, 4096][rng.below(5) as usize];
        let layout = Layout::from_size_align(size(rng), align).unwrap();
        let zeroed = rng.one_in(3);
        // SAFETY: the size is not zero.
        let start = unsafe {
            if zeroed {
                alloc_zeroed(layout)
            } else {
                alloc(layout)
            }
        };
        let mut block = Block {
            start: NonNull::new(start).expect("memory"),
            layout,
            seed: rng.next() as u8,
        };
        assert_eq!(start as usize % align, 0);
        assert!(!zeroed || block.bytes().iter().all(|byte| *byte == 0));
        block.fill(0);
        block
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: ours, and written from end to end before it is read (or zeroed by the allocator).
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }

    fn fill(&mut self, from: usize) {
        let turn = turn(self.seed);
        for (piece, at) in self.bytes().chunks_mut(TURN).zip((0..).step_by(TURN)) {
            let len = piece.len();
            let skip = from.saturating_sub(at).min(len);
            piece[skip..].copy_from_slice(&turn[skip..len]);
        }
    }

    fn check(&mut self, len: usize) {
        let turn = turn(self.seed);
        for piece in self.bytes()[..len].chunks(TURN) {
            assert!(*piece == turn[..piece.len()], "somebody else wrote here");
        }
    }

    fn resize(&mut self, rng: &mut Rng) {
        let (old, new) = (self.layout.size(), size(rng));
        // SAFETY: allocated with this layout; the new size is neither zero nor huge.
        let start = unsafe { realloc(self.start.as_ptr(), self.layout, new) };
        self.start = NonNull::new(start).expect("memory");
        self.layout = Layout::from_size_align(new, self.layout.align()).unwrap();
        self.check(old.min(new));
        self.fill(old.min(new));
    }
}

impl Drop for Block {
    #[inline(never)] // it asks for this thread's panics
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.check(self.layout.size());
        }
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Mostly small; now and then one that allocators treat apart.
fn size(rng: &mut Rng) -> usize {
    let most = [64, 64, 64, 400, 400, 3_000, 3_000, 40_000][rng.below(8) as usize];
    let most = if rng.one_in(200) { 2_000_000 } else { most };
    1 + rng.below(most) as usize
}

/// Where blocks change hands: any goroutine or thread takes out what others put in.
#[derive(Clone, Default)]
struct Exchange(Arc<Mutex<Vec<Block>>>);

impl Exchange {
    /// Gives one block and takes another, maybe the same.
    #[inline(never)] // locks ask for this thread's panics
    fn swap(&self, block: Block, rng: &mut Rng) -> Block {
        let mut blocks = self.0.lock().unwrap();
        blocks.push(block);
        let at = rng.below(blocks.len() as u64) as usize;
        blocks.swap_remove(at)
    }

    #[inline(never)]
    fn give(&self, block: Block) {
        self.0.lock().unwrap().push(block);
    }

    #[inline(never)]
    fn take(&self) -> Option<Block> {
        self.0.lock().unwrap().pop()
    }
}

/// Thousands of goroutines and two plain threads allocate, resize, migrate and free: what they made
/// and what others made.
pub fn blocks_change_goroutines_and_threads() {
    change_hands(&runtime(PROCS));
}

/// The same where the wrapper has nothing to do.
pub fn blocks_change_hands_under_shared_thread_locals() {
    change_hands(&shared());
}

fn change_hands(runtime: &Runtime) {
    const GOROUTINES: u64 = 3_000;
    let exchange = Exchange::default();
    let done = Arc::new(AtomicBool::new(false));
    let traders: Vec<_> = (0..2)
        .map(|i| {
            let (exchange, done) = (exchange.clone(), Arc::clone(&done));
            std::thread::spawn(move || trade(&exchange, &done, i))
        })
        .collect();
    let migrations = within(LONG, "allocating goroutines", || {
        runtime.run(|| {
            let handles: Vec<_> = (0..GOROUTINES)
                .map(|i| {
                    let exchange = exchange.clone();
                    thread::spawn(move || live(&exchange, i))
                })
                .collect();
            let ends = handles.into_iter().map(|handle| handle.join().unwrap());
            ends.map(|(migrations, _last_blocks)| migrations)
                .sum::<usize>()
        })
    });
    done.store(true, SeqCst);
    let traded: usize = traders.into_iter().map(|t| t.join().unwrap()).sum();
    drop(exchange);
    assert!(
        migrations > 100,
        "only {migrations} migrations: shows nothing"
    );
    assert!(
        traded > 10,
        "only {traded} blocks went through plain threads"
    );
}

/// A goroutine's part: how often it found itself on another thread, and blocks that the joiner
/// frees.
fn live(exchange: &Exchange, seed: u64) -> (usize, Vec<Block>) {
    let mut rng = Rng::new(seed);
    let mut blocks: Vec<_> = (0..6).map(|_| Block::new(&mut rng)).collect();
    let mut migrations = 0;
    for _ in 0..8 {
        let before = tid();
        thread::yield_now();
        migrations += usize::from(tid() != before);
        let at = rng.below(6) as usize;
        match rng.below(3) {
            0 => blocks[at] = Block::new(&mut rng),
            1 => blocks[at].resize(&mut rng),
            _ => {
                let block = blocks.swap_remove(at);
                blocks.push(exchange.swap(block, &mut rng));
            }
        }
    }
    exchange.give(blocks.pop().expect("six"));
    drop(exchange.take());
    blocks.truncate(2);
    (migrations, blocks)
}

/// A plain thread's part: how many blocks it took from the exchange.
fn trade(exchange: &Exchange, done: &AtomicBool, seed: u64) -> usize {
    let mut rng = Rng::new(!seed);
    let mut taken = 0;
    while !done.load(SeqCst) {
        exchange.give(Block::new(&mut rng));
        if let Some(mut block) = exchange.take() {
            block.resize(&mut rng);
            taken += 1;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    taken
}

/// A thread that a goroutine starts is a thread like any other to the allocator.
pub fn threads_of_goroutines_allocate() {
    within(LONG, "threads of goroutines", || {
        runtime(PROCS).run(|| {
            let starters: Vec<_> = (0..PROCS as u64)
                .map(|i| {
                    thread::spawn(move || {
                        let mut rng = Rng::new(i);
                        for _ in 0..25 {
                            let mut block = Block::new(&mut rng);
                            let mut theirs = rng.clone();
                            let started = std::thread::spawn(move || {
                                block.resize(&mut theirs);
                                Block::new(&mut theirs)
                            });
                            drop(started.join().unwrap());
                            thread::yield_now();
                        }
                    })
                })
                .collect();
            starters.into_iter().for_each(|s| s.join().unwrap());
        });
    });
}

/// Panics of goroutines that own blocks and wait while they unwind: every block is freed, every
/// payload arrives.
pub fn panics_free_and_arrive() {
    const GOROUTINES: usize = 1_500;
    quiet_about("planned");
    let waited = Arc::new(AtomicUsize::new(0));
    within(LONG, "panicking goroutines", || {
        runtime(PROCS).run(|| {
            let handles: Vec<_> = (0..GOROUTINES)
                .map(|i| {
                    let waited = Arc::clone(&waited);
                    thread::spawn(move || unwind(i, waited))
                })
                .collect();
            for (i, handle) in handles.into_iter().enumerate() {
                let payload = handle.join().unwrap_err();
                let text = payload.downcast_ref::<String>();
                assert_eq!(text, Some(&format!("planned {i}")));
            }
        });
    });
    assert_eq!(waited.load(SeqCst), 2 * GOROUTINES);
}

fn unwind(i: usize, waited: Arc<AtomicUsize>) {
    struct Waits(Arc<AtomicUsize>, Block);
    impl Drop for Waits {
        fn drop(&mut self) {
            let text = format!("allocated by {:?} while it unwinds", tid());
            thread::yield_now();
            assert!(text.starts_with("allocated"));
            self.1.check(self.1.layout.size());
            self.0.fetch_add(1, SeqCst);
        }
    }
    let mut rng = Rng::new(i as u64);
    let _outer = Waits(Arc::clone(&waited), Block::new(&mut rng));
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _inner = Waits(waited, Block::new(&mut rng));
        panic!("planned {i}");
    }));
    thread::yield_now();
    panic::resume_unwind(caught.unwrap_err());
}

/// Keeps panics off stderr whose message begins with `beginning`.
fn quiet_about(beginning: &'static str) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>();
            if !text.is_some_and(|text| text.starts_with(beginning)) {
                previous(info);
            }
        }));
    });
}

/// Blocks outlive the goroutine, its thread and its runtime.
pub fn blocks_outlive_their_threads(test: &str) {
    child_of(test, "", |_| (0..5).for_each(outlive)).succeeded();
}

fn outlive(round: u64) {
    {
        let threads = common::thread_count();
        let blocks: Vec<Block> = runtime(PROCS).run(|| {
            let handles: Vec<_> = (0..200)
                .map(|i| {
                    thread::spawn(move || {
                        let mut rng = Rng::new(round << 32 | i);
                        thread::yield_now();
                        [Block::new(&mut rng), Block::new(&mut rng)]
                    })
                })
                .collect();
            let pairs = handles.into_iter().map(|handle| handle.join().unwrap());
            pairs.flatten().collect()
        });
        // The threads are those of this test alone: it has a process of its own.
        assert!(eventually(|| common::thread_count() <= threads));
        let mut rng = Rng::new(round);
        let (mut here, there): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|_| rng.one_in(2));
        here.iter_mut().for_each(|block| block.resize(&mut rng));
        runtime(PROCS).run(move || thread::spawn(move || drop(there)).join().unwrap());
    }
}

/// What parked goroutines that have allocated take, stack and all, in KiB each.
///
/// With `bare` they allocate from that, past the wrapper.
fn kib_per_parked(goroutines: usize, bare: Option<&'static (dyn GlobalAlloc + Sync)>) -> usize {
    let (arrived, may_go) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (arrived, may_go) = (&arrived, &may_go);
    runtime(PROCS).run(move || {
        let before = rss_kib();
        thread::scope(|scope| {
            let handles: Vec<_> = (0..goroutines)
                .map(|i| {
                    scope.spawn(move || {
                        let first = format!("goroutine {i}");
                        let _direct = bare.map(allocate_past);
                        thread::yield_now();
                        let second = vec![i as u8; 500];
                        arrived.fetch_add(1, SeqCst);
                        while !may_go.load(SeqCst) {
                            thread::park();
                        }
                        assert!(first.len() > 9 && second[499] == i as u8);
                    })
                })
                .collect();
            while arrived.load(SeqCst) < goroutines {
                thread::yield_now();
            }
            let grown = rss_kib().saturating_sub(before);
            may_go.store(true, SeqCst);
            handles.iter().for_each(|handle| handle.thread().unpark());
            grown / goroutines
        })
    })
}

/// Blocks of several sizes from the bare allocator, freed when this is dropped.
fn allocate_past(bare: &'static (dyn GlobalAlloc + Sync)) -> impl Drop {
    struct Past(&'static (dyn GlobalAlloc + Sync), [(*mut u8, Layout); 8]);
    impl Drop for Past {
        fn drop(&mut self) {
            for (start, layout) in self.1 {
                // SAFETY: allocated below, with this layout.
                unsafe { self.0.dealloc(start, layout) };
            }
        }
    }
    let blocks = std::array::from_fn(|i| {
        let layout = Layout::from_size_align(16 << i, 8).unwrap();
        // SAFETY: the layout has a size.
        let start = unsafe { bare.alloc(layout) };
        assert!(!start.is_null());
        // SAFETY: it is that long.
        unsafe { start.write_bytes(1, layout.size()) };
        (start, layout)
    });
    Past(bare, blocks)
}

/// Parked goroutines that have allocated stay small; where the bare allocator is given, its heap
/// per goroutine shows what the wrapper is for.
pub fn parked_goroutines_stay_small(
    test: &str,
    bare: Option<(&'static (dyn GlobalAlloc + Sync), usize)>,
) {
    /// A stack and thread-locals take two or three pages, the blocks less than one; the rest is
    /// what allocators keep per thread.
    const LIMIT_KIB: usize = 30;
    let body = |variant: &str| {
        if variant == "wrapped" {
            let each = kib_per_parked(2_000, None);
            assert!(each <= LIMIT_KIB, "{each} KiB for each goroutine");
        } else if let Some((allocator, at_least)) = bare {
            let each = kib_per_parked(200, Some(allocator));
            assert!(
                each >= at_least,
                "only {each} KiB: the wrapper saves nothing"
            );
        }
    };
    child_of(test, "wrapped", body).succeeded();
    child_of(test, "bare", body).succeeded();
}

/// The scenarios as tests of a file that has an `ALLOCATOR`; `bare`: what is compared with, if
/// anything.
macro_rules! tests {
    ($bare:expr) => {
        #[test]
        fn blocks_change_goroutines_and_threads() {
            crate::allocator::blocks_change_goroutines_and_threads();
        }

        #[test]
        fn blocks_change_hands_under_shared_thread_locals() {
            crate::allocator::blocks_change_hands_under_shared_thread_locals();
        }

        #[test]
        fn threads_of_goroutines_allocate() {
            crate::allocator::threads_of_goroutines_allocate();
        }

        #[test]
        fn panics_free_and_arrive() {
            crate::allocator::panics_free_and_arrive();
        }

        #[test]
        fn blocks_outlive_their_threads() {
            crate::allocator::blocks_outlive_their_threads("blocks_outlive_their_threads");
        }

        #[test]
        fn parked_goroutines_stay_small() {
            crate::allocator::parked_goroutines_stay_small("parked_goroutines_stay_small", $bare);
        }
    };
}
pub(crate) use tests;
