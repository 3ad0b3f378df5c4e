//! `#[gosched::test]` at work, and `#[gosched::main]` where its result can be seen.
//!
//! What the compiler says about wrong uses is in `ui/`.

use std::error::Error;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[gosched::test]
fn runs_as_the_only_goroutine_of_a_fresh_runtime() {
    assert_eq!(gosched::num_goroutines(), 1);
}

#[gosched::test]
fn spawns_and_joins() {
    let handles: Vec<_> = (0..10u64)
        .map(|n| gosched::thread::spawn(move || n * n))
        .collect();
    let sum: u64 = handles.into_iter().map(|h| h.join().unwrap()).sum();
    assert_eq!(sum, 285);
}

#[gosched::test]
fn may_return_a_result() -> Result<(), std::num::ParseIntError> {
    assert_eq!("42".parse::<u32>()?, 42);
    Ok(())
}

#[gosched::test]
fn may_return_what_is_not_send() -> Result<(), Box<dyn Error>> {
    let shared = Rc::new("7".parse::<u32>()?);
    match *shared {
        7 => Ok(()),
        _ => Err(format!("not seven: {shared}").into()),
    }
}

#[gosched::test]
#[allow(clippy::unused_unit)]
fn may_return_unit_by_name() -> () {}

#[gosched::test]
#[should_panic(expected = "in the body")]
fn a_panic_of_the_body_fails_the_test() {
    panic!("a panic in the body");
}

#[gosched::test]
#[should_panic(expected = "in a goroutine")]
fn a_panic_joined_and_resumed_fails_the_test() {
    let handle = gosched::thread::spawn(|| -> u32 { panic!("a panic in a goroutine") });
    std::panic::resume_unwind(handle.join().unwrap_err());
}

#[gosched::test(procs = 3)]
fn procs_is_obeyed() {
    assert_eq!(gosched::gomaxprocs(0), 3);
}

const PROCS: usize = 1;

#[gosched::test(procs = PROCS + 1, stack_size = 1 << 20,)]
fn options_may_be_expressions() {
    assert_eq!(gosched::gomaxprocs(0), 2);
}

/// Touches at least `pages` pages of stack.
#[inline(never)]
fn touch_stack(pages: usize) -> usize {
    let page = [1u8; 4096];
    // The page is read after the call, so that all pages live at once.
    black_box(&page);
    let below = match pages {
        0 => return 0,
        _ => touch_stack(pages - 1),
    };
    below + usize::from(black_box(&page)[pages % 4096])
}

#[gosched::test(stack_size = 16 * 1024 * 1024)]
fn stack_size_is_obeyed() {
    // 4 MiB, beyond every default.
    let deep = gosched::thread::spawn(|| touch_stack(1024));
    assert_eq!(deep.join().unwrap(), 1024);
}

#[gosched::test(procs = 0)]
#[should_panic(expected = "gosched: cannot start the runtime: ")]
fn a_runtime_that_cannot_be_built_fails_the_test() {
    unreachable!("the body of a test without a runtime");
}

mod vendored {
    pub use gosched;
}

#[vendored::gosched::test(crate = "vendored::gosched")]
fn the_library_may_be_elsewhere() {
    assert_eq!(gosched::num_goroutines(), 1);
}

#[gosched::test]
#[cfg(any())]
fn is_not_there() {
    this_would_not_compile();
}

/// Hidden by nothing the macros add.
fn body() -> u32 {
    5
}

static RUNS: AtomicUsize = AtomicUsize::new(0);

#[gosched::test]
fn calls_itself_within_the_goroutine() {
    assert_eq!(body(), 5);
    assert_eq!(gosched::num_goroutines(), 1);
    if RUNS.fetch_add(1, Ordering::Relaxed) == 0 {
        calls_itself_within_the_goroutine();
        assert_eq!(RUNS.load(Ordering::Relaxed), 2);
    }
}

macro_rules! test_on {
    ($name:ident, $procs:expr) => {
        #[gosched::test(procs = $procs)]
        fn $name() {
            assert_eq!(gosched::gomaxprocs(0), $procs);
        }
    };
}

test_on!(can_be_written_by_a_macro_for_one_p, 1);
test_on!(can_be_written_by_a_macro_for_two_ps, 1 + 1);

mod programs {
    use super::{Error, ExitCode};

    #[gosched::main]
    pub fn nothing() {
        assert_eq!(gosched::num_goroutines(), 1);
    }

    #[gosched::main(procs = 1, stack_size = 64 * 1024)]
    pub fn code() -> ExitCode {
        assert_eq!(gosched::gomaxprocs(0), 1);
        ExitCode::from(7)
    }

    #[gosched::main]
    pub fn failure() -> Result<(), Box<dyn Error>> {
        Err("a failure on purpose".into())
    }

    #[gosched::main]
    pub fn opaque() -> impl std::process::Termination {
        Ok::<_, u8>(ExitCode::from(9))
    }

    #[gosched::main]
    pub fn endless() -> ! {
        panic!("a program that never returns")
    }

    #[gosched::main(procs = 2)]
    pub fn endless_on_two() -> ! {
        panic!("a program that never returns")
    }

    #[gosched::main(procs = 0)]
    pub fn impossible() {}
}

#[test]
fn main_returns_what_the_program_ends_with() {
    programs::nothing();
    assert_eq!(programs::code(), ExitCode::from(7));
    assert_eq!(programs::failure(), ExitCode::FAILURE);
    assert_eq!(programs::opaque(), ExitCode::from(9));
}

#[test]
#[should_panic(expected = "a program that never returns")]
fn main_may_return_never() {
    let first = std::panic::catch_unwind(|| programs::endless());
    assert!(first.is_err());
    programs::endless_on_two();
}

#[test]
#[should_panic(expected = "gosched: cannot start the runtime: ")]
fn main_says_why_it_cannot_start() {
    programs::impossible();
}

/// Names, to a child process, what is to go wrong in it.
const GO_WRONG: &str = "GOSCHED_TEST_GO_WRONG";

fn is_to_go_wrong(how: &str) -> bool {
    std::env::var_os(GO_WRONG).is_some_and(|value| value == how)
}

/// Runs one test of this file in a process where it goes wrong.
fn gone_wrong(test: &str, how: &str) -> (Option<i32>, String) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("macros::{test}"),
            "--nocapture",
            "--test-threads",
            "2",
        ])
        .env(GO_WRONG, how)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&child.stderr).into_owned();
    (child.status.code(), errors)
}

#[gosched::test]
fn fails_if_asked() -> Result<(), String> {
    match is_to_go_wrong("fail") {
        true => Err("as asked".to_owned()),
        false => Ok(()),
    }
}

#[test]
fn a_result_that_is_an_error_fails_the_test() {
    let (code, errors) = gone_wrong("fails_if_asked", "fail");
    assert_eq!(code, Some(101), "{errors}");
    assert!(errors.contains("Error: \"as asked\""), "{errors}");
}

#[gosched::test]
fn deadlocks_if_asked() {
    if is_to_go_wrong("deadlock") {
        // This thread can wake no goroutine. It ends the process if the runtime waits for it.
        std::thread::spawn(|| {
            std::thread::sleep(Duration::from_secs(100));
            std::process::exit(3);
        });
        gosched::thread::park();
    }
}

/// As far as the runtime knows, the harness's threads could wake the test. Only in a closed world
/// can the runtime report a deadlock.
#[test]
fn a_deadlock_is_reported_although_the_harness_lives() {
    let (code, errors) = gone_wrong("deadlocks_if_asked", "deadlock");
    let first = "fatal error: all goroutines are asleep - deadlock!";
    assert_eq!(errors.lines().next(), Some(first), "{errors}");
    assert_eq!(code, Some(2), "{errors}");
}
