//! The workloads on tokio: its multi-threaded runtime, its own channels, locks, timers and sockets,
//! and hyper for HTTP.
//!
//! Its channels have a capacity of at least one, which stands for an unbuffered channel. For many
//! receivers its users take async-channel (see `tasks::messages`).

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task::JoinHandle;

use crate::common::{MESSAGE, SPAN_FAR, ns_each, set_backlog};
use crate::http::HELLO;
use crate::tasks::{Counter, Receiver, Runtime, Sender, Signal};

pub struct Tokio;

static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();

fn runtime() -> &'static tokio::runtime::Runtime {
    RUNTIME.get().expect("it is started first")
}

impl Runtime for Tokio {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Sender = mpsc::Sender<u64>;
    type Receiver = mpsc::Receiver<u64>;
    type FreeSender = mpsc::UnboundedSender<u64>;
    type FreeReceiver = mpsc::UnboundedReceiver<u64>;
    type Counter = Mutex<usize>;
    type Signal = Notify;
    type Stream = TcpStream;

    const ROOM_MIN: usize = 1;

    fn start(procs: usize) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(procs)
            .enable_all()
            .build();
        let runtime = runtime.expect("threads and an epoll are to be had");
        RUNTIME.set(runtime).expect("it is started once");
        // From now on the main thread spawns as well, until the process ends.
        std::mem::forget(self::runtime().enter());
    }

    fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        tokio::spawn(task)
    }

    fn detach(task: impl Future<Output = ()> + Send + 'static) {
        drop(Self::spawn(task));
    }

    fn submit(task: impl Future<Output = ()> + Send + 'static) {
        drop(runtime().handle().spawn(task));
    }

    async fn join<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        handle.await.expect("a task does not panic")
    }

    fn is_finished<T: Send + 'static>(handle: &JoinHandle<T>) -> bool {
        handle.is_finished()
    }

    fn wait<T: Send + 'static>(handle: JoinHandle<T>) -> T {
        runtime().block_on(handle).expect("a task does not panic")
    }

    async fn yield_now() {
        tokio::task::yield_now().await;
    }

    async fn sleep(span: Duration) {
        tokio::time::sleep(span).await;
    }

    async fn blocking(call: fn()) {
        let call = tokio::task::spawn_blocking(call);
        call.await.expect("it does not panic");
    }

    fn bounded(room: usize) -> (Self::Sender, Self::Receiver) {
        mpsc::channel(room)
    }

    fn unbounded() -> (Self::FreeSender, Self::FreeReceiver) {
        mpsc::unbounded_channel()
    }

    async fn select_2([a, b]: &mut [Self::Receiver; 2]) -> u64 {
        let message = tokio::select! {
            message = a.recv() => message,
            message = b.recv() => message,
        };
        message.expect("every channel has a message")
    }

    async fn select_8([a, b, c, d, e, f, g, h]: &mut [Self::Receiver; 8]) -> u64 {
        let message = tokio::select! {
            message = a.recv() => message,
            message = b.recv() => message,
            message = c.recv() => message,
            message = d.recv() => message,
            message = e.recv() => message,
            message = f.recv() => message,
            message = g.recv() => message,
            message = h.recv() => message,
        };
        message.expect("every channel has a message")
    }

    /// A timer of tokio is set by its first poll and stopped by its drop.
    async fn timer_reset_ns(times: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..times {
            let mut timer = pin!(tokio::time::sleep(SPAN_FAR));
            poll_fn(|context| {
                assert!(timer.as_mut().poll(context).is_pending(), "it is far");
                Poll::Ready(())
            })
            .await;
        }
        ns_each(start, times)
    }

    async fn serve_echo() -> io::Result<u16> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        set_backlog(&listener)?;
        let port = listener.local_addr()?.port();
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(echo(stream))),
                    Err(error) => eprintln!("accept: {error}"),
                }
            }
        });
        Ok(port)
    }

    async fn connect(port: u16) -> io::Result<TcpStream> {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await
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
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        set_backlog(&listener)?;
        let port = listener.local_addr()?.port();
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(answer_all(stream))),
                    Err(error) => eprintln!("accept: {error}"),
                }
            }
        });
        Ok(port)
    }
}

async fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

/// A connection's task; a client's error ends it.
async fn answer_all(stream: TcpStream) {
    if stream.set_nodelay(true).is_err() {
        return;
    }
    let server = hyper::server::conn::http1::Builder::new();
    let _ = server
        .serve_connection(TokioIo::new(stream), service_fn(answer))
        .await;
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match (request.method().as_str(), request.uri().path()) {
        ("GET", "/" | "/hello") => (200, HELLO),
        _ => (404, "nothing here\n"),
    };
    let response = Response::builder()
        .status(status)
        .header("content-type", "text/plain")
        .body(Full::new(Bytes::from_static(body.as_bytes())));
    Ok(response.expect("its parts are right"))
}

impl Sender for mpsc::Sender<u64> {
    async fn send(&self, message: u64) -> bool {
        mpsc::Sender::send(self, message).await.is_ok()
    }
}

impl Receiver for mpsc::Receiver<u64> {
    async fn recv(&mut self) -> Option<u64> {
        mpsc::Receiver::recv(self).await
    }
}

impl Sender for mpsc::UnboundedSender<u64> {
    async fn send(&self, message: u64) -> bool {
        mpsc::UnboundedSender::send(self, message).is_ok()
    }
}

impl Receiver for mpsc::UnboundedReceiver<u64> {
    async fn recv(&mut self) -> Option<u64> {
        mpsc::UnboundedReceiver::recv(self).await
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

impl Signal for Notify {
    fn new() -> Self {
        Notify::new()
    }

    async fn wait(&self) {
        self.notified().await;
    }

    fn give(&self) {
        self.notify_one();
    }
}
