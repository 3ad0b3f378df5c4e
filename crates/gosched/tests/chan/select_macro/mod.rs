//! Every form that `select!` and `select_biased!` take, and what is evaluated when.
//!
//! All of it on plain threads, except the last tests: the macros write the same for both.

#![deny(warnings)]
#![deny(unsafe_code)] // what the macros write is safe
// The bodies and channels are roundabout on purpose.
#![allow(clippy::identity_op, clippy::let_and_return, clippy::never_loop)]
#![allow(clippy::manual_unwrap_or, clippy::manual_unwrap_or_default)]
#![allow(clippy::redundant_closure, clippy::redundant_closure_call)]
#![allow(clippy::unnecessary_literal_unwrap)]

mod places;

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::ms;
use gosched::chan::{
    Receiver, RecvError, SendError, Sender, after, bounded, never, select, select_biased, tick,
    unbounded,
};

/// A channel with messages in it.
fn filled<T>(messages: impl IntoIterator<Item = T>) -> (Sender<T>, Receiver<T>) {
    let (s, r) = unbounded();
    messages.into_iter().for_each(|msg| drop(s.send(msg)));
    (s, r)
}

#[test]
fn an_arm_alone() {
    let (s, r) = bounded(1);
    select! { send(s, 1) -> res => assert_eq!(res, Ok(())) }
    select! { recv(r) -> msg => assert_eq!(msg, Ok(1)), }
    assert_eq!(select! { default => 2 }, 2);
    assert_eq!(select! { default() => 3, }, 3);
    assert_eq!(select! { default(ms(1)) => { 4 } }, 4);
    assert_eq!(select_biased! { default(ms(1),) => { 5 }, }, 5);
}

#[test]
fn an_arm_and_a_default() {
    let (s, r) = bounded(1);
    let got = select! { recv(r) -> msg => msg.ok(), default => None };
    assert_eq!(got, None);
    let got = select! { recv(r) -> msg => msg.ok(), default(ms(1)) => None };
    assert_eq!(got, None);
    let sent = select! { send(s, 1) -> res => res.is_ok(), default => false };
    assert!(sent);
    let sent = select! { send(s, 2) -> res => res.is_ok(), default(ms(1)) => false };
    assert!(!sent);
    let got = select! { recv(r) -> msg => msg.ok(), default => None };
    assert_eq!(got, Some(1));
    drop(s);
    let got = select! { recv(r) -> msg => Some(msg), default => None };
    assert_eq!(got, Some(Err(RecvError)));
    let got = select! { recv(r) -> msg => Some(msg), default(ms(1)) => None };
    assert_eq!(got, Some(Err(RecvError)));
}

#[test]
fn errors_arrive_in_arms() {
    let (s, r) = bounded::<i32>(0);
    let (dead_s, dead_r) = (s, never::<i32>());
    drop(r);
    select! {
        send(dead_s, 5) -> res => assert_eq!(res, Err(SendError(5))),
        recv(dead_r) -> _ => unreachable!(),
    }
    let (_, r) = bounded::<i32>(0);
    select! {
        recv(r) -> msg => assert_eq!(msg, Err(RecvError)),
        recv(dead_r) -> _ => unreachable!(),
    }
}

#[test]
fn commas_and_their_absence() {
    let (s, r) = filled([1; 16]);
    // Blocks without commas, an expression last.
    select! {
        recv(r) -> _ => {}
        send(s, 1) -> _ => {}
        default => ()
    }
    // Blocks with commas, a block last.
    select! {
        recv(r) -> _ => {},
        send(s, 1) -> _ => {},
        default => {}
    }
    // Commas everywhere, in the argument lists too.
    select! {
        recv(r,) -> _ => (),
        send(s, 1,) -> _ => (),
        default(ms(1),) => (),
    }
    // One of each.
    select! {
        recv(r) -> _ => (),
        send(s, 1) -> _ => {}
        recv(r) -> _ => {},
        default => ()
    }
    // On one line.
    select! { recv(r) -> _ => {} recv(r) -> _ => (), default => () }
}

#[test]
fn the_default_stands_anywhere() {
    let (s, r) = unbounded::<i32>();
    for msg in [None, Some(1)] {
        let fill = || msg.into_iter().for_each(|msg| s.send(msg).unwrap());
        fill();
        let first = || select! { default => None, recv(r) -> msg => msg.ok(), recv(never::<()>()) -> _ => None };
        let middle = || select! { recv(never::<()>()) -> _ => None, default() => None, recv(r) -> msg => msg.ok() };
        let timed = || select! { recv(never::<()>()) -> _ => None, default(ms(1)) => None, recv(r) -> msg => msg.ok() };
        for take in [&first as &dyn Fn() -> Option<i32>, &middle, &timed] {
            assert_eq!(take(), msg);
            fill();
        }
    }
}

#[test]
fn bodies_of_every_kind() {
    let (_s, r) = filled(1..100);
    let mut n = 0;
    for _ in 0..40 {
        n += select! {
            recv(r) -> msg => msg.unwrap(),
            recv(r) -> msg => { let n = msg.unwrap(); n }
            recv(r) -> msg => if let Ok(n) = msg { n } else { 0 },
            recv(r) -> msg => match msg { Ok(n) => n, Err(_) => 0 },
            recv(r) -> msg => { msg.unwrap() } + 0,
            recv(r) -> msg => loop { break msg.unwrap() },
            recv(r) -> msg => (|| msg.unwrap())(),
            recv(r) -> msg => vec![msg.unwrap()][0],
            recv(r) -> msg => i32::from(msg.is_ok()) * { msg.unwrap() },
            recv(r) -> msg => 'block: { break 'block msg.unwrap() }
        };
    }
    assert_eq!(n, (1..=40).sum());
}

#[test]
fn patterns_of_every_kind() {
    let (s, r) = filled((0..8).map(|n| (n, n.to_string())));
    let other = never::<()>();
    select! { recv(r) -> _ => {}, recv(other) -> _ => {} }
    select! { recv(r) -> msg => assert_eq!(msg.unwrap().0, 1), recv(other) -> _ => {} }
    select! { recv(r) -> mut msg => { msg = Err(RecvError); assert!(msg.is_err()) } recv(other) -> _ => {} }
    select! { recv(r) -> ref msg => assert_eq!(msg.as_ref().unwrap().1, "3"), recv(other) -> _ => {} }
    select! { recv(r) -> whole @ (Ok(_) | Err(_)) => assert!(whole.is_ok()), recv(other) -> _ => {} }
    select! { recv(r) -> (Ok(_) | Err(RecvError)) => {}, default => {} }
    select! { send(s, (9, String::new())) -> (Ok(()) | Err(SendError((..)))) => {}, recv(other) -> _ => {} }
    // The name of the channel may be that of the message.
    select! { recv(r) -> r => assert!(r.is_ok()), recv(other) -> _ => {} }
}

/// Something that leads to a channel.
struct Wrap<C>(C);

impl<C> Deref for Wrap<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

#[test]
fn channels_of_every_kind() {
    let (s, r) = filled([(); 200]);
    let (mut s2, mut r2) = (s.clone(), r.clone());
    let both = (s.clone(), r.clone());
    let boxed = (Box::new(s.clone()), Box::new(r.clone()));
    let shared = (Rc::new(s.clone()), Arc::new(r.clone()));
    let wrapped = (Wrap(s.clone()), Wrap(Wrap(r.clone())));
    let list = [r.clone(), never()];
    let some = Some(&r);
    for _ in 0..100 {
        select! {
            recv(r) -> _ => {}
            recv(&r) -> _ => {}
            recv(&&&&r) -> _ => {}
            recv(&mut r2) -> _ => {}
            recv((r)) -> _ => {}
            recv({ &r }) -> _ => {}
            recv(both.1) -> _ => {}
            recv(*boxed.1) -> _ => {}
            recv(boxed.1) -> _ => {}
            recv(shared.1) -> _ => {}
            recv(wrapped.1) -> _ => {}
            recv(list[0]) -> _ => {}
            recv(some.unwrap()) -> _ => {}
            recv(some.unwrap_or(&never())) -> _ => {}
            recv(r.clone()) -> _ => {}
            recv((move || never::<i32>())()) -> _ => {}
            recv(after(ms(1_000_000))) -> _ => {}
            recv(tick(Duration::MAX)) -> _ => {}
            send(s, ()) -> _ => {}
            send(&s, ()) -> _ => {}
            send(&&&s, ()) -> _ => {}
            send(&mut s2, ()) -> _ => {}
            send(both.0, ()) -> _ => {}
            send(*boxed.0, ()) -> _ => {}
            send(shared.0, ()) -> _ => {}
            send(wrapped.0, ()) -> _ => {}
            send(s.clone(), ()) -> _ => {}
            send(if s.is_empty() { &s } else { &both.0 }, ()) -> _ => {}
        }
    }
}

#[test]
fn channels_that_are_moved_in() {
    let (s, r) = filled([1]);
    select! {
        recv((move || r)()) -> msg => assert_eq!(msg, Ok(1)),
        recv(never::<()>()) -> _ => {}
    }
    select! {
        send(Some(s).unwrap(), 2) -> res => assert_eq!(res, Err(SendError(2))),
        recv(never::<()>()) -> _ => {}
    }
}

#[test]
fn types_are_inferred_from_what_follows() {
    let (s, r) = unbounded();
    select! {
        recv(r) -> _ => unreachable!(),
        default => {}
    }
    s.send(()).unwrap();

    let (s, r) = unbounded();
    let other = never();
    select! {
        send(s, ()) -> _ => {}
        recv(other) -> _ => {}
    }
    r.recv().unwrap();
    let _: Receiver<u8> = other;
}

#[test]
fn a_message_is_coerced_to_the_channels_type() {
    let (s, r) = unbounded::<Box<dyn Fn(i32) -> i32>>();
    select! { send(s, Box::new(|n| n + 1)) -> res => assert!(res.is_ok()) }
    select! { send(s, Box::new(|n| n + 2)) -> res => assert!(res.is_ok()), default => {} }
    assert_eq!(r.iter().take(2).map(|f| f(1)).sum::<i32>(), 5);
}

#[test]
fn everything_is_evaluated_once_and_in_order() {
    let (s, r) = unbounded::<i32>();
    let (full, _r) = bounded::<i32>(0);
    let log = RefCell::new(Vec::new());
    let note = |what: &'static str| log.borrow_mut().push(what);
    fn noted<T>(note: impl Fn(&'static str), what: &'static str, value: T) -> T {
        note(what);
        value
    }
    select! {
        default(noted(note, "timeout", ms(1))) => note("default"),
        send(noted(note, "full", &full), noted(note, "message", 1)) -> _ => note("sent"),
        recv(noted(note, "empty", &r)) -> _ => note("received"),
        recv(noted(note, "never", never::<i32>())) -> _ => note("received"),
    }
    assert_eq!(log.take(), ["full", "empty", "never", "timeout", "default"]);

    select! {
        send(noted(note, "full", &full), noted(note, "wrong", 1)) -> _ => note("full sent"),
        recv(noted(note, "empty", &r)) -> _ => note("received"),
        send(noted(note, "open", &s), noted(note, "message", 2)) -> _ => note("sent"),
        default => note("default"),
    }
    assert_eq!(log.take(), ["full", "empty", "open", "message", "sent"]);

    // With one arm, too.
    select! {
        default(noted(note, "timeout", ms(1))) => note("default"),
        recv(noted(note, "filled", &r)) -> msg => note(if msg == Ok(2) { "received" } else { "what?" }),
    }
    assert_eq!(log.take(), ["filled", "timeout", "received"]);
    select! {
        send(noted(note, "full", &full), noted(note, "message", 1)) -> _ => note("sent"),
        default => note("default"),
    }
    assert_eq!(log.take(), ["full", "default"]);
}

#[test]
fn arms_leave_loops_and_functions() {
    fn first_even(numbers: &Receiver<i32>, stop: &Receiver<()>) -> Result<i32, RecvError> {
        loop {
            let n = select! {
                recv(numbers) -> n => n?,
                recv(stop) -> _ => return Ok(-1),
            };
            if n % 2 == 0 {
                return Ok(n);
            }
        }
    }
    let (s, r) = filled([1, 3, 4, 5]);
    assert_eq!(first_even(&r, &never()), Ok(4));
    drop(s);
    assert_eq!(first_even(&r, &never()), Err(RecvError));
    assert_eq!(first_even(&never(), &filled([()]).1), Ok(-1));

    let (_s, r) = filled(1..=9);
    let mut odd = 0;
    let last = 'outer: loop {
        loop {
            select! {
                recv(r) -> n => match n.unwrap() {
                    9 => break 'outer 9,
                    n if n % 2 == 0 => continue,
                    _ => {}
                },
                default => break 'outer 0,
            }
            odd += 1;
            select! { recv(never::<()>()) -> _ => {}, default => break }
        }
    };
    assert_eq!((last, odd), (9, 4));

    // Also from a channel's or a message's expression.
    fn with(s: Option<&Sender<i32>>, msg: Option<i32>) -> Option<()> {
        select! {
            send(s?, msg?) -> res => res.ok(),
            recv(never::<()>()) -> _ => None,
        }
    }
    let (s, r) = bounded(1);
    assert_eq!(with(None, Some(1)), None);
    assert_eq!(with(Some(&s), Some(1)), Some(()));
    assert_eq!(r.recv(), Ok(1));
}

#[test]
fn the_values_of_the_arms_are_one_type() {
    let (s, r) = unbounded::<i32>();
    let text: String = select! {
        recv(r) -> _ => "received".into(),
        send(s, 0) -> _ => "sent".to_owned(),
        default => unreachable!(),
    };
    assert_eq!(text, "sent");
    let number: u64 = select! { recv(r) -> _ => 1, default => panic!() };
    assert_eq!(number, 1);
    let dynamic: Box<dyn Fn() -> i32> = select! {
        recv(r) -> _ => Box::new(|| 1),
        default => Box::new(|| 2),
    };
    assert_eq!(dynamic(), 2);
    // As a part of an expression, and as the last of a block.
    let sum = 1 + select! { recv(r) -> _ => 1, recv(r) -> _ => 1, default => 2 } * 3;
    assert_eq!(sum, 7);
    let last = || select! { recv(r) -> _ => 1, recv(r) -> _ => 1, default => 2 };
    assert_eq!(last(), 2);
}

#[test]
fn bodies_may_move_and_drop_the_channels() {
    let (s, r) = filled([1, 2]);
    let (s2, r2) = bounded::<i32>(0);
    let kept = select! {
        recv(r) -> msg => { assert_eq!(msg, Ok(1)); drop(r2); r }
        recv(r2) -> _ => { drop(r); r2 }
        send(s2, 1) -> _ => unreachable!(),
    };
    assert_eq!(kept.recv(), Ok(2));

    let mut current = kept;
    current = select! {
        recv(current) -> _ => unreachable!(),
        default => { drop(current); filled([3]).1 }
    };
    current = select! { recv(current) -> msg => filled([msg.unwrap() + 1]).1 };
    assert_eq!(current.recv(), Ok(4));

    let once = Box::new(());
    select! {
        send(s, 0) -> _ => drop((once, s)),
        default => drop((once, s)),
    }
}

#[test]
fn a_message_nobody_names_lives_until_the_end_of_its_arm() {
    struct Loud<'a>(&'a Cell<bool>);
    impl Drop for Loud<'_> {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    let dropped = Cell::new(false);
    let (s, r) = unbounded();
    for one in [true, false] {
        s.send(Loud(&dropped)).unwrap();
        if one {
            select! { recv(r) -> _ => assert!(!dropped.get()) }
        } else {
            select! { recv(r) -> _ => assert!(!dropped.get()), recv(never::<()>()) -> _ => {} }
        }
        assert!(dropped.replace(false));
    }
}

#[test]
fn temporaries_live_as_long_as_the_select() {
    let (s, r) = filled([1, 2, 3]);
    let shared = std::sync::Mutex::new((s, r));
    let got = select! {
        recv(shared.lock().unwrap().1) -> msg => {
            assert!(shared.try_lock().is_err());
            msg.unwrap()
        }
        recv(never()) -> msg => msg.unwrap(),
    };
    assert_eq!(got, 1);
    assert!(shared.try_lock().is_ok());
    select! { recv(shared.lock().unwrap().1) -> msg => assert_eq!(msg, Ok(2)) }
    select! { recv(shared.lock().unwrap().1) -> msg => assert_eq!(msg, Ok(3)), default => {} }
    assert!(shared.try_lock().is_ok());
}

#[test]
fn every_ready_arm_has_its_chance() {
    const ROUNDS: usize = 8_000;
    let (s, r) = filled(vec![(); ROUNDS]);
    let (_s2, r2) = filled(vec![(); ROUNDS]);
    let (_s3, r3) = bounded::<()>(1);
    let mut taken = [0usize; 4];
    for _ in 0..ROUNDS {
        select! {
            recv(r) -> _ => taken[0] += 1,
            send(s, ()) -> _ => taken[1] += 1,
            recv(r3) -> _ => unreachable!(),
            recv(r2) -> _ => taken[2] += 1,
            recv(after(Duration::ZERO)) -> _ => taken[3] += 1,
            default => unreachable!(),
        }
    }
    // A quarter each; 11 standard deviations are 5 percent.
    for n in taken {
        assert!(n.abs_diff(ROUNDS / 4) < ROUNDS / 20, "{taken:?}");
    }
}

/// The same channel in several arms, in a select that has to wait: no arm is the first in every
/// queue.
#[test]
fn every_arm_that_waits_has_its_chance() {
    const ROUNDS: usize = 2_000;
    let (s, r) = bounded(0);
    let sender = std::thread::spawn(move || {
        let mut taken = [0usize; 3];
        for _ in 0..ROUNDS {
            select! {
                send(s, ()) -> _ => taken[0] += 1,
                send(s, ()) -> _ => taken[1] += 1,
                send(s, ()) -> _ => taken[2] += 1,
            }
        }
        taken
    });
    let mut taken = [0usize; 3];
    for _ in 0..ROUNDS {
        select! {
            recv(r) -> _ => taken[0] += 1,
            recv(r) -> _ => taken[1] += 1,
            recv(r) -> _ => taken[2] += 1,
        }
    }
    // A third each: 666, and a standard deviation of 21.
    for taken in [taken, sender.join().unwrap()] {
        assert!(taken.iter().all(|n| *n > 450), "{taken:?}");
    }
}

#[test]
fn the_biased_one_takes_the_first() {
    let (s, r) = filled([1; 50]);
    let (_s2, r2) = filled([2; 50]);
    for n in 0..100 {
        let got = select_biased! {
            recv(never()) -> msg => msg,
            recv(r) -> msg => msg,
            recv(r2) -> msg => msg,
            send(s, 3) -> _ => Ok(3),
        };
        assert_eq!(got, Ok(if n < 50 { 1 } else { 2 }));
    }
    let got =
        select_biased! { recv(r) -> msg => msg, recv(r2) -> msg => msg, send(s, 3) -> _ => Ok(3) };
    assert_eq!(got, Ok(3));
}

#[test]
fn a_timeout_is_not_early() {
    let start = Instant::now();
    select! {
        recv(never::<()>()) -> _ => unreachable!(),
        recv(never::<()>()) -> _ => unreachable!(),
        default(ms(20)) => {}
    }
    assert!(start.elapsed() >= ms(20));
    let start = Instant::now();
    select! { recv(never::<()>()) -> _ => unreachable!(), default(ms(20)) => {} }
    select! { default(ms(20)) => {} }
    assert!(start.elapsed() >= ms(40));
}

#[test]
fn a_timeout_for_ever_is_one() {
    let (s, r) = bounded(0);
    let sender = std::thread::spawn(move || {
        std::thread::sleep(ms(20));
        select! {
            send(s, 7) -> res => res.unwrap(),
            default(Duration::MAX) => unreachable!(),
        }
    });
    select! {
        recv(r) -> msg => assert_eq!(msg, Ok(7)),
        recv(never::<()>()) -> _ => unreachable!(),
        default(Duration::MAX) => unreachable!(),
    }
    sender.join().unwrap();
}

/// Both ends of a channel of capacity 0 in selects, in goroutines.
#[gosched::test]
fn goroutines_meet_in_selects() {
    let (s, r) = bounded(0);
    let (done_s, done) = bounded::<()>(0);
    let sender = gosched::thread::spawn(move || {
        for n in 0..1_000 {
            select! {
                send(s, n) -> res => res.unwrap(),
                recv(done) -> _ => unreachable!(),
            }
        }
    });
    for n in 0..1_000 {
        select! {
            recv(r) -> msg => assert_eq!(msg, Ok(n)),
            recv(never::<()>()) -> _ => unreachable!(),
        }
    }
    sender.join().unwrap();
    drop(done_s);
}

/// A goroutine selects against a plain thread.
#[test]
fn goroutines_and_threads_meet_in_selects() {
    let (s, r) = bounded(0);
    crate::common::within(Duration::from_secs(60), "the meeting", || {
        let thread = std::thread::spawn(move || {
            (0..1_000).for_each(|n| {
                select! {
                    send(s, n) -> res => res.unwrap(),
                    recv(never::<()>()) -> _ => unreachable!(),
                }
            });
        });
        gosched::run(move || {
            let mut next = 0;
            loop {
                select! {
                    recv(r) -> msg => match msg {
                        Ok(n) => assert_eq!(n, next),
                        Err(RecvError) => break,
                    },
                    recv(never::<()>()) -> _ => unreachable!(),
                }
                next += 1;
            }
            assert_eq!(next, 1_000);
        });
        thread.join().unwrap();
    });
}
