//! What a goroutine of a dropped runtime waited for goes to a waiter of a live runtime (D2).
//!
//! Each [`Thing`] can be waited for by any number of goroutines and is granted once. A goroutine of
//! the runtime that is dropped waits first, one of a live runtime second. The second one must get
//! it.

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver as Answers, Sender as Answer, channel as answers};

use gosched::chan::{self, Receiver, Sender};
use gosched::os::unix::net::UnixStream;
use gosched::sync::{
    Condvar, Mutex as GMutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore,
    SemaphoreGuard,
};

use super::*;

/// Rounds of each test; `GOSCHED_ROUNDS` asks for more.
pub(super) fn rounds(default: usize) -> usize {
    let asked = std::env::var("GOSCHED_ROUNDS").ok();
    asked.and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// Something to wait for.
trait Thing: Send + Sync {
    /// Waits for it, and passes it on to the next waiter if it is a lock.
    fn wait(&self);
    /// Grants it, once.
    fn grant(&self);
    /// Whether a waiter finds what was granted before the waiter came.
    fn is_kept(&self) -> bool {
        true
    }
}

/// How a channel's receiver waits.
#[derive(Clone, Copy)]
enum Way {
    Recv,
    Timed,
    Select,
}

struct Channel(Sender<u32>, Receiver<u32>, Way, &'static str);

impl Channel {
    fn boxed((s, r): (Sender<u32>, Receiver<u32>), way: Way, name: &'static str) -> Arc<dyn Thing> {
        Arc::new(Channel(s, r, way, name))
    }
}

impl Thing for Channel {
    fn wait(&self) {
        let got = match self.2 {
            Way::Recv => self.1.recv().unwrap(),
            Way::Timed => self.1.recv_timeout(Duration::from_secs(3600)).unwrap(),
            Way::Select => {
                let never = chan::never::<u32>();
                gosched::select! {
                    recv(self.1) -> got => got.unwrap(),
                    recv(never) -> got => got.unwrap(),
                }
            }
        };
        assert_eq!(got, 7, "{}", self.3);
    }

    fn grant(&self) {
        self.0.send(7).unwrap();
    }
}

/// A lock that the main thread holds until it grants it.
struct Held<L: 'static, G: 'static>(&'static L, Mutex<Option<G>>, fn(&'static L));

// SAFETY: the guard is dropped by the thread that made the lock's holder: the test's main thread.
unsafe impl<L: Sync, G> Send for Held<L, G> {}
// SAFETY: the guard is reached through its mutex only, by the thread that made it.
unsafe impl<L: Sync, G> Sync for Held<L, G> {}

impl<L: Sync, G> Held<L, G> {
    fn boxed(lock: L, hold: fn(&'static L) -> G, wait: fn(&'static L)) -> Arc<dyn Thing> {
        let lock: &'static L = Box::leak(Box::new(lock));
        Arc::new(Held(lock, Mutex::new(Some(hold(lock))), wait))
    }
}

impl<L: Sync, G> Thing for Held<L, G> {
    fn wait(&self) {
        (self.2)(self.0);
    }

    fn grant(&self) {
        drop(self.1.lock().unwrap().take());
    }
}

#[derive(Default)]
struct Notified(GMutex<()>, Condvar);

impl Thing for Notified {
    fn wait(&self) {
        drop(self.1.wait(self.0.lock().unwrap()));
    }

    fn grant(&self) {
        self.1.notify_one();
    }

    fn is_kept(&self) -> bool {
        false
    }
}

struct Socket(UnixStream, UnixStream);

impl Thing for Socket {
    fn wait(&self) {
        assert_eq!((&self.1).read(&mut [0]).unwrap(), 1);
    }

    fn grant(&self) {
        assert_eq!((&self.0).write(&[7]).unwrap(), 1);
    }
}

type Reads = RwLockReadGuard<'static, ()>;
type Writes = RwLockWriteGuard<'static, ()>;

/// One of each.
fn things() -> Vec<Arc<dyn Thing>> {
    let (a, b) = UnixStream::pair().unwrap();
    vec![
        Channel::boxed(chan::bounded(0), Way::Recv, "no capacity"),
        Channel::boxed(chan::bounded(1), Way::Recv, "capacity 1"),
        Channel::boxed(chan::unbounded(), Way::Recv, "unbounded"),
        Channel::boxed(chan::bounded(0), Way::Timed, "no capacity, timed"),
        Channel::boxed(chan::bounded(0), Way::Select, "no capacity, select"),
        Channel::boxed(chan::bounded(2), Way::Select, "capacity 2, select"),
        Channel::boxed(chan::unbounded(), Way::Select, "unbounded, select"),
        Held::<GMutex<()>, MutexGuard<'static, ()>>::boxed(
            GMutex::new(()),
            |lock| lock.lock().unwrap(),
            |lock| drop(lock.lock().unwrap()),
        ),
        Held::<RwLock<()>, Writes>::boxed(
            RwLock::new(()),
            |lock| lock.write().unwrap(),
            |lock| drop(lock.write().unwrap()),
        ),
        // A reader that was let in and never leaves would keep this writer out.
        Held::<RwLock<()>, Writes>::boxed(
            RwLock::new(()),
            |lock| lock.write().unwrap(),
            |lock| {
                drop(lock.read().unwrap());
                drop(lock.write().unwrap());
            },
        ),
        // The first writer has shut the door and waits for the reader to leave.
        Held::<RwLock<()>, Reads>::boxed(
            RwLock::new(()),
            |lock| lock.read().unwrap(),
            |lock| drop(lock.write().unwrap()),
        ),
        Held::<Semaphore, SemaphoreGuard<'static>>::boxed(
            Semaphore::new(1),
            |semaphore| semaphore.acquire(),
            |semaphore| drop(semaphore.acquire()),
        ),
        Arc::new(Notified::default()),
        Arc::new(Socket(a, b)),
    ]
}

/// Waiters for every thing, which answer with the thing's number.
fn start_waiters(runtime: &Runtime, things: &[Arc<dyn Thing>], answer: &Answer<usize>) {
    let before = parked(&runtime.handle());
    for (n, thing) in things.iter().enumerate() {
        let (thing, answer) = (Arc::clone(thing), answer.clone());
        runtime.go(move || {
            thing.wait();
            let _ = answer.send(n);
        });
        // One after the other: the table's buckets and the sockets see them in order.
        until_parked(&runtime.handle(), before + n + 1);
    }
}

#[track_caller]
fn assert_all_got(things: usize, got: &Answers<usize>, when: &str) {
    let mut missing: Vec<usize> = (0..things).collect();
    while !missing.is_empty() {
        match got.recv_timeout(LONG) {
            Ok(n) => missing.retain(|m| *m != n),
            Err(_) => panic!("{when}: nobody got {missing:?}"),
        }
    }
}

/// Keeps a P, and with it the drop, busy until it is let go.
fn start_computing(runtime: &Runtime) -> Arc<AtomicBool> {
    let (began, release) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (has_begun, released) = (Arc::clone(&began), Arc::clone(&release));
    runtime.go(move || {
        has_begun.store(true, SeqCst);
        while !released.load(SeqCst) {
            std::hint::spin_loop();
        }
    });
    assert!(eventually(|| began.load(SeqCst)));
    release
}

/// Grants while the runtime is being dropped, which takes a while: a goroutine computes. Its
/// waiters are first in line.
#[test]
fn d2_what_is_granted_during_a_drop_goes_to_the_living() {
    let live = runtime(1);
    for _ in 0..rounds(50) {
        let (dropped, things) = (runtime(2), things());
        let (lost, _nobody) = answers();
        let (answer, got) = answers();
        start_waiters(&dropped, &things, &lost);
        let release = start_computing(&dropped);
        start_waiters(&live, &things, &answer);
        let handle = dropped.handle();
        let dropper = std::thread::spawn(move || drop(dropped));
        assert!(eventually(|| handle.metrics().is_err()), "the drop begins");
        things.iter().for_each(|thing| thing.grant());
        assert_all_got(things.len(), &got, "granted during the drop");
        dropper.join().unwrap();
        release.store(true, SeqCst);
    }
}

/// Grants just before the drop: the waiters are Runnable, in a queue, and never run, since a
/// goroutine has the only P.
#[test]
fn d2_what_a_goroutine_got_and_never_saw_is_passed_on() {
    for (is_late, round) in (0..rounds(50)).flat_map(|n| [(false, n), (true, n)]) {
        let live = runtime(1);
        let dropped = Runtime::builder()
            .procs(1)
            .preemption(false)
            .build()
            .unwrap();
        let mut things = things();
        if is_late {
            things.retain(|thing| thing.is_kept());
        }
        let (lost, saw) = answers();
        let (answer, got) = answers();
        start_waiters(&dropped, &things, &lost);
        let release = start_computing(&dropped);
        if !is_late {
            start_waiters(&live, &things, &answer);
        }
        things.iter().for_each(|thing| thing.grant());
        within(LONG, "drop", move || drop(dropped));
        if is_late {
            let (live, things) = (&live, &things);
            for (n, thing) in things.iter().enumerate() {
                let (thing, answer) = (Arc::clone(thing), answer.clone());
                live.go(move || {
                    thing.wait();
                    answer.send(n).unwrap();
                });
            }
        }
        let when = if is_late {
            "asked for after the drop"
        } else {
            "waited for before it"
        };
        assert_all_got(things.len(), &got, when);
        release.store(true, SeqCst);
        drop(lost);
        assert!(
            saw.try_recv().is_err(),
            "round {round}: the P was kept busy"
        );
    }
}

/// Grants at the moment of the drop: the waiter has run, or the other one gets it.
#[test]
fn d2_a_grant_beside_the_beginning_of_a_drop_is_not_lost() {
    for round in 0..rounds(50) {
        let (live, dropped, things) = (runtime(1), runtime(2), things());
        let (first, first_got) = answers();
        let (answer, got) = answers();
        start_waiters(&dropped, &things, &first);
        let release = start_computing(&dropped);
        start_waiters(&live, &things, &answer);
        let barrier = Arc::new(Barrier::new(2));
        let dropper = std::thread::spawn({
            let barrier = Arc::clone(&barrier);
            move || {
                barrier.wait();
                compute(Duration::from_micros(round as u64 * 7 % 150));
                drop(dropped);
            }
        });
        barrier.wait();
        things.iter().for_each(|thing| thing.grant());
        dropper.join().unwrap();
        release.store(true, SeqCst);
        let mut missing: Vec<usize> = (0..things.len()).collect();
        let until = Instant::now() + LONG;
        while !missing.is_empty() {
            for n in first_got.try_iter().chain(got.try_iter()) {
                missing.retain(|m| *m != n);
            }
            assert!(
                Instant::now() < until,
                "round {round}: nobody got {missing:?}"
            );
            std::thread::yield_now();
        }
    }
}

/// During the drop a waiter of the dropped runtime does not count: without capacity there is no
/// receiver for a message.
#[test]
fn d2_a_rendezvous_during_a_drop_finds_nobody() {
    let dropped = runtime(2);
    let (s, r) = chan::bounded(0);
    let receiver = r.clone();
    dropped.go(move || _ = receiver.recv());
    until_parked(&dropped.handle(), 1);
    let release = start_computing(&dropped);
    let handle = dropped.handle();
    let dropper = std::thread::spawn(move || drop(dropped));
    assert!(eventually(|| handle.metrics().is_err()), "the drop begins");
    assert!(s.try_send(1).is_err());
    let sender = std::thread::spawn(move || s.send(2));
    assert_eq!(r.recv_timeout(LONG), Ok(2));
    sender.join().unwrap().unwrap();
    dropper.join().unwrap();
    release.store(true, SeqCst);
}

/// A goroutine that has returned from its wait keeps what it got, also if it is queued again when
/// its runtime is dropped.
#[test]
fn d2_what_a_goroutine_has_seen_is_not_passed_on() {
    let dropped = Runtime::builder()
        .procs(1)
        .preemption(false)
        .build()
        .unwrap();
    let (s, r) = chan::unbounded();
    let (receiver, seen) = (r.clone(), Arc::new(AtomicUsize::new(0)));
    let sees = Arc::clone(&seen);
    dropped.go(move || {
        let mut buffer = [0_u64; 64]; // the frame of the wait is written over
        buffer[0] = receiver.recv().unwrap();
        sees.store(buffer[0] as usize, SeqCst);
        loop {
            thread::yield_now();
        }
    });
    until_parked(&dropped.handle(), 1);
    s.send(7).unwrap();
    assert!(eventually(|| seen.load(SeqCst) == 7));
    let release = start_computing(&dropped);
    within(LONG, "drop", || drop(dropped));
    assert!(r.try_recv().is_err(), "received twice");
    release.store(true, SeqCst);
}

/// A shutdown asks a writer to unwind, and ends before the writer runs. The writer had taken the
/// lock and waited for its readers to leave. Once they have left, the lock is free.
#[test]
fn d2_a_lock_of_a_writer_that_never_unwinds_is_given_back() {
    let dropped = Runtime::builder()
        .procs(1)
        .preemption(false)
        .build()
        .unwrap();
    let lock: &'static RwLock<()> = Box::leak(Box::default());
    let reads = lock.read().unwrap();
    dropped.go(|| drop(lock.write()));
    until_parked(&dropped.handle(), 1);
    let release = start_computing(&dropped);
    dropped.shutdown(Duration::ZERO);
    drop(reads);
    let writer = std::thread::spawn(|| drop(lock.write().unwrap()));
    assert!(
        eventually(|| writer.is_finished()),
        "nobody gives the lock back"
    );
    release.store(true, SeqCst);
}

/// A value of the clock that a dropped runtime's receiver was given goes to the next receiver,
/// unless the timer is reset.
#[test]
fn d2_a_tick_that_was_taken_back_is_found_or_forgotten() {
    for sets_anew in [false, true] {
        while !a_tick_is_taken_back(sets_anew) {}
    }
}

/// False if the machine was so slow that the receiver had the value before its P was kept busy.
fn a_tick_is_taken_back(sets_anew: bool) -> bool {
    const TIME: Duration = Duration::from_secs(1);
    let dropped = Runtime::builder()
        .procs(1)
        .preemption(false)
        .build()
        .unwrap();
    let (began, timer) = (Instant::now(), Arc::new(gosched::time::Timer::new(TIME)));
    let waits = Arc::clone(&timer);
    dropped.go(move || _ = waits.chan().recv());
    until_parked(&dropped.handle(), 1);
    let release = start_computing(&dropped);
    let is_in_time = began.elapsed() < TIME - Duration::from_millis(100);
    if is_in_time {
        std::thread::sleep(Duration::from_millis(1_200));
        within(LONG, "drop", || drop(dropped));
        if sets_anew {
            timer.reset(Duration::from_secs(3_600));
            assert!(timer.chan().try_recv().is_err(), "a stale value");
        } else {
            assert!(timer.chan().recv_timeout(LONG).is_ok());
        }
    }
    release.store(true, SeqCst);
    is_in_time
}

/// A goroutine of `dropped`, which has one P and does not preempt, does its `work` when its slice
/// is over. If it yields in the middle of the work, the P goes to a goroutine that keeps it, and
/// the first one never runs again. Returns when the work is done or the goroutine has yielded.
pub(super) fn work_at_the_end_of_a_slice(
    dropped: &Runtime,
    work: impl FnOnce() + Send + 'static,
) -> Arc<AtomicBool> {
    let (settled, release) = (alive(), Arc::new(AtomicBool::new(false)));
    let (ended, began, released) = (
        Arc::clone(&settled),
        Arc::clone(&settled),
        Arc::clone(&release),
    );
    dropped.go(move || {
        gosched::go(move || {
            began.store(1, SeqCst);
            while !released.load(SeqCst) {
                std::hint::spin_loop();
            }
        });
        // It is asked to yield, and does so in the next call that allows it.
        compute(Duration::from_millis(200));
        work();
        ended.store(1, SeqCst);
    });
    assert!(eventually(|| settled.load(SeqCst) == 1));
    release
}

pub(super) fn one_p_without_preemption() -> Runtime {
    let builder = Runtime::builder().procs(1).preemption(false);
    builder.build().unwrap()
}

/// A call of `cancel` ends a context and everything below it. A drop of its runtime meanwhile
/// changes nothing.
#[test]
fn d2_a_context_is_not_cancelled_by_half() {
    let root = gosched::context::Context::background().with_cancel();
    let children: Vec<_> = (0..100).map(|_| root.with_cancel()).collect();
    let (dropped, cancelled) = (one_p_without_preemption(), root.clone());
    let release = work_at_the_end_of_a_slice(&dropped, move || cancelled.cancel());
    within(LONG, "drop", || drop(dropped));
    assert!(root.err().is_some());
    for child in children {
        let closed = child.done().recv_timeout(LONG);
        assert_eq!(closed, Err(chan::RecvTimeoutError::Disconnected));
    }
    release.store(true, SeqCst);
}

/// A goroutine that sets or stops a timer leaves it unlocked. A drop of its runtime meanwhile
/// changes nothing.
#[test]
fn d2_a_timer_is_not_locked_for_ever() {
    const HOUR: Duration = Duration::from_secs(3_600);
    for stops in [false, true] {
        let dropped = one_p_without_preemption();
        let timer = dropped.run(|| Arc::new(gosched::time::after_func(HOUR, || ())));
        let set = Arc::clone(&timer);
        let release = work_at_the_end_of_a_slice(&dropped, move || {
            let _ = match stops {
                true => set.stop(),
                false => set.reset(HOUR),
            };
        });
        within(LONG, "drop", || drop(dropped));
        within(LONG, "stop", || timer.stop());
        release.store(true, SeqCst);
    }
}
