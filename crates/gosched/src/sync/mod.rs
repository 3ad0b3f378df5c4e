//! Locks with the API of [`std::sync`], and Go's WaitGroup and a semaphore beside them.
//!
//! Names, signatures, poisoning and what is printed are std's; whoever waits blocks the goroutine, or the plain thread it is called
//! on, and both may share one lock, across runtimes, too. What [`std::sync`] has and goroutines need no other of is here under the
//! same name, so that changing `std` to `gosched` in a `use` line is enough.
//!
//! ```
//! use gosched::sync::{Arc, Condvar, Mutex};
//! use gosched::thread;
//!
//! gosched::run(|| {
//!     let queue = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
//!     let consumer = {
//!         let queue = Arc::clone(&queue);
//!         thread::spawn(move || {
//!             let (items, has_some) = &*queue;
//!             let mut items = has_some.wait_while(items.lock().unwrap(), |items| items.is_empty());
//!             items.as_mut().unwrap().pop()
//!         })
//!     };
//!     queue.0.lock().unwrap().push(7);
//!     queue.1.notify_one();
//!     assert_eq!(consumer.join().unwrap(), Some(7));
//! });
//! ```
//!
//! | file | what it decides |
//! |---|---|
//! | `sema` | the parking table: where all of them wait |
//! | `mutex_word` `raw` `mutex` | who gets a lock next; spinning, waiting and waking for it; the Mutex |
//! | `rwlock_word` `rwlock` | readers beside writers |
//! | `condvar` `barrier` | waiting for a notify, for each other |
//! | `once` `once_lock` `lazy_lock` | what happens once |
//! | `waitgroup_word` `waitgroup` `semaphore_word` `semaphore` | counting up to something, and down |
//! | `owner` | the name beside a lock |
//!
//! The `*_word` files import nothing but the crate's shim, so that every interleaving of them can be explored.
//!
//! A goroutine that its runtime abandons (the [`Runtime`](crate::Runtime) was dropped) is like a thread that never goes on: what it
//! holds, or has just been handed, stays with it. One that [`shutdown`](crate::Runtime::shutdown) unwinds leaves every queue first, and
//! passes on what it was given there.

mod barrier;
mod condvar;
mod lazy_lock;
mod mutex;
mod mutex_slow;
mod mutex_word;
mod once;
mod once_lock;
pub(crate) mod owner;
mod rwlock;
mod rwlock_word;
mod sema;
mod semaphore;
mod semaphore_word;
mod waitgroup;
mod waitgroup_word;

pub use self::barrier::{Barrier, BarrierWaitResult};
pub use self::condvar::{Condvar, WaitTimeoutResult};
pub use self::lazy_lock::LazyLock;
pub use self::mutex::{Mutex, MutexGuard};
#[allow(deprecated, reason = "std has it")]
pub use self::once::ONCE_INIT;
pub use self::once::{Once, OnceState};
pub use self::once_lock::OnceLock;
pub use self::rwlock::{RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use self::semaphore::{Semaphore, SemaphoreGuard};
pub use self::waitgroup::WaitGroup;
/// What std has and goroutines need no other of, so that one `use` line serves.
#[doc(no_inline)]
pub use std::sync::{Arc, LockResult, PoisonError, TryLockError, TryLockResult, Weak, atomic};
