//! The functions of pthreads themselves, on handles of goroutines.

use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::time::Duration;

use libc::{pthread_attr_t, pthread_t};

use crate::common::{child, until};

unsafe extern "C" {
    fn pthread_cancel(thread: pthread_t) -> c_int;
    fn pthread_equal(a: pthread_t, b: pthread_t) -> c_int;
    fn pthread_tryjoin_np(thread: pthread_t, result: *mut *mut c_void) -> c_int;
    fn pthread_timedjoin_np(
        thread: pthread_t,
        result: *mut *mut c_void,
        until: *const libc::timespec,
    ) -> c_int;
    fn pthread_exit(result: *mut c_void) -> !;
}

type Start = extern "C" fn(*mut c_void) -> *mut c_void;

fn create(start: Start, argument: usize) -> pthread_t {
    create_with(ptr::null(), start, argument).unwrap()
}

fn create_with(
    attributes: *const pthread_attr_t,
    start: Start,
    argument: usize,
) -> Result<pthread_t, c_int> {
    let mut thread = 0;
    let argument = ptr::without_provenance_mut(argument);
    // SAFETY: the functions of these tests may run on any thread with any argument.
    match unsafe { libc::pthread_create(&mut thread, attributes, start, argument) } {
        0 => Ok(thread),
        error => Err(error),
    }
}

fn join(thread: pthread_t) -> Result<usize, c_int> {
    let mut result = ptr::null_mut();
    // SAFETY: a handle of these tests, and a variable of this frame.
    match unsafe { libc::pthread_join(thread, &mut result) } {
        0 => Ok(result.addr()),
        error => Err(error),
    }
}

fn own() -> pthread_t {
    // SAFETY: the call has no condition.
    unsafe { libc::pthread_self() }
}

extern "C" fn add_one(argument: *mut c_void) -> *mut c_void {
    assert!(gosched::hook::is_goroutine());
    ptr::without_provenance_mut(argument.addr() + 1)
}

/// Ends when the flag with this address is set.
extern "C" fn wait_for_flag(flag: *mut c_void) -> *mut c_void {
    // SAFETY: the tests pass the address of a flag that outlives the thread.
    let flag = unsafe { &*flag.cast::<AtomicBool>() };
    until(|| flag.load(SeqCst));
    ptr::null_mut()
}

extern "C" fn own_handle(_: *mut c_void) -> *mut c_void {
    ptr::without_provenance_mut(own() as usize)
}

fn address(flag: &AtomicBool) -> usize {
    ptr::from_ref(flag).addr()
}

#[test]
fn join_returns_the_result_once() {
    gosched::run(|| {
        let thread = create(add_one, 41);
        assert_eq!(join(thread), Ok(42));
        assert_eq!(join(thread), Err(libc::ESRCH));
        // SAFETY: an old handle is found to be old.
        assert_eq!(unsafe { libc::pthread_detach(thread) }, libc::ESRCH);
    });
}

#[test]
fn a_plain_thread_joins_a_goroutine() {
    let runtime = gosched::Runtime::builder().build().unwrap();
    static GO: AtomicBool = AtomicBool::new(false);
    let thread = runtime.run(|| create(wait_for_flag, address(&GO)));
    let joiner = std::thread::spawn(move || join(thread));
    std::thread::sleep(Duration::from_millis(20));
    assert!(!joiner.is_finished());
    // The goroutine continues only while some thread runs the runtime.
    runtime.run(|| GO.store(true, SeqCst));
    assert_eq!(joiner.join().unwrap(), Ok(0));
}

#[test]
fn handles_are_consistent() {
    gosched::run(|| {
        let before = own();
        let threads: Vec<_> = (0..10).map(|_| create(own_handle, 0)).collect();
        for thread in &threads {
            assert_eq!(join(*thread), Ok(*thread as usize));
            // SAFETY: two handles.
            assert_eq!(unsafe { pthread_equal(*thread, before) }, 0);
        }
        assert_eq!(own(), before);
        // SAFETY: two handles.
        assert_ne!(unsafe { pthread_equal(own(), before) }, 0);
    });
}

#[test]
fn a_thread_cannot_join_itself() {
    extern "C" fn join_own(_: *mut c_void) -> *mut c_void {
        ptr::without_provenance_mut(join(own()).unwrap_err() as usize)
    }
    gosched::run(|| assert_eq!(join(create(join_own, 0)), Ok(libc::EDEADLK as usize)));
}

#[test]
fn a_detached_thread_cannot_be_joined() {
    gosched::run(|| {
        let go = AtomicBool::new(false);
        let thread = create(wait_for_flag, address(&go));
        // SAFETY: a handle of this test.
        let detach = || unsafe { libc::pthread_detach(thread) };
        assert_eq!(detach(), 0);
        assert_eq!(detach(), libc::EINVAL);
        assert_eq!(join(thread), Err(libc::EINVAL));
        go.store(true, SeqCst);
        // Its record goes to another thread when it has ended.
        until(|| join(thread) == Err(libc::ESRCH));
    });
}

#[test]
fn a_thread_may_detach_itself() {
    static ENDED: AtomicU32 = AtomicU32::new(0);
    extern "C" fn detach_own(_: *mut c_void) -> *mut c_void {
        // SAFETY: the caller's own handle.
        assert_eq!(unsafe { libc::pthread_detach(own()) }, 0);
        ENDED.fetch_add(1, SeqCst);
        ptr::null_mut()
    }
    gosched::run(|| {
        for _ in 0..100 {
            create(detach_own, 0);
        }
        until(|| ENDED.load(SeqCst) == 100);
    });
}

#[test]
fn attributes_are_respected() {
    extern "C" fn stack_size(_: *mut c_void) -> *mut c_void {
        let mut attributes = MaybeUninit::uninit();
        let (mut at, mut size) = (ptr::null_mut(), 0);
        // SAFETY: libc initialises the attributes of this frame, which are destroyed after use.
        unsafe {
            let attributes: *mut pthread_attr_t = attributes.as_mut_ptr();
            assert_eq!(libc::pthread_getattr_np(own(), attributes), 0);
            assert_eq!(
                libc::pthread_attr_getstack(attributes, &mut at, &mut size),
                0
            );
            libc::pthread_attr_destroy(attributes);
        }
        let here = ptr::from_ref(&size).addr();
        assert!((at.addr()..at.addr() + size).contains(&here));
        ptr::without_provenance_mut(size)
    }
    gosched::run(|| {
        let mut attributes = MaybeUninit::uninit();
        let attributes: *mut pthread_attr_t = attributes.as_mut_ptr();
        // SAFETY: the attributes are this frame's, and initialised before use.
        unsafe {
            libc::pthread_attr_init(attributes);
            libc::pthread_attr_setstacksize(attributes, 16 << 20);
            let thread = create_with(attributes, stack_size, 0).unwrap();
            let size = join(thread).unwrap();
            assert!((16 << 20..17 << 20).contains(&size), "{size}");
            libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
            let go = AtomicBool::new(false);
            let thread = create_with(attributes, wait_for_flag, address(&go)).unwrap();
            assert_eq!(join(thread), Err(libc::EINVAL));
            go.store(true, SeqCst);
            until(|| join(thread) == Err(libc::ESRCH));
            libc::pthread_attr_destroy(attributes);
        }
    });
}

#[test]
fn a_stack_or_cpus_of_the_callers_make_a_real_thread() {
    extern "C" fn is_goroutine(_: *mut c_void) -> *mut c_void {
        ptr::without_provenance_mut(usize::from(gosched::hook::is_goroutine()))
    }
    gosched::run(|| {
        let size = 1 << 20;
        let mut attributes = MaybeUninit::uninit();
        let attributes: *mut pthread_attr_t = attributes.as_mut_ptr();
        // SAFETY: the attributes are this frame's, initialised before use. The memory is mapped
        // until the thread is joined.
        unsafe {
            let memory = libc::mmap(
                ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(memory, libc::MAP_FAILED);
            libc::pthread_attr_init(attributes);
            libc::pthread_attr_setstack(attributes, memory, size);
            let thread = create_with(attributes, is_goroutine, 0).unwrap();
            assert_eq!(join(thread), Ok(0));
            libc::pthread_attr_destroy(attributes);
            libc::munmap(memory, size);

            let mut cpus: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&cpus), &mut cpus), 0);
            libc::pthread_attr_init(attributes);
            libc::pthread_attr_setaffinity_np(attributes, size_of_val(&cpus), &cpus);
            let thread = create_with(attributes, is_goroutine, 0).unwrap();
            assert_eq!(join(thread), Ok(0));
            libc::pthread_attr_destroy(attributes);
        }
        assert_eq!(join(create(is_goroutine, 0)), Ok(1));
    });
}

#[test]
fn a_goroutine_joins_a_real_thread() {
    extern "C" fn sleep(_: *mut c_void) -> *mut c_void {
        std::thread::sleep(Duration::from_millis(10));
        ptr::without_provenance_mut(usize::from(gosched::hook::is_goroutine()))
    }
    gosched::run(|| {
        let thread = gosched_hook::real_threads(|| create(sleep, 0));
        assert_eq!(join(thread), Ok(0));
    });
}

#[test]
fn keys_have_destructors() {
    static KEY: AtomicU32 = AtomicU32::new(0);
    static SUM: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn set(value: *mut c_void) -> *mut c_void {
        let key = KEY.load(SeqCst);
        // SAFETY: the key is made before the threads and deleted after them.
        unsafe {
            assert!(libc::pthread_getspecific(key).is_null());
            assert_eq!(libc::pthread_setspecific(key, value), 0);
            std::thread::sleep(Duration::from_millis(2));
            libc::pthread_getspecific(key)
        }
    }
    unsafe extern "C" fn destroy(value: *mut c_void) {
        SUM.fetch_add(value.addr(), SeqCst);
    }
    gosched::run(|| {
        let mut key = 0;
        // SAFETY: a variable of this frame, and a function of this type.
        let made = unsafe { libc::pthread_key_create(&mut key, Some(destroy)) };
        assert_eq!(made, 0);
        KEY.store(key, SeqCst);
        let threads: Vec<_> = (1..=20).map(|n| (n, create(set, n))).collect();
        for (n, thread) in threads {
            assert_eq!(join(thread), Ok(n));
        }
        assert_eq!(SUM.load(SeqCst), 210);
        // SAFETY: no thread uses the key any more.
        unsafe { libc::pthread_key_delete(key) };
    });
}

#[test]
fn a_thread_has_the_name_that_it_is_given() {
    static GO: AtomicBool = AtomicBool::new(false);
    extern "C" fn name_own(_: *mut c_void) -> *mut c_void {
        // SAFETY: the texts end with a zero.
        unsafe {
            assert_eq!(libc::pthread_setname_np(own(), c"own".as_ptr()), 0);
            let long = c"sixteen letters!".as_ptr();
            assert_eq!(libc::pthread_setname_np(own(), long), libc::ERANGE);
        }
        assert_eq!(gosched::thread::current().name(), Some("own"));
        until(|| GO.load(SeqCst));
        ptr::null_mut()
    }
    let name_of = |thread| {
        let mut name = [1 as c_char; 16];
        // SAFETY: the memory has 16 bytes.
        let error = unsafe { libc::pthread_getname_np(thread, name.as_mut_ptr(), 16) };
        let name = name.map(|byte| byte as u8);
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(0);
        (error, String::from_utf8_lossy(&name[..len]).into_owned())
    };
    gosched::run(move || {
        let comm = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let thread = create(name_own, 0);
        until(|| name_of(thread).1 == "own");
        // SAFETY: a text with a zero; memory of this size.
        unsafe {
            assert_eq!(libc::pthread_setname_np(thread, c"other".as_ptr()), 0);
            let mut byte = 0;
            assert_eq!(libc::pthread_getname_np(thread, &mut byte, 1), libc::ERANGE);
        }
        assert_eq!(name_of(thread), (0, "other".into()));
        // The thread that runs goroutines keeps its own.
        assert!(!["own\n", "other\n"].contains(&comm().as_str()));
        GO.store(true, SeqCst);
        assert_eq!(join(thread), Ok(0));
        assert_eq!(name_of(thread).0, libc::ESRCH);
    });
}

#[test]
fn signals_reach_only_the_caller_itself() {
    static CAUGHT: AtomicU32 = AtomicU32::new(0);
    extern "C" fn count(_: c_int) {
        CAUGHT.fetch_add(1, SeqCst);
    }
    extern "C" fn signal_own(_: *mut c_void) -> *mut c_void {
        // SAFETY: the handler for the signal is installed.
        unsafe {
            assert_eq!(libc::pthread_kill(own(), 0), 0);
            assert_eq!(libc::pthread_kill(own(), 1_000), libc::EINVAL);
            assert_eq!(libc::pthread_kill(own(), libc::SIGWINCH), 0);
            assert_eq!(CAUGHT.load(SeqCst), 1);
            let value = libc::sigval {
                sival_ptr: ptr::null_mut(),
            };
            assert_eq!(libc::pthread_sigqueue(own(), libc::SIGWINCH, value), 0);
        }
        ptr::without_provenance_mut(CAUGHT.load(SeqCst) as usize)
    }
    gosched::run(|| {
        // SAFETY: the handler only adds to a counter.
        unsafe { libc::signal(libc::SIGWINCH, count as *const () as usize) };
        assert_eq!(join(create(signal_own, 0)), Ok(2));
        let go = AtomicBool::new(false);
        let thread = create(wait_for_flag, address(&go));
        // SAFETY: a handle of this test.
        let kill = |signal| unsafe { libc::pthread_kill(thread, signal) };
        assert_eq!(kill(0), 0);
        let mut attributes = MaybeUninit::uninit();
        // SAFETY: memory for attributes, which libc does not initialise if it refuses.
        let refused = unsafe { libc::pthread_getattr_np(thread, attributes.as_mut_ptr()) };
        assert_eq!(refused, libc::ENOSYS);
        assert_eq!(kill(libc::SIGWINCH), libc::ENOSYS);
        assert_eq!(kill(-1), libc::EINVAL);
        go.store(true, SeqCst);
        assert_eq!(join(thread), Ok(0));
        assert_eq!(kill(0), libc::ESRCH);
    });
}

#[test]
fn what_goroutines_cannot_do_is_refused() {
    gosched::run(|| {
        let go = AtomicBool::new(false);
        let thread = create(wait_for_flag, address(&go));
        // SAFETY: a handle of this test, and variables of this frame.
        let answers = || unsafe {
            let (mut clock, mut policy) = (0, -1);
            let mut parameters: libc::sched_param = std::mem::zeroed();
            let mut cpus: libc::cpu_set_t = std::mem::zeroed();
            let size = size_of_val(&cpus);
            let cancelled = pthread_cancel(thread);
            let clocked = libc::pthread_getcpuclockid(thread, &mut clock);
            let got = libc::pthread_getschedparam(thread, &mut policy, &mut parameters);
            let kept = libc::pthread_setschedparam(thread, libc::SCHED_OTHER, &parameters);
            parameters.sched_priority = 1;
            let raised = libc::pthread_setschedparam(thread, libc::SCHED_FIFO, &parameters);
            let raised_too = libc::pthread_setschedprio(thread, 1);
            let found = libc::pthread_getaffinity_np(thread, size, &mut cpus);
            let set = libc::pthread_setaffinity_np(thread, size, &cpus);
            [
                cancelled, clocked, got, kept, raised, raised_too, found, set,
            ]
        };
        let refused = [
            libc::ENOSYS,
            libc::ENOENT,
            0,
            0,
            libc::EPERM,
            libc::EINVAL,
            0,
            libc::ENOSYS,
        ];
        assert_eq!(answers(), refused);
        go.store(true, SeqCst);
        assert_eq!(join(thread), Ok(0));
        assert_eq!(answers(), [libc::ESRCH; 8]);
    });
}

#[test]
fn joins_with_deadlines_end() {
    gosched::run(|| {
        let go = AtomicBool::new(false);
        let thread = create(wait_for_flag, address(&go));
        let mut result = ptr::null_mut();
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: a handle of this test, and variables of this frame.
        unsafe {
            assert_eq!(pthread_tryjoin_np(thread, &mut result), libc::EBUSY);
            libc::clock_gettime(libc::CLOCK_REALTIME, &mut time);
            assert_eq!(
                pthread_timedjoin_np(thread, &mut result, &time),
                libc::ETIMEDOUT
            );
            time.tv_nsec = -1;
            assert_eq!(
                pthread_timedjoin_np(thread, &mut result, &time),
                libc::EINVAL
            );
            go.store(true, SeqCst);
            time.tv_nsec = 0;
            time.tv_sec += 3_600;
            assert_eq!(pthread_timedjoin_np(thread, &mut result, &time), 0);
            assert_eq!(pthread_tryjoin_np(thread, &mut result), libc::ESRCH);
        }
    });
}

#[test]
fn the_signal_stack_of_the_thread_stays() {
    fn signal_stack() -> (usize, c_int) {
        let mut stack = MaybeUninit::<libc::stack_t>::uninit();
        // SAFETY: the kernel writes the struct.
        unsafe {
            assert_eq!(
                libc::syscall(libc::SYS_sigaltstack, 0, stack.as_mut_ptr()),
                0
            );
            let stack = stack.assume_init();
            (stack.ss_sp.addr(), stack.ss_flags)
        }
    }
    extern "C" fn change(_: *mut c_void) -> *mut c_void {
        let before = signal_stack();
        let off = libc::stack_t {
            ss_sp: ptr::null_mut(),
            ss_flags: libc::SS_DISABLE,
            ss_size: 0,
        };
        let mut old = MaybeUninit::<libc::stack_t>::uninit();
        // SAFETY: libc reads one struct and writes the other.
        let old = unsafe {
            assert_eq!(libc::sigaltstack(&off, old.as_mut_ptr()), 0);
            old.assume_init()
        };
        assert_eq!(old.ss_flags & libc::SS_DISABLE, 0);
        assert_eq!(signal_stack(), before);
        ptr::null_mut()
    }
    gosched::Runtime::builder()
        .procs(1)
        .build()
        .unwrap()
        .run(|| {
            assert_eq!(join(create(change, 0)), Ok(0));
        });
}

extern "C" fn exit_with(result: *mut c_void) -> *mut c_void {
    // SAFETY: the frames of this thread have nothing to drop.
    unsafe { pthread_exit(result) }
}

#[test]
fn pthread_exit_ends_a_real_thread() {
    assert_eq!(join(create(exit_with, 5)), Ok(5));
    gosched::run(|| {
        let thread = gosched_hook::real_threads(|| create(exit_with, 6));
        assert_eq!(join(thread), Ok(6));
    });
}

#[test]
fn pthread_exit_on_a_goroutine_is_refused() {
    let ended = child("pthread_exit_on_a_goroutine_is_refused", || {
        gosched::run(|| join(create(exit_with, 5)).unwrap());
    });
    assert!(!ended.status.success());
    ended.says(&["gosched-hook: pthread_exit on a goroutine"]);
}

#[test]
fn an_old_handle_is_not_that_of_a_later_thread() {
    gosched::run(|| {
        let old = create(add_one, 0);
        assert_eq!(join(old), Ok(1));
        // Enough to use every free record again.
        let later: Vec<_> = (0..500).map(|n| create(add_one, n)).collect();
        assert!(!later.contains(&old));
        assert_eq!(join(old), Err(libc::ESRCH));
        // SAFETY: an old handle is found to be old.
        assert_eq!(unsafe { libc::pthread_kill(old, 0) }, libc::ESRCH);
        for (n, thread) in later.into_iter().enumerate() {
            assert_eq!(join(thread), Ok(n + 1));
        }
    });
}
