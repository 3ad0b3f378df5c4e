//! The bridge to async, in both directions: `future::block_on`, and goroutines that are awaited.
//!
//! `blocks` has what `block_on` does whoever calls the wakers, `awaits` what a `JoinHandle` does as a future, `ends` what the end of a
//! runtime does to both, `stress` all of it at random, `examples` runs the programs in `examples/`.

mod awaits;
mod blocks;
#[path = "../common/mod.rs"]
mod common;
mod ends;
mod examples;
mod stress;

use std::alloc::{GlobalAlloc, Layout, System};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use common::within;
use gosched::{Handle, Runtime};

/// Long enough for whatever is to happen, even here and now.
const LONG: Duration = Duration::from_secs(60);

/// The system's allocator, which counts.
struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: by the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn runtime(procs: usize) -> Runtime {
    Runtime::builder().procs(procs).build().unwrap()
}

/// Runs `f` as the main goroutine of a runtime, against the clock. No wake-up may have been lost by the end, and all is in order.
fn run<T: Send>(procs: usize, what: &str, f: impl FnOnce() -> T + Send) -> T {
    let runtime = runtime(procs);
    let result = within(LONG, what, || runtime.run(f));
    runtime.check().unwrap();
    assert_eq!(runtime.metrics().rescues, 0, "WK: a wake-up was lost");
    result
}

/// Waits, on a goroutine or a thread, until `n` goroutines of a runtime wait in `block_on`.
#[track_caller]
fn until_waiting(handle: &Handle, n: usize) {
    let began = Instant::now();
    let are_waiting = || {
        // A dump stops the world: only when it is time.
        handle.metrics().unwrap().waiting >= n && {
            let dump = handle.dump().unwrap();
            let all = dump.goroutines().iter();
            all.filter(|g| g.wait_reason() == Some("future")).count() == n
        }
    };
    while !are_waiting() {
        let dump = || handle.dump().unwrap();
        assert!(began.elapsed() < LONG / 2, "not {n} wait:\n{}", dump());
        gosched::thread::sleep(ms(1));
    }
}

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

/// An executor made by hand: runs all tasks to their ends on the calling thread, and knows nothing of goroutines. Each task has a
/// waker that puts its number into a queue.
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
