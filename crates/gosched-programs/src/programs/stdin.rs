//! Stdin at a terminal: one goroutine waits for lines while others make progress.
//!
//! The program starts itself as a child whose stdin is a terminal (a pty), and types.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use crate::crowd::{join_all, until};
use crate::peak;

/// The argument of the child.
pub(crate) const CHILD: &str = "stdin-child";

/// The terminal's end of input, as a line's first character.
const END_OF_INPUT: u8 = 4;

pub(super) fn run(lines: usize) {
    let (mut keyboard, terminal) = open_terminal();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(CHILD).stdin(terminal).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The command has the parent's copy of the terminal.
    drop(command);
    let mut says = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || says.next().expect("the child lives").unwrap();
    for i in 0..lines {
        // The child's other goroutines have made progress, and none of its lines is there yet.
        assert_eq!(next(), "progress");
        writeln!(keyboard, "line {i}").unwrap();
        assert_eq!(next(), format!("read: line {i}"));
    }
    assert_eq!(next(), "progress");
    keyboard.write_all(&[END_OF_INPUT]).unwrap();
    let end = next();
    println!("{end}");
    assert!(child.wait().unwrap().success());
}

/// A new terminal: the side of the keyboard, and the side of programs.
fn open_terminal() -> (File, OwnedFd) {
    let (mut master, mut slave) = (-1, -1);
    let none = ptr::null_mut();
    // SAFETY: libc writes two descriptors; null means the defaults of a terminal.
    let result = unsafe { libc::openpty(&mut master, &mut slave, none, ptr::null(), ptr::null()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    for fd in [master, slave] {
        // The child gets the slave as stdin, and must not hold the master.
        // SAFETY: `openpty` has opened the descriptor, and nothing has closed it.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    // SAFETY: both descriptors are new and belong to nothing else.
    unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) }
}

/// The child: reads lines in one goroutine. Before each line, the others must make progress.
pub(crate) fn child() {
    const OTHERS: usize = 50;
    let steps = Arc::new(AtomicUsize::new(0));
    let ends = Arc::new(AtomicBool::new(false));
    let others = (0..OTHERS).map(|_| {
        let (steps, ends) = (steps.clone(), ends.clone());
        gosched::thread::spawn(move || {
            while !ends.load(Relaxed) {
                steps.fetch_add(1, Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    });
    let others = others.collect::<Vec<_>>();
    let (line_read, lines) = gosched::chan::unbounded();
    let reader = gosched::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            line_read.send(line.unwrap()).unwrap();
        }
    });
    let mut count = 0;
    loop {
        let begun = steps.load(Relaxed);
        until("the other goroutines make progress", || {
            steps.load(Relaxed) >= begun + OTHERS
        });
        peak::record();
        println!("progress");
        let Ok(line) = lines.recv() else { break };
        println!("read: {line}");
        count += 1;
    }
    ends.store(true, Relaxed);
    join_all(others);
    reader.join().unwrap();
    println!("the end of input after {count} lines");
}
