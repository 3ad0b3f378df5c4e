//! What the kernel passes to a signal handler, as types that only the kernel makes.
//!
//! A handler of the runtime takes an [`Info`] and a [`Context`] where C has two pointers. Neither
//! type has a constructor, and neither outlives the handler. So a function that has one runs in a
//! handler, and what it reads is valid.
//!
//! A program may call a handler of ours itself, as the handler that it has replaced, perhaps
//! without these two arguments. So a handler of a signal that belongs to the program reads neither.

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;

use crate::sys::linux::interrupted::Interrupted;
use crate::sys::linux::task::{MARK, SignalInfo};
use crate::sys::linux::thread::getpid;

/// The kernel's `siginfo_t *` argument of a running handler; CONTEXT: signal, for all methods.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Info<'a>(*const SignalInfo, PhantomData<&'a SignalInfo>);

impl Info<'_> {
    fn get(&self) -> &SignalInfo {
        // SAFETY: D7. The kernel passed the pointer to a handler that still runs, because the type
        // has no constructor and a handler is generic over its lifetime. All fields are plain
        // numbers, of which the kernel writes every byte.
        unsafe { &*self.0 }
    }

    /// Whether [`signal_thread`](crate::sys::signal_thread) sent the signal with its mark.
    pub(crate) fn is_marked(self) -> bool {
        self.carries_mark(libc::SI_QUEUE)
    }

    /// Whether the signal comes from a [`CpuTimer`](crate::sys::CpuTimer).
    pub(crate) fn is_marked_timer(self) -> bool {
        self.carries_mark(libc::SI_TIMER)
    }

    /// With both codes the kernel stores the value at the same offset.
    fn carries_mark(self, code: c_int) -> bool {
        self.get().code == code && self.get().value == (&raw const MARK).addr()
    }

    /// Whether a thread of this process sent the signal to this thread, marked or not.
    pub(crate) fn is_from_this_process(self) -> bool {
        self.get().code == libc::SI_TKILL && self.get().pid == getpid()
    }

    /// The address that caused a fault. For a signal that is no fault it means nothing.
    pub(crate) fn fault_address(self) -> usize {
        // SAFETY: D7. As in `get`; the type is libc's name for the same struct. `si_addr` reads a
        // word of it, and any bits are a valid pointer.
        unsafe { (*self.0.cast::<libc::siginfo_t>()).si_addr() }.addr()
    }
}

/// The kernel's `ucontext_t *` argument of a running handler: the registers that the handler
/// returns with.
#[repr(transparent)]
pub(crate) struct Context<'a>(*mut c_void, PhantomData<&'a mut c_void>);

impl Context<'_> {
    /// The interrupted code; CONTEXT: signal.
    pub(crate) fn interrupted(&mut self) -> Interrupted<'_> {
        // SAFETY: D7. The kernel passed the pointer to a handler that still runs. `&mut self` keeps
        // every other user of the context away while the result lives.
        unsafe { Interrupted::new(self.0) }
    }

    /// The same argument, for one more call.
    pub(super) fn again(&mut self) -> Context<'_> {
        Context(self.0, PhantomData)
    }
}
