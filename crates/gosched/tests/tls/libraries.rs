//! C libraries with thread-locals, loaded while goroutines exist.
//!
//! A library's thread-locals are reached in one of three ways. *Initial-exec*: at a fixed distance
//! from the thread pointer, in room that every block keeps for libraries that come late.
//! *General-dynamic*: a function finds the thread-local through a table of the thread, and makes
//! its memory at the first use. *Descriptors* are a faster way to the same.

use std::ffi::{CStr, CString, c_char, c_long};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::common::{child_of, child_with, keep_static_tls, rss_kib};
use crate::tools::{own, tid, until};
use gosched::thread;

/// Values that begin as zero and values that do not, and room to notice when it is not given back.
const SOURCE: &str = r#"
static __thread long zeroed;
static __thread long valued = 4242;
static __thread char text[24] = "as it was loaded";
#ifdef ROOM
static __thread char room[ROOM] = { 1 };
#endif
long *zeroed_at(void) { return &zeroed; }
long *valued_at(void) { return &valued; }
char *text_at(void) { return text; }
long room_sum(void) {
    long sum = 0;
#ifdef ROOM
    for (int i = 0; i < ROOM; i++) sum += room[i]++;
#endif
    return sum;
}
"#;

/// The ways to reach thread-locals, as the compiler calls them.
const INITIAL_EXEC: &str = "-ftls-model=initial-exec";
const GENERAL_DYNAMIC: &str = "-ftls-model=global-dynamic";
const DESCRIPTORS: &str = "-mtls-dialect=gnu2";

/// A directory of one test's own, gone with it.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let name = format!("gosched-test-{}-{name}", std::process::id());
        let place = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&place).expect("room for temporary files");
        Place(place)
    }

    /// Makes a library of the source.
    fn compile(&self, name: &str, options: &[&str]) -> PathBuf {
        let (source, library) = (self.0.join("source.c"), self.0.join(name));
        std::fs::write(&source, SOURCE).expect("room for temporary files");
        let out = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .args(options)
            .arg(&source)
            .output()
            .expect("a C compiler: rustc links with it");
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        library
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A loaded library's functions.
struct Library {
    handle: usize,
    zeroed_at: extern "C" fn() -> *mut c_long,
    valued_at: extern "C" fn() -> *mut c_long,
    text_at: extern "C" fn() -> *mut c_char,
    room_sum: extern "C" fn() -> c_long,
}

impl Library {
    fn load(path: &Path) -> Library {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: our own library, which does nothing when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{}", dl_error());
        let find = |name: &CStr| {
            // SAFETY: a loaded library.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!found.is_null(), "{}", dl_error());
            found
        };
        // SAFETY: these are the types in the source above.
        unsafe {
            Library {
                handle: handle.expose_provenance(),
                zeroed_at: std::mem::transmute::<*mut _, extern "C" fn() -> *mut c_long>(find(
                    c"zeroed_at",
                )),
                valued_at: std::mem::transmute::<*mut _, extern "C" fn() -> *mut c_long>(find(
                    c"valued_at",
                )),
                text_at: std::mem::transmute::<*mut _, extern "C" fn() -> *mut c_char>(find(
                    c"text_at",
                )),
                room_sum: std::mem::transmute::<*mut _, extern "C" fn() -> c_long>(find(
                    c"room_sum",
                )),
            }
        }
    }

    /// No code calls into it any more.
    fn unload(self) {
        // SAFETY: loaded once, unloaded once.
        let done = unsafe { libc::dlclose(std::ptr::with_exposed_provenance_mut(self.handle)) };
        assert_eq!(done, 0);
    }

    fn zeroed(&self) -> c_long {
        // SAFETY: this thread's, or goroutine's, valid until it ends.
        unsafe { *(self.zeroed_at)() }
    }

    fn valued(&self) -> c_long {
        // SAFETY: the address of a thread-local of this thread or goroutine, valid until that ends.
        unsafe { *(self.valued_at)() }
    }

    fn text(&self) -> String {
        // SAFETY: the address of a thread-local text of this thread or goroutine, which ends in 0.
        let text = unsafe { CStr::from_ptr((self.text_at)()) };
        text.to_str().unwrap().to_owned()
    }

    #[track_caller]
    fn assert_initial(&self) {
        assert_eq!((self.zeroed(), self.valued()), (0, 4242));
        assert_eq!(self.text(), "as it was loaded");
    }

    fn change(&self, mark: c_long) {
        // SAFETY: addresses of thread-locals of this thread or goroutine, valid until that ends.
        // The text has room for two bytes.
        unsafe {
            *(self.zeroed_at)() = mark;
            *(self.valued_at)() = -mark;
            (self.text_at)().write(b'!' as c_char);
            (self.text_at)().add(1).write(0);
        }
    }

    #[track_caller]
    fn assert_changed(&self, mark: c_long) {
        assert_eq!((self.zeroed(), self.valued()), (mark, -mark));
        assert_eq!(self.text(), "!");
    }

    /// What every goroutine and thread does: from the initial values to its own, over switches.
    fn live(&self, mark: c_long, moves: &AtomicUsize) {
        self.assert_initial();
        self.change(mark);
        let at = (self.valued_at)();
        for _ in 0..20 {
            let before = tid();
            thread::yield_now();
            moves.fetch_add(usize::from(tid() != before), SeqCst);
            assert_eq!((self.valued_at)(), at);
            self.assert_changed(mark);
        }
    }
}

fn dl_error() -> String {
    // SAFETY: an error has just happened in this thread.
    let text = unsafe { CStr::from_ptr(libc::dlerror()) };
    text.to_string_lossy().into_owned()
}

/// The first failure ends the process: a goroutine that waits for a library would wait for ever.
fn end_at_failure(model: &str) {
    let model = model.to_owned();
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("{model}: {info}");
        std::process::abort();
    }));
}

/// The library that all goroutines use, once it is loaded; several are loaded one after the other.
type Shelf = [OnceLock<Library>; 3];

/// Goroutines of every kind that are there before the libraries are.
fn wait_for_libraries<'scope>(
    s: &'scope thread::Scope<'scope, '_>,
    shelf: &'scope Shelf,
    moves: &'scope AtomicUsize,
) -> Vec<thread::Thread> {
    let use_all = move |mark: c_long| {
        for library in shelf {
            until(|| library.get().is_some());
            library.get().unwrap().live(mark, moves);
        }
    };
    let mut parked = Vec::new();
    for mark in 1..=300 {
        let one = s.spawn(move || {
            thread::park();
            use_all(mark);
        });
        parked.push(one.thread().clone());
    }
    for mark in 301..=330 {
        s.spawn(move || {
            // Switching all the time.
            while shelf[0].get().is_none() {
                thread::yield_now();
            }
            use_all(mark);
        });
    }
    // One that is seldom switched.
    s.spawn(move || {
        while shelf[0].get().is_none() {
            (0..100_000).for_each(|_| std::hint::spin_loop());
            thread::yield_now();
        }
        use_all(331);
    });
    parked
}

/// Libraries that come late, among goroutines that park, run, and are yet to come, and among plain
/// threads.
fn load_late(model: &str) {
    end_at_failure(model);
    let place = Place::new("late");
    // A name each, so that each is loaded for itself.
    let paths = ["one.so", "two.so", "three.so"].map(|name| place.compile(name, &[model]));
    let (shelf, moves) = (Shelf::default(), AtomicUsize::new(0));
    let other = own(2);
    let elsewhere = |mark| {
        shelf.iter().for_each(|library| {
            until(|| library.get().is_some());
            library.get().unwrap().live(mark, &moves);
        })
    };
    std::thread::scope(|threads| {
        threads.spawn(|| elsewhere(1_000));
        threads.spawn(|| other.run(|| elsewhere(1_001)));
        own(4).run(|| {
            thread::scope(|s| {
                let parked = wait_for_libraries(s, &shelf, &moves);
                (0..100).for_each(|_| thread::yield_now());
                for (path, library) in paths.iter().zip(&shelf) {
                    // Goroutines load them, each on another one.
                    s.spawn(|| drop(library.set(Library::load(path))))
                        .join()
                        .unwrap();
                    library.get().unwrap().live(1_002, &moves);
                }
                parked.iter().for_each(thread::Thread::unpark);
            });
            // New ones, on stacks that others have used and on fresh ones.
            for round in 1..=3 {
                thread::scope(|s| {
                    for mark in 1..=400 {
                        let (shelf, moves) = (&shelf, &moves);
                        s.spawn(move || {
                            let library = &shelf[mark as usize % 3];
                            library.get().unwrap().live(round * 1_000 + mark, moves);
                        });
                    }
                });
            }
        });
        threads.spawn(|| own(2).run(|| elsewhere(1_003)));
    });
    assert!(moves.load(SeqCst) > 500, "{moves:?} migrations");
}

#[test]
fn late_libraries_reach_every_goroutine() {
    const NAME: &str = "libraries::late_libraries_reach_every_goroutine";
    for model in [INITIAL_EXEC, GENERAL_DYNAMIC, DESCRIPTORS] {
        let output = child_with(NAME, model, keep_static_tls, load_late);
        assert!(output.status.success(), "{model}: {output:#?}");
    }
    // Goroutines use libc's room for the first kind.
    for model in [GENERAL_DYNAMIC, DESCRIPTORS] {
        let output = child_of(NAME, model, load_late);
        assert!(output.status.success(), "{model}: {output:#?}");
    }
}

/// Loaded, used and unloaded again and again; what the last one left is not what the next one
/// finds.
#[test]
fn libraries_come_and_go() {
    const NAME: &str = "libraries::libraries_come_and_go";
    let output = child_with(NAME, "", keep_static_tls, |_| {
        end_at_failure("come and go");
        let place = Place::new("come-and-go");
        let paths = [
            ("a.so", GENERAL_DYNAMIC),
            ("b.so", INITIAL_EXEC),
            ("c.so", DESCRIPTORS),
        ];
        let paths = paths.map(|(name, model)| place.compile(name, &[model]));
        let moves = AtomicUsize::new(0);
        own(2).run(|| {
            for round in 0..60 {
                let library = Library::load(&paths[round % 3]);
                thread::scope(|s| {
                    for mark in 1..=20 {
                        let (library, moves) = (&library, &moves);
                        s.spawn(move || library.live(mark, moves));
                    }
                });
                // This goroutine outlives them all.
                library.live(99, &moves);
                library.unload();
            }
        });
    });
    output.succeeded();
}

/// Memory that a library's thread-locals take on demand is given back with the goroutine.
#[test]
fn memory_of_libraries_is_given_back() {
    const NAME: &str = "libraries::memory_of_libraries_is_given_back";
    for model in [GENERAL_DYNAMIC, DESCRIPTORS] {
        let output = child_of(NAME, model, |model| {
            let place = Place::new("given-back");
            let library = Library::load(&place.compile("room.so", &[model, "-DROOM=2000"]));
            let use_by = |goroutines: usize| {
                for _ in 0..goroutines / 50 {
                    thread::scope(|s| {
                        for _ in 0..50 {
                            s.spawn(|| {
                                library.assert_initial();
                                assert_eq!((library.room_sum)(), 1);
                                library.change(3);
                            });
                        }
                    });
                }
            };
            own(2).run(|| {
                use_by(5_000);
                let before = rss_kib();
                use_by(20_000);
                let grown = rss_kib().saturating_sub(before);
                // Kept, it would be 40 MB.
                assert!(grown < 4 << 10, "{grown} KiB more");
            });
        });
        assert!(output.status.success(), "{model}: {output:#?}");
    }
}

/// Puts the flag of the present thread block up or down, as libc does around a look-up of a symbol.
fn set_look_up_flag(value: u32) {
    // SAFETY: nothing is looked up on this goroutine meanwhile; 0x1c is where glibc's blocks have
    // the flag.
    unsafe { std::arch::asm!("mov fs:[0x1c], {:e}", in(reg) value, options(nostack)) };
}

/// libc frees lists of symbols when a library goes, and waits before for threads that read them;
/// so it must for goroutines.
#[test]
fn unloading_waits_for_goroutines_that_look_symbols_up() {
    const NAME: &str = "libraries::unloading_waits_for_goroutines_that_look_symbols_up";
    let place = Place::new("look-up");
    let path = place.compile("global.so", &[]);
    let out = child_of(NAME, path.to_str().unwrap(), |path| {
        static IS_UP: AtomicUsize = AtomicUsize::new(0);
        let path = CString::new(path).unwrap();
        // SAFETY: our own library. All look-ups by name see a global one, so the list of those
        // changes when it goes.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        let handle = handle.expose_provenance();
        let close = move || {
            let handle = std::ptr::with_exposed_provenance_mut(handle);
            // SAFETY: loaded above, closed once, nothing of it is used.
            assert_eq!(unsafe { libc::dlclose(handle) }, 0);
        };
        own(2).run(move || {
            let looks_up = thread::spawn(|| {
                set_look_up_flag(1);
                IS_UP.store(1, SeqCst);
                while IS_UP.load(SeqCst) == 1 {
                    std::hint::spin_loop();
                }
                set_look_up_flag(0);
            });
            until(|| IS_UP.load(SeqCst) == 1);
            let closes = std::thread::spawn(close);
            thread::sleep(std::time::Duration::from_millis(200));
            assert!(!closes.is_finished(), "it is gone, and somebody reads");
            IS_UP.store(2, SeqCst);
            looks_up.join().unwrap();
            closes.join().unwrap();
        });
    });
    out.succeeded();
}
