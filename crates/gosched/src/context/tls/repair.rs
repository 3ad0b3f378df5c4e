//! What libc does to all threads at once, and would not do right to goroutines by itself.
//!
//! **setuid and its kin** change one thread in the kernel, so libc sends every thread a signal in whose handler the thread
//! follows, and marks it done in its thread block. Libc knows the M's block, not the goroutine's: on the
//! goroutine's FS the mark would be set in the wrong place and the caller would wait for ever. So the handler is wrapped: on
//! an M it runs on the thread's own FS.
//!
//! **Loading a library** whose thread-locals have a fixed place (initial-exec) gives it a piece of the surplus of every
//! thread that libc knows. So `dlopen`, as this program calls it, is ours: it loads on the thread's own FS, then makes a new
//! image and copies the library's part into all live blocks while the world is stopped; into the caller's as the library's
//! constructors left it. `dlclose` is ours too: a library that is loaded again begins anew. Libraries that libc loads by itself
//! get zeroes there, which is what nearly all of them begin with.

use std::arch::global_asm;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::block::Block;
use super::glibc::Reason;
use super::image::{self, Image};
use super::modules::{self, Module};
use super::{call_on_fs, on_thread};
use crate::context::current::{current_m, interrupted_m, read_fs};
use crate::sched::gstatus::Status;
use crate::sched::{Sched, registry};

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
    std::hint::black_box(libc::dlopen as *const ());
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

// Weak, so that a program may have its own; hidden, so that shared libraries keep libc's.
global_asm!(
    ".pushsection .text.gosched_loader,\"ax\",@progbits",
    ".weak dlopen",
    ".hidden dlopen",
    ".type dlopen, @function",
    "dlopen:",
    "jmp {load}",
    ".size dlopen, . - dlopen",
    ".weak dlclose",
    ".hidden dlclose",
    ".type dlclose, @function",
    "dlclose:",
    "jmp {unload}",
    ".size dlclose, . - dlclose",
    ".popsection",
    load = sym load,
    unload = sym unload,
);

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The address of libc's function of that name; ours are hidden, so the look-up passes them by.
fn libcs(name: &CStr, known: &AtomicUsize) -> Option<usize> {
    let mut address = known.load(Relaxed);
    if address == 0 {
        // SAFETY: a look-up by name.
        address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as usize;
        known.store(address, Relaxed);
    }
    (address != 0).then_some(address)
}

unsafe extern "C" fn load(path: *const c_char, flags: c_int) -> *mut c_void {
    static LIBCS: AtomicUsize = AtomicUsize::new(0);
    let Some(libcs) = libcs(c"dlopen", &LIBCS) else {
        return ptr::null_mut(); // no libc with a loader, nothing to load
    };
    // SAFETY: D6, libc's dlopen has this type.
    let libcs: Dlopen = unsafe { std::mem::transmute(libcs) };
    // SAFETY: by the caller's promise to dlopen.
    let handle = on_thread(|| unsafe { libcs(path, flags) });
    if handle.is_null() {
        // It fails again, and tells the caller's own `dlerror` why.
        // SAFETY: as above.
        return unsafe { libcs(path, flags) };
    }
    catch_up();
    handle
}

unsafe extern "C" fn unload(handle: *mut c_void) -> c_int {
    static LIBCS: AtomicUsize = AtomicUsize::new(0);
    let Some(libcs) = libcs(c"dlclose", &LIBCS) else {
        return -1;
    };
    // SAFETY: D6, libc's dlclose has this type; the rest by the caller's promise to dlclose.
    let closed = unsafe { std::mem::transmute::<usize, Dlclose>(libcs)(handle) };
    catch_up();
    closed
}

/// Brings the image and all live blocks up to what is loaded now. In user context.
fn catch_up() {
    static BUSY: AtomicBool = AtomicBool::new(false);
    if image::current().is_null() {
        return; // nobody has thread-locals of its own
    }
    // Whoever waits must stay reachable for the stop below, so it yields instead of blocking.
    while BUSY.swap(true, Acquire) {
        crate::yield_now();
    }
    // SAFETY: D6, images are never freed.
    if let Some(old) = unsafe { image::current().as_ref() }
        && let Some(new) = on_thread(|| changed(old))
    {
        image::publish(new);
        let is_new = |module: &&Module| !old.modules.contains(module);
        let loaded: Vec<Module> = new.modules.iter().filter(is_new).copied().collect();
        if !loaded.is_empty() {
            let runtimes = registry::snapshot();
            runtimes
                .iter()
                .for_each(|sched| add_modules(sched, new, &loaded));
            copy_from_thread(&loaded);
        }
    }
    BUSY.store(false, Release);
}

/// The new image, if what has a place in every block is no longer what it was.
fn changed(old: &Image) -> Option<&'static Image> {
    let loaded = modules::list(&old.glibc).fixed;
    let is_same = loaded.len() == old.modules.len()
        && loaded.iter().all(|module| old.modules.contains(module));
    (!is_same)
        .then(|| Image::new(&old.glibc))
        .flatten()
        .map(|image| &*Box::leak(Box::new(image)))
}

fn add_modules(sched: &Sched, new: &Image, loaded: &[Module]) {
    if !sched.tls.is_own() {
        return;
    }
    let Some(stopped) = sched.stop_the_world() else {
        return; // a dead runtime: its goroutines run no more
    };
    sched.blocks.for_each(|g| {
        let is_live = !matches!(g.status.get(), Status::Dead | Status::Idle);
        let hi = g.stack_hi.get();
        if is_live && hi != 0 && Block::at(hi, &sched.tls).is_made() {
            for module in loaded {
                // SAFETY: P4, the world is stopped; the new objects' code is not known to anybody yet.
                unsafe { new.imprint_module(module, hi + sched.tls.above) };
            }
        }
    });
    drop(stopped);
}

/// The calling goroutine has run the constructors, though on the thread's FS: it gets what they left.
fn copy_from_thread(loaded: &[Module]) {
    let Some(m) = current_m() else { return };
    let (own, fs) = (m.own_fs.get(), m.fs.load(Relaxed));
    if own == fs {
        return;
    }
    for module in loaded {
        // SAFETY: D6, both are whole blocks with a place for the module; nothing switches meanwhile.
        unsafe {
            let (from, to) = (own - module.offset, fs - module.offset);
            ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, module.len);
        }
    }
}
