//! The workloads on smol: the crates that smol consists of, used as smol uses them.
//!
//! There is one executor for the process, run by `procs` threads inside async-io's `block_on`. It
//! uses async-channel, async-lock, event-listener, async-io's timers and sockets, and `blocking`
//! for calls that block.
//!
//! Its channels have a capacity of at least one, which stands for an unbuffered channel. A select
//! is a race of futures in random order.

use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_executor::{Executor, Task};
use async_io::{Async, Timer};
use async_lock::Mutex;
use event_listener::{Event, listener};
use futures_lite::future::race;
use futures_lite::{AsyncReadExt, AsyncWriteExt};

use crate::common::{MESSAGE, SPAN_FAR, ns_each, set_backlog};
use crate::http;
use crate::tasks::{Counter, Runtime, Signal};

pub struct Smol;

static EXECUTOR: Executor<'static> = Executor::new();

impl Runtime for Smol {
    type Handle<T: Send + 'static> = Task<T>;
    type Sender = async_channel::Sender<u64>;
    type Receiver = async_channel::Receiver<u64>;
    type FreeSender = async_channel::Sender<u64>;
    type FreeReceiver = async_channel::Receiver<u64>;
    type Counter = Mutex<usize>;
    type Signal = Latch;
    type Stream = Async<TcpStream>;

    const ROOM_MIN: usize = 1;

    fn start(procs: usize) {
        for _ in 0..procs {
            std::thread::spawn(|| async_io::block_on(EXECUTOR.run(pending::<()>())));
        }
    }

    fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> Task<T> {
        EXECUTOR.spawn(task)
    }

    fn detach(task: impl Future<Output = ()> + Send + 'static) {
        EXECUTOR.spawn(task).detach();
    }

    fn submit(task: impl Future<Output = ()> + Send + 'static) {
        Self::detach(task);
    }

    async fn join<T: Send + 'static>(handle: Task<T>) -> T {
        handle.await
    }

    fn is_finished<T: Send + 'static>(handle: &Task<T>) -> bool {
        handle.is_finished()
    }

    fn wait<T: Send + 'static>(handle: Task<T>) -> T {
        futures_lite::future::block_on(handle)
    }

    async fn yield_now() {
        futures_lite::future::yield_now().await;
    }

    async fn sleep(span: Duration) {
        Timer::after(span).await;
    }

    async fn blocking(call: fn()) {
        blocking::unblock(call).await;
    }

    fn bounded(room: usize) -> (Self::Sender, Self::Receiver) {
        async_channel::bounded(room)
    }

    fn unbounded() -> (Self::FreeSender, Self::FreeReceiver) {
        async_channel::unbounded()
    }

    async fn select_2([a, b]: &mut [Self::Receiver; 2]) -> u64 {
        let message = race(a.recv(), b.recv()).await;
        message.expect("every channel has a message")
    }

    async fn select_8([a, b, c, d, e, f, g, h]: &mut [Self::Receiver; 8]) -> u64 {
        let four = race(race(a.recv(), b.recv()), race(c.recv(), d.recv()));
        let others = race(race(e.recv(), f.recv()), race(g.recv(), h.recv()));
        let message = race(four, others).await;
        message.expect("every channel has a message")
    }

    /// The timer is polled once, so that setting it reaches the reactor.
    async fn timer_reset_ns(times: usize) -> f64 {
        let mut timer = Timer::after(SPAN_FAR);
        poll_fn(|context| {
            let is_pending = std::pin::Pin::new(&mut timer).poll(context).is_pending();
            assert!(is_pending, "it is far");
            Poll::Ready(())
        })
        .await;
        timer.clear();
        let start = Instant::now();
        for _ in 0..times {
            assert!(!timer.will_fire(), "it was stopped");
            timer.set_after(SPAN_FAR);
            assert!(timer.will_fire(), "it was set");
            timer.clear();
        }
        ns_each(start, times)
    }

    async fn serve_echo() -> io::Result<u16> {
        let listener = Async::<TcpListener>::bind((Ipv4Addr::LOCALHOST, 0))?;
        set_backlog(&listener)?;
        let port = listener.get_ref().local_addr()?.port();
        Self::detach(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => Self::detach(echo(stream)),
                    Err(error) => eprintln!("accept: {error}"),
                }
            }
        });
        Ok(port)
    }

    async fn connect(port: u16) -> io::Result<Async<TcpStream>> {
        Async::<TcpStream>::connect((Ipv4Addr::LOCALHOST, port)).await
    }

    async fn talk(mut stream: Self::Stream, times: usize) -> io::Result<()> {
        for time in 0..times {
            let message = [time as u8; MESSAGE];
            let mut answer = [0; MESSAGE];
            stream.write_all(&message).await?;
            stream.read_exact(&mut answer).await?;
            assert_eq!(answer, message, "the answer is another message");
        }
        Ok(())
    }

    async fn serve_http() -> io::Result<u16> {
        let listener = Async::<TcpListener>::bind((Ipv4Addr::LOCALHOST, 0))?;
        set_backlog(&listener)?;
        let port = listener.get_ref().local_addr()?.port();
        Self::detach(async move {
            loop {
                match listener.accept().await {
                    // A client's error ends its connection.
                    Ok((stream, _)) => Self::detach(async { _ = answer_all(stream).await }),
                    Err(error) => eprintln!("accept: {error}"),
                }
            }
        });
        Ok(port)
    }
}

async fn echo(mut stream: Async<TcpStream>) {
    let mut buffer = [0; 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

async fn answer_all(mut stream: Async<TcpStream>) -> io::Result<()> {
    stream.get_ref().set_nodelay(true)?;
    let mut buffer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match http::step(&mut buffer) {
            http::Step::More => match stream.read(&mut piece).await? {
                0 => return Ok(()),
                n => buffer.extend_from_slice(&piece[..n]),
            },
            http::Step::Answer(answer, keeps_alive) => {
                stream.write_all(&answer).await?;
                if !keeps_alive {
                    return Ok(());
                }
            }
        }
    }
}

impl Counter for Mutex<usize> {
    fn zero() -> Self {
        Mutex::new(0)
    }

    async fn count(&self) {
        *self.lock().await += 1;
    }

    async fn value(&self) -> usize {
        *self.lock().await
    }
}

/// A flag with an event, as event-listener's documentation uses it.
pub struct Latch {
    is_given: AtomicBool,
    event: Event,
}

impl Signal for Latch {
    fn new() -> Self {
        Latch {
            is_given: AtomicBool::new(false),
            event: Event::new(),
        }
    }

    async fn wait(&self) {
        loop {
            // ORDER: Acquire; pairs with Release in `give`.
            if self.is_given.swap(false, Ordering::Acquire) {
                return;
            }
            listener!(self.event => listener);
            // ORDER: Acquire; pairs with Release in `give`. `listener!` and `notify` have fences
            // between them and this flag.
            if self.is_given.swap(false, Ordering::Acquire) {
                return;
            }
            listener.await;
        }
    }

    fn give(&self) {
        // ORDER: Release; pairs with Acquire in `wait`.
        self.is_given.store(true, Ordering::Release);
        self.event.notify(1);
    }
}
