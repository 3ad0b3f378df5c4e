//! libc's room for libraries with initial-exec thread-locals belongs to goroutines: a goroutine
//! that waits needs one page of memory. Each case is a process of its own, because the first
//! runtime decides for all.
//!
//! A binary of its own because: its blocks must be small. Other test binaries have large
//! thread-locals.

mod common;

use std::ffi::{CStr, CString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use common::{HOUR, child, child_of, child_with, fd_count, is_child, keep_static_tls, until};
use gosched::debug::{StaticTls, metrics};
use gosched::net::{TcpListener, TcpStream};
use gosched::{Runtime, chan, sync, thread};

const PAGE: usize = 4096;

fn own(procs: usize) -> Runtime {
    Runtime::builder().procs(procs).build().unwrap()
}

/// Makes a library with one thread-local, and returns its path. A child has the path of its
/// parent's as its variant.
fn library(name: &str, model: &str) -> PathBuf {
    if is_child() {
        return PathBuf::new();
    }
    let place = std::env::temp_dir().join(format!("gosched-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&place).unwrap();
    let (source, library) = (place.join("value.c"), place.join("value.so"));
    let text = "static __thread char value[SIZE] = { 77 }; char *value_at(void) { return value; }";
    std::fs::write(&source, text).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-DSIZE=1", model, "-o"])
        .args([&library, &source])
        .status()
        .expect("a C compiler: rustc links with it");
    assert!(built.success());
    library
}

/// Loads a library; the error is libc's own.
fn load(path: &str) -> Result<extern "C" fn() -> *mut u8, String> {
    let path = CString::new(path).unwrap();
    // SAFETY: our own library, which does nothing when it is loaded and has this function. The text
    // of the error is this goroutine's.
    unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
        if handle.is_null() {
            let text = CStr::from_ptr(libc::dlerror());
            return Err(text.to_string_lossy().into_owned());
        }
        let found = libc::dlsym(handle, c"value_at".as_ptr());
        assert!(!found.is_null());
        Ok(std::mem::transmute::<*mut _, extern "C" fn() -> *mut u8>(
            found,
        ))
    }
}

/// Asserts the layout of the present runtime, and that goroutines work in it.
fn assert_layout(layout: StaticTls) {
    let found = own(2).run(|| {
        let all = (0..300).map(|n| {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(1));
                format!("{n}").parse::<usize>().unwrap()
            })
        });
        let all: Vec<_> = all.collect();
        let sum: usize = all.into_iter().map(|one| one.join().unwrap()).sum();
        assert_eq!(sum, 299 * 300 / 2);
        metrics().static_tls
    });
    assert_eq!(found, layout);
}

/// A goroutine's first frame, and its thread block. Above the block is another goroutine's slot, or
/// memory that is no stack's.
#[derive(Default)]
struct Place {
    frame: AtomicUsize,
    block: AtomicUsize,
}

impl Place {
    /// Notes where the calling goroutine is.
    fn note(&self) {
        let here = 0u8;
        self.frame
            .store((&raw const here).expose_provenance(), SeqCst);
        // SAFETY: a bare question. libc's answer is the address of the block.
        self.block
            .store(unsafe { libc::pthread_self() } as usize, SeqCst);
    }

    /// How many pages have memory, from seven below the frame up to the end of the block.
    fn pages(&self) -> usize {
        let start = (self.frame.load(SeqCst) & !(PAGE - 1)) - 7 * PAGE;
        let end = self.block.load(SeqCst) + block_size();
        let mut pages = vec![0u8; (end - start).div_ceil(PAGE)];
        let from = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the kernel writes one byte for each page.
        let asked = unsafe { libc::mincore(from, end - start, pages.as_mut_ptr()) };
        assert_eq!(asked, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|page| **page & 1 != 0).count()
    }
}

/// The size of libc's thread blocks, which it publishes for debuggers.
fn block_size() -> usize {
    let name = c"_thread_db_sizeof_pthread";
    // SAFETY: a look-up by name. The symbol is a number of 32 bits.
    unsafe {
        let size = libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr());
        assert!(!size.is_null());
        *size.cast::<u32>() as usize
    }
}

/// Starts 200 goroutines that wait by `wait`, and returns the largest number of pages that one has.
fn most_pages(wait: impl Fn() + Copy + Send + 'static) -> usize {
    let places: &'static [Place] = Vec::from_iter((0..200).map(|_| Place::default())).leak();
    for place in places {
        gosched::go(move || {
            place.note();
            wait();
        });
    }
    // There is one P: a goroutine that has noted its place waits when this one runs again. A dump
    // would touch more pages.
    until(|| places.iter().all(|place| place.block.load(SeqCst) != 0));
    (0..1_000).for_each(|_| thread::yield_now());
    places.iter().map(Place::pages).max().unwrap()
}

/// Unoptimised frames are larger.
const PAGES: usize = if cfg!(debug_assertions) { 2 } else { 1 };

#[test]
fn a_waiting_goroutine_needs_one_page() {
    const NAME: &str = "a_waiting_goroutine_needs_one_page";
    let body = |way: &str| {
        let runtime = Runtime::builder().procs(1).stack_size(64 << 10);
        runtime.build().unwrap().run(|| {
            assert_eq!(metrics().static_tls, StaticTls::Reserved);
            let pages = match way {
                "sleep" => most_pages(|| thread::sleep(HOUR)),
                "park" => most_pages(thread::park),
                "lock" => {
                    let lock: &'static _ = Box::leak(Box::new(sync::Mutex::new(())));
                    std::mem::forget(lock.lock());
                    most_pages(|| drop(lock.lock()))
                }
                "accept" => {
                    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                    let listener: &'static _ = Box::leak(Box::new(listener));
                    most_pages(|| assert!(listener.accept().is_ok()))
                }
                "read" => {
                    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                    let peer: &'static _ = Box::leak(Box::new((stream, listener)));
                    most_pages(|| assert!((&peer.0).read(&mut [0; 64]).is_ok()))
                }
                _ => {
                    let (tx, rx) = chan::bounded::<u32>(1);
                    let kept: &'static _ = Box::leak(Box::new((tx, rx)));
                    most_pages(|| assert!(kept.1.recv().is_ok()))
                }
            };
            assert!(pages <= PAGES, "{way}: {pages} pages");
            std::process::exit(0);
        });
    };
    for way in ["sleep", "park", "recv", "lock", "accept", "read"] {
        child_of(NAME, way, body).succeeded();
    }
}

/// The same by the memory of the process.
#[test]
fn ten_thousand_sleepers_need_ten_thousand_pages() {
    const COUNT: usize = 10_000;
    let out = child("ten_thousand_sleepers_need_ten_thousand_pages", || {
        let runtime = Runtime::builder().procs(2).stack_size(64 << 10);
        runtime.build().unwrap().run(|| {
            let before = common::rss_kib();
            (0..COUNT).for_each(|_| gosched::go(|| thread::sleep(HOUR)));
            until(|| metrics().timers == COUNT);
            let each = (common::rss_kib() - before) * 1024 / COUNT;
            // A page, the G and the table of thread-locals.
            assert!(each < PAGES * PAGE + 1_024, "{each} bytes each");
            std::process::exit(0);
        });
    });
    out.succeeded();
}

/// Every byte is taken: libc refuses a library with a single one, as it documents it. Other
/// libraries load as before.
#[test]
fn libc_refuses_late_libraries_with_initial_exec_thread_locals() {
    const NAME: &str = "libc_refuses_late_libraries_with_initial_exec_thread_locals";
    let path = library("late", "-ftls-model=initial-exec");
    let out = child_of(NAME, path.to_str().unwrap(), |path| {
        own(2).run(|| {
            assert_eq!(metrics().static_tls, StaticTls::Reserved);
            for _ in 0..3 {
                let error = load(path).unwrap_err();
                let text = "cannot allocate memory in static TLS block";
                assert!(error.contains(text), "{error}");
                thread::yield_now();
            }
        });
        // A plain thread gets the same answer, and later runtimes the same layout.
        assert!(load(path).is_err());
        let kept = Runtime::builder().keep_static_tls(true).build().unwrap();
        assert_eq!(kept.run(|| metrics().static_tls), StaticTls::Reserved);
        assert_layout(StaticTls::Reserved);
    });
    out.succeeded();
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn a_setting_keeps_the_room_for_libraries() {
    const NAME: &str = "a_setting_keeps_the_room_for_libraries";
    let path = library("kept", "-ftls-model=initial-exec");
    let variant = |way: &str| format!("{way}:{}", path.to_str().unwrap());
    let body = |variant: &str| {
        let (way, path) = variant.split_once(':').unwrap();
        let builder = Runtime::builder().procs(2);
        let runtime = builder.keep_static_tls(way == "builder").build().unwrap();
        runtime.run(|| {
            assert_eq!(metrics().static_tls, StaticTls::Kept);
            let waits = thread::spawn(thread::park);
            let value_at = load(path).unwrap();
            // SAFETY: the address of the calling goroutine's own copy.
            let value = move || unsafe { *value_at() };
            assert_eq!(value(), 77);
            let value = thread::spawn(value);
            assert_eq!(value.join().unwrap(), 77);
            waits.thread().unpark();
            waits.join().unwrap();
        });
        drop(runtime);
        assert_layout(StaticTls::Kept);
    };
    child_of(NAME, &variant("builder"), body).succeeded();
    child_with(NAME, &variant("environment"), keep_static_tls, body).succeeded();
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

/// Builds the library in `tests/plugin`, in the profile of this test, and returns its path. As
/// [`library`].
fn plugin() -> PathBuf {
    if is_child() {
        return PathBuf::new();
    }
    let exe = std::env::current_exe().unwrap();
    // target/debug/deps/one_page-…
    let place = exe.parent().and_then(Path::parent).unwrap();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo
        .args(["build", "--quiet", "--package", "gosched"])
        .args(["--example", "gosched_test_plugin", "--target-dir"])
        .arg(place.parent().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    if place.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo builds the tests").success());
    place.join("examples/libgosched_test_plugin.so")
}

/// The host may load such libraries later, and does not know what its plugin does.
#[test]
fn a_plugin_leaves_the_room_to_its_host() {
    const NAME: &str = "a_plugin_leaves_the_room_to_its_host";
    let late = library("hosts", "-ftls-model=initial-exec");
    let paths = format!("{}:{}", plugin().display(), late.display());
    let out = child_of(NAME, &paths, |paths| {
        let (plugin, late) = paths.split_once(':').unwrap();
        let plugin = CString::new(plugin).unwrap();
        // SAFETY: our own library, which has this function.
        let layout = unsafe {
            let handle = libc::dlopen(plugin.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let found = libc::dlsym(handle, c"gosched_plugin_layout".as_ptr());
            assert!(!found.is_null());
            std::mem::transmute::<*mut _, extern "C" fn() -> u32>(found)
        };
        assert_eq!(layout(), 1, "not the host's");
        assert!(load(late).is_ok());
        // The program's own runtime is not a plugin's.
        assert_layout(StaticTls::Reserved);
    });
    out.succeeded();
    std::fs::remove_dir_all(late.parent().unwrap()).unwrap();
}

/// Mappings of this process that are both writable and executable, and executable stacks.
fn executable_data() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_bad = |line: &&str| {
        let rights = line.split_whitespace().nth(1).unwrap();
        rights.contains('x') && (rights.contains('w') || line.ends_with("[stack]"))
    };
    maps.lines().filter(is_bad).map(str::to_owned).collect()
}

#[test]
fn no_stack_becomes_executable_and_no_file_stays_open() {
    let name = "no_stack_becomes_executable_and_no_file_stays_open";
    let out = child(name, || {
        assert_eq!(executable_data(), [""; 0]);
        let files = fd_count();
        let runtime = own(2);
        runtime.run(|| {
            assert_eq!(metrics().static_tls, StaticTls::Reserved);
            assert_eq!(executable_data(), [""; 0]);
            let thread = std::thread::spawn(executable_data);
            assert_eq!(thread.join().unwrap(), [""; 0]);
            // The object is there, and nothing of it can be executed.
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let is_object = |line: &&str| line.contains("gosched-static-tls");
            let object: Vec<_> = maps.lines().filter(is_object).collect();
            assert!(
                object.len() == 1 && object[0].contains(" rw-p "),
                "{object:?}"
            );
        });
        drop(runtime);
        assert!(fd_count() <= files, "a file is left open");
    });
    out.succeeded();
}

/// Without a file in memory, or without `/proc` to open it by name, blocks keep libc's room. The
/// kernel's limit on the size of files holds for files in memory too.
#[test]
fn where_it_cannot_be_reserved_the_room_stays() {
    const NAME: &str = "where_it_cannot_be_reserved_the_room_stays";
    let body = |way: &str| {
        match way {
            "no memfd" => refuse(libc::SYS_memfd_create, libc::ENOSYS),
            "no file" => limit_files(0),
            "a small file" => limit_files(100),
            _ => {
                refuse(libc::SYS_openat, libc::ENOENT);
                assert!(std::fs::File::open("/proc/self/maps").is_err());
            }
        }
        assert_layout(StaticTls::Unavailable);
    };
    for way in ["no memfd", "no file", "a small file", "no /proc"] {
        child_of(NAME, way, body).succeeded();
    }
}

/// From now on a write beyond so many bytes of a file ends this process.
fn limit_files(len: u64) {
    let limit = libc::rlimit {
        rlim_cur: len,
        rlim_max: len,
    };
    // SAFETY: a limit of this process; the kernel reads the struct.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
}

/// From now on this system call fails with this error.
fn refuse(call: i64, error: i32) {
    let op = |code: u32, jt: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt,
        jf: 0,
        k,
    };
    let give = libc::BPF_RET | libc::BPF_K;
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        op(give, 0, libc::SECCOMP_RET_ALLOW),
        op(give, 0, libc::SECCOMP_RET_ERRNO | error as u32),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: settings of this process; the kernel copies the program.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(
            libc::syscall(libc::SYS_seccomp, mode, 0, &raw const filter),
            0
        );
    }
}
