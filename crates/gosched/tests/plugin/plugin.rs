//! A library with a runtime inside, for a program that loads it (`tests/one_page.rs`).

use gosched::debug::{StaticTls, metrics};
use gosched::{Runtime, thread};

/// Runs goroutines, and returns the layout of their blocks: 1 if libc's room is the host's, 2 if it
/// is reserved, 3 otherwise.
#[unsafe(no_mangle)]
extern "C" fn gosched_plugin_layout() -> u32 {
    Runtime::builder().procs(2).build().unwrap().run(|| {
        let all: Vec<_> = (0..100).map(|n| thread::spawn(move || n)).collect();
        let sum: u32 = all.into_iter().map(|one| one.join().unwrap()).sum();
        assert_eq!(sum, 4_950);
        match metrics().static_tls {
            StaticTls::Hosts => 1,
            StaticTls::Reserved => 2,
            _ => 3,
        }
    })
}
