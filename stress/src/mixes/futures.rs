//! Futures: goroutines wait for them, and they for goroutines. Wakers are called from everywhere,
//! once, often, or late.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use gosched::future::block_on;
use gosched::thread::{Exited, JoinHandle};

use crate::env::{Actor, Place, Planned};
use crate::ledger::{Token, lock};

pub fn root(a: &mut Actor) {
    while !a.over() {
        match a.rng.below(4) {
            0 => shots(a),
            1 => awaits(a),
            2 => executor(a),
            _ => outside(a),
        }
        a.op();
        a.nap();
    }
}

/// A value that comes once, and the waker of its waiter.
#[derive(Default)]
struct Shot(Mutex<(Option<Token>, Option<Waker>)>);

impl Shot {
    fn set(&self, token: Token) {
        let waker = {
            let mut shot = lock(&self.0);
            shot.0 = Some(token);
            shot.1.take()
        };
        if let Some(waker) = waker {
            waker.wake_by_ref();
            waker.wake(); // once more than needed
        }
    }

    /// Wakes the waiter without a value.
    fn tease(&self) {
        let waker = lock(&self.0).1.clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct Shooting(Arc<Shot>);

impl Future for Shooting {
    type Output = Token;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Token> {
        let mut shot = lock(&self.0.0);
        match shot.0.take() {
            Some(token) => Poll::Ready(token),
            None => {
                shot.1 = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Values from goroutines and threads, one after another, in one future.
fn shots(a: &mut Actor) {
    let shots: Vec<_> = (0..a.rng.few(8))
        .map(|_| Arc::new(Shot::default()))
        .collect();
    let mut handles = Vec::new();
    let mut set = Vec::new();
    for shot in shots {
        let (sets, token) = (Arc::clone(&shot), a.token());
        let is_thread = a.rng.one_in(4);
        let place = if is_thread {
            Place::Thread
        } else {
            Place::Same
        };
        let handle = a.start(place, move |a| {
            a.nap();
            sets.tease();
            a.nap();
            sets.set(token);
        });
        if handle.is_some() || is_thread {
            set.push(shot);
        }
        handles.push(handle);
    }
    block_on(async {
        for shot in set {
            Shooting(shot).await.check();
        }
    });
    a.join_all(handles);
}

/// Checks what a goroutine returned to its awaiter.
fn judge(a: &Actor, n: u64, answer: std::thread::Result<(u64, Token)>) {
    let is_ending = a.env.is_ending.load(SeqCst);
    match answer {
        Ok((value, token)) => {
            token.check();
            a.expect(value == n, "an awaited value is wrong");
        }
        Err(payload) if payload.is::<Planned>() => {
            a.expect(n.is_multiple_of(8), "an unplanned panic")
        }
        Err(payload) => {
            let is_exit = payload.is::<Exited>();
            a.expect(
                is_exit && (n % 8 == 1 || is_ending),
                "awaited one that exited",
            );
        }
    }
}

fn start(a: &mut Actor, place: Place, n: u64) -> Option<JoinHandle<(u64, Token)>> {
    let token = a.token();
    a.start(place, move |a| {
        a.nap();
        match n % 8 {
            0 => std::panic::panic_any(Planned),
            1 => gosched::goexit(),
            _ => (n, token),
        }
    })
}

/// Handles awaited in turn, some polled with another waker first, some dropped.
fn awaits(a: &mut Actor) {
    for n in 0..a.rng.few(16) as u64 {
        let place = match a.place() {
            Place::Thread => Place::Same,
            place => place,
        };
        let Some(mut handle) = start(a, place, n) else {
            continue;
        };
        let mut cx = Context::from_waker(Waker::noop());
        if a.rng.one_in(3)
            && let Poll::Ready(answer) = pin!(&mut handle).poll(&mut cx)
        {
            judge(a, n, answer);
            continue;
        }
        match a.rng.below(4) {
            0 => drop(handle),
            1 => judge(a, n, handle.join()),
            _ => judge(a, n, block_on(handle)),
        }
    }
}

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A queue of tasks to poll.
struct Queue(Mutex<VecDeque<usize>>, gosched::chan::Sender<()>);

struct Entry(Arc<Queue>, usize);

impl Wake for Entry {
    fn wake(self: Arc<Entry>) {
        lock(&self.0.0).push_back(self.1);
        let _ = self.0.1.try_send(());
    }
}

/// A small executor, on a goroutine or a thread.
fn execute(mut tasks: Vec<Option<Task>>) {
    let (wake, woken) = gosched::chan::bounded(1);
    let queue = Arc::new(Queue(Mutex::new((0..tasks.len()).collect()), wake));
    let mut left = tasks.len();
    while left > 0 {
        let next = lock(&queue.0).pop_front();
        let Some(at) = next else {
            let _ = woken.recv();
            continue;
        };
        let Some(task) = &mut tasks[at] else { continue };
        let waker = Waker::from(Arc::new(Entry(Arc::clone(&queue), at)));
        if task
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            tasks[at] = None;
            left -= 1;
        }
    }
}

fn tasks(a: &mut Actor, place: Place) -> Vec<Option<Task>> {
    let mut tasks = Vec::new();
    for n in 0..a.rng.few(12) as u64 {
        let Some(handle) = start(a, place, n) else {
            continue;
        };
        let judges = Actor {
            env: Arc::clone(&a.env),
            mix: a.mix,
            rng: a.rng.clone(),
        };
        let task: Task = Box::pin(async move { judge(&judges, n, handle.await) });
        tasks.push(Some(task));
    }
    tasks
}

fn executor(a: &mut Actor) {
    let place = if a.rng.one_in(2) {
        Place::Same
    } else {
        Place::There
    };
    let tasks = tasks(a, place);
    execute(tasks);
}

/// A plain thread awaits goroutines.
fn outside(a: &mut Actor) {
    a.thread(|a| {
        let place = if a.rng.one_in(2) {
            Place::Here
        } else {
            Place::There
        };
        if a.rng.one_in(2) {
            let tasks = tasks(a, place);
            return execute(tasks);
        }
        for n in 0..a.rng.few(6) as u64 {
            if let Some(handle) = start(a, place, n) {
                judge(a, n, block_on(handle));
            }
        }
    });
    gosched::thread::sleep(a.rng.micros(1000));
}
