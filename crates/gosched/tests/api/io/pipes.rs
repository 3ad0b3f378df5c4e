//! Pipes: std's results, many at once, and ends that go to child processes.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;

use gosched::io::{PipeReader, PipeWriter, pipe};
use gosched::thread;

use super::{after, everywhere, is_nonblocking, kind, say};
use crate::common::{self, LONG, ms};

/// A test whose body sees `pipe` and `thread` of std or of this crate, and returns what it has
/// seen.
macro_rules! same {
    ($( $(#[$doc:meta])* fn $name:ident() -> Vec<String> $body:block )*) => {
        $(
            $(#[$doc])*
            #[test]
            fn $name() {
                #[allow(unused_imports)] // not every body uses threads
                mod of_std {
                    use super::*;
                    use std::io::pipe;
                    use std::thread;
                    pub fn body() -> Vec<String> $body
                }
                #[allow(unused_imports)]
                mod of_gosched {
                    use super::*;
                    use gosched::io::pipe;
                    use gosched::thread;
                    pub fn body() -> Vec<String> $body
                }
                #[allow(unused_imports)]
                mod on_threads {
                    use super::*;
                    use gosched::io::pipe;
                    use std::thread;
                    pub fn body() -> Vec<String> $body
                }
                let expected = common::within(LONG, "std", of_std::body);
                for procs in [1, 2] {
                    assert_eq!(common::run(procs, "goroutines", of_gosched::body), expected);
                }
                assert_eq!(common::within(LONG, "threads", on_threads::body), expected);
            }
        )*
    };
}

same! {
    /// What is written is read, then the end again and again.
    fn the_end_comes_after_the_data() -> Vec<String> {
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all(b"abc").unwrap();
        let other = writer.try_clone().unwrap();
        drop(writer);
        let mut buf = [0; 2];
        let mut log = vec![say(reader.read(&mut buf)), say(reader.read(&mut [])), say(reader.read(&mut buf))];
        let reading = thread::spawn(move || say(reader.read(&mut buf)) + &say(reader.read(&mut buf)));
        std::thread::sleep(ms(5));
        drop(other);
        log.push(reading.join().unwrap());
        log
    }

    /// Without a reader there is an error, also for a write that waits.
    fn nobody_reads() -> Vec<String> {
        let (reader, mut writer) = pipe().unwrap();
        let clone = reader.try_clone().unwrap();
        drop(reader);
        let mut log = vec![say(writer.write(b"x")), say(writer.write(b"")), say(writer.flush())];
        let writing = thread::spawn(move || {
            let part = writer.write(&vec![0; 1 << 20]).map(|n| n < 1 << 20);
            vec![say(part), say(writer.write(b"x")), say(writer.write(b""))]
        });
        std::thread::sleep(ms(20));
        drop(clone);
        log.extend(writing.join().unwrap());
        log
    }

    /// One write takes all, however large.
    fn a_write_is_whole() -> Vec<String> {
        let (mut reader, mut writer) = pipe().unwrap();
        let reading = thread::spawn(move || {
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            all.iter().fold(all.len() as u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte))
        });
        let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
        let one = writer.write(&data);
        let parts = [IoSlice::new(&data[..5]), IoSlice::new(&[]), IoSlice::new(&data), IoSlice::new(&data[..100])];
        let many = writer.write_vectored(&parts);
        drop(writer);
        vec![say(one), say(many), reading.join().unwrap().to_string()]
    }

    /// Several buffers at once.
    fn vectored() -> Vec<String> {
        let (mut reader, mut writer) = pipe().unwrap();
        let mut log = vec![say(writer.write_vectored(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")]))];
        log.push(say(writer.write_vectored(&[])));
        let (mut x, mut y, mut z) = ([0; 1], [0; 0], [0; 8]);
        log.push(say(reader.read_vectored(&mut [IoSliceMut::new(&mut y), IoSliceMut::new(&mut x), IoSliceMut::new(&mut z)])));
        log.push(format!("{x:?} {z:?}"));
        log
    }

    /// Small writes of many are not mixed.
    fn small_writes_are_not_split() -> Vec<String> {
        let (mut reader, writer) = pipe().unwrap();
        let writers: Vec<_> = (0..8u8).map(|n| {
            let mut writer = writer.try_clone().unwrap();
            thread::spawn(move || (0..100).for_each(|_| writer.write_all(&[n; 2000]).unwrap()))
        }).collect();
        drop(writer);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        let is_whole = all.chunks(2000).all(|part| part.iter().all(|byte| *byte == part[0]));
        vec![format!("{} {is_whole}", all.len())]
    }

    /// A descriptor that the user has set non-blocking does not wait.
    fn the_users_own_flag() -> Vec<String> {
        let (reader, writer) = pipe().unwrap();
        let (reader, writer): (OwnedFd, OwnedFd) = (reader.into(), writer.into());
        for fd in [&reader, &writer] {
            // SAFETY: sets a flag of this test's own pipe, touches no memory.
            let answer = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(fd), libc::F_SETFL, libc::O_NONBLOCK) };
            assert_eq!(answer, 0);
        }
        let mut back = pipe().unwrap();
        (back.0, back.1) = (reader.into(), writer.into());
        let (mut reader, mut writer) = back;
        let mut log = vec![say(reader.read(&mut [0]))];
        log.push(say(writer.write(&vec![0; 1 << 20]).map(|n| n < 1 << 20)));
        log.push(say(loop { if let Err(error) = writer.write(&[0; 4096]) { break std::io::Result::<()>::Err(error) } }));
        let reader: OwnedFd = reader.into();
        log.push(is_nonblocking(&reader).to_string());
        log
    }
}

/// 200 goroutines that wait for 200 pipes hold no threads.
#[test]
fn many_pipes_hold_few_threads() {
    let output = common::child("pipes::many_pipes_hold_few_threads", || {
        common::run(2, "many pipes", || {
            let (readers, writers): (Vec<_>, Vec<_>) = (0..200).map(|_| pipe().unwrap()).unzip();
            let reading: Vec<_> = readers
                .into_iter()
                .map(|mut reader| {
                    thread::spawn(move || {
                        let mut all = String::new();
                        reader.read_to_string(&mut all).unwrap();
                        all
                    })
                })
                .collect();
            common::until_waiting(200, "IO wait, read");
            assert!(common::thread_count() <= 10, "{}", common::thread_count());
            for (n, mut writer) in writers.into_iter().enumerate() {
                write!(writer, "pipe {n}").unwrap();
            }
            for (n, reader) in reading.into_iter().enumerate() {
                assert_eq!(reader.join().unwrap(), format!("pipe {n}"));
            }
        });
    });
    output.succeeded();
}

/// What leaves blocks, whatever has waited on it.
#[test]
fn an_end_that_leaves_blocks() {
    everywhere("leaving", || {
        let (mut reader, writer) = pipe().unwrap();
        reader.set_deadline(after(ms(1))).unwrap();
        assert_eq!(kind(reader.read(&mut [0])), ErrorKind::TimedOut);
        assert!(is_nonblocking(&reader) && is_nonblocking(&writer));
        let reader = std::io::PipeReader::from(reader);
        assert!(!is_nonblocking(&reader));
        let reader = PipeReader::from(reader);
        assert!(is_nonblocking(&reader));
        let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
        assert!(!is_nonblocking(&reader) && !is_nonblocking(&writer));
        let (mut reader, mut writer) = (PipeReader::from(reader), PipeWriter::from(writer));
        writer.write_all(b"x").unwrap();
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 1, "no deadline is left");
    });
}

/// A child gets a descriptor that blocks. The clone that stays waits without a thread.
#[test]
fn a_clone_goes_to_a_child() {
    let output = common::child("pipes::a_clone_goes_to_a_child", || {
        common::run(2, "a clone", || {
            let (reader, writer) = pipe().unwrap();
            let mut flags = Command::new("grep");
            flags.args(["flags", "/proc/self/fdinfo/0"]);
            let flags = flags.stdin(reader.try_clone().unwrap()).output().unwrap();
            let flags = String::from_utf8(flags.stdout).unwrap();
            let flags = flags.split_whitespace().nth(1).expect("a number");
            let flags = i32::from_str_radix(flags, 8).unwrap();
            assert_eq!(flags & libc::O_NONBLOCK, 0, "{flags:o}");
            assert!(!is_nonblocking(&reader), "its own clone shares the flag");

            let reader = Arc::new(reader);
            let readers: Vec<_> = (0..50)
                .map(|_| {
                    let reader = Arc::clone(&reader);
                    thread::spawn(move || (&*reader).read(&mut [0]).unwrap())
                })
                .collect();
            common::until_waiting(50, "IO wait, read");
            assert!(common::thread_count() <= 10, "{}", common::thread_count());
            (&writer).write_all(&[0; 50]).unwrap();
            let read: usize = readers.into_iter().map(|r| r.join().unwrap()).sum();
            assert_eq!(read, 50);
        });
        common::run(2, "a writer", || {
            let (mut reader, writer) = pipe().unwrap();
            let echo = writer.try_clone().unwrap();
            let status = Command::new("echo")
                .arg("from the child")
                .stdout(echo)
                .status();
            assert!(status.unwrap().success());
            assert!(!is_nonblocking(&writer));
            let writing = common::named("writer", move || {
                let parts = [IoSlice::new(&[7; 300_000]), IoSlice::new(&[7; 5])];
                assert_eq!((&writer).write_vectored(&parts).unwrap(), 300_005);
                assert_eq!((&writer).write(&[7; 500_000]).unwrap(), 500_000);
            });
            common::dump_when_waiting("writer", "IO wait, write");
            let mut all = Vec::new();
            reader.read_to_end(&mut all).unwrap();
            writing.join().unwrap();
            let rest = all.strip_prefix(b"from the child\n").unwrap();
            assert!(rest.len() == 800_005 && rest.iter().all(|byte| *byte == 7));
        });
    });
    output.succeeded();
}

/// The clone by which the pipe is registered goes, and the others still get the events.
#[test]
fn clones_come_and_go() {
    common::run(2, "clones", || {
        let (reader, writer) = pipe().unwrap();
        let mut readers = vec![reader];
        for _ in 0..20 {
            let next = readers[0].try_clone().unwrap();
            let before = readers.remove(0);
            before.set_deadline(after(ms(1))).unwrap();
            assert_eq!(kind((&before).read(&mut [0])), ErrorKind::TimedOut);
            next.set_deadline(None).unwrap(); // they share it
            let waiting = common::named("reader", move || {
                assert_eq!((&next).read(&mut [0; 8]).unwrap(), 1);
                next
            });
            common::dump_when_waiting("reader", "IO wait, read");
            drop(before);
            (&writer).write_all(b"x").unwrap();
            readers.push(waiting.join().unwrap());
        }
    });
}
