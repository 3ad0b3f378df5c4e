//! The builder behind `select!`, for cases that are known only at run time: crossbeam's `Select`.

use std::fmt;
use std::time::{Duration, Instant};

use super::err::{
    ReadyTimeoutError, RecvError, SelectTimeoutError, SendError, TryReadyError, TrySelectError,
};
use super::{Receiver, Sender};
use crate::chan::select_case::{Case, SelectWait, recv_case, send_case};
use crate::chan::select_handle::{Promise, SelectHandle};
use crate::chan::select_run::{self, ChosenCase, SelectRun};
use crate::chan::value_slot::ValueSlot;
use crate::thread::{ThreadId, current_id};

/// Waits for the first of several channel operations, chosen at run time.
///
/// Operations are added with [`send`](Select::send) and [`recv`](Select::recv), which return their
/// index. Then `Select` chooses an operation that can proceed, at random among several. The caller
/// must complete it. The macro [`select!`](crate::select) does all of that for cases that are known
/// at compile time.
///
/// Making one, adding operations and removing them block nothing.
///
/// A `Select` is `Send` and `Sync` whatever its channels carry, as crossbeam's is. A receive takes
/// its message when it is chosen: on the goroutine or thread that calls [`select`](Select::select).
/// The message leaves the operation only through [`SelectedOperation::recv`], which needs the
/// receiver there. See [`SelectedOperation`] for an operation that is never completed.
///
/// ```
/// use gosched::chan::{Select, unbounded};
///
/// gosched::run(|| {
///     let (s1, r1) = unbounded();
///     let (s2, r2) = unbounded();
///     gosched::go(move || s1.send(10).unwrap());
///     gosched::go(move || s2.send(20).unwrap());
///
///     let mut sel = Select::new();
///     let first = sel.recv(&r1);
///     let second = sel.recv(&r2);
///     let oper = sel.select();
///     match oper.index() {
///         i if i == first => assert_eq!(oper.recv(&r1), Ok(10)),
///         i if i == second => assert_eq!(oper.recv(&r2), Ok(20)),
///         _ => unreachable!(),
///     }
/// });
/// ```
#[derive(Clone)]
pub struct Select<'a> {
    /// The cases; a removed one leaves its index unused.
    cases: Vec<Case<'a>>,
    added: Vec<Added>,
    next: usize,
    is_biased: bool,
}

/// What else is known of a case.
#[derive(Clone, Copy)]
struct Added {
    index: usize,
    home: CaseHome,
}

/// The goroutine or thread that added a case. It has a handle of the channel, so it may drop the
/// channel's values, `Send` or not. None: a plain thread whose thread-locals had ended.
#[derive(Clone, Copy)]
struct CaseHome(Option<ThreadId>);

impl CaseHome {
    /// Whether the caller may drop values of the case's channel.
    fn is_here(self) -> bool {
        self.0.is_some() && self.0 == current_id()
    }
}

// A Select borrows channels whose handles may be neither Send nor Sync. On another thread it takes
// locks, queues waiters, and moves the bytes of values between buffers, stacks and its value slot.
// `SelectedOperation`, which is not Send, hands a value out only to a caller that has a handle of
// the channel. It drops a value only on the thread that added its case (`CaseHome`).
// SAFETY: D1, a Select holds no values, and on another thread it never reads, drops or hands out a
// value.
unsafe impl Send for Select<'_> {}
// SAFETY: D1, a shared Select can be cloned, which copies borrows and ids. What holds for Send
// holds for the clone.
unsafe impl Sync for Select<'_> {}

impl<'a> Select<'a> {
    /// An empty list of operations.
    ///
    /// See the example of [`Select`].
    #[must_use]
    pub fn new() -> Select<'a> {
        Select {
            cases: Vec::with_capacity(4),
            added: Vec::with_capacity(4),
            next: 0,
            is_biased: false,
        }
    }

    /// An empty list of operations in which an earlier one is preferred.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    ///
    /// let (s, r) = unbounded();
    /// s.send(1).unwrap();
    /// let mut sel = Select::new_biased();
    /// sel.recv(&r);
    /// sel.recv(&r);
    /// let oper = sel.select();
    /// assert_eq!(oper.index(), 0);
    /// assert_eq!(oper.recv(&r), Ok(1));
    /// ```
    #[must_use]
    pub fn new_biased() -> Select<'a> {
        Select {
            is_biased: true,
            ..Select::new()
        }
    }

    /// Adds a send; returns its index.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    ///
    /// let (s, r) = unbounded();
    /// let mut sel = Select::new();
    /// let index = sel.send(&s);
    /// let oper = sel.select();
    /// assert_eq!(oper.index(), index);
    /// oper.send(&s, 7).unwrap();
    /// assert_eq!(r.recv(), Ok(7));
    /// ```
    pub fn send<T>(&mut self, s: &'a Sender<T>) -> usize {
        self.add(send_case(s))
    }

    /// Adds a receive; returns its index.
    ///
    /// See the example of [`Select`].
    pub fn recv<T>(&mut self, r: &'a Receiver<T>) -> usize {
        self.add(recv_case(r))
    }

    fn add(&mut self, case: Case<'a>) -> usize {
        let index = self.next;
        self.cases.push(case);
        self.added.push(Added {
            index,
            home: CaseHome(current_id()),
        });
        self.next += 1;
        index
    }

    /// Removes an operation, as when its channel is closed. The indices of the others stay.
    ///
    /// # Panics
    /// If there is no such operation.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    ///
    /// let (_s1, r1) = unbounded::<i32>();
    /// let (_s2, r2) = unbounded::<i32>();
    /// let mut sel = Select::new();
    /// let first = sel.recv(&r1);
    /// sel.recv(&r2);
    /// sel.remove(first);
    /// assert!(sel.try_select().is_err());
    /// ```
    pub fn remove(&mut self, index: usize) {
        assert!(
            index < self.next,
            "index out of bounds; {index} >= {}",
            self.next
        );
        let at = self.added.iter().position(|added| added.index == index);
        let Some(at) = at else {
            panic!("no operation with this index");
        };
        self.cases.swap_remove(at);
        self.added.swap_remove(at);
        if self.is_biased {
            // The order is the preference, so it is kept.
            let mut order: Vec<_> = self
                .added
                .iter()
                .copied()
                .zip(self.cases.drain(..))
                .collect();
            order.sort_by_key(|(added, _)| added.index);
            (self.added, self.cases) = order.into_iter().unzip();
        }
    }

    /// Chooses an operation that can proceed now.
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// If none can.
    ///
    /// See the example of [`Select::remove`].
    pub fn try_select(&mut self) -> Result<SelectedOperation<'a>, TrySelectError> {
        self.run(SelectWait::Not).ok_or(TrySelectError)
    }

    /// Waits until an operation can proceed, and chooses it. Blocks the goroutine, or the plain
    /// thread it is called on. If there is no operation it blocks for ever.
    ///
    /// See the example of [`Select`].
    pub fn select(&mut self) -> SelectedOperation<'a> {
        match self.run(SelectWait::Forever) {
            Some(operation) => operation,
            None => unreachable!("a select without a deadline timed out"),
        }
    }

    /// As [`Select::select`], for at most `timeout`.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// If no operation could proceed in time.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    /// use std::time::Duration;
    ///
    /// let (_s, r) = unbounded::<i32>();
    /// let mut sel = Select::new();
    /// sel.recv(&r);
    /// assert!(sel.select_timeout(Duration::from_millis(1)).is_err());
    /// ```
    pub fn select_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<SelectedOperation<'a>, SelectTimeoutError> {
        self.run(SelectWait::For(timeout)).ok_or(SelectTimeoutError)
    }

    /// As [`Select::select`], until `deadline` at the latest.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// If no operation could proceed in time.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    /// use std::time::Instant;
    ///
    /// let (_s, r) = unbounded::<i32>();
    /// let mut sel = Select::new();
    /// sel.recv(&r);
    /// assert!(sel.select_deadline(Instant::now()).is_err());
    /// ```
    pub fn select_deadline(
        &mut self,
        deadline: Instant,
    ) -> Result<SelectedOperation<'a>, SelectTimeoutError> {
        self.run(SelectWait::Until(deadline))
            .ok_or(SelectTimeoutError)
    }

    fn run(&mut self, wait: SelectWait) -> Option<SelectedOperation<'a>> {
        let receives = self.cases.iter().filter(|case| !case.is_send);
        let value = ValueSlot::new(receives.filter_map(|case| case.chan.map(SelectHandle::layout)));
        let picked = select_run::pick(&self.cases, self.is_biased);
        // SAFETY: the slot has room for every receive's value, and does not move before the select
        // has run.
        let run = unsafe { SelectRun::new(&self.cases, self.is_biased, value.room()) };
        let chosen = run.run_any(Some(picked), wait)?;
        let added = self.added[chosen.at];
        Some(SelectedOperation {
            index: added.index,
            operation: Uncompleted::new(&self.cases, chosen),
            value,
            home: added.home,
        })
    }

    /// The index of an operation that would not have to wait now. It may have to wait by the time
    /// it is tried.
    ///
    /// Blocks nothing.
    ///
    /// # Errors
    /// If there is none.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    ///
    /// let (s, r) = unbounded();
    /// let mut sel = Select::new();
    /// let index = sel.recv(&r);
    /// assert!(sel.try_ready().is_err());
    /// s.send(1).unwrap();
    /// assert_eq!(sel.try_ready(), Ok(index));
    /// assert_eq!(r.try_recv(), Ok(1));
    /// ```
    pub fn try_ready(&mut self) -> Result<usize, TryReadyError> {
        self.run_ready(SelectWait::Not).ok_or(TryReadyError)
    }

    /// Waits until an operation would not have to wait; returns its index. Another goroutine may be
    /// faster then, so try the operation without waiting. Blocks the goroutine, or the plain thread
    /// it is called on.
    ///
    /// # Panics
    /// If there is no operation.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    ///
    /// gosched::run(|| {
    ///     let (s, r) = unbounded();
    ///     gosched::go(move || s.send(1).unwrap());
    ///     let mut sel = Select::new();
    ///     let index = sel.recv(&r);
    ///     assert_eq!(sel.ready(), index);
    ///     assert_eq!(r.try_recv(), Ok(1));
    /// });
    /// ```
    pub fn ready(&mut self) -> usize {
        assert!(
            !self.cases.is_empty(),
            "no operations have been added to `Select`"
        );
        match self.run_ready(SelectWait::Forever) {
            Some(index) => index,
            None => unreachable!("a wait without a deadline timed out"),
        }
    }

    /// As [`Select::ready`], for at most `timeout`.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// If no operation was ready in time.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    /// use std::time::Duration;
    ///
    /// let (_s, r) = unbounded::<i32>();
    /// let mut sel = Select::new();
    /// sel.recv(&r);
    /// assert!(sel.ready_timeout(Duration::from_millis(1)).is_err());
    /// ```
    pub fn ready_timeout(&mut self, timeout: Duration) -> Result<usize, ReadyTimeoutError> {
        self.run_ready(SelectWait::For(timeout))
            .ok_or(ReadyTimeoutError)
    }

    /// As [`Select::ready`], until `deadline` at the latest.
    ///
    /// Blocks the goroutine, or the plain thread it is called on.
    ///
    /// # Errors
    /// If no operation was ready in time.
    ///
    /// ```
    /// use gosched::chan::{Select, unbounded};
    /// use std::time::Instant;
    ///
    /// let (_s, r) = unbounded::<i32>();
    /// let mut sel = Select::new();
    /// sel.recv(&r);
    /// assert!(sel.ready_deadline(Instant::now()).is_err());
    /// ```
    pub fn ready_deadline(&mut self, deadline: Instant) -> Result<usize, ReadyTimeoutError> {
        self.run_ready(SelectWait::Until(deadline))
            .ok_or(ReadyTimeoutError)
    }

    fn run_ready(&mut self, wait: SelectWait) -> Option<usize> {
        let at = select_run::run_ready(&self.cases, self.is_biased, wait)?;
        Some(self.added[at].index)
    }
}

impl Default for Select<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Select<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("Select { .. }")
    }
}

/// A chosen operation, to be completed with [`send`](SelectedOperation::send) or
/// [`recv`](SelectedOperation::recv).
///
/// It panics if it is dropped without that. Then the message of a receive is dropped. There is one
/// exception: if another goroutine or thread had added the receive to its [`Select`] the message is
/// leaked, for it might not be `Send`.
///
/// It is neither `Send` nor `Sync`, as crossbeam's.
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<gosched::chan::SelectedOperation<'static>>();
/// ```
///
/// None of its methods blocks: what they need was found when it was chosen. There is one exception.
/// When a runtime is dropped, a send that was chosen by one of its goroutines and is not completed
/// is given up, so that the channel does not wait for it. If the goroutine still runs and completes
/// the send, that is a [`Sender::send`], which may block.
///
/// See the example of [`Select`].
#[must_use = "a selected operation must be completed"]
pub struct SelectedOperation<'a> {
    index: usize,
    operation: Uncompleted<'a>,
    value: ValueSlot,
    home: CaseHome,
}

/// A case that was chosen. Its owner completes it or gives it up.
pub(super) struct Uncompleted<'a> {
    case: Case<'a>,
    /// None: it was completed, or given up.
    chosen: Option<ChosenCase>,
}

impl<'a> Uncompleted<'a> {
    #[inline]
    pub(super) fn new(cases: &[Case<'a>], chosen: ChosenCase) -> Uncompleted<'a> {
        Uncompleted {
            case: cases[chosen.at],
            chosen: Some(chosen),
        }
    }

    /// Completes a send.
    #[inline]
    pub(super) fn send<T>(&mut self, s: &Sender<T>, msg: T) -> Result<(), SendError<T>> {
        assert!(
            self.case.is_send && self.case.is_of(Some(s.chan)),
            "passed a sender that wasn't selected"
        );
        let Some(chosen) = self.chosen.take() else {
            unreachable!("completed twice");
        };
        // SAFETY: D1, the handle keeps its channel alive.
        let chan = unsafe { s.chan.as_ref() };
        chan.complete_send(chosen.promise, chosen.open, msg)
            .map_err(SendError)
    }

    /// Gives it up unless it was completed, and panics then. The value of a receive is in `room`.
    /// `may_drop`: the caller may drop values of the channel.
    #[inline]
    pub(super) fn give_up(&mut self, room: impl FnOnce() -> *mut u8, may_drop: impl Fn() -> bool) {
        if let Some(chosen) = self.chosen.take() {
            self.refuse(chosen, room(), may_drop());
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, chosen: ChosenCase, room: *mut u8, may_drop: bool) {
        if let Some(chan) = self.case.chan {
            match chosen.promise {
                // SAFETY: D1, the value is there, and no other code will take it. The caller added
                // the case, so it had a handle of the channel and may drop values of that type.
                Promise::Value if may_drop => unsafe { chan.drop_value(room) },
                Promise::Value => {} // leaked: it may be not Send
                promise => chan.refuse(promise, chosen.open, may_drop),
            }
        }
        if !std::thread::panicking() {
            panic!("dropped `SelectedOperation` without completing the operation");
        }
    }
}

impl SelectedOperation<'_> {
    /// The index of the operation.
    ///
    /// See the example of [`Select`].
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }

    /// Completes a send.
    ///
    /// # Errors
    /// If the channel is disconnected; the message is in the error.
    ///
    /// # Panics
    /// If another sender was selected.
    ///
    /// See the example of [`Select::send`].
    pub fn send<T>(mut self, s: &Sender<T>, msg: T) -> Result<(), SendError<T>> {
        self.operation.send(s, msg)
    }

    /// Completes a receive.
    ///
    /// # Errors
    /// If the channel is empty and disconnected.
    ///
    /// # Panics
    /// If another receiver was selected.
    ///
    /// See the example of [`Select`].
    pub fn recv<T>(mut self, r: &Receiver<T>) -> Result<T, RecvError> {
        let case = &self.operation.case;
        assert!(
            !case.is_send && case.is_of(r.chan),
            "passed a receiver that wasn't selected"
        );
        match self.operation.chosen.take().map(|chosen| chosen.promise) {
            Some(Promise::Value) => {
                // SAFETY: D1, the select has put a value of this receiver's type there. It is taken
                // once.
                Ok(unsafe { self.value.room().cast::<T>().read() })
            }
            _ => Err(RecvError),
        }
    }
}

impl Drop for SelectedOperation<'_> {
    fn drop(&mut self) {
        let (value, home) = (&self.value, self.home);
        self.operation.give_up(|| value.room(), || home.is_here());
    }
}

impl fmt::Debug for SelectedOperation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad("SelectedOperation { .. }")
    }
}
