//! Goroutines on stacks that are not the runtime's: `stacker`, `psm` and `corosensei` switch stacks
//! behind its back.
//!
//! Each test runs once for every crate. The stack pointer is then outside the goroutine's slot, and
//! the frames that the goroutine has left behind in its slot must survive everything that the
//! runtime does to waiting goroutines.
//!
//! A binary of its own because: some of these stacks are mapped before the first runtime of the
//! process.

mod common;

use std::cell::Cell;
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::child_of;
use gosched::chan::{bounded, unbounded};
use gosched::{Runtime, debug, go, select, thread};

/// The bytes of every stack that is not the runtime's.
const SIZE: usize = 256 << 10;

/// The crate that makes the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Stacker,
    Psm,
    Corosensei,
}

const KINDS: [Kind; 3] = [Kind::Stacker, Kind::Psm, Kind::Corosensei];

/// Runs `f` on a stack of `kind`; a panic passes through.
#[inline(never)]
fn on_another_stack<R>(kind: Kind, f: impl FnOnce() -> R) -> R {
    match kind {
        Kind::Stacker => stacker::grow(SIZE, f),
        Kind::Psm => on_mapped_stack(f),
        Kind::Corosensei => on_coroutine(SIZE, f),
    }
}

/// Stacks for `psm`, mapped before the first runtime: they lie above the goroutines', for the
/// kernel maps downwards. The other crates map theirs later, below.
static MAPPED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn map_stacks() {
    let mut stacks = MAPPED.lock().unwrap();
    if stacks.is_empty() {
        const COUNT: usize = 64;
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: fresh memory, which stays.
        let base = unsafe { libc::mmap(ptr::null_mut(), COUNT * SIZE, access, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        stacks.extend((0..COUNT).map(|n| base as usize + n * SIZE));
    }
}

/// `psm` takes memory of the caller's, and a callback that does not unwind.
fn on_mapped_stack<R>(f: impl FnOnce() -> R) -> R {
    let base = MAPPED.lock().unwrap().pop().unwrap();
    // SAFETY: memory of this size, aligned to a page, with no other user until it is given back.
    let result =
        unsafe { psm::on_stack(base as *mut u8, SIZE, || catch_unwind(AssertUnwindSafe(f))) };
    MAPPED.lock().unwrap().push(base);
    result.unwrap_or_else(|payload| resume_unwind(payload))
}

fn on_coroutine<R>(size: usize, f: impl FnOnce() -> R) -> R {
    let stack = corosensei::stack::DefaultStack::new(size).unwrap();
    let (mut f, mut result) = (Some(f), None);
    let coroutine = corosensei::ScopedCoroutine::with_stack(stack, |_: &_, ()| {
        result = f.take().map(|f| f());
    });
    coroutine.scope(|mut coroutine| {
        let _: corosensei::CoroutineResult<(), ()> = coroutine.as_mut().resume(());
    });
    result.unwrap()
}

fn here() -> usize {
    let here = 0u8;
    black_box(&raw const here).addr()
}

/// Uses some stack in the goroutine's slot, goes to another stack and runs `f` there; what was left
/// behind must be the same after.
#[inline(never)]
fn with_frames_below<R>(kind: Kind, f: impl FnOnce() -> R) -> R {
    let left = black_box([0x5a_u8; 32 << 10]);
    let slot = here();
    let out = on_another_stack(kind, || {
        assert!(slot.abs_diff(here()) > SIZE / 2, "on another stack");
        f()
    });
    assert!(black_box(&left).iter().all(|byte| *byte == 0x5a));
    out
}

fn runtime(procs: usize) -> Runtime {
    map_stacks();
    Runtime::builder().procs(procs).build().unwrap()
}

/// Waits until `condition` holds; on a plain thread or a goroutine.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never: {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn one_that_waits_long_keeps_its_stacks() {
    for kind in KINDS {
        runtime(2).run(|| {
            let (go_on, wait) = bounded::<()>(0);
            let waiting = Arc::new(AtomicUsize::new(0));
            let many: Vec<_> = (0..20)
                .map(|n| {
                    let (wait, waiting) = (wait.clone(), Arc::clone(&waiting));
                    thread::spawn(move || {
                        with_frames_below(kind, || {
                            let mine = black_box([n as u8; 4096]);
                            waiting.fetch_add(1, SeqCst);
                            wait.recv().unwrap_err();
                            assert!(black_box(&mine).iter().all(|byte| *byte == n as u8));
                        });
                    })
                })
                .collect();
            eventually("all wait", || waiting.load(SeqCst) == 20);
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(5));
                gosched::testing::shrink_waiting();
            }
            debug::check().unwrap();
            drop(go_on);
            many.into_iter().for_each(|one| one.join().unwrap());
        });
    }
}

/// As long as the background work takes to come by itself.
#[test]
fn the_background_work_leaves_their_stacks_alone() {
    if cfg!(debug_assertions) {
        return; // once, in release builds, for it takes 12 s
    }
    runtime(2).run(|| {
        let many = KINDS.map(|kind| {
            thread::spawn(move || {
                with_frames_below(kind, || thread::sleep(Duration::from_secs(12)));
            })
        });
        let until = Instant::now() + Duration::from_secs(12);
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(10));
        }
        many.into_iter().for_each(|one| one.join().unwrap());
    });
}

#[test]
fn every_way_to_wait_works_there() {
    for kind in KINDS {
        runtime(2).run(|| {
            let (send, receive) = unbounded::<usize>();
            let lock = Arc::new(gosched::sync::Mutex::new(0));
            let many: Vec<_> = (0..8)
                .map(|n| {
                    let (send, lock) = (send.clone(), Arc::clone(&lock));
                    thread::spawn(move || {
                        with_frames_below(kind, || {
                            for round in 0..50 {
                                *lock.lock().unwrap() += 1;
                                send.send(n * 50 + round).unwrap();
                                gosched::yield_now();
                                thread::sleep(Duration::from_micros(50));
                                gosched::blocking(std::thread::yield_now);
                                let inner = thread::spawn(move || round);
                                assert_eq!(inner.join().unwrap(), round);
                                let (tx, rx) = bounded::<()>(1);
                                select! {
                                    recv(rx) -> _ => unreachable!("nobody sends"),
                                    send(tx, ()) -> sent => sent.unwrap(),
                                }
                            }
                        });
                    })
                })
                .collect();
            drop(send);
            let mut got: Vec<usize> = receive.iter().collect();
            got.sort_unstable();
            assert_eq!(got, (0..400).collect::<Vec<_>>());
            assert_eq!(*lock.lock().unwrap(), 400);
            many.into_iter().for_each(|one| one.join().unwrap());
            debug::check().unwrap();
        });
    }
}

#[test]
fn one_that_computes_there_is_preempted() {
    for kind in KINDS {
        let stop = Arc::new(AtomicBool::new(false));
        runtime(1).run(|| {
            let hogs: Vec<_> = (0..2)
                .map(|_| {
                    let stop = Arc::clone(&stop);
                    thread::spawn(move || {
                        with_frames_below(kind, || {
                            while !stop.load(SeqCst) {
                                std::hint::spin_loop();
                            }
                        });
                    })
                })
                .collect();
            for _ in 0..5 {
                thread::sleep(Duration::from_millis(1));
                gosched::testing::shrink_waiting();
            }
            eventually("somebody is interrupted", || {
                debug::metrics().threads_held_by_preempted > 0
            });
            stop.store(true, SeqCst);
            hogs.into_iter().for_each(|one| one.join().unwrap());
        });
    }
}

#[test]
fn a_panic_comes_through() {
    for kind in KINDS {
        runtime(2).run(|| {
            let one = thread::spawn(move || {
                with_frames_below(kind, || {
                    gosched::yield_now();
                    std::panic::panic_any(17_u32);
                })
            });
            assert_eq!(one.join().unwrap_err().downcast_ref(), Some(&17_u32));
            let one = thread::spawn(move || with_frames_below(kind, || gosched::goexit()));
            assert!(one.join().unwrap_err().is::<gosched::thread::Exited>());
        });
    }
}

#[inline(never)]
fn waits_in_the_slot(kind: Kind, f: impl FnOnce()) {
    with_frames_below(kind, || waits_on_the_other(f));
    black_box(());
}

#[inline(never)]
fn waits_on_the_other(f: impl FnOnce()) {
    f();
    black_box(());
}

/// The dump's entry of the goroutine called `name`.
fn entry(name: &str) -> String {
    let dump = debug::dump();
    let found = dump.goroutines().iter().find(|g| g.name() == Some(name));
    found.unwrap().to_string()
}

fn assert_is_shown_whole(kind: Kind, entry: &str) {
    assert!(is_shown_whole(entry), "{kind:?}: {entry}");
}

/// Whether it says that the goroutine is on another stack, and shows the functions of both.
fn is_shown_whole(entry: &str) -> bool {
    let head = entry.lines().next().unwrap_or_default();
    let functions = ["waits_on_the_other", "waits_in_the_slot"];
    head.contains("on another stack]") && functions.iter().all(|f| entry.contains(f))
}

#[test]
fn dumps_show_both_stacks_and_say_so() {
    for kind in KINDS {
        runtime(2).run(|| {
            let named = |name: &str| thread::Builder::new().name(name.into());
            let waits = named("waits")
                .spawn(move || waits_in_the_slot(kind, thread::park))
                .unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let stopped = Arc::clone(&stop);
            let computes = named("computes")
                .spawn(move || {
                    waits_in_the_slot(kind, || {
                        while !stopped.load(SeqCst) {
                            std::hint::spin_loop();
                        }
                    });
                })
                .unwrap();
            let plain = named("plain").spawn(thread::park).unwrap();
            eventually("it waits", || entry("waits").contains("[park"));
            assert_is_shown_whole(kind, &entry("waits"));
            // Its thread may have no CPU for so long that a dump does without it.
            eventually("it is shown whole", || {
                let entry = entry("computes");
                entry.contains("preempted") && is_shown_whole(&entry)
            });
            eventually("it waits", || entry("plain").contains("[park]"));
            assert!(!entry("plain").contains("another stack"));
            // The caller of a dump may be there, too.
            let (waits_entry, own) = on_another_stack(kind, || (entry("waits"), debug::dump()));
            assert_is_shown_whole(kind, &waits_entry);
            assert!(!own.goroutines()[0].frames().is_empty());
            stop.store(true, SeqCst);
            for one in [waits, computes, plain] {
                one.thread().unpark();
                one.join().unwrap();
            }
        });
    }
}

/// A small stack: unwinding must not need room there.
#[test]
fn a_dump_needs_no_room_on_a_small_stack() {
    runtime(2).run(|| {
        let one = thread::Builder::new()
            .name("small".into())
            .spawn(|| on_coroutine(16 << 10, thread::park))
            .unwrap();
        eventually("it waits", || entry("small").contains("[park, on another"));
        for _ in 0..20 {
            assert!(
                entry("small").contains("on_coroutine"),
                "{}",
                entry("small")
            );
        }
        one.thread().unpark();
        one.join().unwrap();
    });
}

struct Ended(Arc<AtomicUsize>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn a_shutdown_unwinds_both_stacks() {
    for kind in KINDS {
        let runtime = runtime(2);
        let (ended, waiting) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        for n in 0..10 {
            let (ended, waiting) = (Arc::clone(&ended), Arc::clone(&waiting));
            runtime.spawn(move || {
                let _below = Ended(Arc::clone(&ended));
                with_frames_below(kind, || {
                    let _there = Ended(ended);
                    waiting.fetch_add(1, SeqCst);
                    loop {
                        match n % 2 {
                            0 => gosched::yield_now(),
                            _ => thread::park(),
                        }
                    }
                });
            });
        }
        eventually("all are there", || waiting.load(SeqCst) == 10);
        runtime.shutdown(Duration::from_secs(30));
        assert_eq!(ended.load(SeqCst), 20, "{kind:?}");
    }
}

/// A runtime that is dropped leaves such goroutines behind as it leaves others.
#[test]
fn a_dropped_runtime_leaves_them_behind() {
    for kind in KINDS {
        let runtime = runtime(2);
        let waiting = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        for n in 0..4 {
            let (waiting, stop) = (Arc::clone(&waiting), Arc::clone(&stop));
            runtime.spawn(move || {
                with_frames_below(kind, || {
                    waiting.fetch_add(1, SeqCst);
                    while n % 2 == 0 && !stop.load(SeqCst) {
                        std::hint::spin_loop();
                    }
                    thread::park();
                });
            });
        }
        eventually("all are there", || waiting.load(SeqCst) == 4);
        drop(runtime);
        stop.store(true, SeqCst);
    }
}

#[test]
fn a_deadlock_report_shows_both_stacks() {
    let name = "a_deadlock_report_shows_both_stacks";
    for kind in KINDS {
        let body = |variant: &str| {
            let kind = KINDS
                .into_iter()
                .find(|kind| format!("{kind:?}") == variant);
            runtime(2).run(move || waits_in_the_slot(kind.unwrap(), thread::park));
        };
        let out = child_of(name, &format!("{kind:?}"), body);
        out.died_with(&["fatal error: all goroutines are asleep - deadlock!"]);
        out.says(&[
            "[park, on another stack]",
            "waits_on_the_other",
            "waits_in_the_slot",
        ]);
    }
}

#[inline(never)]
fn overflow(depth: usize) -> usize {
    let frame = black_box([depth as u8; 256]);
    if depth == usize::MAX {
        return 0;
    }
    overflow(depth + 1) + usize::from(frame[depth % 256])
}

const REPORT: &str = "goroutine stack exceeds";

/// The overflow of a coroutine's stack is not the goroutine's, whose limit it does not help to
/// raise.
#[test]
fn an_overflow_there_is_not_reported_as_the_goroutines() {
    let name = "an_overflow_there_is_not_reported_as_the_goroutines";
    for kind in [Kind::Stacker, Kind::Corosensei] {
        let body = |variant: &str| {
            let kind = KINDS
                .into_iter()
                .find(|kind| format!("{kind:?}") == variant);
            runtime(2).run(move || {
                with_frames_below(kind.unwrap(), || black_box(overflow(0)));
            });
        };
        let out = child_of(name, &format!("{kind:?}"), body);
        assert_eq!(out.status.signal(), Some(libc::SIGSEGV), "{out:#?}");
        assert!(!out.stderr.contains(REPORT), "{out:#?}");
    }
}

/// Nor is a stray access to the guard by code that is elsewhere; the same access from the
/// goroutine's own stack is. Only with a stack that lies far away: one right below the guard looks
/// like a frame that is larger than the guard.
#[test]
fn a_stray_access_to_the_guard_is_no_overflow() {
    let name = "a_stray_access_to_the_guard_is_no_overflow";
    let body = |variant: &str| {
        let kind = KINDS
            .into_iter()
            .find(|kind| format!("{kind:?}") == variant);
        runtime(2).run(move || {
            let one = thread::Builder::new().stack_size(64 << 10);
            let one = one.spawn(move || {
                // A 64 KiB stack has up to 8 KiB more than that; the guard has 16.
                let guard = here() - (74 << 10);
                // SAFETY: none; the process must die of it.
                let touch = || unsafe { black_box((guard as *const u8).read_volatile()) };
                match kind {
                    Some(kind) => on_another_stack(kind, touch),
                    None => touch(),
                }
            });
            one.unwrap().join().unwrap();
        });
    };
    let out = child_of(name, "Psm", body);
    assert_eq!(out.status.signal(), Some(libc::SIGSEGV), "{out:#?}");
    assert!(!out.stderr.contains(REPORT), "{out:#?}");
    let out = child_of(name, "own", body);
    assert_eq!(out.status.code(), Some(2), "{out:#?}");
    out.says(&[REPORT]);
}

/// A coroutine that waits between its resumptions, and one that is dropped before its end.
#[test]
fn coroutines_that_are_resumed_from_different_places() {
    runtime(2).run(|| {
        let many: Vec<_> = (0..8)
            .map(|_| {
                thread::spawn(|| {
                    let mut coroutine =
                        corosensei::Coroutine::new(|yielder: &corosensei::Yielder<(), u32>, ()| {
                            for n in 0..100 {
                                thread::sleep(Duration::from_micros(20));
                                yielder.suspend(n);
                                gosched::yield_now();
                            }
                        });
                    for n in 0..60 {
                        let got = coroutine.resume(()).as_yield();
                        assert_eq!(got, Some(n));
                        gosched::yield_now();
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(1));
            gosched::testing::shrink_waiting();
            let _ = debug::dump();
        }
        many.into_iter().for_each(|one| one.join().unwrap());
    });
}

#[test]
fn stacker_grows_by_itself_where_little_is_left() {
    #[inline(never)]
    fn deep(left: usize) -> usize {
        stacker::maybe_grow(16 << 10, 128 << 10, || {
            let room = black_box([left as u8; 1024]);
            if left.is_multiple_of(100) {
                gosched::yield_now();
            }
            match left {
                0 => usize::from(room[0]),
                _ => deep(left - 1) + 1,
            }
        })
    }
    runtime(2).run(|| {
        let many: Vec<_> = (0..4).map(|_| thread::spawn(|| deep(2000))).collect();
        for one in many {
            assert_eq!(one.join().unwrap(), 2000);
        }
        let (done, wait) = bounded(1);
        go(move || done.send(deep(500)).unwrap());
        assert_eq!(wait.recv(), Ok(500));
    });
}

// Where a stack ends: crates that go to another stack ask libc first.

/// The lowest address, the size and the guard of the stack that libc reports for the caller.
fn bounds_by(get: GetAttr) -> Result<(usize, usize, usize), i32> {
    let mut attr = std::mem::MaybeUninit::uninit();
    let (mut lowest, mut size, mut guard) = (ptr::null_mut(), 0, 0);
    // SAFETY: libc writes the attributes of the calling thread, which are read and destroyed.
    unsafe {
        match get(libc::pthread_self(), attr.as_mut_ptr()) {
            0 => {}
            error => return Err(error),
        }
        libc::pthread_attr_getstack(attr.as_ptr(), &mut lowest, &mut size);
        libc::pthread_attr_getguardsize(attr.as_ptr(), &mut guard);
        libc::pthread_attr_destroy(attr.as_mut_ptr());
    }
    Ok((lowest.addr(), size, guard))
}

type GetAttr = unsafe extern "C" fn(libc::pthread_t, *mut libc::pthread_attr_t) -> i32;

fn assert_bounds(class: usize) {
    // SAFETY: the function of this name, as shared libraries find it.
    let by_name: GetAttr = unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"pthread_getattr_np".as_ptr());
        assert!(!found.is_null());
        std::mem::transmute(found)
    };
    for get in [libc::pthread_getattr_np, by_name] {
        let (lowest, size, guard) = bounds_by(get).unwrap();
        assert!((lowest..lowest + size).contains(&here()));
        assert!(
            (class..class + (16 << 10)).contains(&size),
            "{size} of {class}"
        );
        assert_eq!(guard, 16 << 10);
    }
    let left = stacker::remaining_stack().unwrap();
    assert!(
        (class / 2..class + (16 << 10)).contains(&left),
        "{left} of {class}"
    );
}

#[test]
fn d6_libc_knows_the_bounds_of_a_goroutines_stack() {
    let plain = bounds_by(libc::pthread_getattr_np).unwrap();
    runtime(2).run(|| {
        assert_bounds(8 << 20);
        for class in [64 << 10, 256 << 10, 4 << 20] {
            let one = thread::Builder::new().stack_size(class);
            one.spawn(move || {
                assert_bounds(class);
                thread::sleep(Duration::from_millis(1)); // it may go on elsewhere
                assert_bounds(class);
            })
            .unwrap()
            .join()
            .unwrap();
        }
        // Stacks that others have used, and whose blocks were made as new.
        for _ in 0..200 {
            thread::spawn(|| {
                thread_local!(static TOUCHED: Cell<Vec<u8>> = const { Cell::new(Vec::new()) });
                TOUCHED.set(vec![1]);
                let (lowest, size, _) = bounds_by(libc::pthread_getattr_np).unwrap();
                assert!((lowest..lowest + size).contains(&here()));
            })
            .join()
            .unwrap();
        }
        // On another stack they are those of the goroutine's own, as on a thread.
        let own = bounds_by(libc::pthread_getattr_np);
        for kind in KINDS {
            let there = on_another_stack(kind, || bounds_by(libc::pthread_getattr_np));
            assert_eq!(there, own);
        }
    });
    assert_eq!(
        bounds_by(libc::pthread_getattr_np),
        Ok(plain),
        "a thread's stay"
    );
}

/// libc takes a quarter of a stack by `alloca`, and 64 KiB of one whose size it does not know.
#[test]
fn d6_libc_takes_no_more_of_a_stack_than_there_is() {
    // SAFETY: a look-up by name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_alloca_cutoff".as_ptr()) };
    if found.is_null() {
        return; // not every libc has it
    }
    // SAFETY: glibc's function of this name has this type.
    let may_take: extern "C" fn(usize) -> i32 = unsafe { std::mem::transmute(found) };
    runtime(2).run(|| {
        let one = thread::Builder::new().stack_size(64 << 10);
        let one = one.spawn(move || [8 << 10, 32 << 10, 60 << 10].map(|n| may_take(n) != 0));
        assert_eq!(one.unwrap().join().unwrap(), [true, false, false]);
        assert_ne!(may_take(60 << 10), 0, "of 8 MiB");
    });
}
