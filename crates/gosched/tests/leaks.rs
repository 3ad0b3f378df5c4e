//! `debug::leaks`: who can never be woken is found, marked and put back; nobody else is.

mod common;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use common::{child, within};
use gosched::chan::{Select, bounded, never, select, unbounded};
use gosched::debug::{self, Goroutine, Leak, Leaks};
use gosched::sync::{Barrier, Condvar, Mutex, RwLock};
use gosched::thread::{self, JoinHandle};
use gosched::{Runtime, time};

/// Nothing that happens at all takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn named<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let builder = thread::Builder::new().name(name.into());
    builder.spawn(f).expect("a goroutine")
}

fn find<'a>(leaks: &'a Leaks, name: &str) -> Option<&'a Leak> {
    let mut all = leaks.goroutines().iter();
    all.find(|leak| leak.goroutine().name() == Some(name))
}

/// The names of those found, in order.
fn names(leaks: &Leaks) -> Vec<String> {
    let name = |leak: &Leak| leak.goroutine().name().unwrap_or("?").to_owned();
    let mut names: Vec<_> = leaks.goroutines().iter().map(name).collect();
    names.sort_unstable();
    names
}

/// Looks until the goroutines with these names wait, and returns what the next leak check finds.
#[track_caller]
fn leaks_when_waiting(expected: &[&str]) -> Leaks {
    let started = Instant::now();
    loop {
        let dump = debug::dump();
        let waits = |name: &&str| {
            let mut all = dump.goroutines().iter();
            all.any(|g| g.name() == Some(name) && g.wait_reason().is_some())
        };
        if expected.iter().all(waits) {
            return debug::leaks();
        }
        assert!(started.elapsed() < PATIENCE, "{dump}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The same until any is found: they may first wait for something else, or a thread that has looked up symbols may still count
/// as a foreign one.
#[track_caller]
fn leaks_when_some(expected: &[&str]) -> Leaks {
    let started = Instant::now();
    loop {
        let leaks = leaks_when_waiting(expected);
        if !leaks.is_empty() {
            return leaks;
        }
        assert!(started.elapsed() < PATIENCE, "{}", debug::dump());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Looks until so many are found.
#[track_caller]
fn leaks_when_count(count: usize) -> Leaks {
    let started = Instant::now();
    loop {
        let leaks = debug::leaks();
        if leaks.goroutines().len() == count {
            return leaks;
        }
        assert!(started.elapsed() < PATIENCE, "{leaks}\n{}", debug::dump());
        thread::sleep(Duration::from_millis(1));
    }
}

fn in_dump(name: &str) -> Goroutine {
    let dump = debug::dump();
    let mut all = dump.goroutines().iter();
    let found = all.find(|g| g.name() == Some(name));
    found.unwrap_or_else(|| panic!("{dump}")).clone()
}

fn id_of<T>(handle: &JoinHandle<T>) -> u64 {
    let id = handle.thread().id().goroutine();
    id.expect("a goroutine").get()
}

#[gosched::test]
fn parked_without_a_handle_is_leaked() {
    drop(named("lost", thread::park));
    let kept = named("kept", thread::park);
    let leaks = leaks_when_waiting(&["lost", "kept"]);
    assert_eq!(names(&leaks), ["lost"], "{leaks}");
    let lost = find(&leaks, "lost").expect("just seen");
    assert_eq!(lost.goroutine().wait_reason(), Some("park"));
    assert_eq!(lost.goroutine().state(), "leaked");
    assert_eq!(lost.why(), "nobody has a handle to unpark it with");
    let site = lost.goroutine().spawned_at().expect("a site");
    assert!(site.file().ends_with("leaks.rs"), "{leaks}");
    let frames = lost.goroutine().frames();
    assert!(frames[0].function().contains("park"), "{leaks}");
    let text = leaks.to_string();
    assert!(text.contains(" [park (leaked)] {name: lost}:\n"), "{text}");
    assert!(text.ends_with("can never be woken: nobody has a handle to unpark it with\n"));
    kept.thread().unpark();
    kept.join().expect("no panic");
}

/// A handle that somebody has is a way to wake it, wherever it is: with a plain thread, in a static, on its own stack.
#[gosched::test]
fn parked_with_a_handle_is_not_leaked() {
    static HANDLE: std::sync::OnceLock<thread::Thread> = std::sync::OnceLock::new();
    drop(named("own", || {
        let own = thread::current();
        thread::park();
        drop(own);
    }));
    let kept = named("static", thread::park);
    HANDLE.set(kept.thread().clone()).expect("set once");
    drop(kept);
    let (send, receive) = std::sync::mpsc::channel::<()>();
    let thread = named("thread", thread::park);
    let waker = std::thread::spawn(move || {
        let _ = receive.recv();
        thread.thread().unpark();
        thread.join().expect("no panic");
    });
    drop(named("timeout", || thread::park_timeout(PATIENCE)));
    let leaks = leaks_when_waiting(&["own", "static", "thread", "timeout"]);
    assert!(leaks.is_empty(), "{leaks}");
    assert_eq!(leaks.to_string(), "no goroutine is known to be leaked\n");
    HANDLE.get().expect("set above").unpark();
    drop(send);
    waker.join().expect("no panic");
}

#[gosched::test]
fn who_joins_a_leaked_one_is_leaked() {
    let lost = named("lost", thread::park);
    let id = id_of(&lost);
    let first = named("first", move || lost.join().expect("no panic"));
    let first_id = id_of(&first);
    drop(named("second", move || first.join().expect("no panic")));
    let leaks = leaks_when_waiting(&["lost", "first", "second"]);
    assert_eq!(names(&leaks), ["first", "lost", "second"], "{leaks}");
    let why = |name| find(&leaks, name).expect("just seen").why().to_owned();
    assert_eq!(
        why("lost"),
        format!("goroutine {first_id} waits for its end with the only handle to it")
    );
    assert_eq!(
        why("first"),
        format!("goroutine {id} can never be woken either")
    );
    assert_eq!(
        why("second"),
        format!("goroutine {first_id} can never be woken either")
    );
    let second = find(&leaks, "second").expect("just seen").goroutine();
    assert_eq!(second.waits_for(), Some(first_id), "{leaks}");
}

#[gosched::test]
fn who_joins_one_that_can_be_woken_is_not_leaked() {
    let parked = named("parked", thread::park);
    let waker = parked.thread().clone();
    let first = named("first", move || parked.join().expect("no panic"));
    let second = named("second", move || first.join().expect("no panic"));
    let sleeper = named("sleeper", || thread::sleep(PATIENCE));
    drop(named("third", move || sleeper.join().expect("no panic")));
    let leaks = leaks_when_waiting(&["parked", "first", "second", "sleeper", "third"]);
    assert!(leaks.is_empty(), "{leaks}");
    waker.unpark();
    second.join().expect("no panic");
}

/// Two that wait for each other's end.
#[gosched::test]
fn a_circle_of_joins_is_leaked() {
    let (to_one, from_other) = bounded::<JoinHandle<()>>(1);
    let (to_other, from_one) = bounded::<JoinHandle<()>>(1);
    let one = named("one", move || {
        let other = from_other.recv().expect("sent");
        other.join().expect("no panic");
    });
    let other = named("other", move || {
        let one = from_one.recv().expect("sent");
        one.join().expect("no panic");
    });
    let ids = (id_of(&one), id_of(&other));
    to_one.send(other).expect("room");
    to_other.send(one).expect("room");
    let leaks = leaks_when_some(&["one", "other"]);
    assert_eq!(names(&leaks), ["one", "other"], "{leaks}");
    let one = find(&leaks, "one").expect("just seen");
    assert_eq!(
        one.why(),
        format!("goroutine {} can never be woken either", ids.1)
    );
}

#[gosched::test]
fn a_scope_with_a_leaked_goroutine_is_leaked() {
    drop(named("owner", || {
        thread::scope(|scope| {
            let lost = thread::Builder::new().name("lost".into());
            lost.spawn_scoped(scope, thread::park).expect("a goroutine");
            for name in ["alive", "too"] {
                let alive = thread::Builder::new().name(name.into());
                alive
                    .spawn_scoped(scope, || thread::sleep(PATIENCE))
                    .expect("a goroutine");
            }
        });
    }));
    let kept = named("free", || {
        thread::scope(|scope| {
            let child = thread::Builder::new().name("child".into());
            let child = child
                .spawn_scoped(scope, thread::park)
                .expect("a goroutine");
            thread::park();
            child.thread().unpark();
        });
    });
    let leaks = leaks_when_waiting(&["owner", "lost", "alive", "too", "free", "child"]);
    assert_eq!(names(&leaks), ["lost", "owner"], "{leaks}");
    let owner = find(&leaks, "owner").expect("just seen");
    let lost = find(&leaks, "lost").expect("just seen").goroutine().id();
    assert_eq!(
        owner.why(),
        format!("goroutine {lost} in its scope can never be woken either")
    );
    kept.thread().unpark();
    kept.join().expect("no panic");
}

#[gosched::test]
fn who_waits_for_nothing_is_leaked() {
    drop(named("select", || {
        let _ = Select::new().select();
    }));
    drop(named("never", || never::<i32>().recv()));
    drop(named("nevers", || {
        select! {
            recv(never::<i32>()) -> _ => {}
            recv(never::<u8>()) -> _ => {}
        }
    }));
    drop(named("timeout", || never::<i32>().recv_timeout(PATIENCE)));
    drop(named("default", || {
        select! { default(PATIENCE) => {} }
    }));
    drop(named("timer", || {
        select! {
            recv(never::<i32>()) -> _ => {}
            recv(gosched::chan::after(PATIENCE)) -> _ => {}
        }
    }));
    let leaks = leaks_when_waiting(&["select", "never", "nevers", "timeout", "default", "timer"]);
    assert_eq!(names(&leaks), ["never", "nevers", "select"], "{leaks}");
    let reason = |name| find(&leaks, name).and_then(|leak| leak.goroutine().wait_reason());
    assert_eq!(reason("select"), Some("select (no cases)"), "{leaks}");
    assert_eq!(reason("never"), Some("chan receive"), "{leaks}");
    assert_eq!(reason("nevers"), Some("select (2 cases)"), "{leaks}");
    let text = leaks.to_string();
    assert!(
        text.contains(" [select (no cases) (leaked)] {name: select}:\n"),
        "{text}"
    );
    assert!(
        text.contains("\nwaits to receive from no channel (never)\n"),
        "{text}"
    );
    assert!(text.contains("can never be woken: a select without cases waits for nothing\n"));
    assert!(text.contains("can never be woken: nothing ever comes from where it receives\n"));
}

/// A main goroutine that waits for nothing is how programs stay.
#[test]
fn a_main_goroutine_may_wait_for_ever() {
    // It is never dropped: its main goroutine does not return.
    let runtime: &Runtime = Box::leak(Box::new(Runtime::builder().build().expect("a runtime")));
    let receive = || assert!(never::<i32>().recv().is_ok());
    for wait in [thread::park, receive] {
        std::thread::spawn(move || runtime.run(wait));
    }
    let started = Instant::now();
    let waiting = |dump: &debug::Dump| {
        let all = dump.goroutines().iter();
        all.filter(|g| g.wait_reason().is_some()).count()
    };
    while waiting(&runtime.dump()) < 2 {
        assert!(started.elapsed() < PATIENCE, "{}", runtime.dump());
        std::thread::yield_now();
    }
    let leaks = runtime.leaks();
    assert!(leaks.is_empty(), "{leaks}");
}

/// A handle on a channel's other side is hope, whoever has it.
#[gosched::test]
fn who_has_a_channel_whose_other_side_is_alive_is_not_leaked() {
    let (send, receive) = unbounded::<i32>();
    let (full, filled) = bounded::<i32>(0);
    let (both, both_too) = bounded::<i32>(0);
    let receiver = named("receiver", move || receive.recv());
    let sender = named("sender", move || full.send(1));
    let (other, its_own) = (both.clone(), both_too.clone());
    let selects = named("select", move || {
        select! {
            recv(its_own) -> _ => {}
            send(other, 1) -> _ => {}
        }
    });
    // With a plain thread.
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let _ = stopped.recv();
        drop(send);
        drop(filled);
        drop((both, both_too));
    });
    let leaks = leaks_when_waiting(&["receiver", "sender", "select"]);
    assert!(leaks.is_empty(), "{leaks}");
    drop(stop);
    thread.join().expect("no panic");
    assert!(receiver.join().expect("no panic").is_err());
    assert!(sender.join().expect("no panic").is_err());
    drop(selects);
}

/// Both ends of a channel in one select, which does not meet itself: nobody else can ever come. No foreign thread may be alive
/// for that, so it is a process of its own.
#[test]
fn a_select_that_has_its_channel_alone_is_leaked() {
    let out = child("a_select_that_has_its_channel_alone_is_leaked", || {
        gosched::run(|| {
            let alone = || {
                let (s, r) = bounded::<i32>(0);
                select! {
                    recv(r) -> _ => {}
                    send(s, 1) -> _ => {}
                }
            };
            let shared_by_clone = || {
                let (s, r) = bounded::<i32>(0);
                let kept = s.clone();
                select! {
                    recv(r) -> _ => {}
                    send(s, 1) -> _ => {}
                }
                drop(kept);
            };
            let on_the_heap = || {
                let both = Arc::new(bounded::<i32>(0));
                let shared = Arc::clone(&both);
                select! {
                    recv(both.1) -> _ => {}
                    send(both.0, 1) -> _ => {}
                }
                drop(shared);
            };
            let borrowed = || {
                let (s, r) = bounded::<i32>(0);
                thread::scope(|scope| {
                    let child = thread::Builder::new().name("borrower".into());
                    child
                        .spawn_scoped(scope, || {
                            thread::sleep(PATIENCE);
                            s.close();
                        })
                        .expect("a goroutine");
                    select! {
                        recv(r) -> _ => {}
                        send(s, 1) -> _ => {}
                    }
                });
            };
            let timed = || {
                let (s, r) = bounded::<i32>(0);
                select! {
                    recv(r) -> _ => {}
                    send(s, 1) -> _ => {}
                    default(PATIENCE) => {}
                }
            };
            drop(named("alone", alone));
            drop(named("cloned", shared_by_clone));
            drop(named("heap", on_the_heap));
            drop(named("borrowed", borrowed));
            drop(named("timed", timed));
            let waiting = ["alone", "cloned", "heap", "borrowed", "borrower", "timed"];
            let leaks = leaks_when_some(&waiting);
            assert_eq!(names(&leaks), ["alone"], "{leaks}");
            let why = "nobody can use its channels but goroutines that can never be woken either";
            assert_eq!(find(&leaks, "alone").expect("just seen").why(), why);
        });
    });
    out.succeeded();
}

/// With a foreign thread alive nobody knows who has borrowed the ends.
#[gosched::test]
fn a_select_that_has_its_channel_alone_is_spared_while_a_foreign_thread_is_alive() {
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let foreign = std::thread::spawn(move || stopped.recv().unwrap_err());
    drop(named("alone", || {
        let (s, r) = bounded::<i32>(0);
        select! {
            recv(r) -> _ => {}
            send(s, 1) -> _ => {}
        }
    }));
    let leaks = leaks_when_waiting(&["alone"]);
    assert!(leaks.is_empty(), "{leaks}");
    drop(stop);
    foreign.join().expect("no panic");
}

/// One waits until it could receive, one until it could send, and nobody does either.
#[test]
fn two_that_wait_to_be_ready_for_each_other_are_leaked() {
    let out = child(
        "two_that_wait_to_be_ready_for_each_other_are_leaked",
        || {
            gosched::run(|| {
                let (s, r) = bounded::<i32>(0);
                drop(named("receiver", move || {
                    let mut select = Select::new();
                    let own = r;
                    select.recv(&own);
                    select.ready();
                }));
                drop(named("sender", move || {
                    let mut select = Select::new();
                    let own = s;
                    select.send(&own);
                    select.ready();
                }));
                let leaks = leaks_when_waiting(&["receiver", "sender"]);
                assert_eq!(names(&leaks), ["receiver", "sender"], "{leaks}");
            });
        },
    );
    out.succeeded();
}

/// Locks the first, says so, waits for the other one to have its own, and wants that.
fn lock_both(mine: &Mutex<()>, other: &Mutex<()>, ready: &Barrier) {
    let _mine = mine.lock().expect("no panic");
    ready.wait();
    let _other = other.lock().expect("no panic");
}

#[gosched::test]
fn two_mutexes_locked_crosswise_are_a_leak() {
    let locks = Arc::new((Mutex::new(()), Mutex::new(()), Barrier::new(2)));
    let (one, other) = (Arc::clone(&locks), Arc::clone(&locks));
    let one = named("one", move || lock_both(&one.0, &one.1, &one.2));
    let other = named("other", move || lock_both(&other.1, &other.0, &other.2));
    // One more that wants what they have, and one that waits for its end.
    let third = named("third", {
        let locks = Arc::clone(&locks);
        move || drop(locks.0.lock())
    });
    let third_id = id_of(&third);
    drop(named("fourth", move || third.join().expect("no panic")));
    let ids = (id_of(&one), id_of(&other));
    let leaks = leaks_when_count(4);
    assert_eq!(
        names(&leaks),
        ["fourth", "one", "other", "third"],
        "{leaks}"
    );
    let leak = |name| find(&leaks, name).expect("just seen");
    assert_eq!(
        leak("one").goroutine().wait_reason(),
        Some("sync.Mutex.Lock")
    );
    assert_eq!(leak("one").goroutine().waits_for(), Some(ids.1), "{leaks}");
    assert_eq!(
        leak("other").goroutine().waits_for(),
        Some(ids.0),
        "{leaks}"
    );
    let why = format!(
        "goroutine {} holds the lock and can never be woken either",
        ids.1
    );
    assert_eq!(leak("one").why(), why);
    let why = format!("goroutine {third_id} can never be woken either");
    assert_eq!(leak("fourth").why(), why);
    let line = format!(", held by goroutine {}\n", ids.1);
    assert!(leak("one").to_string().contains(&line), "{leaks}");
    // Whoever does not touch them goes on.
    let (s, r) = bounded(0);
    gosched::go(move || s.send(7).expect("received"));
    assert_eq!(r.recv(), Ok(7));
    debug::check().unwrap_or_else(|v| panic!("{v}"));
    drop((one, other));
}

#[gosched::test]
fn who_locks_again_what_it_has_is_leaked() {
    let lock = Arc::new(Mutex::new(()));
    let again = named("again", {
        let lock = Arc::clone(&lock);
        move || {
            let _has = lock.lock().expect("no panic");
            drop(lock.lock());
        }
    });
    let leaks = leaks_when_count(1);
    let leak = find(&leaks, "again").unwrap_or_else(|| panic!("{leaks}"));
    assert_eq!(leak.why(), "it holds the lock itself");
    assert_eq!(leak.goroutine().waits_for(), Some(id_of(&again)));
}

#[gosched::test]
fn writers_and_readers_who_wait_for_a_leaked_writer_are_leaked() {
    let lock = Arc::new(RwLock::new(()));
    let spawn = |name: &str, f: fn(&RwLock<()>)| {
        let lock = Arc::clone(&lock);
        drop(named(name, move || f(&lock)));
    };
    spawn("holder", |lock| {
        let _has = lock.write().expect("no panic");
        thread::park();
    });
    leaks_when_count(1);
    spawn("writer", |lock| drop(lock.write()));
    spawn("reader", |lock| drop(lock.read()));
    let leaks = leaks_when_count(3);
    assert_eq!(names(&leaks), ["holder", "reader", "writer"], "{leaks}");
    let reason = |name| find(&leaks, name).and_then(|leak| leak.goroutine().wait_reason());
    assert_eq!(reason("writer"), Some("sync.RwLock.Write"));
    assert_eq!(reason("reader"), Some("sync.RwLock.Read"));
}

#[gosched::test]
fn a_lock_that_nobody_can_give_back_is_a_leak() {
    let lock = Arc::new(Mutex::new(()));
    let forgetful = named("forgetful", {
        let lock = Arc::clone(&lock);
        move || std::mem::forget(lock.lock())
    });
    let id = id_of(&forgetful);
    forgetful.join().expect("no panic");
    drop(named("waiter", move || drop(lock.lock())));
    let leaks = leaks_when_count(1);
    let leak = find(&leaks, "waiter").unwrap_or_else(|| panic!("{leaks}"));
    assert_eq!(
        leak.why(),
        format!("goroutine {id} has ended without giving the lock back")
    );
}

/// A holder that sleeps, that can be unparked, that is a plain thread, or that belongs to another runtime gives the lock back.
#[gosched::test]
fn who_waits_for_a_holder_that_goes_on_is_not_leaked() {
    let other = Runtime::builder().build().expect("a runtime");
    // Its ids are not those of anybody here.
    for _ in 0..100 {
        other.spawn(|| ()).join().expect("no panic");
    }
    let locks: Arc<[Mutex<()>; 4]> = Arc::default();
    let ready = Arc::new(Barrier::new(5));
    let hold = |at: usize, wait: fn()| {
        let (locks, ready) = (Arc::clone(&locks), Arc::clone(&ready));
        move || {
            let _has = locks[at].lock().expect("no panic");
            ready.wait();
            wait();
        }
    };
    drop(named(
        "sleeper",
        hold(0, || thread::sleep(Duration::from_secs(2))),
    ));
    let parked = named("parked", hold(1, thread::park));
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let plain = std::thread::spawn({
        let hold = hold(2, || ());
        let locks = Arc::clone(&locks);
        move || {
            hold();
            let _has = locks[2].lock().expect("no panic");
            let _ = stopped.recv();
        }
    });
    drop(other.spawn(hold(3, thread::park)));
    ready.wait();
    let waiters: Vec<_> = (0..3)
        .map(|at| {
            let locks = Arc::clone(&locks);
            named(&format!("waiter {at}"), move || drop(locks[at].lock()))
        })
        .collect();
    drop(named("waiter 3", {
        let locks = Arc::clone(&locks);
        move || drop(locks[3].lock())
    }));
    for _ in 0..20 {
        let leaks = debug::leaks();
        assert!(leaks.is_empty(), "{leaks}");
        thread::sleep(Duration::from_millis(5));
    }
    parked.thread().unpark();
    drop(stop);
    plain.join().expect("no panic");
    waiters
        .into_iter()
        .for_each(|w| w.join().expect("no panic"));
}

/// Who may be notified is not leaked, even if nobody does so.
#[gosched::test]
fn who_waits_for_a_condition_is_not_leaked() {
    let pair = Arc::new((Mutex::new(()), Condvar::new()));
    let waiter = named("waiter", {
        let pair = Arc::clone(&pair);
        move || {
            let guard = pair.0.lock().expect("no panic");
            drop(pair.1.wait(guard));
        }
    });
    let leaks = leaks_when_waiting(&["waiter"]);
    assert!(leaks.is_empty(), "{leaks}");
    pair.1.notify_all();
    waiter.join().expect("no panic");
}

/// The report of a deadlock names who holds what.
#[test]
fn u6_a_deadlock_of_locks_names_the_holders() {
    let out = child("u6_a_deadlock_of_locks_names_the_holders", || {
        gosched::run(|| {
            let locks = Arc::new((Mutex::new(()), Mutex::new(()), Barrier::new(2)));
            let other = Arc::clone(&locks);
            let _other = named("other", move || lock_both(&other.1, &other.0, &other.2));
            lock_both(&locks.0, &locks.1, &locks.2);
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
    out.says(&[
        "goroutine 1 [sync.Mutex.Lock] {name: main}:\n",
        " [sync.Mutex.Lock] {name: other}:\n",
        "\nwaits on mutex 0x",
        ", held by goroutine 1\n",
        ", held by goroutine 2\n",
    ]);
}

/// Marked until the next check, which decides anew.
#[gosched::test]
fn the_mark_is_taken_back_at_the_next_check() {
    drop(named("lost", thread::park));
    let first = leaks_when_waiting(&["lost"]);
    assert_eq!(names(&first), ["lost"], "{first}");
    let seen = in_dump("lost");
    assert!(seen.is_leaked());
    assert_eq!((seen.state(), seen.wait_reason()), ("leaked", Some("park")));
    assert!(
        seen.to_string()
            .contains(" [park (leaked)] {name: lost}:\n")
    );
    debug::check().unwrap_or_else(|v| panic!("{v}"));
    assert!(debug::metrics().waiting >= 1);
    // A look at it does not change it; the check finds it again.
    assert!(in_dump("lost").is_leaked());
    let second = debug::leaks();
    assert_eq!(names(&second), ["lost"], "{second}");
    let why = "nobody has a handle to unpark it with";
    assert_eq!(find(&second, "lost").expect("just seen").why(), why);
    debug::check().unwrap_or_else(|v| panic!("{v}"));
}

/// Leaked goroutines unwind when their runtime is shut down, as all that wait do.
#[test]
fn leaked_goroutines_end_with_their_runtime() {
    struct Witness(Arc<AtomicBool>);
    impl Drop for Witness {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let has_unwound = Arc::new(AtomicBool::new(false));
    let runtime = Runtime::builder().build().expect("a runtime");
    let witness = Witness(Arc::clone(&has_unwound));
    runtime.go(move || {
        let _witness = witness;
        thread::park();
    });
    let started = Instant::now();
    while runtime.leaks().is_empty() {
        assert!(started.elapsed() < PATIENCE, "{}", runtime.dump());
        std::thread::yield_now();
    }
    within(PATIENCE, "a shutdown", || runtime.shutdown(PATIENCE));
    assert!(has_unwound.load(SeqCst));
}

/// Dropping a runtime with leaked goroutines answers whoever joins one.
#[test]
fn a_join_from_outside_is_answered_when_the_runtime_goes() {
    let runtime = Runtime::builder().build().expect("a runtime");
    let joined = runtime.spawn(|| never::<i32>().recv());
    let started = Instant::now();
    while runtime.leaks().is_empty() {
        assert!(started.elapsed() < PATIENCE, "{}", runtime.dump());
        std::thread::yield_now();
    }
    drop(runtime);
    let answer = within(PATIENCE, "a join", || joined.join());
    assert!(answer.unwrap_err().is::<thread::Exited>());
}

/// A deadlock is reported as ever, and shows who was known to be leaked.
#[test]
fn u6_leaked_goroutines_are_no_hope() {
    let out = child("u6_leaked_goroutines_are_no_hope", || {
        gosched::run(|| {
            let lost = named("lost", thread::park);
            let joiner = named("joiner", move || lost.join().expect("no panic"));
            let leaks = leaks_when_waiting(&["lost", "joiner"]);
            assert_eq!(names(&leaks), ["joiner", "lost"], "{leaks}");
            let _ = joiner.join();
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
    out.says(&[
        " [park (leaked)] {name: lost} pcs: 0x",
        " [park (leaked)] {name: lost}:\n",
        " [join (leaked)] {name: joiner}:\n",
        "waits for goroutine ",
    ]);
}

/// Checks while everything moves: nobody is reported who goes on.
#[gosched::test(procs = 2)]
fn nobody_who_goes_on_is_reported() {
    let stop = Arc::new(AtomicBool::new(false));
    let locks = Arc::new((Mutex::new(0), RwLock::new(0)));
    let busy: Vec<_> = (0..20)
        .map(|_| {
            let (stop, locks) = (Arc::clone(&stop), Arc::clone(&locks));
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    let (s, r) = bounded(0);
                    let sender = thread::spawn(move || s.send(1));
                    assert_eq!(r.recv(), Ok(1));
                    sender.join().expect("no panic").expect("received");
                    for _ in 0..10 {
                        let mut held = locks.0.lock().expect("no panic");
                        *held += 1;
                        thread::yield_now(); // so that the others wait
                        drop(held);
                        let seen = *locks.1.read().expect("no panic");
                        *locks.1.write().expect("no panic") = seen + 1;
                    }
                    let parked = thread::spawn(thread::park);
                    thread::yield_now();
                    parked.thread().unpark();
                    parked.join().expect("no panic");
                    thread::scope(|scope| {
                        scope.spawn(thread::yield_now);
                    });
                    time::Timer::new(Duration::from_micros(50))
                        .chan()
                        .recv()
                        .expect("a time");
                }
            })
        })
        .collect();
    for round in 0..100 {
        let leaks = debug::leaks();
        assert!(leaks.is_empty(), "{leaks}");
        if round % 10 == 0 {
            debug::check().unwrap_or_else(|v| panic!("{v}"));
        }
        thread::yield_now();
    }
    stop.store(true, SeqCst);
    busy.into_iter()
        .for_each(|handle| handle.join().expect("no panic"));
}

/// A long chain, of which the last is leaked or is not, is decided in one go.
#[gosched::test]
fn many_goroutines_are_judged_quickly() {
    const MANY: usize = 100_000;
    let last = named("last", thread::park);
    let waker = last.thread().clone();
    let mut tail = last;
    for _ in 0..MANY {
        let before = tail;
        tail = thread::spawn(move || before.join().expect("no panic"));
    }
    let started = Instant::now();
    while debug::metrics().waiting < MANY + 1 {
        assert!(started.elapsed() < 3 * PATIENCE, "{}", debug::metrics());
        thread::sleep(Duration::from_millis(10));
    }
    let started = Instant::now();
    let leaks = debug::leaks();
    assert!(leaks.is_empty(), "{leaks}");
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    let handle = tail;
    drop(waker);
    let started = Instant::now();
    let leaks = debug::leaks();
    assert_eq!(leaks.goroutines().len(), MANY + 1);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    let text = leaks.to_string();
    assert!(text.contains("(stack not taken: there are too many)"));
    debug::check().unwrap_or_else(|v| panic!("{v}"));
    drop(handle);
}

#[test]
#[should_panic(
    expected = "gosched::debug::leaks called outside a runtime: use Runtime::leaks or Handle::leaks"
)]
fn outside_a_runtime_it_says_what_to_do() {
    let _ = debug::leaks();
}
