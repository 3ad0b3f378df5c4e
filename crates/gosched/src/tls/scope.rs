//! The loader's lists of objects in which symbols are looked up, and the threads that read them.
//!
//! A thread that looks up a symbol (`dlsym`, the first call of a lazily bound function) sets a flag
//! in its thread block meanwhile. It takes no lock, and ends within microseconds. `dlopen` and
//! `dlclose` replace such lists. Before they free an old list, they wait until each thread that
//! libc knows has its flag down. libc does not know the blocks of goroutines.
//!
//! Two measures replace libc's wait for goroutines:
//! - A goroutine is not preempted while its flag is up: otherwise its look-up would last for as
//!   long as it waits for a P. The handler returns, and sysmon sends its signal again. So a flag
//!   that is up belongs to a goroutine on a running thread.
//! - While the program calls `dlopen` or `dlclose`, a thread that libc knows stands in for the
//!   goroutines ([`StandIn`]). Its flag is up all the time, so libc waits for it. When the stand-in
//!   sees that libc waits, it waits for the flags of all goroutines and takes its own down.
//!
//! ```text
//!  loads or unloads       the stand-in                        a goroutine
//!                         flag up
//!  takes the list out                                         flag up; reads a list; flag down
//!  stand-in's flag:
//!    up → waited for
//!  sleeps on it           sees it; a barrier on every CPU
//!                         for each M: until the flag of the
//!                           block it is on is down
//!                         flag down, wakes; up again
//!  frees the list
//! ```
//!
//! A goroutine whose flag the stand-in has seen down after the barrier reads the lists anew at its
//! next look-up, and finds the new ones. This module does not see what libc or another library
//! loads and unloads by itself; `docs/guide/limits.md` describes that.
//!
//! The flag's place is in the head of glibc's thread blocks and in none of its tables. So it is
//! tested first: a look-up must take down a flag that was put up there.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::arch;
use crate::arch::block::LOOKS_UP;
use crate::base::real_thread;
use crate::shim::Futex;
use crate::sys;
use crate::tls::glibc::symbol;

const DOWN: u32 = 0;
const UP: u32 = 1;
/// Set to see whether a look-up takes it down. libc waits only for [`UP`], so no `dlclose` waits
/// for the test.
const TRIED: u32 = 4;
/// Up, and libc sleeps until it is down.
const WAITED_FOR: u32 = 2;

/// How often the stand-in checks whether libc waits.
const LOOK_NS: u64 = 100_000;
/// How long the stand-in sleeps on a goroutine's flag before it checks again where the Ms are.
const FLAG_NS: u64 = 50_000;

/// The place, once it is known; 0: it is not.
static FLAG: AtomicUsize = AtomicUsize::new(0);

/// Tests the place. On a thread that libc made, on which no other code runs, after there was a
/// second thread.
pub(super) fn find() {
    if read(LOOKS_UP) != DOWN {
        return;
    }
    write(LOOKS_UP, TRIED);
    let found = symbol(c"gosched_no_such_symbol");
    let is_it = found.is_none() && read(LOOKS_UP) == DOWN;
    write(LOOKS_UP, DOWN);
    if is_it {
        FLAG.store(LOOKS_UP, Relaxed);
    }
}

/// Whether the interrupted code of this thread is looking up a symbol; CONTEXT: signal.
#[inline]
pub(crate) fn is_looking_up() -> bool {
    let flag = FLAG.load(Relaxed);
    flag != 0 && read(flag) != DOWN
}

/// While a value of this type lives, a thread's flag is up in place of the goroutines' flags.
pub(crate) struct StandIn(());

/// The thread, and how many need it. A library's constructor or destructor may load another
/// library. It gets no second thread: the loader's lock is held there, and a new thread may have to
/// wait for that lock.
struct Standing {
    state: Arc<Futex>,
    thread: JoinHandle<()>,
    users: usize,
}

static STANDING: Mutex<Option<Standing>> = Mutex::new(None);

/// The states of a stand-in.
const BEGINS: u32 = 0;
const STANDS: u32 = 1;
const IS_OVER: u32 = 2;

impl StandIn {
    /// Starts the stand-in, or shares the one there is. None: libc knows all goroutines (`has_own`
    /// is false), or no thread could be started. `wait_for_goroutines` returns when each
    /// goroutine's flag has been down. In user context.
    pub(crate) fn begin(
        has_own: impl FnOnce() -> bool,
        wait_for_goroutines: fn(),
    ) -> Option<StandIn> {
        if FLAG.load(Relaxed) == 0 || !has_own() {
            return None;
        }
        let mut standing = STANDING.lock().unwrap_or_else(PoisonError::into_inner);
        if standing.is_none() {
            *standing = Some(Standing::begin(wait_for_goroutines)?);
        }
        standing.as_mut()?.users += 1;
        Some(StandIn(()))
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let mut standing = STANDING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(one) = standing.as_mut() {
            one.users -= 1;
        }
        if let Some(last) = standing.take_if(|one| one.users == 0) {
            // ORDER: Release; pairs with the Acquire in `stand_in`: what was loaded comes before.
            last.state.0.store(IS_OVER, Release);
            Futex::wake_one(&raw const *last.state);
            _ = last.thread.join();
        }
    }
}

impl Standing {
    fn begin(wait_for_goroutines: fn()) -> Option<Standing> {
        let state = Arc::new(Futex::new(BEGINS));
        let its = Arc::clone(&state);
        let stand = move || stand_in(&its, wait_for_goroutines);
        let thread = real_thread::spawn("gosched-loader", stand).ok()?;
        // ORDER: Acquire; pairs with the Release in `stand_in`: its flag is up.
        while state.0.load(Acquire) == BEGINS {
            state.wait(BEGINS, None);
        }
        Some(Standing {
            state,
            thread,
            users: 0,
        })
    }
}

/// The stand-in's thread. It looks up no symbol meanwhile, which would take its flag down.
fn stand_in(state: &Futex, wait_for_goroutines: fn()) {
    write(LOOKS_UP, UP);
    // ORDER: Release; pairs with the Acquire in `begin`.
    state.0.store(STANDS, Release);
    Futex::wake_one(state);
    // ORDER: Acquire; pairs with the Release in `drop`.
    while state.0.load(Acquire) == STANDS {
        if read(LOOKS_UP) == WAITED_FOR {
            wait_for_goroutines();
            take_down();
            write(LOOKS_UP, UP);
        }
        state.wait(STANDS, Some(sys::monotonic_ns() + LOOK_NS));
    }
    take_down();
}

/// A barrier on every CPU. Afterwards each goroutine's flag that went up before libc took the old
/// lists out is seen, or the goroutine sees the new lists. Without the barrier a store may be late
/// by the time it takes to leave the CPU; libc itself tolerates that among threads.
pub(crate) fn wait_until_seen() {
    _ = sys::membarrier_register() && sys::membarrier();
}

/// Waits until the flag of the block that a thread is on has been down. `tp` returns the thread
/// pointer of that thread; 0: there is no thread. A thread that has left a block has its flag down
/// there: the thread pointer changes only outside look-ups.
pub(crate) fn wait_until_down(tp: impl Fn() -> usize) {
    let first = tp();
    while first != 0 && tp() == first && is_up(first) {}
}

/// Whether the flag of the block at `tp` is up, and stays up for a while. The block may lose its
/// memory meanwhile, so the kernel reads the flag: no memory, no flag.
fn is_up(tp: usize) -> bool {
    let flag = (tp + LOOKS_UP) as *const AtomicU32;
    let until = sys::monotonic_ns() + FLAG_NS;
    sys::futex_wait_ptr(flag, UP, Some(until)) != sys::Wait::Changed
}

/// Takes the flag of this thread down, as libc does at the end of a look-up.
fn take_down() {
    // SAFETY: D6, the flag of this thread's own block, which libc changes by swaps too.
    let was = unsafe { arch::swap_word_at(LOOKS_UP, DOWN) };
    if was == WAITED_FOR {
        sys::futex_wake_ptr((arch::thread_pointer() + LOOKS_UP) as *const _, u32::MAX);
    }
}

#[inline]
fn read(at: usize) -> u32 {
    // SAFETY: D6, a word at the head of the present thread block, which every block has.
    unsafe { arch::load_word_at(at) }
}

/// On a thread that the caller owns.
fn write(at: usize, value: u32) {
    // SAFETY: D6, a word at the head of the present thread block, which every block has. The thread
    // looks nothing up meanwhile, and no thread waits for the flag.
    unsafe { arch::store_word_at(at, value) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::tests::NEVER;
    use crate::{Runtime, thread};

    #[test]
    fn d6_the_loaders_flag_is_where_it_is_looked_for() {
        crate::interpose::own_room(false).unwrap();
        assert_eq!(FLAG.load(SeqCst), LOOKS_UP);
        assert!(!is_looking_up());
    }

    /// Computes until the other goroutine has run, or for at most `most`.
    fn wait(other: &AtomicBool, most: Duration) -> bool {
        let began = Instant::now();
        while !other.load(SeqCst) && began.elapsed() < most {
            std::hint::spin_loop();
        }
        other.load(SeqCst)
    }

    /// The stand-in waits for a goroutine's flag, as libc does for a thread's.
    #[test]
    fn d6_a_stand_in_waits_for_goroutines_that_look_up() {
        let runtime = Runtime::builder().procs(2).build().unwrap();
        if !runtime.run(|| crate::debug::metrics().own_thread_locals) {
            return;
        }
        static IS_UP: AtomicBool = AtomicBool::new(false);
        static MAY_END: AtomicBool = AtomicBool::new(false);
        let looks_up = runtime.spawn(|| {
            write(LOOKS_UP, UP);
            IS_UP.store(true, SeqCst);
            wait(&MAY_END, NEVER);
            write(LOOKS_UP, DOWN);
        });
        while !IS_UP.load(SeqCst) {
            std::thread::yield_now();
        }
        let waits = std::thread::spawn(crate::interpose::wait_for_goroutines);
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waits.is_finished(), "it did not wait");
        MAY_END.store(true, SeqCst);
        waits.join().unwrap();
        looks_up.join().unwrap();
    }

    #[test]
    fn d6_nobody_is_preempted_while_it_looks_a_symbol_up() {
        let runtime = Runtime::builder().procs(1).build().unwrap();
        if !runtime.run(|| crate::debug::metrics().own_thread_locals) {
            return;
        }
        runtime.run(|| {
            let has_run = AtomicBool::new(false);
            thread::scope(|s| {
                // The loader's lists do not change in this test, so no thread waits for the flag.
                write(LOOKS_UP, UP);
                s.spawn(|| has_run.store(true, SeqCst));
                let ran_meanwhile = wait(&has_run, Duration::from_millis(300));
                write(LOOKS_UP, DOWN);
                assert!(!ran_meanwhile, "preempted with the flag up");
                assert!(wait(&has_run, NEVER), "never preempted");
            });
        });
    }
}
