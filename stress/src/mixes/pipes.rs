//! Pipes: plain system calls that block, with numbers that must arrive in order.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use crate::env::{Actor, Place};
use crate::ledger::Token;

pub fn root(a: &mut Actor) {
    while !a.over() {
        let mut handles = Vec::new();
        for _ in 0..a.rng.few(4) {
            let tokens = [a.file(), a.file()];
            let (reader, writer) = match std::io::pipe() {
                Ok(pipe) => pipe,
                Err(error) => return a.complain(format_args!("cannot make a pipe: {error}")),
            };
            let [one, other] = tokens;
            let many = a.rng.few(300) as u32;
            let is_written = Arc::new(AtomicBool::new(false));
            let says = Arc::clone(&is_written);
            // A reader without a writer would wait for ever: so the writer runs where it surely
            // ends.
            let place = if a.rng.one_in(2) || a.may_hang() {
                Place::Thread
            } else {
                Place::Same
            };
            handles.push(a.start(place, move |a| write(a, (writer, one), many, &says)));
            handles.push(a.spawn(move |a| read(a, (reader, other), many, &is_written)));
        }
        a.join_all(handles);
        a.nap();
    }
}

fn write(a: &mut Actor, (mut pipe, token): (PipeWriter, Token), many: u32, says: &AtomicBool) {
    for n in 0..many {
        // A reader that was refused or unwound is gone. The pipe of an abandoned reader has room
        // for all numbers.
        if pipe.write_all(&n.to_le_bytes()).is_err() {
            return;
        }
        if a.rng.one_in(32) {
            std::thread::sleep(a.rng.micros(200));
        }
        a.op();
    }
    says.store(true, SeqCst);
    drop(pipe);
    drop(token);
}

fn read(a: &mut Actor, (mut pipe, token): (PipeReader, Token), many: u32, is_written: &AtomicBool) {
    let is_marked = a.rng.one_in(2);
    let mut next = 0;
    loop {
        let mut bytes = [0; 4];
        let read = if is_marked {
            gosched::blocking(|| pipe.read_exact(&mut bytes))
        } else {
            pipe.read_exact(&mut bytes)
        };
        if read.is_err() {
            break;
        }
        a.expect(
            u32::from_le_bytes(bytes) == next,
            "numbers of a pipe are out of order",
        );
        next += 1;
        a.op();
    }
    drop(pipe);
    drop(token);
    let is_short = is_written.load(SeqCst) && next != many;
    a.expect(!is_short, "a pipe ended early");
}
