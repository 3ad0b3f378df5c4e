//! Libraries that are loaded while goroutines have blocks.
//!
//! **Loading a library** whose thread-locals have a fixed place (initial-exec) gives it a piece of
//! the surplus of every thread that libc knows, where the surplus is not reserved (`surplus`). libc
//! does not know the goroutines. So `dlopen`, as
//! this program calls it, is ours (`interpose/dlopen.rs`). On the thread's own block, one at a
//! time:
//! 1. it lists what is loaded, loads, and lists again;
//! 2. it publishes an image with what has come;
//! 3. it writes the newcomers' initial values into every block there is.
//!
//! No code can have changed these values before: no code knows the library before `dlopen` returns.
//! The library's constructors run on the thread's thread-locals; they must not wait in gosched.
//!
//! ```text
//!  the thread that loads              a goroutine that makes a block
//!  publishes the new image            copies the image it knows, names it in the header
//!  fence                              fence
//!  writes into blocks with a header   looks whether another image is published; if so, again
//! ```
//! One of the two sees the other. What libc or other libraries load is noticed when the next
//! goroutine begins (`image::is_outdated`). Goroutines alive at that moment have zeroes there,
//! which is what nearly all such libraries begin with.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use crate::shim::Futex;
use crate::sys;
use crate::tls::modules::Module;
use crate::tls::{image, modules};

/// Whether blocks are made in this process: an image of them is published.
pub(crate) fn has_blocks() -> bool {
    !image::current().is_null()
}

/// Loads by `call`, and brings all blocks up to what has come. `for_each_block` calls its argument
/// with the thread pointer of each block. On a thread that libc made, on its own block.
pub(crate) fn load_and_tell(
    call: impl FnOnce() -> *mut c_void,
    for_each_block: impl FnOnce(&mut dyn FnMut(usize)),
) -> *mut c_void {
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
        for_each_block(&mut |tp| {
            // One that another thread unloads at this moment is in the image no more.
            for module in loaded.iter().filter(|module| new.modules.contains(module)) {
                // SAFETY: D6, a block with memory. No code of the module has run on it: only the
                // caller of this `dlopen` will learn where that code is.
                unsafe { new.imprint_module(module, tp) };
            }
        });
    }
    handle
}

/// The kernel's id of the thread that loads; 0: none does. A library's constructor may load another
/// library, on the same thread. Waiting blocks the thread, as waiting for libc's own lock on its
/// loader does.
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
        // ORDER: Acquire; pairs with the Release of the last `drop`.
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
