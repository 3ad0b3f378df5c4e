//! std's documentation of `std::process`.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::{child, thread_count};
use crate::{WHILE, both, spawn};

fn sh(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn exit_codes_and_signals() {
    both(|| {
        assert_eq!(sh("exit 7").status().unwrap().code(), Some(7));
        let status = sh("kill -9 $$").status().unwrap();
        assert_eq!((status.code(), status.signal()), (None, Some(9)));
        assert!(Command::new("true").status().unwrap().success());
        let missing = Command::new("/no/such/program").spawn().unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_child_is_killed_and_waited_for_twice() {
    both(|| {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        assert!(child.try_wait().unwrap().is_none());
        let pid = child.id() as i32;
        let killer = spawn(move || {
            std::thread::sleep(WHILE);
            // SAFETY: a child that is not waited for yet: it exists.
            unsafe { libc::kill(pid, libc::SIGKILL) }
        });
        let status = child.wait().unwrap();
        assert_eq!((status.signal(), killer.join()), (Some(9), 0));
        assert_eq!(child.wait().unwrap(), status);
        assert_eq!(child.try_wait().unwrap(), Some(status));
        assert!(child.kill().is_ok());
        // SAFETY: no memory is passed. The child is gone.
        let again = unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        assert_eq!(crate::errno(again), libc::ECHILD);
    });
}

#[test]
fn much_data_both_ways() {
    both(|| {
        let mut cat = sh("cat; cat /dev/zero | head -c 300000 >&2");
        cat.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = cat.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let data: Vec<u8> = (0..2_000_000u32).map(|n| (n / 3) as u8).collect();
        let sent = data.clone();
        let writer = spawn(move || stdin.write_all(&sent).unwrap());
        let output = child.wait_with_output().unwrap();
        writer.join();
        assert!(output.stdout == data);
        assert_eq!(output.stderr, vec![0; 300_000]);
    });
}

#[test]
fn environment_folder_and_pre_exec() {
    both(|| {
        let mut command = sh("echo $NAME; pwd; umask");
        command.env("NAME", "value").current_dir("/");
        // SAFETY: the function only calls umask, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                libc::umask(0o027);
                Ok(())
            })
        };
        let output = command.output().unwrap();
        assert_eq!(output.stdout, b"value\n/\n0027\n");
        // SAFETY: the function touches nothing.
        unsafe { command.pre_exec(|| Err(ErrorKind::Other.into())) };
        assert!(command.output().is_err());
    });
}

/// The child closes what it inherits, and the parent's waits go on.
#[test]
fn a_fork_leaves_the_parents_waits() {
    both(|| {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let fd = reader.as_raw_fd();
        let waiting = spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        std::thread::sleep(WHILE);
        for _ in 0..3 {
            let mut command = Command::new("true");
            // SAFETY: the function only calls async-signal-safe functions, on numbers of the child.
            unsafe {
                command.pre_exec(move || {
                    libc::close(fd);
                    libc::dup2(2, fd);
                    libc::close(fd);
                    Ok(())
                })
            };
            assert!(command.status().unwrap().success());
        }
        writer.write_all(b"still here").unwrap();
        drop(writer);
        assert_eq!(waiting.join(), "still here");
    });
}

#[test]
fn a_descriptor_that_a_child_has_stays_blocking() {
    both(|| {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mine = reader.try_clone().unwrap();
        let waiting = spawn(move || {
            let mut byte = [0];
            (&mine).read(&mut byte).unwrap()
        });
        std::thread::sleep(WHILE);
        // `head` fails if its input is non-blocking.
        let mut head = Command::new("head");
        head.args(["-c", "3"]).stdin(reader).stdout(Stdio::piped());
        let child = head.spawn().unwrap();
        std::thread::sleep(WHILE);
        writer.write_all(b"abcd").unwrap();
        let output = spawn(move || child.wait_with_output().unwrap());
        // No reader has to be left.
        _ = writer.write_all(b"efgh");
        assert!(output.join().status.success());
        assert_eq!(waiting.join(), 1);
    });
}

#[test]
fn five_hundred_at_once_hold_no_threads() {
    child("five_hundred_at_once_hold_no_threads", || {
        let most = gosched::run(|| {
            let children: Vec<_> = (0..500)
                .map(|n| {
                    gosched::thread::spawn(move || {
                        let mut command = sh(&format!("read x; exit {}", n % 50));
                        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
                        let stdin = child.stdin.take();
                        let ender = gosched::thread::spawn(move || {
                            gosched::thread::sleep(Duration::from_secs(1));
                            drop(stdin);
                        });
                        let code = child.wait().unwrap().code();
                        ender.join().unwrap();
                        (code, n % 50)
                    })
                })
                .collect();
            let mut most = 0;
            while children.iter().any(|child| !child.is_finished()) {
                most = most.max(thread_count());
                gosched::thread::sleep(Duration::from_millis(5));
            }
            for child in children {
                let (code, expected) = child.join().unwrap();
                assert_eq!(code, Some(expected));
            }
            most
        });
        assert!(most < 64, "{most} threads");
    })
    .succeeded();
}
