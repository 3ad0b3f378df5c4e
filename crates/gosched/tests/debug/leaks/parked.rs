//! Goroutines that are parked, that join, and that wait for a scope to end.

use std::time::Instant;

use gosched::chan::{bounded, never};
use gosched::thread::{self, JoinHandle};
use gosched::{Runtime, debug};

use super::{PATIENCE, find, id_of, leaks_when_some, leaks_when_waiting, named, names};

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
    assert!(site.file().ends_with("leaks/parked.rs"), "{leaks}");
    let frames = lost.goroutine().frames();
    assert!(frames[0].function().contains("park"), "{leaks}");
    let text = leaks.to_string();
    assert!(text.contains(" [park (leaked)] {name: lost}:\n"), "{text}");
    assert!(text.ends_with("can never be woken: nobody has a handle to unpark it with\n"));
    kept.thread().unpark();
    kept.join().expect("no panic");
}

/// A goroutine is not leaked while its handle exists elsewhere: on a plain thread, in a static, on
/// its own stack.
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
