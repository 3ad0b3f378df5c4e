//! Memory: goroutines that end leave nothing behind, however many there were.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

use crate::common::{child, rss_kib};
use crate::tools::{own, plan_panic, until};
use gosched::thread;

thread_local! {
    static HEAP: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static NAMES: RefCell<HashMap<usize, String>> = RefCell::default();
}

/// Uses what std and libc keep for a thread.
fn touch_all(number: usize) {
    HEAP.set(vec![1; 200]);
    let id = std::thread::current().id();
    NAMES.with_borrow_mut(|names| names.insert(number, format!("{id:?}")));
    let map: HashMap<usize, usize> = [(number, 1)].into();
    assert_eq!(map[&number], 1);
    if number.is_multiple_of(16) {
        thread::yield_now();
    }
    if number.is_multiple_of(50) {
        plan_panic();
    }
}

/// Goroutines by the hundred, so that stacks are used again and again.
fn live_and_die(goroutines: usize) {
    const BATCH: usize = 100;
    for batch in 0..goroutines / BATCH {
        let all = (0..BATCH).map(|i| thread::spawn(move || touch_all(batch * BATCH + i)));
        let all: Vec<_> = all.collect();
        let panics = all.into_iter().filter_map(|one| one.join().err()).count();
        assert_eq!(panics, 2);
    }
}

/// Unoptimised code needs a minute for as many as it should be.
const ALL: usize = if cfg!(debug_assertions) {
    60_000
} else {
    300_000
};

/// What `batch` goroutines after each other leave behind, after a sixth of them have made their
/// caches, in KiB.
fn growth(all: usize, live_and_die: impl Fn(usize)) -> usize {
    live_and_die(all / 6);
    // A leak shows in each part. Threads that a busy machine made show in one, as does memory that
    // the allocator gave back.
    let part = |_| {
        let before = rss_kib();
        live_and_die((all - all / 6) / 3);
        rss_kib().saturating_sub(before)
    };
    let mut parts: Vec<_> = (0..3).map(part).collect();
    parts.sort_unstable();
    3 * parts[1]
}

#[test]
fn recycled_goroutines_leave_nothing() {
    let output = child("memory::recycled_goroutines_leave_nothing", || {
        let grown = own(2).run(|| growth(ALL, live_and_die));
        // Thirty bytes each would be more.
        assert!(grown * 1024 < ALL * 24, "{grown} KiB more");
    });
    output.succeeded();
}

/// What as many goroutines leave behind, each of which calls `use_libc`, must be less than some
/// bytes each.
fn leaves_nothing(name: &str, all: usize, use_libc: impl Fn() + Copy + Send + Sync + 'static) {
    let output = child(name, || {
        let live_and_die = |goroutines: usize| {
            for _ in 0..goroutines / 100 {
                let all: Vec<_> = (0..100).map(|_| thread::spawn(use_libc)).collect();
                all.into_iter().for_each(|one| one.join().unwrap());
            }
        };
        let grown = own(2).run(|| growth(all, live_and_die));
        println!("{grown} KiB more after {all} goroutines");
        // What the allocator may need more, and less than the smallest thing that could be kept.
        assert!(grown < 512 + all * 20 / 1024, "{grown} KiB more");
    });
    output.succeeded();
}

/// A second table of keys and the text of an error of the loader, which libc allocates for a
/// thread.
#[test]
fn keys_and_loader_errors_are_given_back() {
    // More than the first table of a thread has.
    let mut keys = [0; 40];
    for key in &mut keys {
        // SAFETY: writes the new key.
        assert_eq!(unsafe { libc::pthread_key_create(key, None) }, 0);
    }
    const NAME: &str = "memory::keys_and_loader_errors_are_given_back";
    leaves_nothing(NAME, ALL / 3, move || {
        let value = std::ptr::without_provenance(1);
        // SAFETY: a key of the test's own, whose values are no pointers; a look-up that fails.
        unsafe {
            assert_eq!(libc::pthread_setspecific(keys[39], value), 0);
            let name = c"gosched_no_such_symbol";
            assert!(libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()).is_null());
        }
    });
    for key in keys {
        // SAFETY: it is not used after this.
        unsafe { libc::pthread_key_delete(key) };
    }
}

/// The resolver's state.
#[test]
fn resolvers_are_given_back() {
    leaves_nothing("memory::resolvers_are_given_back", ALL / 20, || {
        use std::net::ToSocketAddrs;
        assert!(("localhost", 1).to_socket_addrs().unwrap().count() > 0);
    });
}

/// How many goroutines the longest of these tests has; a million takes minutes.
const COUNT: &str = "GOSCHED_TEST_GOROUTINES";

/// What nearly every program does: allocate, hash (which asks libc for random bytes), write a
/// number, look a name up.
#[test]
fn everyday_goroutines_leave_nothing() {
    use std::net::ToSocketAddrs;
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let all = std::env::var(COUNT).map_or(ALL / 3, |count| count.parse().unwrap());
    leaves_nothing("memory::everyday_goroutines_leave_nothing", all, || {
        let number = NUMBER.fetch_add(1, SeqCst);
        let map: HashMap<String, f64> = [(format!("{number}.5"), number as f64 + 0.5)].into();
        for (text, value) in map {
            assert_eq!(text, format!("{value}"));
        }
        let mut bytes = [0u8; 16];
        // SAFETY: writes this array.
        unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        let name = if number.is_multiple_of(64) {
            "localhost"
        } else {
            "127.0.0.1"
        };
        assert!((name, 1).to_socket_addrs().unwrap().count() > 0);
    });
}

/// The buffers for texts about numbers that mean nothing.
#[test]
fn buffers_of_strerror_are_given_back() {
    leaves_nothing(
        "memory::buffers_of_strerror_are_given_back",
        ALL / 3,
        || {
            // Something that has a destructor, so that the goroutine's end is not that of one that
            // has touched nothing.
            HEAP.set(vec![1]);
            // SAFETY: the texts are valid until the next call in this goroutine.
            unsafe { assert!(!libc::strerror(7_777).is_null() && !libc::strsignal(777).is_null()) };
        },
    );
}

/// Many at once, each with all that a thread may have; when they are gone their memory serves the
/// next.
#[test]
fn parked_goroutines_give_their_memory_back() {
    const MANY: usize = if cfg!(debug_assertions) {
        10_000
    } else {
        50_000
    };
    let peak_of_round = || {
        let parked = AtomicUsize::new(0);
        let park = |number: usize| {
            touch_all(number * 16 + 1);
            parked.fetch_add(1, SeqCst);
            thread::park();
        };
        thread::scope(|s| {
            let park = &park;
            let all = (0..MANY).map(|number| s.spawn(move || park(number)));
            let all: Vec<_> = all.collect();
            until(|| parked.load(SeqCst) == MANY);
            let peak = rss_kib();
            all.iter().for_each(|one| one.thread().unpark());
            all.into_iter().for_each(|one| one.join().unwrap());
            peak
        })
    };
    let output = child("memory::parked_goroutines_give_their_memory_back", || {
        let runtime = gosched::Runtime::builder().procs(2).stack_size(64 << 10);
        let peaks: [usize; 4] = runtime
            .build()
            .unwrap()
            .run(|| std::array::from_fn(|_| peak_of_round()));
        // A tenth more may be the allocator's; to keep a round's goroutines would be twice as much.
        // A slow round has a lower peak: goroutines that wait for long give pages back.
        let first = peaks[0].max(peaks[1]);
        assert!(peaks[3] < first + first / 10, "{peaks:?} KiB");
    });
    output.succeeded();
}

/// The same through runtimes that come and go.
#[test]
fn runtimes_leave_nothing() {
    let output = child("memory::runtimes_leave_nothing", || {
        let rounds = |count: usize| (0..count).for_each(|_| own(2).run(|| live_and_die(300)));
        rounds(20);
        let before = rss_kib();
        rounds(60);
        let grown = rss_kib().saturating_sub(before);
        // A hundred bytes of each goroutine, or 40 KiB of each runtime.
        assert!(grown < 2_000, "{grown} KiB more, {before} before");
    });
    output.succeeded();
}
