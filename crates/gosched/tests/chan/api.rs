//! What a channel promises apart from `select!`: errors and their texts, ends, iterators, sizes,
//! traits.
//!
//! The texts and the answers of special channels are those of crossbeam-channel 0.5.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::error::Error;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::common::{Alive, ms, within};
use gosched::chan::{
    IntoIter, Iter, ReadyTimeoutError, Receiver, RecvError, RecvTimeoutError, Select,
    SelectTimeoutError, SelectedOperation, SendError, SendTimeoutError, Sender, TryIter,
    TryReadyError, TryRecvError, TrySelectError, TrySendError, after, at, bounded, never, tick,
    unbounded,
};

/// One channel of each capacity that matters.
fn each<T>() -> [(Sender<T>, Receiver<T>); 4] {
    [bounded(0), bounded(1), bounded(3), unbounded()]
}

/// Runs `f` with a watchdog, once in a goroutine and once on a plain thread.
fn both(what: &str, f: impl Fn() + Send + Sync) {
    within(Duration::from_secs(60), what, || {
        f();
        gosched::run(f);
    });
}

/// Where to start something that runs at the same time: a goroutine, if this is one.
fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Box<dyn FnOnce() -> T> {
    if gosched::thread::current().id().goroutine().is_some() {
        let handle = gosched::thread::spawn(f);
        Box::new(|| handle.join().unwrap())
    } else {
        let handle = std::thread::spawn(f);
        Box::new(|| handle.join().unwrap())
    }
}

#[test]
fn errors_say_what_they_always_said() {
    #[track_caller]
    fn says(error: impl Error, debug: &str, display: &str) {
        assert_eq!(format!("{error:?}"), debug);
        assert_eq!(format!("{error}"), display);
        assert_eq!(format!("{error:>60}"), format!("{display:>60}"));
        assert!(error.source().is_none());
    }
    struct NoDebug;
    const SEND: &str = "sending on a disconnected channel";
    const RECV: &str = "receiving on an empty and disconnected channel";
    says(SendError(NoDebug), "\"SendError(..)\"", SEND);
    let full = TrySendError::Full(NoDebug);
    says(full, "\"Full(..)\"", "sending on a full channel");
    let gone = TrySendError::Disconnected(NoDebug);
    says(gone, "\"Disconnected(..)\"", SEND);
    let late = SendTimeoutError::Timeout(NoDebug);
    let text = "timed out waiting on send operation";
    says(late, "\"SendTimeoutError(..)\"", text);
    let gone = SendTimeoutError::Disconnected(NoDebug);
    says(gone, "\"SendTimeoutError(..)\"", SEND);
    says(RecvError, "RecvError", RECV);
    let text = "receiving on an empty channel";
    says(TryRecvError::Empty, "Empty", text);
    says(TryRecvError::Disconnected, "Disconnected", RECV);
    let text = "timed out waiting on receive operation";
    says(RecvTimeoutError::Timeout, "Timeout", text);
    let text = "channel is empty and disconnected";
    says(RecvTimeoutError::Disconnected, "Disconnected", text);
    let text = "all operations in select would block";
    says(TrySelectError, "TrySelectError", text);
    says(TryReadyError, "TryReadyError", text);
    let text = "timed out waiting on select";
    says(SelectTimeoutError, "SelectTimeoutError", text);
    says(ReadyTimeoutError, "ReadyTimeoutError", text);
}

#[test]
fn errors_give_the_message_back_and_tell_why() {
    let not_copy = || String::from("message");
    assert_eq!(SendError(not_copy()).into_inner(), not_copy());
    let full = TrySendError::Full(not_copy());
    assert!(full.is_full() && !full.is_disconnected());
    assert_eq!(full.into_inner(), not_copy());
    let gone = TrySendError::Disconnected(not_copy());
    assert!(!gone.is_full() && gone.is_disconnected());
    assert_eq!(gone.into_inner(), not_copy());
    let late = SendTimeoutError::Timeout(not_copy());
    assert!(late.is_timeout() && !late.is_disconnected());
    assert_eq!(late.into_inner(), not_copy());
    let gone = SendTimeoutError::Disconnected(not_copy());
    assert!(!gone.is_timeout() && gone.is_disconnected());
    assert_eq!(gone.into_inner(), not_copy());
    assert!(TryRecvError::Empty.is_empty() && !TryRecvError::Empty.is_disconnected());
    assert!(!TryRecvError::Disconnected.is_empty() && TryRecvError::Disconnected.is_disconnected());
    let (late, gone) = (RecvTimeoutError::Timeout, RecvTimeoutError::Disconnected);
    assert!(late.is_timeout() && !late.is_disconnected());
    assert!(!gone.is_timeout() && gone.is_disconnected());
}

#[test]
fn errors_convert_and_compare() {
    let gone = TrySendError::from(SendError(1));
    assert_eq!(gone, TrySendError::Disconnected(1));
    let gone = SendTimeoutError::from(SendError(1));
    assert_eq!(gone, SendTimeoutError::Disconnected(1));
    assert_eq!(TryRecvError::from(RecvError), TryRecvError::Disconnected);
    let gone = RecvTimeoutError::from(RecvError);
    assert_eq!(gone, RecvTimeoutError::Disconnected);
    assert_ne!(TrySendError::Full(1), TrySendError::Disconnected(1));
    assert_ne!(SendError(1), SendError(2));

    fn with_question_mark() -> Result<(), Box<dyn Error + Send + Sync>> {
        let (s, r) = unbounded();
        s.send(1)?;
        drop(r);
        s.send(2)?;
        Ok(())
    }
    let error = with_question_mark().unwrap_err();
    assert!(error.is::<SendError<i32>>());
}

#[test]
fn types_have_the_traits_of_crossbeams() {
    fn is_send_sync<T: Send + Sync>() {}
    fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
    fn is_copy<T: Copy + Eq>() {}
    fn is_fused<T: std::iter::FusedIterator>() {}
    fn is_unpin<T: Unpin + 'static>() {}
    is_send_sync::<Sender<Cell<i32>>>();
    is_send_sync::<Receiver<Cell<i32>>>();
    is_send_sync::<Iter<'_, Cell<i32>>>();
    is_send_sync::<TryIter<'_, Cell<i32>>>();
    is_send_sync::<IntoIter<Cell<i32>>>();
    is_send_sync::<Select<'_>>();
    is_unwind_safe::<Sender<Rc<RefCell<i32>>>>();
    is_unwind_safe::<Receiver<Rc<RefCell<i32>>>>();
    is_copy::<SendError<i32>>();
    is_copy::<TrySendError<i32>>();
    is_copy::<SendTimeoutError<i32>>();
    is_copy::<RecvError>();
    is_copy::<TryRecvError>();
    is_copy::<RecvTimeoutError>();
    is_copy::<TrySelectError>();
    is_copy::<SelectTimeoutError>();
    is_copy::<TryReadyError>();
    is_copy::<ReadyTimeoutError>();
    is_fused::<Iter<'_, i32>>();
    is_fused::<IntoIter<i32>>();
    is_unpin::<Sender<i32>>();
    is_unpin::<Receiver<std::marker::PhantomPinned>>();
    // A handle is a pointer, with room for None.
    assert_eq!(size_of::<Option<Sender<i32>>>(), size_of::<usize>());
    assert_eq!(size_of::<Receiver<i32>>(), size_of::<usize>());
}

#[test]
fn debug_shows_what_it_is() {
    let (s, r) = bounded(1);
    assert_eq!(format!("{s:?}"), "Sender { .. }");
    assert_eq!(format!("{r:?}"), "Receiver { .. }");
    assert_eq!(format!("{r:20?}"), "Receiver { .. }     ");
    assert_eq!(format!("{:?}", r.iter()), "Iter { .. }");
    assert_eq!(format!("{:?}", r.try_iter()), "TryIter { .. }");
    assert_eq!(format!("{:?}", r.clone().into_iter()), "IntoIter { .. }");
    let mut select = Select::new();
    assert_eq!(format!("{select:?}"), "Select { .. }");
    select.send(&s);
    let oper: SelectedOperation<'_> = select.select();
    assert_eq!(format!("{oper:?}"), "SelectedOperation { .. }");
    oper.send(&s, 1).unwrap();
}

#[test]
fn sizes() {
    for (s, r) in each() {
        let cap = s.capacity();
        assert_eq!(r.capacity(), cap);
        for n in 0..cap.unwrap_or(100) {
            assert_eq!((s.len(), r.len()), (n, n));
            assert_eq!((s.is_empty(), r.is_empty()), (n == 0, n == 0));
            assert!(!s.is_full() && !r.is_full());
            s.try_send(n).unwrap();
        }
        assert_eq!(s.is_full(), cap.is_some());
        assert_eq!(r.is_full(), cap.is_some());
        assert_eq!(s.try_send(7).is_err_and(|e| e.is_full()), cap.is_some());
        let mut left = s.len();
        while r.try_recv().is_ok() {
            left -= 1;
            assert_eq!((s.len(), r.len()), (left, left));
        }
        assert!(s.is_empty() && r.is_empty() && left == 0);
    }
    // Capacities that are no power of two, over many laps.
    for cap in 1..20 {
        let (s, r) = bounded(cap);
        for n in 0..200 {
            (0..cap).for_each(|k| s.try_send(n * cap + k).unwrap());
            assert_eq!((s.len(), s.is_full()), (cap, true));
            assert_eq!(s.try_send(0), Err(TrySendError::Full(0)));
            (0..cap).for_each(|k| assert_eq!(r.try_recv(), Ok(n * cap + k)));
            assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
        }
    }
}

#[test]
fn values_of_every_size_pass_whole() {
    fn passes<T: Clone + PartialEq + std::fmt::Debug>(value: T) {
        for (s, r) in each().into_iter().skip(1) {
            s.send(value.clone()).unwrap();
            assert_eq!(r.recv().as_ref(), Ok(&value));
        }
    }
    passes(());
    passes(1u8);
    passes([7u64; 100]);
    passes(Box::new(5));
    #[repr(align(128))]
    #[derive(Clone, PartialEq, Debug)]
    struct Aligned(u8);
    passes(Aligned(3));
    // Much more than a stack's worth in one block of an unbounded channel.
    let (s, r) = unbounded::<[u8; 40_000]>();
    s.send([9; 40_000]).unwrap();
    assert!(r.recv().unwrap().iter().all(|n| *n == 9));
}

#[test]
fn absurd_capacities_panic_and_say_so() {
    // The last one has a layout, but no allocator has the memory: 128 TB.
    for cap in [usize::MAX, usize::MAX / 2, usize::MAX / 8, 1 << 43] {
        let panic = catch_unwind(|| bounded::<u64>(cap)).unwrap_err();
        let text = panic.downcast_ref::<String>().expect("a text");
        assert!(text.contains(&format!("bounded({cap})")), "{text}");
        assert!(text.contains("smaller"), "{text}");
    }
}

#[test]
fn channels_know_their_own() {
    let (s, r) = unbounded::<i32>();
    let (s2, r2) = bounded::<i32>(1);
    assert!(s.same_channel(&s) && s.same_channel(&s.clone()) && !s.same_channel(&s2));
    assert!(r.same_channel(&r) && r.same_channel(&r.clone()) && !r.same_channel(&r2));
    assert!(never::<i32>().same_channel(&never()) && !never().same_channel(&r));
    let (one, other) = (after(ms(1)), after(ms(1)));
    assert!(one.same_channel(&one.clone()) && !one.same_channel(&other));
    let (one, other) = (tick(ms(1)), tick(ms(1)));
    assert!(one.same_channel(&one.clone()) && !one.same_channel(&other));
}

#[test]
fn the_last_of_a_side_ends_the_channel() {
    for (s, r) in each::<i32>() {
        let (s2, r2) = (s.clone(), r.clone());
        drop(s);
        assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
        drop(r);
        assert!(s2.try_send(1).is_ok() || s2.capacity() == Some(0));
        drop(s2);
        assert!(r2.recv().is_ok() || r2.capacity() == Some(0));
        assert_eq!(r2.try_recv(), Err(TryRecvError::Disconnected));
        assert_eq!(r2.recv(), Err(RecvError));
        let late = r2.recv_timeout(ms(1));
        assert_eq!(late, Err(RecvTimeoutError::Disconnected));
    }
    for (s, r) in each() {
        drop(r);
        assert_eq!(s.try_send(1), Err(TrySendError::Disconnected(1)));
        assert_eq!(s.send(2), Err(SendError(2)));
        let late = s.send_timeout(3, ms(1));
        assert_eq!(late, Err(SendTimeoutError::Disconnected(3)));
        let late = s.send_deadline(4, Instant::now());
        assert_eq!(late, Err(SendTimeoutError::Disconnected(4)));
    }
}

#[test]
fn messages_go_with_the_last_receiver() {
    let count = Arc::new(AtomicUsize::new(0));
    for (s, r) in each().into_iter().skip(1) {
        while !s.is_full() && s.len() < 100 {
            s.send(Alive::new(&count)).unwrap();
        }
        assert_eq!(count.load(SeqCst), s.len());
        drop(r);
        assert_eq!(count.load(SeqCst), 0);
        drop(s.send(Alive::new(&count)));
        assert_eq!(count.load(SeqCst), 0);
    }
}

#[test]
fn closing_gives_senders_theirs_back_and_lets_receivers_drain() {
    for by_sender in [true, false] {
        for (s, r) in each() {
            let had = s.capacity().unwrap_or(10).min(2);
            (0..had).for_each(|n| s.send(n).unwrap());
            let close = || if by_sender { s.close() } else { r.close() };
            assert!(close());
            assert!(!s.close() && !r.close() && !s.clone().close());
            assert_eq!(s.send(10), Err(SendError(10)));
            assert_eq!(s.try_send(11), Err(TrySendError::Disconnected(11)));
            let late = s.send_timeout(12, ms(1));
            assert_eq!(late, Err(SendTimeoutError::Disconnected(12)));
            assert_eq!((s.len(), r.len()), (had, had));
            (0..had).for_each(|n| assert_eq!(r.recv(), Ok(n)));
            assert_eq!(r.recv(), Err(RecvError));
            assert_eq!(r.try_recv(), Err(TryRecvError::Disconnected));
            assert_eq!(r.iter().next(), None);
        }
    }
}

#[test]
fn closing_ends_the_waiting_of_all() {
    both("senders that wait", || {
        for (s, r) in each().into_iter().take(3) {
            let cap = s.capacity().unwrap();
            (0..cap).for_each(|n| s.send(n).unwrap());
            let senders: Vec<_> = (100..108)
                .map(|n| {
                    let s = s.clone();
                    spawn(move || s.send(n))
                })
                .collect();
            spawn(move || assert!(s.close()))();
            let back = senders.into_iter().map(|join| join().unwrap_err().0);
            let back: HashSet<_> = back.collect();
            assert_eq!(back, (100..108).collect());
            assert_eq!(r.iter().collect::<Vec<_>>(), (0..cap).collect::<Vec<_>>());
        }
    });
    both("receivers that wait", || {
        for (s, r) in each::<i32>() {
            let receivers: Vec<_> = (0..8)
                .map(|_| {
                    let r = r.clone();
                    spawn(move || r.recv())
                })
                .collect();
            spawn(move || assert!(r.close()))();
            for join in receivers {
                assert_eq!(join(), Err(RecvError));
            }
            assert_eq!(s.send(1), Err(SendError(1)));
        }
    });
}

#[test]
fn dropping_a_side_ends_the_waiting_of_the_other() {
    both("those who wait", || {
        for (s, r) in each::<i32>() {
            let receiver = spawn(move || r.recv());
            drop(s);
            assert_eq!(receiver(), Err(RecvError));
        }
        let (s, r) = bounded(0);
        let sender = spawn(move || s.send(1));
        drop(r);
        assert_eq!(sender(), Err(SendError(1)));
        let (s, r) = bounded(1);
        s.send(1).unwrap();
        let sender = spawn(move || s.send(2));
        drop(r);
        assert_eq!(sender(), Err(SendError(2)));
    });
}

#[test]
fn channels_of_the_clock_cannot_be_closed() {
    let soon = Instant::now() + ms(1);
    for r in [after(ms(1)), at(soon), tick(ms(1))] {
        assert!(!r.close() && !r.close());
        assert!(r.recv().is_ok());
    }
    assert!(!never::<i32>().close());
    assert_eq!(never::<i32>().try_recv(), Err(TryRecvError::Empty));
}

#[test]
fn channels_of_the_clock_have_one_message() {
    for r in [after(Duration::ZERO), at(Instant::now()), tick(ms(1))] {
        assert!(crate::common::eventually(|| !r.is_empty()));
        assert_eq!((r.len(), r.is_full()), (1, true));
        assert_eq!(r.capacity(), Some(1));
    }
    let hour = Duration::from_secs(3600);
    for r in [after(hour), at(Instant::now() + hour), tick(hour)] {
        assert_eq!((r.len(), r.is_empty(), r.is_full()), (0, true, false));
        assert_eq!(r.capacity(), Some(1));
        assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(r.recv_timeout(ms(1)), Err(RecvTimeoutError::Timeout));
    }
    let once = after(Duration::ZERO);
    assert!(once.clone().recv().is_ok());
    assert_eq!(once.try_recv(), Err(TryRecvError::Empty));
    assert_eq!(once.recv_timeout(ms(1)), Err(RecvTimeoutError::Timeout));
}

#[test]
fn channels_of_the_clock_are_never_early_and_say_when_they_were_due() {
    both("the clock", || {
        let start = Instant::now();
        let when = after(ms(20)).recv().unwrap();
        assert!(when >= start + ms(20) && Instant::now() >= when);

        let when = Instant::now() + ms(20);
        assert_eq!(at(when).recv(), Ok(when));
        assert!(Instant::now() >= when);
        let past = Instant::now() - ms(5);
        assert_eq!(at(past).recv(), Ok(past));

        let start = Instant::now();
        let ticks = tick(ms(5));
        let first = ticks.recv().unwrap();
        assert!(first >= start + ms(5));
        let second = ticks.recv().unwrap();
        assert!(second >= first + ms(5));
        spawn(|| gosched::thread::sleep(ms(30)))();
        // One of those that were missed, then the next one: nothing piles up.
        let third = ticks.recv().unwrap();
        let fourth = ticks.recv().unwrap();
        assert!(third >= second + ms(5) && fourth >= third + ms(5));
        assert!(fourth >= second + ms(30));
        assert!(Instant::now() >= fourth);
    });
}

#[test]
fn never_is_a_constant_that_never_ends() {
    const NEVER: Receiver<String> = never();
    static SHARED: Receiver<i32> = never();
    assert_eq!((NEVER.len(), NEVER.capacity()), (0, Some(0)));
    assert!(NEVER.is_empty() && NEVER.is_full());
    assert_eq!(SHARED.try_recv(), Err(TryRecvError::Empty));
    both("never", || {
        let start = Instant::now();
        assert_eq!(SHARED.recv_timeout(ms(5)), Err(RecvTimeoutError::Timeout));
        let until = Instant::now() + ms(5);
        assert_eq!(SHARED.recv_deadline(until), Err(RecvTimeoutError::Timeout));
        assert!(start.elapsed() >= ms(10));
    });
    for r in [after(Duration::MAX), tick(Duration::MAX)] {
        assert_eq!(r.recv_timeout(ms(1)), Err(RecvTimeoutError::Timeout));
    }
}

#[test]
fn timeouts_are_not_early_and_may_be_for_ever() {
    both("timeouts", || {
        for (s, r) in each::<i32>() {
            let start = Instant::now();
            assert_eq!(r.recv_timeout(ms(10)), Err(RecvTimeoutError::Timeout));
            assert!(start.elapsed() >= ms(10));
            let until = Instant::now() + ms(10);
            assert_eq!(r.recv_deadline(until), Err(RecvTimeoutError::Timeout));
            assert!(Instant::now() >= until);
            let past = Instant::now() - ms(10);
            assert_eq!(r.recv_deadline(past), Err(RecvTimeoutError::Timeout));
            while s.try_send(0).is_ok() && s.len() < 3 {}
            if s.is_full() {
                let start = Instant::now();
                let late = s.send_timeout(1, ms(10));
                assert_eq!(late, Err(SendTimeoutError::Timeout(1)));
                assert!(start.elapsed() >= ms(10));
                let until = Instant::now() + ms(10);
                let late = s.send_deadline(2, until);
                assert_eq!(late, Err(SendTimeoutError::Timeout(2)));
                assert!(Instant::now() >= until);
            }
        }
        let (s, r) = bounded(0);
        let sender = spawn(move || s.send_timeout(7, Duration::MAX));
        assert_eq!(r.recv_timeout(Duration::MAX), Ok(7));
        assert_eq!(sender(), Ok(()));
        let far = Instant::now() + Duration::from_secs(100 * 365 * 86_400);
        let (s, r) = bounded(0);
        let sender = spawn(move || s.send_deadline(8, far));
        assert_eq!(r.recv_deadline(far), Ok(8));
        assert_eq!(sender(), Ok(()));
    });
}

#[test]
fn iterators_end_with_the_channel() {
    both("iterators", || {
        for (s, r) in each() {
            let sender = spawn(move || (0..10).for_each(|n| s.send(n).unwrap()));
            let mut seen = Vec::new();
            for n in &r {
                seen.push(n);
                if n == 4 {
                    break;
                }
            }
            seen.extend(r.iter().take(2));
            let mut rest = r.into_iter();
            seen.extend(rest.by_ref());
            assert_eq!(seen, (0..10).collect::<Vec<_>>());
            assert_eq!((rest.next(), rest.next()), (None, None));
            sender();
        }
    });
}

#[test]
fn try_iterators_take_what_is_there() {
    let (s, r) = bounded(4);
    let mut now = r.try_iter();
    assert_eq!(now.next(), None);
    (0..3).for_each(|n| s.send(n).unwrap());
    assert_eq!(now.by_ref().collect::<Vec<_>>(), [0, 1, 2]);
    s.send(3).unwrap();
    drop(s);
    assert_eq!(now.next(), Some(3));
    assert_eq!(now.next(), None);
}

#[test]
fn handles_may_be_dropped_while_others_wait() {
    both("clones", || {
        let (s, r) = bounded::<usize>(1);
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let (s, r) = (s.clone(), r.clone());
                spawn(move || {
                    for n in 0..200 {
                        s.clone().send(n).unwrap();
                        r.clone().recv().unwrap();
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|join| join());
        assert!(s.is_empty());
        drop(s);
        assert_eq!(r.recv(), Err(RecvError));
    });
}

#[test]
fn channels_pass_through_channels() {
    both("channels in channels", || {
        let (s, r) = bounded(0);
        let answerer = spawn(move || {
            r.iter()
                .for_each(|(n, answer): (i32, Sender<i32>)| answer.send(n * n).unwrap());
        });
        for n in 0..100 {
            let (answer_s, answer) = bounded(0);
            s.send((n, answer_s)).unwrap();
            assert_eq!(answer.recv(), Ok(n * n));
            assert_eq!(answer.recv(), Err(RecvError)); // its sender went with the answer
        }
        drop(s);
        answerer();
    });
}

/// A message that uses its own channel when it goes.
struct Sends(Sender<Sends>, u32);

impl Drop for Sends {
    fn drop(&mut self) {
        if self.1 > 0 {
            // Whether it gets in or comes back, this one goes the same way.
            drop(self.0.try_send(Sends(self.0.clone(), self.1 - 1)));
            self.0.close();
            let _ = (self.0.len(), self.0.is_full(), self.0.clone());
        }
    }
}

#[test]
fn a_selected_operation_is_completed_with_any_handle_of_its_channel() {
    for (s, r) in each().into_iter().skip(1) {
        let mut select = Select::new();
        select.send(&s);
        select.select().send(&s.clone(), 1).unwrap();
        let mut select = Select::new();
        select.recv(&r);
        assert_eq!(select.select().recv(&r.clone()), Ok(1));

        // But not with another channel's.
        let (other_s, other_r) = unbounded();
        let mut select = Select::new();
        select.send(&s);
        let oper = AssertUnwindSafe(select.select());
        let panic = catch_unwind(|| { oper }.0.send(&other_s, 2)).unwrap_err();
        let text = "passed a sender that wasn't selected";
        assert_eq!(panic.downcast_ref(), Some(&text));
        assert_eq!(r.try_recv(), Err(TryRecvError::Empty));
        s.send(3).unwrap();
        let mut select = Select::new();
        select.recv(&r);
        let oper = AssertUnwindSafe(select.select());
        let panic = catch_unwind(|| { oper }.0.recv(&other_r)).unwrap_err();
        let text = "passed a receiver that wasn't selected";
        assert_eq!(panic.downcast_ref(), Some(&text));
    }
}

#[test]
fn destructors_of_messages_may_use_the_channel() {
    both("destructors", || {
        for (s, r) in each().into_iter().skip(1) {
            s.send(Sends(s.clone(), 3)).unwrap();
            drop(r);
            drop(s);
        }
    });
}

#[test]
fn a_destructor_that_panics_does_so_once() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("a destructor's panic");
        }
    }
    for sender_first in [true, false] {
        for (s, r) in each().into_iter().skip(2) {
            let s = std::mem::ManuallyDrop::new(s);
            s.send(Bomb).unwrap();
            s.send(Bomb).unwrap();
            if sender_first {
                drop(std::mem::ManuallyDrop::into_inner(s));
            }
            let panic = catch_unwind(AssertUnwindSafe(|| drop(r))).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"a destructor's panic"));
        }
    }
}
