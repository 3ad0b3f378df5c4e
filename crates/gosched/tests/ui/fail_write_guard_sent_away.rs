//! Who locks unlocks: a writer's guard stays with its goroutine, too.

use gosched::sync::RwLock;

static LOCK: RwLock<u32> = RwLock::new(0);

#[gosched::main]
fn main() {
    let writer = LOCK.write().unwrap();
    gosched::go(move || drop(writer));
}
