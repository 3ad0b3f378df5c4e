//! A timer that is set against the threads that may sleep past it: the watcher (timer/1, timer/2)
//! and sysmon (nap/1, nap/2); and a call against the watcher in the network poller (bell/1,
//! bell/2).
//!
//! The library's own `Poller` and `Nap` run here. [`World`] adds what `sched/sources/timers.rs` and
//! `schedule.rs` do around them: heaps with a lock each, the mask of heaps that hold anything, and
//! the loop of an M that has nothing to do. The time is [`EARLY`] in every story. A sleep until
//! then ends; a sleep until [`LATE`] lasts until another thread wakes the sleeper. A lost wake-up
//! is a deadlock, which loom reports.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;

use super::{explore, explore_in_turn};
use crate::nap::{DOZE, NAP, Nap, REST};
use crate::netpoll::driver::Driver;
use crate::poller::Poller;
use crate::shim::{self, AtomicU64, AtomicUsize, Part, Relaxed, SeqCst};

/// The deadline of a timer that must not be missed.
const EARLY: u64 = 5;
/// The deadline of the others: it never comes here.
const LATE: u64 = 10;

/// One P's timers, as others see them.
struct Heap {
    lock: Mutex<()>,
    next: AtomicU64,
}

struct World {
    poller: Poller,
    nap: Nap,
    heaps: [Heap; 2],
    /// Heaps that hold anything.
    mask: AtomicUsize,
    /// The scheduler lock.
    core: Mutex<()>,
}

impl World {
    fn new() -> Arc<World> {
        shim::pass_deadlines_until(EARLY);
        Arc::new(World {
            poller: Poller::new(),
            nap: Nap::new(),
            heaps: std::array::from_fn(|_| Heap {
                lock: Mutex::new(()),
                next: AtomicU64::new(u64::MAX),
            }),
            mask: AtomicUsize::new(0),
            core: Mutex::new(()),
        })
    }

    /// A world with a timer that never comes.
    fn with_late_timer() -> Arc<World> {
        let world = World::new();
        world.publish(0, LATE);
        world
    }

    /// `Timers::publish`, in a hold of the heap's lock.
    fn publish(&self, heap: usize, next: u64) {
        let _heap = self.heaps[heap].lock.lock().unwrap();
        self.heaps[heap].next.store(next, Relaxed);
        match next {
            u64::MAX => self.mask.fetch_and(!(1 << heap), Relaxed),
            _ => self.mask.fetch_or(1 << heap, Relaxed),
        };
    }

    /// A goroutine waits until `when`; returns false if no M watches.
    fn set(&self, heap: usize, when: u64) -> bool {
        self.publish(heap, when);
        self.poller.kick(when)
    }

    fn next_timer(&self) -> u64 {
        let mask = self.mask.load(Relaxed);
        let heaps = self.heaps.iter().enumerate();
        let holders = heaps.filter(|(heap, _)| mask & (1 << heap) != 0);
        let nexts = holders.map(|(_, heap)| heap.next.load(Relaxed));
        nexts.min().unwrap_or(u64::MAX)
    }

    fn begin_watch(&self) -> bool {
        let _core = self.core.lock().unwrap();
        self.mask.load(Relaxed) != 0 && self.poller.begin()
    }

    /// Takes out a due timer; returns false if there is none.
    fn expire(&self) -> bool {
        let due = (0..2).find(|&heap| self.heaps[heap].next.load(Relaxed) <= EARLY);
        if let Some(heap) = due {
            self.publish(heap, u64::MAX);
        }
        due.is_some()
    }

    /// An M with nothing to do: it watches until a timer is due, or there is nothing to watch.
    /// Returns true if it has taken a timer.
    fn watch(&self) -> bool {
        while self.begin_watch() {
            drop(self.poller.sleep(|| self.next_timer()));
            if self.expire() {
                return true;
            }
        }
        false
    }

    /// sysmon's pause, until [`LATE`] if nothing comes.
    fn pause(&self, word: u32) {
        self.nap.pause(word, LATE, || self.next_timer());
    }
}

/// The watcher is about to sleep until [`LATE`] when a timer for [`EARLY`] is set.
fn an_earlier_timer() {
    let world = World::with_late_timer();
    let setter = thread::spawn({
        let world = world.clone();
        move || world.set(1, EARLY)
    });
    assert!(world.watch(), "the watcher found the timer");
    setter.join().unwrap();
}

/// Fails if the watcher does not load the timers again behind timer/2, and if the setter does not
/// load the watcher's word.
#[test]
fn sm_the_watcher_does_not_sleep_past_an_earlier_timer() {
    explore(None, an_earlier_timer);
}

/// Without the watcher's barrier its second load may see the timers as they were before.
#[test]
#[should_panic(expected = "deadlock")]
fn sm_timer_2_is_needed() {
    shim::without(Part::Fence, || explore(None, an_earlier_timer));
}

/// Without the setter's barrier its load of the watcher's word may see the old value.
#[test]
#[should_panic(expected = "deadlock")]
fn sm_timer_1_is_needed() {
    shim::without(Part::AfterRmw, || explore(None, an_earlier_timer));
}

/// The last timer was taken out when the M began to watch, so the M gives up; meanwhile another
/// timer is set. Its setter relies on the M if the word shows a watcher.
#[test]
fn sm_a_watcher_that_gives_up_looks_again() {
    explore(None, || {
        let world = World::new();
        assert!(world.poller.begin());
        let setter = thread::spawn({
            let world = world.clone();
            move || world.set(1, EARLY)
        });
        drop(world.poller.sleep(|| world.next_timer()));
        let has_found = world.expire() || world.watch();
        let is_watched = setter.join().unwrap();
        assert!(has_found || !is_watched, "each relied on the other");
    });
}

/// A call for the first watcher comes when it is about to leave, and a second one takes its place.
/// Each call ends one sleep. If a watcher cleared its note after the next watcher has come, it
/// would clear that one's call.
#[test]
fn sm_a_call_is_not_taken_for_the_next_watchers() {
    explore(Some(3), || {
        let world = World::with_late_timer();
        assert!(world.begin_watch());
        let next = thread::spawn({
            let world = world.clone();
            move || {
                while !world.begin_watch() {
                    thread::yield_now();
                }
                drop(world.poller.sleep(|| world.next_timer()));
                if !world.expire() {
                    assert!(world.watch());
                }
            }
        });
        let caller = thread::spawn({
            let world = world.clone();
            move || {
                world.poller.wake();
                world.set(1, EARLY);
            }
        });
        drop(world.poller.sleep(|| LATE));
        caller.join().unwrap();
        next.join().unwrap();
    });
}

/// The driver of a story; it outlives the story's threads.
fn driver(waiters: u32) -> (Arc<Driver>, &'static Driver) {
    let driver = Arc::new(Driver::new(waiters));
    let raw = Arc::as_ptr(&driver);
    // SAFETY: GF's counterpart here. The story keeps the `Arc` until all threads have ended.
    (driver, unsafe { &*raw })
}

fn a_call_into_the_network() {
    let world = World::new();
    let (_kept, driver) = driver(1);
    world.poller.set_driver(driver);
    // The call of `set_driver` ends the first sleep.
    assert!(world.poller.begin());
    drop(world.poller.sleep(|| u64::MAX));
    assert!(world.poller.begin());
    let caller = thread::spawn({
        let world = world.clone();
        move || world.poller.wake()
    });
    drop(world.poller.sleep(|| u64::MAX));
    caller.join().unwrap();
}

/// The watcher is about to sleep in the network poller when it is called. Fails if it does not load
/// its note before it sleeps there, or if the caller does not ring.
#[test]
fn sm_a_call_reaches_the_watcher_in_the_network() {
    explore(None, a_call_into_the_network);
}

/// Without the barriers the caller may find the watcher outside, and the watcher its note clear.
#[test]
#[should_panic(expected = "deadlock")]
fn sm_bell_1_and_bell_2_are_needed() {
    shim::without(Part::Fence, || explore(None, a_call_into_the_network));
}

/// The network is used for the first time while the watcher sleeps without it.
#[test]
fn sm_the_watcher_learns_of_the_network() {
    explore(None, || {
        let world = World::with_late_timer();
        let (_kept, driver) = driver(0);
        let user = thread::spawn({
            let world = world.clone();
            move || {
                world.poller.set_driver(driver);
            }
        });
        while world.poller.driver().is_none() {
            assert!(world.begin_watch());
            drop(world.poller.sleep(|| world.next_timer()));
        }
        user.join().unwrap();
    });
}

/// A timer that no M watches is set when sysmon begins its pause.
fn a_timer_in_a_nap(word: u32) {
    let world = World::new();
    let setter = thread::spawn({
        let world = world.clone();
        move || {
            world.publish(0, EARLY);
            world.nap.timer_set(EARLY);
        }
    });
    world.pause(word);
    setter.join().unwrap();
}

/// Fails if sysmon does not load the timers behind nap/2, or if the setter does not load sysmon's
/// word.
#[test]
fn sm_sysmon_does_not_sleep_past_a_timer() {
    for word in [NAP, DOZE, REST] {
        explore(None, move || a_timer_in_a_nap(word));
    }
}

/// Either barrier: without them both sides may see the other as it was before.
#[test]
#[should_panic(expected = "deadlock")]
fn sm_nap_1_and_nap_2_are_needed() {
    shim::without(Part::Fence, || explore(None, || a_timer_in_a_nap(NAP)));
}

/// Explores with a barrier at every SeqCst store, as the machine has it. `press` depends on the
/// order of two SeqCst words, which loom does not keep.
fn explore_seq_cst(story: impl Fn() + Sync + Send + 'static) {
    shim::on_x86(|| explore_in_turn(None, story));
}

/// A goroutine finds no P when sysmon begins its pause, after a scan that did not see it. sysmon
/// scans again at once. Fails if sysmon does not load `pressed` behind nap/2. Fails also if sysmon
/// treats a press between the scan and the pause as already seen.
#[test]
fn sm_a_goroutine_that_finds_no_p_ends_a_nap() {
    for word in [NAP, DOZE] {
        explore_seq_cst(move || {
            let world = World::new();
            let goroutine = thread::spawn({
                let world = world.clone();
                move || world.nap.press()
            });
            let was_seen = world.nap.is_pressed();
            if !was_seen {
                world.pause(word);
                assert!(world.nap.is_pressed());
            }
            goroutine.join().unwrap();
        });
    }
}

/// sysmon finds the last press served when another goroutine is queued and finds no P. Fails if
/// sysmon checks the queues before it clears the word: the goroutine finds it set, and sysmon never
/// sees its press.
#[test]
fn sm_a_request_is_not_taken_back_with_the_last_one() {
    explore_seq_cst(|| {
        let world = World::new();
        world.nap.press();
        let queued = Arc::new(AtomicUsize::new(0));
        let goroutine = thread::spawn({
            let (world, queued) = (world.clone(), queued.clone());
            move || {
                queued.store(1, Relaxed);
                shim::fence(SeqCst); // wake/1
                world.nap.press();
            }
        });
        world.nap.unpress_if(|| queued.load(Relaxed) == 0);
        goroutine.join().unwrap();
        assert!(world.nap.is_pressed(), "a request was lost");
    });
}
