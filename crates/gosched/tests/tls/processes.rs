//! Processes that goroutines start, and how goroutines end their own.

use std::cell::{Cell, RefCell};
use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::common::{Output, child, child_of, within};
use crate::tools::{LONG, own};
use gosched::thread;

thread_local! {
    static MARK: Cell<u32> = const { Cell::new(11) };
    static WORDS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

#[test]
fn commands_run_inside() {
    within(3 * LONG, "Command", || {
        own(2).run(|| {
            thread::scope(|s| {
                for number in 0..8 {
                    s.spawn(move || {
                        for _ in 0..3 {
                            MARK.set(number);
                            thread::yield_now();
                            let mut command = Command::new("echo");
                            let out = command.arg(format!("number {number}")).output().unwrap();
                            assert!(out.status.success());
                            assert_eq!(out.stdout, format!("number {number}\n").into_bytes());
                            assert_eq!(MARK.get(), number);
                        }
                    });
                }
            });
            let missing = Command::new("/no/such/program").output().unwrap_err();
            assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
        });
    });
}

/// With a closure to run in the copy, std forks: the closure sees the goroutine's thread-locals
/// there.
#[test]
fn commands_with_pre_exec_run_inside() {
    within(3 * LONG, "Command with pre_exec", || {
        own(2).run(|| {
            thread::scope(|s| {
                for number in 20..24 {
                    s.spawn(move || {
                        MARK.set(number);
                        WORDS.with_borrow_mut(|words| words.push("copied".into()));
                        thread::yield_now();
                        let mut command = Command::new("sh");
                        command.args(["-c", "exit $GOSCHED_TEST_NUMBER"]);
                        command.env("GOSCHED_TEST_NUMBER", number.to_string());
                        let check = move || {
                            let is_right = MARK.get() == number
                                && WORDS.with_borrow(|words| words.len() == 1)
                                && String::from("room").len() == 4;
                            MARK.set(0); // the copy's
                            is_right
                                .then_some(())
                                .ok_or_else(std::io::Error::last_os_error)
                        };
                        // SAFETY: looks at thread-locals and allocates, which glibc lets a copy do.
                        let status = unsafe { command.pre_exec(check) }.status().unwrap();
                        assert_eq!(status.code(), Some(number as i32));
                        assert_eq!(MARK.get(), number);
                    });
                }
            });
        });
    });
}

#[test]
fn system_works_inside() {
    within(2 * LONG, "system", || {
        own(2).run(|| {
            for code in 0..4 {
                let line = std::ffi::CString::new(format!("exit {code}")).unwrap();
                // SAFETY: a command line.
                let status = unsafe { libc::system(line.as_ptr()) };
                assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == code);
            }
        });
    });
}

/// Forks; the copy writes what `inside` returns to a pipe and ends at once.
fn in_a_copy(inside: impl FnOnce() -> String) -> String {
    let mut ends = [0; 2];
    // SAFETY: a pipe of our own; the copy uses nothing that another thread may hold, except what
    // glibc makes usable.
    let copy = unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        libc::fork()
    };
    assert!(copy >= 0);
    if copy == 0 {
        let text = inside();
        // SAFETY: the copy's pipe; then its end, without destructors.
        unsafe {
            let written = libc::write(ends[1], text.as_ptr().cast(), text.len());
            libc::_exit(if written == text.len() as isize { 0 } else { 1 });
        }
    }
    // SAFETY: the writer's end is the copy's now, the other one ours.
    let mut from = unsafe {
        libc::close(ends[1]);
        std::fs::File::from_raw_fd(ends[0])
    };
    let mut text = String::new();
    from.read_to_string(&mut text).unwrap();
    assert_eq!(wait_for(copy), 0, "{text}");
    text
}

/// The raw status of a process that has ended.
fn wait_for(copy: libc::pid_t) -> i32 {
    let mut status = -1;
    // SAFETY: waits for our own.
    assert_eq!(unsafe { libc::waitpid(copy, &mut status, 0) }, copy);
    status
}

/// The copy is a process with one thread: the goroutine, with its thread-locals, its heap and its
/// identity.
#[test]
fn a_fork_without_exec_is_a_copy_of_the_goroutine() {
    let output = child(
        "processes::a_fork_without_exec_is_a_copy_of_the_goroutine",
        || {
            own(2).run(|| {
                thread::scope(|s| {
                    for number in 0..6 {
                        s.spawn(move || fork_often(number));
                    }
                });
            });
        },
    );
    output.succeeded();
}

fn fork_often(number: u32) {
    let id = std::thread::current().id();
    for turn in 0..8 {
        MARK.set(number);
        WORDS.with_borrow_mut(|words| words.push(turn.to_string()));
        thread::yield_now();
        let told = in_a_copy(|| {
            assert_eq!(std::thread::current().id(), id);
            let sizes: Vec<_> = (1..200).map(|i| vec![i as u8; i * 100]).collect();
            let total: usize = sizes.iter().map(Vec::len).sum();
            drop(sizes);
            let words = WORDS.with_borrow(|words| words.join(" "));
            // Caught here, counted in the copy.
            let caught = std::panic::catch_unwind(|| crate::tools::plan_panic()).is_err();
            // SAFETY: only asks.
            let (pid, tid) = unsafe { (libc::getpid(), libc::gettid()) };
            let is_alone = pid == tid;
            MARK.set(MARK.get() + 100);
            format!("{} {words} {total} {caught} {is_alone}", MARK.get())
        });
        let words: Vec<_> = (0..=turn).map(|turn| turn.to_string()).collect();
        let words = words.join(" ");
        assert_eq!(told, format!("{} {words} 1990000 true true", number + 100));
        assert_eq!(MARK.get(), number);
    }
}

/// The copy may fork again, and start threads and programs.
#[test]
fn a_copy_may_start_others() {
    let output = child("processes::a_copy_may_start_others", || {
        own(2).run(|| {
            thread::spawn(|| {
                let told = in_a_copy(|| {
                    let of_thread = std::thread::spawn(|| MARK.get()).join().unwrap();
                    let of_copy = in_a_copy(|| "again".to_owned());
                    let out = Command::new("echo")
                        .arg("-n")
                        .arg("program")
                        .output()
                        .unwrap();
                    format!(
                        "{of_thread} {of_copy} {}",
                        String::from_utf8(out.stdout).unwrap()
                    )
                });
                assert_eq!(told, "11 again program");
            })
            .join()
            .unwrap();
        });
    });
    output.succeeded();
}

/// Forks while others allocate, print and move.
#[test]
fn forks_amid_work() {
    let output = child("processes::forks_amid_work", || {
        own(4).run(|| {
            let left = AtomicUsize::new(3);
            thread::scope(|s| {
                for _ in 0..20 {
                    s.spawn(|| {
                        while left.load(SeqCst) > 0 {
                            let text: Vec<String> = (0..20).map(|i| i.to_string()).collect();
                            thread::yield_now();
                            assert_eq!(text.len(), 20);
                        }
                    });
                }
                for number in 0..3 {
                    let left = &left;
                    s.spawn(move || {
                        fork_often(number);
                        left.fetch_sub(1, SeqCst);
                    });
                }
            });
        });
    });
    output.succeeded();
}

/// Fork and then another program, by hand.
#[test]
fn a_fork_with_exec_works() {
    within(2 * LONG, "fork and exec", || {
        own(2).run(|| {
            for _ in 0..5 {
                // SAFETY: the copy calls exec at once; both arguments are texts that end in 0, and
                // so does the list.
                let copy = unsafe {
                    let copy = libc::fork();
                    if copy == 0 {
                        let args = [
                            c"sh".as_ptr(),
                            c"-c".as_ptr(),
                            c"exit 9".as_ptr(),
                            std::ptr::null(),
                        ];
                        libc::execvp(args[0], args.as_ptr());
                        libc::_exit(1);
                    }
                    copy
                };
                thread::yield_now();
                let status = wait_for(copy);
                assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 9);
            }
        });
    });
}

/// The ways in which a goroutine, or a copy of one, ends its process.
fn end_by(way: &str) {
    extern "C" fn says_goodbye() {
        println!("goodbye, {}", MARK.get());
    }
    struct Local;
    impl Drop for Local {
        fn drop(&mut self) {
            println!("a thread-local went");
        }
    }
    thread_local!(static LOCAL: Local = const { Local });
    // SAFETY: a function without arguments.
    unsafe { libc::atexit(says_goodbye) };
    let life = || {
        MARK.set(3);
        LOCAL.with(|_| ());
        if !way.ends_with("copy") {
            thread::yield_now(); // a copy has no runtime
        }
        println!("here");
        match way.split(' ').next().unwrap() {
            "std" => std::process::exit(7),
            // SAFETY: ends the process.
            "libc" => unsafe { libc::exit(7) },
            // SAFETY: ends the process.
            _ => unsafe { libc::abort() },
        }
    };
    if way.ends_with("thread") {
        return std::thread::scope(|s| s.spawn(life).join().unwrap());
    }
    own(2).run(|| {
        thread::scope(|s| {
            let ends = s.spawn(|| {
                if way.ends_with("copy") {
                    // SAFETY: the copy does what the goroutine would.
                    let copy = unsafe { libc::fork() };
                    if copy != 0 {
                        let status = wait_for(copy);
                        // SAFETY: without a second goodbye.
                        unsafe { libc::_exit(libc::WEXITSTATUS(status)) };
                    }
                }
                life()
            });
            ends.join().unwrap()
        })
    });
}

#[test]
fn a_goroutine_ends_the_process_as_a_thread_does() {
    const NAME: &str = "processes::a_goroutine_ends_the_process_as_a_thread_does";
    let end_of = |way: &str| child_of(NAME, way, end_by);
    let said = |output: &Output| -> Vec<String> {
        let lines = output
            .stdout
            .lines()
            .skip_while(|line| !line.contains("child is here"));
        lines.skip(1).map(str::to_owned).collect()
    };
    for way in ["std", "libc"] {
        let of_thread = end_of(&format!("{way} thread"));
        assert_eq!(of_thread.code(), 7);
        for who in ["goroutine", "copy"] {
            let output = end_of(&format!("{way} {who}"));
            assert_eq!(output.code(), 7);
            assert_eq!(said(&output), said(&of_thread), "{way} {who}");
        }
        assert!(
            said(&of_thread).contains(&"goodbye, 3".to_owned()),
            "{of_thread:#?}"
        );
    }
    let aborted = end_of("abort goroutine");
    assert_eq!(aborted.status.signal(), Some(libc::SIGABRT), "{aborted:#?}");
}

/// Everything a copy might try; each must say what is wrong, and none may hang.
fn calls_into_the_runtime(handle: &gosched::Handle) {
    let refused = |what: &str, call: &dyn Fn()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        let text = match &panic {
            Ok(()) => panic!("{what} was not refused"),
            Err(payload) => payload.downcast_ref::<&str>().map(|s| (*s).to_owned()),
        };
        let text = text.or_else(|| panic.unwrap_err().downcast_ref::<String>().cloned());
        assert!(text.unwrap().contains("forked"), "{what}");
    };
    refused("go", &|| handle.go(|| ()));
    refused("build", &|| drop(gosched::Runtime::builder().build()));
    if thread::current().id().goroutine().is_some() {
        refused("yield_now", &thread::yield_now);
        refused("spawn", &|| drop(thread::spawn(|| ())));
        refused("park_timeout", &|| {
            thread::park_timeout(std::time::Duration::from_millis(1))
        });
        refused("sleep", &|| {
            thread::sleep(std::time::Duration::from_millis(1))
        });
        refused("gomaxprocs", &|| _ = gosched::gomaxprocs(3));
        refused("lock_os_thread", &gosched::lock_os_thread);
        refused("blocking", &|| gosched::blocking(|| ()));
    }
}

/// A copy of the process that does not exec has one thread and no runtime. Its calls get an error
/// that says so.
#[test]
fn a_copy_that_calls_the_runtime_is_told_why_not() {
    let output = child(
        "processes::a_copy_that_calls_the_runtime_is_told_why_not",
        || {
            std::panic::set_hook(Box::new(|_| ()));
            let runtime = own(2);
            let copy_and_call = |handle: &gosched::Handle| {
                // SAFETY: the copy calls what it may and leaves.
                let copy = unsafe { libc::fork() };
                if copy == 0 {
                    let call = || calls_into_the_runtime(handle);
                    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
                    // SAFETY: ends the copy.
                    unsafe { libc::_exit(failed.is_err().into()) };
                }
                let status = wait_for(copy);
                assert!(libc::WIFEXITED(status), "{status:#x}");
                assert_eq!(libc::WEXITSTATUS(status), 0);
            };
            let handle = runtime.handle();
            copy_and_call(&handle);
            runtime.run(|| {
                copy_and_call(&handle);
                thread::spawn(|| ()).join().unwrap(); // nothing has happened to the original
            });
            // Where no runtime is running a copy may make its own.
            drop((runtime, handle));
            // SAFETY: no runtime exists here; the copy makes its own and ends below.
            let copy = unsafe { libc::fork() };
            if copy == 0 {
                let answer = own(1).run(|| 6 * 7);
                // SAFETY: ends the copy.
                unsafe { libc::_exit(answer) };
            }
            assert_eq!(libc::WEXITSTATUS(wait_for(copy)), 42);
        },
    );
    output.succeeded();
}
