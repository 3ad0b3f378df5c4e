//! The bridge to `async`: goroutines wait for futures, futures wait for goroutines.
//!
//! [`block_on`] runs a future on the calling goroutine, so a goroutine can use a crate that has
//! only an async API. In the other direction a [`JoinHandle`](crate::thread::JoinHandle) is a
//! future: any executor can await a goroutine.
//!
//! ```
//! use gosched::{future, thread};
//!
//! async fn sum(numbers: Vec<u64>) -> u64 {
//!     // Work that blocks or computes for long belongs into a goroutine.
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
//! Some futures need more than to be polled. A future that waits for tokio's timers or sockets
//! needs a tokio runtime ([`tokio::runtime::Handle::enter`]). A future that waits for a channel
//! needs nothing.
//!
//! [`tokio::runtime::Handle::enter`]: https://docs.rs/tokio/latest/tokio/runtime/struct.Handle.html

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::sched::model::current::current_g;
use crate::sched::model::g::WaitReason;
use crate::sched::park::{enter, park, ready};
use crate::sched::waiting::sleeper::Sleeper;
use crate::sched::waiting::wait_ops::{WaitOps, WaitView};
use crate::sched::waiting::wait_slot::enter_to_wake;
use crate::sched::waiting::wait_word::WaitWord;
use crate::thread::check_cancelled;

static FUTURE: WaitOps<WaitWord> = WaitOps {
    reason: WaitReason::Future,
    is_open: true,
    commit: |g, word| word.commit(Sleeper::goroutine(g)).is_ok(),
    withdraw: |g, word| word.withdraw(&Sleeper::goroutine(g)),
    time_out: |_, _| false,
    view: |_| WaitView::Nothing,
    pass_on: None,
};

/// What one call of [`block_on`] shares with its wakers: a word with one case.
///
/// Its event is that a waker was called since the last poll began. The word is taken before each
/// poll, so a waker that is called during the poll is seen after it. Any number of wakers may
/// complete the word at any time; the goroutine or thread that polls takes the event, commits
/// itself and sleeps.
struct BlockOn(WaitWord);

impl BlockOn {
    /// Waits until a waker is called, or was since the last poll began.
    fn wait(&self) {
        if self.0.take() {
            // The future is polled again without a wait. Leaving the runtime yields if the
            // goroutine was asked to.
            return drop(enter());
        }
        loop {
            if current_g().is_some() {
                park(&FUTURE, &self.0);
            } else {
                self.0.sleep_thread();
            }
            if self.0.take() {
                return;
            }
            check_cancelled(); // returns where nothing can unwind
        }
    }
}

impl Wake for BlockOn {
    fn wake(self: Arc<BlockOn>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<BlockOn>) {
        let _rt = enter_to_wake();
        if let Some(sleeper) = self.0.complete() {
            sleeper.wake(ready);
        }
    }
}

/// Runs a future to its end and returns its output.
///
/// Blocks the goroutine, or the plain thread it is called on, also without a runtime. The future is
/// polled here. Between two polls the goroutine waits until a waker is called, and other goroutines
/// run. Any thread may call the wakers, any number of times, also after `block_on` has returned.
/// The token of [`thread::park`](crate::thread::park) is not used. Calls nest.
///
/// A goroutine that is asked to end ([`Runtime::shutdown`](crate::Runtime::shutdown)) unwinds from
/// here and drops the future.
///
/// # Panics
/// If the future panics; its panic is passed on.
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
    let poller = Arc::new(BlockOn(WaitWord::new()));
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
