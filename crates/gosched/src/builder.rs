//! [`Builder`]: the configuration of a runtime.
//!
//! It checks all settings in one place, before any thread starts.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::base::chaos;
use crate::base::real_thread::real_threads;
use crate::interpose::own_room;
use crate::runtime::Runtime;
pub use crate::sched::life::config::Deadlock;
use crate::sched::life::config::{Config, Hook};
use crate::sched::life::forked;
use crate::sched::monitor::retake::SLICE_NS;
use crate::sched::monitor::{preempt, sysmon};
use crate::sched::{PROCS_MAX, Sched};
use crate::signal;
use crate::stack::class_for;
use crate::sys;
use crate::thread::stack_size_error;
use crate::tls::Room;

/// The default maximum stack of a goroutine.
const STACK_SIZE: usize = if cfg!(debug_assertions) {
    1 << 20
} else {
    256 << 10
};
/// The main goroutine's default, unless [`Builder::stack_size`] sets it: the usual size of a
/// program's first thread.
const MAIN_STACK_SIZE: usize = 8 << 20;
/// Whether goroutines share their thread's thread-locals by default. True in this library's own
/// tests of that mode, and under AddressSanitizer, which supports only threads.
const SHARED_BY_DEFAULT: bool = cfg!(gosched_shared) || cfg!(gosched_asan);
/// The default of `max_threads`.
const MAX_THREADS: u32 = 10_000;
/// The largest `max_threads`.
const THREADS_MAX: usize = i32::MAX as usize;
/// The longest time slice that the environment can ask for.
const SLICE_MAX_NS: u64 = 1_000_000_000;
/// The default of `max_lookups`.
const MAX_LOOKUPS: u32 = 500;
/// The largest `max_lookups`.
const LOOKUPS_MAX: usize = i32::MAX as usize;

/// Configures a [`Runtime`].
///
/// Methods take and return the builder by value. Only [`build`](Builder::build) has an effect, and
/// it reports invalid settings. The other methods never block.
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
    keep_static_tls: bool,
    dump_on_sigquit: bool,
    no_preemption: bool,
    preemption_signal: Option<i32>,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        Builder::default()
    }

    /// Sets GOMAXPROCS: how many goroutines run user code at the same time.
    ///
    /// The default is the environment variable `GOSCHED_PROCS`, or else the number of CPUs that
    /// this process may use (affinity mask and cgroup quota).
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().procs(4);
    /// # let _ = builder;
    /// ```
    pub fn procs(mut self, n: usize) -> Builder {
        self.procs = Some(n);
        self
    }

    /// Sets the maximum stack size of a goroutine.
    ///
    /// It also applies to the main goroutine, but not to a goroutine with its own size. The size is
    /// rounded up to a power of two from 16 KiB to 1 GiB. Only touched pages cost memory.
    ///
    /// The default is `RUST_MIN_STACK`, or else 256 KiB (1 MiB with debug assertions). The main
    /// goroutine's default is 8 MiB, or `RUST_MIN_STACK` if that is more.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().stack_size(64 * 1024);
    /// # let _ = builder;
    /// ```
    pub fn stack_size(mut self, bytes: usize) -> Builder {
        self.stack_size = Some(bytes);
        self
    }

    /// Sets the maximum number of threads that run goroutines.
    ///
    /// The default is 10,000. There must be at least one for each of `procs`. At the limit:
    /// - More threads for locked goroutines are a fatal error.
    /// - Marked calls ([`blocking`](crate::blocking)) wait for others to return. If none returns
    ///   for 10 seconds, that is a fatal error too.
    /// - Goroutines that block without a mark, or compute without end, make other goroutines wait.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().max_threads(64);
    /// # let _ = builder;
    /// ```
    pub fn max_threads(mut self, n: usize) -> Builder {
        self.max_threads = Some(n);
        self
    }

    /// Sets how many goroutines may look up names in [`gosched::net`](crate::net) at the same time.
    ///
    /// The default is 500, as in Go. Each lookup holds a thread. Further goroutines wait in order
    /// and hold none. The limit is lower if [`max_threads`](Builder::max_threads) is small: lookups
    /// leave one thread for each P, and four more.
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

    /// Sets when a deadlock is reported.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().deadlock(gosched::Deadlock::Closed);
    /// # let _ = builder;
    /// ```
    pub fn deadlock(mut self, mode: Deadlock) -> Builder {
        self.deadlock = mode;
        self
    }

    /// Sets whether a panic in any goroutine ends the process with status 2, as in Go.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().panic_abort(true);
    /// # let _ = builder;
    /// ```
    pub fn panic_abort(mut self, abort: bool) -> Builder {
        self.panic_abort = abort;
        self
    }

    /// Forces guard pages by page protection, even if the kernel has lightweight guards.
    ///
    /// It costs two mappings per stack. It exists for tests, and for kernels with lightweight
    /// guards that are not trusted.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().mprotect_guards(true);
    /// # let _ = builder;
    /// ```
    pub fn mprotect_guards(mut self, force: bool) -> Builder {
        self.mprotect_guards = force;
        self
    }

    /// Makes goroutines use the thread-locals of the thread they run on, instead of their own.
    ///
    /// Other runtimes with stacks work this way. It saves about 15 ns a switch. It is also the
    /// alternative where [`build`](Builder::build) reports that goroutines cannot have their own
    /// (not glibc, no FSGSBASE, under valgrind or a sanitizer).
    ///
    /// # Safety
    /// Every call into this library may switch goroutines, even a call that does not wait. After
    /// any switch a goroutine may continue on another thread. So code in a goroutine of this
    /// runtime must not do the following across such a call:
    /// - keep a reference, a borrow, an `Rc` or any other value that was taken from a thread-local
    ///   or belongs to a thread;
    /// - have stored in a thread-local what it still uses itself: a clone of an `Rc`, a pointer to
    ///   its stack;
    /// - hold the guard of a lock that identifies its owner by the thread: stdout, stderr and
    ///   stdin, a reentrant mutex;
    /// - access a thread-local twice in one function, because the compiler may keep its address.
    ///   Put each access into its own function that is never inlined;
    /// - rely on `errno`, on `std::thread::current()`, or on a library's state of the thread being
    ///   the same as before. Such libraries are random number generators, some allocators other
    ///   than glibc's, and C libraries with thread-local handles.
    ///
    /// Panics are safe: a goroutine that waits while it unwinds stays on its thread until the
    /// unwinding is over. Between [`lock_os_thread`](crate::lock_os_thread) and
    /// [`unlock_os_thread`](crate::unlock_os_thread) a goroutine does not migrate. Its
    /// thread-locals are still the thread's.
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

    /// Sets whether libc keeps room for libraries with initial-exec thread-locals that the program
    /// loads later (`dlopen`).
    ///
    /// The default is false: goroutines use that room for their stacks, so that a waiting goroutine
    /// needs one page of memory instead of two. libc then refuses such a library with the error
    /// `cannot allocate memory in static TLS block`. Graphics drivers, OpenMP and plugins with
    /// jemalloc or mimalloc inside are such libraries. Set it to true if the program loads one of
    /// them while it runs, or calls `dlmopen`. Most libraries have no such thread-locals, and
    /// libraries that the program is linked with are not concerned.
    ///
    /// The environment variable `GOSCHED_DEBUG=keepstatictls=1` does the same. The first runtime of
    /// the process with thread-locals of the goroutines' own decides for all.
    /// [`Metrics::static_tls`](crate::debug::Metrics::static_tls) shows the result.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().keep_static_tls(true);
    /// # let _ = builder;
    /// ```
    pub fn keep_static_tls(mut self, keep: bool) -> Builder {
        self.keep_static_tls = keep;
        self
    }

    /// Sets whether a signal (SIGURG) preempts goroutines that compute for long without a call into
    /// this library.
    ///
    /// The default is true. The environment variable `GOSCHED_DEBUG=asyncpreemptoff=1` turns it off
    /// too.
    ///
    /// Without preemption such a goroutine keeps its P until it makes a call.
    /// [`gomaxprocs`](crate::gomaxprocs), [`debug::dump`](crate::debug::dump) and other functions
    /// that stop the world wait for it. A goroutine that returns from an unmarked blocking call
    /// (see [`blocking`](crate::blocking)) may run in addition to the others for as long.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().preemption(false);
    /// # let _ = builder;
    /// ```
    pub fn preemption(mut self, on: bool) -> Builder {
        self.no_preemption = !on;
        self
    }

    /// Sets the signal that preempts goroutines, for programs that need SIGURG themselves.
    ///
    /// A handler that exists when the runtime starts is still called for signals that the runtime
    /// did not send. [`build`](Builder::build) fails for a signal that cannot be handled. It also
    /// fails for SIGSEGV, SIGBUS, SIGQUIT and SIGALRM, which this library uses otherwise.
    ///
    /// ```
    /// let builder = gosched::Runtime::builder().preemption_signal(libc::SIGRTMIN() + 4);
    /// # let _ = builder;
    /// ```
    pub fn preemption_signal(mut self, signal: i32) -> Builder {
        self.preemption_signal = Some(signal);
        self
    }

    /// Sets whether SIGQUIT prints a dump of all goroutines to stderr, without ending the process.
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

    /// Starts the runtime's threads. Calls `install_sigquit` if the program asked for that dump.
    pub(crate) fn start(self, install_sigquit: fn() -> io::Result<()>) -> io::Result<Runtime> {
        let dump_on_sigquit = self.dump_on_sigquit;
        if forked::is_child() {
            forked::refuse();
        }
        let config = self.check()?;
        crate::sched::life::overflow::install()?;
        forked::watch()?;
        crate::sched::waiting::futex_late::start()?;
        crate::sys::objects::renew();
        if config.preemption {
            let _turn = signal::turn();
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
            sysmon: sysmon::run,
            has_hook: self.on_deadlock.is_some(),
            on_deadlock: self.on_deadlock,
            panic_abort: self.panic_abort,
            mprotect_guards: self.mprotect_guards,
            tls: if self.shared_thread_locals || SHARED_BY_DEFAULT {
                Room::SHARED
            } else {
                own_room(self.keep_static_tls || env.keepstatictls)?
            },
            schedtrace_ms: env.schedtrace_ms,
            scheddetail: env.scheddetail,
            slice_ns: env.slice_ms.map_or(SLICE_NS, |ms| {
                ms.saturating_mul(1_000_000).min(SLICE_MAX_NS)
            }),
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

/// The stack size classes of all goroutines and of the main goroutine. A given size is for both.
/// Otherwise the main goroutine's class is at least its default.
fn stack_classes(set: Option<usize>) -> io::Result<(u8, u8)> {
    let class = |size| class_for(size).ok_or_else(|| stack_size_error(size));
    if let Some(size) = set {
        let class = class(size)?;
        return Ok((class, class));
    }
    let size = sys::env_usize("RUST_MIN_STACK").unwrap_or(STACK_SIZE);
    Ok((class(size)?, class(size.max(MAIN_STACK_SIZE))?))
}

/// Creates the struct of a runtime. It is too large for a frame on a goroutine's stack, so for a
/// goroutine a thread creates it.
fn make_sched(config: Config) -> io::Result<Arc<Sched>> {
    if crate::sched::model::current::current_g().is_none() {
        return Ok(Sched::new_on_thread_stack(config));
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("gosched-build".into());
        let make = || Sched::new_on_thread_stack(config);
        let made = real_threads(|| thread.spawn_scoped(scope, make))?;
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
