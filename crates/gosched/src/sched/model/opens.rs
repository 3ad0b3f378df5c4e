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

use std::ptr::{self, NonNull};

use crate::shim::{AcqRel, Acquire, AtomicPtr, Cell, Relaxed, Release, snooze};

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
        // ORDER: Acquire; pairs with the Release in `refuse_all`: if some were refused the runtime
        // is seen to be dead.
        self.0.load(Acquire).is_null()
    }

    /// Adds a record. By the goroutine itself, inside the runtime.
    ///
    /// # Safety
    /// The record is in no list, and stays where it is until [`OpenSends::remove`] has returned.
    /// Its `refuse` may be called until then.
    #[inline]
    pub(crate) unsafe fn add(&self, record: NonNull<OpenSend>) {
        // SAFETY: the record is there and the caller's, as it promises.
        let next = unsafe { &record.as_ref().next };
        let mut turns = 0;
        loop {
            let head = self.0.load(Relaxed);
            if tag_of(head) == HELD {
                snooze(&mut turns);
                continue;
            }
            next.set(with_tag(head, 0));
            let new = with_tag(record.as_ptr(), OPEN);
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
    pub(crate) unsafe fn remove(&self, record: NonNull<OpenSend>) -> bool {
        let head = with_tag(record.as_ptr(), OPEN);
        // SAFETY: the record is in the list, so it is there. Only the goroutine changes links.
        let next = with_tag(unsafe { record.as_ref() }.next.get(), OPEN);
        // ORDER: AcqRel; pairs with the swap and with the Release in `refuse_all`: one of the two
        // has the record, and if it is not this one, the other has finished with it.
        match self.0.compare_exchange(head, next, AcqRel, Acquire) {
            Ok(_) => true,
            // SAFETY: the record was added here and not removed, as the caller promises.
            Err(_) => unsafe { self.remove_slow(record) },
        }
    }

    /// As [`OpenSends::remove`], when it is not the first, or no longer there.
    #[cold]
    #[inline(never)]
    unsafe fn remove_slow(&self, record: NonNull<OpenSend>) -> bool {
        let Some(head) = self.hold() else {
            return false;
        };
        let mut first = head;
        let mut link: Option<&Cell<*mut OpenSend>> = None;
        let mut at = head;
        // SAFETY: records stay until they are removed; HELD makes the list this thread's.
        while let Some(found) = unsafe { at.as_ref() } {
            if ptr::eq(found, record.as_ptr()) {
                match link {
                    Some(link) => link.set(found.next.get()),
                    None => first = found.next.get(),
                }
                break;
            }
            link = Some(&found.next);
            at = found.next.get();
        }
        // ORDER: Release; pairs with the Acquire in `hold`: the links.
        self.0.store(with_tag(first, OPEN), Release);
        !at.is_null()
    }

    /// Sets HELD, after another thread has cleared it; None: there is no list.
    fn hold(&self) -> Option<*mut OpenSend> {
        let mut turns = 0;
        loop {
            // ORDER: Acquire; pairs with the Release of the last holder, and of `add`.
            let word = self.0.load(Acquire);
            match tag_of(word) {
                OPEN => {
                    let held = with_tag(word, HELD);
                    // ORDER: AcqRel; pairs with the swap in `remove`: one of the two has the
                    // record.
                    if self.0.compare_exchange(word, held, AcqRel, Relaxed).is_ok() {
                        return Some(with_tag(word, 0));
                    }
                }
                HELD => snooze(&mut turns),
                _ => return None,
            }
        }
    }

    /// Refuses every promise. Inside the runtime, without locks, from any thread: the goroutine's
    /// runtime is being dropped.
    #[cold]
    pub(crate) fn refuse_all(&self) {
        let Some(mut at) = self.hold() else {
            return;
        };
        // SAFETY: what is in the list is there, and stays until the word is null.
        while let Some(record) = unsafe { at.as_ref() } {
            at = record.next.get();
            // SAFETY: the record is in the list, so its promise is not kept; HELD keeps the
            // goroutine from keeping it.
            unsafe { (record.refuse)(record) };
        }
        // ORDER: Release; pairs with the Acquire in `remove` and `hold`: the records are free.
        self.0.store(ptr::null_mut(), Release);
    }
}
