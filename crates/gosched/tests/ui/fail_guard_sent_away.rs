//! Who locks unlocks: a guard stays with its goroutine.

use gosched::sync::{Mutex, RwLock};
use gosched::thread;

static MUTEX: Mutex<u32> = Mutex::new(0);
static LOCK: RwLock<u32> = RwLock::new(0);

#[gosched::main]
fn main() {
    let guard = MUTEX.lock().unwrap();
    thread::spawn(move || drop(guard));

    let reader = LOCK.read().unwrap();
    thread::spawn(move || drop(reader));
}
