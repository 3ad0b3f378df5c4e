//! Borrowed values pass through channels within a scope.

use gosched::chan::{bounded, select, unbounded};

#[gosched::main]
fn main() {
    let words = [String::from("one"), String::from("two")];
    let (s, r) = bounded(0);
    let mut lengths = Vec::new();
    gosched::thread::scope(|scope| {
        scope.spawn(|| {
            let s = s;
            words.iter().for_each(|word| s.send(word.as_str()).unwrap());
        });
        scope.spawn(|| {
            for word in &r {
                lengths.push(word.len());
            }
        });
    });
    assert_eq!(lengths, [3, 3]);

    // A value that is not Send may pass from a goroutine to itself.
    let (s, r) = unbounded();
    s.send(std::rc::Rc::new(5)).unwrap();
    select! {
        recv(r) -> rc => assert_eq!(*rc.unwrap(), 5),
        default => unreachable!(),
    }
}
