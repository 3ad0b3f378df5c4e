//! A tokio program gives work to goroutines and awaits it; goroutines wait for messages of tokio's
//! tasks.
//!
//! The two runtimes run side by side: neither runs the other's code, and neither blocks the other.
//! Goroutines do the work that computes for long or blocks. Meanwhile tokio's tasks continue, with
//! all features of tokio; here its timers.
//!
//! Run with `cargo run --example tokio_bridge`.

use std::time::Duration;

use gosched::{Runtime, future, thread};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

/// On a thread of tokio, with goroutines on others.
#[tokio::main(flavor = "current_thread")]
pub async fn main() {
    let goroutines = Runtime::builder().procs(2).build().expect("a runtime");
    await_goroutines(&goroutines).await;
    give_up_waiting(&goroutines).await;
    talk(&goroutines).await;
    println!("all is done");
}

/// A goroutine's handle is a future: here for tokio's tasks and for `join!`.
async fn await_goroutines(goroutines: &Runtime) {
    let primes = goroutines.spawn(|| (2..2000u32).filter(|n| is_prime(*n)).count());
    let blocked = goroutines.spawn(|| {
        // a blocking call, which a tokio task should not make
        std::thread::sleep(Duration::from_millis(20));
        "slept"
    });
    let ticks = tokio::spawn(async {
        for _ in 0..3 {
            sleep(Duration::from_millis(2)).await;
        }
        3
    });
    let (primes, blocked, ticks) = tokio::join!(primes, blocked, ticks);
    assert_eq!((primes.unwrap(), blocked.unwrap()), (303, "slept"));
    assert_eq!(ticks.unwrap(), 3);
    let exits = goroutines.spawn(|| gosched::goexit());
    assert!(exits.await.is_err(), "as after a panic");
}

fn is_prime(n: u32) -> bool {
    (2..)
        .take_while(|d| d * d <= n)
        .all(|d| !n.is_multiple_of(d))
}

/// tokio's timer limits the wait for a goroutine. The goroutine continues, and can be awaited
/// again.
async fn give_up_waiting(goroutines: &Runtime) {
    let (go_on, wait) = gosched::chan::bounded(0);
    let mut slow = goroutines.spawn(move || wait.recv().unwrap());
    assert!(timeout(Duration::from_millis(5), &mut slow).await.is_err());
    let sends = goroutines.spawn(move || go_on.send("late").unwrap());
    assert_eq!(slow.await.unwrap(), "late");
    sends.await.unwrap();
}

/// Goroutines wait for tokio's channels: for the next order, or for an answer.
async fn talk(goroutines: &Runtime) {
    let (orders, mut ordered) = mpsc::channel::<(u64, oneshot::Sender<u64>)>(4);
    let clerk = goroutines.spawn(move || {
        let mut served = 0;
        while let Some((n, answer)) = future::block_on(ordered.recv()) {
            let squares = thread::spawn(move || n * n);
            answer
                .send(squares.join().unwrap())
                .expect("the sender waits for it");
            served += 1;
        }
        served
    });
    let customers = (0..20u64).map(|n| {
        let orders = orders.clone();
        tokio::spawn(async move {
            let (answer, answered) = oneshot::channel();
            orders.send((n, answer)).await.expect("the clerk is there");
            assert_eq!(answered.await, Ok(n * n));
        })
    });
    for customer in customers.collect::<Vec<_>>() {
        customer.await.unwrap();
    }
    drop(orders);
    assert_eq!(clerk.await.unwrap(), 20);
}
