//! Copies the goroutines of a runtime, with the addresses on every stack, into pages made for it:
//! the first half of a dump.
//!
//! It is apart from the second half because nothing here allocates from malloc or runs user code.
//! So it works while the world is stopped and in a fatal error. A goroutine that is off its stack
//! unwinds itself when asked (`switch::Probe`). These can be asked:
//!
//! ```text
//!  Waiting, Leaked      always: the Scan bit keeps every M from resuming it (G6)
//!  Runnable, started    only while the world is stopped: otherwise an M may be about to run it,
//!                       or be preparing its first frame
//!  preempted            only while the world is stopped: its thread, which waits with it, unwinds
//!                       itself (`monitor/self_unwind.rs`)
//!  the caller itself    has unwound itself beforehand
//!  any other            never
//! ```

use std::fmt;
use std::panic::Location;
use std::sync::atomic::Ordering::Relaxed;

use crate::debug::goroutine_state::{GoroutineState, waiting_thread};
use crate::debug::wait_target;
use crate::debug::wait_target::WaitTarget;
use crate::sched::Sched;
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::Gp;
use crate::sched::model::switch::{FRAMES_MAX, Probe};
use crate::sched::model::wait_reason::WaitClass;
use crate::sched::model::watch::self_unwind;
use crate::sched::waiting::handle::Inner;
use crate::sys::PageVec;

/// Frames that a stack is expected to have, for the size of the buffers.
const FRAMES_TYPICAL: usize = 24;
/// Goroutines that may be started between the estimate and the moment in which the world stops.
const SLACK: usize = 1024;

/// A part of one of the snapshot's arrays.
#[derive(Clone, Copy, Default)]
struct Span {
    start: usize,
    len: usize,
}

impl Span {
    fn of<T: Copy>(self, all: &PageVec<T>) -> &[T] {
        &all.as_slice()[self.start..self.start + self.len]
    }
}

/// What the dump has of a goroutine's stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum View {
    /// All addresses.
    Whole,
    /// The innermost addresses: it has more frames than are kept.
    Cut,
    /// Nothing: it has not run yet and has no stack.
    NotStarted,
    /// Nothing: it is running, in a call, or could not be held.
    Elsewhere,
    /// Nothing: too little of its stack is left to unwind in.
    NoRoom,
    /// Nothing: the stacks of enough other goroutines were taken.
    Left,
}

/// One goroutine.
#[derive(Clone, Copy)]
pub(super) struct Record {
    pub(super) id: u64,
    pub(super) parent: u64,
    pub(super) state: GoroutineState,
    pub(super) waited_ms: u32,
    pub(super) site: Option<&'static Location<'static>>,
    pub(super) is_locked: bool,
    /// Not on the stack that the runtime gave it.
    pub(super) is_on_another_stack: bool,
    pub(super) is_caller: bool,
    pub(super) view: View,
    /// The addresses of its `Inner` and of the argument of its wait. A join finds by these which
    /// goroutine it waits for.
    pub(super) inner: usize,
    wait_arg: usize,
    /// What it waits on.
    targets: Span,
    name: Option<Span>,
    pcs: Span,
}

impl Record {
    /// The address of the `Inner` of the goroutine that this one joins. The argument of a join's
    /// wait is the slot in the packet of that goroutine, right behind the `Inner`.
    pub(super) fn join_target(&self) -> Option<usize> {
        let wait = self.state.wait().filter(|_| self.wait_arg != 0)?;
        (wait.reason.class() == WaitClass::End)
            .then(|| self.wait_arg.wrapping_sub(size_of::<Inner>()))
    }
}

/// The goroutines of a runtime, as they were at one moment.
pub(super) struct Snapshot {
    gs: PageVec<Gp>,
    records: PageVec<Record>,
    pcs: PageVec<usize>,
    names: PageVec<u8>,
    targets: PageVec<WaitTarget>,
    /// The number of the runtime.
    pub(super) runtime: u32,
    /// How many more stacks may be taken.
    stacks_left: usize,
    /// Goroutines that are not in `records`: beyond the limit, or without memory for them.
    pub(super) elided: usize,
}

impl Snapshot {
    pub(super) const fn new() -> Snapshot {
        Snapshot {
            gs: PageVec::new(),
            records: PageVec::new(),
            pcs: PageVec::new(),
            names: PageVec::new(),
            targets: PageVec::new(),
            runtime: 0,
            stacks_left: usize::MAX,
            elided: 0,
        }
    }

    /// Makes the buffers about large enough, so that the stopped world does not wait for pages. A
    /// failure is no error: the buffers grow when they must.
    pub(super) fn reserve(&mut self, goroutines: usize) {
        let n = goroutines + SLACK;
        let _ = self.gs.reserve(n);
        let _ = self.records.reserve(n);
        let _ = self.pcs.reserve(n * FRAMES_TYPICAL);
    }

    /// Takes at most `limit` goroutines of `sched`, in the order of their ids. `caller` is the
    /// calling goroutine with its own stack.
    pub(super) fn collect(
        &mut self,
        sched: &Sched,
        caller: Option<(Gp, &Probe)>,
        limit: usize,
        is_stopped: bool,
    ) {
        self.list(sched, |status| {
            !matches!(status, Status::Dead | Status::Idle)
        });
        let mut probe = Probe::new();
        for at in 0..self.gs.len() {
            let g = self.gs.as_slice()[at];
            let own = caller.filter(|(caller, _)| *caller == g);
            // The caller is always shown, whatever the limit.
            if self.records.len() >= limit && own.is_none() {
                self.elided += 1;
                continue;
            }
            let own = own.map(|(_, stack)| stack);
            self.add(sched, g, own, &mut probe, is_stopped);
        }
    }

    /// Takes the goroutines that the leak check has marked, with at most `stacks_max` stacks. The
    /// world is stopped.
    pub(super) fn collect_leaked(&mut self, sched: &Sched, stacks_max: usize) {
        self.list(sched, |status| status == Status::Leaked);
        self.stacks_left = stacks_max;
        let mut probe = Probe::new();
        for at in 0..self.gs.len() {
            let g = self.gs.as_slice()[at];
            self.add(sched, g, None, &mut probe, true);
        }
    }

    /// Lists the goroutines in the wanted states, in the order of their ids.
    fn list(&mut self, sched: &Sched, wanted: impl Fn(Status) -> bool) {
        self.runtime = sched.id;
        let (gs, elided) = (&mut self.gs, &mut self.elided);
        sched.blocks.for_each(|g| {
            if wanted(g.status.get()) && gs.push(g).is_err() {
                *elided += 1;
            }
        });
        gs.as_mut_slice().sort_unstable_by_key(|g| g.id());
    }

    fn add(
        &mut self,
        sched: &Sched,
        g: Gp,
        own: Option<&Probe>,
        probe: &mut Probe,
        is_stopped: bool,
    ) {
        let held = if own.is_some() {
            None
        } else {
            hold(g, is_stopped)
        };
        let status = held.unwrap_or_else(|| g.status.get());
        let is_ended = matches!(status, Status::Dead | Status::Idle);
        let what = match own {
            _ if !is_stopped => GoroutineState::plain(g, status),
            Some(_) => GoroutineState::Is(Status::Running), // with or without a P
            None => GoroutineState::in_stopped_world(sched, g, status),
        };
        let mut record = Record::of(g, what, sched.coarse_ms());
        if own.is_some() || held.is_some() || is_stopped {
            // The goroutine cannot end meanwhile, so its `Inner` stays.
            record.name = g
                .name()
                .and_then(|name| append(&mut self.names, name.as_bytes()));
            record.inner = g.inner().map_or(0, |inner| inner.as_ptr() as usize);
        }
        if matches!(held, Some(Status::Waiting | Status::Leaked)) {
            record.wait_arg = g.wait_address();
            let start = self.targets.len();
            // SAFETY: G6, `hold` has set the Scan bit over Waiting or Leaked, so the goroutine
            // stays asleep.
            let cases = unsafe { wait_target::collect(g, &mut self.targets) };
            record.state = record.state.with_cases(cases);
            record.targets = Span {
                start,
                len: self.targets.len() - start,
            };
        }
        record.is_caller = own.is_some();
        record.view = match own {
            Some(stack) => self.add_pcs(&mut record, g, stack),
            None if g.started.load(Relaxed) == 0 => View::NotStarted,
            None if what == GoroutineState::Preempted => self.ask_thread(&mut record, g),
            None if held.is_none() => View::Elsewhere,
            None if self.stacks_left == 0 => View::Left,
            None => {
                self.stacks_left -= 1;
                // SAFETY: G6, `hold` has set the Scan bit over a state in which the goroutine is
                // off its stack, and the goroutine has run before. So it waits in `suspend` for a
                // command, and no M resumes it.
                unsafe { probe.collect(g) };
                self.add_pcs(&mut record, g, probe)
            }
        };
        if let Some(status) = held {
            g.status.end_scan(status);
        }
        if !is_ended && self.records.push(record).is_err() {
            self.elided += 1;
        }
    }

    /// Adds the stack of a goroutine that waits on its thread. The world is stopped.
    fn ask_thread(&mut self, record: &mut Record, g: Gp) -> View {
        let mut view = View::Elsewhere;
        if let Some(m) = waiting_thread(g) {
            self_unwind::ask(m, |stack| view = self.add_pcs(record, g, stack));
        }
        view
    }

    fn add_pcs(&mut self, record: &mut Record, g: Gp, stack: &Probe) -> View {
        record.is_on_another_stack = stack.sp != 0 && !g.is_own_stack(stack.sp);
        let pcs = &stack.pcs[..stack.len];
        match append(&mut self.pcs, pcs) {
            Some(_) if pcs.is_empty() => View::NoRoom,
            Some(span) => {
                record.pcs = span;
                if pcs.len() < FRAMES_MAX {
                    View::Whole
                } else {
                    View::Cut
                }
            }
            None => View::NoRoom,
        }
    }

    pub(super) fn records(&self) -> &[Record] {
        self.records.as_slice()
    }

    /// The return addresses on its stack, innermost first.
    pub(super) fn pcs(&self, record: &Record) -> &[usize] {
        record.pcs.of(&self.pcs)
    }

    /// What it waits on.
    pub(super) fn targets(&self, record: &Record) -> &[WaitTarget] {
        record.targets.of(&self.targets)
    }

    pub(super) fn name(&self, record: &Record) -> Option<&str> {
        let bytes = record.name?.of(&self.names);
        std::str::from_utf8(bytes).ok()
    }

    /// The first line of the goroutine's entry, without the colon.
    pub(super) fn heading(&self, record: &Record) -> Heading<'_> {
        Heading {
            id: record.id,
            state: record.state,
            minutes: u64::from(record.waited_ms) / 60_000,
            is_locked: record.is_locked,
            is_on_another_stack: record.is_on_another_stack,
            name: self.name(record),
        }
    }
}

/// Holds a goroutine that is off its stack there, by the Scan bit. Returns the state it is held in,
/// or None.
fn hold(g: Gp, is_stopped: bool) -> Option<Status> {
    for status in [Status::Waiting, Status::Leaked] {
        if g.status.begin_scan(status) {
            return Some(status);
        }
    }
    // A goroutine with an M waits on its thread, or is about to: it has not left its stack.
    let may_be_runnable = is_stopped && g.has_started() && g.boundm().is_none();
    (may_be_runnable && g.status.begin_scan(Status::Runnable)).then_some(Status::Runnable)
}

/// Copies `items` to the end; None without memory.
fn append<T: Copy>(all: &mut PageVec<T>, items: &[T]) -> Option<Span> {
    let start = all.len();
    all.reserve(items.len()).ok()?;
    for item in items {
        all.push(*item).ok()?;
    }
    Some(Span {
        start,
        len: items.len(),
    })
}

impl Record {
    fn of(g: Gp, state: GoroutineState, now_ms: u32) -> Record {
        let is_waiting = state.wait().is_some();
        Record {
            id: g.id(),
            parent: g.parent.load(Relaxed),
            state,
            waited_ms: if is_waiting {
                elapsed_ms(g.wait_since.load(Relaxed), now_ms)
            } else {
                0
            },
            site: g.site.get(),
            is_locked: g.lockedm.load(Relaxed).is_some(),
            is_on_another_stack: false,
            is_caller: false,
            view: View::Elsewhere,
            inner: 0,
            wait_arg: 0,
            targets: Span::default(),
            name: None,
            pcs: Span::default(),
        }
    }
}

/// The time since `since` on the coarse clock. That clock wraps after 49 days and may step back a
/// little when two threads set it.
fn elapsed_ms(since: u32, now: u32) -> u32 {
    const STEP_BACK_MS: u32 = 60_000;
    let elapsed = now.wrapping_sub(since);
    if elapsed > u32::MAX - STEP_BACK_MS {
        0
    } else {
        elapsed
    }
}

/// `goroutine 18 [park, 5 minutes, locked to thread] {name: worker}`
pub(super) struct Heading<'a> {
    pub(super) id: u64,
    pub(super) state: GoroutineState,
    pub(super) minutes: u64,
    pub(super) is_locked: bool,
    pub(super) is_on_another_stack: bool,
    pub(super) name: Option<&'a str>,
}

impl fmt::Display for Heading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "goroutine {} [{}", self.id, self.state)?;
        if self.minutes > 0 {
            write!(f, ", {} minutes", self.minutes)?;
        }
        if self.is_locked {
            f.write_str(", locked to thread")?;
        }
        if self.is_on_another_stack {
            f.write_str(", on another stack")?;
        }
        f.write_str("]")?;
        match self.name {
            Some(name) => write!(f, " {{name: {name}}}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::debug::goroutine_state::WaitState;
    use crate::sched::model::wait_reason::WaitReason;

    #[test]
    fn heads_read_as_in_go() {
        let head = |minutes, is_locked, name| Heading {
            id: 18,
            state: GoroutineState::Waits(WaitState {
                reason: WaitReason::Park,
                cases: 0,
                is_leaked: false,
            }),
            minutes,
            is_locked,
            is_on_another_stack: minutes == 7,
            name,
        };
        assert_eq!(head(0, false, None).to_string(), "goroutine 18 [park]");
        assert_eq!(
            head(5, true, Some("worker")).to_string(),
            "goroutine 18 [park, 5 minutes, locked to thread] {name: worker}"
        );
        assert_eq!(
            head(7, false, None).to_string(),
            "goroutine 18 [park, 7 minutes, on another stack]"
        );
    }

    #[test]
    fn the_coarse_clock_wraps_and_steps_back() {
        assert_eq!(elapsed_ms(5, 1005), 1000);
        assert_eq!(elapsed_ms(u32::MAX - 9, 90), 100);
        assert_eq!(elapsed_ms(1000, 990), 0);
        assert_eq!(elapsed_ms(0, 40 * 86_400_000), 40 * 86_400_000);
    }

    #[test]
    fn spans_keep_what_was_appended() {
        let mut all = PageVec::new();
        let first = append(&mut all, b"ab").expect("memory");
        let second = append(&mut all, b"cde").expect("memory");
        assert_eq!((first.of(&all), second.of(&all)), (&b"ab"[..], &b"cde"[..]));
    }
}
