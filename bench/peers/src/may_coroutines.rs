//! The workloads on may: its coroutines with its own channels, lock, timers and sockets, and its
//! default stack.
//!
//! Its channels are unbounded. In `sieve`, where the bound keeps the work finite, a semaphore of
//! may limits each channel. Its select runs every arm to its end and then takes the first. So all
//! arms that find a message take one, and it cannot do `select…`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use may::coroutine::{self, Coroutine, JoinHandle};
use may::net::{TcpListener, TcpStream};
use may::sync::{Mutex, Semphore, mpmc, mpsc};

use crate::threads::{self, Marks, Receiver, Sender, Tasks};

pub struct May;

impl Tasks for May {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Thread = Coroutine;
    type Sender = mpsc::Sender<u64>;
    type Receiver = mpsc::Receiver<u64>;
    type TightSender = TightSender;
    type TightReceiver = TightReceiver;
    type ManySender = mpmc::Sender<u64>;
    type ManyReceiver = mpmc::Receiver<u64>;
    type MpscSender = mpsc::Sender<u64>;
    type MpscReceiver = mpsc::Receiver<u64>;
    type Counter = Mutex<usize>;
    type Listener = TcpListener;

    const TASKS_MAX: Option<usize> = None;
    const MARKS: Marks = Marks::Missing;
    const RUNS_ANY_CODE: bool = false;
    const HAS_SELECT: bool = false;

    fn start(procs: usize, _: bool) {
        may::config().set_workers(procs);
    }

    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        // SAFETY: may's two conditions hold. The workloads keep nothing of a thread-local over a
        // switch. Their frames need at most 4 KiB, far less than the stack of 32 KiB.
        unsafe { coroutine::spawn(task) }
    }

    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("a coroutine does not panic")
    }

    fn is_finished<T: Send + 'static>(handle: &JoinHandle<T>) -> bool {
        handle.is_done()
    }

    fn thread<T: Send + 'static>(handle: &JoinHandle<T>) -> Coroutine {
        handle.coroutine().clone()
    }

    fn current() -> Coroutine {
        coroutine::current()
    }

    fn park() {
        coroutine::park();
    }

    fn unpark(thread: &Coroutine) {
        thread.unpark();
    }

    fn yield_now() {
        coroutine::yield_now();
    }

    fn sleep(span: Duration) {
        coroutine::sleep(span);
    }

    fn bounded(_: usize) -> (Self::Sender, Self::Receiver) {
        mpsc::channel()
    }

    fn unbounded() -> (Self::Sender, Self::Receiver) {
        mpsc::channel()
    }

    fn tight() -> (Self::TightSender, Self::TightReceiver) {
        let (sender, receiver) = mpsc::channel();
        let room = Arc::new(Room {
            free: Semphore::new(1),
            is_over: AtomicBool::new(false),
        });
        let other = Arc::clone(&room);
        let sender = TightSender { sender, room };
        let receiver = TightReceiver {
            receiver,
            room: other,
        };
        (sender, receiver)
    }

    fn many(_: usize) -> (Self::ManySender, Self::ManyReceiver) {
        mpmc::channel()
    }

    fn mpsc() -> (Self::MpscSender, Self::MpscReceiver) {
        mpsc::channel()
    }

    fn select(_: &[Self::Receiver]) -> u64 {
        unreachable!("its select is not used");
    }
}

/// Room for one message.
struct Room {
    free: Semphore,
    /// Whether the receiver is gone.
    is_over: AtomicBool,
}

/// The sender of a channel of capacity one.
#[derive(Clone)]
pub struct TightSender {
    sender: mpsc::Sender<u64>,
    room: Arc<Room>,
}

/// Its receiver.
pub struct TightReceiver {
    receiver: mpsc::Receiver<u64>,
    room: Arc<Room>,
}

impl Sender for TightSender {
    fn send(&self, message: u64) -> bool {
        self.room.free.wait();
        // ORDER: Acquire; pairs with Release in the receiver's drop.
        !self.room.is_over.load(Ordering::Acquire) && self.sender.send(message).is_ok()
    }
}

impl Receiver for TightReceiver {
    fn recv(&self) -> Option<u64> {
        let message = self.receiver.recv().ok()?;
        self.room.free.post();
        Some(message)
    }
}

impl Drop for TightReceiver {
    fn drop(&mut self) {
        // ORDER: Release; pairs with Acquire in `send`.
        self.room.is_over.store(true, Ordering::Release);
        // A sender that waits for room is woken and sees that the receiver is gone.
        self.room.free.post();
    }
}

impl Sender for mpsc::Sender<u64> {
    fn send(&self, message: u64) -> bool {
        mpsc::Sender::send(self, message).is_ok()
    }
}

impl Receiver for mpsc::Receiver<u64> {
    fn recv(&self) -> Option<u64> {
        mpsc::Receiver::recv(self).ok()
    }
}

impl Sender for mpmc::Sender<u64> {
    fn send(&self, message: u64) -> bool {
        mpmc::Sender::send(self, message).is_ok()
    }
}

impl Receiver for mpmc::Receiver<u64> {
    fn recv(&self) -> Option<u64> {
        mpmc::Receiver::recv(self).ok()
    }
}

threads::like_std!(Mutex, TcpListener, TcpStream);
