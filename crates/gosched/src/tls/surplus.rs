//! Reserves libc's surplus, so that a waiting goroutine needs one page instead of two.
//!
//! libc keeps some 1,700 bytes below the thread-locals of every thread for libraries that are
//! loaded later and want a fixed place (*initial-exec*). In a goroutine's block these bytes would
//! lie between the thread-locals and the first frame. So this file takes them, by libc's own rules:
//! it loads an object whose only thread-local has the size of the whole surplus
//! (`static_object.rs`). From then on the bytes are ours in every block, and the frames of a
//! goroutine begin there.
//!
//! **All or nothing.** libc places each later thread-local *below* the ones it has placed. Below
//! the reservation are the frames of goroutines. So the reservation is kept only if these hold:
//! 1. It ends at the last byte that libc's blocks have. Nothing can be placed below it.
//! 2. Every other thread-local in a fixed place lies above it.
//! 3. libc refuses an object with a thread-local of one byte.
//!
//! The three stay true: libc never moves a thread-local, and takes bytes back only from the low end
//! of what is in use. The reservation is that end, and its handle is never closed once blocks
//! depend on it. If one of the three fails, the object is unloaded, and blocks keep the surplus. It
//! is unloaded too if goroutines cannot have their own thread-locals for another reason.
//!
//! libc initialises the reservation of every thread, as it does for any library. It does not know
//! goroutines' blocks and writes to none of them. The table of a block (`dtv.rs`) has the address
//! of the reservation. No code writes there. `dl_iterate_phdr` gives the address, and conservative
//! collectors read what is there: the goroutine's frames.
//!
//! It is done once per process, before the first image is made. A library with initial-exec
//! thread-locals that is loaded later is refused, with libc's own error `cannot allocate memory in
//! static TLS block`. `Builder::keep_static_tls` leaves the surplus alone.

use std::ffi::c_void;
use std::ptr;

use crate::tls::glibc::Glibc;
use crate::tls::modules;
use crate::tls::static_object::{Object, ObjectFile};

/// The owner of libc's surplus, and the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Surplus {
    /// The frames of goroutines begin in it.
    Reserved,
    /// Libraries that are loaded later: the program has asked for that.
    Wanted,
    /// The program's: this library is part of a plugin.
    Hosts,
    /// Libraries that are loaded later: it could not be reserved, or there is none.
    Unavailable,
}

/// The number of sizes that are tried: enough for a surplus of 64 KiB. If the first size is right,
/// libc loads one object and refuses another.
const TRIES: usize = 20;

/// Reserves the surplus, unless it is to be kept for libraries, and notes the result in `glibc`. On
/// a thread that libc made, in user context, before the first image is made.
pub(super) fn reserve(glibc: &mut Glibc, keeps_surplus: bool) -> Option<Reservation> {
    if keeps_surplus {
        glibc.surplus = Surplus::Wanted;
        return None;
    }
    if !is_in_program(reserve as *const ()) {
        glibc.surplus = Surplus::Hosts;
        return None;
    }
    glibc.surplus = Surplus::Unavailable;
    let mut reservation = find(glibc)?;
    reservation.file = None;
    glibc.surplus = Surplus::Reserved;
    glibc.reservation = reservation.place.number;
    glibc.kept = glibc.below - reservation.place.size;
    Some(reservation)
}

/// Loads the object that takes every byte. The first guess is what the loader's records leave.
fn find(glibc: &Glibc) -> Option<Reservation> {
    let free = glibc.below.checked_sub(lowest_used(glibc, 0))?;
    search(glibc.below, free, |size| {
        let Some(it) = Reservation::load(glibc, size)? else {
            return Some(Tried::Refused);
        };
        let (place, others) = (it.place, lowest_used(glibc, it.place.number));
        Some(if place.is_all(glibc.below, others, || is_used_up(glibc)) {
            Tried::All(it)
        } else {
            Tried::Part(glibc.below.saturating_sub(place.offset))
        })
    })
}

/// What became of an object of some size.
enum Tried<R> {
    /// It does not fit.
    Refused,
    /// It fits, and so many bytes are left at least. It is unloaded again.
    Part(usize),
    /// It takes every byte.
    All(R),
}

/// Finds the size, from 1 to `most`, of which an object takes every byte. Begins with `guess`; 0:
/// there is nothing to take. A second attempt with one byte follows a refusal: libc may refuse
/// objects for other reasons than their size, and then it refuses this one too. The next guess
/// follows what the first object that fits has left. Then each attempt halves the sizes in
/// question, because the loader's records may not show everything. `attempt` returns None if no
/// attempt can succeed.
fn search<R>(
    most: usize,
    guess: usize,
    mut attempt: impl FnMut(usize) -> Option<Tried<R>>,
) -> Option<R> {
    if guess == 0 {
        return None;
    }
    let (mut fits, mut too_much) = (0, most + 1);
    let mut guess = Some(guess);
    for _ in 0..TRIES {
        let middle = fits + (too_much - fits) / 2;
        let is_open = |size: &usize| (fits + 1..too_much).contains(size);
        let size = guess.take().filter(is_open).unwrap_or(middle);
        if size == fits {
            return None;
        }
        match attempt(size)? {
            Tried::All(all) => return Some(all),
            Tried::Refused => {
                too_much = size;
                guess = (fits == 0).then_some(1);
            }
            Tried::Part(left) => {
                guess = (fits == 0).then_some(size + left);
                fits = size;
            }
        }
    }
    None
}

/// The distance from the thread pointer to the lowest byte in use, apart from the object with this
/// number.
fn lowest_used(glibc: &Glibc, except: usize) -> usize {
    let rseq = usize::try_from(-glibc.rseq).unwrap_or(0);
    let mut others = *glibc;
    others.reservation = except;
    modules::list(&others).lowest().max(rseq)
}

/// A loaded object with a thread-local in the surplus. Unloaded when dropped.
pub(super) struct Reservation {
    handle: *mut c_void,
    place: Place,
    /// Open as long as other objects may be loaded, so that none of them gets the same name.
    file: Option<ObjectFile>,
}

impl Reservation {
    /// Loads an object with a thread-local of `size` bytes. `Some(None)`: libc refuses it. `None`:
    /// the object cannot be loaded here at all.
    fn load(glibc: &Glibc, size: usize) -> Option<Option<Reservation>> {
        let file = Object::new(size).into_file().ok()?;
        // SAFETY: the path is a C string. The object has no code, so none runs when it is loaded.
        let handle = unsafe { libc::dlopen(file.path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Some(None);
        }
        let (mut map, mut number) = (ptr::null::<u8>(), 0usize);
        // SAFETY: D6, libc writes one pointer and one number for an object that is loaded. The
        // loader's record has a word at this place, by its own tables.
        let offset = unsafe {
            let out = (&raw mut map).cast();
            let has_map = libc::dlinfo(handle, libc::RTLD_DI_LINKMAP, out) == 0;
            let out = (&raw mut number).cast();
            let has_number = libc::dlinfo(handle, libc::RTLD_DI_TLS_MODID, out) == 0;
            let is_known = has_map && has_number && !map.is_null();
            is_known.then(|| *map.add(glibc.offset).cast::<usize>())
        };
        let place = Place {
            number,
            offset: offset.unwrap_or(0),
            size,
        };
        Some(Some(Reservation {
            handle,
            place,
            file: Some(file),
        }))
    }

    /// Leaves the object loaded for good, because blocks without the surplus will exist.
    pub(super) fn keep(self) {
        std::mem::forget(self);
    }
}

/// Where libc has placed an object.
#[derive(Clone, Copy)]
struct Place {
    /// Its number among the objects with thread-locals; 0: not known.
    number: usize,
    /// From its first byte up to the thread pointer; 0: not known.
    offset: usize,
    size: usize,
}

impl Place {
    /// Whether no byte of the surplus is left, and none is in use below this object. `below` is the
    /// distance to the last byte of libc's blocks, `others` that to the lowest byte of the other
    /// objects. The comment at the top numbers the conditions. In the known libcs the first implies
    /// the others.
    fn is_all(&self, below: usize, others: usize, is_used_up: impl FnOnce() -> bool) -> bool {
        let is_last = self.offset == below && self.number != 0;
        let is_lowest = others + self.size <= below;
        is_last && is_lowest && is_used_up()
    }
}

/// Whether libc refuses an object with a thread-local of one byte.
pub(super) fn is_used_up(glibc: &Glibc) -> bool {
    matches!(Reservation::load(glibc, 1), Some(None))
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: loaded by `load`, closed once. No code uses it.
        unsafe { libc::dlclose(self.handle) };
    }
}

/// Whether a function is part of the program itself, and not of a library that the program loads,
/// in whichever of the loader's namespaces. The kernel and the loader publish where the headers of
/// the program are.
fn is_in_program(function: *const ()) -> bool {
    // SAFETY: `getauxval` only reads the table that the kernel gave the process.
    let [at, count] =
        [libc::AT_PHDR, libc::AT_PHNUM].map(|kind| unsafe { libc::getauxval(kind) } as usize);
    if at == 0 {
        return false;
    }
    // SAFETY: the program's own headers, which stay loaded, and their number.
    let headers: &[libc::Elf64_Phdr] =
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), count) };
    let Some(own) = headers.iter().find(|header| header.p_type == libc::PT_PHDR) else {
        return false; // where the program begins is not known
    };
    let begin = (at as u64).wrapping_sub(own.p_vaddr);
    let address = (function.addr() as u64).wrapping_sub(begin);
    let holds = |header: &libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD && address.wrapping_sub(header.p_vaddr) < header.p_memsz
    };
    headers.iter().any(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::child;
    use crate::thread;
    use std::time::Duration;

    /// An imagined libc with this many free bytes; returns the size that was found and the number
    /// of objects that were loaded for it.
    fn search_in(free: usize, most: usize, guess: usize) -> (Option<usize>, usize) {
        let mut loads = 0;
        let found = search(most, guess, |size| {
            loads += 1;
            Some(match size {
                _ if size > free => Tried::Refused,
                _ if size == free => Tried::All(size),
                // Of what is left only a part may be known.
                _ => Tried::Part((free - size) / 2),
            })
        });
        (found, loads)
    }

    #[test]
    fn the_surplus_is_found_from_any_guess() {
        for free in 1..=1_900 {
            assert_eq!(search_in(free, 1_900, free), (Some(free), 1));
            for guess in [1, 7, 250, 1_000, 1_664, 1_900, 5_000] {
                let (found, loads) = search_in(free, 1_900, guess);
                assert!(found == Some(free) && loads <= TRIES, "{free}: {guess}");
            }
        }
        let most = 60_000;
        for free in (1..=most).step_by(97) {
            let (found, loads) = search_in(free, most, 20_000);
            assert!(found == Some(free) && loads <= TRIES, "{free}");
        }
        assert_eq!(search_in(0, 1_900, 0), (None, 0));
        assert_eq!(search_in(0, 1_900, 1_664), (None, 2), "nothing fits");
        assert_eq!(search_in(0, 1_900, 1), (None, 1), "nothing fits");
    }

    #[test]
    fn each_condition_of_the_reservation_counts() {
        let place = Place {
            number: 7,
            offset: 1_856,
            size: 1_700,
        };
        assert!(place.is_all(1_856, 156, || true));
        assert!(!place.is_all(1_857, 156, || true), "a byte below it");
        assert!(!place.is_all(1_855, 155, || true), "beyond the blocks");
        assert!(!place.is_all(1_856, 157, || true), "another object in it");
        assert!(!place.is_all(1_856, 156, || false), "libc gives more");
        let unknown = Place { number: 0, ..place };
        assert!(!unknown.is_all(1_856, 156, || true));
    }

    /// libc does not take back what it has skipped for an alignment. So the loader's records show
    /// more free bytes than there are, and the first size is refused.
    #[test]
    fn bytes_that_libc_has_lost_are_not_reserved() {
        if !child::is_one() {
            let name = "bytes_that_libc_has_lost_are_not_reserved";
            let output = child::run(module_path!(), name);
            assert!(output.status.success(), "{output:?}");
            return;
        }
        let file = Object::new(1).aligned(64).into_file().unwrap();
        // SAFETY: an object without code, closed once.
        unsafe {
            let handle = libc::dlopen(file.path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            assert_eq!(libc::dlclose(handle), 0);
        }
        let glibc = crate::tls::glibc::support(false, crate::interpose::install).unwrap();
        assert_eq!(glibc.surplus, Surplus::Reserved);
        assert!(
            glibc.kept > lowest_used(glibc, glibc.reservation),
            "nothing lost"
        );
        assert!(is_used_up(glibc));
        let sum: u64 = crate::tests::runtime(2).run(|| {
            let sleep = |n| move || (thread::sleep(Duration::from_millis(1)), n).1;
            let all: Vec<_> = (0..100).map(|n| thread::spawn(sleep(n))).collect();
            all.into_iter().map(|one| one.join().unwrap()).sum()
        });
        assert_eq!(sum, 4_950);
    }

    #[test]
    fn a_search_ends_when_no_attempt_can_succeed() {
        let mut attempts = 0;
        let found = search(1_900, 1_664, |_| -> Option<Tried<()>> {
            attempts += 1;
            None
        });
        assert!(found.is_none() && attempts == 1);
    }

    #[test]
    fn a_function_of_a_library_is_not_the_programs() {
        assert!(is_in_program(search_in as *const ()));
        assert!(!is_in_program(libc::getpid as *const ()));
        assert!(!is_in_program(std::ptr::null()));
        assert!(!is_in_program(std::ptr::without_provenance(usize::MAX)));
    }
}
