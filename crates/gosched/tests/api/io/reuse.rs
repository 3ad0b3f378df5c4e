//! Numbers of descriptors that are used again, by other kinds, while the files of earlier users may
//! still be open elsewhere.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use gosched::io::{Pollable, pipe};
use gosched::net::{TcpListener, TcpStream};
use gosched::thread;

use super::{arm, eventfd, timerfd};
use crate::common::{self, ms};

/// Waits for one event of this kind; returns a duplicate of what was waited for.
fn use_once(kind: usize) -> OwnedFd {
    match kind {
        0 => {
            let (mut reader, mut writer) = pipe().unwrap();
            let duplicate = reader.as_fd().try_clone_to_owned().unwrap();
            let writing = thread::spawn(move || writer.write_all(b"pipe").unwrap());
            reader.read_exact(&mut [0; 4]).unwrap();
            writing.join().unwrap();
            duplicate
        }
        1 => {
            let timer = Pollable::new(timerfd()).unwrap();
            arm(&timer, ms(1));
            assert_eq!((&timer).read(&mut [0; 8]).unwrap(), 8);
            timer.as_fd().try_clone_to_owned().unwrap()
        }
        2 => {
            let event = Pollable::new(eventfd()).unwrap();
            let mut other: File = event.get_ref().try_clone().unwrap();
            let ringing = thread::spawn(move || other.write_all(&1u64.to_ne_bytes()).unwrap());
            event.wait_readable().unwrap();
            ringing.join().unwrap();
            event.into_inner().into()
        }
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addr = listener.local_addr().unwrap();
            let client = thread::spawn(move || TcpStream::connect(addr).unwrap());
            let (mut stream, _) = listener.accept().unwrap();
            let mut client = client.join().unwrap();
            let writing = thread::spawn(move || client.write_all(b"tcp").unwrap());
            stream.read_exact(&mut [0; 3]).unwrap();
            writing.join().unwrap();
            stream.as_fd().try_clone_to_owned().unwrap()
        }
    }
}

#[test]
fn numbers_are_used_again_by_other_kinds() {
    let output = common::child("reuse::numbers_are_used_again_by_other_kinds", || {
        common::run(2, "reuse", || {
            let mut kept = std::collections::VecDeque::new();
            let round = |kept: &mut std::collections::VecDeque<_>, n: usize| {
                kept.push_back(use_once(n * 7 % 4));
                if kept.len() > 5 {
                    kept.pop_front(); // files stay open for a while
                }
            };
            (0..50).for_each(|n| round(&mut kept, n));
            let before = common::fd_count();
            (0..2000).for_each(|n| round(&mut kept, n));
            let after = common::fd_count();
            assert!(after <= before + 10, "{after} descriptors, {before} before");
        });
    });
    output.succeeded();
}

/// The same with several goroutines, which take each other's numbers.
#[test]
fn numbers_go_from_goroutine_to_goroutine() {
    common::run(2, "reuse by others", || {
        let users = (0..8).map(|user| {
            thread::spawn(move || (0..150).for_each(|n| drop(use_once((n + user) % 4))))
        });
        let users: Vec<_> = users.collect();
        users.into_iter().for_each(|user| user.join().unwrap());
    });
}

/// A duplicate that a second user of a number needed is closed with that user.
#[test]
fn duplicates_are_closed() {
    let output = common::child("reuse::duplicates_are_closed", || {
        common::run(1, "duplicates", || {
            let event = eventfd();
            let hold = Pollable::new(&event).unwrap();
            let wait = |pollable: &Pollable<&File>, time| {
                pollable.set_deadline(super::after(time)).unwrap();
                assert!(pollable.wait_readable().is_err());
            };
            let number = event.as_raw_fd();
            waits_until(|| registrations(number) == 1, |time| wait(&hold, time));
            let before = eventfds();
            for _ in 0..100 {
                let other = Pollable::new(&event).unwrap();
                waits_until(|| eventfds() == before + 1, |time| wait(&other, time));
            }
            assert_eq!(eventfds(), before);
        });
    });
    output.succeeded();
}

/// Calls `wait` with longer and longer times until `is_done`: a short time may have passed before
/// the wait begins.
fn waits_until(is_done: impl Fn() -> bool, mut wait: impl FnMut(Duration)) {
    for doublings in 0..16 {
        wait(ms(1 << doublings));
        if is_done() {
            return;
        }
    }
    panic!("a wait of half a minute has not registered the descriptor");
}

/// How many eventfds are open.
fn eventfds() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    links
        .filter(|link| link.as_os_str() == "anon_inode:[eventfd]")
        .count()
}

/// How many registrations by this number the process's epolls have, by the kernel's own account.
fn registrations(number: i32) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        if link.as_os_str() == "anon_inode:[eventpoll]" {
            let info = std::path::Path::new("/proc/self/fdinfo").join(entry.file_name());
            let info = std::fs::read_to_string(info).unwrap_or_default();
            let numbers = info.lines().filter_map(|line| line.strip_prefix("tfd:"));
            let numbers = numbers.filter_map(|rest| rest.split_whitespace().next());
            count += numbers.filter(|n| n.parse() == Ok(number)).count();
        }
    }
    count
}

/// A drop ends the registration, although the file stays open.
#[test]
fn a_drop_ends_the_registration() {
    let output = common::child("reuse::a_drop_ends_the_registration", || {
        common::run(1, "a drop", || {
            let event = eventfd();
            let number = event.as_raw_fd();
            let pollable = Pollable::new(&event).unwrap();
            assert_eq!(registrations(number), 0, "no goroutine has waited");
            let wait = |time| {
                pollable.set_deadline(super::after(time)).unwrap();
                assert!(pollable.wait_readable().is_err());
            };
            waits_until(|| registrations(number) == 1, wait);
            drop(pollable);
            assert_eq!(registrations(number), 0);

            let (mut reader, _writer) = pipe().unwrap();
            let number = reader.as_raw_fd();
            let stays = reader.as_fd().try_clone_to_owned().unwrap();
            let wait = |time| {
                reader.set_deadline(super::after(time)).unwrap();
                assert!(reader.read(&mut [0]).is_err());
            };
            waits_until(|| registrations(number) == 1, wait);
            drop(reader);
            assert_eq!(registrations(number), 0);
            drop(stays);
        });
    });
    output.succeeded();
}
