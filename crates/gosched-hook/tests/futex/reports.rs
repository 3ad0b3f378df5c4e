//! Dumps, deadlocks and leaks.

use std::sync::{Arc, Condvar, Mutex, mpsc};

use crate::common::{child, ms, until};

fn dump() -> String {
    gosched::debug::dump().to_string()
}

#[test]
fn a_dump_names_the_futex() {
    let done = child("a_dump_names_the_futex", || {
        gosched::run(|| {
            let lock = Arc::new(Mutex::new(()));
            let guard = lock.lock().unwrap();
            let waiter = {
                let lock = Arc::clone(&lock);
                gosched::thread::spawn(move || drop(lock.lock().unwrap()))
            };
            // The word of std's mutex is its first.
            let address = format!("waits on futex {:#x}", Arc::as_ptr(&lock).addr());
            until(|| dump().contains("[std futex]") && dump().contains(&address));
            drop(guard);
            waiter.join().unwrap();
        });
    });
    done.succeeded();
}

#[test]
fn a_deadlock_of_std_locks_is_reported() {
    let out = child("a_deadlock_of_std_locks_is_reported", || {
        gosched::run(|| {
            let locks = Arc::new((Mutex::new(()), Mutex::new(()), Condvar::new()));
            let other = Arc::clone(&locks);
            let first = locks.0.lock().unwrap();
            gosched::go(move || {
                let second = other.1.lock().unwrap();
                drop(other.0.lock().unwrap());
                drop(second);
            });
            gosched::go({
                let locks = Arc::clone(&locks);
                move || {
                    let own = Mutex::new(());
                    drop(locks.2.wait(own.lock().unwrap()));
                }
            });
            let (_keep, never) = mpsc::channel::<()>();
            gosched::go(move || assert!(never.recv().is_ok()));
            gosched::thread::sleep(ms(20));
            drop(locks.1.lock().unwrap());
            drop(first);
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
    out.goroutine("[std futex] {name: main}");
    assert_eq!(out.goroutines("[std futex]").len(), 3, "{out:#?}");
    out.says(&["waits on futex 0x"]);
}

/// A thread of the program may yet wake the goroutine.
#[test]
fn a_thread_is_hope() {
    let done = child("a_thread_is_hope", || {
        let (send, receive) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(ms(2_500));
            send.send(7).unwrap();
        });
        assert_eq!(gosched::run(move || receive.recv()), Ok(7));
        thread.join().unwrap();
    });
    done.succeeded();
}

/// The runtime does not know what wakes a futex: it never calls such a wait a leak.
#[test]
fn a_futex_is_no_leak() {
    let done = child("a_futex_is_no_leak", || {
        gosched::run(|| {
            let (keep, never) = mpsc::channel::<()>();
            let waiter = gosched::thread::spawn(move || never.recv());
            until(|| dump().contains("[std futex]"));
            let leaks = gosched::debug::leaks();
            assert!(leaks.is_empty(), "{leaks:?}");
            drop(keep);
            assert!(waiter.join().unwrap().is_err());
        });
    });
    done.succeeded();
}
