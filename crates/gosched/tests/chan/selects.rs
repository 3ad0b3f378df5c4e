//! Go's rules for select. Exactly one case runs, and every ready case has the same chance. A
//! default is taken only if no case was ready at one moment. A select does not meet itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Barrier, Mutex};

use gosched::chan::{
    Receiver, Select, Sender, after, bounded, never, select, select_biased, unbounded,
};

use super::*;
use crate::common::Alive;

/// Runs `f` on a goroutine, then on a plain thread: they take their random numbers from different
/// places.
fn on_both(f: impl Fn() + Send + Sync) {
    run(2, "on a goroutine", &f);
    f();
}

/// Every one of n choices was made nearly as often as any other: here at least 80 of 100 times,
/// which is some 9 sigma.
#[track_caller]
fn assert_fair(chosen: &[usize]) {
    let expected = chosen.iter().sum::<usize>() / chosen.len();
    let is_fair = |n: &usize| *n >= expected * 4 / 5 && *n <= expected * 6 / 5;
    assert!(chosen.iter().all(is_fair), "{chosen:?}");
}

const RUNS: usize = 2000;

#[test]
fn every_ready_receive_has_the_same_chance() {
    on_both(|| {
        for n in [2, 3, 8, 9, 20] {
            let channels: Vec<_> = (0..n).map(|_| unbounded()).collect();
            let mut chosen = vec![0; n];
            for (s, _) in &channels {
                s.send(()).unwrap();
            }
            for _ in 0..RUNS * n {
                let mut sel = Select::new();
                channels.iter().for_each(|(_, r)| _ = sel.recv(r));
                let operation = sel.select();
                let at = operation.index();
                operation.recv(&channels[at].1).unwrap();
                channels[at].0.send(()).unwrap();
                chosen[at] += 1;
            }
            assert_fair(&chosen);
        }
    });
}

#[test]
fn every_ready_send_has_the_same_chance() {
    on_both(|| {
        let (s1, r1) = unbounded();
        let (s2, r2) = bounded(RUNS * 4);
        let (s3, r3) = bounded(RUNS * 4);
        for _ in 0..RUNS * 3 {
            select! {
                send(s1, ()) -> sent => sent.unwrap(),
                send(s2, ()) -> sent => sent.unwrap(),
                send(s3, ()) -> sent => sent.unwrap(),
            }
        }
        assert_fair(&[r1.len(), r2.len(), r3.len()]);
    });
}

/// Ends, values, room, times: whatever a case is ready for.
#[test]
fn cases_of_all_kinds_have_the_same_chance() {
    on_both(|| {
        let (_, ended) = unbounded::<()>();
        let (room, _keeps) = unbounded();
        let (s, full) = unbounded();
        (0..RUNS * 8).for_each(|_| s.send(()).unwrap());
        let mut chosen = [0; 5];
        for _ in 0..RUNS * 5 {
            let at = select! {
                recv(ended) -> _ => 0,
                send(room, ()) -> _ => 1,
                recv(full) -> _ => 2,
                recv(after(Duration::ZERO)) -> _ => 3,
                recv(full) -> _ => 4,
                recv(never::<()>()) -> _ => unreachable!(),
                default => panic!("all of them are ready"),
            };
            chosen[at] += 1;
        }
        assert_fair(&chosen);
    });
}

/// The next choice does not follow from the last: of two cases the same comes again half of the
/// time.
#[test]
fn choices_are_independent() {
    on_both(|| {
        let (_, r1) = unbounded::<()>();
        let (_, r2) = unbounded::<()>();
        let choose = || select! { recv(r1) -> _ => 0, recv(r2) -> _ => 1 };
        let mut pairs = [0; 4];
        let mut last = choose();
        for _ in 0..RUNS * 4 {
            let next = choose();
            pairs[last * 2 + next] += 1;
            last = next;
        }
        assert_fair(&pairs);
    });
}

#[test]
fn a_biased_select_takes_the_first() {
    on_both(|| {
        let (_, first) = unbounded::<()>();
        let (_, second) = unbounded::<()>();
        for _ in 0..RUNS {
            select_biased! {
                recv(never::<()>()) -> _ => unreachable!(),
                recv(first) -> _ => {}
                recv(second) -> _ => panic!("not the first"),
            }
        }
    });
}

/// Selects that wait over few cases, over as many as there is room for on the stack, over more, and
/// over so many that they are sorted another way. The last ones have each channel twice: it is
/// locked once.
#[test]
fn selects_that_wait_are_served_wherever_something_comes() {
    run(2, "selects that wait", || {
        for (len, times) in [(3, 1), (16, 1), (17, 1), (40, 2)] {
            let channels: Vec<_> = (0..len).map(|_| bounded(0)).collect();
            for n in 0..200 {
                let receivers: Vec<_> = channels.iter().map(|(_, r)| r.clone()).collect();
                let chooser = thread::spawn(move || {
                    let mut sel = Select::new();
                    for _ in 0..times {
                        receivers.iter().for_each(|r| _ = sel.recv(r));
                    }
                    let operation = sel.select();
                    let at = operation.index() % len;
                    (at, operation.recv(&receivers[at]).unwrap())
                });
                let at = n % len;
                send_to_a_waiter(&channels[at].0, n);
                assert_eq!(chooser.join().unwrap(), (at, n), "{len} channels");
            }
        }
    });
}

/// The same channel in several cases: each value arrives once, by any of them.
#[test]
fn the_same_channel_in_several_cases() {
    for cap in [0, 1, 5] {
        run(2, "the same channel twice", move || {
            let (s, r) = bounded(cap);
            gosched::go(move || (0..3000).for_each(|n| s.send(n).unwrap()));
            let (mut chosen, mut got) = ([0; 3], Vec::new());
            loop {
                let (at, msg) = select! {
                    recv(r) -> msg => (0, msg),
                    recv(&r) -> msg => (1, msg),
                    recv(r.clone()) -> msg => (2, msg),
                };
                let Ok(msg) = msg else { break };
                got.push(msg);
                chosen[at] += 1;
            }
            assert!(got.into_iter().eq(0..3000));
            if cap > 0 {
                assert!(chosen.iter().all(|n| *n > 0), "{chosen:?}");
            }
        });
    }
}

/// Both directions of a channel without capacity in one select: it cannot serve itself.
#[test]
fn a_select_does_not_meet_itself() {
    on_both(|| {
        let (s, r) = bounded(0);
        for _ in 0..20 {
            select! {
                send(s, ()) -> _ => panic!("there is no receiver"),
                recv(r) -> _ => panic!("there is no sender"),
                default => {}
            }
            select! {
                send(s, ()) -> _ => panic!("there is no receiver"),
                recv(r) -> _ => panic!("there is no sender"),
                send(&s, ()) -> _ => panic!("there is no receiver"),
                default(Duration::from_micros(500)) => {}
            }
        }
        assert!(r.try_recv().is_err() && s.try_send(()).is_err());
    });
}

/// With a buffer it sends to itself, then receives.
#[test]
fn a_select_may_use_its_own_buffer() {
    on_both(|| {
        let (s, r) = bounded(1);
        for n in 0..100 {
            select! {
                send(s, n) -> sent => assert!(n % 2 == 0 && sent.is_ok()),
                recv(r) -> msg => assert_eq!(msg, Ok(n - 1)),
            }
        }
    });
}

/// All goroutines send and receive on the same channel at the same time: they pair up.
#[test]
fn selects_in_both_directions_pair_up() {
    for cap in [0, 1] {
        for crowd in [2, 10] {
            run(3, "pairing up", move || {
                let (s, r) = bounded(cap);
                let (sent, got) = (AtomicUsize::new(0), AtomicUsize::new(0));
                let left = AtomicUsize::new(crowd);
                let (last, is_last) = bounded::<()>(0);
                let last = Mutex::new(Some(last));
                thread::scope(|scope| {
                    for me in 0..crowd {
                        let (s, r, sent, got) = (&s, &r, &sent, &got);
                        let (left, last, is_last) = (&left, &last, &is_last);
                        scope.spawn(move || {
                            for _ in 0..500 {
                                select! {
                                    send(s, me) -> done => {
                                        done.unwrap();
                                        sent.fetch_add(1, SeqCst);
                                    }
                                    recv(r) -> other => {
                                        assert!(cap > 0 || other.unwrap() != me, "met itself");
                                        got.fetch_add(1, SeqCst);
                                    }
                                    // The last one finds no partner.
                                    recv(is_last) -> _ => break,
                                }
                            }
                            if left.fetch_sub(1, SeqCst) == 2 {
                                drop(last.lock().unwrap().take());
                            }
                        });
                    }
                });
                let (sent, got) = (sent.load(SeqCst), got.load(SeqCst));
                assert_eq!(sent, got + r.len());
                assert!(got > crowd * 100, "{got} met");
            });
        }
    }
}

/// A select with several ready cases takes one of them. Numbers are sent by a select over several
/// channels and received by selects over the same ones. Each arrives once.
#[test]
fn a_select_never_does_two_cases() {
    const N: usize = 20_000;
    for cap in [0, 1, 2] {
        for procs in [1, 2, 4] {
            let (sum, count) = run(procs, "one case only", move || {
                let channels: Vec<_> = (0..4).map(|_| bounded(cap)).collect();
                let (results, got) = unbounded();
                for way in 0..4 {
                    let rs: Vec<Receiver<usize>> = channels.iter().map(|c| c.1.clone()).collect();
                    let results = results.clone();
                    gosched::go(move || receive_from_all(way, &rs, &results));
                }
                drop(results);
                let [a, b, c, d] = [0, 1, 2, 3].map(|n| channels[n].0.clone());
                drop(channels);
                for n in 0..N {
                    select! {
                        send(a, n) -> sent => sent.unwrap(),
                        send(b, n) -> sent => sent.unwrap(),
                        send(c, n) -> sent => sent.unwrap(),
                        send(d, n) -> sent => sent.unwrap(),
                    }
                }
                drop((a, b, c, d));
                got.iter()
                    .fold((0, 0), |(sum, count), n| (sum + n, count + 1))
            });
            assert_eq!((sum, count), (N * (N - 1) / 2, N), "capacity {cap}");
        }
    }
}

/// Receives until all the channels have ended: with plain receives on one, or with selects.
fn receive_from_all(way: usize, rs: &[Receiver<usize>], results: &Sender<usize>) {
    if way == 0 {
        return rs[0].iter().for_each(|n| results.send(n).unwrap());
    }
    let mut open = [true; 4];
    while open.contains(&true) {
        let mut sel = Select::new();
        for (at, r) in rs.iter().enumerate().filter(|(at, _)| open[*at]) {
            assert!(sel.recv(r) <= at);
        }
        let operation = if way == 1 {
            sel.select()
        } else {
            match sel.select_timeout(Duration::from_micros(way as u64 * 20)) {
                Ok(operation) => operation,
                Err(_) => continue,
            }
        };
        let at = (0..4)
            .filter(|at| open[*at])
            .nth(operation.index())
            .unwrap();
        match operation.recv(&rs[at]) {
            Ok(n) => results.send(n).unwrap(),
            Err(_) => open[at] = false,
        }
    }
}

/// A value that is always in one of two places is found by a select on both: `put` puts it into the
/// second place, then `take` takes it out of the first, while another goroutine selects. The
/// default is never taken.
fn always_in_one_of_two<T: Send>(
    what: &str,
    rounds: usize,
    make: impl Fn() -> [(Sender<T>, Receiver<T>); 2] + Sync,
    first: impl Fn(&Sender<T>) + Sync,
    second: impl Fn(&Sender<T>, &Receiver<T>) + Sync,
) {
    for round in 0..rounds {
        let [(s1, r1), (s2, r2)] = make();
        first(&s1);
        let both = Barrier::new(2);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                both.wait();
                // In both orders.
                match round % 3 {
                    0 => select! { recv(r1) -> _ => true, recv(r2) -> _ => true, default => false },
                    1 => select_biased! { recv(r1) -> _ => true, recv(r2) -> _ => true, default => false },
                    _ => select_biased! { recv(r2) -> _ => true, recv(r1) -> _ => true, default => false },
                }
            });
            both.wait();
            second(&s2, &r2);
            let _taken = r1.try_recv();
            assert!(looks.join().unwrap(), "{what}: a default in round {round}");
        });
    }
}

/// How often; with the locks left out these fail in some ten to a hundred of them.
const LOOKS: usize = 4000;

#[test]
fn a_default_is_not_taken_while_something_is_always_there() {
    always_in_one_of_two(
        "values",
        LOOKS,
        || [bounded(1), bounded(1)],
        |s| s.send(()).unwrap(),
        |s, _| s.send(()).unwrap(),
    );
    always_in_one_of_two(
        "values and an end",
        LOOKS,
        || [unbounded(), unbounded()],
        |s| s.send(()).unwrap(),
        |s, _| _ = s.close(),
    );
}

/// The value moves back and forth, so that a select that looks at each place separately misses it
/// now and then, even twice. Cases in between give it time.
#[test]
fn something_that_moves_to_and_fro_is_always_ready_in_one_of_them() {
    const MOVES: usize = 300 * LOOKS;
    for make in [|| bounded(2), unbounded] {
        let ([(s1, r1), (s2, r2)], moves) = ([make(), make()], AtomicUsize::new(0));
        let between: Vec<_> = (0..30).map(|_| make()).collect();
        s1.send(()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 1..=MOVES {
                    s2.send(()).unwrap();
                    r1.recv().unwrap();
                    s1.send(()).unwrap();
                    r2.recv().unwrap();
                    moves.store(n, SeqCst);
                }
            });
            let mut sel = Select::new_biased();
            sel.recv(&r1);
            between.iter().for_each(|(_, r)| _ = sel.recv(r));
            sel.recv(&r2);
            let (mut looks, mut missed) = (0, 0);
            while moves.load(SeqCst) < MOVES {
                looks += 1;
                missed += usize::from(sel.try_ready().is_err());
            }
            assert_eq!(missed, 0, "of {looks} looks");
        });
    }
}

/// The same with senders that wait: the second sender waits before the value of the first is taken.
#[test]
fn a_default_is_not_taken_while_somebody_always_waits() {
    run(2, "always somebody who waits", || {
        for round in 0..LOOKS / 4 {
            let [(s1, r1), (s2, r2)] = [bounded(0), bounded(0)];
            let waits = |r: &Receiver<()>| {
                let mut sel = Select::new();
                sel.recv(r);
                assert_eq!(sel.ready(), 0);
            };
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| _ = s1.send(()));
                waits(&r1);
                let looks = scope.spawn(|| {
                    let found = select! {
                        recv(r1) -> _ => true,
                        recv(r2) -> _ => true,
                        default => false,
                    };
                    is_over.store(true, SeqCst);
                    found
                });
                scope.spawn(|| _ = s2.send(()));
                // Until it waits, or has been served already.
                let mut sel = Select::new();
                sel.recv(&r2);
                while !is_over.load(SeqCst) && sel.try_ready().is_err() {
                    gosched::yield_now();
                }
                _ = r1.try_recv();
                assert!(looks.join().unwrap(), "a default in round {round}");
                s1.close();
                s2.close();
            });
        }
    });
}

/// And for room: one of two buffers always has some.
#[test]
fn a_default_is_not_taken_while_there_is_always_room() {
    for round in 0..LOOKS {
        let ([(s1, r1), (s2, _r2)], both) = ([bounded(1), bounded(1)], Barrier::new(2));
        s1.send(0).unwrap(); // full; the second has room
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| {
                both.wait();
                select! { send(s1, 1) -> _ => true, send(s2, 1) -> _ => true, default => false }
            });
            both.wait();
            r1.recv().unwrap(); // the first one has, too
            _ = s2.try_send(2);
            assert!(looks.join().unwrap(), "a default in round {round}");
        });
    }
}

/// Selects over the same channels, each with an order of its own: selects that lock all of them do
/// not deadlock.
#[test]
fn selects_in_every_order_get_all_their_locks() {
    let channels: [_; 3] = std::array::from_fn(|_| bounded::<()>(0));
    within(LONG, "selects in every order", || {
        std::thread::scope(|scope| {
            for n in 0..6 {
                let mut order = [n % 3, (n + 1) % 3, (n + 2) % 3];
                if n >= 3 {
                    order.reverse();
                }
                let channels = &channels;
                scope.spawn(move || {
                    let mut sel = Select::new();
                    for at in order {
                        sel.recv(&channels[at].1);
                    }
                    for _ in 0..20_000 {
                        assert!(sel.try_select().is_err());
                    }
                });
            }
        });
    });
}

/// A received message is dropped with its operation if the operation is not completed.
#[test]
fn a_message_of_an_operation_that_is_dropped_goes() {
    let (count, (s, r)) = (Arc::new(AtomicUsize::new(0)), unbounded());
    s.send(Alive::new(&count)).unwrap();
    let dropped = catch_unwind(AssertUnwindSafe(|| {
        let mut sel = Select::new();
        sel.recv(&r);
        drop(sel.select());
    }));
    assert!(dropped.is_err() && r.is_empty());
    assert_eq!(count.load(SeqCst), 0);
}

#[test]
fn sends_that_nobody_takes() {
    on_both(|| {
        let (s0, _r0) = bounded(0);
        let (s1, r1) = bounded(1);
        s1.send(0).unwrap();
        for _ in 0..10 {
            select! {
                send(s0, 1) -> _ => panic!("nobody waits for it"),
                send(s1, 1) -> _ => panic!("there is no room"),
                default => {}
            }
            select! {
                send(s0, 1) -> _ => panic!("nobody waits for it"),
                send(s1, 1) -> _ => panic!("there is no room"),
                default(ms(1)) => {}
            }
        }
        assert_eq!((r1.recv(), r1.len()), (Ok(0), 0));
    });
}

/// Go's nil channel: a case that is not there.
#[test]
fn a_channel_on_which_nothing_comes() {
    on_both(|| {
        let nothing = never::<i32>();
        assert!(nothing.recv_timeout(ms(1)).is_err() && nothing.try_recv().is_err());
        let (s, r) = unbounded();
        for n in 0..100 {
            s.send(n).unwrap();
            select! {
                recv(nothing) -> _ => panic!("something came"),
                recv(r) -> msg => assert_eq!(msg, Ok(n)),
                recv(never::<()>()) -> _ => panic!("something came"),
            }
        }
        select! {
            recv(nothing) -> _ => panic!("something came"),
            default(ms(1)) => {}
        }
        select! { recv(nothing) -> _ => panic!("something came"), default => {} }
    });
}

/// Selects with timeouts against senders with timeouts, all of them too short or just long enough.
#[test]
fn timeouts_that_race_with_values_lose_none() {
    for cap in [0, 1] {
        let (sent, got) = run(2, "timeouts that race", move || {
            let ((s1, r1), (s2, r2)) = (bounded(cap), bounded(cap));
            let (sent, got) = (AtomicUsize::new(0), AtomicUsize::new(0));
            thread::scope(|scope| {
                for s in [s1, s2] {
                    let sent = &sent;
                    scope.spawn(move || {
                        for n in 0..3000 {
                            let timeout = Duration::from_nanos(n % 20_000);
                            let is_sent = s.send_timeout((), timeout).is_ok();
                            sent.fetch_add(usize::from(is_sent), SeqCst);
                        }
                        // If the receiver had no CPU all the time, it gets this one.
                        while s.send_timeout((), ms(1)).is_err() {}
                        sent.fetch_add(1, SeqCst);
                    });
                }
                for turn in 0..u64::MAX {
                    let (end, is_got) = select! {
                        recv(r1) -> msg => (msg.is_err(), msg.is_ok()),
                        recv(r2) -> msg => (msg.is_err(), msg.is_ok()),
                        default(Duration::from_nanos(turn % 30_000)) => (false, false),
                    };
                    got.fetch_add(usize::from(is_got), SeqCst);
                    if end {
                        break;
                    }
                }
                got.fetch_add(r1.iter().count() + r2.iter().count(), SeqCst);
            });
            (sent.into_inner(), got.into_inner())
        });
        assert_eq!(sent, got);
        assert!(sent > 0);
    }
}

/// A message is evaluated when its case has been chosen: what was promised to it goes to the others
/// if it unwinds.
#[test]
fn a_message_that_unwinds_gives_its_place_back() {
    fn no_message() -> i32 {
        std::panic::resume_unwind(Box::new("no message"))
    }
    on_both(|| {
        for cap in [0, 1, 2] {
            let (s, r) = bounded::<i32>(cap);
            let (unwound, rest) = bounded::<()>(1);
            let receiver = std::thread::spawn(move || {
                let got = r.recv();
                rest.recv().unwrap();
                got
            });
            let attempt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let none = never::<()>();
                select! {
                    send(s, no_message()) -> _ => {},
                    recv(none) -> _ => {},
                }
            }));
            assert!(attempt.is_err());
            s.send(7).unwrap();
            unwound.send(()).unwrap();
            assert_eq!(receiver.join().unwrap(), Ok(7));
        }
    });
}
