//! Waits past the hook: a C library that is loaded with RTLD_DEEPBIND finds libc's own `syscall`.

use std::ffi::{CString, c_int, c_long, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;

use crate::common::{LONG, child_with, is_child, tid, until, within};
use crate::raw::wake;

const SOURCE: &str = r"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
long wait_on(int *word) { return syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0); }
long wake_on(int *word) { return syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0); }
";

/// A directory that is removed in the end. A child is given its parent's.
struct Place(PathBuf);

impl Place {
    fn new() -> Place {
        let name = format!("gosched-past-{}", std::process::id());
        let place = Place(std::env::temp_dir().join(name));
        if !is_child() {
            place.build();
        }
        place
    }

    fn build(&self) {
        std::fs::create_dir_all(&self.0).unwrap();
        std::fs::write(self.0.join("past.c"), SOURCE).unwrap();
        let built = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([self.0.join("past.so"), self.0.join("past.c")])
            .status()
            .expect("a C compiler: rustc links with it");
        assert!(built.success());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

type OnWord = unsafe extern "C" fn(*const AtomicU32) -> c_long;

/// The functions of the library: to wait, and to wake.
fn load(path: &str) -> [OnWord; 2] {
    let path = CString::new(path).unwrap();
    let flags: c_int = libc::RTLD_NOW | libc::RTLD_DEEPBIND;
    // SAFETY: our own library, which does nothing when it is loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), flags) };
    assert!(!library.is_null());
    [c"wait_on", c"wake_on"].map(|name| {
        // SAFETY: the library is loaded and has both functions, with this type.
        unsafe {
            let found = libc::dlsym(library, name.as_ptr());
            assert!(!found.is_null());
            std::mem::transmute::<*mut c_void, OnWord>(found)
        }
    })
}

fn is_asleep(tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.starts_with(" S"))
}

/// Three words, so that waiters of the test's own machinery in the bucket of one do not matter.
static WORDS: [AtomicU32; 3] = [const { AtomicU32::new(0) }; 3];

/// Has a thread wait on each word past the hook. Returns how many the hook wakes. Then the library
/// itself wakes the rest.
fn woken_by_the_hook(library: &str) -> usize {
    let [wait_on, wake_on] = load(library);
    let threads = WORDS.each_ref().map(|word| {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            sender.send(tid()).unwrap();
            // SAFETY: the word is static.
            unsafe { wait_on(word) }
        });
        let tid = receiver.recv().unwrap();
        until(|| is_asleep(tid));
        (word, thread)
    });
    let mut by_hook = 0;
    for (word, thread) in threads {
        until(|| match wake(word, 1) {
            1 => {
                by_hook += 1;
                true
            }
            // SAFETY: the word is static.
            _ => unsafe { wake_on(word) == 1 },
        });
        assert_eq!(within(LONG, "the thread", || thread.join()).unwrap(), 0);
    }
    by_hook
}

#[test]
fn a_wait_past_the_hook_is_woken_if_every_wake_up_enters_the_kernel() {
    let place = Place::new();
    let run = |setting: &'static str| {
        let library = place.0.join("past.so").to_string_lossy().into_owned();
        child_with(
            "a_wait_past_the_hook_is_woken_if_every_wake_up_enters_the_kernel",
            &library,
            move |command| {
                command.env("GOSCHED_HOOK", setting);
            },
            |library| {
                let woken = woken_by_the_hook(library);
                match std::env::var("GOSCHED_HOOK").unwrap().as_str() {
                    "wake-always" => assert_eq!(woken, WORDS.len()),
                    _ => assert!(woken < WORDS.len(), "the hook knows of none"),
                }
            },
        )
        .succeeded();
    };
    run("on");
    run("wake-always");
}

/// A library that both waits and wakes past the hook works on goroutines: each wait holds a thread.
#[test]
fn a_library_past_the_hook_works_with_itself() {
    let place = Place::new();
    let library = place.0.join("past.so").to_string_lossy().into_owned();
    let done = child_with(
        "a_library_past_the_hook_works_with_itself",
        &library,
        |_| {},
        |library| {
            let [wait_on, wake_on] = load(library);
            gosched::run(move || {
                static WORD: AtomicU32 = AtomicU32::new(0);
                // SAFETY: the word is static.
                let waiter = gosched::thread::spawn(move || unsafe { wait_on(&WORD) });
                // SAFETY: as before.
                until(|| unsafe { wake_on(&WORD) } == 1);
                assert_eq!(waiter.join().unwrap(), 0);
            });
        },
    );
    done.succeeded();
}
