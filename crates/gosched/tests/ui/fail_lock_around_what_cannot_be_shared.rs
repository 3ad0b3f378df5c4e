//! A lock makes shareable what can be sent, and a RwLock only what can be shared by itself.

use std::cell::Cell;
use std::rc::Rc;

use gosched::sync::{LazyLock, Mutex, OnceLock, RwLock};

fn shared<T: Sync>(_: &T) {}

fn main() {
    shared(&Mutex::new(Cell::new(0)));
    shared(&Mutex::new(Rc::new(0)));
    shared(&RwLock::new(Cell::new(0)));
    shared(&OnceLock::from(Cell::new(0)));
    shared(&LazyLock::new(|| Rc::new(0)));
}
