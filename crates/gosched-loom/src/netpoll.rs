//! Stand-in for the network, as the watcher uses it.

pub(crate) mod driver {
    //! One epoll: the watcher sleeps in it until the bell rings.

    use crate::note::Note;
    use crate::sched::waiting::waitq::WakeList;
    use crate::shim::{AtomicU32, Relaxed};

    pub(crate) struct Driver {
        waiters: AtomicU32,
        bell: Note,
    }

    impl Driver {
        pub(crate) fn new(waiters: u32) -> Driver {
            Driver {
                waiters: AtomicU32::new(waiters),
                bell: Note::new(),
            }
        }

        pub(crate) fn has_waiters(&self) -> bool {
            self.waiters.load(Relaxed) != 0
        }

        /// Only the bell ends the wait.
        pub(crate) fn poll(&self, deadline_ns: u64) -> WakeList {
            self.bell.sleep_until(deadline_ns);
            WakeList::new()
        }

        pub(crate) fn ring(&self) {
            self.bell.wakeup();
        }
    }
}
