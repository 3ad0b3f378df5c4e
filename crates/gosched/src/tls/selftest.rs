//! The rehearsal: before any goroutine depends on it, a block is made, used as programs use
//! threads, and finished. It must then be as new.
//!
//! A fork is not rehearsed, for a library must not fork the program it is part of. What a fork
//! needs of the block (its place in libc's list of threads, its robust list) is checked word by
//! word instead.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::arch::thread_pointer;
use crate::tls::block::Block;
use crate::tls::dtv::Dtv;
use crate::tls::glibc::{NO_MEMORY, Reason, is_malloc_libcs, use_malloc, use_random};
use crate::tls::image::Image;
use crate::tls::{call_on_tp, flag, read_words, write_words};

/// Destructors that have run: the thread-local's and the key's.
static DROPPED: AtomicUsize = AtomicUsize::new(0);
static KEY_ENDED: AtomicUsize = AtomicUsize::new(0);

struct Guest(Cell<u32>);

impl Drop for Guest {
    fn drop(&mut self) {
        DROPPED.fetch_add(1, SeqCst);
    }
}

thread_local! {
    static GUEST: Guest = const { Guest(Cell::new(7)) };
}

/// Tries the image out. On a thread that libc made, on which no other code runs.
pub(super) fn run(image: &'static Image) -> Result<(), Reason> {
    let room = image.glibc.room();
    let layout =
        Layout::from_size_align(room.total + room.align, room.align).map_err(|_| NO_MEMORY)?;
    // SAFETY: the layout is not empty.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(NO_MEMORY);
    }
    let result = on_block(image, Block::at(room.fit(memory as usize), &room));
    // SAFETY: no code is on the block any more, and the layout is the same.
    unsafe { dealloc(memory, layout) };
    result
}

fn on_block(image: &'static Image, block: Block) -> Result<(), Reason> {
    let [dropped, key_ended] = [DROPPED.load(SeqCst), KEY_ENDED.load(SeqCst)];
    let words = image.glibc.malloc_words.as_ref();
    let owned = Dtv::allocate(image).ok_or(NO_MEMORY)?;
    // SAFETY: D6, the block is this function's, and no code is on it.
    unsafe { block.imprint(image, owned) };
    copy_words(words, thread_pointer(), block.tp());
    let was_clean = !block.is_touched() && is_linked(image, block.tp());
    let nobody = AtomicUsize::new(0);
    let has_flag = image.has_place(flag::offset());
    let set_flag = |value| {
        if has_flag {
            // SAFETY: D6, the block is whole and no code is on it.
            unsafe { flag::write(block.tp(), value) };
        }
    };
    set_flag(0); // this thread is no M
    call_on_tp(block.tp(), &raw const nobody, || use_malloc(|| ()));
    set_flag(1);
    let shares_malloc = !is_malloc_libcs() || !block.is_touched();
    set_flag(0);
    let worked = call_on_tp(block.tp(), &raw const nobody, live_a_little);
    set_flag(1);
    let was_seen = block.is_touched();
    // SAFETY: D6, the block exists, and no code is on it.
    let random = || unsafe { block.owned(image) }.random;
    let before = random();
    set_flag(0);
    call_on_tp(block.tp(), &raw const nobody, || block.finish(words));
    set_flag(1);
    let has_kept = random() == before; // 0 if there was no memory for one
    copy_words(words, block.tp(), thread_pointer());
    let ended = DROPPED.load(SeqCst) == dropped + 1 && KEY_ENDED.load(SeqCst) == key_ended + 1;
    let is_clean = !block.is_touched();
    // SAFETY: D6, the block is not used again; its table was allocated above, or enlarged since.
    unsafe { block.owned(image).free() };
    if !shares_malloc {
        return Err("the C library's malloc keeps something for a thread that was not found");
    }
    if !has_kept {
        return Err("the C library's random state of a thread was not kept in a rehearsal");
    }
    match (was_clean && was_seen, worked, ended && is_clean) {
        (false, ..) => Err("a new thread block does not look as it should in a rehearsal"),
        (_, false, _) => Err("the C library did not work on a second thread block in a rehearsal"),
        (.., false) => Err("a thread block was not as new after a rehearsal"),
        _ => Ok(()),
    }
}

/// Copies malloc's words from one block to another.
fn copy_words(words: Option<&[isize; 2]>, from: usize, to: usize) {
    if let Some(words) = words {
        // SAFETY: D6, this thread's block and the rehearsal's, which no other thread uses.
        unsafe { write_words(words, to, read_words(words, from)) };
    }
}

/// Whether the words that a fork and the kernel follow point where they should.
fn is_linked(image: &Image, tp: usize) -> bool {
    let glibc = &image.glibc;
    // SAFETY: D6, words of the rehearsal's block.
    let word = |at: usize| unsafe { *((tp + at) as *const usize) };
    let list = [glibc.list, glibc.list + 8];
    let robust = [glibc.robust, glibc.robust - 8];
    list.iter().all(|at| word(*at) == tp + glibc.list)
        && robust.iter().all(|at| word(*at) == tp + glibc.robust)
}

/// Uses the C library and std as a thread does. On the rehearsal's block.
fn live_a_little() -> bool {
    use_random();
    keeps_errno() && knows_letters() && locks_twice() && allocates() && registers_destructors()
}

fn keeps_errno() -> bool {
    // SAFETY: the thread's own errno; the call fails and changes nothing else.
    unsafe {
        let errno = libc::__errno_location();
        libc::close(-1);
        ptr::eq(errno, libc::__errno_location()) && *errno == libc::EBADF
    }
}

fn knows_letters() -> bool {
    // SAFETY: reads the locale's tables; both arguments are characters.
    unsafe { libc::isalpha(c_int::from(b'q')) != 0 && libc::isalpha(c_int::from(b'7')) == 0 }
}

fn locks_twice() -> bool {
    let (mut attributes, mut mutex) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: a mutex of this frame, destroyed at the end.
    unsafe {
        let (attributes, mutex) = (attributes.as_mut_ptr(), mutex.as_mut_ptr());
        libc::pthread_mutexattr_init(attributes);
        libc::pthread_mutexattr_settype(attributes, libc::PTHREAD_MUTEX_RECURSIVE);
        libc::pthread_mutex_init(mutex, attributes);
        let locked = libc::pthread_mutex_lock(mutex) == 0
            && libc::pthread_mutex_trylock(mutex) == 0
            && libc::pthread_mutex_unlock(mutex) == 0
            && libc::pthread_mutex_unlock(mutex) == 0;
        libc::pthread_mutex_destroy(mutex);
        libc::pthread_mutexattr_destroy(attributes);
        locked
    }
}

fn allocates() -> bool {
    let mut kept: Vec<Vec<usize>> = Vec::new();
    for n in 0..500 {
        kept.push(vec![n; 1 + n % 97]);
        if n % 3 == 0 {
            kept.swap_remove(n / 7 % kept.len());
        }
    }
    kept.iter().all(|one| one.len() == 1 + one[0] % 97)
}

fn registers_destructors() -> bool {
    unsafe extern "C" fn ended(value: *mut c_void) {
        if value as usize == 0x5eed {
            KEY_ENDED.fetch_add(1, SeqCst);
        }
    }
    let mut key = 0;
    // SAFETY: a key of our own. It is never deleted, for its destructor runs later; there is one
    // such key per process.
    let is_set = unsafe {
        libc::pthread_key_create(&mut key, Some(ended)) == 0
            && libc::pthread_setspecific(key, ptr::without_provenance(0x5eed)) == 0
    };
    let before = GUEST.with(|guest| guest.0.replace(8));
    is_set && before == 7 && GUEST.with(|guest| guest.0.get()) == 8
}
