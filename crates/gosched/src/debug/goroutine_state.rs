//! What a goroutine is doing, in the words of a dump.
//!
//! A dump shows more than the scheduler's states:
//!
//! ```text
//!  shown                         the scheduler's state             where it comes from
//!  running, runnable, …          the one shown                     its status
//!  park, select (2 cases), …     Waiting                           its wait reason; the number
//!                                                                  of cases is in its waiter
//!  park (leaked), …              Leaked, by the last leak check    as for Waiting
//!  running, preempted            Runnable, on its own thread (D7)  the M that waits with it
//!  syscall                       Syscall, in a marked call (SY)    the M's claim word
//!  blocked in futex              Syscall, its P was taken (D8)     the kernel's thread state
//!  running, without a processor  Syscall, its P was taken, and it  the kernel's thread state
//!                                has returned from the call
//! ```
//!
//! Only the first three are shown while the world runs. The others need locks, or would have
//! changed before they are shown.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use crate::sched::Sched;
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::{Gp, Mp};
use crate::sched::model::wait_reason::{WaitClass, WaitReason};
use crate::sys;
use crate::sys::Doing;

/// What a goroutine is doing; the module has the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GoroutineState {
    Is(Status),
    Waits(WaitState),
    Preempted,
    /// With the number of the system call; -1 in the kernel outside of a call, as in a page fault.
    Blocked(i64),
    Stray,
}

/// How a goroutine waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WaitState {
    pub(super) reason: WaitReason,
    /// The number of cases of a select; 0: not known.
    pub(super) cases: u32,
    /// The last leak check found that nothing can wake it.
    pub(super) is_leaked: bool,
}

impl WaitState {
    /// As in `chan receive`, `select (3 cases)`, without the mark of a leak.
    pub(super) fn text(self) -> Cow<'static, str> {
        let unmarked = WaitState {
            is_leaked: false,
            ..self
        };
        match self.reason.class() {
            WaitClass::Select => unmarked.to_string().into(),
            _ => self.reason.name().into(),
        }
    }
}

impl fmt::Display for WaitState {
    /// Allocates nothing: the report of a fatal error uses it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.name())?;
        match (self.reason.class(), self.cases) {
            (WaitClass::Select, 1) => f.write_str(" (1 case)")?,
            (WaitClass::Select, 2..) => write!(f, " ({} cases)", self.cases)?,
            _ => {}
        }
        match self.is_leaked {
            true => f.write_str(" (leaked)"),
            false => Ok(()),
        }
    }
}

impl GoroutineState {
    /// As far as the goroutine's own fields show it. `status` is its status.
    pub(super) fn plain(g: Gp, status: Status) -> GoroutineState {
        match status {
            Status::Waiting | Status::Leaked => GoroutineState::Waits(WaitState {
                reason: g.wait_reason(),
                cases: 0,
                is_leaked: status == Status::Leaked,
            }),
            status => GoroutineState::Is(status),
        }
    }

    /// The same state with the number of a select's cases.
    pub(super) fn with_cases(self, cases: u32) -> GoroutineState {
        match self {
            GoroutineState::Waits(wait) => GoroutineState::Waits(WaitState { cases, ..wait }),
            what => what,
        }
    }

    /// How the goroutine waits, if it does.
    pub(super) fn wait(self) -> Option<WaitState> {
        match self {
            GoroutineState::Waits(wait) => Some(wait),
            _ => None,
        }
    }

    /// As the goroutine, its M and the kernel show it. The world is stopped.
    pub(super) fn in_stopped_world(sched: &Sched, g: Gp, status: Status) -> GoroutineState {
        match (status, g.m.load(Relaxed)) {
            (Status::Runnable, _) if waiting_thread(g).is_some() => GoroutineState::Preempted,
            (Status::Syscall, Some(m)) if m.claim.is_taken() => {
                match sched.doing(&mut sched.claims.lock(), m) {
                    Doing::Blocked(call) => GoroutineState::Blocked(call),
                    Doing::Running => GoroutineState::Stray,
                    Doing::Unknown => GoroutineState::Is(status),
                }
            }
            _ => GoroutineState::plain(g, status),
        }
    }

    /// The word for the state that [`Goroutine::state`](super::Goroutine::state) returns.
    pub(super) fn state(self) -> &'static str {
        match self {
            GoroutineState::Is(status) => status.name(),
            GoroutineState::Waits(wait) if wait.is_leaked => Status::Leaked.name(),
            GoroutineState::Waits(_) => Status::Waiting.name(),
            GoroutineState::Preempted | GoroutineState::Stray => Status::Running.name(),
            GoroutineState::Blocked(_) => Status::Syscall.name(),
        }
    }

    /// Where in the kernel the goroutine's thread sleeps.
    pub(super) fn blocked_in(self) -> Option<KernelPlace> {
        match self {
            GoroutineState::Blocked(call) => Some(KernelPlace(call)),
            _ => None,
        }
    }

    /// Whether the goroutine's thread is in the kernel, or may be.
    pub(super) fn is_in_call(self) -> bool {
        matches!(
            self,
            GoroutineState::Blocked(_) | GoroutineState::Is(Status::Syscall)
        )
    }
}

/// The M on whose thread the goroutine waits for a P, if it does. The field of the M decides, not
/// that of the goroutine: a goroutine that leaves a thread without a P is Runnable a moment before
/// its own field is cleared.
pub(super) fn waiting_thread(g: Gp) -> Option<Mp> {
    let m = g.m.load(Relaxed)?;
    (m.bound.load(Relaxed) == Some(g)).then_some(m)
}

impl fmt::Display for GoroutineState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GoroutineState::Is(status) => f.write_str(status.name()),
            GoroutineState::Waits(wait) => write!(f, "{wait}"),
            GoroutineState::Preempted => f.write_str("running, preempted"),
            GoroutineState::Blocked(call) => write!(f, "blocked in {}", KernelPlace(*call)),
            GoroutineState::Stray => f.write_str("running, without a processor"),
        }
    }
}

/// A system call, by its number.
pub(super) struct KernelPlace(i64);

impl fmt::Display for KernelPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match sys::syscall_name(self.0) {
            Some(name) => f.write_str(name),
            None if self.0 < 0 => f.write_str("the kernel"),
            None => write!(f, "system call {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_words() {
        let words = |what: GoroutineState| (what.to_string(), what.state());
        let expected = |text: &str, state| (text.to_owned(), state);
        assert_eq!(
            words(GoroutineState::Is(Status::Runnable)),
            expected("runnable", "runnable")
        );
        let waits = |reason, cases, is_leaked| {
            let wait = WaitState {
                reason,
                cases,
                is_leaked,
            };
            assert_eq!(wait.text(), wait.to_string().replace(" (leaked)", ""));
            words(GoroutineState::Waits(wait))
        };
        assert_eq!(
            waits(WaitReason::Sleep, 0, false),
            expected("sleep", "waiting")
        );
        assert_eq!(
            waits(WaitReason::ChanReceive, 1, true),
            expected("chan receive (leaked)", "leaked")
        );
        assert_eq!(
            waits(WaitReason::Select, 3, false),
            expected("select (3 cases)", "waiting")
        );
        assert_eq!(
            waits(WaitReason::Select, 1, true),
            expected("select (1 case) (leaked)", "leaked")
        );
        assert_eq!(
            waits(WaitReason::SelectNoCases, 0, false),
            expected("select (no cases)", "waiting")
        );
        assert_eq!(
            words(GoroutineState::Preempted),
            expected("running, preempted", "running")
        );
        assert_eq!(
            words(GoroutineState::Stray),
            expected("running, without a processor", "running")
        );
        assert_eq!(
            words(GoroutineState::Blocked(libc::SYS_futex)),
            expected("blocked in futex", "syscall")
        );
        assert_eq!(
            words(GoroutineState::Blocked(9999)),
            expected("blocked in system call 9999", "syscall")
        );
        assert_eq!(
            words(GoroutineState::Blocked(-1)),
            expected("blocked in the kernel", "syscall")
        );
    }
}
