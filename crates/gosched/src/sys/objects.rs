//! The loaded objects, as unwinders see them while goroutines are dumped.
//!
//! It exists so that a dump never waits for the loader's lock.
//!
//! An unwinder needs the tables of the object that a return address lies in. libgcc before 12, and
//! every libgcc on a glibc before 2.35, looks for that object with `dl_iterate_phdr`, which holds
//! the loader's lock. A goroutine that the dump has stopped may hold the same lock, because it was
//! loading a library or unwinding a panic. The dump would then wait for ever, with the world
//! stopped.
//!
//! So this file defines `dl_iterate_phdr`. To a thread that unwinds or looks up symbols for a dump
//! it gives a copy of the list, without a lock. For all other threads it calls libc's. It is
//! exported, so that a libgcc in a shared library finds it before libc's.
//!
//! The copy is made when a runtime is built. Once an unwinder has asked for the list, the copy is
//! also renewed before each dump. A helper thread renews it, and the dump waits for that thread for
//! at most [`PATIENCE`]. Copies are never freed: an unwinder may be using one.

use std::ffi::{CStr, CString, c_int, c_void};
use std::mem::{offset_of, transmute};
use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::base::real_thread;
use crate::sys;

type Callback = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Option<Callback>, *mut c_void) -> c_int;

/// How long a dump waits for a new copy.
const PATIENCE: Duration = Duration::from_millis(200);

/// The size of an entry as callbacks see it. It leaves out the loader's counters, by which libgcc
/// finds entries of a cache that it changes only under the loader's lock.
const ENTRY: usize = offset_of!(libc::dl_phdr_info, dlpi_adds);

/// One copy of the list. The entries point to copies too: an object may be unloaded at any time.
struct Objects(Vec<libc::dl_phdr_info>);

// SAFETY: the list and all it points to do not change once `renew` has published it, and are never
// freed.
unsafe impl Sync for Objects {}
// SAFETY: it owns its copies and has no tie to the thread that made them.
unsafe impl Send for Objects {}

static CURRENT: AtomicPtr<Objects> = AtomicPtr::new(ptr::null_mut());

/// The thread ids of threads that unwind for a dump; 0: free. A thread that finds no free place
/// gets libc's list.
static UNWINDERS: [AtomicI32; 8] = [const { AtomicI32::new(0) }; 8];

/// An unwinder has asked for the list.
static IS_ASKED: AtomicBool = AtomicBool::new(false);

/// While it lives, the calling thread gets the copy.
pub(crate) struct Served(Option<&'static AtomicI32>);

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(place) = self.0 {
            place.store(0, Relaxed);
        }
    }
}

/// The calling thread unwinds, or looks up symbols, for a dump. CONTEXT: signal.
pub(crate) fn serve() -> Served {
    let me = sys::gettid();
    // ORDER: Relaxed; a thread finds only its own id, which it has written itself.
    let is_free = |place: &&AtomicI32| place.compare_exchange(0, me, Relaxed, Relaxed).is_ok();
    let served = Served(UNWINDERS.iter().find(is_free));
    if sys::UNWINDER_ASKS.load(Relaxed) {
        unsafe extern "C" fn first(_: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> c_int {
            1
        }
        // SAFETY: the callback reads none of its arguments.
        unsafe { libc::dl_iterate_phdr(Some(first), ptr::null_mut()) };
    }
    served
}

fn is_served() -> bool {
    let mut places = UNWINDERS.iter().map(|place| place.load(Relaxed));
    if places.clone().all(|tid| tid == 0) {
        return false;
    }
    let me = sys::gettid();
    places.any(|tid| tid == me)
}

// Weak, so that a program may define its own.
#[cfg(not(any(target_feature = "crt-static", gosched_asan)))]
crate::arch::export_weak!("dl_iterate_phdr", ".weak", iterate);

/// # Safety
/// As for `dl_iterate_phdr`.
#[cfg_attr(any(target_feature = "crt-static", gosched_asan), allow(dead_code))]
unsafe extern "C" fn iterate(callback: Option<Callback>, data: *mut c_void) -> c_int {
    // SAFETY: the pointer is null or comes from `Box::leak` in `renew`. ORDER: Acquire; pairs with
    // the Release in `renew`.
    let copy = unsafe { CURRENT.load(Acquire).as_ref() };
    if let (Some(copy), Some(call), true) = (copy, callback, is_served()) {
        IS_ASKED.store(true, Relaxed);
        for entry in &copy.0 {
            let mut entry = *entry;
            // SAFETY: the caller passes a `callback` that accepts `data` (see "Safety"). The entry
            // is a copy in this frame, and `ENTRY` is its size without the counters.
            match unsafe { call(&mut entry, ENTRY, data) } {
                0 => {}
                answer => return answer,
            }
        }
        return 0;
    }
    match libcs() {
        // SAFETY: libc's function has the same contract, which the caller keeps (see "Safety").
        Some(iterate) => unsafe { iterate(callback, data) },
        None => 0,
    }
}

/// libc's own function.
fn libcs() -> Option<Iterate> {
    static FOUND: AtomicUsize = AtomicUsize::new(0);
    let mut found = FOUND.load(Relaxed);
    if found == 0 {
        // SAFETY: the name is a C string. RTLD_NEXT searches past the object that this function is
        // part of.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"dl_iterate_phdr".as_ptr()) } as usize;
        FOUND.store(found, Relaxed);
    }
    // SAFETY: `dlsym` found libc's `dl_iterate_phdr`, which has this type.
    (found != 0).then(|| unsafe { transmute::<usize, Iterate>(found) })
}

/// Makes a copy if there is none, or the loader has loaded or unloaded an object since. Waits for
/// the loader's lock. In user context.
pub(crate) fn renew() {
    static TURN: Mutex<(u64, u64)> = Mutex::new((0, 0));
    let mut last = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(iterate) = libcs() else { return };
    let mut counters = (0, 0);
    // SAFETY: `count` writes to this pair, which outlives the call.
    unsafe { iterate(Some(count), (&raw mut counters).cast()) };
    if *last == counters {
        return;
    }
    let mut list: Vec<libc::dl_phdr_info> = Vec::new();
    // SAFETY: `note` appends to this vector, which outlives the call.
    unsafe { iterate(Some(note), (&raw mut list).cast()) };
    let loaded = list.first().map(|entry| (entry.dlpi_adds, entry.dlpi_subs));
    *last = loaded.unwrap_or_default();
    // ORDER: Release; pairs with the Acquire in `iterate`.
    CURRENT.store(Box::leak(Box::new(Objects(list))), Release);
}

/// Stores the loader's counters of loaded and unloaded objects.
unsafe extern "C" fn count(entry: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid entry, and `renew` the address of its pair.
    unsafe { *to.cast() = ((*entry).dlpi_adds, (*entry).dlpi_subs) };
    1
}

/// Copies one entry. The loader's lock is held, so the memory that the entry points to stays.
unsafe extern "C" fn note(entry: *mut libc::dl_phdr_info, _: usize, list: *mut c_void) -> c_int {
    // SAFETY: the loader passes a valid entry, and `renew` the address of its vector.
    let (mut entry, list) = unsafe { (*entry, &mut *list.cast::<Vec<libc::dl_phdr_info>>()) };
    // SAFETY: the loader's own array and text stay valid while its lock is held, which is until
    // this callback returns.
    unsafe {
        if !entry.dlpi_phdr.is_null() {
            let headers = std::slice::from_raw_parts(entry.dlpi_phdr, entry.dlpi_phnum.into());
            entry.dlpi_phdr = Box::leak(headers.to_vec().into_boxed_slice()).as_ptr();
        }
        if !entry.dlpi_name.is_null() {
            entry.dlpi_name = CString::from(CStr::from_ptr(entry.dlpi_name)).into_raw();
        }
    }
    list.push(entry);
    0
}

/// Renews the copy before a dump, if the unwinder needs it, for at most [`PATIENCE`]. In user
/// context.
pub(crate) fn prepare() {
    if IS_ASKED.load(Relaxed) {
        let (done, wait) = mpsc::channel();
        let started = real_thread::spawn("gosched-symbols", move || {
            renew();
            let _ = done.send(sys::gettid());
        });
        if let Ok(helper) = started
            && let Ok(tid) = wait.recv_timeout(PATIENCE)
        {
            let _ = helper.join();
            wait_until_gone(tid);
        }
    }
}

/// Waits until `/proc` does not list the ended thread any more. A leak check would take it for a
/// thread that may still wake a goroutine.
fn wait_until_gone(tid: i32) {
    let task = format!("/proc/self/task/{tid}");
    let until = Instant::now() + PATIENCE;
    while std::path::Path::new(&task).exists() && Instant::now() < until {
        std::thread::yield_now();
    }
}
