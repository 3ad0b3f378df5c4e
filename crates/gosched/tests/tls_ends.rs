//! Ends that meet: of a goroutine's thread-locals and its runtime, of a library and its thread-locals (D6).

mod common;

use std::cell::RefCell;
use std::ffi::{CString, c_long, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use gosched::{Runtime, thread};

const LONG: Duration = Duration::from_secs(20);

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
    let out = common::child(name, || {
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
        while ends.load(SeqCst) < 50 {
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

/// As every thread does, a goroutine that used a library sees the initial values when it is loaded again.
#[test]
fn d6_a_library_loaded_again_begins_anew_in_goroutines_that_knew_it() {
    let name = "d6_a_library_loaded_again_begins_anew_in_goroutines_that_knew_it";
    let out = common::child(name, || {
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
