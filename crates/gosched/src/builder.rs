//! How a runtime is configured.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::base::chaos;
use crate::runtime::Runtime;
use crate::sched::deadlock::Hook;
use crate::sched::monitor::preempt;
use crate::sched::{PROCS_MAX, Sched, forked};
use crate::stack::class_for;
use crate::sys;
use crate::thread::stack_size_error;
use crate::tls::Room;

/// The default stack of a goroutine: what it may grow to.
const STACK_SIZE: usize = if cfg!(debug_assertions) {
    1 << 20
} else {
    256 << 10
};
/// The main goroutine's, unless [`Builder::stack_size`] sets it: as much as a program's first
/// thread has.
const MAIN_STACK_SIZE: usize = 8 << 20;
/// Whether goroutines share their thread's thread-locals without being asked: in builds of this library's own tests for that
/// mode, and under AddressSanitizer, which knows threads only.
const SHARED_BY_DEFAULT: bool = cfg!(gosched_shared) || cfg!(gosched_asan);
/// The most threads, unless asked otherwise.
const MAX_THREADS: u32 = 10_000;
/// The most threads that may be asked for.
const THREADS_MAX: usize = i32::MAX as usize;
/// The most names that are looked up at a time, unless asked otherwise.
const MAX_LOOKUPS: u32 = 500;
/// The most lookups that a setting can name.
const LOOKUPS_MAX: usize = i32::MAX as usize;

/// When the runtime reports that all goroutines are asleep for good.
///
/// ```
/// let runtime = gosched::Runtime::builder().deadlock(gosched::Deadlock::Off).build().unwrap();
/// # drop(runtime);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deadlock {
    /// When every runtime of the process is asleep and no other thread is alive that could wake a goroutine.
    #[default]
    Auto,
    /// When every runtime of the process is asleep, whatever other threads there are. Tests use it.
    Closed,
    /// Never.
    Off,
}

/// A checked configuration.
pub(crate) struct Config {
    pub(crate) name: Option<Box<str>>,
    pub(crate) procs: u32,
    pub(crate) stack_class: u8,
    /// The main goroutine's.
    pub(crate) main_class: u8,
    pub(crate) max_threads: u32,
    pub(crate) max_lookups: u32,
    pub(crate) deadlock: Deadlock,
    /// Moves to `Sched::hook` when the runtime is made.
    pub(crate) on_deadlock: Option<Hook>,
    pub(crate) has_hook: bool,
    pub(crate) panic_abort: bool,
    pub(crate) mprotect_guards: bool,
    pub(crate) tls: Room,
    pub(crate) schedtrace_ms: Option<u64>,
    pub(crate) scheddetail: bool,
    /// Whether goroutines are interrupted by a signal, and by which.
    pub(crate) preemption: bool,
    pub(crate) preemption_signal: i32,
}

/// Configures a [`Runtime`]. Methods take and return the builder by value; mistakes show at [`build`](Builder::build).
///
/// Only [`build`](Builder::build) does anything; the other methods block nothing.
///
/// ```
/// let runtime = gosched::Runtime::builder().procs(2).name("io").build().unwrap();
/// assert_eq!(runtime.run(|| gosched::gomaxprocs(0)), 2);
/// ```
#[must_use = "a builder does nothing until `build`"]
#[derive(Default)]
pub struct Builder {
    name: Option<String>,
    procs: Option<usize>,
    stack_size: Option<usize>,
    max_threads: Option<usize>,
    max_lookups: Option<usize>,
    deadlock: Deadlock,
    on_deadlock: Option<Hook>,
    panic_abort: bool,
    mprotect_guards: bool,
    shared_thread_locals: bool,
    dump_on_sigquit: bool,
    no_preemption: bool,
    preemption_signal: Option<i32>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder::default()
    }

    /// GOMAXPROCS: how many goroutines run user code at the same time.
    ///
    /// Without it the environment variable `GOSCHED_PROCS` decides, and without that the CPUs this process may use
    /// (affinity mask and cgroup quota).
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().procs(4);
    /// # let _ = builder;
    /// ```
    pub fn procs(mut self, n: usize) -> Builder {
        self.procs = Some(n);
        self
    }

    /// The most stack a goroutine may use, the main goroutine included, unless it asks for another
    /// size itself; rounded up to a power of two from 16 KiB to 1 GiB. The default is 256 KiB (1
    /// MiB with debug assertions), or `RUST_MIN_STACK`. The main goroutine's default is 8 MiB, or
    /// `RUST_MIN_STACK` if that is more. Only touched pages cost memory.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().stack_size(64 * 1024);
    /// # let _ = builder;
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }

    /// The most threads that run goroutines, 10,000 if not set; at least one for each of `procs`. Needing more for locked
    /// goroutines is a fatal error. Marked calls ([`blocking`](crate::blocking)) beyond it wait for others to return; if none does
    /// for 10 seconds that is a fatal error, too. Goroutines that block unmarked or compute without end make others wait.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().max_threads(64);
    /// # let _ = builder;
    /// ```
    pub fn max_threads(mut self, n: usize) -> Builder {
        self.max_threads = Some(n);
        self
    }

    /// The most goroutines that look up a name in [`gosched::net`](crate::net) at the same time, 500 if not set, as in Go. Each of
    /// them holds a thread; the others wait in order and hold none. The limit is lower if [`max_threads`](Builder::max_threads) is
    /// small: lookups leave one thread for each processor, and four.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().max_lookups(16);
    /// # let _ = builder;
    /// ```
    pub fn max_lookups(mut self, n: usize) -> Builder {
        self.max_lookups = Some(n);
        self
    }

    /// Names the runtime, for dumps.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().name("io");
    /// # let _ = builder;
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = Some(name.into());
        self
    }

    /// When a deadlock is reported.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().deadlock(gosched::Deadlock::Closed);
    /// # let _ = builder;
    /// ```
    pub fn deadlock(mut self, mode: Deadlock) -> Builder {
        self.deadlock = mode;
        self
    }

    /// A panic in any goroutine ends the process with status 2, as in Go.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().panic_abort(true);
    /// # let _ = builder;
    /// ```
    pub fn panic_abort(mut self, abort: bool) -> Builder {
        self.panic_abort = abort;
        self
    }

    /// Guards stacks by page protection even where the kernel knows lightweight guards. Costs two mappings per stack;
    /// there for tests and for kernels whose lightweight guards are not trusted.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().mprotect_guards(true);
    /// # let _ = builder;
    /// ```
    pub fn mprotect_guards(mut self, force: bool) -> Builder {
        self.mprotect_guards = force;
        self
    }

    /// Lets goroutines use the thread-locals of whatever thread they run on, as other runtimes with stacks do, instead of their
    /// own. Cheaper by some 15 ns a switch and 4 KiB a goroutine; and the way out where [`build`](Builder::build) says that
    /// goroutines cannot have their own (not glibc, no FSGSBASE, under valgrind or a sanitizer).
    ///
    /// # Safety
    /// Every call into this library may switch (also one that does not wait), and a goroutine may go on on another thread after
    /// any switch. So nothing that a goroutine of this runtime runs may, across such a call,
    /// - keep a reference, a borrow, an `Rc` or any other value that was taken from a thread-local or belongs to a thread;
    /// - have put into a thread-local what it still uses itself: a clone of an `Rc`, a pointer to its stack;
    /// - hold the guard of a lock that knows its owner by the thread: stdout, stderr and stdin, a reentrant mutex;
    /// - access a thread-local twice in one function, for the compiler may keep its address: an access belongs into a function of
    ///   its own that is never inlined;
    /// - rely on `errno`, `std::thread::current()`, or a library's state of the thread (random number generators, allocators
    ///   other than glibc's that assume so, C libraries with thread-local handles) being the same as before.
    ///
    /// Panics are safe: a goroutine that waits while it unwinds stays on its thread until that is over. Between
    /// [`lock_os_thread`](crate::lock_os_thread) and [`unlock_os_thread`](crate::unlock_os_thread) a goroutine does not migrate,
    /// but its thread-locals are still the thread's, not its own.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder();
    /// // SAFETY: the goroutines of this runtime touch no thread-local.
    /// let runtime = unsafe { builder.shared_thread_locals() }.build().unwrap();
    /// assert_eq!(runtime.run(|| 6 * 7), 42);
    /// ```
    pub unsafe fn shared_thread_locals(mut self) -> Builder {
        self.shared_thread_locals = true;
        self
    }

    /// Whether a goroutine that computes for long without a call into this library is interrupted by a signal (SIGURG), so that
    /// others get their turn. True unless set; the environment variable `GOSCHED_DEBUG=asyncpreemptoff=1` turns it off, too.
    ///
    /// Without it such a goroutine keeps its processor until it calls (and what stops all of them for a moment, such as
    /// [`gomaxprocs`](crate::gomaxprocs) and [`debug::dump`](crate::debug::dump), waits for it), and one that comes back from a blocking call
    /// that was not marked ([`blocking`](crate::blocking)) may compute beside the others for as long.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().preemption(false);
    /// # let _ = builder;
    /// ```
    pub fn preemption(mut self, on: bool) -> Builder {
        self.no_preemption = !on;
        self
    }

    /// The signal by which goroutines are interrupted, SIGURG unless set: for programs that need that one for themselves. A handler
    /// that is in place when the runtime starts goes on being called for signals that are not the runtime's.
    /// [`build`](Builder::build) fails for a signal that cannot be handled, or that has another meaning to this library (SIGSEGV,
    /// SIGBUS, SIGQUIT, SIGALRM).
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().preemption_signal(libc::SIGRTMIN() + 4);
    /// # let _ = builder;
    /// ```
    pub fn preemption_signal(mut self, signal: i32) -> Builder {
        self.preemption_signal = Some(signal);
        self
    }

    /// Prints a dump of all goroutines to stderr when the process gets SIGQUIT, and goes on.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().dump_on_sigquit(true);
    /// # let _ = builder;
    /// ```
    pub fn dump_on_sigquit(mut self, dump: bool) -> Builder {
        self.dump_on_sigquit = dump;
        self
    }

    /// The function that `on_deadlock` has made.
    pub(crate) fn with_hook(mut self, hook: Hook) -> Builder {
        self.on_deadlock = Some(hook);
        self
    }

    /// Starts the runtime's threads. Calls `install_sigquit` if the program wants that dump.
    pub(crate) fn start(self, install_sigquit: fn() -> io::Result<()>) -> io::Result<Runtime> {
        let dump_on_sigquit = self.dump_on_sigquit;
        if forked::is_child() {
            forked::refuse();
        }
        let config = self.check()?;
        crate::sched::overflow::install()?;
        forked::watch()?;
        crate::sys::objects::renew();
        if config.preemption {
            preempt::install(config.preemption_signal)?;
        }
        if dump_on_sigquit {
            install_sigquit()?;
        }
        make_sched(config).and_then(Sched::start).map(Runtime::new)
    }

    fn check(self) -> io::Result<Config> {
        let env = sys::DebugEnv::read();
        if let Some(seed) = env.chaos {
            chaos::set(seed);
        }
        let (stack_class, main_class) = stack_classes(self.stack_size)?;
        let max_threads = self.max_threads.unwrap_or(MAX_THREADS as usize);
        if max_threads == 0 || max_threads > THREADS_MAX {
            return Err(invalid(format!(
                "max_threads is {max_threads}: give a number from 1 to {THREADS_MAX}"
            )));
        }
        let max_lookups = self.max_lookups.unwrap_or(MAX_LOOKUPS as usize);
        if max_lookups == 0 || max_lookups > LOOKUPS_MAX {
            return Err(invalid(format!(
                "max_lookups is {max_lookups}: give a number from 1 to {LOOKUPS_MAX}"
            )));
        }
        let procs = self
            .procs
            .or_else(|| sys::env_usize("GOSCHED_PROCS").filter(|n| *n > 0))
            .unwrap_or_else(sys::default_procs);
        if procs == 0 || procs > PROCS_MAX {
            return Err(invalid(format!(
                "procs is {procs}: give a number from 1 to {PROCS_MAX}"
            )));
        }
        if procs > max_threads {
            return Err(invalid(format!(
                "procs is {procs} and max_threads {max_threads}: every processor needs a thread"
            )));
        }
        Ok(Config {
            name: self.name.map(String::into_boxed_str),
            procs: procs as u32,
            stack_class,
            main_class,
            max_threads: max_threads as u32,
            max_lookups: max_lookups as u32,
            deadlock: self.deadlock,
            has_hook: self.on_deadlock.is_some(),
            on_deadlock: self.on_deadlock,
            panic_abort: self.panic_abort,
            mprotect_guards: self.mprotect_guards,
            tls: if self.shared_thread_locals || SHARED_BY_DEFAULT {
                Room::SHARED
            } else {
                Room::own()?
            },
            schedtrace_ms: env.schedtrace_ms,
            scheddetail: env.scheddetail,
            preemption: !self.no_preemption && !env.asyncpreemptoff,
            preemption_signal: match self.preemption_signal {
                Some(signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGQUIT | libc::SIGALRM)) => {
                    return Err(invalid(format!(
                        "preemption_signal is {signal}, which the runtime uses itself"
                    )));
                }
                signal => signal.unwrap_or(preempt::SIGNAL),
            },
        })
    }
}

/// The size classes of all goroutines and of the main one. A size that was set is for both.
/// Otherwise the main goroutine's is no smaller than its default.
fn stack_classes(set: Option<usize>) -> io::Result<(u8, u8)> {
    let class = |size| class_for(size).ok_or_else(|| stack_size_error(size));
    if let Some(size) = set {
        let class = class(size)?;
        return Ok((class, class));
    }
    let size = sys::env_usize("RUST_MIN_STACK").unwrap_or(STACK_SIZE);
    Ok((class(size)?, class(size.max(MAIN_STACK_SIZE))?))
}

/// Makes the struct of a runtime. It is larger than a frame on a goroutine's stack may be, so that a thread does it for a goroutine.
fn make_sched(config: Config) -> io::Result<Arc<Sched>> {
    if crate::sched::model::current::current_g().is_none() {
        return Ok(Sched::new_on_thread_stack(config));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("gosched-build".into());
        let made = thread.spawn_scoped(scope, || Sched::new_on_thread_stack(config))?;
        Ok(made
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn invalid(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("name", &self.name)
            .field("procs", &self.procs)
            .field("stack_size", &self.stack_size)
            .field("max_threads", &self.max_threads)
            .field("deadlock", &self.deadlock)
            .finish_non_exhaustive()
    }
}
