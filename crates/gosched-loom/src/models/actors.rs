//! The threads of the models of channels, and what they send.

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Once};
use std::time::Duration;

use loom::thread::{self, JoinHandle};

use super::Calm;
use crate::chan::{Receiver, Select, SelectedOperation, Sender, bounded, unbounded};
use crate::current::run_as;
use crate::sched::model::g::G;
use crate::sched::teardown::Abandoned;
use crate::shim::Cell;

/// Any time; the model decides when it has passed.
pub(super) const SOON: Duration = Duration::from_secs(1);

/// A message. The thread that has it must be ordered after its maker (U10), and be alone with it.
pub(super) struct Msg(Box<Cell<u32>>);

// SAFETY: loom reports every run in which two accesses to the field are not ordered.
unsafe impl Send for Msg {}

impl Msg {
    pub(super) fn new(number: u32) -> Msg {
        Msg(Box::new(Cell::new(number)))
    }

    /// Its number. The message is dropped.
    pub(super) fn open(self) -> u32 {
        self.0.replace(u32::MAX)
    }
}

pub(super) type Tx = Calm<Sender<Msg>>;
pub(super) type Rx = Calm<Receiver<Msg>>;

/// A channel with room for `cap` messages; None: for any number.
pub(super) fn channel(cap: Option<usize>) -> (Tx, Rx) {
    let (s, r) = match cap {
        Some(cap) => bounded(cap),
        None => unbounded(),
    };
    (Calm::new(s), Calm::new(r))
}

/// A thread of a model.
pub(super) struct Actor<T> {
    thread: JoinHandle<T>,
    /// Kept until it has ended.
    _g: Option<Arc<G>>,
}

impl<T> Actor<T> {
    pub(super) fn join(self) -> T {
        self.thread.join().unwrap()
    }
}

/// A plain thread.
pub(super) fn plain<T: 'static>(f: impl FnOnce() -> T + 'static) -> Actor<T> {
    Actor {
        thread: thread::spawn(f),
        _g: None,
    }
}

/// A goroutine.
pub(super) fn go<T: 'static>(f: impl FnOnce() -> T + 'static) -> Actor<T> {
    let g = Arc::new(G::new());
    Actor {
        _g: Some(g.clone()),
        thread: thread::spawn(move || run_as(&g, f)),
    }
}

/// A goroutine of a runtime that ends; None: it was abandoned.
pub(super) fn go_in<T: 'static>(g: &Arc<G>, f: impl FnOnce() -> T + 'static) -> Actor<Option<T>> {
    let own = g.clone();
    Actor {
        _g: Some(g.clone()),
        thread: thread::spawn(move || {
            match panic::catch_unwind(AssertUnwindSafe(|| run_as(&own, f))) {
                Ok(value) => Some(value),
                Err(payload) if payload.is::<Abandoned>() => None,
                Err(payload) => panic::resume_unwind(payload),
            }
        }),
    }
}

/// Starts an actor: a plain thread or a goroutine.
pub(super) type Start = fn(Box<dyn FnOnce() -> u32>) -> Actor<u32>;

pub(super) const PLAIN: Start = |f| plain(f);
pub(super) const GO: Start = |f| go(f);

/// A select's sender makes its message when its case has been chosen. Returns whether it was sent.
pub(super) fn select_send(s: &Sender<Msg>, number: u32) -> bool {
    let mut select = Select::new();
    select.send(s);
    select.select().send(s, Msg::new(number)).is_ok()
}

/// As [`select_send`], but without a message: what was promised to the case is given back.
pub(super) fn select_give_up(s: &Sender<Msg>) {
    let mut select = Select::new();
    select.send(s);
    give_up(select.select());
}

/// Does not complete an operation that was chosen.
pub(super) fn give_up(oper: SelectedOperation<'_>) {
    // An operation that is not completed panics, after all that is explored here.
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let loud = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let text = info.payload_as_str().unwrap_or_default();
            if !text.starts_with("dropped `SelectedOperation`") {
                loud(info);
            }
        }));
    });
    assert!(panic::catch_unwind(AssertUnwindSafe(|| drop(oper))).is_err());
}
