//! Locks and channels with the API of [`std::sync`], plus Go's WaitGroup and a semaphore.
//!
//! std's locks block the thread. These locks block only the goroutine, and its thread runs others
//! meanwhile. They also work on plain threads, which do block. Plain threads and goroutines of
//! several runtimes can share one lock.
//!
//! Names, signatures, poisoning and `Debug` output are those of std. Items that need no
//! goroutine-aware version are re-exported from std, so replacing `std` by `gosched` in a `use`
//! line is enough.
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
//!             let mut items =
//!                 has_some.wait_while(items.lock().unwrap(), |items| items.is_empty());
//!             items.as_mut().unwrap().pop()
//!         })
//!     };
//!     queue.0.lock().unwrap().push(7);
//!     queue.1.notify_one();
//!     assert_eq!(consumer.join().unwrap(), Some(7));
//! });
//! ```
//!
//! | file | what it does |
//! |---|---|
//! | `sema` | the parking table, in which all waiters wait |
//! | `mutex_word`, `mutex_slow` | the lock word; spinning, waiting and waking |
//! | `mutex` | `Mutex` |
//! | `rwlock_word`, `rwlock` | the count of readers; `RwLock` |
//! | `condvar`, `barrier` | waiting for a notification; waiting for each other |
//! | `once`, `once_lock`, `lazy_lock` | one-time initialisation |
//! | `mpsc` | std's channels, on `chan` |
//! | `waitgroup_word`, `waitgroup` | a counter, waited on until it is zero |
//! | `semaphore_word`, `semaphore` | a counter of permits |
//! | `owner` | the goroutine that holds a lock, for dumps |
//!
//! The `*_word` files import only the crate's shim, so loom explores every interleaving of them.
//!
//! Dropping a [`Runtime`](crate::Runtime) abandons its goroutines. An abandoned goroutine is like a
//! thread that never runs again: it keeps the locks it holds. But a lock, permit or notification
//! that it was given while it waited goes to the next waiter. A goroutine that
//! [`shutdown`](crate::Runtime::shutdown) unwinds first leaves every queue, and also passes on what
//! it was given there.

mod barrier;
mod condvar;
mod lazy_lock;
pub mod mpsc;
mod mutex;
mod mutex_slow;
mod mutex_word;
mod once;
mod once_lock;
mod rwlock;
mod rwlock_word;
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
pub use self::waitgroup::WaitGroup;
pub use crate::sched::waiting::semaphore::{Semaphore, SemaphoreGuard};
/// Items that need no goroutine-aware version, re-exported from std.
#[doc(no_inline)]
pub use std::sync::{Arc, LockResult, PoisonError, TryLockError, TryLockResult, Weak, atomic};
