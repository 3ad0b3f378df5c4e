//! Backtraces, std's and gdb's, end cleanly where a goroutine begins (D5).

use std::backtrace::Backtrace;
use std::process::Command;

use crate::common::path_of;
use gosched::thread;

/// What the debugger stops at.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn gosched_test_stops_here(n: u32) -> u32 {
    std::hint::black_box(n + 1)
}

#[inline(never)]
fn deep_in_a_goroutine(n: u32) -> u32 {
    if n == 0 {
        return gosched_test_stops_here(41);
    }
    std::hint::black_box(deep_in_a_goroutine(n - 1))
}

#[test]
fn d5_a_backtrace_ends_at_the_goroutines_entry() {
    let text = gosched::run(|| {
        let handle = thread::spawn(|| Backtrace::force_capture().to_string());
        handle.join().unwrap()
    });
    let at = |what: &str| {
        text.find(what)
            .unwrap_or_else(|| panic!("no {what} in {text}"))
    };
    assert!(at("d5_a_backtrace_ends") < at("goroutine_entry"));
    let after = &text[at("goroutine_entry")..];
    let frames = after.lines().filter(|line| !line.trim().starts_with("at "));
    assert!(frames.count() <= 2, "frames beyond the entry: {after}");
}

#[test]
fn d5_a_panic_unwinds_to_the_edge_and_no_further() {
    struct Unwound<'a>(&'a std::sync::atomic::AtomicU32);
    impl Drop for Unwound<'_> {
        fn drop(&mut self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }
    static UNWOUND: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    gosched::run(|| {
        let handle = thread::spawn(|| {
            let _outer = Unwound(&UNWOUND);
            thread::spawn(|| {
                let _inner = Unwound(&UNWOUND);
                panic!("inner");
            })
            .join()
            .unwrap_err();
            panic!("outer");
        });
        let payload = handle.join().unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"outer"));
    });
    assert_eq!(UNWOUND.load(std::sync::atomic::Ordering::SeqCst), 2);
}

/// gdb shows the user's frames, then the entry, and does not complain. Without gdb there is nothing
/// to show.
#[test]
fn d5_gdb_shows_a_goroutines_frames_and_stops() {
    const CHILD: &str = "GOSCHED_TEST_UNDER_GDB";
    if std::env::var_os(CHILD).is_some() {
        let n = gosched::run(|| thread::spawn(|| deep_in_a_goroutine(3)).join().unwrap());
        assert_eq!(n, 42);
        return;
    }
    if Command::new("gdb").arg("--version").output().is_err() {
        println!("no gdb here: nothing to check");
        return;
    }
    let out = Command::new("gdb")
        .args(["-nx", "-batch", "-ex", "set debuginfod enabled off"])
        .args(["-ex", "break gosched_test_stops_here", "-ex", "run"])
        .args(["-ex", "bt", "-ex", "kill", "--args"])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &path_of("d5_gdb_shows_a_goroutines_frames_and_stops"),
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let frames: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    let all = || format!("{text}\n{}", String::from_utf8_lossy(&out.stderr));
    // An optimised build may have made fewer frames of the four calls.
    let deep = frames.iter().filter(|f| f.contains("deep_in_a_goroutine"));
    assert!((1..=4).contains(&deep.count()), "{}", all());
    let last = frames
        .last()
        .unwrap_or_else(|| panic!("no frames: {}", all()));
    assert!(last.contains("trampoline"), "ends with {last}: {}", all());
    for complaint in ["Backtrace stopped", "corrupt stack"] {
        assert!(!all().contains(complaint), "{}", all());
    }
}
