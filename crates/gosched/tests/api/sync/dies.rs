//! U6: locks that can never be had are deadlocks, and the report says what is waited for.

use gosched::sync::{Arc, Barrier, Condvar, Mutex, Once, RwLock, Semaphore, WaitGroup};
use gosched::thread;

use crate::common::{Output, child_of};

const DEADLOCK: &str = "fatal error: all goroutines are asleep - deadlock!";

fn dies_waiting(out: &Output, reason: &str) {
    out.died_with(&[DEADLOCK]);
    out.says(&[&format!("goroutine 1 [{reason}]")]);
}

#[test]
fn u6_what_can_never_be_had_is_a_deadlock() {
    let name = "dies::u6_what_can_never_be_had_is_a_deadlock";
    let body = |variant: &str| {
        gosched::run(|| match variant {
            "relock" => {
                let mutex = Mutex::new(0);
                let _one = mutex.lock().unwrap();
                drop(mutex.lock());
            }
            "read and write" => {
                let lock = RwLock::new(0);
                let _one = lock.read().unwrap();
                drop(lock.write());
            }
            "write and read" => {
                let lock = RwLock::new(0);
                let _one = lock.write().unwrap();
                drop(lock.read());
            }
            "once in itself" => {
                let once = Once::new();
                once.call_once(|| once.call_once(|| ()));
            }
            "nobody notifies" => drop(Condvar::new().wait(Mutex::new(0).lock().unwrap())),
            "alone" => assert!(!Barrier::new(2).wait().is_leader()),
            "nobody comes" => {
                let group = WaitGroup::new();
                group.add(1);
                group.wait();
            }
            "no permits" => drop(Semaphore::new(0).acquire()),
            other => panic!("{other}"),
        })
    };
    let dies = |variant, reason| dies_waiting(&child_of(name, variant, body), reason);
    dies("relock", "sync.Mutex.Lock");
    dies("read and write", "sync.RwLock.Write");
    dies("write and read", "sync.RwLock.Read");
    dies("once in itself", "sync.Once");
    dies("nobody notifies", "sync.Condvar.Wait");
    dies("alone", "sync.Barrier.Wait");
    dies("nobody comes", "sync.WaitGroup.Wait");
    dies("no permits", "sync.Semaphore.Acquire");
}

/// Two that wait for each other's lock, and a third that waits for both.
#[test]
fn u6_a_cycle_of_locks_is_a_deadlock() {
    let out = child_of("dies::u6_a_cycle_of_locks_is_a_deadlock", "", |_| {
        gosched::run(|| {
            let locks = Arc::new((Mutex::new(()), RwLock::new(()), Barrier::new(2)));
            let other = Arc::clone(&locks);
            let crosses = thread::spawn(move || {
                let _one = other.1.write().unwrap();
                other.2.wait();
                drop(other.0.lock());
            });
            let _other = locks.0.lock().unwrap();
            locks.2.wait();
            let third = Arc::clone(&locks);
            gosched::go(move || drop(third.0.lock()));
            drop(locks.1.read());
            crosses.join().unwrap();
        });
    });
    dies_waiting(&out, "sync.RwLock.Read");
    let on_the_mutex = out.goroutines("[sync.Mutex.Lock]");
    assert_eq!(on_the_mutex.len(), 2, "{out:#?}");
}
