//! Threads: `pthread_create` on a goroutine starts a goroutine.
//!
//! The goroutine belongs to its caller's runtime. Its handle is a record of ours
//! (`threads/records.rs`), and so every function that takes a handle is hooked. Each looks first
//! whether the handle is ours; all others are libc's. These functions cannot be turned off alone:
//! libc would read a handle as an address.
//!
//! `pthread_getattr_np` is the library's (`gosched`, `interpose/getattr.rs`). `pthread_equal`
//! compares two words and needs no hook.

mod attributes;
mod records;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::time::Duration;

use gosched::hook;
use libc::pthread_t;

use self::attributes::Wanted;
use self::records::{Handle, NAME_LEN};
use crate::table;

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

/// Calls `f`. Threads that it starts are threads of the system, with the hooks as without them.
///
/// For code that needs a thread: it sets a CPU affinity or a signal mask, or must run while all
/// goroutines compute. Calls nest.
///
/// ```
/// gosched::run(|| {
///     let thread = gosched_hook::real_threads(|| std::thread::spawn(|| 6 * 7));
///     assert_eq!(thread.join().unwrap(), 42);
/// });
/// ```
pub fn real_threads<R>(f: impl FnOnce() -> R) -> R {
    hook::real_threads(f)
}

table::hook! {
    fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: Start,
        argument: *mut c_void,
    ) -> c_int = |real| {
        if table::pthread_create.applies() && !hook::wants_real_threads() {
            // SAFETY: the caller passes initialised attributes or null.
            match unsafe { attributes::wanted(attributes) } {
                Some(wanted) => {
                    // SAFETY: the caller passes memory for a handle, and a function that may run
                    // on another thread with the argument.
                    return unsafe { begin(thread, wanted, Closure { start, argument }) };
                }
                None => table::pthread_create.count_left(),
            }
        }
        // SAFETY: the arguments are the caller's.
        unsafe { real(thread, attributes, start, argument) }
    };

    fn pthread_join(thread: pthread_t, result: *mut *mut c_void) -> c_int = |real| {
        match Handle::of(thread) {
            // SAFETY: the caller passes memory for the result, or null.
            Some(handle) => answer(handle.begin_join().and_then(|it| unsafe { join(handle, &it, result) })),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, result) },
        }
    };

    fn pthread_tryjoin_np(thread: pthread_t, result: *mut *mut c_void) -> c_int = |real| {
        match Handle::of(thread) {
            // SAFETY: the caller passes memory for the result, or null.
            Some(handle) => answer(unsafe { join_within(handle, result, || None) }),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, result) },
        }
    };

    fn pthread_timedjoin_np(
        thread: pthread_t,
        result: *mut *mut c_void,
        until: *const libc::timespec,
    ) -> c_int = |real| {
        match Handle::of(thread) {
            // SAFETY: the caller passes memory for the result, or null, and a time, or null.
            Some(handle) => answer(unsafe { join_by(handle, result, libc::CLOCK_REALTIME, until) }),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, result, until) },
        }
    };

    fn pthread_clockjoin_np(
        thread: pthread_t,
        result: *mut *mut c_void,
        clock: libc::clockid_t,
        until: *const libc::timespec,
    ) -> c_int = |real| {
        match Handle::of(thread) {
            // SAFETY: the caller passes memory for the result, or null, and a time, or null.
            Some(handle) => answer(unsafe { join_by(handle, result, clock, until) }),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, result, clock, until) },
        }
    };

    fn pthread_detach(thread: pthread_t) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => answer(handle.detach()),
            // SAFETY: the handle is the caller's.
            None => unsafe { real(thread) },
        }
    };

    fn pthread_self() -> pthread_t = |real| {
        match Handle::own() {
            Some(handle) => handle.word() as pthread_t,
            // SAFETY: the call has no condition.
            None => unsafe { real() },
        }
    };

    fn pthread_cancel(thread: pthread_t) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => only_known(handle, libc::ENOSYS),
            // SAFETY: the handle is the caller's.
            None => unsafe { real(thread) },
        }
    };

    fn pthread_kill(thread: pthread_t, signal: c_int) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => match for_signal(handle, signal) {
                // SAFETY: the call has no condition.
                Ok(()) => errno_of(unsafe { libc::raise(signal) }),
                Err(error) => error,
            },
            // SAFETY: the handle is the caller's.
            None => unsafe { real(thread, signal) },
        }
    };

    fn pthread_sigqueue(thread: pthread_t, signal: c_int, value: libc::sigval) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => match for_signal(handle, signal) {
                Ok(()) => queue_here(signal, value),
                Err(error) => error,
            },
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, signal, value) },
        }
    };

    fn pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int = |real| {
        match Handle::of(thread) {
            // SAFETY: the caller passes a text with a zero byte.
            Some(handle) => answer(set_name(handle, unsafe { CStr::from_ptr(name) })),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, name) },
        }
    };

    fn pthread_getname_np(thread: pthread_t, name: *mut c_char, len: usize) -> c_int = |real| {
        match Handle::of(thread) {
            // SAFETY: the caller passes memory of this length.
            Some(handle) => answer(unsafe { get_name(handle, name, len) }),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, name, len) },
        }
    };

    fn pthread_setaffinity_np(
        thread: pthread_t,
        size: usize,
        set: *const libc::cpu_set_t,
    ) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => only_known(handle, libc::ENOSYS),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, size, set) },
        }
    };

    fn pthread_getaffinity_np(
        thread: pthread_t,
        size: usize,
        set: *mut libc::cpu_set_t,
    ) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => match only_known(handle, 0) {
                // SAFETY: the caller passes memory of this size.
                0 => errno_of(unsafe { libc::sched_getaffinity(0, size, set) }),
                error => error,
            },
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, size, set) },
        }
    };

    fn pthread_setschedparam(
        thread: pthread_t,
        policy: c_int,
        parameters: *const libc::sched_param,
    ) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => {
                // SAFETY: the caller passes parameters.
                let priority = unsafe { (*parameters).sched_priority };
                only_known(handle, same_priority(policy, priority))
            }
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, policy, parameters) },
        }
    };

    fn pthread_getschedparam(
        thread: pthread_t,
        policy: *mut c_int,
        parameters: *mut libc::sched_param,
    ) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => {
                let known = only_known(handle, 0);
                if known == 0 {
                    // SAFETY: the caller passes memory for both values.
                    unsafe {
                        *policy = libc::SCHED_OTHER;
                        (*parameters).sched_priority = 0;
                    }
                }
                known
            }
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, policy, parameters) },
        }
    };

    fn pthread_setschedprio(thread: pthread_t, priority: c_int) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => only_known(handle, same_priority(libc::SCHED_OTHER, priority)),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, priority) },
        }
    };

    fn pthread_getcpuclockid(thread: pthread_t, clock: *mut libc::clockid_t) -> c_int = |real| {
        match Handle::of(thread) {
            Some(handle) => only_known(handle, libc::ENOENT),
            // SAFETY: the arguments are the caller's.
            None => unsafe { real(thread, clock) },
        }
    };

    fn sigaltstack(new: *const libc::stack_t, old: *mut libc::stack_t) -> c_int = |real| {
        let new = match Handle::own() {
            Some(_) => ptr::null(),
            None => new,
        };
        // SAFETY: the arguments are the caller's, or null.
        unsafe { real(new, old) }
    };

    fn sched_yield() -> c_int = |real| {
        if table::sched_yield.applies() {
            hook::yield_now();
            return 0;
        }
        // SAFETY: the call has no condition.
        unsafe { real() }
    };
}

/// # Safety
/// As for libc's function of this name. It unwinds through its caller.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_exit(result: *mut c_void) -> ! {
    type Real = unsafe extern "C-unwind" fn(*mut c_void) -> !;
    if hook::is_goroutine() {
        // libc's function unwinds to the frame in which libc has started the thread. A goroutine
        // has no such frame.
        die(
            "gosched-hook: pthread_exit on a goroutine: return from the thread's function instead\n",
        );
    }
    // SAFETY: libc's function of this name has this type. The argument is the caller's.
    unsafe { table::pthread_exit.real.get::<Real>()(result) }
}

/// The function of a new thread.
struct Closure {
    start: Start,
    argument: *mut c_void,
}

// SAFETY: `pthread_create` is for running the function with the argument on another thread.
unsafe impl Send for Closure {}

impl Closure {
    fn run(self) -> usize {
        (self.start)(self.argument).expose_provenance()
    }
}

/// Starts a goroutine.
///
/// # Safety
/// `thread` is memory for a handle. The closure may run on another thread.
unsafe fn begin(thread: *mut pthread_t, wanted: Wanted, closure: Closure) -> c_int {
    let unstarted = hook::Unstarted::new();
    let Some(handle) = Handle::add(unstarted.joiner(), wanted.is_detached) else {
        return libc::EAGAIN;
    };
    // The thread may read it as soon as it runs.
    // SAFETY: the memory is the caller's.
    unsafe { *thread = handle.word() as pthread_t };
    let started = unstarted.start(handle.word(), wanted.stack, move || closure.run(), ended);
    if started.is_err() {
        handle.remove();
        return libc::EAGAIN;
    }
    0
}

/// The goroutine has run its last destructor.
fn ended(word: usize) {
    if let Some(handle) = Handle::of(word as pthread_t) {
        handle.ended();
    }
}

/// Waits for the end of the thread.
///
/// # Safety
/// `result` is null or memory for the result.
unsafe fn join(
    handle: Handle,
    thread: &hook::Thread,
    result: *mut *mut c_void,
) -> Result<(), c_int> {
    let value = thread.join();
    handle.remove();
    // The goroutine was abandoned with its runtime, or unwound: it left no result.
    let value = value.ok_or(libc::EOWNERDEAD)?;
    if !result.is_null() {
        // SAFETY: the memory is the caller's.
        unsafe { *result = ptr::with_exposed_provenance_mut(value) };
    }
    Ok(())
}

/// Joins the thread if it ends in time. `left` returns the time that is left, if any.
///
/// # Safety
/// As for [`join`].
unsafe fn join_within(
    handle: Handle,
    result: *mut *mut c_void,
    left: impl Fn() -> Option<Duration>,
) -> Result<(), c_int> {
    let thread = handle.begin_join()?;
    while !thread.is_finished() {
        let Some(left) = left() else {
            handle.give_up_join();
            return Err(libc::EBUSY);
        };
        thread.wait(left);
    }
    // SAFETY: the caller's promise.
    unsafe { join(handle, &thread, result) }
}

/// Joins the thread if it ends before a time of a clock.
///
/// # Safety
/// As for [`join`]; `until` is null or to a time.
unsafe fn join_by(
    handle: Handle,
    result: *mut *mut c_void,
    clock: libc::clockid_t,
    until: *const libc::timespec,
) -> Result<(), c_int> {
    // SAFETY: the caller's promise.
    let Some(until) = (unsafe { until.as_ref() }) else {
        let thread = handle.begin_join()?;
        // SAFETY: the caller's promise.
        return unsafe { join(handle, &thread, result) };
    };
    if !matches!(clock, libc::CLOCK_REALTIME | libc::CLOCK_MONOTONIC)
        || !(0..1_000_000_000).contains(&until.tv_nsec)
    {
        return Err(libc::EINVAL);
    }
    let left = || {
        let mut now = *until;
        // SAFETY: libc writes the timespec.
        unsafe { libc::clock_gettime(clock, &mut now) };
        let length = duration(until).saturating_sub(duration(&now));
        (!length.is_zero()).then_some(length)
    };
    // SAFETY: the caller's promise.
    let joined = unsafe { join_within(handle, result, left) };
    joined.map_err(|error| match error {
        libc::EBUSY => libc::ETIMEDOUT,
        error => error,
    })
}

/// The time since the clock's zero. A time before that counts as zero.
fn duration(time: &libc::timespec) -> Duration {
    match u64::try_from(time.tv_sec) {
        Ok(seconds) => Duration::new(seconds, time.tv_nsec as u32),
        Err(_) => Duration::ZERO,
    }
}

/// Ok: the signal is for the caller's own thread, and is not 0.
fn for_signal(handle: Handle, signal: c_int) -> Result<(), c_int> {
    if !(0..=libc::SIGRTMAX()).contains(&signal) {
        return Err(libc::EINVAL);
    }
    if Handle::own() == Some(handle) {
        return if signal == 0 { Err(0) } else { Ok(()) };
    }
    match (handle.may_be_known(), signal) {
        (false, _) => Err(libc::ESRCH),
        (true, 0) => Err(0),
        (true, _) => Err(libc::ENOSYS),
    }
}

/// Queues a signal for the thread that runs the caller.
fn queue_here(signal: c_int, value: libc::sigval) -> c_int {
    // SAFETY: zeroes are a valid `siginfo_t`.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    info.si_signo = signal;
    info.si_code = libc::SI_QUEUE;
    // SAFETY: the sender and the value lie behind the three numbers and four bytes of padding, as
    // the kernel lays them out.
    unsafe {
        let fields = (&raw mut info).cast::<u8>().add(16);
        fields
            .cast::<[u32; 2]>()
            .write([libc::getpid() as u32, libc::getuid()]);
        fields.add(8).cast::<*mut c_void>().write(value.sival_ptr);
    }
    // SAFETY: the kernel reads the struct, which is this frame's.
    let sent = unsafe {
        libc::syscall(
            libc::SYS_rt_tgsigqueueinfo,
            libc::getpid(),
            libc::syscall(libc::SYS_gettid),
            signal,
            &raw const info,
        )
    };
    errno_of(sent as c_int)
}

fn set_name(handle: Handle, text: &CStr) -> Result<(), c_int> {
    let text = text.to_bytes();
    if text.len() >= NAME_LEN {
        return Err(libc::ERANGE);
    }
    let mut name = [0; NAME_LEN];
    name[..text.len()].copy_from_slice(text);
    handle.set_name(name).ok_or(libc::ESRCH)?;
    if Handle::own() == Some(handle) {
        hook::name_goroutine(&String::from_utf8_lossy(text));
    }
    Ok(())
}

/// # Safety
/// `name` is memory of `len` bytes.
unsafe fn get_name(handle: Handle, name: *mut c_char, len: usize) -> Result<(), c_int> {
    let given = handle.name().ok_or(libc::ESRCH)?;
    if len < NAME_LEN {
        return Err(libc::ERANGE);
    }
    let given = given.unwrap_or_else(|| {
        let mut name = [0_u8; NAME_LEN];
        // SAFETY: the kernel writes at most 16 bytes, the zero included.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        name
    });
    // SAFETY: the memory has at least this length.
    unsafe { name.cast::<[u8; NAME_LEN]>().write(given) };
    Ok(())
}

/// What a change of the priority answers.
fn same_priority(policy: c_int, priority: c_int) -> c_int {
    match (policy, priority) {
        (libc::SCHED_OTHER, 0) => 0,
        (libc::SCHED_OTHER, _) => libc::EINVAL,
        _ => libc::EPERM,
    }
}

/// `code`, if the thread is not gone.
fn only_known(handle: Handle, code: c_int) -> c_int {
    if handle.is_known() { code } else { libc::ESRCH }
}

fn answer(result: Result<(), c_int>) -> c_int {
    result.err().unwrap_or(0)
}

/// Turns the convention of system calls into that of pthreads, which return the error number.
fn errno_of(result: c_int) -> c_int {
    if result == 0 {
        return 0;
    }
    // SAFETY: the address of the caller's own errno.
    unsafe { *libc::__errno_location() }
}

#[cold]
fn die(text: &str) -> ! {
    // SAFETY: the kernel reads the text.
    unsafe { libc::syscall(libc::SYS_write, 2, text.as_ptr(), text.len()) };
    std::process::abort()
}
