//! There are 32 operations and one `default` at most.

use gosched::chan::{Receiver, Sender, select};

fn receives(r: &Receiver<i32>) {
    select! {
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
        recv(r) -> _ => {}
    }
}

fn sends(s: &Sender<i32>) {
    select! {
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        send(s, 1) -> _ => {}
        default => {}
    }
}

fn main() {}
