//! Standard input as a pipe, a terminal, a file and nothing at all. Each test is a process of its
//! own, which puts the input under number 0 itself.

use std::fs::File;
use std::io::{BufRead, Read, Write};
use std::os::fd::{AsFd, AsRawFd};

use gosched::io::{pipe, stdin};
use gosched::thread;

use super::{is_nonblocking, pty};
use crate::common;

/// Standard input from now on.
fn becomes_stdin(file: impl AsFd) {
    // SAFETY: changes number 0 of this process, a child that runs this test alone.
    assert_eq!(unsafe { libc::dup2(file.as_fd().as_raw_fd(), 0) }, 0);
}

fn line() -> String {
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    line
}

/// A goroutine waits for a line; `write` sends it.
fn waits_for_a_line(write: impl FnOnce()) -> String {
    let waiting = common::named("stdin", line);
    common::dump_when_waiting("stdin", "IO wait, read");
    assert!(common::thread_count() <= 10, "{}", common::thread_count());
    write();
    waiting.join().unwrap()
}

#[test]
fn a_pipe() {
    let output = common::child("stdin::a_pipe", || {
        let (reader, writer) = std::io::pipe().unwrap();
        becomes_stdin(reader);
        common::run(1, "a pipe", || {
            let mut writer = gosched::io::PipeWriter::from(writer);
            let first = waits_for_a_line(|| writer.write_all(b"one\ntwo\nthr").unwrap());
            assert_eq!((&first[..], &line()[..]), ("one\n", "two\n"));
            assert!(!is_nonblocking(stdin()), "others share it");
            assert_eq!(
                waits_for_a_line(|| writer.write_all(b"ee\n").unwrap()),
                "three\n"
            );
            assert!(!stdin().is_terminal());
            // Others wait for the lock, and hold no thread either.
            let many: Vec<_> = (0..100).map(|_| thread::spawn(line)).collect();
            common::until_waiting(1, "IO wait, read");
            common::until_waiting(99, "sync.Mutex.Lock");
            assert!(common::thread_count() <= 10, "{}", common::thread_count());
            (0..100).for_each(|n| writeln!(writer, "{n}").unwrap());
            let mut got: Vec<_> = many.into_iter().map(|l| l.join().unwrap()).collect();
            got.sort_by_key(|line| line.trim().parse::<u32>().unwrap());
            assert!(
                got.iter()
                    .enumerate()
                    .all(|(n, line)| *line == format!("{n}\n"))
            );
            let rest = common::named("rest", || {
                stdin().lines().map(Result::unwrap).collect::<Vec<_>>()
            });
            writer.write_all(b"four\nfive").unwrap();
            drop(writer);
            assert_eq!(rest.join().unwrap(), ["four", "five"]);
            assert_eq!((line(), line()), Default::default(), "the end stays");
        });
        // The same buffer, on a plain thread.
        let (reader, mut writer) = std::io::pipe().unwrap();
        becomes_stdin(reader);
        let waiting = std::thread::spawn(|| {
            let mut lock = stdin().lock();
            let mut text = [0; 4];
            lock.read_exact(&mut text).unwrap();
            (text, lock.fill_buf().unwrap().to_vec())
        });
        writer.write_all(b"plainly").unwrap();
        let (text, rest) = waiting.join().unwrap();
        assert_eq!((&text, &rest[..]), (b"plai", &b"nly"[..]));
    });
    output.succeeded();
}

#[test]
fn a_terminal() {
    let output = common::child("stdin::a_terminal", || {
        let (mut master, slave) = pty();
        becomes_stdin(&slave);
        common::run(2, "a terminal", || {
            assert!(stdin().is_terminal());
            assert_eq!(
                waits_for_a_line(|| master.write_all(b"typed\n").unwrap()),
                "typed\n"
            );
            assert!(!is_nonblocking(&slave), "a shell shares it");
            assert_eq!(
                waits_for_a_line(|| master.write_all(b"again\n").unwrap()),
                "again\n"
            );
            // Control-D: the end, and then it goes on.
            assert_eq!(waits_for_a_line(|| master.write_all(b"\x04").unwrap()), "");
            assert_eq!(
                waits_for_a_line(|| master.write_all(b"on\n").unwrap()),
                "on\n"
            );
        });
    });
    output.succeeded();
}

/// Another file comes under number 0 while no goroutine waits.
#[test]
fn another_input() {
    let output = common::child("stdin::another_input", || {
        common::run(1, "another input", || {
            for n in 0..20 {
                let (reader, mut writer) = pipe().unwrap();
                becomes_stdin(std::io::PipeReader::from(reader));
                let expected = format!("{n}\n");
                let got = waits_for_a_line(|| writer.write_all(expected.as_bytes()).unwrap());
                assert_eq!(got, expected);
            }
        });
    });
    output.succeeded();
}

/// What is always ready is simply read, and what is closed is empty.
#[test]
fn files_and_nothing() {
    let output = common::child("stdin::files_and_nothing", || {
        common::run(1, "files", || {
            becomes_stdin(File::open("/proc/self/comm").unwrap());
            let name = std::fs::read_to_string("/proc/self/comm").unwrap();
            assert_eq!(
                stdin().lines().map(Result::unwrap).collect::<Vec<_>>(),
                [name.trim()]
            );
            becomes_stdin(File::open("/dev/null").unwrap());
            assert_eq!(line(), "");
            // SAFETY: closes number 0 of this process, a child that runs this test alone.
            assert_eq!(unsafe { libc::close(0) }, 0);
            assert_eq!(line(), "");
            let mut all = Vec::new();
            assert_eq!(stdin().read_to_end(&mut all).unwrap(), 0);
        });
    });
    output.succeeded();
}

/// A non-blocking input is waited for as any other.
#[test]
fn a_nonblocking_input() {
    let output = common::child("stdin::a_nonblocking_input", || {
        common::run(1, "non-blocking", || {
            let (reader, mut writer) = pipe().unwrap();
            becomes_stdin(&reader);
            assert!(is_nonblocking(stdin()));
            assert_eq!(
                waits_for_a_line(|| writer.write_all(b"x\n").unwrap()),
                "x\n"
            );
        });
    });
    output.succeeded();
}

/// Another reader takes bytes away between the wait and the read. Each byte is read once, and the
/// other goroutines of the one P go on.
#[test]
fn another_reader_takes_bytes_away() {
    let output = common::child("stdin::another_reader_takes_bytes_away", || {
        let (reader, mut writer) = std::io::pipe().unwrap();
        becomes_stdin(&reader);
        const BYTES: usize = 5000;
        let thief = std::thread::spawn(move || {
            let mut taken = 0;
            while (&reader).read(&mut [0]).unwrap() == 1 {
                taken += 1;
            }
            taken
        });
        common::run(1, "a thief", || {
            let reading = thread::spawn(|| {
                let mut all = Vec::new();
                stdin().read_to_end(&mut all).unwrap()
            });
            for _ in 0..BYTES {
                writer.write_all(b"x").unwrap();
                gosched::yield_now();
            }
            drop(writer);
            assert_eq!(reading.join().unwrap() + thief.join().unwrap(), BYTES);
        });
    });
    output.succeeded();
}
