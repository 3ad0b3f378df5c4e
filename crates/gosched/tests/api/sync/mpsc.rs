//! `gosched::sync::mpsc`: each body is a program for `std::sync::mpsc`. It runs with std's channels
//! on threads, with ours in goroutines, and with ours on plain threads. Only the `use` lines differ.
//! All three see the same.

#![allow(unused_imports)] // every body uses some of it

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::common::{self, LONG};

/// A test whose body sees `mpsc` and `thread` of std or of this crate, and returns what it has seen.
macro_rules! same {
    ($( $(#[$doc:meta])* fn $name:ident() -> Vec<String> $body:block )*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                mod of_std {
                    use super::imports::*;
                    use std::sync::mpsc::{self, *};
                    use std::thread;
                    pub fn body() -> Vec<String> $body
                }
                mod goroutines {
                    use super::imports::*;
                    use gosched::sync::mpsc::{self, *};
                    use gosched::thread;
                    pub fn body() -> Vec<String> $body
                }
                mod plain_threads {
                    use super::imports::*;
                    use gosched::sync::mpsc::{self, *};
                    use std::thread;
                    pub fn body() -> Vec<String> $body
                }
                let what = stringify!($name);
                let expected = common::within(LONG, "std", of_std::body);
                for procs in [1, 2] {
                    let seen = common::run(procs, what, goroutines::body);
                    assert_eq!(seen, expected, "goroutines, {procs} Ps");
                }
                let plain = common::within(LONG, what, plain_threads::body);
                assert_eq!(plain, expected, "plain threads");
            }
        )*
    };
}

mod imports {
    pub(super) use super::{Counted, LIVE_LOCK};
    pub use crate::common::{HOUR, ms};
    pub use std::fmt::Debug;
    pub use std::sync::Arc;
    pub use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    pub use std::time::{Duration, Instant};

    pub fn say(value: impl Debug) -> String {
        format!("{value:?}")
    }
}

/// A message that counts how many of its kind are alive.
pub(super) struct Counted(std::sync::Arc<AtomicUsize>);

impl Counted {
    pub(super) fn new(alive: &std::sync::Arc<AtomicUsize>) -> Counted {
        alive.fetch_add(1, SeqCst);
        Counted(std::sync::Arc::clone(alive))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// How often a loop looks for a state that another thread reaches.
pub(super) const LIVE_LOCK: std::time::Duration = std::time::Duration::from_micros(100);

same! {
    /// Every name of the module, in the places where programs use them.
    fn a_program_compiles_after_a_change_of_its_use_line() -> Vec<String> {
        struct Pool<T> {
            jobs: SyncSender<T>,
            results: Receiver<Result<T, String>>,
        }
        fn start<T: Send + Clone + 'static>(f: fn(T) -> T, n: usize) -> Pool<T> {
            let (jobs, work): (SyncSender<T>, Receiver<T>) = sync_channel(n);
            let (report, results): (Sender<Result<T, String>>, Receiver<_>) = channel();
            thread::spawn(move || -> Result<(), SendError<Result<T, String>>> {
                for job in work {
                    report.send(Ok(f(job)))?;
                }
                report.send(Err("no more".to_owned()))
            });
            Pool { jobs, results }
        }
        fn wait<T>(from: &mpsc::Receiver<T>) -> Result<T, Box<dyn std::error::Error>> {
            match from.try_recv() {
                Ok(value) => Ok(value),
                Err(TryRecvError::Empty) => Ok(from.recv_timeout(HOUR)?),
                Err(error @ TryRecvError::Disconnected) => Err(error.into()),
            }
        }
        fn offer<T: Send + 'static>(to: &SyncSender<T>, job: T) -> Result<(), TrySendError<T>> {
            match to.try_send(job) {
                Err(TrySendError::Full(job)) => to.send(job).map_err(TrySendError::from),
                other => other,
            }
        }
        let Pool { jobs, results } = start(|n: u32| n * 2, 2);
        let mut seen = Vec::new();
        for n in 0..10 {
            seen.push(say(offer(&jobs.clone(), n)));
        }
        drop(jobs);
        seen.push(say(wait(&results).unwrap()));
        let mut some: Iter<'_, _> = results.iter();
        seen.push(say((some.next(), some.by_ref().nth(2))));
        let all: IntoIter<_> = results.into_iter();
        seen.extend(all.map(say));

        let (sender, receiver) = channel();
        let mut none: TryIter<'_, i32> = receiver.try_iter();
        seen.push(say(none.next()));
        drop(sender);
        seen.push(wait(&receiver).unwrap_err().to_string());
        let lost: RecvTimeoutError = receiver.recv().unwrap_err().into();
        let gone: TryRecvError = RecvError.into();
        seen.push(say((lost, gone)));
        seen
    }

    /// A channel of one word, of no bytes, of a box, of a large value.
    fn any_type_goes_through() -> Vec<String> {
        let mut seen = Vec::new();
        macro_rules! through {
            ($($value:expr),*) => {$(
                let (sender, receiver) = channel();
                sender.send($value).unwrap();
                seen.push(say(receiver.recv()));
                let (sender, receiver) = sync_channel(1);
                sender.send($value).unwrap();
                seen.push(say(receiver.recv()));
                let (sender, receiver) = sync_channel(0);
                let other = thread::spawn(move || sender.send($value).is_ok());
                seen.push(say(receiver.recv()));
                seen.push(say(other.join().unwrap()));
            )*};
        }
        through!(7_u64, (), Box::new("boxed"), [3_u8; 5000], "text", Some(String::from("s")));
        seen
    }

    /// What was sent before the last sender went is received; only then comes the error.
    fn what_was_sent_outlives_the_senders() -> Vec<String> {
        let (sender, receiver) = channel();
        let (bounded, from) = sync_channel(3);
        for n in 0..3 {
            sender.send(n).unwrap();
            bounded.send(n).unwrap();
        }
        drop((sender, bounded));
        let mut seen = Vec::new();
        for receiver in [receiver, from] {
            seen.push(say(receiver.recv()));
            seen.push(say(receiver.recv_timeout(Duration::ZERO)));
            seen.push(say(receiver.try_recv()));
            seen.push(say((receiver.recv(), receiver.recv_timeout(HOUR), receiver.try_recv())));
            seen.push(say((receiver.iter().next(), receiver.try_iter().next())));
        }
        seen
    }

    /// Messages in the channel are dropped with the receiver, not with the senders.
    fn a_dropped_receiver_drops_what_is_left() -> Vec<String> {
        let alive = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = channel();
        let (bounded, from) = sync_channel(100);
        for _ in 0..100 {
            sender.send(Counted::new(&alive)).unwrap();
            bounded.send(Counted::new(&alive)).unwrap();
        }
        let mut seen = vec![say(alive.load(SeqCst))];
        drop(receiver);
        seen.push(say(alive.load(SeqCst)));
        drop(from);
        seen.push(say(alive.load(SeqCst)));
        // A refused message is the sender's again.
        let SendError(refused) = sender.send(Counted::new(&alive)).err().unwrap();
        seen.push(say(alive.load(SeqCst)));
        drop(refused);
        assert!(matches!(bounded.try_send(Counted::new(&alive)), Err(TrySendError::Disconnected(_))));
        assert!(bounded.send(Counted::new(&alive)).is_err());
        seen.push(say(alive.load(SeqCst)));
        seen
    }

    /// A message that carries its own channel's sender does not keep the channel.
    fn a_channel_in_itself() -> Vec<String> {
        struct Message {
            _sender: Sender<Message>,
            _counted: Counted,
        }
        let alive = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = channel();
        for _ in 0..3 {
            let (_sender, _counted) = (sender.clone(), Counted::new(&alive));
            sender.send(Message { _sender, _counted }).unwrap();
        }
        drop(sender);
        let mut seen = vec![say(receiver.recv().is_ok()), say(alive.load(SeqCst))];
        drop(receiver);
        seen.push(say(alive.load(SeqCst)));
        seen
    }

    /// Without room, `try_send` is refused while no receiver waits, and goes to one that does.
    fn a_rendezvous() -> Vec<String> {
        let (sender, receiver) = sync_channel(0);
        let mut seen = vec![say(sender.try_send(1)), say(receiver.try_recv())];
        seen.push(say(receiver.recv_timeout(Duration::ZERO)));
        let waits = thread::spawn(move || (receiver.recv(), receiver));
        let mut tried = sender.try_send(2);
        while tried == Err(TrySendError::Full(2)) {
            thread::sleep(LIVE_LOCK);
            tried = sender.try_send(2);
        }
        let (received, receiver) = waits.join().unwrap();
        seen.push(say((tried, received)));
        // A sender that waits: its send ends once the message is received.
        let is_sent = Arc::new(AtomicUsize::new(0));
        let other = {
            let is_sent = Arc::clone(&is_sent);
            thread::spawn(move || {
                sender.send(3).unwrap();
                is_sent.store(1, SeqCst);
                sender.send(4)
            })
        };
        let mut first = receiver.try_recv();
        while first == Err(TryRecvError::Empty) {
            assert_eq!(is_sent.load(SeqCst), 0, "a send without a receiver has ended");
            thread::sleep(LIVE_LOCK);
            first = receiver.try_recv();
        }
        seen.push(say(first));
        drop(receiver); // the sender waits, or will find it gone
        seen.push(say(other.join().unwrap()));
        seen
    }

    /// A full channel makes a sender wait until the receiver takes one, or goes.
    fn a_full_channel() -> Vec<String> {
        let (sender, receiver) = sync_channel(2);
        let mut seen: Vec<_> = (0..3).map(|n| say(sender.try_send(n))).collect();
        let others: Vec<_> = (10..13)
            .map(|n| {
                let sender = sender.clone();
                thread::spawn(move || sender.send(n))
            })
            .collect();
        seen.extend((0..2).map(|_| say(receiver.recv())));
        let mut late: Vec<_> = (0..3).map(|_| receiver.recv().unwrap()).collect();
        late.sort_unstable();
        seen.push(say(late));
        seen.extend(others.into_iter().map(|one| say(one.join().unwrap())));

        let full = (0..2).try_for_each(|n| sender.send(n));
        let waits = thread::spawn(move || sender.send(9));
        thread::sleep(ms(5)); // it waits by now, as a rule; the result is the same if not
        drop(receiver);
        seen.push(say((full, waits.join().unwrap())));
        seen
    }

    /// The last sender ends a receive that waits, whatever the kind of wait.
    fn the_last_sender_ends_the_waits() -> Vec<String> {
        let mut seen = Vec::new();
        for kind in 0..3 {
            let (sender, receiver) = channel::<i32>();
            let clone = sender.clone();
            let waits = thread::spawn(move || match kind {
                0 => say(receiver.recv()),
                1 => say(receiver.recv_timeout(HOUR)),
                _ => say(receiver.into_iter().collect::<Vec<_>>()),
            });
            thread::sleep(ms(5));
            drop(sender);
            thread::sleep(ms(5));
            assert!(!waits.is_finished(), "a clone is left");
            drop(clone);
            seen.push(waits.join().unwrap());
        }
        seen
    }

    /// A timeout is not early, and the channel works afterwards.
    fn timeouts() -> Vec<String> {
        let (sender, receiver) = channel();
        let began = Instant::now();
        let mut seen = vec![say(receiver.recv_timeout(ms(20)))];
        assert!(began.elapsed() >= ms(20));
        sender.send(1).unwrap();
        seen.push(say(receiver.recv_timeout(ms(20))));
        sender.send(2).unwrap();
        seen.push(say(receiver.recv_timeout(Duration::ZERO)));
        seen.push(say(receiver.recv_timeout(Duration::ZERO)));
        let other = thread::spawn(move || sender.send(3));
        seen.push(say(receiver.recv_timeout(Duration::MAX)));
        other.join().unwrap().unwrap();
        seen.push(say(receiver.recv_timeout(Duration::MAX)));
        seen
    }

    /// Every message of many senders arrives once, those of one sender in order.
    fn many_senders() -> Vec<String> {
        const SENDERS: usize = 8;
        const EACH: usize = 500;
        let mut seen = Vec::new();
        let check = |receiver: Receiver<(usize, usize)>| {
            let mut next = [0; SENDERS];
            for (who, n) in receiver {
                assert_eq!(n, next[who], "in order");
                next[who] += 1;
            }
            say(next)
        };
        let (sender, receiver) = channel();
        for who in 0..SENDERS {
            let sender = sender.clone();
            thread::spawn(move || (0..EACH).for_each(|n| sender.send((who, n)).unwrap()));
        }
        drop(sender);
        seen.push(check(receiver));
        for bound in [0, 1, 7] {
            let (sender, receiver) = sync_channel(bound);
            for who in 0..SENDERS {
                let sender = sender.clone();
                thread::spawn(move || (0..EACH).for_each(|n| sender.send((who, n)).unwrap()));
            }
            drop(sender);
            seen.push(check(receiver));
        }
        seen
    }

    /// A shared sender, by reference: `Sender` and `SyncSender` are `Sync`.
    fn senders_are_shared() -> Vec<String> {
        let (sender, receiver) = channel();
        let (bounded, from) = sync_channel(1);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| sender.send(1).unwrap());
                scope.spawn(|| bounded.send(1).unwrap());
            }
            assert_eq!((0..4).map(|_| from.recv().unwrap()).sum::<i32>(), 4);
        });
        drop((sender, bounded));
        vec![say(receiver.iter().sum::<i32>()), say(from.iter().sum::<i32>())]
    }

    /// A receiver moves to another thread between two receives.
    fn a_receiver_moves() -> Vec<String> {
        let (sender, receiver) = channel();
        sender.send(1).unwrap();
        let first = receiver.recv();
        let other = thread::spawn(move || (receiver.recv(), receiver.try_recv()));
        sender.send(2).unwrap();
        vec![say((first, other.join().unwrap()))]
    }

    /// `Debug` shows neither messages nor addresses, in one line or many.
    fn debug_texts() -> Vec<String> {
        let (sender, receiver) = channel::<i32>();
        let (bounded, _from) = sync_channel::<i32>(1);
        sender.send(1).unwrap();
        let mut seen = vec![say((&sender, &bounded, &receiver)), format!("{receiver:#?}")];
        seen.push(say((receiver.iter(), receiver.try_iter())));
        seen.push(say(receiver.into_iter()));
        seen
    }

    /// Messages that go round between two threads, one at a time.
    fn there_and_back() -> Vec<String> {
        let (to, there) = sync_channel(0);
        let (back, from) = channel();
        thread::spawn(move || there.iter().for_each(|n: u64| back.send(n + 1).unwrap()));
        let mut n = 0;
        for _ in 0..500 {
            to.send(n).unwrap();
            n = from.recv().unwrap();
        }
        vec![say(n)]
    }
}

/// Goroutines and plain threads use the two ends of one channel.
#[test]
fn goroutines_and_plain_threads_share_a_channel() {
    use gosched::sync::mpsc::{channel, sync_channel};
    let (to, there) = sync_channel(0);
    let (back, from) = channel();
    let echo =
        std::thread::spawn(move || there.into_iter().for_each(|n: u64| back.send(n).unwrap()));
    let sum = common::run(2, "an echo by a plain thread", move || {
        let sums = (1..=200).map(|n| {
            to.send(n).unwrap();
            from.recv().unwrap()
        });
        sums.sum::<u64>()
    });
    assert_eq!(sum, 20_100);
    echo.join().unwrap();
}

/// Many goroutines that wait in channels hold no threads.
#[test]
fn waiting_goroutines_hold_no_threads() {
    use gosched::sync::mpsc::{channel, sync_channel};
    let name = "mpsc::waiting_goroutines_hold_no_threads";
    let output = common::child(name, || {
        common::run(2, "waits", || {
            let waits: Vec<_> = (0..500)
                .map(|n| {
                    let (sender, receiver) = channel::<()>();
                    let (bounded, from) = sync_channel(0);
                    let one = gosched::thread::spawn(move || receiver.recv().is_err());
                    let other = gosched::thread::spawn(move || bounded.send(n).is_ok());
                    (sender, from, one, other)
                })
                .collect();
            common::until(|| gosched::debug::metrics().waiting >= 1000);
            let threads = common::thread_count();
            assert!(threads <= 32, "{threads} threads");
            for (n, (sender, from, one, other)) in waits.into_iter().enumerate() {
                drop(sender);
                assert_eq!(from.recv(), Ok(n));
                assert!(one.join().unwrap() && other.join().unwrap());
            }
        });
    });
    output.succeeded();
}

/// Two goroutines that wait for each other's messages are a deadlock like any other.
#[test]
fn a_deadlock_is_reported() {
    use gosched::sync::mpsc::channel;
    let output = common::child("mpsc::a_deadlock_is_reported", || {
        gosched::run(|| {
            let (_sender, receiver) = channel::<()>();
            _ = receiver.recv();
        });
    });
    output.says(&["all goroutines are asleep - deadlock!", "chan receive"]);
    assert_eq!(output.code(), 2, "{output:#?}");
}

#[test]
fn handles_unwind_as_stds() {
    fn check<T: UnwindSafe + RefUnwindSafe>() {}
    type Payload = std::cell::Cell<&'static mut u8>;
    check::<std::sync::mpsc::Sender<Payload>>();
    check::<std::sync::mpsc::SyncSender<Payload>>();
    check::<std::sync::mpsc::Receiver<Payload>>();
    check::<gosched::sync::mpsc::Sender<Payload>>();
    check::<gosched::sync::mpsc::SyncSender<Payload>>();
    check::<gosched::sync::mpsc::Receiver<Payload>>();
}
