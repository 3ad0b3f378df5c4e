//! The records of threads that are goroutines, and their handles.
//!
//! A handle (`pthread_t`) of such a thread is no address: it names a record, and the generation of
//! that record. So an old handle is found to be old, as long as the program runs. libc's own handles
//! are addresses. A handle of ours never is one, because its topmost byte is not that of an address:
//! a function of libc that gets it all the same faults at once.
//!
//! ```text
//!  63      56 55              24 23    20 19        0
//!  ┌─────────┬──────────────────┬────────┬───────────┐
//!  │   TAG   │    generation    │ shard  │   place   │
//!  └─────────┴──────────────────┴────────┴───────────┘
//! ```
//!
//! A record goes to the next thread when nothing needs it any more: after the join, or once the
//! thread is detached and has ended.

use std::ffi::c_int;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gosched::hook::{self, Thread};

const GENERATION_SHIFT: u32 = 24;
const SHARD_SHIFT: u32 = 20;
const SHARDS: usize = 16;
/// The most records of a shard.
const PLACES: usize = 1 << SHARD_SHIFT;

/// The bytes of a name with its zero, as in Linux.
pub(crate) const NAME_LEN: usize = 16;
pub(crate) type Name = [u8; NAME_LEN];

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Joinable,
    /// A thread waits for the end.
    Joining,
    Detached,
}

struct Record {
    generation: u32,
    state: State,
    has_ended: bool,
    /// None: no thread has the record.
    thread: Option<Thread>,
    name: Option<Name>,
}

struct Shard {
    records: Vec<Record>,
    free: Vec<u32>,
}

/// A caller holds one shard for a few instructions. It neither waits nor enters the runtime then,
/// so a dropped runtime never leaves a shard locked.
static RECORDS: [Mutex<Shard>; SHARDS] = [const {
    Mutex::new(Shard {
        records: Vec::new(),
        free: Vec::new(),
    })
}; SHARDS];

fn lock(shard: usize) -> MutexGuard<'static, Shard> {
    RECORDS[shard]
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// The handle of a thread that is a goroutine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Handle(usize);

impl Handle {
    /// None: `thread` is a handle of libc's.
    #[inline]
    pub(crate) fn of(thread: libc::pthread_t) -> Option<Handle> {
        let word = thread as usize;
        hook::is_handle(word).then_some(Handle(word))
    }

    /// The handle of the calling thread, if it is a goroutine of ours.
    #[inline]
    pub(crate) fn own() -> Option<Handle> {
        match hook::own_handle() {
            0 => None,
            word => Some(Handle(word)),
        }
    }

    #[inline]
    pub(crate) fn word(self) -> usize {
        self.0
    }

    fn new(generation: u32, shard: usize, place: usize) -> Handle {
        Handle(
            hook::HANDLE_TAG
                | (generation as usize) << GENERATION_SHIFT
                | shard << SHARD_SHIFT
                | place,
        )
    }

    fn shard(self) -> usize {
        self.0 >> SHARD_SHIFT & (SHARDS - 1)
    }

    fn place(self) -> usize {
        self.0 & (PLACES - 1)
    }

    fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }

    /// Makes a record for a thread that is about to start. None: there are no more.
    pub(crate) fn add(thread: Thread, is_detached: bool) -> Option<Handle> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Relaxed) % SHARDS;
        let mut guard = lock(number);
        let shard = &mut *guard;
        let place = match shard.free.pop() {
            Some(place) => place as usize,
            None if shard.records.len() == PLACES => return None,
            None => {
                shard.records.push(Record {
                    generation: 0,
                    state: State::Joinable,
                    has_ended: false,
                    thread: None,
                    name: None,
                });
                shard.records.len() - 1
            }
        };
        let record = &mut shard.records[place];
        record.state = if is_detached {
            State::Detached
        } else {
            State::Joinable
        };
        record.has_ended = false;
        record.thread = Some(thread);
        record.name = None;
        Some(Handle::new(record.generation, number, place))
    }

    /// Calls `f` with the record. None: the thread is gone, joined or detached and ended.
    fn with<R>(self, f: impl FnOnce(&mut Record) -> R) -> Option<R> {
        let mut shard = lock(self.shard());
        let record = shard.records.get_mut(self.place())?;
        let is_known = record.thread.is_some() && record.generation == self.generation();
        is_known.then(|| f(record))
    }

    /// The record is free for another thread.
    pub(crate) fn remove(self) {
        let thread = {
            let mut shard = lock(self.shard());
            let Some(record) = shard.records.get_mut(self.place()) else {
                return;
            };
            if record.generation != self.generation() {
                return;
            }
            record.generation = record.generation.wrapping_add(1);
            let thread = record.thread.take();
            shard.free.push(self.place() as u32);
            thread
        };
        drop(thread); // it may be the last reference; the lock is free again
    }

    /// Whether the thread has a record.
    pub(crate) fn is_known(self) -> bool {
        self.with(|_| ()).is_some()
    }

    /// As [`Handle::is_known`], for signal handlers, which wait for no lock: while another caller
    /// has the shard, the thread counts as known.
    pub(crate) fn may_be_known(self) -> bool {
        match RECORDS[self.shard()].try_lock() {
            Ok(shard) => {
                let record = shard.records.get(self.place());
                record.is_some_and(|it| it.thread.is_some() && it.generation == self.generation())
            }
            Err(_) => true,
        }
    }

    /// The caller will join the thread and then calls `remove`.
    pub(crate) fn begin_join(self) -> Result<Thread, c_int> {
        let is_own = Handle::own() == Some(self);
        let begun = self.with(|record| match (record.state, &record.thread) {
            (State::Joinable | State::Joining, _) if is_own => Err(libc::EDEADLK),
            (State::Joinable, Some(thread)) => {
                record.state = State::Joining;
                Ok(thread.clone())
            }
            _ => Err(libc::EINVAL),
        });
        begun.unwrap_or(Err(libc::ESRCH))
    }

    /// The caller of `begin_join` does not join the thread.
    pub(crate) fn give_up_join(self) {
        self.with(|record| record.state = State::Joinable);
    }

    /// No thread will join this one.
    pub(crate) fn detach(self) -> Result<(), c_int> {
        let has_ended = self.with(|record| {
            if record.state != State::Joinable {
                return Err(libc::EINVAL);
            }
            record.state = State::Detached;
            Ok(record.has_ended)
        });
        if has_ended.unwrap_or(Err(libc::ESRCH))? {
            self.remove();
        }
        Ok(())
    }

    /// The thread has ended. On its goroutine, after its destructors.
    pub(crate) fn ended(self) {
        let is_detached = self.with(|record| {
            record.has_ended = true;
            record.state == State::Detached
        });
        if is_detached == Some(true) {
            self.remove();
        }
    }

    /// The name; `Some(None)`: it was given none.
    pub(crate) fn name(self) -> Option<Option<Name>> {
        self.with(|record| record.name)
    }

    pub(crate) fn set_name(self, name: Name) -> Option<()> {
        self.with(|record| record.name = Some(name))
    }
}
