//! Dumps: every goroutine with its state, what it waits for, and its backtrace.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::common::{LONG, by_name, child, child_of, dump_when_waiting, has_frame, named};
use gosched::debug::{self, Dump, Goroutine};
use gosched::{Deadlock, Runtime, thread};

#[inline(never)]
pub fn waits_in_a_function_of_its_own() {
    thread::park();
    black_box(());
}

#[gosched::test]
fn a_dump_shows_who_waits_where_and_why() {
    let waiter = named("waiter", waits_in_a_function_of_its_own);
    let dump = dump_when_waiting("waiter", "park");
    let found = by_name(&dump, "waiter").expect("seen before");
    assert_eq!(found.state(), "waiting");
    assert_eq!(found.parent(), Some(1));
    assert!(!found.is_locked());
    assert!(
        found
            .spawned_at()
            .is_some_and(|at| at.file().ends_with("dumps.rs"))
    );
    let functions: Vec<_> = found.frames().iter().map(|f| f.function()).collect();
    assert!(functions[0].contains("park"), "{dump}");
    assert!(has_frame(found, "waits_in_a_function_of_its_own"), "{dump}");
    let inner = functions.iter().position(|f| f.contains("suspend"));
    let entry = functions.iter().position(|f| f.contains("goroutine_entry"));
    assert_eq!((inner, entry), (None, None), "{dump}");
    let own = found
        .frames()
        .iter()
        .find(|f| f.function().contains("waits_in_a_function"));
    let file = own
        .and_then(|frame| frame.file())
        .expect("debug information");
    assert!(file.ends_with("tests/debug/dumps.rs"), "{dump}");
    waiter.thread().unpark();
    waiter.join().expect("no panic");
}

#[gosched::test]
fn a_dump_reads_as_in_go() {
    let waiter = named("waiter", waits_in_a_function_of_its_own);
    let id = waiter.thread().id().goroutine().expect("a goroutine");
    let text = dump_when_waiting("waiter", "park").to_string();
    let (first, rest) = text.split_once("\n\n").expect("two goroutines");
    let main: Vec<_> = first.lines().collect();
    assert_eq!(main[0], "goroutine 1 [running] {name: main}:");
    assert!(main[1].contains("dump_when_waiting"), "{text}");
    // The helper that dumps, in the file of the helpers.
    assert!(
        main[2].starts_with('\t') && main[2].contains("common/goroutines.rs:"),
        "{text}"
    );
    let last = main.last().expect("lines");
    assert!(
        last.starts_with("created outside the runtime at "),
        "{text}"
    );
    let waiter_lines: Vec<_> = rest.lines().collect();
    assert_eq!(
        waiter_lines[0],
        format!("goroutine {id} [park] {{name: waiter}}:")
    );
    let last = waiter_lines.last().expect("lines");
    assert!(
        last.starts_with("created by main in goroutine 1 at "),
        "{text}"
    );
    assert!(last.contains("tests/debug/dumps.rs:"), "{text}");
    waiter.thread().unpark();
    waiter.join().expect("no panic");
}

#[gosched::test]
fn wait_reasons_are_told_apart() {
    let sleeper = named("sleeper", || thread::sleep(Duration::from_secs(60)));
    let target = named("target", thread::park);
    let target_thread = target.thread().clone();
    let joiner = named("joiner", move || target.join().expect("no panic"));
    dump_when_waiting("sleeper", "sleep");
    dump_when_waiting("target", "park");
    let dump = dump_when_waiting("joiner", "join");
    let target_id = by_name(&dump, "target").expect("alive").id();
    let found = by_name(&dump, "joiner").expect("alive");
    assert_eq!(found.waits_for(), Some(target_id), "{dump}");
    let line = format!("waits for goroutine {target_id}\n");
    assert!(dump.to_string().contains(&line), "{dump}");
    assert_eq!(by_name(&dump, "sleeper").expect("alive").waits_for(), None);
    target_thread.unpark();
    joiner.join().expect("no panic");
    drop(sleeper);
}

#[gosched::test(procs = 1)]
fn runnable_goroutines_are_shown_started_or_not() {
    let stop = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&stop);
    let yielder = named("yielder", move || {
        while !is_over.load(SeqCst) {
            thread::yield_now();
        }
    });
    let is_runnable = |g: &Goroutine| (g.state(), g.wait_reason()) == ("runnable", None);
    // An optimised build has no frame of `yield_now`, whose last act is a call: the closure's frame
    // is in both builds.
    let is_seen = |dump: &Dump| {
        by_name(dump, "yielder").is_some_and(|g| is_runnable(g) && has_frame(g, "closure"))
            && by_name(dump, "fresh").is_some_and(|g| is_runnable(g) && g.frames().is_empty())
    };
    let (started, mut dump) = (Instant::now(), debug::dump());
    // If the caller is preempted at the wrong moment, the fresh goroutine runs before the dump.
    while !is_seen(&dump) {
        assert!(started.elapsed() < Duration::from_secs(60), "{dump}");
        thread::yield_now();
        let fresh = named("fresh", || ());
        dump = debug::dump();
        fresh.join().expect("no panic");
    }
    let text = "[runnable] {name: fresh}:\n(not started)\ncreated by main";
    assert!(dump.to_string().contains(text), "{dump}");
    stop.store(true, SeqCst);
    yielder.join().expect("no panic");
}

#[gosched::test]
fn locked_goroutines_are_marked() {
    let locked = named("locked", || {
        gosched::lock_os_thread();
        thread::park();
        gosched::unlock_os_thread();
    });
    let dump = dump_when_waiting("locked", "park");
    assert!(by_name(&dump, "locked").expect("alive").is_locked());
    assert!(
        dump.to_string()
            .contains("[park, locked to thread] {name: locked}:"),
        "{dump}"
    );
    debug::check().expect("sound");
    locked.thread().unpark();
    locked.join().expect("no panic");
}

#[gosched::test]
fn waits_are_timed() {
    let waiter = named("waiter", thread::park);
    dump_when_waiting("waiter", "park");
    thread::sleep(Duration::from_millis(200));
    let dump = debug::dump();
    let waited = by_name(&dump, "waiter").expect("alive").waiting_for();
    assert!(waited >= Duration::from_millis(150), "{waited:?}");
    assert!(waited < LONG, "{waited:?}");
    waiter.thread().unpark();
    waiter.join().expect("no panic");
}

/// A goroutine with hardly any stack can ask for a dump all the same.
#[gosched::test]
fn a_dump_from_a_small_stack() {
    let small = thread::Builder::new().stack_size(64 << 10);
    let dump = small
        .spawn(debug::dump)
        .expect("a goroutine")
        .join()
        .expect("no panic");
    assert_eq!(dump.goroutines().len(), 2);
    assert!(
        dump.goroutines()[1]
            .frames()
            .iter()
            .any(|f| f.line().is_some()),
        "{dump}"
    );
}

#[gosched::test]
fn dumps_of_many_while_they_run() {
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..50)
        .map(|_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(SeqCst) {
                    thread::spawn(thread::yield_now).join().expect("no panic");
                }
            })
        })
        .collect();
    for _ in 0..10 {
        let dump = debug::dump();
        assert!(dump.goroutines().len() >= 51, "{dump}");
        let mut ids: Vec<_> = dump.goroutines().iter().map(Goroutine::id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), dump.goroutines().len());
        thread::yield_now();
    }
    stop.store(true, SeqCst);
    busy.into_iter()
        .for_each(|handle| handle.join().expect("no panic"));
}

#[test]
#[should_panic(
    expected = "gosched::debug::dump called outside a runtime: use Runtime::dump or Handle::dump"
)]
fn a_dump_outside_a_runtime_says_what_to_do() {
    let _ = debug::dump();
}

/// A plain thread may dump: here the thread that calls the deadlock hook.
///
/// A busy runtime in the same process is hope, and tests beside this one would put the report off.
/// So this test runs in a child.
#[test]
fn a_dump_from_a_plain_thread() {
    let out = child("a_dump_from_a_plain_thread", || {
        let (send, receive) = std::sync::mpsc::channel();
        let runtime = Runtime::builder()
            .deadlock(Deadlock::Closed)
            .on_deadlock(move |deadlock| {
                let _ = send.send(deadlock.dump().clone());
            })
            .build()
            .expect("a runtime");
        runtime.go(waits_in_a_function_of_its_own);
        let dump = receive.recv_timeout(LONG / 2).expect("a deadlock");
        assert_eq!(dump.goroutines().len(), 1);
        let found = &dump.goroutines()[0];
        assert_eq!((found.state(), found.parent()), ("waiting", None));
        assert!(has_frame(found, "waits_in_a_function_of_its_own"), "{dump}");
    });
    out.succeeded();
}

/// From a thread outside, a runtime's own methods do what `debug`'s functions do inside.
#[test]
fn a_runtime_is_seen_from_outside() {
    let runtime = Runtime::builder().procs(2).build().expect("a runtime");
    runtime.go(waits_in_a_function_of_its_own);
    let started = Instant::now();
    while runtime.metrics().park_count == 0 {
        assert!(started.elapsed() < Duration::from_secs(60));
        std::thread::yield_now();
    }
    for _ in 0..20 {
        runtime.check().unwrap_or_else(|v| panic!("{v}"));
        let dump = runtime.dump();
        assert!(
            has_frame(&dump.goroutines()[0], "waits_in_a_function"),
            "{dump}"
        );
    }
}

/// Old unwinders ask the loader for the list of objects. Such an unwinder must not wait, in a
/// stopped world, for a goroutine that was stopped with the loader's lock.
#[test]
fn a_dump_does_not_wait_for_the_loaders_lock() {
    /// Holds the loader's lock until the flag is down, 60 s at most: callbacks run under it.
    unsafe extern "C" fn hold(
        _: *mut libc::dl_phdr_info,
        _: usize,
        is_held: *mut std::ffi::c_void,
    ) -> i32 {
        // SAFETY: the flag below, which outlives the call.
        let is_held = unsafe { &*is_held.cast::<AtomicBool>() };
        is_held.store(true, SeqCst);
        let begin = Instant::now();
        while is_held.load(SeqCst) && begin.elapsed() < Duration::from_secs(60) {
            std::hint::spin_loop();
        }
        1
    }
    let name = "a_dump_does_not_wait_for_the_loaders_lock";
    for variant in ["dump", "leaks", "fatal"] {
        let out = child_of(name, variant, |variant| {
            // SAFETY: ends this child if it hangs.
            unsafe { libc::alarm(100) };
            // Less than the lock is held: a report that waits for it is cut short.
            gosched::testing::set_report_patience(20);
            gosched::testing::unwinder_asks_the_loader(true);
            let runtime = Runtime::builder().procs(2).build().unwrap();
            runtime.run(|| {
                static HELD: AtomicBool = AtomicBool::new(false);
                let holder = thread::Builder::new().name("holder".into());
                let holder = holder.spawn(|| {
                    // SAFETY: the callback takes this flag.
                    unsafe {
                        libc::dl_iterate_phdr(Some(hold), (&raw const HELD).cast_mut().cast())
                    }
                });
                let parked = thread::spawn(thread::park);
                while !HELD.load(SeqCst) || debug::metrics().park_count == 0 {
                    gosched::yield_now();
                }
                match variant {
                    "dump" => {
                        let dump = debug::dump().to_string();
                        for part in [
                            "name: holder",
                            "preempted",
                            "[park]",
                            "thread/park.rs",
                            "hold",
                        ] {
                            assert!(dump.contains(part), "no {part} in {dump}");
                        }
                    }
                    "leaks" => assert!(debug::leaks().is_empty()),
                    _ => gosched::testing::illegal_status_change(),
                }
                HELD.store(false, SeqCst);
                parked.thread().unpark();
                parked.join().unwrap();
                holder.unwrap().join().unwrap();
            });
        });
        if variant == "fatal" {
            assert_eq!(out.code(), 2, "{out:#?}");
            out.says(&["fatal error", "thread/park.rs"]);
            assert!(!out.stderr.contains("cut short"), "{out:#?}");
        } else {
            out.succeeded();
        }
    }
}
