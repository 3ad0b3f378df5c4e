//! The drop of a runtime: against a sender to a goroutine that waits there, and against a select's
//! send of a goroutine that runs there (D2, G4).
//!
//! The receiver runs on with the message; or it is abandoned and the message can be received by
//! another. In the latter case no receiver was claimed for it, or it was taken back: by the sender,
//! which found the runtime dead, or by the drop, which found the goroutine Runnable. The channels,
//! their queues and the word of the wait are the library's; `sched.rs` has `ready`, the scheduler's
//! lock and the drop.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use super::actors::{Msg, channel, go_in, plain, select_give_up, select_send};
use super::{Calm, explore};
use crate::chan::{Select, resettable};
use crate::current::pointer;
use crate::sched::Sched;
use crate::sched::model::g::G;
use crate::sched::teardown::drop_runtime;
use crate::thread::let_time_pass;

/// One receiver in the runtime that ends, and a later one. The first keeps its handle, as an
/// abandoned goroutine does.
fn drop_beside_a_send(cap: Option<usize>) {
    explore(Some(2), move || {
        let (s, r) = channel(cap);
        let g = Arc::new(G::of(Some(Arc::new(Sched::mortal()))));
        let receiver = {
            let r = ManuallyDrop::new(r.clone());
            go_in(&g, move || r.recv().map_or(0, Msg::open))
        };
        let dropper = {
            let g = g.clone();
            plain(move || drop_runtime(pointer(&g)))
        };
        // Without capacity there may be no receiver to take it, or none any more.
        let mut left = s.try_send(Msg::new(1)).err().map(|e| e.into_inner().open());
        dropper.join();
        if left.is_none() {
            left = r.try_recv().ok().map(Msg::open);
        }
        drop((s, r));
        g.end.wakeup();
        let got = receiver.join().unwrap_or(0);
        assert!(
            (left, got) == (Some(1), 0) || (left, got) == (None, 1),
            "D2: one has the message: {left:?} is left, it got {got}"
        );
    });
}

/// Explored: the claim before the drop begins, beside it and after it; the goroutine made ready
/// before, beside and after; the drop's load of the status before and after that. Fails if the
/// claim does not skip the dead, if the waker does not look under the scheduler's lock, if the drop
/// does not look at Runnable goroutines, or if two threads take the message back.
#[test]
fn d2_a_message_is_not_lost_in_a_drop() {
    drop_beside_a_send(Some(0));
}

#[test]
fn d2_a_message_in_a_buffer_is_not_lost_in_a_drop() {
    drop_beside_a_send(Some(1));
    drop_beside_a_send(None);
}

/// Another receiver waits: the message goes there.
#[test]
fn d2_a_message_goes_to_the_next_receiver() {
    explore(Some(1), || {
        let (s, r) = channel(Some(0));
        let g = Arc::new(G::of(Some(Arc::new(Sched::mortal()))));
        let first = {
            let r = ManuallyDrop::new(r.clone());
            go_in(&g, move || r.recv().map_or(0, Msg::open))
        };
        let dropper = {
            let g = g.clone();
            plain(move || drop_runtime(pointer(&g)))
        };
        let next = plain(move || r.recv().map_or(0, Msg::open));
        assert!(s.send(Msg::new(1)).is_ok());
        dropper.join();
        drop(s);
        let next = next.join();
        g.end.wakeup();
        let got = (first.join().unwrap_or(0), next);
        assert!(got == (1, 0) || got == (0, 1), "D2: {got:?}");
    });
}

/// The runtime of a goroutine ends while a select of the goroutine has an open send. Explored: the
/// drop before, beside and after the choice and the completion. Fails if both of them have the
/// promise, or neither; or if the record goes while the drop uses it.
#[test]
fn d2_an_open_send_is_kept_or_refused() {
    explore(Some(2), || {
        let (s, r) = channel(Some(1));
        let g = Arc::new(G::of(Some(Arc::new(Sched::mortal()))));
        let sender = {
            let s = ManuallyDrop::new(s.clone());
            go_in(&g, move || select_send(&s, 1))
        };
        let dropper = {
            let g = g.clone();
            plain(move || drop_runtime(pointer(&g)))
        };
        dropper.join();
        g.end.wakeup();
        assert_eq!(sender.join(), Some(true), "there is room");
        assert_eq!(r.try_recv().map_or(0, Msg::open), 1);
        assert!(s.try_send(Msg::new(2)).is_ok(), "the place is free");
        assert_eq!(r.try_recv().map_or(0, Msg::open), 2);
        drop((s, r));
    });
}

/// The same without capacity. The receiver has the message; or it is woken to look again and finds
/// the goroutine, or the end.
#[test]
fn d2_the_receiver_of_an_open_send_looks_again() {
    explore(Some(2), || {
        let (s, r) = channel(Some(0));
        let g = Arc::new(G::of(Some(Arc::new(Sched::mortal()))));
        let sender = {
            let s = ManuallyDrop::new(s.clone());
            go_in(&g, move || select_send(&s, 1))
        };
        let receiver = plain(move || r.recv().map_or(0, Msg::open));
        drop_runtime(pointer(&g));
        s.close();
        drop(s);
        let got = receiver.join();
        g.end.wakeup();
        let sent = sender.join() == Some(true);
        assert_eq!(sent, got == 1, "D2: it got {got}");
    });
}

/// The goroutine gives its send up beside the drop. Either it refuses the promise, or it waits
/// where it is abandoned, and the drop refuses it.
#[test]
fn d2_an_open_send_is_refused_once() {
    for waits in [false, true] {
        explore(Some(2), move || {
            let (s, r) = channel(Some(1));
            let g = Arc::new(G::of(Some(Arc::new(Sched::mortal()))));
            let sender = {
                let s = ManuallyDrop::new(s.clone());
                let never = ManuallyDrop::new(channel(Some(0)));
                go_in(&g, move || {
                    if !waits {
                        return select_give_up(&s);
                    }
                    let mut select = Select::new();
                    select.send(&s);
                    let oper = ManuallyDrop::new(select.select());
                    drop(never.1.recv());
                    drop(ManuallyDrop::into_inner(oper));
                })
            };
            drop_runtime(pointer(&g));
            g.end.wakeup();
            sender.join();
            assert!(s.try_send(Msg::new(2)).is_ok(), "the place is free");
            assert_eq!(r.try_recv().map_or(0, Msg::open), 2);
            drop((s, r));
        });
    }
}

/// Two receivers wait for a timer, one of them in a runtime that ends. Explored: the drop before,
/// beside and after both waits begin, and the time that passes before, beside and after the drop.
/// Fails if the receiver that stays sleeps on as the second in the queue.
#[test]
fn d2_a_timer_is_left_to_the_next_receiver() {
    explore(Some(2), || {
        let timer = Calm::new(resettable(1, 0));
        let g = Arc::new(G::of(Some(Arc::new(Sched::mortal()))));
        let first = {
            let timer = ManuallyDrop::new(timer.clone());
            go_in(&g, move || {
                assert!(timer.recv().is_ok());
                timer.set_clock(Some(1), 0); // one more, for the other one
                1
            })
        };
        let next = {
            let timer = timer.clone();
            plain(move || u32::from(timer.recv().is_ok()))
        };
        let dropper = {
            let g = g.clone();
            plain(move || drop_runtime(pointer(&g)))
        };
        let_time_pass();
        dropper.join();
        assert_eq!(next.join(), 1);
        drop(timer);
        g.end.wakeup();
        first.join();
    });
}
