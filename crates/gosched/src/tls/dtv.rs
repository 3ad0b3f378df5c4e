//! A block's dtv: libc's table of where each loaded object has its thread-locals, for one thread.
//!
//! libc enlarges the table with `realloc` when a library is loaded. So it must come from malloc and
//! cannot lie in the block. A table is made with few slots to spare and lives as long as its block
//! has memory. When a free stack loses its memory, the table goes to a list of spares, with the
//! thread id that belongs to it; the next new block takes both. The creator frees surplus spares,
//! for the scheduler must not (D9).
//!
//! ```text
//!  [-1] capacity   [0] generation   [1] object 1: value, what to free   [2] …
//! ```
//! A spare's generation slot holds the link and the thread id; its first slot holds the random
//! state ([`Owned`]).

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicUsize};

use crate::arch::block::DTV;
use crate::base::lock::{Lock, Rank};
use crate::base::this_m;
use crate::tls::image;
use crate::tls::image::Image;

/// Slots beyond what the loaded objects need.
const SPARE_SLOTS: usize = 2;
/// Spare tables that are kept.
const KEPT: usize = 1024;
/// After so many freed tables malloc is asked to return memory: a megabyte, in small pieces.
const TRIM_AT: usize = 8192;
/// No thread has an id above this, so a block's id is never a thread's (Linux: PID_MAX_LIMIT).
const TID_FIRST: u32 = 1 << 22;
/// Ids must fit into a futex word beside its flags.
const TID_END: u32 = 1 << 30;

/// One entry, as libc has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) value: usize,
    pub(super) to_free: usize,
}

/// A table that the caller owns.
#[derive(Clone, Copy)]
pub(super) struct Dtv(*mut Slot);

/// What a block keeps when it is made new, and what the next block takes over when the stack loses
/// its memory.
#[derive(Clone, Copy)]
pub(super) struct Owned {
    pub(super) dtv: Dtv,
    pub(super) tid: u32,
    /// libc's state for `getrandom` without a system call; 0: none yet. libc takes it back from
    /// threads that end, by a function that it does not export. So a lost state is lost for good.
    pub(super) random: usize,
}

/// A random state whose table is gone.
struct State {
    next: *mut State,
    random: usize,
}

struct Spares {
    first: *mut Slot,
    len: usize,
    states: *mut State,
}

// SAFETY: D9, the list is followed only under its lock.
unsafe impl Send for Spares {}

static SPARES: Lock<Spares> = Lock::new(
    Rank::Dtvs,
    Spares {
        first: ptr::null_mut(),
        len: 0,
        states: ptr::null_mut(),
    },
);

static NEXT_TID: AtomicU32 = AtomicU32::new(TID_FIRST);

/// A thread id for a new block.
fn new_tid() -> u32 {
    let next = |tid: u32| {
        Some(if tid + 1 == TID_END {
            TID_FIRST
        } else {
            tid + 1
        })
    };
    let tid = NEXT_TID.fetch_update(Relaxed, Relaxed, next);
    tid.unwrap_or(TID_FIRST) + 1
}

impl Dtv {
    /// The table of the block at `tp`.
    ///
    /// # Safety
    /// The block has one, and no other thread changes it meanwhile.
    #[inline]
    pub(super) unsafe fn of(tp: usize) -> Dtv {
        // SAFETY: D6, the word of a block that has a table, at the place of libc's ABI.
        Dtv(unsafe { *((tp + DTV) as *const *mut Slot) })
    }

    /// A spare table and what belongs to it. Inside the runtime.
    pub(super) fn take_spare() -> Option<Owned> {
        let mut spares = SPARES.lock();
        let first = spares.first;
        if first.is_null() {
            return None;
        }
        // SAFETY: D9, this thread holds the list's lock; `give_spare` wrote the two slots.
        let (link, random) = unsafe { (*first, (*first.add(1)).value) };
        spares.first = link.value as *mut Slot;
        spares.len -= 1;
        Some(Owned {
            dtv: Dtv(first),
            tid: link.to_free as u32,
            random,
        })
    }

    /// A new table for blocks of this image, with a thread id; None: no memory. In user context.
    pub(super) fn allocate(image: &Image) -> Option<Owned> {
        let capacity = image.slots.len() - 1 + SPARE_SLOTS;
        // SAFETY: D6, malloc's memory: libc may enlarge or free it as its own.
        let start: *mut Slot = unsafe { libc::calloc(capacity + 2, size_of::<Slot>()) }.cast();
        if start.is_null() {
            return None;
        }
        // SAFETY: D6, the first two slots of the table, which has `capacity + 2`.
        unsafe {
            (*start).value = capacity;
            Some(Owned {
                dtv: Dtv(start.add(1)),
                tid: new_tid(),
                random: 0,
            })
        }
    }

    /// Gives the table back to malloc. In user context.
    ///
    /// # Safety
    /// The table is the caller's, clean (as `fill` left it), and no longer in use.
    pub(super) unsafe fn free(self) {
        // SAFETY: D6, malloc returned the address one slot below (`allocate`).
        unsafe { libc::free(self.0.sub(1).cast::<c_void>()) };
    }

    pub(super) fn as_ptr(self) -> *mut Slot {
        self.0
    }

    pub(super) fn capacity(self) -> usize {
        // SAFETY: D6, every table has its capacity in the slot below the first.
        unsafe { (*self.0.sub(1)).value }
    }

    /// Entry `at`, which is at most the capacity.
    pub(super) fn get(self, at: usize) -> Slot {
        debug_assert!(at <= self.capacity());
        // SAFETY: D6, the entry lies inside the table.
        unsafe { *self.0.add(at) }
    }

    /// Whether blocks of the image can use the table.
    pub(super) fn fits(self, image: &Image) -> bool {
        self.capacity() + 1 >= image.slots.len()
    }

    /// Writes what a new thread's table holds. Needs [`Dtv::fits`].
    pub(super) fn fill(self, image: &Image, tp: usize) {
        for at in 0..=self.capacity() {
            let mut slot = image.slots.get(at).copied().unwrap_or(Slot {
                value: 0,
                to_free: 0,
            });
            if image.is_relative.get(at) == Some(&true) {
                slot.value = slot.value.wrapping_add(tp);
            }
            // SAFETY: D6, the entry lies inside the table, which is the caller's.
            unsafe { *self.0.add(at) = slot };
        }
    }

    /// Frees the memory of the goroutine's thread-locals of later libraries. In user context.
    pub(super) fn free_dynamic(self) {
        for at in 1..=self.capacity() {
            let slot = self.get(at);
            if slot.to_free != 0 {
                // SAFETY: D6, libc allocated it for this table, and frees it in the same way when a
                // thread ends.
                unsafe { libc::free(slot.to_free as *mut c_void) };
            }
        }
    }

    /// Whether the table differs from what `fill` wrote.
    #[inline]
    pub(super) fn differs(self, image: &Image, tp: usize) -> bool {
        self.get(0).value != image.slots[0].value
            || image.has_dynamic && self.has_changed(image, tp)
    }

    #[cold]
    fn has_changed(self, image: &Image, tp: usize) -> bool {
        (1..image.slots.len()).any(|at| {
            let mut slot = image.slots[at];
            if image.is_relative[at] {
                slot.value = slot.value.wrapping_add(tp);
            }
            self.get(at) != slot
        })
    }
}

impl Owned {
    /// Keeps what a block owns whose memory goes. Inside the runtime.
    ///
    /// # Safety
    /// As for [`Dtv::free`]; the random state is no longer in use either.
    pub(super) unsafe fn give_spare(self) {
        let mut spares = SPARES.lock();
        let table = self.dtv.0;
        // SAFETY: D9, the table is the caller's to write, and has a slot besides the generation:
        // libc itself has thread-locals.
        unsafe {
            *table = Slot {
                value: spares.first as usize,
                to_free: self.tid as usize,
            };
            (*table.add(1)).value = self.random;
        }
        spares.first = table;
        spares.len += 1;
    }

    /// Frees the table; keeps the random state for a block that has none. In user context.
    ///
    /// # Safety
    /// As for [`Owned::give_spare`].
    pub(super) unsafe fn free(self) {
        // SAFETY: D6, the table is the caller's, clean and no longer in use.
        unsafe { self.dtv.free() };
        if self.random == 0 {
            return;
        }
        // SAFETY: D9, memory for one node, of the C library's malloc: goroutines and plain threads
        // alike free it.
        let node: *mut State = unsafe { libc::malloc(size_of::<State>()) }.cast();
        if node.is_null() {
            return; // the state is lost, as libc's own are when libc has no memory to note them
        }
        let _inside = this_m::enter();
        let mut spares = SPARES.lock();
        // SAFETY: D9, the node is this thread's until the lock is released.
        unsafe {
            node.write(State {
                next: spares.states,
                random: self.random,
            });
        }
        spares.states = node;
    }
}

/// What old blocks have left for a new one: a table and what belongs to it; else perhaps a random
/// state that lost its table.
pub(crate) struct Spare {
    table: Option<Owned>,
    state: Option<SpareState>,
}

impl Spare {
    /// Inside the runtime.
    pub(crate) fn take() -> Spare {
        let table = Dtv::take_spare();
        let state = table.is_none().then(SpareState::take);
        Spare { table, state }
    }

    /// The table with what belongs to it, or else the random state; 0: there was none. In user
    /// context.
    pub(super) fn unpack(self) -> Result<Owned, usize> {
        self.table
            .ok_or_else(|| self.state.map_or(0, SpareState::unpack))
    }
}

/// A random state that lost its table, to be unpacked outside the runtime.
pub(super) struct SpareState(*mut State);

impl SpareState {
    /// Inside the runtime.
    pub(super) fn take() -> SpareState {
        let mut spares = SPARES.lock();
        let node = spares.states;
        if !node.is_null() {
            // SAFETY: D9, nodes in the list are whole, and the list is followed only under its
            // lock.
            spares.states = unsafe { (*node).next };
        }
        SpareState(node)
    }

    /// The state; 0: there was none. In user context.
    pub(super) fn unpack(self) -> usize {
        if self.0.is_null() {
            return 0;
        }
        // SAFETY: D9, `take` made the node this thread's alone; `Owned::free` allocated it.
        unsafe {
            let random = (*self.0).random;
            libc::free(self.0.cast());
            random
        }
    }
}

/// Whether there are more spare tables than will be needed soon. Inside the runtime.
pub(crate) fn has_surplus() -> bool {
    SPARES.lock().len > KEPT
}

/// Frees surplus spare tables. In user context, on a thread that may wait for malloc.
pub(crate) fn free_surplus() {
    static FREED: AtomicUsize = AtomicUsize::new(0);
    loop {
        let spare = {
            let _inside = this_m::enter();
            has_surplus().then(Dtv::take_spare).flatten()
        };
        let Some(spare) = spare else { break };
        // SAFETY: D6, taken off the list, so no other thread knows it.
        unsafe { spare.free() };
        FREED.fetch_add(1, Relaxed);
    }
    if FREED.load(Relaxed) >= TRIM_AT {
        FREED.store(0, Relaxed);
        // SAFETY: D6, images are never freed.
        if let Some(image) = unsafe { image::current().as_ref() } {
            image.glibc.trim_malloc();
        }
    }
}
