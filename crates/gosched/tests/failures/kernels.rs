//! Kernels and sandboxes that refuse what they granted before: system calls that a filter forbids,
//! before the runtime is built or while it runs, and limits of resources. Goroutines continue, in a
//! weaker mode if necessary.
//!
//! A filter is for ever, so each case is a process of its own.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use crate::common::compute;
use gosched::net::{TcpListener, TcpStream};
use gosched::{Runtime, debug, thread};

/// From now on these system calls fail with this error, in every thread of the process and in
/// those to come.
fn refuse(calls: &[i64], errno: i32) {
    let op = |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let (load, equal, give) = (
        libc::BPF_LD | libc::BPF_W | libc::BPF_ABS,
        libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
        libc::BPF_RET | libc::BPF_K,
    );
    let mut program = vec![op(load, 0, 0, 0)]; // the call's number
    for (at, call) in calls.iter().enumerate() {
        let to_the_last = (calls.len() - at) as u8;
        program.push(op(equal, to_the_last, 0, *call as u32));
    }
    program.push(op(give, 0, 0, libc::SECCOMP_RET_ALLOW));
    program.push(op(give, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: settings of this process; the kernel copies the program.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        );
        assert_eq!(set, 0, "no filter: {}", std::io::Error::last_os_error());
    }
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit {
        rlim_cur: most,
        rlim_max: most,
    };
    // SAFETY: a setting of this process.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

/// Everything that makes the scheduler use system calls. Goroutines compute, sleep, block their
/// thread (marked and not), use a socket, use new stacks, and stop the world.
fn everything() {
    let began = Instant::now();
    for round in 0..2 {
        thread::scope(|s| {
            s.spawn(|| compute(Duration::from_millis(40)));
            s.spawn(|| compute(Duration::from_millis(40)));
            for n in 0..6 {
                s.spawn(move || std::thread::sleep(Duration::from_millis(20 + n)));
                s.spawn(move || gosched::blocking(|| std::thread::sleep(Duration::from_millis(n))));
                s.spawn(move || thread::sleep(Duration::from_millis(10 + n)));
            }
            s.spawn(talk);
            s.spawn(many_stacks);
        });
        debug::check().expect("the structures agree");
        gosched::gomaxprocs(1 + round % 2);
    }
    gosched::gomaxprocs(2);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{:?}",
        began.elapsed()
    );
}

fn talk() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::scope(|s| {
        s.spawn(|| {
            let (mut peer, _) = listener.accept().unwrap();
            let mut bytes = [0; 4];
            peer.read_exact(&mut bytes).unwrap();
            thread::sleep(Duration::from_millis(5));
            peer.write_all(&bytes).unwrap();
        });
        let mut stream = TcpStream::connect(address).unwrap();
        let mut bytes = [0; 4];
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"ping");
    });
}

fn many_stacks() {
    let (tx, rx) = gosched::chan::unbounded();
    for n in 0..200u64 {
        let tx = tx.clone();
        gosched::go(move || {
            thread::yield_now();
            tx.send(n).unwrap();
        });
    }
    drop(tx);
    assert_eq!(rx.iter().sum::<u64>(), 199 * 200 / 2);
}

fn two() -> Runtime {
    Runtime::builder().procs(2).build().unwrap()
}

/// A goroutine that blocks its only P without a mark does not keep the others from running. Says
/// how that was noticed.
fn sleeper_is_no_obstacle() -> &'static str {
    gosched::gomaxprocs(1);
    let (end, is_over) = std::sync::mpsc::channel();
    let sleeps = Arc::new(AtomicBool::new(false));
    let is_asleep = Arc::clone(&sleeps);
    let sleeper = thread::spawn(move || {
        is_asleep.store(true, SeqCst);
        is_over.recv().unwrap(); // std's: it blocks the thread
    });
    while !sleeps.load(SeqCst) {
        thread::yield_now();
    }
    thread::sleep(Duration::from_millis(1));
    let way = debug::metrics().unmarked.as_str();
    end.send(()).unwrap();
    sleeper.join().unwrap();
    way
}

/// The filter comes when the runtime has claimed Ps already.
#[test]
fn d8_a_barrier_that_is_refused_later_is_replaced_by_signals() {
    const NAME: &str = "d8_a_barrier_that_is_refused_later_is_replaced_by_signals";
    for errno in ["1", "38"] {
        let out = crate::common::child_of(NAME, errno, |errno| {
            two().run(|| {
                assert_eq!(sleeper_is_no_obstacle(), "kernel state");
                refuse(&[libc::SYS_membarrier], errno.parse().unwrap());
                assert_eq!(sleeper_is_no_obstacle(), "by signal: no membarrier");
                everything();
            });
        });
        out.succeeded();
        assert_eq!(out.stderr, "");
    }
}

#[test]
fn d8_a_kernel_without_the_barrier_is_served_by_signals() {
    const NAME: &str = "d8_a_kernel_without_the_barrier_is_served_by_signals";
    for errno in ["1", "38"] {
        let out = crate::common::child_of(NAME, errno, |errno| {
            refuse(&[libc::SYS_membarrier], errno.parse().unwrap());
            two().run(|| {
                assert_eq!(sleeper_is_no_obstacle(), "by signal: no membarrier");
                everything();
            });
        });
        out.succeeded();
        assert_eq!(out.stderr, "");
    }
}

/// `/proc` cannot be read any more, nor can any other file be opened.
#[test]
fn d8_files_that_cannot_be_opened_any_more_are_done_without() {
    const NAME: &str = "d8_files_that_cannot_be_opened_any_more_are_done_without";
    for when in ["before", "after", "after, with the barrier"] {
        let out = crate::common::child_of(NAME, when, |when| {
            let calls = [libc::SYS_open, libc::SYS_openat, libc::SYS_membarrier];
            let calls = &calls[..if when.contains("barrier") { 3 } else { 2 }];
            if when == "before" {
                refuse(calls, libc::EACCES);
            }
            two().run(|| {
                if when != "before" {
                    refuse(calls, libc::EACCES);
                }
                sleeper_is_no_obstacle();
                everything();
                // Asked late: the first M may have had its file open already.
                let way = debug::metrics().unmarked.as_str();
                assert!(way.contains("/proc cannot be read"), "{way}");
            });
        });
        out.succeeded();
        assert_eq!(out.stderr, "");
    }
}

/// What a sandbox may forbid while goroutines run.
const CALLS: &[(&str, &[i64])] = &[
    (
        "affinity",
        &[libc::SYS_sched_getaffinity, libc::SYS_sched_setaffinity],
    ),
    ("yield", &[libc::SYS_sched_yield]),
    ("madvise", &[libc::SYS_madvise]),
    ("mprotect", &[libc::SYS_mprotect]),
    (
        "cpu clocks",
        &[libc::SYS_clock_gettime, libc::SYS_clock_getres],
    ),
    (
        "signals",
        &[
            libc::SYS_tgkill,
            libc::SYS_tkill,
            libc::SYS_rt_tgsigqueueinfo,
        ],
    ),
    ("names", &[libc::SYS_prctl]),
    (
        "epoll's later calls",
        &[libc::SYS_epoll_pwait2, libc::SYS_epoll_pwait],
    ),
    ("alternate stacks", &[libc::SYS_sigaltstack]),
    (
        "usage",
        &[libc::SYS_getrusage, libc::SYS_times, libc::SYS_sysinfo],
    ),
    ("random", &[libc::SYS_getrandom]),
    ("ids", &[libc::SYS_getpid, libc::SYS_getuid]),
    ("threads", &[libc::SYS_clone, libc::SYS_clone3]),
];

#[test]
fn d9_system_calls_that_are_refused_later_do_no_harm() {
    const NAME: &str = "d9_system_calls_that_are_refused_later_do_no_harm";
    let run = |which: &str| {
        println!("without {which}");
        let calls = CALLS.iter().filter(|(name, _)| *name == which);
        let calls: Vec<i64> = calls.flat_map(|(_, calls)| calls.iter().copied()).collect();
        two().run(|| {
            everything();
            refuse(&calls, libc::EPERM);
            everything();
        });
    };
    for (name, _) in CALLS {
        let out = crate::common::child_of(NAME, name, run);
        assert!(out.status.success(), "without {name}: {out:#?}");
    }
}

/// The same calls, of a sandbox that was there before the runtime. Without signal stacks or
/// threads, for which libc needs `mprotect`, there is none; `errors.rs` has what `build()` says
/// then.
#[test]
fn d9_system_calls_that_are_refused_from_the_start_do_no_harm() {
    const NAME: &str = "d9_system_calls_that_are_refused_from_the_start_do_no_harm";
    let run = |which: &str| {
        println!("without {which}");
        let calls = CALLS.iter().filter(|(name, _)| *name == which);
        let calls: Vec<i64> = calls.flat_map(|(_, calls)| calls.iter().copied()).collect();
        refuse(&calls, libc::EPERM);
        two().run(everything);
    };
    let is_needed = |name: &str| matches!(name, "alternate stacks" | "threads" | "mprotect");
    for (name, _) in CALLS.iter().filter(|(name, _)| !is_needed(name)) {
        let out = crate::common::child_of(NAME, name, run);
        assert!(out.status.success(), "without {name}: {out:#?}");
    }
}

/// sysmon keeps a file open for each thread that it looks at, up to a quarter of the descriptors.
#[test]
fn d8_sysmon_leaves_descriptors_to_the_program() {
    let out = crate::common::child("d8_sysmon_leaves_descriptors_to_the_program", || {
        limit(libc::RLIMIT_NOFILE, 40);
        two().run(|| {
            // Each blocks its thread until all are there.
            let all = Arc::new(std::sync::Barrier::new(30));
            let wait = |_| {
                let all = Arc::clone(&all);
                thread::spawn(move || _ = all.wait())
            };
            let waiters: Vec<_> = (0..30).map(wait).collect();
            waiters.into_iter().for_each(|one| one.join().unwrap());
            let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
            let targets = files.filter_map(|file| std::fs::read_link(file.path()).ok());
            let kept = targets.filter(|to| to.to_string_lossy().contains("/task/"));
            let (kept, threads) = (kept.count(), debug::metrics().threads);
            assert!(threads >= 30, "{threads} threads");
            assert!(
                (1..=10).contains(&kept),
                "{kept} files for {threads} threads"
            );
        });
    });
    out.succeeded();
}

/// Limits that a process sets for itself, or finds.
#[test]
fn d9_limits_of_resources_do_no_harm() {
    const NAME: &str = "d9_limits_of_resources_do_no_harm";
    for which in [
        "NOFILE",
        "AS",
        "STACK",
        "SIGPENDING",
        "MEMLOCK",
        "STACK unlimited",
    ] {
        let out = crate::common::child_of(NAME, which, |which| {
            match which {
                // What the runtime has open, a listener, two streams, and little more: none for a
                // file per thread.
                "NOFILE" => limit(libc::RLIMIT_NOFILE, 24),
                "AS" => limit(libc::RLIMIT_AS, 6 << 30),
                "STACK" => limit(libc::RLIMIT_STACK, 256 << 10),
                "SIGPENDING" => limit(libc::RLIMIT_SIGPENDING, 0),
                "MEMLOCK" => limit(libc::RLIMIT_MEMLOCK, 0),
                _ => limit(libc::RLIMIT_STACK, libc::RLIM_INFINITY),
            }
            two().run(|| {
                sleeper_is_no_obstacle();
                everything();
            });
        });
        assert!(out.status.success(), "with the limit {which}: {out:#?}");
    }
}
