//! Values that must not change threads do not pass through channels into goroutines.

use gosched::chan::{Receiver, Sender, bounded, unbounded};
use std::rc::Rc;
use std::sync::MutexGuard;

fn a_receiver_in_a_spawned_goroutine() {
    let (_s, r) = bounded::<Rc<i32>>(1);
    gosched::thread::spawn(move || drop(r.recv()));
}

fn a_sender_in_a_started_goroutine() {
    let (s, _r) = unbounded();
    gosched::go(move || drop(s.send(Rc::new(1))));
}

fn a_borrowed_sender_in_a_scope() {
    let (s, _r) = unbounded::<*const u8>();
    gosched::thread::scope(|scope| {
        scope.spawn(|| drop(s.send(std::ptr::null())));
    });
}

fn is_send<T: Send>() {}
fn is_sync<T: Sync>() {}

fn handles() {
    is_send::<Sender<MutexGuard<'static, i32>>>();
    is_sync::<Sender<MutexGuard<'static, i32>>>();
    is_send::<Receiver<MutexGuard<'static, i32>>>();
    is_sync::<Receiver<MutexGuard<'static, i32>>>();
}

fn main() {}
