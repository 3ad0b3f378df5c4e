//! What libc does to all threads at once, and would not do right to goroutines by itself.
//!
//! **setuid and its kin** change one thread in the kernel, so libc sends every thread a signal in whose handler the thread
//! follows, and marks it done in its thread block. Libc knows the M's block, not the goroutine's: on the
//! goroutine's FS the mark would be set in the wrong place and the caller would wait for ever. So the handler is wrapped: on
//! an M it runs on the thread's own FS.
//!
//! **Loading a library** whose thread-locals have a fixed place (initial-exec) gives it a piece of the surplus of every
//! thread that libc knows. So `dlopen`, as this program calls it, is ours. On the thread's own FS, and one at a time: it looks
//! what is loaded, loads, looks again, publishes an image with what has come, and then writes the newcomers' initial
//! values into every block there is. Nobody can have changed them: nobody knows the library's code before `dlopen` returns. The
//! library's constructors run on the thread's thread-locals; they must not wait in this library.
//!
//! ```text
//!  who loads                          who makes a block
//!  publishes the new image            copies the image it knows, names it in the header
//!  fence                              fence
//!  writes into blocks with a header   looks whether another image is published; if so, again
//! ```
//! One of the two sees the other. What libc or other libraries load is noticed when the next goroutine begins
//! (`image::is_outdated`); goroutines alive at that moment have zeroes there, which is what nearly all such libraries begin with.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicUsize, fence};

use crate::sched::model::current::{interrupted_m, read_fs};
use crate::sched::registry;
use crate::shim::Futex;
use crate::sys;
use crate::tls::glibc::Reason;
use crate::tls::image;
use crate::tls::modules;
use crate::tls::modules::Module;
use crate::tls::{bounds, call_on_fs, on_thread, scope};

/// libc's signal for changing the ids of all threads; its own functions refuse to speak of it.
const SETXID: c_int = 33;

/// A signal's action, as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// libc's handler.
static LIBCS: AtomicUsize = AtomicUsize::new(0);

/// Wraps the handler; once, after libc has made its first thread and thereby installed its own.
pub(super) fn install() -> Result<(), Reason> {
    // The loader below must be part of the program even if nothing here calls it.
    std::hint::black_box((libc::dlopen as *const (), libc::dlclose as *const ()));
    bounds::keep();
    PROCESS.store(process(), Relaxed);
    let mut action = Action {
        handler: 0,
        flags: 0,
        restorer: 0,
        mask: 0,
    };
    if !sigaction(ptr::null(), &mut action) {
        return Err("the kernel does not tell how the C library changes user ids");
    }
    if action.handler <= 1 {
        return Ok(()); // not installed: this libc does it some other way
    }
    LIBCS.store(action.handler, Release);
    action.handler = on_setxid as *const () as usize;
    action.flags |= libc::SA_ONSTACK as u64;
    if sigaction(&action, ptr::null_mut()) {
        Ok(())
    } else {
        Err("the kernel refuses the signal handler for changes of user ids")
    }
}

fn sigaction(new: *const Action, old: *mut Action) -> bool {
    // SAFETY: the kernel reads and writes the structs that are given.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, SETXID, new, old, 8usize) == 0 }
}

/// CONTEXT: signal.
unsafe extern "C" fn on_setxid(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // ORDER: Acquire; pairs with the Release in `install`.
    let libcs = LIBCS.load(Acquire);
    // SAFETY: D6, the address is libc's own handler for this signal, of this type.
    let libcs: Handler = unsafe { std::mem::transmute(libcs) };
    let call = || {
        // SAFETY: passes on what the kernel gave.
        unsafe { libcs(signal, info, context) };
    };
    match interrupted_m().map(|m| m.own_fs.get()) {
        Some(own) if own != 0 && own != read_fs() => {
            // Not the M's own record: the interrupted code may be about to change FS itself.
            let nobody = AtomicUsize::new(0);
            call_on_fs(own, &raw const nobody, call);
        }
        _ => call(),
    }
}

// Hidden, so that shared libraries keep libc's. In a static program libc's own would be hidden too,
// and goroutines have no blocks of their own there.
#[cfg(not(target_feature = "crt-static"))]
crate::arch::export_weak!("dlopen", ".hidden", load);
#[cfg(not(target_feature = "crt-static"))]
crate::arch::export_weak!("dlclose", ".hidden", unload);

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// The process in which blocks are made; a fork's child is another, where nobody but the caller is left.
static PROCESS: AtomicI32 = AtomicI32::new(0);

#[cfg_attr(target_feature = "crt-static", allow(dead_code))]
unsafe extern "C" fn load(path: *const c_char, flags: c_int) -> *mut c_void {
    static LIBCS: AtomicUsize = AtomicUsize::new(0);
    let mut libcs = LIBCS.load(Relaxed);
    if libcs == 0 {
        // SAFETY: a look-up by name; ours is hidden, so it is passed by.
        libcs = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlopen".as_ptr()) } as usize;
        LIBCS.store(libcs, Relaxed);
    }
    if libcs == 0 {
        return ptr::null_mut(); // no libc with a loader, nothing to load
    }
    // SAFETY: D6, libc's dlopen has this type.
    let libcs: Dlopen = unsafe { std::mem::transmute(libcs) };
    // SAFETY: by the caller's promise to dlopen.
    let call = || unsafe { libcs(path, flags) };
    if image::current().is_null() || PROCESS.load(Relaxed) != process() {
        return call();
    }
    let _stand_in = scope::StandIn::begin();
    let handle = on_thread(|| load_and_tell(call));
    if handle.is_null() {
        return call(); // it fails again, and tells the caller's own `dlerror` why
    }
    handle
}

type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

/// libc waits in it for everybody who looks symbols up, and the stand-in makes it wait for
/// goroutines (`scope`).
#[cfg_attr(target_feature = "crt-static", allow(dead_code))]
unsafe extern "C" fn unload(handle: *mut c_void) -> c_int {
    static LIBCS: AtomicUsize = AtomicUsize::new(0);
    let mut libcs = LIBCS.load(Relaxed);
    if libcs == 0 {
        // SAFETY: a look-up by name; ours is hidden, so it is passed by.
        libcs = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dlclose".as_ptr()) } as usize;
        LIBCS.store(libcs, Relaxed);
    }
    if libcs == 0 {
        return -1; // no libc with a loader, nothing to unload
    }
    // SAFETY: D6, libc's dlclose has this type.
    let libcs: Dlclose = unsafe { std::mem::transmute(libcs) };
    let has_blocks = !image::current().is_null() && PROCESS.load(Relaxed) == process();
    let _stand_in = has_blocks.then(scope::StandIn::begin);
    // SAFETY: by the caller's promise to dlclose.
    unsafe { libcs(handle) }
}

fn process() -> i32 {
    // SAFETY: a bare question.
    unsafe { libc::getpid() }
}

/// Loads, and brings all blocks up to what has come. On a thread that libc made, on its own FS.
fn load_and_tell(call: impl FnOnce() -> *mut c_void) -> *mut c_void {
    // SAFETY: D6, images are never freed, and there is one.
    let glibc = unsafe { &(*image::current()).glibc };
    let _turn = Turn::take();
    let before = modules::list(glibc).fixed;
    let handle = call();
    let after = modules::list(glibc).fixed;
    let is_new = |module: &&Module| !before.contains(module);
    let loaded: Vec<Module> = after.iter().filter(is_new).copied().collect();
    if !handle.is_null()
        && !loaded.is_empty()
        && let Some(new) = image::renew()
    {
        fence(SeqCst); // pairs with the one in `Block::make`
        for sched in registry::snapshot()
            .iter()
            .filter(|sched| sched.tls.is_own())
        {
            sched.arena.for_each_block(|fs| {
                // One that somebody unloads at this moment is in the image no more.
                for module in loaded.iter().filter(|module| new.modules.contains(module)) {
                    // SAFETY: D6, a block with memory; nobody has used the module yet, as above.
                    unsafe { new.imprint_module(module, fs) };
                }
            });
        }
    }
    handle
}

/// The one who loads, by the kernel's id of its thread; 0: nobody. A library's constructor may load another, on the same
/// thread. Waiting blocks the thread, as waiting for libc's own lock on its loader does.
static LOADS: Futex = Futex::new(0);

struct Turn {
    is_outer: bool,
}

impl Turn {
    fn take() -> Turn {
        let me = sys::gettid() as u32;
        if LOADS.0.load(Relaxed) == me {
            return Turn { is_outer: false };
        }
        // ORDER: Acquire; pairs with the Release of the one before.
        while let Err(other) = LOADS.0.compare_exchange(0, me, Acquire, Relaxed) {
            LOADS.wait(other, None);
        }
        Turn { is_outer: true }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_outer {
            LOADS.0.store(0, Release);
            sys::futex_wake_ptr(&LOADS.0, u32::MAX);
        }
    }
}
