//! Ends that meet: of a goroutine's thread-locals and its runtime, of a library and its
//! thread-locals (D6).

use std::cell::RefCell;
use std::ffi::{CString, c_long, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::common::{LONG, child_with, keep_static_tls};
use gosched::{Runtime, thread};

/// Waits when it is dropped.
struct Lingers(Arc<AtomicUsize>);

impl Drop for Lingers {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
        thread::sleep(Duration::from_millis(200));
        gosched::yield_now();
        self.0.fetch_add(1000, SeqCst);
    }
}

thread_local! {
    static LINGERS: RefCell<Option<Lingers>> = const { RefCell::new(None) };
}

/// Nothing may unwind out of a thread-local's destructor, so a shutdown lets it finish.
#[test]
fn d6_a_shutdown_meets_goroutines_that_wait_in_destructors() {
    let name = "d6_a_shutdown_meets_goroutines_that_wait_in_destructors";
    let out = crate::common::child(name, || {
        let runtime = Runtime::builder().procs(2).build().unwrap();
        let ends = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..50)
            .map(|n| {
                let ends = Arc::clone(&ends);
                runtime.spawn(move || {
                    LINGERS.set(Some(Lingers(ends)));
                    n
                })
            })
            .collect();
        while ends.load(SeqCst) % 1000 < 50 {
            std::thread::yield_now();
        }
        runtime.shutdown(LONG);
        assert_eq!(ends.load(SeqCst), 50 * 1001);
        for (n, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.join().unwrap(), n);
        }
    });
    out.succeeded();
}

/// Makes a library with one thread-local in a fixed place.
fn library() -> PathBuf {
    let place = std::env::temp_dir().join(format!("gosched-ends-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let (source, library) = (place.join("value.c"), place.join("value.so"));
    std::fs::write(
        &source,
        "static __thread long value = 77; long *value_at(void) { return &value; }\n",
    )
    .unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-ftls-model=initial-exec", "-o"])
        .args([&library, &source])
        .status()
        .expect("a C compiler: rustc links with it");
    assert!(built.success());
    library
}

/// Compiles another library into the same place.
fn companion(first: &std::path::Path, name: &str, source: &str) -> CString {
    let place = first.parent().unwrap();
    let (file, library) = (
        place.join(format!("{name}.c")),
        place.join(format!("{name}.so")),
    );
    std::fs::write(&file, source).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &file])
        .arg("-ldl")
        .status()
        .unwrap();
    assert!(built.success());
    CString::new(library.to_str().unwrap()).unwrap()
}

/// A library that another library loads is seen by every goroutine that begins afterwards, with its
/// initial values.
#[test]
fn d6_a_library_that_comes_by_itself_begins_anew_in_new_goroutines() {
    let name = "d6_a_library_that_comes_by_itself_begins_anew_in_new_goroutines";
    let out = child_with(name, "", keep_static_tls, |_| {
        let library = library();
        let loader = companion(
            &library,
            "loader",
            "#include <dlfcn.h>\nvoid *fetch(const char *path) { return dlopen(path, RTLD_NOW); }\n",
        );
        let path = CString::new(library.to_str().unwrap()).unwrap();
        let runtime = Runtime::builder().procs(1).build().unwrap();
        runtime.run(|| {
            // SAFETY: our own libraries, with these functions.
            let value_at = unsafe {
                let loader = libc::dlopen(loader.as_ptr(), libc::RTLD_NOW);
                assert!(!loader.is_null());
                let fetch = libc::dlsym(loader, c"fetch".as_ptr());
                let fetch = std::mem::transmute::<
                    *mut c_void,
                    extern "C" fn(*const std::ffi::c_char) -> *mut c_void,
                >(fetch);
                let found = libc::dlsym(fetch(path.as_ptr()), c"value_at".as_ptr());
                assert!(!found.is_null());
                std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_long>(found)
            };
            for round in 0..100 {
                let value = thread::spawn(move || {
                    // SAFETY: the goroutine's own copy.
                    unsafe { std::mem::replace(&mut *value_at(), round) }
                });
                assert_eq!(value.join().unwrap(), 77);
            }
        });
        std::fs::remove_dir_all(library.parent().unwrap()).unwrap();
    });
    out.succeeded();
}

/// Loading blocks no goroutine, not even one that waits with its thread for the loader's lock.
#[test]
fn d6_a_library_is_loaded_under_a_lock_that_others_wait_for() {
    let name = "d6_a_library_is_loaded_under_a_lock_that_others_wait_for";
    let out = child_with(name, "", keep_static_tls, |_| {
        let library = library();
        let path = CString::new(library.to_str().unwrap()).unwrap();
        let lock = std::sync::Mutex::new(());
        let waits = std::sync::atomic::AtomicBool::new(false);
        let runtime = Runtime::builder().procs(2).build().unwrap();
        runtime.run(|| {
            thread::scope(|s| {
                let held = lock.lock().unwrap();
                s.spawn(|| {
                    waits.store(true, SeqCst);
                    drop(lock.lock().unwrap());
                });
                while !waits.load(SeqCst) {
                    std::hint::spin_loop();
                }
                std::thread::sleep(Duration::from_millis(50));
                let (_, value_at) = load(&path);
                // SAFETY: the goroutine's own copy.
                assert_eq!(unsafe { *value_at() }, 77);
                drop(held);
            });
        });
        std::fs::remove_dir_all(library.parent().unwrap()).unwrap();
    });
    out.succeeded();
}

/// A robust mutex that a goroutine leaves locked: the next one learns it, as among threads, and
/// nothing is written where the mutex was.
#[test]
fn d6_the_owner_of_a_robust_mutex_has_died() {
    let runtime = Runtime::builder().procs(2).build().unwrap();
    runtime.run(|| {
        for _ in 0..200 {
            let mutex = Box::into_raw(Box::new(libc::PTHREAD_MUTEX_INITIALIZER)) as usize;
            // SAFETY: our own mutex, made before it is used and freed after.
            unsafe {
                let mut attributes = std::mem::zeroed();
                libc::pthread_mutexattr_init(&mut attributes);
                libc::pthread_mutexattr_setrobust(&mut attributes, libc::PTHREAD_MUTEX_ROBUST);
                libc::pthread_mutex_init(mutex as *mut _, &attributes);
                let lock = move || libc::pthread_mutex_lock(mutex as *mut _);
                assert_eq!(thread::spawn(lock).join().unwrap(), 0);
                let second = thread::spawn(move || {
                    let got = libc::pthread_mutex_lock(mutex as *mut _);
                    libc::pthread_mutex_consistent(mutex as *mut _);
                    libc::pthread_mutex_unlock(mutex as *mut _);
                    got
                });
                assert_eq!(second.join().unwrap(), libc::EOWNERDEAD);
                libc::pthread_mutex_destroy(mutex as *mut _);
                drop(Box::from_raw(mutex as *mut libc::pthread_mutex_t));
            }
        }
    });
}

fn load(path: &CString) -> (*mut c_void, extern "C" fn() -> *mut c_long) {
    // SAFETY: our own library, which has this function.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        let found = libc::dlsym(handle, c"value_at".as_ptr());
        assert!(!found.is_null());
        (
            handle,
            std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_long>(found),
        )
    }
}

/// As every thread does, a goroutine that used a library sees the initial values when it is loaded
/// again.
#[test]
fn d6_a_library_loaded_again_begins_anew_in_goroutines_that_knew_it() {
    let name = "d6_a_library_loaded_again_begins_anew_in_goroutines_that_knew_it";
    let out = child_with(name, "", keep_static_tls, |_| {
        let library = library();
        let path = CString::new(library.to_str().unwrap()).unwrap();
        let runtime = Runtime::builder().procs(2).build().unwrap();
        runtime.run(|| {
            for round in 1..20 {
                let (handle, value_at) = load(&path);
                // SAFETY: the goroutine's own copy.
                unsafe {
                    assert_eq!(*value_at(), 77, "in round {round}");
                    *value_at() = round;
                    gosched::yield_now();
                    assert_eq!(*value_at(), round);
                    assert_eq!(libc::dlclose(handle), 0);
                }
            }
        });
        std::fs::remove_dir_all(library.parent().unwrap()).unwrap();
    });
    out.succeeded();
}
