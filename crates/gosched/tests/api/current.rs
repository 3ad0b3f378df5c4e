//! The current thread, asked for at an unusual moment.

use std::sync::atomic::Ordering::SeqCst;

use gosched::{Runtime, thread};

use crate::common::{ASKS_FOR_THE_THREAD, child};

/// The handle of a thread is allocated when it is first asked for. An allocator that asks for it
/// itself gets the same one.
#[test]
fn an_allocator_may_ask_for_the_current_thread() {
    child(
        "current::an_allocator_may_ask_for_the_current_thread",
        || {
            std::thread::spawn(asks_twice).join().unwrap();
            let runtime = Runtime::builder().procs(1).build().unwrap();
            let (done, is_done) = gosched::chan::bounded(1);
            runtime.go(move || {
                asks_twice();
                done.send(()).unwrap();
            });
            is_done.recv().unwrap();
        },
    )
    .succeeded();
}

fn asks_twice() {
    ASKS_FOR_THE_THREAD.store(true, SeqCst);
    let first = thread::current();
    assert!(
        !ASKS_FOR_THE_THREAD.swap(false, SeqCst),
        "it allocated nothing"
    );
    first.unpark();
    thread::park(); // the token is there, so this is the same thread
    assert_eq!(first.id(), thread::current().id());
}
