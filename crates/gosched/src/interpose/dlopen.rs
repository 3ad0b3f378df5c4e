//! `dlopen` and `dlclose`, as this program calls them.
//!
//! Both let a thread stand in for the goroutines while the loader's lists change (`tls/scope.rs`).
//! `dlopen` also brings a new library's thread-locals into the goroutines' blocks
//! (`tls/late_libraries.rs`). It runs on the thread's own block, and so do the library's
//! constructors, which must not wait in gosched.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicUsize};

use crate::sched::life::registry;
use crate::sched::life::thread_locals::on_thread;
use crate::tls::late_libraries::{has_blocks, load_and_tell};
use crate::tls::scope::{self, StandIn};

// Hidden, so that shared libraries keep libc's. In a static program libc's own would be hidden too,
// and goroutines have no blocks of their own there.
#[cfg(not(target_feature = "crt-static"))]
crate::arch::export_weak!("dlopen", ".hidden", load);
#[cfg(not(target_feature = "crt-static"))]
crate::arch::export_weak!("dlclose", ".hidden", unload);

/// Makes the functions below part of the program even if nothing here calls them.
pub(super) fn install() {
    std::hint::black_box((libc::dlopen as *const (), libc::dlclose as *const ()));
    PROCESS.store(process(), Relaxed);
}

/// The process in which blocks are made; a fork's child is another, where only the caller's thread
/// is left.
static PROCESS: AtomicI32 = AtomicI32::new(0);

fn process() -> i32 {
    // SAFETY: a bare question.
    unsafe { libc::getpid() }
}

/// Whether goroutines of this process may have blocks.
fn concerns_blocks() -> bool {
    has_blocks() && PROCESS.load(Relaxed) == process()
}

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

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
    if flags & libc::RTLD_DEEPBIND != 0 {
        crate::sched::waiting::futex::always_enter_kernel(); // its calls pass by the hooks
    }
    // SAFETY: D6, libc's dlopen has this type.
    let libcs: Dlopen = unsafe { std::mem::transmute(libcs) };
    // SAFETY: `path` and `flags` are the caller's, as `dlopen` demands them.
    let call = || unsafe { libcs(path, flags) };
    if !concerns_blocks() {
        return call();
    }
    let _stand_in = stand_in();
    let handle = on_thread(|| load_and_tell(call, for_each_block));
    if handle.is_null() {
        return call(); // it fails again, and tells the caller's own `dlerror` why
    }
    handle
}

type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

/// libc waits in it for every thread that looks symbols up, and the stand-in makes it wait for
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
    let _stand_in = concerns_blocks().then(stand_in);
    // SAFETY: the handle is the caller's, as `dlclose` demands it.
    unsafe { libcs(handle) }
}

/// Calls `f` with the thread pointer of every block of every runtime that has memory.
fn for_each_block(f: &mut dyn FnMut(usize)) {
    let runtimes = registry::snapshot();
    for sched in runtimes.iter().filter(|sched| sched.tls.is_own()) {
        sched.arena.for_each_block(&mut *f);
    }
}

/// Starts the stand-in if a runtime has goroutines that libc does not know.
fn stand_in() -> Option<StandIn> {
    let has_own = || registry::snapshot().iter().any(|sched| sched.tls.is_own());
    StandIn::begin(has_own, wait_for_goroutines)
}

/// Until the flag of each goroutine has been down.
pub(crate) fn wait_for_goroutines() {
    scope::wait_until_seen();
    for m in registry::every_m() {
        // An M without a thread is on no block.
        scope::wait_until_down(|| match m.tid.load(Relaxed) {
            0 => 0,
            _ => m.tp.current(),
        });
    }
}
