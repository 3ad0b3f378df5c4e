//! One goroutine's thread block: made, used, finished, made new.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

use crate::arch::block::DTV;
use crate::base::fatal;
use crate::tls::bounds;
use crate::tls::dtv::{Dtv, Owned, Spare};
use crate::tls::glibc::{KEY_BLOCKS, KEYS_PER_BLOCK, Key, KeyData};
use crate::tls::image;
use crate::tls::image::{Image, RESOLVER_OPTIONS};
use crate::tls::{Room, read_words, write_words};

/// How often libc runs the destructors of keys that destructors set again.
const DESTRUCTOR_ROUNDS: usize = 4;

/// As many robust mutexes as the kernel visits when a thread ends.
const ROBUST_MAX: usize = 2048;

/// Lies between a stack and its block. Zeroed memory is a header too: that of a stack without a
/// block.
#[repr(C)]
struct Header {
    image: *const Image,
}

/// The block above one stack.
#[derive(Clone, Copy)]
pub(super) struct Block {
    header: *mut Header,
    tp: usize,
}

impl Block {
    /// The block above the stack that ends at `hi`.
    #[inline]
    pub(super) fn at(hi: usize, room: &Room) -> Block {
        Block {
            header: hi as *mut Header,
            tp: hi + room.above,
        }
    }

    #[inline]
    pub(super) fn tp(self) -> usize {
        self.tp
    }

    #[inline]
    fn image(self) -> *const Image {
        // SAFETY: D6, the header lies in the stack's slot, which has memory while its user or the
        // arena holds it.
        unsafe { (*self.header).image }
    }

    fn image_ref(self) -> Option<&'static Image> {
        // SAFETY: D6, images are never freed.
        unsafe { self.image().as_ref() }
    }

    /// Whether the block exists.
    pub(super) fn is_made(self) -> bool {
        !self.image().is_null()
    }

    /// Whether the block exists and was made from the image in use.
    #[inline]
    pub(super) fn is_current(self) -> bool {
        ptr::eq(self.image(), image::current()) && !image::is_outdated()
    }

    /// Makes the block, or brings an older one up to date with the loaded libraries. By the
    /// goroutine of this stack, in user context, on the thread's own block: a new table comes from
    /// malloc. The stack begins at `lo`.
    pub(super) fn make(self, lo: usize, take_spare: &impl Fn() -> Spare) {
        if image::is_outdated() {
            image::renew();
        }
        // SAFETY: D6, published before this runtime was built, never freed.
        let Some(image) = (unsafe { image::current().as_ref() }) else {
            fatal::throw("a goroutine with its own thread-locals, and no image of them")
        };
        let mut owned = match self.image_ref() {
            // SAFETY: D6, a block that exists has a table, and its goroutine is the caller.
            Some(old) => unsafe { self.owned(old) },
            None => take_spare().unpack().unwrap_or_else(|random| Owned {
                random,
                ..allocate(image)
            }),
        };
        if !owned.dtv.fits(image) {
            // SAFETY: D6, the table is this block's alone, and clean: the last goroutine has
            // finished it.
            unsafe { owned.dtv.free() };
            owned.dtv = allocate(image).dtv;
        }
        // SAFETY: D6, no thread is on the block: its goroutine is the caller, which is on the
        // thread's own.
        unsafe {
            self.imprint(image, owned);
            if let Some(at) = image.glibc.bounds {
                let hi = self.header as usize;
                bounds::write(at, self.tp, [lo, hi - lo]);
            }
        }
        fence(SeqCst); // pairs with the one in `late_libraries::load_and_tell`
        if !ptr::eq(image, image::current()) {
            self.make(lo, take_spare);
        }
    }

    /// Writes the image into the block, with what the block owns.
    ///
    /// # Safety
    /// The block is the caller's and no thread-local in it is in use.
    pub(super) unsafe fn imprint(self, image: &'static Image, owned: Owned) {
        owned.dtv.fill(image, self.tp);
        // SAFETY: D6, the block is the caller's; the offsets are those that were found for this
        // libc.
        unsafe {
            image.imprint(self.tp);
            *((self.tp + DTV) as *mut *mut c_void) = owned.dtv.as_ptr().cast();
            *((self.tp + image.glibc.tid) as *mut u32) = owned.tid;
            if let Some(word) = self.random_word(image) {
                *word = owned.random;
            }
            (*self.header).image = image;
        }
    }

    /// # Safety
    /// The block exists, made from `image`.
    unsafe fn tid(self, image: &Image) -> u32 {
        // SAFETY: D6, a word of the block, at the place that was found for this libc.
        unsafe { *((self.tp + image.glibc.tid) as *const u32) }
    }

    /// Where libc keeps the block's random state.
    fn random_word(self, image: &Image) -> Option<*mut usize> {
        let at = image.glibc.random_word?;
        Some(self.tp.wrapping_add_signed(at) as *mut usize)
    }

    /// What the block owns.
    ///
    /// # Safety
    /// The block exists, made from `image`, and no code runs on it but perhaps the caller.
    pub(super) unsafe fn owned(self, image: &Image) -> Owned {
        // SAFETY: D6, words of a block that only the caller uses.
        unsafe {
            let random = self.random_word(image).map_or(0, |word| *word);
            Owned {
                dtv: Dtv::of(self.tp),
                tid: self.tid(image),
                // An odd one was in use when its goroutine was abandoned: it is lost.
                random: if random.is_multiple_of(2) { random } else { 0 },
            }
        }
    }

    /// Whether its goroutine left anything in it.
    #[inline]
    pub(super) fn is_touched(self) -> bool {
        // SAFETY: D6, made from this image; the caller is its goroutine or holds the free stack.
        self.image_ref()
            .is_some_and(|image| unsafe { image.differs(self.tp) })
    }

    /// Runs the destructors, frees what libc holds for the goroutine, and makes the block as new.
    /// By the goroutine itself, in user context. malloc's words stay.
    #[cold]
    #[inline(never)]
    pub(super) fn finish(self, malloc_words: Option<&[isize; 2]>) {
        let Some(image) = self.image_ref() else {
            return;
        };
        let glibc = &image.glibc;
        // SAFETY: D6, the steps of libc when a thread ends, in its order, on the block that they
        // concern.
        unsafe {
            (glibc.call_tls_dtors)();
            self.run_key_destructors(image);
            if *((self.tp + glibc.resolver + RESOLVER_OPTIONS) as *const usize) != 0 {
                (glibc.res_nclose)((self.tp + glibc.resolver) as *mut c_void);
            }
            self.leave_robust_locks(image);
            self.free_key_blocks(image);
            self.free_texts(image);
        }
        // SAFETY: D6, the goroutine's own block; its destructors have run.
        let owned = unsafe { self.owned(image) };
        owned.dtv.free_dynamic();
        // SAFETY: D6, no thread-local of the goroutine is in use any more. No call lies between the
        // copies, so the M and its malloc stay the same.
        unsafe {
            let kept = malloc_words.map(|words| (words, read_words(words, self.tp)));
            let bounds = glibc.bounds.map(|at| (at, bounds::read(at, self.tp)));
            self.imprint(image, owned);
            if let Some((at, words)) = bounds {
                bounds::write(at, self.tp, words);
            }
            if let Some((words, values)) = kept {
                write_words(words, self.tp, values);
            }
        }
    }

    /// # Safety
    /// On this block, in user context.
    unsafe fn run_key_destructors(self, image: &Image) {
        let used = (self.tp + image.glibc.keys_used) as *mut u8;
        let table = (self.tp + image.glibc.specific) as *const *mut KeyData;
        // SAFETY: D6, the flag and the two-level table are this block's. A destructor may set keys,
        // so each round reads all of it again.
        unsafe {
            for _ in 0..DESTRUCTOR_ROUNDS {
                if used.read_volatile() == 0 {
                    return;
                }
                used.write_volatile(0);
                for at in 0..KEY_BLOCKS {
                    let keys = table.add(at).read_volatile();
                    if !keys.is_null() {
                        destroy_keys(keys, image.glibc.keys.add(at * KEYS_PER_BLOCK));
                    }
                }
            }
        }
    }

    /// # Safety
    /// On this block; none of its keys is in use any more.
    unsafe fn free_key_blocks(self, image: &Image) {
        let table = (self.tp + image.glibc.specific) as *const *mut c_void;
        for at in 1..KEY_BLOCKS {
            // SAFETY: D6, libc allocated all but the first one for this block.
            unsafe { libc::free(table.add(at).read()) };
        }
    }

    /// Marks each robust mutex that the goroutine still holds as left by a dead owner, and wakes a
    /// waiter, as the kernel does for a thread.
    ///
    /// # Safety
    /// On this block, at the goroutine's end.
    unsafe fn leave_robust_locks(self, image: &Image) {
        let head = (self.tp + image.glibc.robust) as *const usize;
        // SAFETY: D6, the list leads from mutex to mutex that the goroutine has locked, and back to
        // its head. A mutex's futex word lies at a fixed distance from its link. The lowest bit of
        // a link marks a kind of mutex.
        unsafe {
            let tid = self.tid(image);
            let distance = *head.add(1) as isize;
            let mut link = *head & !1;
            for _ in 0..ROBUST_MAX {
                if link == head as usize || link == 0 {
                    return;
                }
                let next = *(link as *const usize) & !1;
                let word = &*(link.wrapping_add_signed(distance) as *const AtomicU32);
                let died = |held: u32| {
                    (held & libc::FUTEX_TID_MASK == tid)
                        .then_some(held & libc::FUTEX_WAITERS | libc::FUTEX_OWNER_DIED)
                };
                if let Ok(held) = word.fetch_update(AcqRel, Acquire, died)
                    && held & libc::FUTEX_WAITERS != 0
                {
                    libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1);
                }
                link = next;
            }
        }
    }

    /// Frees the texts that libc made for the goroutine: of the loader's last error, and of unknown
    /// errors and signals.
    ///
    /// # Safety
    /// On this block; none of the texts is in use any more.
    unsafe fn free_texts(self, image: &Image) {
        // SAFETY: D6, the second call frees the text that the first returned.
        unsafe {
            libc::dlerror();
            libc::dlerror();
        }
        for at in image.glibc.text_words.iter().filter(|at| **at != 0) {
            let word = self.tp.wrapping_add_signed(*at) as *mut *mut c_void;
            // SAFETY: D6, libc allocated the text, and frees it in the same way when a thread ends.
            unsafe { libc::free(word.replace(ptr::null_mut())) };
        }
    }

    /// Keeps what the block owns, before the stack loses its memory. Inside the runtime.
    pub(super) fn salvage(self) {
        let Some(image) = self.image_ref() else {
            return;
        };
        // SAFETY: D6, the stack is free, so its block is clean and no code uses it. By its header
        // the block exists.
        unsafe {
            self.owned(image).give_spare();
            (*self.header).image = ptr::null();
        }
    }
}

/// Calls the destructors of the values in one block of keys.
///
/// # Safety
/// Both have [`KEYS_PER_BLOCK`] entries; `values` is the calling goroutine's.
unsafe fn destroy_keys(values: *mut KeyData, keys: *const Key) {
    for at in 0..KEYS_PER_BLOCK {
        // SAFETY: D6, values and keys are read as libc reads them. The destructor is the one that
        // the program gave for the key, called with the value that it set.
        unsafe {
            let KeyData { seq, data } = values.add(at).read_volatile();
            if data.is_null() {
                continue;
            }
            (*values.add(at)).data = ptr::null_mut();
            let key = keys.add(at).read_volatile();
            if let Some(destructor) = key.destructor
                && key.seq == seq
            {
                destructor(data);
            }
        }
    }
}

fn allocate(image: &Image) -> Owned {
    Dtv::allocate(image)
        .unwrap_or_else(|| fatal::throw("no memory for a goroutine's thread-locals"))
}
