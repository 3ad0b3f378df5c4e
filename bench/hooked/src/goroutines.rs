//! Goroutines as tasks; all that a task waits in is std's or crossbeam's, as on plain threads.
//!
//! So a workload measures what the hooks make of that code, and nothing of gosched's own types.

use std::sync::OnceLock;
use std::time::Duration;

use gosched::Runtime;
use gosched::thread::{self, JoinHandle, Thread};

use crate::std_threads::Std;
use crate::threads::{Marks, Tasks};

pub struct Goroutines;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

fn runtime() -> &'static Runtime {
    RUNTIME.get().expect("it is started first")
}

impl Tasks for Goroutines {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Thread = Thread;
    type Sender = <Std as Tasks>::Sender;
    type Receiver = <Std as Tasks>::Receiver;
    type TightSender = <Std as Tasks>::TightSender;
    type TightReceiver = <Std as Tasks>::TightReceiver;
    type ManySender = <Std as Tasks>::ManySender;
    type ManyReceiver = <Std as Tasks>::ManyReceiver;
    type MpscSender = <Std as Tasks>::MpscSender;
    type MpscReceiver = <Std as Tasks>::MpscReceiver;
    type Counter = <Std as Tasks>::Counter;
    type Listener = <Std as Tasks>::Listener;

    const TASKS_MAX: Option<usize> = None;
    const MARKS: Marks = Marks::Needless;
    const RUNS_ANY_CODE: bool = true;
    const HAS_SELECT: bool = true;

    /// The first call decides: the tests start several workloads in one process.
    fn start(procs: usize, _: bool) {
        RUNTIME.get_or_init(|| {
            let runtime = Runtime::builder().procs(procs).build();
            runtime.expect("threads and an epoll are to be had")
        });
    }

    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        runtime().spawn(task)
    }

    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("a goroutine does not panic")
    }

    fn is_finished<T: Send + 'static>(handle: &JoinHandle<T>) -> bool {
        handle.is_finished()
    }

    fn thread<T: Send + 'static>(handle: &JoinHandle<T>) -> Thread {
        handle.thread().clone()
    }

    fn current() -> Thread {
        thread::current()
    }

    fn park() {
        thread::park();
    }

    fn unpark(thread: &Thread) {
        thread.unpark();
    }

    fn yield_now() {
        thread::yield_now();
    }

    fn sleep(span: Duration) {
        std::thread::sleep(span);
    }

    fn bounded(room: usize) -> (Self::Sender, Self::Receiver) {
        Std::bounded(room)
    }

    fn unbounded() -> (Self::Sender, Self::Receiver) {
        Std::unbounded()
    }

    fn tight() -> (Self::TightSender, Self::TightReceiver) {
        Std::tight()
    }

    fn many(room: usize) -> (Self::ManySender, Self::ManyReceiver) {
        Std::many(room)
    }

    fn mpsc() -> (Self::MpscSender, Self::MpscReceiver) {
        Std::mpsc()
    }

    fn select(receivers: &[Self::Receiver]) -> u64 {
        Std::select(receivers)
    }
}
