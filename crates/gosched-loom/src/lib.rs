//! Loom models of the scheduler's concurrent algorithms, over the library's own source files.
//!
//! They explore all orders of steps that the memory model allows, which no test on a real machine
//! does.
//!
//! These files of the library import nothing but `crate::shim`:
//!
//! - `sched/model/{runq,gstatus,pstatus,claim,opens}.rs`, `sched/model/spin.rs`,
//! - `sched/model/watch/nap.rs`, `base/note.rs`, `sync/*_word.rs`,
//! - `sched/sources/netpoll/changes.rs`, `sched/waiting/futex_counts.rs`.
//!
//! Here that shim gives them loom's atomics, rings of four slots and a futex made of loom's parts.
//! So the models explore the code that ships. `sched/waiting/{sleeper,wait_word}.rs`,
//! `sched/sources/poller.rs`, `sched/waiting/waitq.rs` and all
//! of `chan/` are compiled too. What they need of the scheduler is in `base.rs`, `sched.rs`,
//! `netpoll.rs`, `thread.rs`, `current.rs` and `sys.rs`:
//!
//! - goroutines, which are loom threads and park by the library's protocol;
//! - one lock;
//! - a clock that is either before every deadline or after all of them.
//!
//! Loom runs a model once for every order of its threads' steps, and at each load once for every
//! value that the memory model allows.
//!
//! ```text
//!  models/ring.rs    put, get, steal, overflow, `next`         R1–R6, I3, I4, S4, S5
//!  models/wake.rs    submitting against stopping to spin       WK, L1
//!  models/status.rs  the status word under the Scan bit        G0, G1, G6
//!  models/park.rs    the park's commit against the event       PK, RD, G4
//!  models/note.rs    an M's note, reused, with deadlines       M1
//!  models/claim.rs   taking the P of an M that is stuck        U3, M5, D8
//!  models/handoff.rs the P that a marked call left behind      SY, P3, P4, M4
//!  models/locks.rs   Mutex, RwLock, WaitGroup, Semaphore       U10
//!  models/sudog.rs   one claim ends a wait                     G4, U10
//!  models/rendezvous.rs  unbuffered channels                   U10, G4
//!  models/bounded.rs     the ring and its waiters              U10, G4
//!  models/unbounded.rs   the list and its waiters              U10, G4
//!  models/select.rs      select against sends, ends, timeouts  G4
//!  models/buffer/        ring and list by themselves           U10
//!  models/teardown.rs    sends against the drop of a runtime   D2, G4
//!  models/net.rs     a socket's events against its waiters     F5
//!  models/futex.rs   futexes of goroutines and of threads   U10
//!  models/future.rs  wakers against the poller                 U10, G4
//!  models/watcher.rs timers against the watcher and sysmon     SM, D10
//! ```
//!
//! A test function is called a *story* here: a few threads, each with a few steps.
//!
//! What loom does not show:
//!
//! - It treats a SeqCst access as AcqRel. So the models depend on the fences alone, which is
//!   stricter than x86-64.
//! - A failed swap sees only the newest value.
//! - No load sees a store that is still to come. So loom cannot check the Release of a consumer's
//!   swap in the ring, which keeps its reads of the slots before their reuse.
//! - A barrier that one thread makes for all is two fences here.
//! - A plain store between the two ends of a swap confuses it (`shim::with_stores_as_swaps`).
//! - Of two threads that load a word before a third stores it, loom remembers one
//!   (`shim::with_loads_in_turn`).
//! - A model with a bound on preemptions covers only the orders within the bound.
//!   `LOOM_MAX_PREEMPTIONS` overrides every bound except 0.
//!
//! Run with `cargo test -p gosched-loom --release`; the items exist in test builds only.

#[cfg(test)]
mod base;
#[cfg(test)]
mod current;
#[cfg(test)]
mod netpoll;
#[cfg(test)]
mod sched;
#[cfg(test)]
mod shim;
#[cfg(test)]
mod sys;
#[cfg(test)]
mod thread;

#[cfg(test)]
#[path = "../../gosched/src/chan/mod.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "most of the API has no concurrency of its own"
)]
mod chan;

#[cfg(test)]
#[path = "../../gosched/src/sched/model/watch/claim.rs"]
#[allow(
    dead_code,
    reason = "an M's first and last steps and the fork have no concurrency"
)]
mod claim;

#[cfg(test)]
#[path = "../../gosched/src/sched/sources/netpoll/changes.rs"]
#[allow(dead_code, reason = "a new descriptor has no concurrency")]
mod changes;

#[cfg(test)]
#[path = "../../gosched/src/sched/waiting/futex_counts.rs"]
mod futex_counts;

#[cfg(test)]
#[path = "../../gosched/src/sched/model/gstatus.rs"]
#[allow(dead_code, reason = "the dumps' side of the file has no concurrency")]
mod gstatus;

#[cfg(test)]
#[path = "../../gosched/src/sched/model/watch/nap.rs"]
#[allow(
    dead_code,
    reason = "the sleep of an idle runtime is not in the models"
)]
mod nap;

#[cfg(test)]
#[path = "../../gosched/src/base/note.rs"]
mod note;

#[cfg(test)]
#[path = "../../gosched/src/sched/sources/poller.rs"]
#[allow(
    dead_code,
    reason = "the looks without consequence are not in the models"
)]
mod poller;

#[cfg(test)]
#[path = "../../gosched/src/sched/model/pstatus.rs"]
#[allow(dead_code, reason = "the dumps' side of the file has no concurrency")]
mod pstatus;

#[cfg(test)]
#[path = "../../gosched/src/sched/model/runq.rs"]
#[allow(dead_code, reason = "the dumps' side of the file has no concurrency")]
mod runq;

#[cfg(test)]
#[path = "../../gosched/src/sched/model/opens.rs"]
mod opens;

#[cfg(test)]
#[path = "../../gosched/src/sched/waiting/on.rs"]
#[allow(dead_code, reason = "dumps are not in the models")]
mod on;

#[cfg(test)]
#[path = "../../gosched/src/sched/waiting/pinned.rs"]
#[allow(
    dead_code,
    reason = "pointers made from addresses are not in the models"
)]
mod pinned;

#[cfg(test)]
#[path = "../../gosched/src/sched/waiting/sleeper.rs"]
#[allow(dead_code, reason = "tasks are not in the models")]
mod sleeper;

#[cfg(test)]
#[path = "../../gosched/src/sched/model/spin.rs"]
#[allow(dead_code, reason = "the models keep tokens in Ms of their own")]
mod spin;

#[cfg(test)]
#[path = "../../gosched/src/sync/mutex_word.rs"]
#[allow(
    dead_code,
    reason = "what a timeout does, and poisoning, are not in the models"
)]
mod mutex_word;

#[cfg(test)]
#[path = "../../gosched/src/sync/rwlock_word.rs"]
#[allow(
    dead_code,
    reason = "what a timeout does, and poisoning, are not in the models"
)]
mod rwlock_word;

#[cfg(test)]
#[path = "../../gosched/src/sched/waiting/semaphore_word.rs"]
#[allow(
    dead_code,
    reason = "what a timeout does, and poisoning, are not in the models"
)]
mod semaphore_word;

#[cfg(test)]
#[path = "../../gosched/src/sched/model/wait_reason.rs"]
#[allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "the dumps' side of the file has no concurrency"
)]
mod wait_reason;

#[cfg(test)]
#[path = "../../gosched/src/sched/waiting/wait_word.rs"]
mod wait_word;

#[cfg(test)]
#[path = "../../gosched/src/sched/waiting/waitq.rs"]
#[allow(dead_code, reason = "the dumps' side of the file has no concurrency")]
mod waitq;

#[cfg(test)]
#[path = "../../gosched/src/sched/waiting/wakelist.rs"]
#[allow(
    dead_code,
    reason = "the poller's side of the file is not in the models"
)]
mod wakelist;

#[cfg(test)]
#[path = "../../gosched/src/sync/waitgroup_word.rs"]
#[allow(
    dead_code,
    reason = "what a timeout does, and poisoning, are not in the models"
)]
mod waitgroup_word;

#[cfg(test)]
mod models;
