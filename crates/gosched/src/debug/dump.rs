//! A dump: every goroutine of a runtime, readable.
//!
//! It is taken in three steps, because nothing may be allocated while the world is stopped (D9):
//!
//! 1. Buffers are made, and the caller unwinds its own stack.
//! 2. The world stops, and `collect` copies the goroutines.
//! 3. The world runs again, and symbols are looked up in the caller's context, where allocating is
//!    allowed.

use std::borrow::Cow;
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

use super::collect::{Heading, Record, Snapshot, View};
use super::symbols::{Frame, Symbols, with_room};
use crate::debug::goroutine_state::{GoroutineState, WaitState};
use crate::debug::wait_target::WaitTarget;
use crate::sched::Sched;
use crate::sched::model::current::current_g;
use crate::sched::model::switch;
use crate::sched::model::switch::Probe;
use crate::sched::model::wait_reason::wait_reason_texts;
use crate::sched::park::enter;
use crate::sys;

/// The goroutines of a runtime at one moment: what [`debug::dump`](crate::debug::dump) returns.
///
/// Displays as Go's traces do: the calling goroutine first, and a blank line between two
/// goroutines.
///
/// None of its methods blocks.
///
/// ```
/// gosched::run(|| {
///     let dump = gosched::debug::dump();
///     assert_eq!(dump.goroutines().len(), 1);
///     assert!(dump.to_string().starts_with("goroutine 1 [running] {name: main}:\n"));
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Dump {
    goroutines: Vec<Goroutine>,
    elided: usize,
}

/// One goroutine in a [`Dump`].
///
/// None of its methods blocks.
///
/// ```
/// gosched::run(|| {
///     let dump = gosched::debug::dump();
///     let main = &dump.goroutines()[0];
///     assert_eq!((main.id(), main.name(), main.state()), (1, Some("main"), "running"));
///     assert_eq!((main.wait_reason(), main.parent()), (None, None));
///     assert!(!main.is_locked());
///     assert!(main.spawned_at().is_some());
///     assert!(!main.frames().is_empty());
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Goroutine {
    id: u64,
    name: Option<Box<str>>,
    state: GoroutineState,
    wait_reason: Option<Cow<'static, str>>,
    blocked_in: Option<Box<str>>,
    waited: Duration,
    parent: Option<u64>,
    parent_name: Option<Box<str>>,
    site: Option<&'static Location<'static>>,
    is_locked: bool,
    is_on_another_stack: bool,
    waits_for: Option<u64>,
    targets: Box<[WaitTarget]>,
    runtime: u32,
    view: View,
    frames: Arc<[Frame]>,
}

impl Dump {
    /// The goroutines: the caller first, the others by id.
    ///
    /// See the example of [`Dump`].
    #[must_use]
    pub fn goroutines(&self) -> &[Goroutine] {
        &self.goroutines
    }
}

impl Goroutine {
    /// The goroutine's id; the first goroutine of a runtime has 1.
    ///
    /// See the example of [`Goroutine`].
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The goroutine's name, if it was given one.
    ///
    /// See the example of [`Goroutine`].
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// The goroutine's state:
    ///
    /// - `"running"`, also if it is preempted, or runs without a processor after a call;
    /// - `"runnable"`;
    /// - `"waiting"`;
    /// - `"syscall"`: in a call of [`blocking`](crate::blocking), or found blocked;
    /// - `"leaked"`: waiting, and the last [`leaks`](crate::debug::leaks) found that nothing can
    ///   wake it;
    /// - or another of the scheduler's states.
    ///
    /// See the example of [`Goroutine`].
    #[must_use]
    pub fn state(&self) -> &str {
        self.state.state()
    }

    /// Whether the goroutine was interrupted in the middle of its code and waits on its thread for
    /// a processor. A dump interrupts every goroutine that computes.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    /// static STOP: AtomicBool = AtomicBool::new(false);
    /// fn compute() {
    ///     while !STOP.load(Relaxed) {}
    /// }
    /// gosched::run(|| {
    ///     let hog = gosched::thread::spawn(compute);
    ///     let dump = loop {
    ///         gosched::thread::sleep(std::time::Duration::from_millis(10));
    ///         let dump = gosched::debug::dump();
    ///         if dump.goroutines()[1].is_preempted() {
    ///             break dump;
    ///         }
    ///     };
    ///     assert_eq!(dump.goroutines()[1].state(), "running");
    ///     assert!(dump.to_string().contains("[running, preempted]"));
    ///     println!("{dump}"); // `compute` is in it
    ///     # STOP.store(true, Relaxed);
    ///     # hog.join().unwrap();
    /// });
    /// ```
    #[must_use]
    pub fn is_preempted(&self) -> bool {
        self.state == GoroutineState::Preempted
    }

    /// Where in the kernel the goroutine's thread sleeps, if it has lost its processor for that:
    ///
    /// - the name of a system call, such as `"futex"`;
    /// - `"system call 463"`, if this library has no name for it;
    /// - `"the kernel"` outside of system calls, as in a page fault.
    ///
    /// None in calls of [`blocking`](crate::blocking).
    ///
    /// ```
    /// gosched::run(|| {
    ///     let (send, receive) = std::sync::mpsc::channel::<()>();
    ///     let blocked = gosched::thread::spawn(move || receive.recv());
    ///     let dump = loop {
    ///         gosched::thread::sleep(std::time::Duration::from_millis(10));
    ///         let dump = gosched::debug::dump();
    ///         if dump.goroutines()[1].blocked_in() == Some("futex") {
    ///             break dump;
    ///         }
    ///     };
    ///     assert_eq!(dump.goroutines()[1].state(), "syscall");
    ///     assert!(dump.to_string().contains("[blocked in futex]"));
    ///     # drop(send);
    ///     # blocked.join().unwrap().unwrap_err();
    /// });
    /// ```
    #[must_use]
    pub fn blocked_in(&self) -> Option<&str> {
        self.blocked_in.as_deref()
    }

    /// Why the goroutine waits, if it does: one of these texts. A select has its number of cases
    /// added, as in `"select (3 cases)"`.
    #[doc = wait_reason_texts!()]
    ///
    /// ```
    /// gosched::run(|| {
    ///     let (_s, r) = gosched::chan::bounded::<i32>(3);
    ///     gosched::go(move || assert!(r.recv().is_ok()));
    ///     let dump = loop {
    ///         gosched::yield_now();
    ///         let dump = gosched::debug::dump();
    ///         if dump.goroutines()[1].wait_reason() == Some("chan receive") {
    ///             break dump;
    ///         }
    ///     };
    ///     assert!(dump.to_string().contains("(capacity 3, 0 queued, 1 sender, 1 receiver)"));
    /// });
    /// ```
    #[must_use]
    pub fn wait_reason(&self) -> Option<&str> {
        self.wait_reason.as_deref()
    }

    /// Whether the goroutine waits and nothing can ever wake it, as the last
    /// [`leaks`](crate::debug::leaks) found.
    ///
    /// See the example of [`Leaks`](crate::debug::Leaks).
    #[must_use]
    pub fn is_leaked(&self) -> bool {
        self.state.wait().is_some_and(|wait| wait.is_leaked)
    }

    /// How long the goroutine has been waiting, to about 10 ms; zero if it does not wait.
    ///
    /// See the example of [`Goroutine`].
    #[must_use]
    pub fn waiting_for(&self) -> Duration {
        self.waited
    }

    /// The goroutine that this one waits for, where the runtime knows: the goroutine that it joins,
    /// or the holder of the lock.
    ///
    /// ```
    /// gosched::run(|| {
    ///     let worker = gosched::thread::spawn(gosched::thread::park);
    ///     let worker_id = worker.thread().id().goroutine().unwrap().get();
    ///     let parked = worker.thread().clone();
    ///     let joiner = gosched::thread::spawn(move || worker.join().unwrap());
    ///     let joiner_id = joiner.thread().id().goroutine().unwrap().get();
    ///     let waits_for = loop {
    ///         gosched::yield_now();
    ///         let dump = gosched::debug::dump();
    ///         let found = dump.goroutines().iter().find(|g| g.id() == joiner_id);
    ///         if let Some(id) = found.unwrap().waits_for() {
    ///             break id;
    ///         }
    ///     };
    ///     assert_eq!(waits_for, worker_id);
    ///     # parked.unpark();
    ///     # joiner.join().unwrap();
    /// });
    /// ```
    #[must_use]
    pub fn waits_for(&self) -> Option<u64> {
        self.waits_for
    }

    /// The goroutine that started this one; None if a thread outside the runtime did.
    ///
    /// See the example of [`Goroutine`].
    #[must_use]
    pub fn parent(&self) -> Option<u64> {
        self.parent
    }

    /// Where the goroutine was started.
    ///
    /// See the example of [`Goroutine`].
    #[must_use]
    pub fn spawned_at(&self) -> Option<&'static Location<'static>> {
        self.site
    }

    /// Whether the goroutine is locked to its thread; see
    /// [`lock_os_thread`](crate::lock_os_thread).
    ///
    /// See the example of [`Goroutine`].
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Whether the goroutine had switched to another stack than the runtime's, with `stacker`,
    /// `psm` or a coroutine. Its frames on both stacks are shown if the code that switched stacks
    /// describes itself to unwinders.
    ///
    /// ```
    /// gosched::run(|| {
    ///     assert!(!gosched::debug::dump().goroutines()[0].is_on_another_stack());
    ///     stacker::grow(1 << 20, || {
    ///         assert!(gosched::debug::dump().goroutines()[0].is_on_another_stack());
    ///     });
    /// });
    /// ```
    #[must_use]
    pub fn is_on_another_stack(&self) -> bool {
        self.is_on_another_stack
    }

    /// The goroutine's stack, innermost first, without the runtime's own frames. Empty if it has
    /// not run yet or is in a system call.
    ///
    /// See the example of [`Goroutine`].
    #[must_use]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// The readable form of a record of `snapshot`. In user context: allocates.
    pub(super) fn new(snapshot: &Snapshot, record: &Record, symbols: &mut Symbols) -> Goroutine {
        let named = |id: u64| snapshot.records().binary_search_by_key(&id, |r| r.id).ok();
        let parent = named(record.parent).map(|at| &snapshot.records()[at]);
        Goroutine {
            id: record.id,
            name: snapshot.name(record).map(Box::from),
            state: record.state,
            wait_reason: record.state.wait().map(WaitState::text),
            blocked_in: record.state.blocked_in().map(|at| at.to_string().into()),
            waited: Duration::from_millis(record.waited_ms.into()),
            parent: (record.parent != 0).then_some(record.parent),
            parent_name: parent.and_then(|p| snapshot.name(p)).map(Box::from),
            site: record.site,
            is_locked: record.is_locked,
            is_on_another_stack: record.is_on_another_stack,
            waits_for: None,
            targets: snapshot.targets(record).into(),
            runtime: snapshot.runtime,
            view: record.view,
            frames: match snapshot.pcs(record) {
                [] => Arc::new([]),
                pcs => symbols.stack(pcs),
            },
        }
    }
}

impl Goroutine {
    /// The same with other frames.
    pub(super) fn with_frames(self, frames: Vec<Frame>) -> Goroutine {
        Goroutine {
            frames: frames.into(),
            ..self
        }
    }
}

/// A dump of `sched`, from any thread, in user context.
pub(crate) fn dump_of(sched: &Sched) -> Dump {
    let snapshot = take(sched);
    with_room(|| Dump::new(&snapshot, true)).unwrap_or_else(|| Dump::new(&snapshot, false))
}

#[inline(never)]
fn take(sched: &Sched) -> Snapshot {
    let mut snapshot = Snapshot::new();
    crate::sys::objects::prepare();
    // This may be the unwinder's first use, in which it initialises itself.
    let mut stack = Probe::new();
    switch::backtrace_here(&mut stack);
    if sched.dead.load(Acquire) {
        return snapshot; // a dropped runtime: its world cannot be stopped
    }
    let rt = enter();
    let outstanding = sched.blocks.outstanding();
    drop(rt);
    snapshot.reserve(outstanding);
    let caller = current_g().filter(|g| ptr::eq(g.sched(), sched));
    let caller = caller.map(|g| (g, &stack));
    let Some(stopped) = sched.stop_the_world() else {
        return snapshot;
    };
    sched.update_clock(sys::monotonic_ns());
    switch::systemstack(|| snapshot.collect(sched, caller, usize::MAX, true));
    drop(stopped);
    snapshot
}

impl Dump {
    /// The readable form. Without `symbolise` the frames are addresses: there is neither stack nor
    /// thread for a symboliser.
    fn new(snapshot: &Snapshot, symbolise: bool) -> Dump {
        let mut symbols = if symbolise {
            Symbols::default()
        } else {
            Symbols::addresses_only()
        };
        let records = snapshot.records();
        let mut goroutines: Vec<_> = records
            .iter()
            .map(|record| Goroutine::new(snapshot, record, &mut symbols))
            .collect();
        name_awaited(&mut goroutines, records);
        if let Some(caller) = records.iter().position(|r| r.is_caller) {
            goroutines[..=caller].rotate_right(1);
        }
        Dump {
            goroutines,
            elided: snapshot.elided,
        }
    }
}

/// Fills in which goroutine each join and each wait for a lock waits for. `goroutines` and
/// `records` are in the same order.
pub(super) fn name_awaited(goroutines: &mut [Goroutine], records: &[Record]) {
    let mut by_inner: Vec<_> = records.iter().filter(|r| r.inner != 0).collect();
    by_inner.sort_unstable_by_key(|r| r.inner);
    for (goroutine, record) in goroutines.iter_mut().zip(records) {
        let found = record
            .join_target()
            .and_then(|target| by_inner.binary_search_by_key(&target, |r| r.inner).ok());
        let holder = |target: &WaitTarget| target.holder_in(goroutine.runtime);
        goroutine.waits_for = found
            .map(|at| by_inner[at].id)
            .or_else(|| goroutine.targets.iter().find_map(holder));
    }
}

impl fmt::Display for Goroutine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = Heading {
            id: self.id,
            state: self.state,
            minutes: self.waited.as_secs() / 60,
            is_locked: self.is_locked,
            is_on_another_stack: self.is_on_another_stack,
            name: self.name(),
        };
        writeln!(f, "{head}:")?;
        match self.view {
            View::Whole | View::Cut => {}
            View::NotStarted => writeln!(f, "(not started)")?,
            View::Elsewhere if self.state.is_in_call() => {
                writeln!(f, "\t(in a system call; stack unavailable)")?;
            }
            View::Elsewhere => {
                writeln!(f, "\tgoroutine running on other thread; stack unavailable")?;
            }
            View::NoRoom => writeln!(f, "\t(no room left on its stack to unwind it)")?,
            View::Left => writeln!(f, "\t(stack not taken: there are too many)")?,
        }
        for frame in self.frames() {
            writeln!(f, "{frame}")?;
        }
        if self.view == View::Cut {
            writeln!(f, "...additional frames elided...")?;
        }
        for target in &self.targets {
            writeln!(f, "{}", target.line(self.runtime))?;
        }
        if let (Some(id), true) = (self.waits_for, self.targets.is_empty()) {
            writeln!(f, "waits for goroutine {id}")?;
        }
        self.fmt_origin(f)
    }
}

impl Goroutine {
    fn fmt_origin(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(site) = self.site else { return Ok(()) };
        let (file, line) = (site.file(), site.line());
        match (self.parent, self.parent_name.as_deref()) {
            (Some(id), Some(name)) => {
                writeln!(f, "created by {name} in goroutine {id} at {file}:{line}")
            }
            (Some(id), None) => writeln!(f, "created in goroutine {id} at {file}:{line}"),
            (None, _) => writeln!(f, "created outside the runtime at {file}:{line}"),
        }
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, goroutine) in self.goroutines.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{goroutine}")?;
        }
        if self.elided > 0 {
            writeln!(f, "\n...{} goroutines elided...", self.elided)?;
        }
        Ok(())
    }
}
