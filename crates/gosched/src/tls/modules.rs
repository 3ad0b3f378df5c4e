//! Which loaded objects have thread-locals with a place in every block. The reservation
//! (`surplus.rs`) is left out: goroutines' blocks have no place for it.
//!
//! The place is a field of the loader's own record of each object; it is 0 or -1 for objects whose
//! thread-locals get memory when they are first used. The loader's public interface gives only the
//! address in the calling thread, and that only after the thread has used the object.

use std::ffi::{c_int, c_void};

use crate::arch::thread_pointer;
use crate::tls::glibc::{Glibc, symbol};

/// One such object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Module {
    object: usize,
    /// From its first byte up to the thread pointer.
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// What is loaded now.
#[derive(PartialEq, Eq)]
pub(super) struct Modules {
    /// The loader's word for the next object with thread-locals: zero until there is one.
    pub(super) next: *const usize,
    pub(super) fixed: Vec<Module>,
    /// The highest number of an object with thread-locals.
    pub(super) last: usize,
    /// Whether the places agree with the addresses that the loader gives for this thread.
    agree: bool,
}

/// Replaces the loader's word if it has none: no object ever takes it.
static NONE: usize = 0;

/// A part of the loader's table of objects with thread-locals; `len` entries follow.
#[repr(C)]
struct Slots {
    len: usize,
    next: *const Slots,
}

/// One entry.
#[repr(C)]
struct Entry {
    generation: usize,
    object: usize,
}

/// The public beginning of the loader's record of an object.
#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const u8,
    dynamic: *const u8,
    next: *const LinkMap,
}

/// The public beginning of the loader's record for debuggers.
#[repr(C)]
struct Debug {
    version: c_int,
    first: *const LinkMap,
}

struct Look<'a> {
    glibc: &'a Glibc,
    first: *const LinkMap,
    found: Modules,
}

/// Lists the objects. On a thread that libc made, in user context.
pub(super) fn list(glibc: &Glibc) -> Modules {
    unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: dl_iterate_phdr passes its own record, and the `Look` below, which lives until it
        // returns.
        let (info, look) = unsafe { (&*info, &mut *data.cast::<Look<'_>>()) };
        look.note(info);
        0
    }
    let debug = symbol(c"_r_debug").map(|debug| debug.cast_const().cast::<Debug>());
    let mut look = Look {
        glibc,
        // SAFETY: D6, a public variable of the loader, of this type.
        first: debug.map_or(std::ptr::null(), |debug| unsafe { (*debug).first }),
        found: Modules {
            next: &raw const NONE,
            fixed: Vec::new(),
            last: 0,
            agree: true,
        },
    };
    // SAFETY: `each` takes these arguments. The loader's lists do not change while it holds its
    // lock.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut look).cast()) };
    look.found
}

/// The places, from the thread pointer, of the object that has one at `offset`.
pub(super) fn with(glibc: &Glibc, offset: isize) -> Option<std::ops::Range<isize>> {
    let modules = list(glibc).fixed.into_iter();
    let mut ranges = modules.map(|module| {
        let start = -(module.offset as isize);
        start..start + module.len as isize
    });
    ranges.find(|range| range.contains(&offset))
}

/// Whether the loader's records are right for this thread, as far as the loader's interface shows.
pub(super) fn agrees(glibc: &Glibc) -> bool {
    let modules = list(glibc);
    modules.agree && !modules.fixed.is_empty()
}

impl Look<'_> {
    fn note(&mut self, info: &libc::dl_phdr_info) {
        if std::ptr::eq(self.found.next, &raw const NONE) {
            self.found.next = self.first_free();
        }
        if info.dlpi_tls_modid == 0 {
            return;
        }
        self.found.last = self.found.last.max(info.dlpi_tls_modid);
        if info.dlpi_tls_modid == self.glibc.reservation {
            return; // its place in a goroutine's block is part of the stack
        }
        // SAFETY: the loader's own list of this object's headers, with its length.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        let tls = headers.iter().find(|header| header.p_type == libc::PT_TLS);
        let (Some(tls), Some(offset)) = (tls, self.offset_of(info.dlpi_tls_modid)) else {
            return;
        };
        let known = info.dlpi_tls_data as usize;
        if (1..=self.glibc.below).contains(&offset) {
            self.found.agree &= known == 0 || known == thread_pointer() - offset;
            self.found.fixed.push(Module {
                object: info.dlpi_addr as usize ^ tls.p_vaddr as usize,
                offset,
                len: (tls.p_memsz as usize).min(offset),
            });
        }
    }

    /// The word of the lowest free entry, which the next object takes. Entry 0 is never used.
    fn first_free(&self) -> *const usize {
        let mut slots = self.glibc.slots.cast::<Slots>();
        let mut at = 1;
        // SAFETY: D6, the loader's own table, by its description for debuggers. Parts of it are
        // never freed, and it does not change while dl_iterate_phdr holds the loader's lock.
        unsafe {
            while !slots.is_null() {
                let entries = slots.add(1).cast::<Entry>();
                for entry in at..(*slots).len {
                    let object = &raw const (*entries.add(entry)).object;
                    if object.read_volatile() == 0 {
                        return object;
                    }
                }
                (slots, at) = ((*slots).next, 0);
            }
        }
        &raw const NONE
    }

    /// The place of the object with this number, from the loader's record of it.
    fn offset_of(&self, modid: usize) -> Option<usize> {
        let mut map = self.first;
        while !map.is_null() {
            let word = |at: usize| {
                // SAFETY: D6, the loader's records have these fields, by its own tables. No record
                // is freed while dl_iterate_phdr holds the loader's lock.
                unsafe { *(map.cast::<u8>().add(at)).cast::<usize>() }
            };
            if word(self.glibc.modid) == modid {
                return Some(word(self.glibc.offset));
            }
            // SAFETY: D6, a record of the loader, which is not freed while dl_iterate_phdr holds
            // the loader's lock.
            map = unsafe { (*map).next };
        }
        None
    }
}

impl Modules {
    /// Bytes below the thread pointer that the objects use, in whole words.
    pub(super) fn used(&self) -> usize {
        self.lowest().next_multiple_of(8)
    }

    /// The distance from the thread pointer to the lowest byte of the objects.
    pub(super) fn lowest(&self) -> usize {
        let offsets = self.fixed.iter().map(|module| module.offset);
        offsets.max().unwrap_or(0)
    }
}
