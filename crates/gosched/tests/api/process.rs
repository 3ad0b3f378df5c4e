//! `gosched::process`: std's results, and waits without threads.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use gosched::process::{Child, Command, Stdio};
use gosched::thread;

use crate::common::{self, LONG, ms};

/// Runs `f` as a goroutine, and again on a plain thread.
fn everywhere(what: &str, f: impl Fn() + Sync) {
    common::run(2, what, &f);
    common::within(LONG, what, f);
}

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// A child that runs until it is killed.
fn sleeper() -> Child {
    let mut command = Command::new("sleep");
    command.arg("1000").stdin(Stdio::null()).spawn().unwrap()
}

/// The same commands by std and by this crate: status, output, errors.
#[test]
fn as_stds() {
    macro_rules! seen {
        ($command:ident, $stdio:ident) => {{
            let mut log = Vec::new();
            let mut note = |result: std::io::Result<std::process::Output>| {
                log.push(match result {
                    Ok(output) => format!("{output:?}"),
                    Err(error) => format!("{:?} {error}", error.kind()),
                });
            };
            let sh = |script: &str| {
                let mut command = $command::new("sh");
                command.arg("-c").arg(script);
                command
            };
            note(sh("echo out; echo err >&2; exit 7").output());
            note(sh("kill -9 $$").output());
            note(sh("cat; echo $A").env("A", "b").output()); // no input
            note(sh("echo lost").stdout($stdio::null()).output());
            note(
                sh("echo lost >&2; exec 2>&-; echo kept")
                    .stderr($stdio::null())
                    .output(),
            );
            note($command::new("/no/such/program").output());
            note(sh("pwd").current_dir("/").env_clear().output());
            note(sh("pwd").current_dir("/no/such/folder").output());
            let mut twice = sh("echo again");
            note(twice.output());
            note(twice.output());
            note(sh("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2").output());
            let status = sh("exit 3").status();
            note(status.map(|status| std::process::Output {
                status,
                stdout: vec![],
                stderr: vec![],
            }));
            let piped = sh("read line; echo got $line")
                .stdin($stdio::piped())
                .stdout($stdio::piped())
                .spawn()
                .and_then(|mut child| {
                    child.stdin.as_mut().unwrap().write_all(b"a line\n")?;
                    child.wait_with_output()
                });
            note(piped);
            log.push(format!("{:?}", sh("exit").arg("x y").env("K", "v")));
            log
        }};
    }
    let expected = {
        use std::process::{Command, Stdio};
        common::within(LONG, "std", || seen!(Command, Stdio))
    };
    everywhere("as std's", || assert_eq!(seen!(Command, Stdio), expected));
}

/// 500 children at once, each with its own output, by few threads.
#[test]
fn many_at_once() {
    let output = common::child("process::many_at_once", || {
        common::run(2, "many", || {
            let most = thread::spawn(|| {
                let mut most = 0;
                while !DONE.load(std::sync::atomic::Ordering::SeqCst) {
                    most = most.max(common::thread_count());
                    thread::sleep(ms(1));
                }
                most
            });
            let children: Vec<_> = (0..100)
                .map(|n| {
                    thread::spawn(move || {
                        sh(&format!("echo {n}; echo -{n} >&2; exit {n}")).output()
                    })
                })
                .collect();
            for (n, child) in children.into_iter().enumerate() {
                let output = child.join().unwrap().unwrap();
                assert_eq!(output.status.code(), Some(n as i32 % 256));
                assert_eq!(output.stdout, format!("{n}\n").as_bytes());
                assert_eq!(output.stderr, format!("-{n}\n").as_bytes());
            }
            DONE.store(true, std::sync::atomic::Ordering::SeqCst);
            let most = most.join().unwrap();
            assert!(most <= 24, "{most} threads");
        });
    });
    output.succeeded();
}

static DONE: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

/// Goroutines that wait for children hold no threads.
#[test]
fn waits_hold_no_threads() {
    let output = common::child("process::waits_hold_no_threads", || {
        common::run(2, "waits", || {
            let fds = common::fd_count();
            let (pids, waits): (Vec<_>, Vec<_>) = (0..100)
                .map(|_| {
                    let mut child = sleeper();
                    (child.id(), thread::spawn(move || child.wait().unwrap()))
                })
                .unzip();
            common::until_waiting(100, "IO wait, read");
            assert!(common::thread_count() <= 16, "{}", common::thread_count());
            for pid in pids {
                // SAFETY: a signal to a child of this process, which has not been waited for.
                assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGTERM) }, 0);
            }
            for wait in waits {
                assert_eq!(wait.join().unwrap().signal(), Some(libc::SIGTERM));
            }
            assert!(
                common::fd_count() <= fds + 8,
                "{} of {fds}",
                common::fd_count()
            );
        });
    });
    output.succeeded();
}

/// A status is there once, and stays.
#[test]
fn a_status_stays() {
    everywhere("a status", || {
        let mut child = sleeper();
        assert_eq!(child.try_wait().unwrap(), None);
        assert_eq!(child.wait_timeout(ms(5)).unwrap(), None);
        assert_eq!(child.wait_timeout(Duration::ZERO).unwrap(), None);
        child.kill().unwrap();
        let status = child.wait_timeout(LONG).unwrap().expect("it was killed");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        assert_eq!(child.try_wait().unwrap(), Some(status));
        assert_eq!(child.wait().unwrap(), status);
        assert_eq!(child.wait_timeout(Duration::MAX).unwrap(), Some(status));
        child.kill().unwrap(); // nothing happens
        let mut child = sh("exit 5").spawn().unwrap();
        common::until(|| child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(5));
    });
}

/// The wait closes the child's input.
#[test]
fn a_wait_closes_the_input() {
    everywhere("the input", || {
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).stdout(Stdio::null());
        assert!(cat.spawn().unwrap().wait().unwrap().success());
        let ended = cat.spawn().unwrap().wait_timeout(LONG).unwrap();
        assert!(ended.expect("it has ended").success());
    });
}

/// Much goes through a child, in both directions.
#[test]
fn a_child_as_a_filter() {
    everywhere("a filter", || {
        let mut cat = Command::new("cat");
        let mut cat = cat
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut stdin, mut stdout) = (cat.stdin.take().unwrap(), cat.stdout.take().unwrap());
        let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 253) as u8).collect();
        let mut all = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stdin.write_all(&data).unwrap();
                drop(stdin);
            });
            stdout.read_to_end(&mut all).unwrap();
        });
        assert!(all == data);
        assert!(cat.wait().unwrap().success());
    });
}

/// A pipe of a child becomes the input of the next one.
#[test]
fn a_chain_of_children() {
    everywhere("a chain", || {
        let first = sh("echo one; echo two").stdout(Stdio::piped()).spawn();
        let mut first = first.unwrap();
        let stdout = first.stdout.take().unwrap();
        let last = Command::new("tr")
            .args(["a-z", "A-Z"])
            .stdin(stdout)
            .output();
        assert_eq!(last.unwrap().stdout, b"ONE\nTWO\n");
        assert!(first.wait().unwrap().success());
    });
}

/// The deadline of a pipe ends the wait for output, not the child.
#[test]
fn output_has_a_deadline() {
    everywhere("a deadline", || {
        let mut child = sh("sleep 1000 & echo $!; wait")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut grandchild = String::new();
        while !grandchild.ends_with('\n') {
            let mut byte = [0];
            stdout.read_exact(&mut byte).unwrap();
            grandchild.push(byte[0].into());
        }
        stdout.set_deadline(Some(Instant::now() + ms(5))).unwrap();
        let error = stdout.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        child.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        let pid: i32 = grandchild.trim().parse().unwrap();
        // SAFETY: a signal to the process that the shell has started for this test.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    });
}

/// The deadline of one pipe ends the wait for the output of both.
#[test]
fn output_of_both_has_a_deadline() {
    everywhere("a deadline", || {
        for is_stdout in [true, false] {
            let mut child = Command::new("sleep")
                .arg("1000")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let pid = child.id() as i32;
            let deadline = Some(Instant::now() + ms(5));
            match is_stdout {
                true => child.stdout.as_mut().unwrap().set_deadline(deadline),
                false => child.stderr.as_mut().unwrap().set_deadline(deadline),
            }
            .unwrap();
            let error = child.wait_with_output().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut);
            // SAFETY: a signal to the child, which nothing has waited for yet, and its end.
            unsafe {
                assert_eq!(libc::kill(pid, libc::SIGKILL), 0);
                assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), 0), pid);
            }
        }
    });
}

/// To std's child and back.
#[test]
fn conversions() {
    everywhere("conversions", || {
        let mut cat = Command::new("cat");
        let cat = cat
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut std = std::process::Child::from(cat);
        std.stdin.take().unwrap().write_all(b"there").unwrap();
        let output = Child::from(std).wait_with_output().unwrap();
        assert_eq!(output.stdout, b"there");
    });
}

/// No descriptor is left for a wait: it holds a thread, and ends.
#[test]
fn a_wait_without_descriptors() {
    let output = common::child("process::a_wait_without_descriptors", || {
        common::run(2, "no descriptors", || {
            let mut children = [sleeper(), sleeper()];
            let full: Vec<_> =
                std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
            assert_eq!(children[0].wait_timeout(ms(20)).unwrap(), None);
            let pids = children.each_ref().map(Child::id);
            let waits = children.map(|mut child| thread::spawn(move || child.wait().unwrap()));
            thread::sleep(ms(20));
            for pid in pids {
                // SAFETY: a signal to a child of this process, which has not been waited for.
                assert_eq!(unsafe { libc::kill(pid as i32, libc::SIGTERM) }, 0);
            }
            for wait in waits {
                assert_eq!(wait.join().unwrap().signal(), Some(libc::SIGTERM));
            }
            drop(full);
        });
    });
    output.succeeded();
}

/// A shutdown ends every kind of wait, and the children run on.
#[test]
fn a_shutdown_ends_waits() {
    common::within(LONG, "a shutdown", || {
        let runtime = common::runtime(2);
        let (tell, pids) = std::sync::mpsc::channel();
        let told = tell.clone();
        let waits = runtime.spawn(move || {
            let mut child = sleeper();
            tell.send(child.id()).unwrap();
            child.wait()
        });
        let reads = runtime.spawn(move || {
            let mut command = Command::new("sleep");
            command
                .arg("1000")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let child = command.spawn().unwrap();
            told.send(child.id()).unwrap();
            child.wait_with_output()
        });
        // The second goroutine of the output reads as well.
        common::until_waiting_in(&runtime.handle(), 3, &["IO wait, read"]);
        runtime.shutdown(LONG);
        assert!(waits.join().unwrap_err().is::<thread::Exited>());
        assert!(reads.join().unwrap_err().is::<thread::Exited>());
        for pid in pids {
            let mut status = 0;
            // SAFETY: ends and reaps a child of this test, which no one else has waited for.
            unsafe {
                assert_eq!(libc::kill(pid as i32, libc::SIGKILL), 0);
                assert_eq!(libc::waitpid(pid as i32, &mut status, 0), pid as i32);
            }
        }
    });
}
