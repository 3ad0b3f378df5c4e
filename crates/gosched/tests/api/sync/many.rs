//! Many waiters: waking n of them takes time linear in n, and the table has room for all.
//!
//! What is compared is CPU time, in a process that does nothing else: a busy machine makes it
//! longer, but not for some sizes only.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gosched::sync::{Arc, Condvar, Mutex, RwLock, WaitGroup};
use gosched::{Runtime, thread};

use super::{ms, wait_for};
use crate::common::{child_of, process_cpu_time};

/// One thing that `n` wait for: the time from `open` until all have noticed.
fn time_to_wake<T: Send + Sync + 'static>(
    n: usize,
    thing: T,
    wait: fn(&T),
    open: impl FnOnce(&T),
) -> Duration {
    let shared = Arc::new((thing, AtomicUsize::new(0), AtomicUsize::new(0)));
    for _ in 0..n {
        let shared = Arc::clone(&shared);
        gosched::go(move || {
            let (thing, begun, woken) = &*shared;
            begun.fetch_add(1, SeqCst);
            wait(thing);
            woken.fetch_add(1, SeqCst);
        });
    }
    let (thing, begun, woken) = &*shared;
    wait_for(begun, n);
    thread::sleep(ms(5)); // and the last ones are asleep
    let before = process_cpu_time();
    open(thing);
    wait_for(woken, n);
    process_cpu_time() - before
}

/// The numbers of waiters that are compared.
const FEW: usize = 1_000;
const MANY: usize = 50_000;

/// Fifty times as many waiters take fifty times as long if the work is linear, and 2,500 times if
/// it is quadratic. The limit lies between the two, far from both: caches hold a few waiters and
/// not many, and other programs use them too.
const LIMIT: u32 = 400;

/// Waking `MANY` takes less than `LIMIT` times as long as waking `FEW`: if not at once, then at a
/// quieter moment. The test of that `name` does this, in a process of its own.
fn assert_linear(name: &str, time: impl Fn(usize) -> Duration + Sync) {
    static ONE_AFTER_THE_OTHER: Mutex<()> = Mutex::new(());
    let _turn = ONE_AFTER_THE_OTHER.lock();
    let body = |_: &str| {
        let builder = Runtime::builder().procs(2).stack_size(64 * 1024);
        let runtime = builder.build().unwrap();
        runtime.run(|| try_until_linear(&time));
    };
    child_of(name, "", body).succeeded();
}

fn try_until_linear(time: &impl Fn(usize) -> Duration) {
    let (mut few, mut many) = (Duration::MAX, Duration::MAX);
    for _ in 0..3 {
        few = (0..5).map(|_| time(FEW)).fold(few, Duration::min);
        many = many.min(time(MANY));
        if many < few * LIMIT {
            return;
        }
    }
    panic!("{FEW} in {few:?}, {MANY} in {many:?}");
}

#[test]
fn notify_all_is_linear() {
    let waits = |(mutex, condvar): &(Mutex<bool>, Condvar)| {
        drop(condvar.wait_while(mutex.lock().unwrap(), |is_open| !*is_open));
    };
    let opens = |(mutex, condvar): &(Mutex<bool>, Condvar)| {
        *mutex.lock().unwrap() = true;
        condvar.notify_all();
    };
    assert_linear("many::notify_all_is_linear", |n| {
        time_to_wake(n, (Mutex::new(false), Condvar::new()), waits, opens)
    });
}

#[test]
fn the_end_of_a_wait_group_is_linear() {
    assert_linear("many::the_end_of_a_wait_group_is_linear", |n| {
        let group = WaitGroup::new();
        group.add(1);
        time_to_wake(n, group, WaitGroup::wait, WaitGroup::done)
    });
}

#[test]
fn letting_readers_in_is_linear() {
    assert_linear("many::letting_readers_in_is_linear", |n| {
        let lock = Arc::new(RwLock::new(()));
        let shared = Arc::clone(&lock);
        let writer = lock.write().unwrap();
        time_to_wake(n, shared, |lock| drop(lock.read()), |_| drop(writer))
    });
}

/// As many locks as there are goroutines, each held, and each with one waiter: finding one is not
/// slower because of the others.
#[test]
fn many_addresses_are_linear() {
    type Locks = Arc<(AtomicUsize, Vec<Mutex<()>>)>;
    assert_linear("many::many_addresses_are_linear", |n| {
        let locks = (0..n).map(|_| Mutex::new(())).collect();
        let all: Locks = Arc::new((AtomicUsize::new(0), locks));
        let guards: Vec<_> = all.1.iter().map(|lock| lock.lock().unwrap()).collect();
        let waits = |all: &Locks| drop(all.1[all.0.fetch_add(1, SeqCst)].lock());
        time_to_wake(n, Arc::clone(&all), waits, |_| drop(guards))
    });
}
