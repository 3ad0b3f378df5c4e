//! What glibc's thread block looks like in this process. No offset is assumed: names are looked up,
//! and offsets come from the tables that glibc publishes for debuggers, or from comparing a
//! thread's block before and after it did something.
//!
//! The inspection happens once, on a thread made for it, and ends with a rehearsal (`selftest`).
//! Any doubt is a refusal, with a reason for the user.

use std::ffi::{CStr, c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::arch::block::{
    DTV, FEATURES, MULTIPLE_THREADS, POINTER_GUARD, SELF, SELF_TOO, STACK_GUARD,
};
use crate::arch::{can_set_thread_pointer, thread_pointer};
use crate::base::real_thread::real_threads;
use crate::sys;
use crate::tls::image;
use crate::tls::image::Image;
use crate::tls::surplus::{Reservation, Surplus};
use crate::tls::{Room, bounds, modules, scope, selftest, surplus};

/// Bytes of our own between a stack's top and its block. So few that they lie in the cache line of
/// the first frame.
pub(super) const HEADER: usize = 16;

/// Keys in each block of the two-level table, and the number of blocks.
pub(super) const KEYS_PER_BLOCK: usize = 32;
pub(super) const KEY_BLOCKS: usize = 32;

/// A pthread key: odd `seq` means in use.
#[repr(C)]
pub(super) struct Key {
    pub(super) seq: usize,
    pub(super) destructor: Option<unsafe extern "C" fn(*mut c_void)>,
}

/// A thread's value for a key.
#[repr(C)]
pub(super) struct KeyData {
    pub(super) seq: usize,
    pub(super) data: *mut c_void,
}

/// The interfaces and the layout of this libc. Offsets are from the thread pointer unless said
/// otherwise.
#[derive(Clone, Copy)]
pub(super) struct Glibc {
    pub(super) allocate_tls: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    pub(super) deallocate_tls: unsafe extern "C" fn(*mut c_void, bool),
    pub(super) call_tls_dtors: unsafe extern "C" fn(),
    pub(super) ctype_init: unsafe extern "C" fn(),
    pub(super) res_nclose: unsafe extern "C" fn(*mut c_void),
    malloc_trim: Option<unsafe extern "C" fn(usize) -> c_int>,
    pub(super) keys: *const Key,
    /// Bytes of thread-locals and surplus, below the thread pointer of a thread that libc made.
    pub(super) below: usize,
    /// The same in a goroutine's block. Less by the size of the reservation, if there is one.
    pub(super) kept: usize,
    /// The number of the reservation among the objects with thread-locals; 0: there is none.
    pub(super) reservation: usize,
    pub(super) surplus: Surplus,
    pub(super) align: usize,
    /// Bytes of the thread block, from the thread pointer on.
    pub(super) pthread: usize,
    pub(super) tid: usize,
    pub(super) list: usize,
    /// The head of the robust list; the word before it is the last element.
    pub(super) robust: usize,
    /// The table of key blocks, the first such block, and the word with the flag that a key was
    /// set.
    pub(super) specific: usize,
    pub(super) first_keys: usize,
    pub(super) keys_used: usize,
    pub(super) resolver: usize,
    /// Thread-locals of libc: the pointer to the resolver's state; malloc's cache and arena.
    pub(super) resolver_word: isize,
    pub(super) malloc_words: Option<[isize; 2]>,
    /// Where a block has its stack's address and size; None: not found, and they stay 0.
    pub(super) bounds: Option<usize>,
    /// Where a block points to the thread's state for `getrandom`; None: this libc or kernel has
    /// none.
    pub(super) random_word: Option<isize>,
    /// Where a block points to the texts of unknown errors and signals; 0: not found.
    pub(super) text_words: [isize; 2],
    /// Where the area for the kernel's restartable sequences is; 0: this libc has none.
    pub(super) rseq: isize,
    /// In the loader's record of an object: its number among the objects with thread-locals, and
    /// its place in every block.
    pub(super) modid: usize,
    pub(super) offset: usize,
    /// The loader's table of objects with thread-locals.
    pub(super) slots: *const c_void,
}

// SAFETY: D6, addresses of libc's own functions and tables, which all threads share.
unsafe impl Send for Glibc {}
// SAFETY: D6, addresses of libc's own functions and tables, which all threads share.
unsafe impl Sync for Glibc {}

/// Why goroutines cannot have their own thread-locals.
pub(crate) type Reason = &'static str;

static SUPPORT: OnceLock<Glibc> = OnceLock::new();

/// There was no thread to inspect; the next attempt may succeed.
pub(super) const NO_THREAD: Reason = "no thread could be started to look at";
pub(super) const NO_MEMORY: Reason = "there is no memory for a thread block";

/// What was found; once found it stays. `keeps_surplus` leaves libc's surplus to libraries that are
/// loaded later; it has an effect only if nothing was found before. `install` is called when it is
/// first found, and may refuse. A refusal leaves libc as it was. In user context.
pub(super) fn support(
    keeps_surplus: bool,
    install: fn() -> Result<(), Reason>,
) -> Result<&'static Glibc, Reason> {
    if sys::REFUSE_OWN_TLS.load(Relaxed) {
        return Err("a test has refused it");
    }
    static LOOKS: Mutex<()> = Mutex::new(());
    let _one = LOOKS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(glibc) = SUPPORT.get() {
        return Ok(glibc);
    }
    let found = look(keeps_surplus, install)?;
    Ok(SUPPORT.get_or_init(|| found))
}

fn look(keeps_surplus: bool, install: fn() -> Result<(), Reason>) -> Result<Glibc, Reason> {
    let sanitizers = [
        c"__asan_init",
        c"__tsan_init",
        c"__msan_init",
        c"__hwasan_init",
    ];
    if sanitizers.iter().any(|name| symbol(name).is_some()) {
        return Err("the program runs under a sanitizer, which keeps its state in thread-locals");
    }
    if !can_set_thread_pointer() {
        return Err(
            "this CPU or kernel does not let programs change FS (no FSGSBASE: before Linux 5.9, or under valgrind)",
        );
    }
    let found = on_fresh_thread(keeps_surplus)?;
    install()?;
    Ok(found.publish())
}

impl Glibc {
    pub(super) fn room(&self) -> Room {
        let align = self.align.max(64);
        let above = HEADER + self.kept.next_multiple_of(16);
        Room {
            above,
            total: above + self.pthread.next_multiple_of(64),
            align,
            words: self.malloc_words.unwrap_or([0; 2]),
            shares_malloc: self.malloc_words.is_some(),
            surplus: self.surplus,
        }
    }
}

/// An entry of libc's tables for debuggers.
struct Field {
    bits: usize,
    offset: usize,
}

pub(super) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a look-up by name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn field(name: &CStr) -> Option<Field> {
    let table: *const u32 = symbol(name)?.cast_const().cast();
    // SAFETY: D6, glibc's descriptors are three 32-bit words: bits, count, offset.
    let (bits, offset) = unsafe { (*table, *table.add(2)) };
    Some(Field {
        bits: bits as usize,
        offset: offset as usize,
    })
}

fn size(name: &CStr) -> Option<usize> {
    // SAFETY: D6, glibc's descriptors of sizes are one 32-bit word.
    symbol(name).map(|table| unsafe { *table.cast_const().cast::<u32>() } as usize)
}

/// The function behind a name, as type `F`.
///
/// # Safety
/// The symbol, if there is one, is a function of type `F`.
unsafe fn function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the caller promises that the symbol is of type `F`; the sizes were compared above.
    symbol(name).map(|found| unsafe { std::mem::transmute_copy::<*mut c_void, F>(&found) })
}

/// What the fresh thread works on and answers with.
struct Look {
    /// Whether libc's surplus is left to libraries that are loaded later.
    keeps_surplus: bool,
    /// Its thread-locals before it first allocated.
    locals: Watch,
    /// Its whole block before it first asked for random bytes.
    block: Watch,
    found: Result<Found, Reason>,
}

/// A layout that has been tried out.
struct Found {
    glibc: Glibc,
    image: &'static Image,
    /// Unloaded if the layout is not used after all.
    reservation: Option<Reservation>,
}

impl Found {
    /// Reserves the surplus, makes the first image and tries all of it out. On a thread that libc
    /// made, in user context.
    fn new(mut glibc: Glibc, keeps_surplus: bool) -> Result<Found, Reason> {
        let reservation = surplus::reserve(&mut glibc, keeps_surplus);
        let image = Box::leak(Box::new(Image::new(&glibc)?));
        selftest::run(image)?;
        Ok(Found {
            glibc,
            image,
            reservation,
        })
    }

    /// Lets goroutines have blocks of this layout, for good.
    fn publish(self) -> Glibc {
        if let Some(reservation) = self.reservation {
            reservation.keep();
        }
        image::publish(self.image, self.image.next);
        self.glibc
    }
}

/// Words of a thread's block: what they were, and which have changed. Only `new` allocates, because
/// malloc is what is watched.
struct Watch {
    /// Where the words begin, from the thread pointer.
    from: isize,
    before: Vec<usize>,
    /// Offsets from the thread pointer.
    changed: Vec<isize>,
}

impl Watch {
    fn new(from: isize, end: isize) -> Watch {
        let count = (end - from) as usize / 8;
        Watch {
            from,
            before: vec![0; count],
            changed: Vec::with_capacity(count),
        }
    }

    /// The offset of word `at`, and its value in this thread.
    fn word(&self, at: usize) -> (isize, usize) {
        let offset = self.from + at as isize * 8;
        // SAFETY: D6, a word of this thread's own block; libc itself gave the block's size.
        let value = unsafe {
            (thread_pointer().wrapping_add_signed(offset) as *const usize).read_volatile()
        };
        (offset, value)
    }

    fn begin(&mut self) {
        for at in 0..self.before.len() {
            self.before[at] = self.word(at).1;
        }
    }

    /// Notes what has changed since `begin`.
    fn note(&mut self) {
        for at in 0..self.before.len() {
            let (offset, now) = self.word(at);
            if now != self.before[at] && !self.changed.contains(&offset) {
                self.changed.push(offset);
            }
        }
    }

    /// The words among `inside` that have changed, if all of them are pointers now; None: some are
    /// not.
    fn pointers(&self, inside: impl Fn(isize) -> bool) -> Option<Vec<isize>> {
        let changed = self.changed.iter().copied().filter(|at| inside(*at));
        let words: Vec<isize> = changed.collect();
        let is_pointer = |offset: &isize| {
            let (_, now) = self.word((offset - self.from) as usize / 8);
            now > 1 << 16 && now.is_multiple_of(8)
        };
        words.iter().all(is_pointer).then_some(words)
    }
}

/// Inspects a thread that libc has just made, before any other code ran on it.
fn on_fresh_thread(keeps_surplus: bool) -> Result<Found, Reason> {
    let (below, _) = static_tls().ok_or(NO_INTERFACE)?;
    let pthread = size(c"_thread_db_sizeof_pthread").ok_or(NO_INTERFACE)?;
    let below = below as isize / 8 * 8;
    let mut look = Look {
        keeps_surplus,
        locals: Watch::new(-below, 0),
        block: Watch::new(-below, pthread as isize),
        found: Err(NO_THREAD),
    };
    let mut thread = 0;
    // SAFETY: `inspect` takes this argument, which outlives the thread: the thread is joined.
    let (made, joined) = unsafe {
        let arg = (&raw mut look).cast();
        let make = || libc::pthread_create(&mut thread, ptr::null(), inspect, arg);
        let made = real_threads(make);
        (
            made,
            made == 0 && libc::pthread_join(thread, ptr::null_mut()) == 0,
        )
    };
    if made != 0 || !joined {
        return Err(NO_THREAD);
    }
    look.found
}

const NO_INTERFACE: Reason =
    "the C library is not a glibc from 2.34 on, linked dynamically, whose thread blocks are known";

/// The bytes of thread-locals below the thread pointer, and their alignment.
fn static_tls() -> Option<(usize, usize)> {
    // SAFETY: D6, the function's type in every glibc that has it.
    let info: unsafe extern "C" fn(*mut usize, *mut usize) =
        unsafe { function(c"_dl_get_tls_static_info")? };
    let pthread = size(c"_thread_db_sizeof_pthread")?;
    let (mut all, mut align) = (0, 0);
    // SAFETY: libc writes two words, both this frame's.
    unsafe { info(&mut all, &mut align) };
    (all > pthread && align.is_power_of_two()).then_some((all - pthread, align))
}

extern "C" fn inspect(arg: *mut c_void) -> *mut c_void {
    // SAFETY: D6, `on_fresh_thread` lends it until this thread has ended.
    let look = unsafe { &mut *arg.cast::<Look>() };
    look.locals.begin();
    use_malloc(|| look.locals.note());
    look.block.begin();
    use_random();
    look.block.note();
    look.found = describe(look).and_then(|glibc| {
        scope::find();
        Found::new(glibc, look.keeps_surplus)
    });
    ptr::null_mut()
}

/// Uses libc's malloc in every way that may make it keep something for the thread, and calls
/// `after` after each. A glibc before 2.42 makes the thread's cache at the first allocation, a
/// later one at the first free.
pub(super) fn use_malloc(mut after: impl FnMut()) {
    for size in [24, 24, 1000, 40_000] {
        // SAFETY: allocates and frees. The compiler knows these functions and would otherwise
        // remove the calls.
        unsafe {
            let (one, two) = keeping_errno(|| {
                (
                    black_box(libc::malloc(size)),
                    black_box(libc::calloc(1, size)),
                )
            });
            after();
            keeping_errno(|| libc::free(one));
            after();
            keeping_errno(|| libc::free(two));
            after();
        }
    }
}

/// Runs `f` and restores `errno`: it is one of the words that are watched, and means nothing here.
fn keeping_errno<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: the thread's own word, at the same place before and after.
    unsafe {
        let errno = libc::__errno_location();
        let before = *errno;
        let out = f();
        *errno = before;
        out
    }
}

/// Has libc make the thread's state for `getrandom`, if this libc and the kernel have it. A sandbox
/// may refuse the call.
pub(super) fn use_random() {
    let mut bytes = [0u8; 8];
    // SAFETY: the kernel or libc writes this array only.
    keeping_errno(|| unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) });
}

/// Whether the malloc that the program calls is libc's own.
pub(super) fn is_malloc_libcs() -> bool {
    let object = |at: *mut c_void| {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
        // SAFETY: libc writes the struct if it knows the address; zeroes are a valid value of it.
        unsafe {
            libc::dladdr(at, info.as_mut_ptr());
            info.assume_init().dli_fbase
        }
    };
    let (name, version) = (c"malloc", c"GLIBC_2.2.5");
    // SAFETY: a look-up by name.
    let versioned = unsafe { libc::dlvsym(libc::RTLD_DEFAULT, name.as_ptr(), version.as_ptr()) };
    // Calls are bound to the symbol with this version, or to one without a version. glibc's malloc
    // that checks (`libc_malloc_debug`) is found only with the version, a program's own only
    // without.
    let libc = symbol(c"gnu_get_libc_version").map(object);
    symbol(name).map(object) == libc && (versioned.is_null() || Some(object(versioned)) == libc)
}

/// The thread-locals of libc that hold malloc's cache and arena: those that became pointers when
/// malloc was used, whatever they were before. They change also if another malloc passes calls on
/// to libc's; one that does not leaves these words alone.
fn malloc_words(glibc: &Glibc, look: &Look) -> Result<Option<[isize; 2]>, Reason> {
    const LOST: Reason =
        "the C library's malloc keeps its caches for a thread in a way that is not known";
    let libc = modules::with(glibc, glibc.resolver_word).ok_or(LOST)?;
    let words = look.locals.pointers(|at| libc.contains(&at)).ok_or(LOST)?;
    match words[..] {
        [one] => Ok(Some([one, one])),
        [one, two] => Ok(Some([one, two])),
        [] if !is_malloc_libcs() => Ok(None),
        _ => Err(LOST),
    }
}

/// The word that points to the thread's state for `getrandom`.
fn random_word(glibc: &Glibc, look: &Look) -> Result<Option<isize>, Reason> {
    const LOST: Reason =
        "the C library keeps its random state for a thread in a way that is not known";
    // The kernel writes to the first at any time. Other threads write to the second when they begin
    // and end.
    let rseq = glibc.rseq..glibc.rseq + RSEQ_BYTES;
    let list = glibc.list as isize..glibc.list as isize + LIST_BYTES;
    let is_rseq = |at: isize| glibc.rseq != 0 && rseq.contains(&at);
    let is_libcs = |at: isize| !is_rseq(at) && !list.contains(&at);
    match look.block.pointers(is_libcs).ok_or(LOST)?[..] {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        _ => Err(LOST),
    }
}

/// Reads the layout from the present thread and libc's tables.
fn describe(look: &Look) -> Result<Glibc, Reason> {
    let tp = thread_pointer();
    let (below, align) = static_tls().ok_or(NO_INTERFACE)?;
    let mut found = look_up(tp, below, align).ok_or(NO_INTERFACE)?;
    check(&found, tp)?;
    found.malloc_words = malloc_words(&found, look)?;
    found.random_word = random_word(&found, look)?;
    Ok(found)
}

fn look_up(tp: usize, below: usize, align: usize) -> Option<Glibc> {
    let pthread = size(c"_thread_db_sizeof_pthread")?;
    let specific = field(c"_thread_db_pthread_specific")?;
    let keys_fit = size(c"_thread_db_sizeof_pthread_key_struct")? == size_of::<Key>()
        && size(c"_thread_db_sizeof_pthread_key_data")? == size_of::<KeyData>()
        && field(c"_thread_db_pthread_key_struct_destr")?.offset == 8
        && field(c"_thread_db_pthread_key_data_data")?.offset == 8
        && specific.bits == KEY_BLOCKS * 64;
    let dtv_fits = field(c"_thread_db_pthread_dtvp")?.offset == DTV
        && field(c"_thread_db_dtv_t_pointer_val")?.offset == 0;
    let resolver_word = symbol(c"__resp")? as usize;
    // SAFETY: D6, dlsym returns the address of this thread's own copy.
    let resolver = unsafe { *(resolver_word as *const usize) };
    let rseq = symbol(c"__rseq_offset").map_or(0, |at| {
        // SAFETY: D6, a public variable of glibc from 2.35 on, of this type.
        unsafe { *at.cast_const().cast::<isize>() }
    });
    // SAFETY: D6, in each case the function's type in every glibc that has it.
    unsafe {
        (keys_fit && dtv_fits).then_some(())?;
        Some(Glibc {
            allocate_tls: function(c"_dl_allocate_tls")?,
            deallocate_tls: function(c"_dl_deallocate_tls")?,
            call_tls_dtors: function(c"__call_tls_dtors")?,
            ctype_init: function(c"__ctype_init")?,
            res_nclose: function(c"__res_nclose")?,
            malloc_trim: function(c"malloc_trim"),
            keys: symbol(c"__pthread_keys")?.cast_const().cast(),
            below,
            kept: below,
            reservation: 0,
            surplus: Surplus::Unavailable,
            align,
            pthread,
            tid: field(c"_thread_db_pthread_tid")?.offset,
            list: field(c"_thread_db_pthread_list")?.offset,
            robust: robust_list()?.checked_sub(tp)?,
            specific: specific.offset,
            first_keys: (*((tp + specific.offset) as *const usize)).checked_sub(tp)?,
            keys_used: specific.offset + KEY_BLOCKS * 8,
            resolver: resolver.checked_sub(tp)?,
            resolver_word: resolver_word as isize - tp as isize,
            malloc_words: None,
            bounds: bounds::find(tp, pthread),
            random_word: None,
            text_words: text_words(tp, below, pthread),
            rseq,
            modid: field(c"_thread_db_link_map_l_tls_modid")?.offset,
            offset: field(c"_thread_db_link_map_l_tls_offset")?.offset,
            slots: slots()?,
        })
    }
}

/// Where the loader keeps its table of objects with thread-locals; None: the description is not the
/// known one.
fn slots() -> Option<*const c_void> {
    let is_known = field(c"_thread_db_dtv_slotinfo_list_slotinfo")?.offset == 16
        && field(c"_thread_db_dtv_slotinfo_list_next")?.offset == 8
        && field(c"_thread_db_dtv_slotinfo_map")?.offset == 8;
    let place = field(c"_thread_db_rtld_global__dl_tls_dtv_slotinfo_list")?.offset;
    let globals: *const u8 = symbol(c"_rtld_global")?.cast_const().cast();
    // SAFETY: D6, a pointer among the loader's globals, at the place that the loader publishes.
    is_known.then(|| unsafe { *globals.add(place).cast::<*const c_void>() })
}

/// Finds the words that point to texts of unknown errors and signals: libc returns these in memory
/// of its own.
fn text_words(tp: usize, below: usize, pthread: usize) -> [isize; 2] {
    // SAFETY: both functions take any number; the texts are this thread's.
    let texts = unsafe { [libc::strerror(c_int::MAX), libc::strsignal(c_int::MAX)] };
    texts.map(|text| {
        let mut words = (-(below as isize)..pthread as isize).step_by(8);
        let is_it = |at: &isize| {
            // SAFETY: D6, a word of this thread's block.
            unsafe { *(tp.wrapping_add_signed(*at) as *const usize) == text as usize }
        };
        words.find(is_it).unwrap_or(0)
    })
}

/// The head of this thread's robust list, as the kernel has it.
fn robust_list() -> Option<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: the kernel writes two words of this frame.
    let answer =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut len) };
    (answer == 0 && head != 0).then_some(head)
}

/// Compares the layout with this live thread.
fn check(glibc: &Glibc, tp: usize) -> Result<(), Reason> {
    const ODD: Reason = "the C library's thread blocks are not laid out as its own tables say";
    let inside =
        |offset: usize, len: usize| offset.is_multiple_of(8) && offset + len <= glibc.pthread;
    let fits = inside(glibc.list, 16)
        && inside(glibc.robust - 8, 32)
        && inside(glibc.specific, KEY_BLOCKS * 8 + 8)
        && inside(glibc.first_keys, KEYS_PER_BLOCK * size_of::<KeyData>())
        && inside(glibc.resolver, 64)
        && glibc.tid + 4 <= glibc.pthread
        && (-(glibc.below as isize)..0).contains(&glibc.resolver_word)
        && (-(glibc.below as isize)..=glibc.pthread as isize - 32).contains(&glibc.rseq);
    // SAFETY: D6, every read comes after `fits`: all of it lies in this thread's block.
    unsafe {
        let word = |at: usize| *((tp + at) as *const usize);
        let is_right = fits
            && word(SELF) == tp
            && word(SELF_TOO) == tp
            && *((tp + glibc.tid) as *const c_int) == sys::gettid()
            && word(glibc.robust) == tp + glibc.robust
            && word(glibc.robust - 8) == tp + glibc.robust
            && word(glibc.list) != 0
            && word(glibc.list + 8) != 0;
        if !is_right || !notes_keys(glibc, tp) || !modules::agrees(glibc) {
            return Err(ODD);
        }
    }
    Ok(())
}

/// Whether setting a pthread key changes the flag and the slot where they are expected.
fn notes_keys(glibc: &Glibc, tp: usize) -> bool {
    let mut key = 0;
    // SAFETY: a key of our own, deleted at the end; the words lie in this thread's block.
    unsafe {
        if libc::pthread_key_create(&mut key, None) != 0 {
            return false;
        }
        let flag = (tp + glibc.keys_used) as *mut u8;
        let before = flag.read_volatile(); // a malloc may have set a key of its own
        flag.write_volatile(0);
        libc::pthread_setspecific(key, 0x5eed as *const c_void);
        let slot = (tp + glibc.first_keys) as *const KeyData;
        let is_seen = key as usize >= KEYS_PER_BLOCK
            || (*slot.add(key as usize)).data as usize == 0x5eed
                && (*slot.add(key as usize)).seq == (*glibc.keys.add(key as usize)).seq;
        let noted = flag.read_volatile() == 1;
        libc::pthread_setspecific(key, ptr::null());
        libc::pthread_key_delete(key);
        flag.write_volatile(before);
        is_seen && noted && before <= 1
    }
}

impl Glibc {
    /// Asks malloc to return free memory to the system. In user context.
    pub(super) fn trim_malloc(&self) {
        if let Some(trim) = self.malloc_trim
            && self.malloc_words.is_some()
        {
            // SAFETY: D6, a public function of glibc; the program's malloc uses glibc's.
            unsafe { trim(0) };
        }
    }

    /// Writes what every thread block of this process has in common, copied from the present one.
    ///
    /// # Safety
    /// `tcb` is the thread pointer of a block that only the caller uses.
    pub(super) unsafe fn write_constants(&self, tcb: *mut u8) {
        let tp = thread_pointer() as *const u8;
        // SAFETY: D6, the words are part of libc's ABI; both blocks are whole.
        unsafe {
            tcb.add(MULTIPLE_THREADS).cast::<u32>().write(1);
            for at in [STACK_GUARD, POINTER_GUARD] {
                let value = tp.add(at).cast::<usize>().read();
                tcb.add(at).cast::<usize>().write(value);
            }
            let features = tp.add(FEATURES).cast::<u32>().read();
            tcb.add(FEATURES).cast::<u32>().write(features);
            let robust_rest = tp.add(self.robust + 8).cast::<usize>().read();
            tcb.add(self.robust + 8).cast::<usize>().write(robust_rest);
            if self.rseq != 0 {
                tcb.offset(self.rseq).cast::<u32>().add(1).write(RSEQ_NONE);
            }
        }
    }
}

/// Bytes that the kernel may write of a thread's rseq area.
const RSEQ_BYTES: isize = 32;
/// Bytes of a block in the list of all threads: two pointers.
const LIST_BYTES: isize = 16;

/// In a thread's rseq area: the kernel does not maintain it; make the system call instead.
const RSEQ_NONE: u32 = -2i32 as u32;
