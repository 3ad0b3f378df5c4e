//! The workloads on plain threads: std's threads, lock and sockets, and crossbeam-channel, which
//! has unbuffered channels. `std_mpsc` uses std's channel.
//!
//! The kernel runs them on all CPUs, whatever `procs` is. If the workload is about one P, they are
//! pinned to one CPU.

use std::io;
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, mpsc};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crossbeam_channel::{self as chan, select};

use crate::threads::{self, Marks, Receiver, Sender, Tasks};

pub struct Std;

impl Tasks for Std {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Thread = Thread;
    type Sender = chan::Sender<u64>;
    type Receiver = chan::Receiver<u64>;
    type TightSender = chan::Sender<u64>;
    type TightReceiver = chan::Receiver<u64>;
    type ManySender = chan::Sender<u64>;
    type ManyReceiver = chan::Receiver<u64>;
    type MpscSender = mpsc::Sender<u64>;
    type MpscReceiver = mpsc::Receiver<u64>;
    type Counter = Mutex<usize>;
    type Listener = TcpListener;

    /// A thread's stack and its signal stack have a guard each. That makes four mappings, and a
    /// process may have 65,530 by default.
    const TASKS_MAX: Option<usize> = Some(16_000);
    const MARKS: Marks = Marks::Needless;
    const RUNS_ANY_CODE: bool = true;
    const HAS_SELECT: bool = true;

    fn start(_: usize, is_one: bool) {
        if is_one {
            pin_to_one_cpu().expect("a process may ask for less");
        }
    }

    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        thread::spawn(task)
    }

    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.join().expect("a thread does not panic")
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
        thread::sleep(span);
    }

    fn bounded(room: usize) -> (Self::Sender, Self::Receiver) {
        chan::bounded(room)
    }

    fn unbounded() -> (Self::Sender, Self::Receiver) {
        chan::unbounded()
    }

    fn tight() -> (Self::TightSender, Self::TightReceiver) {
        chan::bounded(0)
    }

    fn many(room: usize) -> (Self::ManySender, Self::ManyReceiver) {
        chan::bounded(room)
    }

    fn mpsc() -> (Self::MpscSender, Self::MpscReceiver) {
        mpsc::channel()
    }

    fn select(receivers: &[Self::Receiver]) -> u64 {
        let message = match receivers {
            [a, b] => select! {
                recv(a) -> message => message,
                recv(b) -> message => message,
            },
            [a, b, c, d, e, f, g, h] => select! {
                recv(a) -> message => message,
                recv(b) -> message => message,
                recv(c) -> message => message,
                recv(d) -> message => message,
                recv(e) -> message => message,
                recv(f) -> message => message,
                recv(g) -> message => message,
                recv(h) -> message => message,
            },
            _ => panic!("there are workloads for 2 and 8"),
        };
        message.expect("every channel has a message")
    }
}

/// Pins this thread, and the threads it starts, to its present CPU.
fn pin_to_one_cpu() -> io::Result<()> {
    // SAFETY: all zeros is an empty set of CPUs.
    let mut cpus: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the call takes no argument and touches no memory of ours.
    let cpu = unsafe { libc::sched_getcpu() };
    // SAFETY: the number of a CPU of this machine is within the set.
    unsafe { libc::CPU_SET(cpu as usize, &mut cpus) };
    // SAFETY: the kernel reads a set of that size in this frame.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&cpus), &cpus) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Sender for chan::Sender<u64> {
    fn send(&self, message: u64) -> bool {
        chan::Sender::send(self, message).is_ok()
    }
}

impl Receiver for chan::Receiver<u64> {
    fn recv(&self) -> Option<u64> {
        chan::Receiver::recv(self).ok()
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

threads::like_std!(Mutex, TcpListener, TcpStream);
