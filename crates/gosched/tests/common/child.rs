//! Runs the body of a test in a process of its own.
//!
//! For tests that must die, that count threads or memory of the whole process, that change signal
//! handlers, limits or the environment, or that must know every thread.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::process::threads_of;
use super::waiting::LONG;

/// Tells a process that it is a child, and which variant of the test it runs.
const CHILD: &str = "GOSCHED_TEST_CHILD";
/// The child's first line on stdout: proof that the test of that name exists and ran.
const HERE: &str = "the child is here";

/// The end of a child process.
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

    /// Asserts exit status 0.
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

    /// Asserts that stderr contains each of these texts.
    #[track_caller]
    pub fn says(&self, texts: &[&str]) {
        for text in texts {
            assert!(self.stderr.contains(text), "no {text:?} in {self:#?}");
        }
    }

    /// The ids of the goroutines whose heading in a report on stderr is `goroutine <id> <state>:`.
    /// Each P gives out ids from a batch of its own, so a test knows only the main goroutine's id.
    pub fn goroutines(&self, state: &str) -> Vec<&str> {
        let headings = self.stderr.lines().filter_map(|line| {
            let heading = line.strip_prefix("goroutine ")?.strip_suffix(':')?;
            let (id, rest) = heading.split_once(' ')?;
            (rest == state).then_some(id)
        });
        headings.collect()
    }

    /// The only id that [`goroutines`](Self::goroutines) finds.
    #[track_caller]
    pub fn goroutine(&self, state: &str) -> &str {
        let found = self.goroutines(state);
        assert_eq!(found.len(), 1, "goroutines {state:?} in {self:#?}");
        found[0]
    }
}

/// Runs `body` in a process of its own. The test called `name` starts this binary again for itself
/// alone. There, this call runs the body and ends the process with status 0.
///
/// `name` is the end of the test's path (see [`path_of`]). In the child, the body runs on the main
/// thread and no other thread exists.
pub fn child(name: &str, body: impl FnOnce()) -> Output {
    child_of(name, "", |_| body())
}

/// As [`child`], for a test that starts several children. Each call names its variant. The body is
/// the same for all calls of a test and receives the variant.
pub fn child_of(name: &str, variant: &str, body: impl FnOnce(&str)) -> Output {
    child_with(name, variant, |_| {}, body)
}

/// Whether this process is a child. What a test prepares for its children is needed once, before
/// the first of them starts.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// As [`child_of`]; `prepare` changes how the child is started.
pub fn child_with(
    name: &str,
    variant: &str,
    prepare: impl FnOnce(&mut Command),
    body: impl FnOnce(&str),
) -> Output {
    if let Ok(variant) = std::env::var(CHILD) {
        be_the_child(|| body(&variant));
    }
    let mut command = this_test_again(name);
    command
        .arg("--test-threads=1")
        .env(CHILD, variant)
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    prepare(&mut command);
    let output = wait_for_child(command.spawn().expect("a child process"));
    assert!(
        output.stdout.contains(HERE),
        "no test is called {name:?}: {output:#?}"
    );
    output
}

/// For [`child_with`]: starts the child with disorder from the runtime itself, and with the seed of
/// its rounds.
pub fn chaos(seed: u64) -> impl FnOnce(&mut Command) {
    move |command| {
        command
            .env("GOSCHED_DEBUG", format!("chaos={}", seed | 1))
            .env("GOSCHED_STRESS_SEED", seed.to_string());
    }
}

/// For [`child_with`]: libc keeps its room for libraries with initial-exec thread-locals. Other
/// settings that this process has, such as disorder, reach the child too.
pub fn keep_static_tls(command: &mut Command) {
    let inherited = std::env::var("GOSCHED_DEBUG").unwrap_or_default();
    command.env("GOSCHED_DEBUG", format!("{inherited},keepstatictls=1"));
}

/// A command that runs the calling test alone, with its output.
pub fn this_test_again(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args(["--exact", &path_of(name), "--nocapture"]);
    command
}

/// The whole path of the calling test, of which `name` is the end. So a test does not depend on the
/// module that contains it.
///
/// libtest names the thread of a test after the test. On any other thread, `name` must be the whole
/// path.
pub fn path_of(name: &str) -> String {
    let thread = thread::current();
    let whole = thread.name().unwrap_or_default();
    let before = whole.strip_suffix(name).unwrap_or_default();
    if before.ends_with("::") { whole } else { name }.to_owned()
}

/// libtest runs even a lone test on a second thread, and a foreign thread prevents the report of a
/// deadlock. So the process forks: the copy has this thread alone and runs the body. The original
/// waits and ends as the copy ended.
fn be_the_child(body: impl FnOnce()) -> ! {
    println!("{HERE}");
    // SAFETY: the only other thread, libtest's, sleeps until this one ends and holds no lock;
    // allocation works in a forked copy of a glibc process.
    match unsafe { libc::fork() } {
        -1 => panic!("no fork: {}", std::io::Error::last_os_error()),
        0 => {
            set_up_the_copy();
            gosched::testing::set_report_patience(60);
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
    // SAFETY: settings of this process; the calls read `none` of this frame and touch no other
    // memory. A process that dies on purpose writes no core file, the copy does not survive its
    // parent, and signals that a shell ignores for background jobs have their default actions.
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
    // SAFETY: waits for a child of this process, writes to `status` of this frame, then ends this
    // process as that one ended.
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

/// Waits for the child. A child that hangs is described and killed, and the test fails.
fn wait_for_child(mut child: Child) -> Output {
    let started = Instant::now();
    let stdout = read_all(child.stdout.take());
    let stderr = read_all(child.stderr.take());
    let status = loop {
        if let Some(status) = child.try_wait().expect("own child") {
            break status;
        }
        if started.elapsed() > LONG {
            let threads = threads_of(&copy_of(child.id()));
            child.kill().expect("own child");
            child.wait().expect("own child");
            // A process that it forked may keep the pipes open.
            let rest = Duration::from_secs(10);
            let (stdout, stderr) = (stdout.recv_timeout(rest), stderr.recv_timeout(rest));
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
