//! HTTP requests by libcurl, a C library.

use std::ffi::{CString, c_char, c_int, c_long, c_void};
use std::sync::Arc;

use crate::c_library::Library;
use crate::crowd::{all_wait, join_all};
use crate::http_server::Server;

// The numbers of curl.h.
const OPT_WRITEDATA: c_int = 10_001;
const OPT_URL: c_int = 10_002;
const OPT_PROXY: c_int = 10_004;
const OPT_POSTFIELDS: c_int = 10_015;
const OPT_WRITEFUNCTION: c_int = 20_011;
const OPT_POSTFIELDSIZE: c_int = 60;
const OPT_NOSIGNAL: c_int = 99;
const OPT_TIMEOUT_MS: c_int = 155;
const INFO_RESPONSE_CODE: c_int = 0x20_0002;
const GLOBAL_ALL: c_long = 3;
const E_OPERATION_TIMEDOUT: c_int = 28;

type Write = extern "C" fn(*const u8, usize, usize, *mut c_void) -> usize;

/// The functions of libcurl that this program calls.
struct Libcurl {
    init: unsafe extern "C" fn() -> *mut c_void,
    set: unsafe extern "C" fn(*mut c_void, c_int, ...) -> c_int,
    perform: unsafe extern "C" fn(*mut c_void) -> c_int,
    info: unsafe extern "C" fn(*mut c_void, c_int, ...) -> c_int,
    cleanup: unsafe extern "C" fn(*mut c_void),
}

impl Libcurl {
    fn load() -> Libcurl {
        let library = Library::open(c"libcurl.so.4");
        // SAFETY: the types are those of curl.h. No other goroutine uses libcurl yet, as its global
        // set-up demands.
        unsafe {
            let global_init: unsafe extern "C" fn(c_long) -> c_int =
                library.function(c"curl_global_init");
            assert_eq!(global_init(GLOBAL_ALL), 0);
            Libcurl {
                init: library.function(c"curl_easy_init"),
                set: library.function(c"curl_easy_setopt"),
                perform: library.function(c"curl_easy_perform"),
                info: library.function(c"curl_easy_getinfo"),
                cleanup: library.function(c"curl_easy_cleanup"),
            }
        }
    }
}

/// A handle with its connection, which later requests use again.
struct Easy {
    curl: Arc<Libcurl>,
    raw: *mut c_void,
}

impl Easy {
    fn new(curl: Arc<Libcurl>) -> Easy {
        // SAFETY: `curl_global_init` has succeeded.
        let raw = unsafe { (curl.init)() };
        assert!(!raw.is_null());
        let easy = Easy { curl, raw };
        easy.set_long(OPT_NOSIGNAL, 1);
        easy.set_text(OPT_PROXY, c"".as_ptr());
        easy
    }

    fn set_long(&self, option: c_int, value: c_long) {
        // SAFETY: `raw` is a handle until `drop`; the option takes a long.
        assert_eq!(unsafe { (self.curl.set)(self.raw, option, value) }, 0);
    }

    fn set_text(&self, option: c_int, value: *const c_char) {
        // SAFETY: `raw` is a handle until `drop`. The option takes a text, which libcurl copies.
        assert_eq!(unsafe { (self.curl.set)(self.raw, option, value) }, 0);
    }

    /// Returns the status and the body, or libcurl's error.
    fn request(&self, url: String, post: Option<&[u8]>) -> Result<(c_long, Vec<u8>), c_int> {
        let url = CString::new(url).unwrap();
        self.set_text(OPT_URL, url.as_ptr());
        let mut body = Vec::<u8>::new();
        // SAFETY: `raw` is a handle until `drop`. The types are those of the options. The buffers
        // outlive `perform`, after which libcurl does not touch them.
        unsafe {
            if let Some(post) = post {
                (self.curl.set)(self.raw, OPT_POSTFIELDSIZE, post.len() as c_long);
                (self.curl.set)(self.raw, OPT_POSTFIELDS, post.as_ptr());
            }
            (self.curl.set)(self.raw, OPT_WRITEFUNCTION, append as Write);
            (self.curl.set)(self.raw, OPT_WRITEDATA, (&raw mut body).cast::<c_void>());
            match (self.curl.perform)(self.raw) {
                0 => {
                    let mut status: c_long = 0;
                    (self.curl.info)(self.raw, INFO_RESPONSE_CODE, &raw mut status);
                    Ok((status, body))
                }
                error => Err(error),
            }
        }
    }
}

impl Drop for Easy {
    fn drop(&mut self) {
        // SAFETY: `raw` is a handle, and nothing uses it after this.
        unsafe { (self.curl.cleanup)(self.raw) };
    }
}

/// libcurl's callback for a part of the body.
extern "C" fn append(part: *const u8, size: usize, count: usize, body: *mut c_void) -> usize {
    // SAFETY: libcurl passes `count` bytes and the pointer of `OPT_WRITEDATA`, which `request` sets
    // to its own vector. `request` does not touch it while libcurl runs.
    let (part, body) = unsafe {
        let part = std::slice::from_raw_parts(part, size * count);
        (part, &mut *body.cast::<Vec<u8>>())
    };
    body.extend_from_slice(part);
    part.len()
}

pub(super) fn run(clients: usize) {
    let curl = Arc::new(Libcurl::load());
    let server = Server::start();
    let base = format!("http://{}", server.address);
    let goroutines = (0..clients).map(|i| {
        let (curl, base) = (curl.clone(), base.clone());
        gosched::thread::spawn(move || client(i, &base, curl))
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    // Each client waits for an answer, each goroutine of the server for the gate.
    all_wait(2 * clients);
    server.gate.open();
    let bytes: usize = join_all(goroutines).into_iter().sum();
    println!("{clients} clients had {bytes} bytes of bodies");
    println!("the server had {} requests", server.stop());
}

/// Requests on one connection, and a request that times out. Returns the length of all bodies.
fn client(i: usize, base: &str, curl: Arc<Libcurl>) -> usize {
    let easy = Easy::new(curl);
    let held = easy.request(format!("{base}/held/{i}"), None).unwrap();
    assert_eq!(held, (200, i.to_string().into_bytes()));
    let missing = easy.request(format!("{base}/missing"), None).unwrap();
    assert_eq!(missing.0, 404);
    let post = vec![i as u8; 30_000];
    let echo = easy.request(format!("{base}/echo"), Some(&post)).unwrap();
    assert!(
        echo == (200, post),
        "client {i} has another body than it sent"
    );
    if i.is_multiple_of(20) {
        easy.set_long(OPT_TIMEOUT_MS, 50);
        let never = easy.request(format!("{base}/never"), None);
        assert_eq!(never, Err(E_OPERATION_TIMEDOUT));
    }
    held.1.len() + missing.1.len() + echo.1.len()
}
