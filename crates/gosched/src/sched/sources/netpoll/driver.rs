//! A driver: one epoll instance and the count of its waiters.
//!
//! Each runtime has a driver, which its threads poll (`poll_net`). The process has one more, for
//! sockets on which a plain thread waits first.
//!
//! A descriptor is registered with one driver, its *home*, when a goroutine or thread first waits
//! on it. Later waiters, also of other runtimes, are woken by that driver and counted there. So a
//! runtime polls as long as any waiter depends on its driver. When a runtime ends, its descriptors
//! lose their home. Their waiters are woken and find another.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::base::real_thread;
use crate::base::static_ref::StaticRef;
use crate::sched::Sched;
use crate::sched::life::{forked, registry};
use crate::sched::park::{Entered, enter};
use crate::sched::sources::netpoll::SIDES;
use crate::sched::sources::netpoll::slot;
use crate::sched::sources::netpoll::slot::Slot;
use crate::sched::waiting::waitq::WakeList;
use crate::sys;
use crate::sys::{BELL, Epoll, Errno, NESTED};

/// How many events one poll fetches.
const EVENTS: usize = 128;

/// An epoll instance and the count of its waiters.
pub(crate) struct Driver {
    epoll: Epoll,
    /// An epoll inside it, for descriptors of the program (`foreign`).
    pub(super) foreign: StaticRef<Epoll>,
    /// Goroutines and threads that wait on descriptors whose home this is.
    waiters: AtomicU32,
    /// Its runtime is gone.
    is_closed: AtomicBool,
    /// A thread polls without waiting; one at a time is enough.
    is_polling: AtomicBool,
    /// When a thread last polled (ns).
    looked_ns: AtomicU64,
}

impl Driver {
    /// Makes a driver. It is never freed, as the structs of threads are not: a waiter may use it
    /// after its runtime is gone.
    pub(crate) fn new() -> io::Result<&'static Driver> {
        Ok(Driver::of(Epoll::new()?))
    }

    fn of(epoll: Epoll) -> &'static Driver {
        Box::leak(Box::new(Driver {
            epoll,
            foreign: StaticRef::none(),
            waiters: AtomicU32::new(0),
            is_closed: AtomicBool::new(false),
            is_polling: AtomicBool::new(false),
            looked_ns: AtomicU64::new(0),
        }))
    }

    #[inline]
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiters.load(Relaxed) != 0
    }

    /// Counts one more waiter; returns whether it is the first. Under the lock of a slot whose home
    /// this is.
    pub(super) fn begin_wait(&self) -> bool {
        self.waiters.fetch_add(1, SeqCst) == 0
    }

    /// Whether its runtime is gone.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(SeqCst)
    }

    pub(super) fn end_wait(&self) {
        self.waiters.fetch_sub(1, Relaxed);
    }

    #[cfg(test)]
    pub(super) fn waiters(&self) -> u32 {
        self.waiters.load(SeqCst)
    }

    pub(crate) fn looked_ns(&self) -> u64 {
        self.looked_ns.load(Relaxed)
    }

    /// Fetches events. Waits for the first until the deadline (0: not at all) or the bell. Returns
    /// the waiters to wake.
    pub(crate) fn poll(&self, deadline_ns: u64) -> WakeList {
        let mut events = [const { MaybeUninit::uninit() }; EVENTS];
        let mut wake = WakeList::new();
        let mut has_foreign = false;
        let got = self.epoll.wait(&mut events, deadline_ns);
        self.looked_ns.store(sys::monotonic_ns(), Relaxed);
        for event in got {
            match event.data {
                BELL => {}
                NESTED => has_foreign = true,
                data => slot::dispatch(data, event.what, &mut wake),
            }
        }
        // One event of the nested epoll stands for all that has happened in it: fetch until there
        // is nothing left.
        while has_foreign && let Some(foreign) = self.foreign.load() {
            let got = foreign.wait(&mut events, 0);
            has_foreign = got.len() == EVENTS;
            for event in got {
                slot::dispatch(event.data, event.what, &mut wake);
            }
        }
        wake
    }

    /// The epoll for descriptors of the program, made when it is first needed. Outside the runtime.
    pub(super) fn foreign(&'static self) -> io::Result<&'static Epoll> {
        if let Some(epoll) = self.foreign.load() {
            return Ok(epoll);
        }
        let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(epoll) = self.foreign.load() {
            return Ok(epoll);
        }
        let epoll = Box::leak(Box::new(Epoll::nested_in(&self.epoll)?));
        self.foreign.store(Some(epoll));
        Ok(epoll)
    }

    /// As [`Driver::poll`], without waiting; None: another thread is doing so.
    pub(crate) fn try_poll(&self) -> Option<WakeList> {
        // ORDER: SeqCst is stronger than needed: two at a time would do no harm.
        if self.is_polling.load(Relaxed) || self.is_polling.swap(true, SeqCst) {
            return None;
        }
        let wake = self.poll(0);
        self.is_polling.store(false, SeqCst);
        Some(wake)
    }

    /// Ends a wait in [`Driver::poll`].
    pub(crate) fn ring(&self) {
        self.epoll.ring();
    }

    /// The runtime ends, and none of its threads polls any more. `is_last`: none of them uses the
    /// driver either.
    pub(crate) fn close(&'static self, is_last: bool) {
        self.is_closed.store(true, SeqCst);
        for slot in slot::all() {
            // Lock first, then load the home: an `adopt` that has not seen `is_closed` holds the
            // lock until it has stored the home.
            let mut wake = WakeList::new();
            let rt = enter();
            let mut queues = slot.queues.lock();
            if slot.home().is_some_and(|home| std::ptr::eq(home, self)) {
                slot.set_home(None);
                for side in SIDES {
                    Slot::wake_all(queues.of(side), &mut wake);
                }
            }
            drop(queues);
            wake.wake_in(&rt);
        }
        if is_last {
            // SAFETY: D2. Only goroutines of this runtime register descriptors here, and none of
            // them runs any more. The loop above removed this driver from every slot, so no thread
            // finds it. A driver is never dropped (`Driver::of`).
            unsafe {
                self.epoll.close();
                self.foreign.load().inspect(|foreign| foreign.close());
            }
        }
    }

    /// Registers the slot's descriptor here. Under the slot's lock, while the slot has no home.
    pub(super) fn adopt(&'static self, slot: &Slot, fd: i32) -> io::Result<()> {
        if self.is_closed() {
            return Ok(()); // the caller looks for a home again
        }
        self.register(slot, fd)?;
        slot.fd.store(fd, Relaxed);
        slot.set_home(Some(self));
        Ok(())
    }

    /// An epoll knows a descriptor by its file and number, once. If another slot has registered
    /// both, this slot registers a duplicate: each slot gets every event.
    fn register(&self, slot: &Slot, fd: i32) -> io::Result<()> {
        let fd = slot.duplicate().unwrap_or(fd);
        match self.epoll.add(fd, slot.data()) {
            // The slot's own registration, which its home could not remove by another number.
            Err(Errno(libc::EEXIST)) if slot.has_left(self, fd) => {
                Ok(self.epoll.change(fd, slot.data())?)
            }
            Err(Errno(libc::EEXIST)) => {
                let duplicate = sys::duplicate(fd)?;
                self.epoll.add(duplicate.as_raw_fd(), slot.data())?;
                slot.set_duplicate(duplicate);
                Ok(())
            }
            answer => Ok(answer?),
        }
    }

    /// Removes a descriptor.
    pub(super) fn forget(&self, fd: i32) {
        self.epoll.remove(fd);
    }
}

/// The process's own driver.
static OUTSIDE: OnceLock<&'static Driver> = OnceLock::new();
/// Held while that driver and its thread are made, or an epoll for descriptors of the program, so
/// that there is one of each.
static MAKING: Mutex<()> = Mutex::new(());

/// Whether the process's own driver has waiters.
pub(crate) fn outside_has_waiters() -> bool {
    OUTSIDE.get().is_some_and(|driver| driver.has_waiters())
}

/// The driver for the caller: the one of the goroutine's runtime, or the process's. Outside the
/// runtime.
pub(super) fn of_caller() -> io::Result<&'static Driver> {
    let own = crate::sched::model::current::current_g().map(|g| g.sched().net_driver());
    match own.transpose()? {
        // A goroutine of a dead runtime may continue until it waits.
        Some(driver) if !driver.is_closed() => Ok(driver),
        _ => outside(),
    }
}

fn outside() -> io::Result<&'static Driver> {
    if let Some(driver) = OUTSIDE.get() {
        return Ok(driver);
    }
    let _making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(driver) = OUTSIDE.get() {
        return Ok(driver);
    }
    forked::watch()?;
    let epoll = Epoll::new()?; // closed again if there is no thread
    real_thread::spawn("gosched-net", || serve(OUTSIDE.wait()))?;
    Ok(OUTSIDE.get_or_init(|| Driver::of(epoll)))
}

/// The thread that polls the process's own driver.
fn serve(driver: &Driver) {
    registry::add_thread();
    loop {
        driver.poll(u64::MAX).wake();
    }
}

/// `home` has its first waiter: notifies the runtime that must poll it. Inside the runtime.
pub(super) fn announce(rt: &Entered, home: &'static Driver) {
    let is_home = |sched: &Sched| {
        let driver = sched.poller.driver();
        driver.is_some_and(|driver| std::ptr::eq(driver, home))
    };
    match rt.m().filter(|m| is_home(m.sched())) {
        Some(m) => m.sched().net_waiter_came(m),
        // The driver of another runtime, or of the process, which its thread always polls.
        None => {
            let registry = registry::lock();
            if let Some(sched) = registry.runtimes().find(|sched| is_home(sched)) {
                sched.net_stranger_came();
            }
        }
    }
}
