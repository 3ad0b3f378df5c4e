//! The table of hooked functions.
//!
//! Each function has one row: its name, its aliases, what the hook does on a goroutine, and when it
//! falls back to libc. The row is also the function's record at run time: libc's own function,
//! whether the hook is off, and how many calls were left to libc. The functions themselves are in
//! one file for each family.

use std::fmt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::real::Real;

/// A group of hooked functions. Each family has a file of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Family {
    /// Sockets.
    Sockets,
    /// `read` and `write` of any descriptor, and what opens and closes descriptors.
    Files,
    /// Waiting for several descriptors.
    Polling,
    /// Name lookups.
    Names,
    /// Waiting for children.
    Processes,
    /// Sleeping.
    Sleep,
    /// Locks and channels that wait by the system call `futex`.
    Futex,
    /// Threads.
    Thread,
}

impl Family {
    /// The name by which `GOSCHED_HOOK` turns the whole family off.
    pub fn name(self) -> &'static str {
        match self {
            Family::Sockets => "sockets",
            Family::Files => "files",
            Family::Polling => "polling",
            Family::Names => "names",
            Family::Processes => "processes",
            Family::Sleep => "sleep",
            Family::Futex => "futex",
            Family::Thread => "thread",
        }
    }
}

/// A hooked function.
///
/// ```
/// let sleep = gosched_hook::FUNCTIONS.iter().find(|f| f.name() == "nanosleep").unwrap();
/// assert_eq!(sleep.family().name(), "sleep");
/// ```
pub struct Function {
    name: &'static str,
    aliases: &'static [&'static str],
    family: Family,
    strategy: &'static str,
    fallback: &'static str,
    pub(crate) real: Real,
    pub(crate) is_off: AtomicBool,
    left: AtomicU64,
}

impl Function {
    /// The function's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Other names of libc that are hooked in the same way.
    pub fn aliases(&self) -> &'static [&'static str] {
        self.aliases
    }

    /// The family.
    pub fn family(&self) -> Family {
        self.family
    }

    /// What a call on a goroutine does.
    pub fn strategy(&self) -> &'static str {
        self.strategy
    }

    /// When a call on a goroutine is left to libc.
    pub fn fallback(&self) -> &'static str {
        self.fallback
    }

    /// Whether `GOSCHED_HOOK` has turned the hook off.
    pub fn is_off(&self) -> bool {
        self.is_off.load(Relaxed)
    }

    /// How many calls of goroutines were left to libc although they may have waited there. Each of
    /// them may have held a thread.
    pub fn left_to_libc(&self) -> u64 {
        self.left.load(Relaxed)
    }

    /// Whether this call is the hook's: the caller is a goroutine that may park, and the hook is
    /// on.
    #[inline]
    pub(crate) fn applies(&self) -> bool {
        gosched::hook::can_park() && !self.is_off()
    }

    /// Counts a call that is left to libc and may wait there.
    #[cold]
    pub(crate) fn count_left(&self) {
        self.left.fetch_add(1, Relaxed);
        gosched::hook::count_left();
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function")
            .field("name", &self.name)
            .field("aliases", &self.aliases)
            .field("family", &self.family)
            .field("is_off", &self.is_off())
            .field("left_to_libc", &self.left_to_libc())
            .finish_non_exhaustive()
    }
}

/// The table: `FAMILY: NAME [ALIASES], STRATEGY, FALLBACK;` for each function.
macro_rules! table {
    ($(
        $(#[$cfg:meta])?
        $family:ident: $name:ident [$($alias:ident)*], $strategy:literal, $fallback:literal;
    )*) => {
        $(
            $(#[$cfg])?
            #[allow(non_upper_case_globals, reason = "a row is called like its function")]
            pub(crate) static $name: Function = Function {
                name: stringify!($name),
                aliases: &[$(stringify!($alias)),*],
                family: Family::$family,
                strategy: $strategy,
                fallback: $fallback,
                real: Real::new(concat!(stringify!($name), "\0")),
                is_off: AtomicBool::new(false),
                left: AtomicU64::new(0),
            };
        )*

        /// Every hooked function.
        pub static FUNCTIONS: &[&Function] = &[$($(#[$cfg])? &$name),*];
    };
}

table! {
    #[cfg(feature = "net")]
    Sockets: recv [__recv_chk],
        "MSG_DONTWAIT, then waits for data",
        "MSG_WAITALL with MSG_PEEK or on a Unix socket; an empty buffer on a stream socket";
    #[cfg(feature = "net")]
    Sockets: recvfrom [__recvfrom_chk],
        "MSG_DONTWAIT, then waits for data",
        "as `recv`; MSG_WAITALL with an address";
    #[cfg(feature = "net")]
    Sockets: recvmsg [],
        "MSG_DONTWAIT, then waits for data",
        "MSG_WAITALL";
    #[cfg(feature = "net")]
    Sockets: recvmmsg [],
        "MSG_DONTWAIT, then waits, until all messages are here",
        "MSG_WAITALL";
    #[cfg(feature = "net")]
    Sockets: send [],
        "MSG_DONTWAIT, then waits for room, until all is sent",
        "MSG_FASTOPEN";
    #[cfg(feature = "net")]
    Sockets: sendto [],
        "MSG_DONTWAIT, then waits for room, until all is sent",
        "MSG_FASTOPEN; a Unix datagram to a socket whose queue is full";
    #[cfg(feature = "net")]
    Sockets: sendmsg [],
        "MSG_DONTWAIT, then waits for room, until all is sent",
        "as `sendto`";
    #[cfg(feature = "net")]
    Sockets: sendmmsg [],
        "as `sendmsg`, for each message",
        "as `sendto`";
    #[cfg(feature = "net")]
    Sockets: accept [],
        "asks `poll`, waits for a connection, then accepts it",
        "another thread takes the connection in between";
    #[cfg(feature = "net")]
    Sockets: accept4 [],
        "asks `poll`, waits for a connection, then accepts it",
        "another thread takes the connection in between";
    #[cfg(feature = "net")]
    Sockets: connect [],
        "sets O_NONBLOCK, begins, clears O_NONBLOCK, waits for the end",
        "other families than IPv4, IPv6 and Unix; a Unix listener whose queue is full";
    #[cfg(feature = "net")]
    Sockets: socket [],
        "libc's; notes that the number is open",
        "always";
    #[cfg(feature = "net")]
    Sockets: socketpair [],
        "libc's; notes that the numbers are open",
        "always";
    #[cfg(feature = "net")]
    Sockets: setsockopt [],
        "libc's; forgets the timeouts it knew",
        "always";
    #[cfg(feature = "net")]
    Files: read [__read_chk],
        "by the kind of file: RWF_NOWAIT, MSG_DONTWAIT or `poll`, then waits",
        "regular files";
    #[cfg(feature = "net")]
    Files: readv [],
        "as `read`",
        "regular files";
    #[cfg(feature = "net")]
    Files: write [],
        "as `read`, until all is written",
        "regular files; more than a terminal takes at once";
    #[cfg(feature = "net")]
    Files: writev [],
        "as `write`",
        "regular files; more than a terminal takes at once";
    #[cfg(feature = "net")]
    Files: sendfile [],
        "waits until there is room, then moves a part; until all is moved",
        "any pair but a file and a pipe, or a file and a socket";
    #[cfg(feature = "net")]
    Files: sendfile64 [],
        "as `sendfile`",
        "any pair but a file and a pipe, or a file and a socket";
    #[cfg(feature = "net")]
    Files: splice [],
        "waits until both ends are ready, then moves a part",
        "any pair but two pipes, or a pipe and a socket; an offset";
    #[cfg(feature = "net")]
    Files: close [],
        "libc's; ends the waits for the number with EBADF",
        "always";
    #[cfg(feature = "net")]
    Files: close_range [],
        "libc's; ends the waits for the numbers with EBADF",
        "always";
    #[cfg(feature = "net")]
    Files: dup [],
        "libc's; notes that two numbers share a file",
        "always";
    #[cfg(feature = "net")]
    Files: dup2 [],
        "libc's; ends the waits for the number that is replaced",
        "always";
    #[cfg(feature = "net")]
    Files: dup3 [],
        "libc's; ends the waits for the number that is replaced",
        "always";
    #[cfg(feature = "net")]
    Files: pipe [],
        "libc's; notes that the numbers are open",
        "always";
    #[cfg(feature = "net")]
    Files: pipe2 [],
        "libc's; notes that the numbers are open",
        "always";
    #[cfg(feature = "net")]
    Files: fcntl [],
        "libc's; notes F_SETFL and F_DUPFD",
        "always";
    #[cfg(feature = "net")]
    Files: fcntl64 [],
        "libc's; notes F_SETFL and F_DUPFD",
        "always";
    #[cfg(feature = "net")]
    Files: ioctl [],
        "libc's; notes FIONBIO",
        "always";
    #[cfg(feature = "net")]
    Polling: poll [__poll_chk],
        "asks without waiting, then waits for the descriptors",
        "no descriptor and no timeout";
    #[cfg(feature = "net")]
    Polling: ppoll [__ppoll_chk],
        "as `poll`",
        "with a signal mask";
    #[cfg(feature = "net")]
    Polling: select [],
        "as `poll`",
        "no descriptor and no timeout";
    #[cfg(feature = "net")]
    Polling: pselect [],
        "as `poll`",
        "with a signal mask";
    #[cfg(feature = "net")]
    Polling: epoll_wait [],
        "asks without waiting, then waits for the epoll",
        "epolls nested too deep";
    #[cfg(feature = "net")]
    Polling: epoll_pwait [],
        "as `epoll_wait`",
        "with a signal mask";
    #[cfg(feature = "net")]
    Polling: epoll_create [],
        "libc's; notes that the number is open",
        "always";
    #[cfg(feature = "net")]
    Polling: epoll_create1 [],
        "libc's; notes that the number is open",
        "always";
    #[cfg(feature = "net")]
    Names: getaddrinfo [],
        "libc's, in a marked call; at most `Builder::max_lookups` at a time",
        "the runtime shuts down";
    #[cfg(feature = "net")]
    Names: getnameinfo [],
        "as `getaddrinfo`",
        "numeric results; the runtime shuts down";
    #[cfg(feature = "net")]
    Processes: waitpid [],
        "waits for a pidfd",
        "any child; WUNTRACED, WCONTINUED and other options";
    #[cfg(feature = "net")]
    Processes: wait4 [],
        "waits for a pidfd",
        "any child; WUNTRACED, WCONTINUED and other options";
    #[cfg(feature = "net")]
    Processes: waitid [],
        "waits for a pidfd",
        "any child; WSTOPPED, WCONTINUED and other options";
    Sleep: nanosleep [],
        "parks until the time has come",
        "never";
    Sleep: clock_nanosleep [],
        "parks until the time has come",
        "clocks other than CLOCK_MONOTONIC and CLOCK_REALTIME; absolute times of CLOCK_REALTIME";
    Sleep: usleep [],
        "parks until the time has come",
        "never";
    Sleep: sleep [],
        "parks until the time has come",
        "never";
    #[cfg(feature = "sync")]
    Futex: syscall [],
        "FUTEX_WAIT parks until FUTEX_WAKE; other system calls are libc's",
        "futexes without FUTEX_PRIVATE_FLAG, with priority inheritance, with some of the bits, or by CLOCK_REALTIME; futex_waitv";
    #[cfg(feature = "thread")]
    Thread: pthread_create [],
        "starts a goroutine in the caller's runtime",
        "inside `real_threads`; attributes with a stack address, a policy, CPUs, a signal mask, or sizes that goroutines do not have";
    #[cfg(feature = "thread")]
    Thread: pthread_join [],
        "parks until the goroutine has ended",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_tryjoin_np [],
        "looks whether the goroutine has ended",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_timedjoin_np [],
        "parks, and looks whether the goroutine has ended",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_clockjoin_np [],
        "parks, and looks whether the goroutine has ended",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_detach [],
        "detaches the goroutine",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_self [],
        "the handle from `pthread_create`",
        "goroutines that `pthread_create` did not start; threads";
    #[cfg(feature = "thread")]
    Thread: pthread_exit [],
        "ends the process with a message",
        "threads";
    #[cfg(feature = "thread")]
    Thread: pthread_cancel [],
        "ENOSYS: goroutines cannot be cancelled",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_kill [],
        "itself: signals its thread; another goroutine: 0 for signal 0, else ENOSYS",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_sigqueue [],
        "as `pthread_kill`",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_setname_np [],
        "names the goroutine",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_getname_np [],
        "the goroutine's name",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_setaffinity_np [],
        "ENOSYS: goroutines run on any CPU",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_getaffinity_np [],
        "the CPUs of the caller's thread",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_setschedparam [],
        "0 if nothing changes; EPERM for another policy, EINVAL for another priority",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_getschedparam [],
        "SCHED_OTHER, priority 0",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_setschedprio [],
        "0 if nothing changes, else EINVAL",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: pthread_getcpuclockid [],
        "ENOENT: goroutines have no clock",
        "threads of the system";
    #[cfg(feature = "thread")]
    Thread: sigaltstack [],
        "changes nothing: the stack for signals belongs to the thread",
        "goroutines that `pthread_create` did not start; threads";
    #[cfg(feature = "thread")]
    Thread: sched_yield [],
        "lets other goroutines run",
        "never";
}

/// Defines a hooked function under libc's name. `real` is libc's own function. The body runs for
/// every call, also outside goroutines: it asks `table::NAME.applies()`.
macro_rules! hook {
    ($(
        fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $out:ty = |$real:ident| $body:expr;
    )*) => {$(
        /// # Safety
        /// As for libc's function of this name.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> $out {
            type Real = unsafe extern "C" fn($($type),*) -> $out;
            // SAFETY: libc's function of this name has this type; its row names it.
            let $real = unsafe { $crate::table::$name.real.get::<Real>() };
            $body
        }
    )*};
}
pub(crate) use hook;
