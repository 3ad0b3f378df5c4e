//! 20,000 goroutines blocked at once, on a few threads.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Barrier, Condvar, Mutex, OnceLock, mpsc};
use std::thread;

use crate::common::{child, ms, thread_count, until};

const MANY: usize = 20_000;
const THREADS: usize = 32;

/// On a busy machine goroutines are preempted, and each of them keeps a thread until its next turn.
/// These tests count the threads that blocked goroutines hold.
fn without_preemption() -> gosched::Runtime {
    gosched::Runtime::builder()
        .preemption(false)
        .build()
        .unwrap()
}

/// Starts goroutines that count themselves, then block in `body`; waits until all have begun.
fn start(body: impl Fn(usize) + Send + Sync + 'static) -> Vec<gosched::thread::JoinHandle<()>> {
    let begun = Arc::new(AtomicUsize::new(0));
    let body = Arc::new(body);
    let all = (0..MANY)
        .map(|n| {
            let (begun, body) = (Arc::clone(&begun), Arc::clone(&body));
            gosched::thread::spawn(move || {
                begun.fetch_add(1, SeqCst);
                body(n);
            })
        })
        .collect();
    until(|| begun.load(SeqCst) == MANY);
    // Each of them is blocked, or on its way.
    until(|| gosched::debug::metrics().waiting as usize >= MANY);
    gosched::thread::sleep(ms(20));
    assert!(thread_count() < THREADS, "{} threads", thread_count());
    all
}

fn join(all: Vec<gosched::thread::JoinHandle<()>>) {
    all.into_iter().for_each(|g| g.join().unwrap());
    assert!(thread_count() < THREADS, "{} threads", thread_count());
}

#[test]
fn many_in_a_condvar() {
    let done = child("many_in_a_condvar", || {
        without_preemption().run(|| {
            let flag = Arc::new((Mutex::new(false), Condvar::new()));
            let all = start({
                let flag = Arc::clone(&flag);
                move |_| drop(flag.1.wait_while(flag.0.lock().unwrap(), |set| !*set))
            });
            *flag.0.lock().unwrap() = true;
            flag.1.notify_all();
            join(all);
        });
    });
    done.succeeded();
}

#[test]
fn many_at_a_barrier() {
    let done = child("many_at_a_barrier", || {
        without_preemption().run(|| {
            let barrier = Arc::new(Barrier::new(MANY + 1));
            let all = start({
                let barrier = Arc::clone(&barrier);
                move |_| {
                    barrier.wait();
                }
            });
            barrier.wait();
            join(all);
        });
    });
    done.succeeded();
}

#[test]
fn many_in_channels() {
    let done = child("many_in_channels", || {
        without_preemption().run(|| {
            let (senders, receivers): (Vec<_>, Vec<_>) = (0..MANY).map(|_| mpsc::channel()).unzip();
            let receivers = Mutex::new(receivers.into_iter().map(Some).collect::<Vec<_>>());
            let all = start(move |n| {
                let receiver = receivers.lock().unwrap()[n].take().unwrap();
                assert_eq!(receiver.recv(), Ok(n));
            });
            for (n, sender) in senders.iter().enumerate() {
                sender.send(n).unwrap();
            }
            join(all);
        });
    });
    done.succeeded();
}

#[test]
fn many_parked() {
    let done = child("many_parked", || {
        without_preemption().run(|| {
            let handles = Arc::new(Mutex::new(Vec::new()));
            let is_over = Arc::new(AtomicUsize::new(0));
            let all = start({
                let (handles, is_over) = (Arc::clone(&handles), Arc::clone(&is_over));
                move |_| {
                    handles.lock().unwrap().push(thread::current());
                    while is_over.load(SeqCst) == 0 {
                        thread::park();
                    }
                }
            });
            is_over.store(1, SeqCst);
            handles
                .lock()
                .unwrap()
                .iter()
                .for_each(thread::Thread::unpark);
            join(all);
        });
    });
    done.succeeded();
}

#[test]
fn many_at_a_once_lock() {
    let done = child("many_at_a_once_lock", || {
        without_preemption().run(|| {
            let cell = Arc::new((OnceLock::new(), Mutex::new(())));
            let gate = Arc::clone(&cell);
            let gate = gate.1.lock().unwrap();
            let all = start({
                let cell = Arc::clone(&cell);
                move |_| {
                    let value = cell.0.get_or_init(|| {
                        drop(cell.1.lock().unwrap());
                        7
                    });
                    assert_eq!(*value, 7);
                }
            });
            drop(gate);
            join(all);
        });
    });
    done.succeeded();
}
