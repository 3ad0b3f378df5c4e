//! Many threads at once, and a crate that starts threads.

#[cfg(feature = "net")]
use std::io::{Read, Write};
#[cfg(feature = "net")]
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
#[cfg(feature = "sync")]
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use crate::common::{child, thread_count, until};

#[test]
fn twenty_thousand_sleeping_threads_hold_few_of_the_system() {
    const THREADS: usize = 20_000;
    let ended = child(
        "twenty_thousand_sleeping_threads_hold_few_of_the_system",
        || {
            gosched::run(|| {
                let begun = Arc::new(AtomicUsize::new(0));
                let go = Arc::new(AtomicUsize::new(0));
                let threads: Vec<_> = (0..THREADS)
                    .map(|n| {
                        let (begun, go) = (begun.clone(), go.clone());
                        thread::spawn(move || {
                            begun.fetch_add(1, SeqCst);
                            while go.load(SeqCst) == 0 {
                                thread::sleep(Duration::from_millis(500));
                            }
                            n
                        })
                    })
                    .collect();
                until(|| begun.load(SeqCst) == THREADS);
                let most = thread_count();
                go.store(1, SeqCst);
                let sum: usize = threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .sum();
                assert_eq!(sum, THREADS * (THREADS - 1) / 2);
                assert!(most < 32, "{most} threads");
            });
        },
    );
    ended.succeeded();
}

#[cfg(feature = "net")]
/// A server as std's documentation has it.
fn serve(listener: TcpListener) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        thread::spawn(move || {
            let mut block = [0; 512];
            loop {
                match stream.read(&mut block).unwrap() {
                    0 => break,
                    n => stream.write_all(&block[..n]).unwrap(),
                }
            }
        });
    }
}

#[cfg(feature = "net")]
#[test]
fn a_thread_for_each_connection_holds_none() {
    const CONNECTIONS: usize = 3_000;
    let ended = child("a_thread_for_each_connection_holds_none", || {
        gosched::run(|| {
            raise_descriptor_limit();
            let addrs: Vec<_> = (0..4)
                .map(|_| {
                    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                    let addr = listener.local_addr().unwrap();
                    thread::spawn(move || serve(listener));
                    addr
                })
                .collect();
            let here = Arc::new(AtomicUsize::new(0));
            let go = Arc::new(AtomicUsize::new(0));
            let clients: Vec<_> = (0..CONNECTIONS)
                .map(|n| {
                    let (here, go, addr) = (here.clone(), go.clone(), addrs[n % addrs.len()]);
                    thread::spawn(move || {
                        let mut stream = TcpStream::connect(addr).unwrap();
                        let mut say = |text: String| {
                            stream.write_all(text.as_bytes()).unwrap();
                            let mut back = vec![0; text.len()];
                            stream.read_exact(&mut back).unwrap();
                            assert_eq!(back, text.as_bytes());
                        };
                        say(format!("hello from {n}"));
                        here.fetch_add(1, SeqCst);
                        while go.load(SeqCst) == 0 {
                            thread::sleep(Duration::from_millis(100));
                        }
                        say(format!("{n} again"));
                    })
                })
                .collect();
            until(|| here.load(SeqCst) == CONNECTIONS);
            let most = thread_count();
            go.store(1, SeqCst);
            clients
                .into_iter()
                .for_each(|client| client.join().unwrap());
            assert!(most < 32, "{most} threads");
        });
    });
    ended.succeeded();
}

#[cfg(feature = "net")]
/// Both ends of every connection are in this process.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes the limit, and then reads it.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}

#[test]
fn rayons_pool_of_threads_is_one_of_goroutines() {
    fn sum(numbers: &[u64]) -> u64 {
        if numbers.len() < 50 {
            return numbers.iter().sum();
        }
        let (left, right) = numbers.split_at(numbers.len() / 2);
        let (left, right) = rayon_core::join(|| sum(left), || sum(right));
        left + right
    }
    gosched::run(|| {
        let goroutines = Arc::new(AtomicUsize::new(0));
        let its = goroutines.clone();
        let pool = rayon_core::ThreadPoolBuilder::new()
            .num_threads(6)
            .thread_name(|n| format!("worker {n}"))
            .start_handler(move |_| {
                _ = its.fetch_add(usize::from(gosched::hook::is_goroutine()), SeqCst)
            })
            .build()
            .unwrap();
        let numbers: Vec<u64> = (0..20_000).collect();
        assert_eq!(pool.install(|| sum(&numbers)), 199_990_000);
        let mut ends = [0; 100];
        pool.scope(|scope| {
            for end in &mut ends {
                scope.spawn(move |_| *end += 1);
            }
        });
        assert_eq!(ends, [1; 100]);
        until(|| goroutines.load(SeqCst) == 6);
    });
}

#[test]
fn records_are_used_again() {
    gosched::run(|| {
        for _ in 0..200 {
            let threads: Vec<_> = (0..50).map(|n| thread::spawn(move || n)).collect();
            let sum: u32 = threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .sum();
            assert_eq!(sum, 1_225);
        }
    });
}

#[cfg(feature = "sync")]
#[test]
fn threads_that_wait_in_stds_locks_hold_none() {
    const THREADS: usize = 5_000;
    let ended = child("threads_that_wait_in_stds_locks_hold_none", || {
        gosched::run(|| {
            let begun = Arc::new(AtomicUsize::new(0));
            let lock = Arc::new(Mutex::new(0));
            let held = lock.lock().unwrap();
            let (sender, receiver) = mpsc::channel::<()>();
            let receiver = Arc::new(Mutex::new(receiver));
            let start = |n: usize| {
                let (begun, lock, receiver) = (begun.clone(), lock.clone(), receiver.clone());
                thread::spawn(move || {
                    begun.fetch_add(1, SeqCst);
                    match n % 3 {
                        0 => thread::park(),
                        1 => *lock.lock().unwrap() += 1,
                        _ => assert!(receiver.lock().unwrap().recv().is_err()),
                    }
                })
            };
            let threads: Vec<_> = (0..THREADS).map(start).collect();
            until(|| begun.load(SeqCst) == THREADS);
            let most = thread_count();
            drop((held, sender));
            for waiting in threads {
                waiting.thread().unpark();
                waiting.join().unwrap();
            }
            assert!(most < 32, "{most} threads");
        });
    });
    ended.succeeded();
}
