//! The pristine image: what a thread block holds before any code ran on it.
//!
//! One image serves all goroutines. Where the surplus is not reserved (`surplus`), a library loaded
//! later may take some of it for its thread-locals. Then a new image is made and the old one stays, for each block names the image it
//! was made from.
//!
//! The image is compared with a block at every goroutine's end, so the compared part is small: the
//! thread-locals of the loaded objects (some 256 bytes), and four words. The words show whether a
//! pthread key was set, the resolver used, or a text made for an unknown error or signal.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError};

use crate::arch;
use crate::arch::block::{DTV, SELF, SELF_TOO};
use crate::base::fatal;
use crate::tls::dtv::{Dtv, Slot};
use crate::tls::flag;
use crate::tls::glibc::{Glibc, NO_MEMORY, Reason};
use crate::tls::modules::Module;
use crate::tls::{call_on_tp, modules};

/// Words of a block that point into the block itself.
const POINTERS: usize = 8;
/// Words at the start of the thread block that point to the block itself and to its table.
const HEAD: usize = 3;
/// Words of the thread block that are compared.
const MARKS: usize = 4;

/// The reservation (`surplus.rs`) rules this out.
const NO_PLACE: Reason =
    "the C library has placed thread-locals of a library where goroutines have their stacks";
/// The door would not recognise goroutines on such blocks.
const NO_FLAG: Reason = "the flag of goroutines has no place in their thread blocks";

/// In the resolver's state: not 0 once it has been set up.
pub(super) const RESOLVER_OPTIONS: usize = 8;

/// The image, with the layout that it follows. Offsets are from the thread pointer.
pub(super) struct Image {
    pub(super) glibc: Glibc,
    /// Bytes of thread-locals below the thread pointer.
    pub(super) used: usize,
    /// `used` bytes below the thread pointer, then the thread block.
    words: Box<[u64]>,
    /// Which bits of the thread-locals count when they are compared.
    mask: Box<[u64]>,
    /// Where a block points into itself, and to where.
    pointers: [(isize, isize); POINTERS],
    /// Where the compared words of the thread block are, and what they hold.
    marks: [(isize, u64); MARKS],
    /// What a fresh dtv holds; values are offsets from the thread pointer where `is_relative`.
    pub(super) slots: Vec<Slot>,
    pub(super) is_relative: Vec<bool>,
    /// Whether some object has thread-locals with memory of their own.
    pub(super) has_dynamic: bool,
    pub(super) modules: Vec<Module>,
    /// The loader's word for the next object, when this image was made.
    pub(super) next: usize,
    /// Whether the CPU compares several words at a time.
    is_wide: bool,
}

static CURRENT: AtomicPtr<Image> = AtomicPtr::new(ptr::null_mut());

/// Makes this the image for new blocks; it is never freed.
pub(super) fn publish(image: &'static Image, next: usize) {
    // ORDER: Release; pairs with the Acquire in `current`.
    CURRENT.store(ptr::from_ref(image).cast_mut(), Release);
    // ORDER: Release; pairs with the Acquire in `is_outdated`: a thread that sees the new word sees
    // the new image.
    NEXT.store(ptr::with_exposed_provenance_mut(next), Release);
}

/// Every image there was. Blocks name theirs, so none is freed. If the same libraries are loaded
/// again, their image is found here.
static ALL: Mutex<Vec<&'static Image>> = Mutex::new(Vec::new());

/// The loader's word for the next object with thread-locals, whichever thread loads it. The loader
/// never frees it.
static NEXT: AtomicPtr<usize> = AtomicPtr::new(ptr::null_mut());

/// Whether an object with thread-locals was loaded since this image was made: a new image may be
/// needed.
#[inline]
pub(super) fn is_outdated() -> bool {
    let next = NEXT.load(Acquire);
    // SAFETY: D6, the loader never frees the word. It writes the word under its own lock; this only
    // compares it with zero.
    !next.is_null() && unsafe { next.read_volatile() } != 0
}

/// Publishes an image of what is loaded now, if there is memory for one, and returns it. In the
/// same context as [`Image::new`].
pub(super) fn renew() -> Option<&'static Image> {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: D6, images are never freed, and the first was published before any block was made.
    let new = match Image::new(unsafe { &(*current()).glibc }) {
        Ok(new) => new,
        Err(NO_PLACE) => fatal::throw(NO_PLACE), // the library's code would write into frames
        Err(_) => return None,
    };
    let next = new.next;
    let known = all.iter().copied().find(|image| image.is_same(&new));
    let image = known.unwrap_or_else(|| {
        all.push(Box::leak(Box::new(new)));
        all[all.len() - 1]
    });
    publish(image, next);
    Some(image)
}

/// The image for new blocks; null before the first.
#[inline]
pub(super) fn current() -> *const Image {
    CURRENT.load(Acquire)
}

/// A block that libc filled in, outside any stack.
struct Template<'a> {
    glibc: &'a Glibc,
    memory: *mut u8,
    layout: Layout,
    tp: *mut u8,
}

impl Template<'_> {
    fn new(glibc: &Glibc) -> Option<Template<'_>> {
        let below = glibc.below.next_multiple_of(glibc.align);
        let layout = Layout::from_size_align(below + glibc.pthread, glibc.align.max(64)).ok()?;
        // SAFETY: the layout is not empty.
        let memory = unsafe { alloc_zeroed(layout) };
        if memory.is_null() {
            return None;
        }
        let template = Template {
            glibc,
            memory,
            layout,
            // SAFETY: `below` lies inside the allocation.
            tp: unsafe { memory.add(below) },
        };
        // SAFETY: D6, zeroed memory of the size that libc asks for; libc allocates the dtv.
        let filled = unsafe { (glibc.allocate_tls)(template.tp.cast()) };
        (!filled.is_null()).then_some(template)
    }
}

impl Drop for Template<'_> {
    fn drop(&mut self) {
        // SAFETY: D6, only the template uses the block. libc frees the dtv if it allocated one, and
        // not the block.
        unsafe {
            if !self.tp.add(DTV).cast::<*mut c_void>().read().is_null() {
                (self.glibc.deallocate_tls)(self.tp.cast(), false);
            }
            dealloc(self.memory, self.layout);
        }
    }
}

impl Image {
    /// What libc would give a new thread now. On a thread that libc made, in user context.
    pub(super) fn new(glibc: &Glibc) -> Result<Image, Reason> {
        // Other threads may load meanwhile: the list must describe what is in the block.
        let mut modules = modules::list(glibc);
        let template = loop {
            let template = Template::new(glibc).ok_or(NO_MEMORY)?;
            let after = modules::list(glibc);
            if after == modules {
                break template;
            }
            modules = after;
        };
        let used = modules
            .used()
            .max(usize::try_from(-glibc.rseq).unwrap_or(0));
        if used > glibc.kept.next_multiple_of(8) {
            return Err(NO_PLACE);
        }
        let mut image = Image {
            glibc: *glibc,
            used: used.next_multiple_of(8),
            words: Box::default(),
            mask: Box::default(),
            pointers: pointers(glibc),
            marks: marks(glibc).map(|at| (at, 0)),
            slots: Vec::new(),
            is_relative: Vec::new(),
            has_dynamic: false,
            modules: modules.fixed,
            next: modules.next.expose_provenance(),
            is_wide: arch::has_wide_compare(),
        };
        // SAFETY: D6, libc has filled in the template, and only this function uses it.
        unsafe { image.read_dtv(template.tp, modules.last) };
        image.complete(&template);
        let at = flag::offset();
        if image.has_place(at) {
            // A thread on a goroutine's block is an M.
            image.words[image.used.wrapping_add_signed(at) / 8] = 1;
        } else if flag::is_in_use() {
            return Err(NO_FLAG);
        }
        image.mask = image.make_mask();
        for (at, value) in &mut image.marks {
            *value = image.words[image.used.wrapping_add_signed(*at) / 8];
        }
        Ok(image)
    }

    /// Whether the word at `at`, from the thread pointer, is a fixed thread-local.
    pub(super) fn has_place(&self, at: isize) -> bool {
        let inside = |module: &Module| {
            let from = at + module.offset as isize;
            from >= 0 && from + 8 <= module.len as isize
        };
        at % 8 == 0 && at >= -(self.used as isize) && self.modules.iter().any(inside)
    }

    /// # Safety
    /// `tp` is a block with a dtv that has `last` slots.
    unsafe fn read_dtv(&mut self, tp: *mut u8, last: usize) {
        // SAFETY: D6, the block has a dtv, as the caller promises.
        let dtv = unsafe { Dtv::of(tp as usize) };
        let block = (tp as usize - self.glibc.below)..tp as usize;
        for at in 0..=last.min(dtv.capacity()) {
            let mut slot = dtv.get(at);
            let is_relative = at > 0 && block.contains(&slot.value);
            if is_relative {
                slot.value = slot.value.wrapping_sub(tp as usize);
            }
            self.has_dynamic |= at > 0 && !is_relative && slot.value != 0;
            self.slots.push(slot);
            self.is_relative.push(is_relative);
        }
    }

    /// Does to the template what libc does when a thread starts, and copies the result into the
    /// image.
    fn complete(&mut self, template: &Template<'_>) {
        let glibc = &self.glibc;
        let tp = template.tp;
        // SAFETY: D6, only the template uses the block, and it is whole; its dtv stays with it, to
        // be freed.
        unsafe {
            glibc.write_constants(tp);
            self.write_pointers(tp as usize);
            let nobody = std::sync::atomic::AtomicUsize::new(0);
            call_on_tp(tp as usize, &raw const nobody, || (glibc.ctype_init)());
            let start = tp.sub(self.used).cast::<u64>();
            let len = (self.used + glibc.pthread) / 8;
            self.words = std::slice::from_raw_parts(start, len).into();
        }
    }

    fn make_mask(&self) -> Box<[u64]> {
        let mut mask = vec![u64::MAX; self.used / 8];
        let mut ignore = |offset: isize| {
            let at = usize::try_from(offset + self.used as isize);
            if let Ok(at) = at
                && let Some(word) = mask.get_mut(at / 8)
            {
                *word = 0;
            }
        };
        self.glibc
            .malloc_words
            .iter()
            .flatten()
            .chain(&self.glibc.random_word)
            .for_each(|at| ignore(*at));
        ignore(self.glibc.resolver_word);
        mask.into()
    }

    /// # Safety
    /// `tp` is a block that only the caller uses.
    unsafe fn write_pointers(&self, tp: usize) {
        for (at, to) in self.pointers {
            let at = tp.wrapping_add_signed(at) as *mut usize;
            let to = tp.wrapping_add_signed(to);
            // SAFETY: D6, words of a block that only the caller uses.
            unsafe {
                if at.read() != to {
                    at.write(to);
                }
            }
        }
    }

    /// Whether blocks made from the other image would be the same.
    fn is_same(&self, other: &Image) -> bool {
        self.used == other.used
            && self.modules == other.modules
            && self.slots[1..] == other.slots[1..]
            && self.words[..self.used / 8] == other.words[..other.used / 8]
    }

    /// Makes the block at `tp` as new, apart from its dtv and thread id, which the caller writes.
    /// The words that point to the block itself are written only if they differ: g0 of another M
    /// may still be on the block, and reads the first word.
    ///
    /// # Safety
    /// Only the caller uses the block: no code runs on it, or only the caller, which has no
    /// thread-local in use.
    pub(super) unsafe fn imprint(&self, tp: usize) {
        // SAFETY: D6, a block of this layout, which only the caller uses.
        unsafe {
            let (locals, rest) = (self.used / 8, self.words.len() - self.used / 8 - HEAD);
            let from = self.words.as_ptr();
            ptr::copy_nonoverlapping(from, (tp - self.used) as *mut u64, locals);
            ptr::copy_nonoverlapping(from.add(locals + HEAD), (tp as *mut u64).add(HEAD), rest);
            self.write_pointers(tp);
        }
    }

    /// Copies the thread-locals of one object into a block.
    ///
    /// # Safety
    /// The module is this image's; no code of the object has run on the block.
    pub(super) unsafe fn imprint_module(&self, module: &Module, tp: usize) {
        let from = self.used - module.offset;
        let len = module.len.min(module.offset);
        // SAFETY: D6, the range lies in the thread-locals of both the image and the block.
        unsafe {
            let from = self.words.as_ptr().cast::<u8>().add(from);
            ptr::copy_nonoverlapping(from, (tp - module.offset) as *mut u8, len);
        }
    }

    /// Whether the block differs from the image in a word that counts.
    ///
    /// # Safety
    /// The block at `tp` was made from this image, and only the caller uses it.
    #[inline]
    pub(super) unsafe fn differs(&self, tp: usize) -> bool {
        let count = self.used / 8;
        // SAFETY: D6, both ranges are that long. The block's words are not a Rust object that any
        // code borrows.
        let block = unsafe { std::slice::from_raw_parts((tp - self.used) as *const u64, count) };
        // SAFETY: the CPU was asked when the image was made.
        let mut seen =
            unsafe { arch::compare_masked(block, &self.words, &self.mask, self.is_wide) };
        for (mark, was) in self.marks {
            // SAFETY: D6, a word of the thread block, which only the caller uses.
            seen |= was ^ unsafe { *(tp.wrapping_add_signed(mark) as *const u64) };
        }
        let robust = tp + self.glibc.robust;
        // SAFETY: D6, the head of the robust list, a word of the same block; the list is empty if
        // the head points to itself.
        seen |= unsafe { *(robust as *const u64) } ^ robust as u64;
        // SAFETY: D6, a block made from an image has a table, and only the caller uses it.
        seen != 0 || unsafe { Dtv::of(tp) }.differs(self, tp)
    }
}

fn marks(glibc: &Glibc) -> [isize; MARKS] {
    let keys = glibc.keys_used as isize;
    let resolver = (glibc.resolver + RESOLVER_OPTIONS) as isize;
    // A word that was not found is replaced by one that is compared anyway.
    let [error, signal] = glibc.text_words.map(|at| if at == 0 { keys } else { at });
    [keys, resolver, error, signal]
}

fn pointers(glibc: &Glibc) -> [(isize, isize); POINTERS] {
    let to = |at: usize| at as isize;
    [
        (to(SELF), 0),
        (to(SELF_TOO), 0),
        (to(glibc.list), to(glibc.list)),
        (to(glibc.list + 8), to(glibc.list)),
        (to(glibc.robust), to(glibc.robust)),
        (to(glibc.robust - 8), to(glibc.robust)),
        (to(glibc.specific), to(glibc.first_keys)),
        (glibc.resolver_word, to(glibc.resolver)),
    ]
}
