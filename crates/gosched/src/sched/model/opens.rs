//! The open sends of a goroutine: a select's sends that were chosen and whose message is still to
//! come. Each has been promised something, a place in a buffer or a receiver that waits. If the
//! runtime is dropped meanwhile the promise is refused (D2).
//!
//! The records are a list. Its head is one word of the G:
//!
//! ```text
//!  word          meaning                                    next
//!  null          none                                       open (the goroutine)
//!  record|OPEN   these                                      open, other, held, null
//!  record|HELD   a thread walks the list                    open or null, by that thread
//!  other         a closure that has yet to run: not ours    null, when it runs
//! ```
//!
//! The goroutine adds a record while it is inside the runtime, in the same stay in which it got the
//! promise. It takes the record out in the stay in which it keeps the promise. A drop takes the
//! whole list, refuses everything in it and leaves the word null. The swap of the word decides
//! which of the two gets a record. A goroutine that does not find its record sends anew.
//!
//! A goroutine that runs while its runtime is dropped may find the word held: it waits until the
//! drop is through. So neither the record nor the channel goes while the drop uses them. An
//! operation that was forgotten (`mem::forget`) leaves its record, and no longer borrows its
//! channel: `chan::open` explains why the channel is there nevertheless.

use std::ptr;

use crate::shim::{AcqRel, Acquire, AtomicPtr, Cell, Relaxed, Release, spin_or_yield};

const OPEN: usize = 1;
const HELD: usize = 2;
const TAG: usize = OPEN | HELD;

/// One open send, and how a drop refuses its promise.
pub(crate) struct OpenSend {
    next: Cell<*mut OpenSend>,
    /// Refuses the promise. Inside the runtime, without locks; runs no user code.
    refuse: Refuse,
    /// What was promised, in the words of `refuse`.
    pub(crate) object: *const (),
    pub(crate) number: usize,
}

/// # Safety
/// The promise is still open, and the caller took its record.
pub(crate) type Refuse = unsafe fn(&OpenSend);

impl OpenSend {
    pub(crate) fn new(refuse: Refuse, object: *const (), number: usize) -> OpenSend {
        OpenSend {
            next: Cell::new(ptr::null_mut()),
            refuse,
            object,
            number,
        }
    }
}

/// The list.
pub(crate) struct OpenSends(AtomicPtr<OpenSend>);

fn tag_of(word: *mut OpenSend) -> usize {
    word.addr() & TAG
}

fn with_tag(record: *mut OpenSend, tag: usize) -> *mut OpenSend {
    match record.is_null() {
        true => record,
        false => record.map_addr(|a| a & !TAG | tag),
    }
}

impl OpenSends {
    #[allow(dead_code, reason = "a G is made of zeros")]
    pub(crate) fn new() -> OpenSends {
        OpenSends(AtomicPtr::new(ptr::null_mut()))
    }

    /// The word, for the closure that it holds before the goroutine runs.
    #[allow(dead_code, reason = "not in the models")]
    #[inline]
    pub(crate) fn word(&self) -> &AtomicPtr<OpenSend> {
        &self.0
    }

    /// Whether the word is a list, or null.
    #[allow(dead_code, reason = "not in the models")]
    pub(crate) fn is_list(&self) -> bool {
        let word = self.0.load(Relaxed);
        word.is_null() || tag_of(word) != 0
    }

    /// Whether there is none. By the goroutine itself, which alone adds some.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // ORDER: Acquire; pairs with the Release of `HeldSends`: if some were refused the runtime
        // is seen to be dead.
        self.0.load(Acquire).is_null()
    }

    /// Adds a record. By the goroutine itself, inside the runtime.
    ///
    /// # Safety
    /// The record is in no list, and stays where it is until [`OpenSends::remove`] has returned.
    /// Its `refuse` may be called until then.
    #[inline]
    pub(crate) unsafe fn add(&self, record: &OpenSend) {
        let mut turns = 0;
        loop {
            let head = self.0.load(Relaxed);
            if tag_of(head) == HELD {
                spin_or_yield(&mut turns);
                continue;
            }
            record.next.set(with_tag(head, 0));
            let new = with_tag(ptr::from_ref(record).cast_mut(), OPEN);
            if head.is_null() {
                // ORDER: Release; pairs with the Acquire in `hold`: the record is written. Only the
                // goroutine changes a word that is null.
                return self.0.store(new, Release);
            }
            // ORDER: Release; pairs with the Acquire in `hold`: the record is written.
            let added = self.0.compare_exchange(head, new, Release, Relaxed);
            if added.is_ok() {
                return;
            }
        }
    }

    /// Takes a record out; false: its promise was refused. Afterwards the record is the caller's.
    /// By the goroutine itself, inside the runtime.
    ///
    /// # Safety
    /// The record was added here and not removed, and no other one has been in its place since.
    #[inline]
    #[must_use = "what was refused must not be kept"]
    pub(crate) unsafe fn remove(&self, record: &OpenSend) -> bool {
        let head = with_tag(ptr::from_ref(record).cast_mut(), OPEN);
        let next = with_tag(record.next.get(), OPEN);
        // ORDER: AcqRel; pairs with the swap in `hold` and the Release of its `HeldSends`. One of
        // the two has the record; if it is not this one, the other has finished with it.
        match self.0.compare_exchange(head, next, AcqRel, Acquire) {
            Ok(_) => true,
            Err(_) => self.remove_slow(record),
        }
    }

    /// As [`OpenSends::remove`], when it is not the first, or no longer there.
    #[cold]
    #[inline(never)]
    fn remove_slow(&self, record: &OpenSend) -> bool {
        let Some(mut held) = self.hold() else {
            return false;
        };
        let next = record.next.get();
        if held.first == ptr::from_ref(record).cast_mut() {
            held.first = next;
            return true;
        }
        let before = held.records().find(|r| ptr::eq(r.next.get(), record));
        before.inspect(|before| before.next.set(next)).is_some()
    }

    /// Sets HELD, after another thread has cleared it; None: there is no list.
    fn hold(&self) -> Option<HeldSends<'_>> {
        let mut turns = 0;
        loop {
            // ORDER: Acquire; pairs with the Release of the last holder, and of `add`.
            let word = self.0.load(Acquire);
            match tag_of(word) {
                OPEN => {
                    let held = with_tag(word, HELD);
                    // ORDER: AcqRel; pairs with `remove`: one of the two has the record.
                    if self.0.compare_exchange(word, held, AcqRel, Relaxed).is_ok() {
                        let first = with_tag(word, 0);
                        return Some(HeldSends { list: self, first });
                    }
                }
                HELD => spin_or_yield(&mut turns),
                _ => return None,
            }
        }
    }

    /// Refuses every promise. Inside the runtime, without locks, from any thread: the goroutine's
    /// runtime is being dropped.
    #[cold]
    pub(crate) fn refuse_all(&self) {
        let Some(mut held) = self.hold() else {
            return;
        };
        for record in held.records() {
            // SAFETY: the promise is open: the record is listed, and HELD holds `remove` up.
            unsafe { (record.refuse)(record) };
        }
        held.first = ptr::null_mut();
    }
}

/// The list while HELD is set: it is this thread's. Its drop stores the list and clears HELD.
struct HeldSends<'a> {
    list: &'a OpenSends,
    first: *mut OpenSend,
}

impl HeldSends<'_> {
    fn records(&self) -> impl Iterator<Item = &OpenSend> {
        // SAFETY: a record stays where it is until it is removed (`add`). `remove` waits for HELD.
        let at = |record: *mut OpenSend| unsafe { record.as_ref() };
        std::iter::successors(at(self.first), move |record| at(record.next.get()))
    }
}

impl Drop for HeldSends<'_> {
    fn drop(&mut self) {
        // ORDER: Release; pairs with the Acquire in `remove` and `hold`: the holder has finished
        // with the links and with the records that it took out.
        self.list.0.store(with_tag(self.first, OPEN), Release);
    }
}
