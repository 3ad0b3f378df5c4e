//! The channels of all arms are borrowed until one of the operations is done: nothing may take them away before.

use gosched::chan::{Receiver, Sender, select};

fn moved_by_a_later_arm(r: Receiver<i32>) {
    select! {
        recv(r) -> _ => {}
        recv(Some(r).unwrap()) -> _ => {}
    }
}

fn dropped_by_a_message(s: Sender<i32>, r: Receiver<i32>) {
    select! {
        recv(r) -> _ => {}
        send(s, { drop(r); 1 }) -> _ => {}
    }
}

fn replaced_by_a_message(mut s: Sender<i32>, other: Sender<i32>) {
    select! {
        send(s, { s = other; 1 }) -> _ => {}
        default => {}
    }
}

fn main() {}
