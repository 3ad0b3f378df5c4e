//! Goroutines that wait for channels.

use std::sync::Arc;

use gosched::chan::{Select, bounded, never, select, unbounded};
use gosched::thread;

use super::{PATIENCE, find, leaks_when_some, leaks_when_waiting, named, names};
use crate::common::child;

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

/// A goroutine is not leaked while a handle of the channel's other side exists anywhere.
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

/// Both ends of a channel are in one select, which does not meet itself, and no other partner can
/// come. No foreign thread may be alive for that verdict, so the test is a process of its own.
#[test]
fn a_select_that_has_its_channel_alone_is_leaked() {
    let out = child(
        "channels::a_select_that_has_its_channel_alone_is_leaked",
        || {
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
                let why =
                    "nobody can use its channels but goroutines that can never be woken either";
                assert_eq!(find(&leaks, "alone").expect("just seen").why(), why);
            });
        },
    );
    out.succeeded();
}

/// A foreign thread that is alive may have borrowed the ends.
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

/// One goroutine waits until it could receive, another until it could send, and no one does either.
#[test]
fn two_that_wait_to_be_ready_for_each_other_are_leaked() {
    let out = child(
        "channels::two_that_wait_to_be_ready_for_each_other_are_leaked",
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
                let leaks = leaks_when_some(&["receiver", "sender"]);
                assert_eq!(names(&leaks), ["receiver", "sender"], "{leaks}");
            });
        },
    );
    out.succeeded();
}
