//! Waits past the hook, by libc's own `syscall`. A C library that is loaded with RTLD_DEEPBIND finds
//! that function and not the hook.

use std::ffi::{CString, c_int, c_long, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;

use crate::common::{LONG, child_of, child_with, is_child, tid, until, within};
use crate::raw::{REST, Rest, address, libcs_futex, wake};

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

/// The functions of the library: to wait, and to wake.
type OnWord = unsafe extern "C" fn(*const AtomicU32) -> c_long;

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

/// A call past the hook, by libc's own `syscall`, which the library finds.
fn libcs(word: &AtomicU32, operation: c_int, value: u32) -> c_long {
    let operation = operation | libc::FUTEX_PRIVATE_FLAG;
    libcs_futex(address(word), operation, Rest { value, ..REST }).0
}

fn is_asleep(tid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| rest.starts_with(" S"))
}

/// A word in a bucket of its own.
#[repr(align(64))]
struct Word(AtomicU32);

/// Three words: waiters of the test's own machinery may be in the bucket of one.
static WORDS: [Word; 3] = [const { Word(AtomicU32::new(0)) }; 3];

/// Has a thread wait on each word past the hook. Returns how many of them the hook wakes, where the
/// rest is woken past the hook. With `by_hook_only` it ends once the hook has woken all.
fn woken_by_the_hook(
    by_hook_only: bool,
    wait_on: impl Fn(&AtomicU32) -> c_long + Copy + Send + 'static,
) -> usize {
    let threads = WORDS.each_ref().map(|Word(word)| {
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            sender.send(tid()).unwrap();
            wait_on(word)
        });
        let tid = receiver.recv().unwrap();
        until(|| is_asleep(tid));
        (word, thread)
    });
    let mut by_hook = 0;
    for (word, thread) in threads {
        until(|| {
            let woken = wake(word, 1) == 1;
            by_hook += usize::from(woken);
            woken || !by_hook_only && libcs(word, libc::FUTEX_WAKE, 1) == 1
        });
        assert_eq!(within(LONG, "the thread", || thread.join()).unwrap(), 0);
    }
    by_hook
}

#[test]
fn wake_always_reaches_waits_past_the_hook() {
    let run = |setting: &str| {
        child_with(
            "wake_always_reaches_waits_past_the_hook",
            setting,
            |command| _ = command.env("GOSCHED_HOOK", setting),
            |setting| {
                let is_always = setting == "wake-always";
                let wait_on = |word: &AtomicU32| libcs(word, libc::FUTEX_WAIT, 0);
                let woken = woken_by_the_hook(is_always, wait_on);
                assert_eq!(woken == WORDS.len(), is_always, "{woken}");
            },
        )
        .succeeded();
    };
    run("on");
    run("wake-always");
}

/// From the first such library on, every wake-up enters the kernel. Its waits hold a thread.
#[test]
fn a_library_with_deepbind_is_woken() {
    let place = Place::new();
    let library = place.0.join("past.so").to_string_lossy().into_owned();
    let done = child_of("a_library_with_deepbind_is_woken", &library, |library| {
        let [wait_on, wake_on] = load(library);
        // SAFETY: the word is static.
        let woken = woken_by_the_hook(true, move |word| unsafe { wait_on(word) });
        assert_eq!(woken, WORDS.len());
        gosched::run(move || {
            let word = &WORDS[0].0;
            // SAFETY: the word is static.
            let waiter = gosched::thread::spawn(move || unsafe { wait_on(word) });
            // SAFETY: as before.
            until(|| unsafe { wake_on(word) } == 1);
            assert_eq!(waiter.join().unwrap(), 0);
        });
    });
    done.succeeded();
}
