//! Arms that are well formed and yet wrong.

use gosched::chan::{Receiver, Sender, select};

fn the_wrong_side(s: &Sender<i32>, r: &Receiver<i32>) {
    select! {
        recv(s) -> _ => {}
        send(r, 1) -> _ => {}
        default => {}
    }
    select! { recv(s) -> _ => {} }
}

fn bodies_of_two_types(s: &Sender<i32>, r: &Receiver<i32>) {
    let _: i32 = select! {
        recv(r) -> msg => msg,
        send(s, 1) -> _ => "text",
    };
}

fn a_pattern_that_may_not_match(s: &Sender<i32>, r: &Receiver<i32>) {
    select! {
        recv(r) -> Ok(_) => {}
        send(s, 1) -> _ => {}
    }
}

fn a_pattern_that_does_not_match(s: &Sender<i32>) {
    select! { send(s, 1) -> (a, b) => {} }
}

fn main() {}
