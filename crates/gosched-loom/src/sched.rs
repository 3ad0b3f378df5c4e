//! What the library's waiting and its channels find around them, in place of the scheduler.
//!
//! A plain thread is one of loom's. So is a goroutine: one that has a [`G`](g::G), which parks by the library's protocol,
//! with its status word and its unlock function, and then sleeps until somebody has made it ready. Timers are a list under a lock.

#[path = "../../gosched/src/sched/waitq.rs"]
#[allow(dead_code, reason = "the dumps' side of the file has no concurrency")]
pub(crate) mod waitq;

#[path = "../../gosched/src/sched/wakelist.rs"]
#[allow(
    dead_code,
    reason = "the poller's side of the file is not in the models"
)]
pub(crate) mod wakelist;

#[allow(unused_imports, reason = "the library takes what it needs")]
pub(crate) use crate::{gstatus, note, sudog};

/// A runtime; there is one, and it does not end.
#[allow(dead_code, reason = "the library takes what it needs")]
pub(crate) struct Sched {
    pub(crate) dead: std::sync::atomic::AtomicBool,
}

#[allow(dead_code, reason = "the library takes what it needs")]
static SCHED: Sched = Sched {
    dead: std::sync::atomic::AtomicBool::new(false),
};

pub(crate) mod g {
    //! A goroutine.

    use std::ffi::c_void;

    use super::note::Note;
    use super::park::WaitOps;
    use crate::gstatus::{Status, StatusWord};
    use crate::shim::Cell;

    /// Why it waits; nobody looks.
    #[derive(Clone, Copy, PartialEq)]
    #[allow(dead_code, reason = "nobody looks")]
    pub(crate) enum WaitReason {
        ChanReceive,
        ChanSend,
        Select,
        SelectNoCases,
    }

    pub(crate) struct G {
        pub(super) status: StatusWord,
        pub(crate) wait_arg: Cell<*const c_void>,
        pub(super) wait_ops: Cell<Option<&'static WaitOps>>,
        /// Whether an M has it (G2).
        pub(super) has_m: Cell<bool>,
        /// Made ready.
        pub(super) resume: Note,
    }

    impl G {
        pub(crate) fn new() -> G {
            G {
                status: StatusWord::new(Status::Running),
                wait_arg: Cell::new(std::ptr::null()),
                wait_ops: Cell::new(None),
                has_m: Cell::new(true),
                resume: Note::new(),
            }
        }

        #[allow(dead_code, reason = "the library takes what it needs")]
        pub(crate) fn sched(&self) -> &'static super::Sched {
            &super::SCHED
        }

        /// Nothing can unwind here.
        #[allow(dead_code, reason = "the library takes what it needs")]
        pub(crate) fn must_unwind(&self) -> bool {
            false
        }
    }

    /// Those who are to run, of whom no model takes one.
    #[allow(dead_code, reason = "the library takes what it needs")]
    pub(crate) struct GQueue;

    #[allow(dead_code, reason = "the library takes what it needs")]
    impl GQueue {
        pub(crate) fn push_back(&mut self, g: super::ptr::Gp) {
            g.resume.wakeup();
        }
    }

    // SAFETY: loom reports every run in which two accesses to a field are not ordered.
    unsafe impl Send for G {}
    // SAFETY: as above.
    unsafe impl Sync for G {}
}

pub(crate) mod ptr {
    //! A pointer to something that is not freed while the story lasts.

    use std::ops::Deref;
    use std::ptr::NonNull;

    pub(crate) struct Ptr<T>(NonNull<T>);

    pub(crate) type Gp = Ptr<super::g::G>;

    impl<T> Clone for Ptr<T> {
        fn clone(&self) -> Ptr<T> {
            *self
        }
    }

    impl<T> Copy for Ptr<T> {}

    impl<T> Ptr<T> {
        pub(crate) unsafe fn from_raw(raw: *mut T) -> Option<Ptr<T>> {
            NonNull::new(raw).map(Ptr)
        }

        pub(crate) fn as_ptr(self) -> *mut T {
            self.0.as_ptr()
        }
    }

    impl<T> Deref for Ptr<T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: GF's counterpart here: whoever starts a goroutine keeps its G until all threads have ended.
            unsafe { self.0.as_ref() }
        }
    }
}

pub(crate) mod park {
    //! Parking, and being made ready (PK, RD).

    use std::ffi::c_void;

    use super::g::WaitReason;
    use super::ptr::Gp;
    use crate::context::{M, current_g};
    use crate::gstatus::Status;
    use crate::thread;

    /// What it waits with; nobody looks.
    #[derive(Clone, Copy)]
    pub(crate) enum WaitArg {
        Waiter,
    }

    #[allow(dead_code, reason = "nobody looks at all of it")]
    pub(crate) struct WaitOps {
        pub(crate) reason: WaitReason,
        pub(crate) arg: WaitArg,
        pub(crate) is_open: bool,
        pub(crate) commit: unsafe fn(Gp, *const c_void) -> bool,
        pub(crate) withdraw: unsafe fn(Gp, *const c_void) -> bool,
    }

    /// There is no runtime to be inside of.
    pub(crate) struct Entered;

    #[allow(dead_code, reason = "the library takes what it needs")]
    impl Entered {
        pub(crate) fn m(&self) -> Option<&'static M> {
            Some(&M)
        }

        pub(crate) fn g(&self) -> Option<Gp> {
            current_g()
        }
    }

    impl Drop for Entered {
        fn drop(&mut self) {}
    }

    pub(crate) fn enter() -> Entered {
        Entered
    }

    /// The library's `park` and `park_m`; what the M does next is to look at the timers.
    pub(crate) unsafe fn park(ops: &'static WaitOps, arg: *const c_void) {
        let Some(g) = current_g() else {
            panic!("park off a goroutine")
        };
        g.wait_arg.set(arg);
        g.wait_ops.set(Some(ops));
        g.resume.clear();
        g.status.transition(Status::Running, Status::Waiting);
        g.has_m.set(false);
        // SAFETY: PK, the caller promises that `arg` belongs to `ops`.
        if unsafe { (ops.commit)(g, arg) } {
            thread::expire();
            g.resume.sleep();
        } else {
            g.status.transition(Status::Waiting, Status::Runnable);
        }
        assert!(!g.has_m.replace(true), "G2: the last M still has it");
        g.status.transition(Status::Runnable, Status::Running);
    }

    #[allow(dead_code, reason = "the library takes what it needs")]
    pub(crate) unsafe fn park_in(rt: Entered, ops: &'static WaitOps, arg: *const c_void) {
        drop(rt);
        // SAFETY: by the caller's promise.
        unsafe { park(ops, arg) };
    }

    #[allow(dead_code, reason = "the library takes what it needs")]
    pub(crate) fn ready_in(_: &Entered, g: Gp) {
        ready(g);
    }

    pub(crate) fn ready(g: Gp) {
        g.status.transition(Status::Waiting, Status::Runnable);
        g.resume.wakeup();
    }

    /// The request to unwind, as when a runtime shuts down; true: it ended a wait.
    pub(crate) fn cancel(g: Gp) -> bool {
        if !g.status.begin_scan(Status::Waiting) {
            return false;
        }
        let is_ours = match g.wait_ops.get() {
            // SAFETY: G6, the goroutine waits as its `wait_ops` say while the bit is held.
            Some(ops) => unsafe { (ops.withdraw)(g, g.wait_arg.get()) },
            None => false,
        };
        g.status.end_scan(Status::Waiting);
        if is_ours {
            ready(g);
        }
        is_ours
    }
}

pub(crate) mod lock {
    //! The runtime's lock: loom's, with the library's ways to hold several.

    use std::cell::UnsafeCell;
    use std::ops::{Deref, DerefMut};

    use loom::sync::{Mutex, MutexGuard};

    #[derive(Clone, Copy)]
    pub(crate) enum Rank {
        Chan,
    }

    pub(crate) struct Lock<T> {
        mutex: Mutex<()>,
        /// The guard of whoever holds it.
        guard: UnsafeCell<Option<MutexGuard<'static, ()>>>,
        value: UnsafeCell<T>,
    }

    // SAFETY: D9, the mutex admits one holder at a time.
    unsafe impl<T: Send> Sync for Lock<T> {}
    // SAFETY: as above.
    unsafe impl<T: Send> Send for Lock<T> {}

    pub(crate) struct Held<'a, T>(&'a Lock<T>);

    impl<T> Lock<T> {
        pub(crate) fn new(_: Rank, value: T) -> Lock<T> {
            Lock {
                mutex: Mutex::new(()),
                guard: UnsafeCell::new(None),
                value: UnsafeCell::new(value),
            }
        }

        pub(crate) fn lock(&self) -> Held<'_, T> {
            self.lock_of_several(true);
            Held(self)
        }

        pub(crate) fn lock_of_several(&self, _is_first: bool) {
            let guard = self.mutex.lock().unwrap();
            // SAFETY: the guard is dropped by `unlock`, before the lock.
            let guard = unsafe {
                std::mem::transmute::<MutexGuard<'_, ()>, MutexGuard<'static, ()>>(guard)
            };
            // SAFETY: the holder's alone.
            unsafe { *self.guard.get() = Some(guard) };
        }

        #[allow(clippy::mut_from_ref, reason = "as the library's")]
        pub(crate) unsafe fn get_held(&self) -> &mut T {
            // SAFETY: by the caller's promise.
            unsafe { &mut *self.value.get() }
        }

        pub(crate) unsafe fn unlock_of_several(&self, _is_first: bool) {
            // SAFETY: the holder's alone.
            drop(unsafe { (*self.guard.get()).take() });
        }
    }

    impl<T> Deref for Held<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            // SAFETY: this guard is the one possession of the lock.
            unsafe { &*self.0.value.get() }
        }
    }

    impl<T> DerefMut for Held<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            // SAFETY: as above.
            unsafe { &mut *self.0.value.get() }
        }
    }

    impl<T> Drop for Held<'_, T> {
        fn drop(&mut self) {
            // SAFETY: held by this guard.
            unsafe { self.0.unlock_of_several(true) };
        }
    }
}

pub(crate) mod fatal {
    //! Fatal errors.

    pub(crate) fn throw(text: &str) -> ! {
        panic!("{text}")
    }
}
