//! [`WaitOps`]: one kind of wait, by the type of what is waited on. [`Wait`]: one wait of a parked
//! goroutine.
//!
//! A parked goroutine keeps its wait in its G, where the type is not known: two words, the kind and
//! the address of what it waits on. So the scheduler, the drop of a runtime and the dumps handle
//! all waits alike. This file erases the type and finds it again.

use std::marker::PhantomData;

use crate::sched::model::g::{G, WaitReason};
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::Gp;
use crate::sched::waiting::handle::Inner;
use crate::sched::waiting::wait_slot::WaitSlot;
use crate::sched::waiting::waitq::{PassOn, Waiter};

/// One kind of wait: what the runtime does with a goroutine that waits so, and with what it waits
/// on. Its functions run while the goroutine is off its stack, on any thread. They may not block or
/// run user code.
#[repr(C)]
pub(crate) struct WaitOps<T: Sync> {
    pub(crate) reason: WaitReason,
    /// Whether only another thread or goroutine ends the wait: it has no deadline, and no thread is
    /// about to end it.
    pub(crate) is_open: bool,
    /// Go's unlock function: publishes the parked goroutine to its waker. False: what it waits for
    /// has happened, and it continues at once.
    pub(crate) commit: fn(Gp, &T) -> bool,
    /// Takes the goroutine back from what it waits on. True: the caller owns the wake-up. Called
    /// with the Scan bit held, when the goroutine is to unwind or its runtime is dropped (D2).
    pub(crate) withdraw: fn(Gp, &T) -> bool,
    /// The goroutine's deadline has passed (`timed::arm`). True: the caller owns the wake-up.
    pub(crate) time_out: fn(Gp, &T) -> bool,
    /// What the goroutine waits on, for dumps and the leak check.
    pub(crate) view: fn(&T) -> WaitView<'_>,
    /// For a wait in queues: passes on what the goroutine was given, if its runtime is dropped
    /// before it continues.
    pub(crate) pass_on: Option<PassOn>,
}

/// What a goroutine waits on.
#[derive(Clone, Copy)]
pub(crate) enum WaitView<'a> {
    /// Nothing that can be inspected.
    Nothing,
    /// The goroutine's own `Inner`: a park.
    Inner(&'a Inner),
    Slot(&'a WaitSlot),
    Waiter(&'a Waiter),
}

/// A `WaitOps<T>` of some T: the same fields in the same order. Its functions are called with the
/// argument that was stored together with it, by [`Wait`] alone.
#[repr(C)]
struct AnyOps {
    reason: WaitReason,
    is_open: bool,
    commit: fn(Gp, Arg<'_>) -> bool,
    withdraw: fn(Gp, Arg<'_>) -> bool,
    time_out: fn(Gp, Arg<'_>) -> bool,
    view: fn(Arg<'_>) -> WaitView<'_>,
    pass_on: Option<PassOn>,
}

/// A `&'a T` of some T. The two are passed to a function alike.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Arg<'a>(*const (), PhantomData<&'a ()>);

/// The wait of a goroutine that stays in it for `'a`.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    ops: &'static AnyOps,
    arg: Arg<'a>,
}

impl G {
    /// Stores the wait that the goroutine is about to begin.
    ///
    /// # Safety
    /// The T stays where it is until the goroutine has returned from that wait.
    #[inline]
    pub(crate) unsafe fn set_wait<T: Sync>(&self, ops: &'static WaitOps<T>, arg: &T) {
        self.wait_arg.set(std::ptr::from_ref(arg).cast());
        self.wait_way.set(std::ptr::from_ref(ops).cast());
    }

    /// The wait that the goroutine has begun last.
    ///
    /// # Safety
    /// The goroutine has not returned from that wait, and does not during `'a`.
    #[inline]
    pub(crate) unsafe fn wait<'a>(&self) -> Option<Wait<'a>> {
        // SAFETY: `set_wait` has stored the address of a static `WaitOps<T>`, together with that of
        // the T. `AnyOps` has its layout. A `fn(Gp, &T)` may be called as a `fn(Gp, Arg)`, because
        // an `Arg` has the ABI of a `&T`.
        let ops = unsafe { self.wait_way.get().cast::<AnyOps>().as_ref() }?;
        let arg = Arg(self.wait_arg.get().cast(), PhantomData);
        Some(Wait { ops, arg })
    }

    /// Whether the goroutine has begun a wait since it was made.
    pub(crate) fn has_wait(&self) -> bool {
        !self.wait_way.get().is_null()
    }

    #[cfg(test)]
    pub(crate) fn forget_wait(&self) {
        self.wait_way.set(std::ptr::null());
    }
}

impl<'a> Wait<'a> {
    pub(crate) fn reason(self) -> WaitReason {
        self.ops.reason
    }

    /// See [`WaitOps::is_open`].
    pub(crate) fn is_open(self) -> bool {
        self.ops.is_open
    }

    /// See [`WaitOps::commit`].
    #[inline]
    pub(crate) fn commit(self, g: Gp) -> bool {
        (self.ops.commit)(g, self.arg)
    }

    /// See [`WaitOps::withdraw`].
    pub(crate) fn withdraw(self, g: Gp) -> bool {
        (self.ops.withdraw)(g, self.arg)
    }

    /// See [`WaitOps::time_out`].
    pub(crate) fn time_out(self, g: Gp) -> bool {
        (self.ops.time_out)(g, self.arg)
    }

    /// What the goroutine waits on.
    pub(crate) fn view(self) -> WaitView<'a> {
        (self.ops.view)(self.arg)
    }

    /// See [`WaitOps::pass_on`].
    pub(crate) fn way_to_pass_on(self) -> Option<PassOn> {
        self.ops.pass_on
    }
}

/// A goroutine that is held asleep in its wait, by the Scan bit over Waiting, until this is dropped
/// (G6).
pub(crate) struct Asleep(Gp);

impl Asleep {
    /// Holds the goroutine, if it is Waiting.
    pub(crate) fn hold(g: Gp) -> Option<Asleep> {
        g.status.begin_scan(Status::Waiting).then(|| Asleep(g))
    }

    pub(crate) fn wait(&self) -> Option<Wait<'_>> {
        // SAFETY: G6, the goroutine stays Waiting until the Scan bit is cleared. It stored its wait
        // before it became Waiting.
        unsafe { self.0.wait() }
    }
}

impl Drop for Asleep {
    fn drop(&mut self) {
        self.0.status.end_scan(Status::Waiting);
    }
}
