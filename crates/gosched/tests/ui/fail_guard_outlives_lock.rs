//! A guard does not outlive its lock.

use gosched::sync::{Mutex, Semaphore};

fn main() {
    let guard = {
        let mutex = Mutex::new(String::new());
        mutex.lock().unwrap()
    };
    drop(guard);

    let permit = Semaphore::new(1).acquire();
    drop(permit);
}
