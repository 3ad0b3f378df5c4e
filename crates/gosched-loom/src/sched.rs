//! Stand-in for the scheduler, for the library's waiting and its channels.
//!
//! A plain thread is a loom thread. So is a goroutine, which also has a [`G`](g::G). It parks by
//! the library's protocol, with its status word and its commit function, and then sleeps until it
//! is made ready. Timers are a list under a lock.

pub(crate) mod model {
    //! Stand-ins for `sched/model`.

    #[allow(unused_imports, reason = "the library takes what it needs")]
    pub(crate) use crate::{current, gstatus, opens, wait_reason};

    pub(crate) mod g {
        //! A goroutine.

        use std::cell::UnsafeCell;
        use std::mem::MaybeUninit;
        use std::ptr::NonNull;
        use std::sync::Arc;

        use super::opens::{OpenSend, OpenSends};
        pub(crate) use super::wait_reason::WaitReason;
        use crate::gstatus::{Status, StatusWord};
        use crate::note::Note;
        use crate::sched::waiting::wait_ops::{Wait, WaitOps};
        use crate::sched::waiting::waitq::Waiter;
        use crate::shim::Cell;

        pub(crate) struct G {
            pub(crate) status: StatusWord,
            /// How it waits, and on what.
            wait: Cell<Option<(&'static WaitOps<Waiter>, *const Waiter)>>,
            /// Whether an M has it (G2).
            pub(in crate::sched) has_m: Cell<bool>,
            /// It was made ready.
            pub(in crate::sched) resume: Note,
            opens: OpenSends,
            open_slot: UnsafeCell<MaybeUninit<OpenSend>>,
            /// Its runtime, if that one ends. `is_queued`: the goroutine is queued; `is_parked`:
            /// its thread sleeps. Both are guarded by the scheduler lock.
            pub(in crate::sched) home: Option<Arc<crate::sched::Sched>>,
            pub(in crate::sched) is_queued: Cell<bool>,
            pub(in crate::sched) is_parked: Cell<bool>,
            /// The story is over: an abandoned goroutine may release its stack.
            pub(crate) end: Note,
        }

        impl G {
            pub(crate) fn new() -> G {
                G::of(None)
            }

            /// A goroutine of a runtime that ends.
            pub(crate) fn of(home: Option<Arc<crate::sched::Sched>>) -> G {
                G {
                    home,
                    is_queued: Cell::new(false),
                    is_parked: Cell::new(false),
                    end: Note::new(),
                    status: StatusWord::new(Status::Running),
                    wait: Cell::new(None),
                    has_m: Cell::new(true),
                    resume: Note::new(),
                    opens: OpenSends::new(),
                    open_slot: UnsafeCell::new(MaybeUninit::uninit()),
                }
            }

            pub(in crate::sched) fn set_wait(
                &self,
                ops: &'static WaitOps<Waiter>,
                waiter: &Waiter,
            ) {
                self.wait.set(Some((ops, waiter)));
            }

            /// As the library's, with its contract.
            pub(crate) unsafe fn wait<'a>(&self) -> Option<Wait<'a>> {
                let (ops, waiter) = self.wait.get()?;
                // SAFETY: the goroutine is in its wait, as the caller promises, and the waiter on
                // its stack.
                let waiter = unsafe { &*waiter };
                Some(Wait { ops, waiter })
            }

            pub(crate) fn opens(&self) -> &OpenSends {
                &self.opens
            }

            pub(crate) fn open_slot(&self) -> NonNull<OpenSend> {
                NonNull::new(self.open_slot.get().cast()).unwrap()
            }

            pub(crate) fn sched(&self) -> &crate::sched::Sched {
                self.home.as_deref().unwrap_or(&crate::sched::SCHED)
            }

            /// Nothing unwinds here.
            #[allow(dead_code, reason = "the library takes what it needs")]
            pub(crate) fn must_unwind(&self) -> bool {
                false
            }
        }

        /// Runnable goroutines; no model takes one.
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
        // SAFETY: loom reports every run in which two accesses to a field are not ordered.
        unsafe impl Sync for G {}
    }

    pub(crate) mod m {
        //! Why a goroutine must not be preempted; none is preempted here.

        pub(crate) enum PreemptOff {
            HalfDone,
        }
    }

    pub(crate) mod ptr {
        //! A pointer to an object that is not freed during the story.

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
            pub(crate) unsafe fn new(raw: NonNull<T>) -> Ptr<T> {
                Ptr(raw)
            }

            pub(crate) unsafe fn from_raw(raw: *mut T) -> Option<Ptr<T>> {
                NonNull::new(raw).map(Ptr)
            }

            pub(crate) fn non_null(self) -> NonNull<T> {
                self.0
            }

            pub(crate) fn as_ptr(self) -> *mut T {
                self.0.as_ptr()
            }
        }

        impl<T> Deref for Ptr<T> {
            type Target = T;

            fn deref(&self) -> &T {
                // SAFETY: GF's counterpart here. The test that starts a goroutine keeps its G until
                // all threads have ended.
                unsafe { self.0.as_ref() }
            }
        }
    }
}

pub(crate) mod waiting {
    //! How goroutines wait.

    #[allow(unused_imports, reason = "the library takes what it needs")]
    pub(crate) use crate::{
        on, pinned, sleeper, thread::park as timed, wait_word, waitq, wakelist,
    };

    pub(crate) mod wait_ops {
        //! Kinds of waits. Here a goroutine waits in queues only.

        use crate::sched::model::g::WaitReason;
        use crate::sched::model::ptr::Gp;
        use crate::waitq::{PassOn, Waiter};

        #[allow(dead_code, reason = "not all of it is read here")]
        pub(crate) struct WaitOps<T> {
            pub(crate) reason: WaitReason,
            pub(crate) is_open: bool,
            pub(crate) commit: fn(Gp, &T) -> bool,
            pub(crate) withdraw: fn(Gp, &T) -> bool,
            pub(crate) time_out: fn(Gp, &T) -> bool,
            pub(crate) view: fn(&T) -> WaitView<'_>,
            pub(crate) pass_on: Option<PassOn>,
        }

        #[derive(Clone, Copy)]
        pub(crate) enum WaitView<'a> {
            Waiter(&'a Waiter),
            #[allow(dead_code, reason = "the library has other waits")]
            Nothing,
        }

        #[derive(Clone, Copy)]
        pub(crate) struct Wait<'a> {
            pub(in crate::sched) ops: &'static WaitOps<Waiter>,
            pub(in crate::sched) waiter: &'a Waiter,
        }

        impl<'a> Wait<'a> {
            pub(crate) fn time_out(self, g: Gp) -> bool {
                (self.ops.time_out)(g, self.waiter)
            }

            pub(crate) fn view(self) -> WaitView<'a> {
                (self.ops.view)(self.waiter)
            }

            pub(crate) fn way_to_pass_on(self) -> Option<PassOn> {
                self.ops.pass_on
            }
        }
    }
}

pub(crate) mod sources {
    //! What makes goroutines ready.

    pub(crate) use crate::netpoll;
}

/// A runtime. In most models it does not end, and costs no steps.
pub(crate) struct Sched {
    mortal: Option<Mortal>,
}

/// For a runtime that ends in the story: the scheduler lock, and `dead`.
struct Mortal {
    core: loom::sync::Mutex<()>,
    dead: crate::shim::AtomicBool,
}

static SCHED: Sched = Sched { mortal: None };

impl Sched {
    /// A runtime that ends: [`teardown::drop_runtime`].
    pub(crate) fn mortal() -> Sched {
        Sched {
            mortal: Some(Mortal {
                core: loom::sync::Mutex::new(()),
                dead: crate::shim::AtomicBool::new(false),
            }),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        let mortal = self.mortal.as_ref();
        mortal.is_some_and(|mortal| mortal.dead.load(crate::shim::Relaxed))
    }
}

pub(crate) mod park {
    //! Parking, and being made ready (PK, RD).

    use super::model::ptr::Gp;
    use super::teardown;
    use super::waiting::wait_ops::WaitOps;
    use super::waiting::waitq::{WaitEnd, Waiter, pass_on};
    use crate::current::{M, current_g};
    use crate::gstatus::Status;
    use crate::thread;

    /// There is no runtime to enter.
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

    pub(crate) type NoPreempt = Entered;

    /// No goroutine is preempted.
    pub(crate) fn no_preempt(_: super::model::m::PreemptOff) -> NoPreempt {
        Entered
    }

    /// The library's `park` and `park_m`. The M then checks the timers.
    pub(crate) fn park(ops: &'static WaitOps<Waiter>, arg: &Waiter) {
        let Some(g) = current_g() else {
            panic!("park off a goroutine")
        };
        g.set_wait(ops, arg);
        g.resume.clear();
        g.status.transition(Status::Running, Status::Waiting);
        g.has_m.set(false);
        if (ops.commit)(g, arg) {
            thread::expire();
            teardown::sleep(g, execute);
        } else {
            g.status.transition(Status::Waiting, Status::Runnable);
            execute(g);
        }
    }

    /// An M runs it.
    fn execute(g: Gp) {
        assert!(!g.has_m.replace(true), "G2: the last M still has it");
        g.status.transition(Status::Runnable, Status::Running);
    }

    #[allow(dead_code, reason = "the library takes what it needs")]
    pub(crate) fn park_in(rt: Entered, ops: &'static WaitOps<Waiter>, arg: &Waiter) {
        drop(rt);
        park(ops, arg);
    }

    #[allow(dead_code, reason = "the library takes what it needs")]
    pub(crate) fn ready_in(_: &Entered, g: Gp) {
        ready(g);
    }

    /// The library's `ready_in` and `inject`.
    pub(crate) fn ready(g: Gp) {
        if g.sched().is_dead() {
            return pass_on(g, WaitEnd::Woken);
        }
        g.status.transition(Status::Waiting, Status::Runnable);
        if !teardown::inject(g) {
            pass_on(g, WaitEnd::Woken);
        }
    }

    /// The request to unwind, as when a runtime shuts down; returns whether it ended a wait.
    pub(crate) fn cancel(g: Gp) -> bool {
        let is_ours = teardown::withdraw(g);
        if is_ours {
            ready(g);
        }
        is_ours
    }
}

pub(crate) mod teardown {
    //! The drop of a runtime, as in the library's `teardown` and `schedule`: a goroutine that is
    //! queued when it begins does not run.

    use super::Mortal;
    use super::model::ptr::Gp;
    use super::waiting::waitq::{WaitEnd, pass_on};
    use crate::gstatus::Status;
    use crate::shim::Relaxed;

    /// The panic payload with which an abandoned goroutine leaves its stack once the story is over.
    pub(crate) struct Abandoned;

    fn mortal(g: &Gp) -> Option<&Mortal> {
        g.home.as_deref()?.mortal.as_ref()
    }

    /// Queues a goroutine that was made Runnable; returns false if its runtime is dead.
    pub(super) fn inject(g: Gp) -> bool {
        let Some(mortal) = mortal(&g) else {
            g.resume.wakeup();
            return true;
        };
        let _core = mortal.core.lock().unwrap();
        if mortal.dead.load(Relaxed) {
            return false;
        }
        g.is_queued.set(true);
        if g.is_parked.get() {
            g.resume.wakeup();
        }
        true
    }

    /// The goroutine has committed: its M looks for another, and comes back when this one is
    /// queued. Under the lock, because a drop waits until no M is between its load of `dead` and
    /// the run of a goroutine.
    pub(super) fn sleep(g: Gp, execute: fn(Gp)) {
        let Some(mortal) = mortal(&g) else {
            g.resume.sleep();
            return execute(g);
        };
        let mut core = mortal.core.lock().unwrap();
        if mortal.dead.load(Relaxed) {
            drop(core);
            take_back(g, false); // the library's `leave_behind`
            abandon(g);
        }
        if !g.is_queued.get() {
            g.is_parked.set(true);
            drop(core);
            g.resume.sleep();
            core = mortal.core.lock().unwrap();
            g.is_parked.set(false);
        }
        if mortal.dead.load(Relaxed) {
            drop(core);
            abandon(g);
        }
        g.is_queued.set(false);
        execute(g);
        drop(core);
    }

    fn abandon(g: Gp) -> ! {
        g.end.sleep();
        std::panic::resume_unwind(Box::new(Abandoned))
    }

    /// The library's `take_back`. There the status shows whether the goroutine is Runnable, once no
    /// M of the runtime is inside.
    fn take_back(g: Gp, is_queued: bool) {
        g.opens().refuse_all();
        if withdraw(g) {
            pass_on(g, WaitEnd::Withdrawn);
        } else if is_queued {
            pass_on(g, WaitEnd::Woken);
        }
    }

    /// The library's `withdraw`.
    pub(super) fn withdraw(g: Gp) -> bool {
        if !g.status.begin_scan(Status::Waiting) {
            return false;
        }
        // SAFETY: G6. While the Scan bit is held the goroutine stays in its wait.
        let wait = unsafe { g.wait() };
        let is_ours = wait.is_some_and(|wait| (wait.ops.withdraw)(g, wait.waiter));
        g.status.end_scan(Status::Waiting);
        is_ours
    }

    /// Drops the runtime of `g`.
    pub(crate) fn drop_runtime(g: Gp) {
        let Some(mortal) = mortal(&g) else { return };
        let core = mortal.core.lock().unwrap();
        mortal.dead.store(true, Relaxed);
        let (is_parked, is_queued) = (g.is_parked.get(), g.is_queued.get());
        drop(core);
        take_back(g, is_queued);
        if is_parked && !is_queued {
            g.resume.wakeup(); // its thread ends
        }
    }
}
