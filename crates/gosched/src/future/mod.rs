//! The bridge to `async`: goroutines wait for futures, futures wait for goroutines.
//!
//! [`block_on`] runs a future on the calling goroutine, so a goroutine can use a crate that has nothing but an async API. In the
//! other direction a [`JoinHandle`](crate::thread::JoinHandle) is a future: any executor can await a goroutine.
//!
//! ```
//! use gosched::{future, thread};
//!
//! async fn sum(numbers: Vec<u64>) -> u64 {
//!     // Work that blocks or computes for long has its place in a goroutine.
//!     let half = numbers.len() / 2;
//!     let (low, high) = (numbers[..half].to_vec(), numbers[half..].to_vec());
//!     let low = thread::spawn(move || low.iter().sum::<u64>());
//!     let high = thread::spawn(move || high.iter().sum::<u64>());
//!     low.await.unwrap() + high.await.unwrap()
//! }
//!
//! let total = gosched::run(|| future::block_on(sum((1..=100).collect())));
//! assert_eq!(total, 5050);
//! ```
//!
//! What a future needs besides being polled is its own affair: one that waits for tokio's timers or sockets needs a tokio runtime
//! to be there ([`tokio::runtime::Handle::enter`](https://docs.rs/tokio/latest/tokio/runtime/struct.Handle.html#method.enter)),
//! one that waits for a channel needs nothing.

mod word;

use std::ffi::c_void;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use self::word::WakeWord;
use crate::base::note::Note;
use crate::sched::model::current::current_g;
use crate::sched::model::g::{G, WaitReason};
use crate::sched::model::ptr::Ptr;
use crate::sched::park::{WaitArg, WaitOps, enter, park, ready};
use crate::sched::wait::enter_to_wake;
use crate::thread::check_cancelled;

/// Marks a waiter that is a thread's note; a G's address has the bit clear.
const THREAD: usize = 2;

static FUTURE: WaitOps = WaitOps {
    reason: WaitReason::Future,
    arg: WaitArg::Nothing,
    is_open: true,
    commit: |g, word| word_of(&word).commit(g.as_ptr() as usize),
    withdraw: |g, word| word_of(&word).withdraw(g.as_ptr() as usize),
    pass_on: None,
};

fn word_of(arg: &*const c_void) -> &WakeWord {
    // SAFETY: PK, G6: the argument of a park through `FUTURE` is the word of a `Poller` that the waiting goroutine has a share of.
    unsafe { &*arg.cast::<WakeWord>() }
}

/// What one call of [`block_on`] shares with its wakers.
struct Poller(WakeWord);

impl Poller {
    /// Waits until a waker is called, or was since the last poll began.
    fn wait(&self) {
        if self.0.take() {
            // It is polled again without a wait: a moment to make room, if that was asked for.
            return drop(enter());
        }
        loop {
            if current_g().is_some() {
                // SAFETY: PK, `FUTURE` takes a word, and `self` is borrowed for the whole wait.
                unsafe { park(&FUTURE, (&raw const self.0).cast()) };
            } else {
                self.wait_thread();
            }
            if self.0.take() {
                return;
            }
            check_cancelled(); // returns where nothing can unwind
        }
    }

    fn wait_thread(&self) {
        let note = Note::new();
        if self.0.commit(&raw const note as usize | THREAD) {
            note.sleep();
        }
    }
}

impl Wake for Poller {
    fn wake(self: Arc<Poller>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Poller>) {
        let _rt = enter_to_wake();
        match self.0.wake() {
            None => {}
            Some(waiter) if waiter & THREAD != 0 => {
                // SAFETY: the sleeper keeps its note until this wake-up, which the swap made ours.
                unsafe { &*((waiter & !THREAD) as *const Note) }.wakeup();
            }
            Some(waiter) => {
                // SAFETY: GF, G4: a parked G; the swap made its wake-up ours.
                if let Some(g) = unsafe { Ptr::from_raw(waiter as *mut G) } {
                    ready(g);
                }
            }
        }
    }
}

/// Runs a future to its end and returns its output.
///
/// Blocks the goroutine, or the plain thread it is called on, also where there is no runtime: the future is polled here, and between
/// two polls the goroutine waits until a waker is called. Others run meanwhile. The wakers may be called by anybody, from any thread,
/// any number of times, also when `block_on` has returned. The tokens of [`thread::park`](crate::thread::park) are left alone. Calls
/// nest.
///
/// When the goroutine is asked to end ([`Runtime::shutdown`](crate::Runtime::shutdown)) it unwinds from here and drops the future.
///
/// # Panics
/// If the future does; its panic is passed on.
///
/// ```
/// use std::task::Poll;
/// use gosched::{chan, future, go};
///
/// # gosched::run(|| {
/// let (tx, rx) = chan::bounded(1);
/// let mut polls = 0;
/// let number = future::block_on(std::future::poll_fn(|cx| {
///     polls += 1;
///     if let Ok(number) = rx.try_recv() {
///         return Poll::Ready(number);
///     }
///     let (tx, waker) = (tx.clone(), cx.waker().clone());
///     go(move || {
///         tx.send(42).unwrap();
///         waker.wake();
///     });
///     Poll::Pending
/// }));
/// assert_eq!((number, polls), (42, 2));
/// # });
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let poller = Arc::new(Poller(WakeWord::new()));
    let waker = Waker::from(Arc::clone(&poller));
    let mut context = Context::from_waker(&waker);
    loop {
        check_cancelled();
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        poller.wait();
    }
}
