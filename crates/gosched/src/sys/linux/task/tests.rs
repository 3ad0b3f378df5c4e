//! Threads with known behaviour, watched by another thread.

use crate::sys::linux::task::*;
use crate::sys::{
    Context, Info, Wait, futex_wait, futex_wake_ptr, gettid, sigaction_install, sleep_ns,
};

use crate::tests::child;

use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize};
use std::io::{Read, Write as _};
use std::os::fd::AsRawFd;
use std::sync::{Arc, mpsc};

/// Starts a thread that runs `body`, and returns its id.
fn thread(body: impl FnOnce() + Send + 'static) -> (i32, std::thread::JoinHandle<()>) {
    let (send, tid) = mpsc::channel();
    let handle = std::thread::spawn(move || {
        send.send(gettid()).expect("the test listens");
        body();
    });
    (tid.recv().expect("it ran"), handle)
}

/// Whether `fact` becomes true within ten seconds.
fn soon(mut fact: impl FnMut() -> bool) -> bool {
    (0..10_000).any(|_| {
        let holds = fact();
        if !holds {
            sleep_ns(1_000_000);
        }
        holds
    })
}

/// Starts a thread that spins until the flag is set.
fn spinner() -> (i32, Arc<AtomicBool>, std::thread::JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let (tid, handle) = thread(move || {
        while !seen.load(SeqCst) {
            std::hint::spin_loop();
        }
    });
    (tid, stop, handle)
}

/// Starts a thread that sleeps on a word until it is not 0.
fn waiter() -> (i32, Arc<AtomicU32>, std::thread::JoinHandle<()>) {
    let word = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&word);
    let (tid, handle) = thread(move || while futex_wait(&seen, 0, None) != Wait::Changed {});
    (tid, word, handle)
}

/// Ends a `waiter`.
fn wake(word: &AtomicU32, handle: std::thread::JoinHandle<()>) {
    word.store(1, SeqCst);
    futex_wake_ptr(word, 1);
    handle.join().expect("it ended");
}

#[test]
fn cpu_time_grows_for_who_runs_and_rests_for_who_sleeps() {
    let (busy, stop, handle) = spinner();
    let before = thread_cpu_ns(busy).expect("alive");
    assert!(soon(
        || thread_cpu_ns(busy).expect("alive") >= before + 5_000_000
    ));
    stop.store(true, SeqCst);
    handle.join().expect("it ended");
    assert!(soon(|| thread_cpu_ns(busy).is_none()));

    let (asleep, word, handle) = waiter();
    let file = TaskFile::open(asleep).expect("file");
    assert!(soon(|| file.doing() == Doing::Blocked(libc::SYS_futex)));
    let before = thread_cpu_ns(asleep).expect("alive");
    sleep_ns(20_000_000);
    assert_eq!(thread_cpu_ns(asleep), Some(before));
    wake(&word, handle);
}

#[test]
fn cpu_time_is_of_living_threads_of_this_process_only() {
    assert!(thread_cpu_ns(gettid()).is_some_and(|ns| ns > 0));
    // SAFETY: the call touches no memory.
    let parent = unsafe { libc::getppid() };
    for stranger in [0, -1, i32::MIN, i32::MAX, TID_END - 1, TID_END, parent] {
        assert_eq!(thread_cpu_ns(stranger), None, "{stranger}");
    }
}

#[test]
fn a_blocked_signal_is_known() {
    let signal = libc::SIGRTMIN() + 9; // no other test of this process uses it
    assert!(!blocks_signal(gettid(), signal));
    // SAFETY: a set in this frame, and the mask of this thread, which ends with the test.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
    assert!(blocks_signal(gettid(), signal));
    assert!(!blocks_signal(gettid(), signal + 1) && !blocks_signal(gettid(), signal - 1));
    assert!(blocks_signal(0, signal), "nobody knows");
}

#[test]
fn a_signal_reaches_the_thread_it_names() {
    static STRUCK: AtomicI32 = AtomicI32::new(0);
    static MARKED: AtomicBool = AtomicBool::new(false);
    extern "C" fn note_thread(_: c_int, info: Info<'_>, _: Context<'_>) {
        MARKED.store(info.is_marked(), SeqCst);
        STRUCK.store(gettid(), SeqCst);
    }
    let signal = libc::SIGRTMIN() + 8; // no other test of this process uses it
    // SAFETY: the handler makes one bare call and stores to atomics (D7, D9).
    let old = unsafe { sigaction_install(signal, note_thread, libc::SA_RESTART) };
    let (tid, stop, handle) = spinner();
    assert_eq!(signal_thread(tid, signal), Ok(()));
    assert!(soon(|| STRUCK.load(SeqCst) == tid));
    assert!(MARKED.load(SeqCst), "it is known as ours");
    // SAFETY: the signal has a handler, and the calls touch no memory.
    unsafe {
        assert_eq!(libc::raise(signal), 0);
        assert!(!MARKED.swap(true, SeqCst), "it is not");
        let value = libc::sigval {
            sival_ptr: ptr::null_mut(),
        };
        STRUCK.store(0, SeqCst);
        assert_eq!(libc::sigqueue(libc::getpid(), signal, value), 0);
        assert!(soon(|| STRUCK.load(SeqCst) != 0));
        assert!(!MARKED.load(SeqCst), "nor is that");
    }
    stop.store(true, SeqCst);
    handle.join().expect("it ended");
    assert!(soon(
        || signal_thread(tid, signal) == Err(Errno(libc::ESRCH))
    ));
    assert_eq!(signal_thread(-1, signal), Err(Errno(libc::EINVAL)));
    assert_eq!(signal_thread(gettid(), 1000), Err(Errno(libc::EINVAL)));
    assert!(old.expect("action").restore());
}

#[test]
fn a_blocked_thread_names_its_call() {
    let (tid, word, handle) = waiter();
    let file = TaskFile::open(tid).expect("file");
    assert!(soon(|| file.doing() == Doing::Blocked(libc::SYS_futex)));
    wake(&word, handle);
    assert!(soon(|| file.doing() == Doing::Unknown), "it ended");

    let stop = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&stop);
    let (tid, handle) = thread(move || {
        while !seen.load(SeqCst) {
            sleep_ns(50_000_000);
        }
    });
    let file = TaskFile::open(tid).expect("file");
    assert!(soon(|| file.doing() == Doing::Blocked(libc::SYS_nanosleep)));
    stop.store(true, SeqCst);
    handle.join().expect("it ended");

    let (mut reader, mut writer) = std::io::pipe().expect("pipe");
    let (tid, handle) = thread(move || reader.read_exact(&mut [0]).expect("one byte"));
    let file = TaskFile::open(tid).expect("file");
    assert!(soon(|| file.doing() == Doing::Blocked(libc::SYS_read)));
    writer.write_all(b"x").expect("it reads");
    handle.join().expect("it ended");
}

/// More spinning threads than CPUs, so that most of them wait for one.
#[test]
fn a_thread_without_a_cpu_is_running_nevertheless() {
    let spinners: Vec<_> = (0..6).map(|_| spinner()).collect();
    for (tid, ..) in &spinners {
        let file = TaskFile::open(*tid).expect("file");
        assert!(soon(|| file.doing() == Doing::Running));
        for _ in 0..200 {
            // A page fault may block the thread; a call cannot, for it makes none.
            let doing = file.doing();
            assert!(matches!(doing, Doing::Running | Doing::Blocked(-1)));
        }
    }
    for (_, stop, handle) in spinners {
        stop.store(true, SeqCst);
        handle.join().expect("it ended");
    }
}

#[test]
fn only_threads_of_this_process_have_a_file() {
    for stranger in [0, -1, i32::MAX, i32::MIN] {
        assert_eq!(
            TaskFile::open(stranger).err(),
            Some(Errno(libc::ENOENT)),
            "{stranger}"
        );
    }
    let file = TaskFile::open(gettid()).expect("file");
    // SAFETY: the call reads the flags of a descriptor that `file` keeps open.
    let flags = unsafe { libc::fcntl(file.fd as i32, libc::F_GETFD) };
    assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
}

/// In a process of its own, where no other test opens descriptors meanwhile.
#[test]
fn a_reused_descriptor_is_neither_believed_nor_closed() {
    let name = "a_reused_descriptor_is_neither_believed_nor_closed";
    if !child::is_one() {
        let output = child::run(module_path!(), name);
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let (tid, word, handle) = waiter();
    let (other_tid, other_word, other_handle) = waiter();
    let other = TaskFile::open(other_tid).expect("file");
    let blocked = Doing::Blocked(libc::SYS_futex);
    assert!(soon(|| other.doing() == blocked));
    let (reader, _writer) = std::io::pipe().expect("pipe");
    for taker in [reader.as_raw_fd(), other.fd as i32] {
        let file = TaskFile::open(tid).expect("file");
        assert!(soon(|| file.doing() == blocked));
        let number = file.fd as i32;
        // SAFETY: the number is the file's own. The test acts like a program that reuses it.
        assert_eq!(unsafe { libc::dup2(taker, number) }, number);
        assert_eq!(file.doing(), Doing::Unknown);
        drop(file);
        // SAFETY: `dup2` made the number the test's own, and it is not used again.
        assert_eq!(unsafe { libc::close(number) }, 0);
    }
    let file = TaskFile::open(tid).expect("file");
    // SAFETY: the number is the file's own. The test acts like a program that closes it; no other
    // thread opens descriptors.
    assert_eq!(unsafe { libc::close(file.fd as i32) }, 0);
    assert_eq!(file.doing(), Doing::Unknown);
    let number = other.fd as i32;
    drop(other);
    // SAFETY: the call only checks whether the number is open.
    assert_eq!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1);
    wake(&word, handle);
    wake(&other_word, other_handle);
}

/// The switch concerns the whole process, so this test runs in a process of its own.
#[test]
fn a_missing_proc_is_an_error() {
    if !child::is_one() {
        let output = child::run(module_path!(), "a_missing_proc_is_an_error");
        assert!(output.status.success(), "{output:?}");
        return;
    }
    REFUSE_PROC.store(true, SeqCst);
    let refused = TaskFile::open(gettid()).err();
    assert_eq!(refused, Some(Errno(libc::ENOENT)));
    REFUSE_PROC.store(false, SeqCst);
    assert!(TaskFile::open(gettid()).is_ok());
}

#[test]
fn only_the_three_forms_of_the_text_are_understood() {
    assert_eq!(parse(b"running\n"), Doing::Running);
    let outside = b"-1 0x7ffc0 0x7f00a\n";
    assert_eq!(parse(outside), Doing::Blocked(-1));
    let call = "202 0x1 0x80 0x0 0xffffffffffffffff 0x0 0xA 0x7ffc0 0x7f00a\n";
    assert_eq!(parse(call.as_bytes()), Doing::Blocked(202));
    assert_eq!(
        parse(call.replacen("202", "0", 1).as_bytes()),
        Doing::Blocked(0)
    );
    for end in 0..call.len() {
        assert_eq!(parse(&call.as_bytes()[..end]), Doing::Unknown, "{end}");
    }
    for (from, to) in [
        ("202", "-1"),
        ("202", "-202"),
        ("202", "+202"),
        ("202", "0x202"),
        ("202", "20212345678"),
        ("202", ""),
        ("0x80", "80"),
        ("0x80", "0x"),
        ("0x80", "0xg"),
        ("0x80", "0x11111111111111111"),
        ("0x80 ", ""),
        ("0x80 ", "0x80  "),
        ("0x80 ", "0x80 0x80 "),
        ("\n", " \n"),
        ("\n", "\n\n"),
    ] {
        let text = call.replacen(from, to, 1);
        assert_eq!(parse(text.as_bytes()), Doing::Unknown, "{text:?}");
    }
    for text in [
        "",
        "\n",
        "running",
        "running\nrunning\n",
        "-1\n",
        "-1 0x1\n",
    ] {
        assert_eq!(parse(text.as_bytes()), Doing::Unknown, "{text:?}");
    }
}

#[test]
fn a_thread_sets_its_own_timer_slack() {
    let (_, handle) = thread(|| {
        // SAFETY: the call takes and returns numbers.
        let slack = || unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        let before = slack();
        set_timer_slack_ns(1234);
        assert_eq!(slack(), 1234);
        set_timer_slack_ns(0);
        assert_eq!(slack(), before);
    });
    handle.join().expect("it ended");
}

#[test]
fn a_shorter_slice_leaves_policy_and_nice_alone() {
    static LEFT_ALONE: AtomicUsize = AtomicUsize::new(0);
    for policy in [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE] {
        let (_, handle) = thread(move || {
            let none = libc::sched_param { sched_priority: 0 };
            // SAFETY: the calls change only the calling thread, which ends soon.
            unsafe {
                assert_eq!(libc::sched_setscheduler(0, policy, &none), 0);
                libc::setpriority(libc::PRIO_PROCESS, 0, 3);
            }
            let before = scheduling().expect("own attributes");
            set_slice_ns(2_000_000);
            let after = scheduling().expect("own attributes");
            assert_eq!(after.sched_policy as i32, policy);
            assert_eq!(after.sched_nice, before.sched_nice);
            assert_eq!(after.sched_flags, before.sched_flags);
            // Kernels without this setting report 0.
            if before.sched_runtime != 0 && policy != libc::SCHED_IDLE {
                assert_eq!(after.sched_runtime, 2_000_000);
            } else {
                assert_eq!(after.sched_runtime, before.sched_runtime);
                LEFT_ALONE.fetch_add(1, SeqCst);
            }
        });
        handle.join().expect("it ended");
    }
    assert!(LEFT_ALONE.load(SeqCst) >= 1);
}

#[test]
fn a_thread_that_sleeps_is_seen_to_have_slept_and_one_that_computes_is_not() {
    let tid = crate::sys::linux::thread::gettid();
    let before = voluntary_switches(tid).expect("status");
    std::thread::sleep(std::time::Duration::from_millis(2));
    let after = voluntary_switches(tid).expect("status");
    assert!(after > before, "{before} {after}");
    let spun = (0..20).any(|_| {
        let before = voluntary_switches(tid);
        (0..100_000).for_each(|_| std::hint::spin_loop());
        voluntary_switches(tid) == before
    });
    assert!(spun, "computing counts as sleeping");
    assert_eq!(voluntary_switches(i32::MAX), None);
}
