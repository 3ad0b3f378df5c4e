//! [`Sleeper`]: the goroutine, thread or task that sleeps on a wait word, as one tagged word.
//!
//! A wait word holds its sleeper or one of its own states, so a sleeper has to fit into one word
//! and leave the lowest bit clear. All code that makes such a word, or follows one, is in this
//! file.
//!
//! ```text
//!  bits 0 to 2   the other bits are the address of
//!  000           a G
//!  .10           a thread's note; its address may have bit 2 set, so bit 1 is tested first
//!  100           an Awaiter; the word owns one reference to it
//! ```
//!
//! A sleeper is the right to wake: it is no copy. A thread gets one by making it, or by taking it
//! out of a word with a swap that no other thread can win as well. So each sleep ends by one
//! wake-up (G4).

use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Waker;

use crate::base::arc_cell::ArcCell;
use crate::base::fatal::throw;
use crate::base::note::Note;
use crate::sched::model::g::G;
use crate::sched::model::ptr::{Gp, Ptr};

/// The sleeper is a thread, by its note.
const THREAD: usize = 2;
/// The sleeper is a task.
const TASK: usize = 4;

/// A task of an executor, by its waker. The waker is user code (D9).
pub(crate) struct Awaiter {
    pub(crate) waker: Waker,
    /// Link of `sched::waiting::wait_slot::Awaiters`.
    pub(crate) next: ArcCell<Awaiter>,
}

/// A goroutine, a thread or a task that sleeps, and the right to wake it.
#[must_use = "a sleeper must be woken"]
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Sleeper(NonZero<usize>);

/// The word of a sleeper without the right to wake it: it tells whether that sleeper is still in a
/// wait word (`WaitWord::take_back`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SleeperMark(NonZero<usize>);

impl SleeperMark {
    pub(crate) fn word(self) -> usize {
        self.0.get()
    }
}

/// A sleeper, decoded.
enum Kind<'a> {
    Goroutine(Gp),
    Thread(&'a Note),
    /// Not dropped here: a wake-up has no task, and so needs no code for its drop.
    Task(ManuallyDrop<Arc<Awaiter>>),
}

impl Sleeper {
    #[inline]
    pub(crate) fn goroutine(g: Gp) -> Sleeper {
        Sleeper(g.non_null().expose_provenance())
    }

    /// # Safety
    /// The note stays where it is until this sleeper has been woken, was refused by a word, or was
    /// taken back out of it.
    #[inline]
    pub(crate) unsafe fn thread(note: &Note) -> Sleeper {
        Sleeper(NonNull::from(note).expose_provenance() | THREAD)
    }

    /// The word owns the reference.
    pub(crate) fn task(awaiter: Arc<Awaiter>) -> Sleeper {
        let tag = const { NonZero::new(TASK).unwrap() };
        Sleeper(tag | Arc::into_raw(awaiter).expose_provenance())
    }

    pub(crate) fn mark(&self) -> SleeperMark {
        SleeperMark(self.0)
    }

    /// The word to be stored.
    #[inline]
    pub(crate) fn word(&self) -> usize {
        self.0.get()
    }

    /// The sleeper that was stored as `word`; None for 0.
    ///
    /// # Safety
    /// [`Sleeper::word`] returned the word, and no other thread uses that sleeper.
    #[inline]
    pub(crate) unsafe fn from_word(word: usize) -> Option<Sleeper> {
        NonZero::new(word).map(Sleeper)
    }

    /// What sleeps. The caller wakes it, or owns the task, or makes the sleeper again from its
    /// word.
    ///
    /// Until the wake-up, which is the caller's, each kind stays where it is:
    /// - A goroutine is parked (G4), so its runtime has not freed the G (GF).
    /// - The caller of `thread` has promised that the note stays.
    /// - `task` gave a reference to the word. The reference passes to the caller here.
    #[inline]
    fn into_kind<'a>(self) -> Kind<'a> {
        let word = self.word();
        // SAFETY: the word is the address of what its tag names (the table above). That object is
        // alive until the wake-up, for the reasons above.
        unsafe {
            if word & (THREAD | TASK) == 0 {
                Kind::Goroutine(Ptr::new(self.g()))
            } else if word & THREAD != 0 {
                Kind::Thread(&*((word & !THREAD) as *const Note))
            } else {
                let task = Arc::from_raw((word & !TASK) as *const Awaiter);
                Kind::Task(ManuallyDrop::new(task))
            }
        }
    }

    /// Wakes a goroutine, by `ready`, or a thread. A task has to be woken in user context
    /// ([`Sleeper::into_task`]).
    #[inline]
    pub(crate) fn wake(self, ready: impl FnOnce(Gp)) {
        match self.into_kind() {
            Kind::Goroutine(g) => ready(g),
            Kind::Thread(note) => note.wakeup(),
            Kind::Task(_) => throw("a task where none can be"),
        }
    }

    /// The task that sleeps; or the sleeper, if it is no task.
    pub(crate) fn into_task(self) -> Result<Arc<Awaiter>, Sleeper> {
        let word = self.0;
        match self.into_kind() {
            Kind::Task(task) => Ok(ManuallyDrop::into_inner(task)),
            Kind::Goroutine(_) | Kind::Thread(_) => Err(Sleeper(word)),
        }
    }

    /// The address of the goroutine, if the sleeper is one; it sleeps on. The goroutine may be
    /// woken and end meanwhile, unless the caller knows what prevents that.
    #[inline]
    pub(crate) fn peek_goroutine(&self) -> Option<NonNull<G>> {
        (self.word() & (THREAD | TASK) == 0).then(|| self.g())
    }

    #[inline]
    fn g(&self) -> NonNull<G> {
        NonNull::with_exposed_provenance(self.0)
    }
}
