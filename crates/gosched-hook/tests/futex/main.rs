//! Goroutines that wait in locks and channels of std and of other crates, unmodified.
//!
//! | module | what |
//! |---|---|
//! | [`std_sync`] | every kind of std's locks and channels, on goroutines and beside plain threads |
//! | [`crates`] | parking_lot, crossbeam-channel, flume, event-listener |
//! | [`many`] | 20,000 goroutines blocked at once, on a few threads |
//! | [`past`] | waits past the hook, by a library with RTLD_DEEPBIND |
//! | [`raw`] | the system call itself: results and errno as on a plain thread |
//! | [`signals`] | wake-ups in signal handlers |
//! | [`shared`] | futexes of two processes |
//! | [`reports`] | dumps, deadlocks, leaks |
//! | [`stress`] | random mixtures |

#[path = "../../../gosched/tests/common/mod.rs"]
mod common;

mod crates;
mod many;
mod past;
mod raw;
mod reports;
mod shared;
mod signals;
mod std_sync;
mod stress;

use gosched_hook as _;

/// How many calls of futexes goroutines have left to the kernel.
fn left() -> u64 {
    let futex = gosched_hook::FUNCTIONS
        .iter()
        .find(|function| function.name() == "syscall");
    futex.expect("a row").left_to_libc()
}

/// Starts a party of a test: a goroutine or a plain thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Goroutine,
    Thread,
}

/// A party, to be joined.
enum Party<T> {
    Goroutine(gosched::thread::JoinHandle<T>),
    Thread(std::thread::JoinHandle<T>),
}

impl Kind {
    const PAIRS: [(Kind, Kind); 4] = [
        (Kind::Goroutine, Kind::Goroutine),
        (Kind::Goroutine, Kind::Thread),
        (Kind::Thread, Kind::Goroutine),
        (Kind::Thread, Kind::Thread),
    ];

    fn of(n: usize) -> Kind {
        match n % 2 {
            0 => Kind::Goroutine,
            _ => Kind::Thread,
        }
    }

    fn start<T: Send + 'static>(self, body: impl FnOnce() -> T + Send + 'static) -> Party<T> {
        match self {
            Kind::Goroutine => Party::Goroutine(gosched::thread::spawn(body)),
            Kind::Thread => Party::Thread(std::thread::spawn(body)),
        }
    }
}

impl<T> Party<T> {
    #[track_caller]
    fn join(self) -> T {
        match self {
            Party::Goroutine(handle) => handle.join().expect("the goroutine ends"),
            Party::Thread(handle) => handle.join().expect("the thread ends"),
        }
    }
}

#[test]
fn the_hook_is_in_place() {
    gosched_hook::install().unwrap();
}
