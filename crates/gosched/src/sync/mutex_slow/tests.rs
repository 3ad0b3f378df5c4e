use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};
use std::time::Duration;

use crate::Runtime;
use crate::sched::model::current::current_g;
use crate::sched::model::g::{G, WaitReason};
use crate::sched::model::m::YIELD;
use crate::sched::model::ptr::{Gp, Ptr};
use crate::sched::waiting::sema::Grant;
use crate::sync::mutex_slow::*;
use crate::tests::eventually;

static KIND: KeyKind<LockWord> = KeyKind::granting::<NothingToPassOn>(WaitReason::Mutex);

struct NothingToPassOn;

impl Grant for NothingToPassOn {
    type Word = LockWord;

    fn pass_on(_: &LockWord, _: Option<usize>, _: Option<&AtomicU32>) {}
}

/// Starts a goroutine that holds the only P of its runtime until it is released.
fn hog(runtime: &Runtime) -> (Arc<AtomicBool>, Arc<AtomicBool>) {
    let (began, release) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let (has_begun, released) = (Arc::clone(&began), Arc::clone(&release));
    runtime.go(move || {
        has_begun.store(true, SeqCst);
        while !released.load(SeqCst) {
            std::hint::spin_loop();
        }
    });
    (began, release)
}

/// A woken or notified locker reaches the table just when the lock has become free, and is asked to
/// yield there. It must take the lock first. In a queue it would be abandoned together with its
/// wake-up.
fn no_room_before_the_lock(is_notified: bool) {
    let runtime = Runtime::builder().procs(1).preemption(false);
    let runtime = runtime.build().unwrap();
    let word: &'static LockWord = Box::leak(Box::new(LockWord(AtomicUsize::new(LOCKED))));
    let locker: &'static AtomicPtr<G> = Box::leak(Box::default());
    let locked = Arc::new(AtomicBool::new(false));
    let has_locked = Arc::clone(&locked);
    let key = key_of(word);
    let table = is_notified.then(|| sema::lock(key));
    runtime.go(move || {
        static CONDVAR: AtomicU32 = AtomicU32::new(0);
        let beside = is_notified.then_some(&CONDVAR);
        locker.store(current_g().unwrap().as_ptr(), SeqCst);
        lock_beside(word, &Owner::new(), &KIND, beside);
        has_locked.store(true, SeqCst);
    });
    let table = table.unwrap_or_else(|| {
        // The locker waits, is woken while another goroutine holds the P, and finds the lock held
        // again.
        assert!(eventually(|| runtime.metrics().waiting == 1));
        let (began, release) = hog(&runtime);
        assert!(eventually(|| began.load(SeqCst)));
        unlock_slow(word, 0, |_, _| {});
        assert!(word.acquire(LOCKED, Locker::default()).is_ok());
        let table = sema::lock(key);
        release.store(true, SeqCst);
        table
    });
    assert!(eventually(|| !locker.load(SeqCst).is_null()));
    // SAFETY: GF: Gs are type-stable, and the runtime of this G is not dropped yet.
    let g: Gp = unsafe { Ptr::from_raw(locker.load(SeqCst)) }.unwrap();
    let is_inside = || g.m.load(SeqCst).is_some_and(|m| m.claim.depth() > 1);
    assert!(eventually(is_inside), "at the table");
    std::thread::sleep(Duration::from_millis(100));
    let m = g.m.load(SeqCst).unwrap();
    let (_, release) = hog(&runtime);
    assert!(word.unlock(0), "nobody is to be woken");
    m.ask(YIELD);
    drop(table);
    assert!(eventually(|| locked.load(SeqCst)), "it has made room first");
    release.store(true, SeqCst);
}

#[test]
fn d2_a_woken_locker_makes_no_room_before_it_has_the_lock() {
    no_room_before_the_lock(false);
}

#[test]
fn d2_a_notified_locker_makes_no_room_before_it_has_the_lock() {
    no_room_before_the_lock(true);
}
