//! Threads: starting one, naming it, finding it, ending the process.
//!
//! A thread is started through libc, because the new thread runs Rust and C code that expects
//! libc's set-up. Only the creator thread and `build()` start threads (D9). Everything else here is
//! a bare system call, allowed on g0 and in signal handlers.

use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::ptr;
use std::sync::Arc;

use crate::base::real_thread::real_threads;
use crate::sys::linux::inject::{FAIL_THREAD_AFTER, refuses};
use crate::sys::linux::mem::round_up_page;
use crate::sys::linux::syscall::{Errno, check, syscall0, syscall1, syscall2};

/// The code of a new thread.
pub(crate) trait Run<T> {
    fn run(arg: &Arc<T>);
}

type ThreadStart = unsafe extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a detached thread that calls `R::run(&arg)` on a stack of at least `stack_size` bytes.
/// The thread holds `arg` while it runs. CONTEXT: user.
pub(crate) fn thread_spawn<R: Run<T>, T: Send + Sync + 'static>(
    stack_size: usize,
    arg: Arc<T>,
) -> Result<(), Errno> {
    /// # Safety
    /// `arg` is a reference of the `Arc` that this call owns.
    unsafe extern "C" fn start<R: Run<T>, T>(arg: *mut c_void) -> *mut c_void {
        // SAFETY: `thread_spawn` passes one reference to one thread.
        let arg = unsafe { Arc::from_raw(arg.cast::<T>()) };
        R::run(&arg);
        std::ptr::null_mut()
    }
    let raw = Arc::into_raw(arg);
    // SAFETY: `start` takes the one reference that `into_raw` gave up. It may run on any thread,
    // because T is Send and Sync.
    let started = unsafe { start_thread(stack_size, start::<R, T>, raw.cast_mut().cast()) };
    started.inspect_err(|_| {
        // SAFETY: no thread was started, so this function still owns the reference.
        drop(unsafe { Arc::from_raw(raw) });
    })
}

/// Starts a detached thread that runs `start(arg)` on a stack of at least `stack_size` bytes.
///
/// # Safety
/// `start(arg)` is sound on a thread of its own, at any time and for any length of time.
pub(super) unsafe fn start_thread(
    stack_size: usize,
    start: ThreadStart,
    arg: *mut c_void,
) -> Result<(), Errno> {
    if refuses(&FAIL_THREAD_AFTER) {
        return Err(Errno(libc::EAGAIN));
    }
    let stack_size = stack_size
        .checked_add(libc_needs())
        .and_then(round_up_page)
        .ok_or(Errno(libc::EINVAL))?;
    // SAFETY: an `unsafe extern "C" fn` and a safe one have the same representation. Calling it is
    // sound on a thread of its own (see "Safety").
    let start: extern "C" fn(*mut c_void) -> *mut c_void =
        unsafe { core::mem::transmute::<ThreadStart, _>(start) };
    let mut attributes = MaybeUninit::uninit();
    let attributes = attributes.as_mut_ptr();
    let mut thread = 0;
    // SAFETY: the attributes are in this frame, made before use and destroyed after it. The thread
    // is detached, so its id is not needed again (D9: creator only).
    unsafe {
        done(libc::pthread_attr_init(attributes))?;
        let detached = libc::PTHREAD_CREATE_DETACHED;
        let made = done(libc::pthread_attr_setdetachstate(attributes, detached))
            .and_then(|()| done(libc::pthread_attr_setstacksize(attributes, stack_size)))
            .and_then(|()| {
                let make = || libc::pthread_create(&mut thread, attributes, start, arg);
                done(real_threads(make))
            });
        libc::pthread_attr_destroy(attributes);
        made
    }
}

/// The bytes that libc takes of a thread's stack for itself. glibc puts all thread-locals there,
/// however many there are.
fn libc_needs() -> usize {
    type MinStack = unsafe extern "C" fn(*const libc::pthread_attr_t) -> usize;
    let mut attributes = MaybeUninit::uninit();
    // SAFETY: `dlsym` returns null or glibc's function of that name, which has this type. std calls
    // it for the same reason. The attributes are in this frame.
    let asked = unsafe {
        let found = libc::dlsym(libc::RTLD_DEFAULT, c"__pthread_get_minstack".as_ptr());
        if found.is_null() || libc::pthread_attr_init(attributes.as_mut_ptr()) != 0 {
            return libc::PTHREAD_STACK_MIN;
        }
        let asked = core::mem::transmute::<*mut c_void, MinStack>(found)(attributes.as_ptr());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        asked
    };
    asked.max(libc::PTHREAD_STACK_MIN)
}

/// Turns the pthread convention, 0 or an error number, into a Result.
fn done(answer: i32) -> Result<(), Errno> {
    if answer == 0 {
        Ok(())
    } else {
        Err(Errno(answer))
    }
}

/// Names the calling thread. The kernel keeps the first 15 bytes. CONTEXT: any.
pub(crate) fn set_thread_name(name: &CStr) {
    let option = libc::PR_SET_NAME as usize;
    // A seccomp filter may refuse the call. The name only helps people who look, so the thread
    // continues without it.
    // SAFETY: the kernel reads up to the terminating zero, which a CStr has.
    unsafe { syscall2(libc::SYS_prctl, option, name.as_ptr() as usize) };
}

/// The calling thread's id; CONTEXT: any.
pub(crate) fn gettid() -> i32 {
    // SAFETY: the call touches no memory.
    unsafe { syscall0(libc::SYS_gettid) as i32 }
}

/// The process's id; CONTEXT: any.
pub(crate) fn getpid() -> i32 {
    // SAFETY: the call touches no memory.
    unsafe { syscall0(libc::SYS_getpid) as i32 }
}

/// Yields this CPU to another thread; CONTEXT: any.
pub(crate) fn sched_yield() {
    // SAFETY: the call touches no memory.
    unsafe { syscall0(libc::SYS_sched_yield) };
}

/// Sleeps for `ns` nanoseconds, also if signals arrive; CONTEXT: any.
pub(crate) fn sleep_ns(ns: u64) {
    let mut left = libc::timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    };
    loop {
        let at = ptr::from_mut(&mut left) as usize;
        // SAFETY: the kernel reads the time. If a signal arrives, it writes the rest to the same
        // place. The place is in this frame.
        let answer = unsafe { syscall2(libc::SYS_nanosleep, at, at) };
        if check(answer) != Err(Errno(libc::EINTR)) {
            return;
        }
    }
}

/// Ends the process at once: no destructors, no exit handlers; CONTEXT: any.
pub(crate) fn exit_process(code: i32) -> ! {
    loop {
        // SAFETY: the process ends, so no code uses its memory again.
        unsafe { syscall1(libc::SYS_exit_group, code as usize) };
    }
}

/// The calling thread's stack as (lowest address, end). (0, 0): libc does not know it. CONTEXT:
/// user, once per thread at its start, because libc may allocate.
pub(crate) fn stack_bounds() -> (usize, usize) {
    let mut attributes = MaybeUninit::uninit();
    let attributes = attributes.as_mut_ptr();
    let mut low = ptr::null_mut();
    let mut len = 0;
    // SAFETY: `pthread_self` is the calling thread. The attributes are in this frame, filled before
    // they are read and destroyed after.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes) != 0 {
            return (0, 0);
        }
        let answer = libc::pthread_attr_getstack(attributes, &mut low, &mut len);
        libc::pthread_attr_destroy(attributes);
        if answer != 0 {
            return (0, 0);
        }
    }
    (low as usize, low as usize + len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::linux::clock::monotonic_ns;
    use crate::tests::child;
    use std::sync::mpsc;

    /// What a started thread saw of itself.
    struct Seen {
        tid: i32,
        name: String,
        stack: (usize, usize),
        local: usize,
    }

    unsafe extern "C" fn look(arg: *mut c_void) -> *mut c_void {
        set_thread_name(c"gosched-look");
        let local = 0u8;
        let name = std::fs::read_to_string("/proc/thread-self/comm").expect("comm");
        let seen = Seen {
            tid: gettid(),
            name,
            stack: stack_bounds(),
            local: ptr::from_ref(&local) as usize,
        };
        // SAFETY: the test leaked a boxed Sender and gave it to this thread alone.
        let sender = unsafe { Box::from_raw(arg.cast::<mpsc::Sender<Seen>>()) };
        sender.send(seen).expect("the test listens");
        ptr::null_mut()
    }

    #[test]
    fn a_thread_starts_with_its_name_and_stack() {
        for size in [0, 100_000, 1 << 20] {
            let (sender, receiver) = mpsc::channel::<Seen>();
            let arg = Box::into_raw(Box::new(sender));
            // SAFETY: `look` takes the Sender over and needs nothing else (D9).
            unsafe { start_thread(size, look, arg.cast()).expect("thread") };
            let seen = receiver.recv().expect("it ran");
            assert_ne!(seen.tid, gettid());
            assert_eq!(seen.name.trim(), "gosched-look");
            let (low, high) = seen.stack;
            assert!(low < seen.local && seen.local < high);
            assert!(high - low >= size);
        }
    }

    #[test]
    fn an_absurd_stack_is_an_error() {
        let size = 1 << 60;
        // SAFETY: the thread never starts, so `look` does not run.
        let refused = unsafe { start_thread(size, look, ptr::null_mut()) };
        assert!(refused.is_err());
        // SAFETY: the thread never starts, so `look` does not run.
        let refused = unsafe { start_thread(usize::MAX, look, ptr::null_mut()) };
        assert_eq!(refused, Err(Errno(libc::EINVAL)));
    }

    #[test]
    fn ids_match_libc() {
        // SAFETY: the call touches no memory.
        assert_eq!(gettid(), unsafe { libc::gettid() });
    }

    #[test]
    fn sleep_lasts_long_enough() {
        let start = monotonic_ns();
        sleep_ns(5_000_000);
        assert!(monotonic_ns() - start >= 5_000_000);
        sleep_ns(0);
    }

    #[test]
    fn exit_ends_the_process_with_the_code() {
        if child::is_one() {
            exit_process(42);
        }
        let output = child::run(module_path!(), "exit_ends_the_process_with_the_code");
        assert_eq!(output.status.code(), Some(42));
    }
}
