//! A channel does not let values outlive what they borrow.

use gosched::chan::{Receiver, Sender, unbounded};

/// A handle is invariant: what goes in short must not come out long.
fn shortened<'a>(s: Sender<&'static str>) -> Sender<&'a str> {
    s
}

fn lengthened<'a>(r: Receiver<&'a str>) -> Receiver<&'static str> {
    r
}

fn a_message_that_goes_too_early() -> Receiver<&'static str> {
    let (s, r) = unbounded();
    let text = String::from("text");
    s.send(text.as_str()).unwrap();
    r
}

fn a_borrow_that_ends_before_the_scope() {
    let (s, r) = unbounded();
    gosched::thread::scope(|scope| {
        let local = String::from("local");
        scope.spawn(|| drop(r.recv()));
        s.send(&local).unwrap();
    });
}

fn an_iterator_that_outlives_its_receiver() {
    let (_s, r) = unbounded::<i32>();
    let iter = r.iter();
    drop(r);
    drop(iter);
}

fn a_select_that_outlives_its_channel() {
    let mut select = gosched::chan::Select::new();
    {
        let (_s, r) = unbounded::<i32>();
        select.recv(&r);
    }
    drop(select.try_select());
}

fn main() {}
