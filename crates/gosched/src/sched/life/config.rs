//! The settings of a runtime. The `Builder` checks them; the scheduler only reads them.

use crate::sched::Sched;
pub(crate) use crate::sched::life::deadlock::Hook;
use crate::tls::Room;

/// When the runtime reports a deadlock: all goroutines are asleep and none can be woken.
///
/// ```
/// let runtime = gosched::Runtime::builder().deadlock(gosched::Deadlock::Off).build().unwrap();
/// # drop(runtime);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deadlock {
    /// When every runtime of the process is asleep, and no other live thread could wake a
    /// goroutine.
    #[default]
    Auto,
    /// When every runtime of the process is asleep, even if other threads are alive. For tests.
    Closed,
    /// Never.
    Off,
}

/// A checked configuration.
pub(crate) struct Config {
    pub(crate) name: Option<Box<str>>,
    pub(crate) procs: u32,
    pub(crate) stack_class: u8,
    /// The size class of the main goroutine.
    pub(crate) main_class: u8,
    pub(crate) max_threads: u32,
    pub(crate) max_lookups: u32,
    pub(crate) deadlock: Deadlock,
    /// Moves to `Sched::hook` when the runtime is created.
    pub(crate) on_deadlock: Option<Hook>,
    pub(crate) has_hook: bool,
    pub(crate) panic_abort: bool,
    pub(crate) mprotect_guards: bool,
    pub(crate) tls: Room,
    pub(crate) schedtrace_ms: Option<u64>,
    pub(crate) scheddetail: bool,
    /// How long a goroutine may compute while others wait.
    pub(crate) slice_ns: u64,
    /// Whether goroutines are preempted by a signal, and by which one.
    pub(crate) preemption: bool,
    pub(crate) preemption_signal: i32,
    /// The monitor's loop, which the creator starts on a thread of its own. A callback, because the
    /// monitor is on the floor above.
    pub(crate) sysmon: fn(&Sched),
}
