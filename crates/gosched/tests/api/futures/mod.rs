//! The bridge to async, in both directions: `future::block_on`, and goroutines that are awaited.
//!
//! `blocks` tests `block_on`, with wakers called from everywhere. `awaits` tests a `JoinHandle` as
//! a future. `ends` tests what the end of a runtime does to both. `stress` does all of it at
//! random, and `examples` runs the programs in `examples/`.

mod awaits;
mod blocks;
mod ends;
mod examples;
mod stress;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::{LONG, ms, run, runtime, until_waiting_in, within};
use gosched::{Handle, Runtime};

/// Something that happens once, made by hand: the waker of its last poll is called.
#[derive(Default)]
struct Event(Mutex<(bool, Option<Waker>)>);

impl Event {
    fn new() -> Arc<Event> {
        Arc::default()
    }

    fn fire(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            state.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if state.0 {
            return Poll::Ready(());
        }
        state.1 = Some(context.waker().clone());
        Poll::Pending
    }

    async fn wait(self: Arc<Event>) {
        poll_fn(|context| self.poll(context)).await;
    }
}

/// A waker that counts its calls; the count of the `Arc` tells how many there are.
#[derive(Default)]
struct Counter(AtomicUsize);

impl Counter {
    fn new() -> (Arc<Counter>, Waker) {
        let counter = Arc::new(Counter::default());
        (Arc::clone(&counter), Waker::from(counter))
    }

    fn calls(&self) -> usize {
        self.0.load(SeqCst)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Counter>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A waker that is a closure.
struct Call<F>(F);

impl<F: Fn() + Send + Sync> Wake for Call<F> {
    fn wake(self: Arc<Call<F>>) {
        (self.0)();
    }
}

fn waker(f: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Call(f)))
}

/// Polls a future once, for a waker.
fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// A task of the executor below.
type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An executor made by hand: runs all tasks to their ends on the calling thread, and knows nothing
/// of goroutines. Each task has a waker that puts its number into a queue.
fn execute(tasks: Vec<Task>) {
    let (queue, due) = mpsc::channel();
    let waker_of = |number: usize| {
        let queue = Mutex::new(queue.clone());
        waker(move || _ = queue.lock().unwrap().send(number))
    };
    let mut left = tasks.len();
    let with_waker = |(number, task)| Some((task, waker_of(number)));
    let mut tasks: Vec<Option<(Task, Waker)>> =
        tasks.into_iter().enumerate().map(with_waker).collect();
    (0..tasks.len()).for_each(|number| queue.send(number).unwrap());
    while left > 0 {
        let number = due.recv_timeout(LONG).expect("a task is never woken");
        if let Some((task, waker)) = &mut tasks[number]
            && poll(task, waker).is_ready()
        {
            tasks[number] = None;
            left -= 1;
        }
    }
}
