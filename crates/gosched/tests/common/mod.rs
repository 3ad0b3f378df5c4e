//! What the integration tests share: a test that runs itself again in a process of its own, a watchdog
//! for what must not hang, and a look at this process from outside.

#![allow(dead_code)] // every test file uses some of it

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Tells a process that it is a child, and which variant of the test it is to run.
const CHILD: &str = "GOSCHED_TEST_CHILD";
/// The child's first line on stdout: proof that the test of that name exists and ran.
const HERE: &str = "the child is here";
/// Nothing that ends at all takes this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// What became of a child process.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Output {
    /// The exit status; panics if a signal ended the child.
    #[track_caller]
    pub fn code(&self) -> i32 {
        match self.status.code() {
            Some(code) => code,
            None => panic!("ended by a signal: {self:#?}"),
        }
    }

    /// Asserts that the child ended well.
    #[track_caller]
    pub fn succeeded(&self) {
        assert_eq!(self.code(), 0, "{self:#?}");
    }

    /// Asserts a fatal error: exit status 2 and these first lines on stderr.
    #[track_caller]
    pub fn died_with(&self, first_lines: &[&str]) {
        let lines: Vec<_> = self.stderr.lines().take(first_lines.len()).collect();
        assert_eq!(lines, first_lines, "{self:#?}");
        assert_eq!(self.code(), 2, "{self:#?}");
    }

    /// Asserts that stderr has all of these somewhere.
    #[track_caller]
    pub fn says(&self, texts: &[&str]) {
        for text in texts {
            assert!(self.stderr.contains(text), "no {text:?} in {self:#?}");
        }
    }
}

/// Runs `body` in a process of its own: the test called `name` starts this very binary again for itself
/// alone, and there this call runs the body and ends the process with status 0.
///
/// In the child the body is on the main thread and no other thread exists.
pub fn child(name: &str, body: impl FnOnce()) -> Output {
    child_of(name, "", |_| body())
}

/// As [`child`], for a test that has several: each call names its variant, and the body (the same one for
/// all calls of a test) is given it.
pub fn child_of(name: &str, variant: &str, body: impl FnOnce(&str)) -> Output {
    child_with(name, variant, |_| {}, body)
}

/// As [`child_of`], with changes to how the child is started.
pub fn child_with(
    name: &str,
    variant: &str,
    prepare: impl FnOnce(&mut Command),
    body: impl FnOnce(&str),
) -> Output {
    if let Ok(variant) = std::env::var(CHILD) {
        be_the_child(|| body(&variant));
    }
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, variant)
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    prepare(&mut command);
    let output = wait_for(command.spawn().expect("a child process"));
    assert!(
        output.stdout.contains(HERE),
        "no test is called {name:?}: {output:#?}"
    );
    output
}

/// libtest runs even a lone test on a second thread, which a runtime would take for hope. So the process forks:
/// the copy has this thread alone and runs the body, the original waits and ends the way the copy ended.
fn be_the_child(body: impl FnOnce()) -> ! {
    println!("{HERE}");
    // SAFETY: the only other thread, libtest's, sleeps until this one ends and holds no lock; allocation
    // works in a forked copy of a glibc process.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            set_up_the_copy();
            let done = catch_unwind(AssertUnwindSafe(body));
            std::process::exit(if done.is_ok() { 0 } else { 101 });
        }
        copy => end_like(copy),
    }
}

fn set_up_the_copy() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: settings of this process: no core files of those that die on purpose, nobody survives the one
    // who waits, and the signals that a shell ignores for what it runs in the background do what they do.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

fn end_like(copy: libc::pid_t) -> ! {
    let mut status = 0;
    // SAFETY: waits for a child of our own, then ends this process as that one ended.
    unsafe {
        while libc::waitpid(copy, &mut status, 0) != copy {}
        if libc::WIFSIGNALED(status) {
            set_up_the_copy();
            libc::signal(libc::WTERMSIG(status), libc::SIG_DFL);
            libc::raise(libc::WTERMSIG(status));
        }
        libc::_exit(libc::WEXITSTATUS(status));
    }
}

/// Waits for the child; one that hangs is described, killed and fails the test.
fn wait_for(mut child: Child) -> Output {
    let started = Instant::now();
    let stdout = read_all(child.stdout.take());
    let stderr = read_all(child.stderr.take());
    let status = loop {
        if let Some(status) = child.try_wait().expect("own child") {
            break status;
        }
        if started.elapsed() > PATIENCE {
            let threads = threads_of(&copy_of(child.id()));
            child.kill().expect("own child");
            child.wait().expect("own child");
            let (stdout, stderr) = (stdout.recv(), stderr.recv());
            panic!("the child hangs\n{threads}\nstdout: {stdout:?}\nstderr: {stderr:?}");
        }
        thread::sleep(Duration::from_millis(2));
    };
    Output {
        status,
        stdout: stdout.recv().expect("the reader ends"),
        stderr: stderr.recv().expect("the reader ends"),
        took: started.elapsed(),
    }
}

fn read_all(from: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}

/// The process that runs a child's body.
fn copy_of(pid: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let children = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    let copies = tasks.into_iter().flatten().flatten().flat_map(children);
    copies.collect::<String>().trim().to_owned()
}

/// One line per thread of a process: its name, and where it is in the kernel.
fn threads_of(pid: &str) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return String::new();
    };
    let line = |path: std::path::PathBuf| {
        let read = |name| std::fs::read_to_string(path.join(name)).unwrap_or_default();
        let state = read("stat").rsplit(')').next().unwrap_or_default()[..2].to_owned();
        format!(
            "{}:{state} syscall {}",
            read("comm").trim(),
            read("syscall").trim()
        )
    };
    let lines: Vec<_> = tasks.flatten().map(|task| line(task.path())).collect();
    lines.join("\n")
}

/// Ends the process, saying so, if `body` takes longer than `limit`.
pub fn within<T>(limit: Duration, what: &str, body: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    let what = what.to_owned();
    let watchdog = thread::spawn(move || {
        if is_done.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{what}: hangs (over {limit:?})\n{}", threads_of("self"));
            std::process::abort();
        }
    });
    let value = body();
    drop(done);
    watchdog.join().expect("the watchdog ends");
    value
}

/// How many threads this process has.
pub fn thread_count() -> usize {
    status_number("Threads:")
}

/// Resident memory of this process, in KiB.
pub fn rss_kib() -> usize {
    status_number("VmRSS:")
}

fn status_number(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("own status");
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|n| n.parse().ok()).expect("a number")
}

/// How many files this process has open.
pub fn fd_count() -> usize {
    // The listing itself is one.
    std::fs::read_dir("/proc/self/fd")
        .expect("own files")
        .count()
        - 1
}

/// Waits, on a plain thread, until `is_so`; false if it does not come to be in time.
pub fn eventually(mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > Duration::from_secs(30) {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

/// The payload of a panic that is part of the plan.
pub struct Planned;

/// Planned panics are not worth a line each.
pub fn quiet_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload().is::<Planned>() {
                before(info);
            }
        }));
    });
}

/// An environment variable, if it is set and makes sense.
pub fn env<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Shows what a runtime that hangs is doing, if it still answers, and ends the process. Not with `eprintln`: that would be
/// captured, and lost.
pub fn show_and_abort(handle: gosched::Handle) -> ! {
    let shows = thread::spawn(move || {
        if let Ok(metrics) = handle.metrics() {
            let _ = writeln!(std::io::stderr(), "{metrics}");
        }
        if let Ok(dump) = handle.dump() {
            let _ = writeln!(std::io::stderr(), "{dump}");
        }
    });
    let until = Instant::now() + Duration::from_secs(10);
    while !shows.is_finished() && Instant::now() < until {
        thread::sleep(Duration::from_millis(10));
    }
    std::process::abort()
}

/// A small generator of numbers, good enough to mix things up, and the same for the same seed.
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x9E37_79B9_7F4A_7C15)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Counts what is alive of it.
pub struct Alive(std::sync::Arc<std::sync::atomic::AtomicUsize>);

impl Alive {
    pub fn new(count: &std::sync::Arc<std::sync::atomic::AtomicUsize>) -> Alive {
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Alive(std::sync::Arc::clone(count))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
    }
}
