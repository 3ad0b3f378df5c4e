//! Goroutines that wait for locks.

use std::sync::Arc;
use std::time::Duration;

use gosched::chan::bounded;
use gosched::sync::{Barrier, Condvar, Mutex, RwLock};
use gosched::{Runtime, debug, thread};

use super::{find, id_of, leaks_when_count, leaks_when_waiting, named, names};
use crate::common::child;

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
    // Until both wait, a third one could find a lock free.
    leaks_when_count(2);
    // One more goroutine that wants their locks, and one that joins it.
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
    // Goroutines that do not touch them continue.
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

/// A holder that sleeps, that can be unparked, that is a plain thread, or that belongs to another
/// runtime gives the lock back.
#[test]
fn who_waits_for_a_holder_that_goes_on_is_not_leaked() {
    // Not `gosched::test`: there all goroutines may wait for the plain thread, and that would be a
    // deadlock.
    gosched::run(wait_for_holders_that_go_on);
}

fn wait_for_holders_that_go_on() {
    let other = Runtime::builder().build().expect("a runtime");
    // Its ids are not ids of goroutines here.
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

/// A goroutine that could be notified is not leaked, even if that never happens.
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

/// The report of a deadlock names the holder of each lock.
#[test]
fn u6_a_deadlock_of_locks_names_the_holders() {
    let out = child("locks::u6_a_deadlock_of_locks_names_the_holders", || {
        gosched::run(|| {
            let locks = Arc::new((Mutex::new(()), Mutex::new(()), Barrier::new(2)));
            let other = Arc::clone(&locks);
            let _other = named("other", move || lock_both(&other.1, &other.0, &other.2));
            lock_both(&locks.0, &locks.1, &locks.2);
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
    let other = out.goroutine("[sync.Mutex.Lock] {name: other}");
    out.says(&[
        "goroutine 1 [sync.Mutex.Lock] {name: main}:\n",
        "\nwaits on mutex 0x",
        ", held by goroutine 1\n",
        &format!(", held by goroutine {other}\n"),
    ]);
}
