//! The steps of a life: each uses something that is kept per thread, across a switch, and checks
//! it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, OnceLock, mpsc};

use rand::Rng as _;

use super::life::{COUNTED, LATE, MARK, keep_counted, panic_and_recover, switch};
use crate::common::{Planned, Rng, tid};
use gosched::thread;

thread_local! {
    static SHARED: Rc<Cell<u64>> = Rc::new(Cell::new(0));
    static LIST: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    static TABLE: [Cell<u8>; 300] = const { [const { Cell::new(9) }; 300] };
    static QUEUE: RefCell<VecDeque<Vec<u8>>> = RefCell::default();
}

pub(crate) fn step(rng: &mut Rng) {
    match rng.below(21) {
        0 => clone_rc(rng),
        1 => use_rand(rng),
        2 => hold_borrow(rng),
        3 => panic_and_recover(rng),
        4 => keep_counted(rng),
        5 => use_map(rng),
        6 => set_errno(rng),
        7..=9 => trade_memory(rng),
        10 => use_key(rng),
        11 => use_table(rng),
        12 => lock(rng),
        13 => late_values(rng),
        14 => print(rng),
        15 => poison(rng),
        16 => change_locale(rng),
        17 => use_mpsc(rng),
        18 => use_stds_token(rng),
        19 if rng.one_in(200) => resolve(),
        _ if rng.one_in(100) => start_thread(rng),
        _ if rng.one_in(1_000) => start_process(),
        _ => switch(rng),
    }
}

fn clone_rc(rng: &mut Rng) {
    let own = SHARED.with(Rc::clone);
    let copies: Vec<_> = (0..rng.below(8)).map(|_| Rc::clone(&own)).collect();
    let value = rng.next();
    own.set(value);
    switch(rng);
    assert_eq!(Rc::strong_count(&own), 2 + copies.len());
    drop(copies);
    switch(rng);
    assert_eq!(
        (SHARED.with(|shared| shared.get()), Rc::strong_count(&own)),
        (value, 2)
    );
}

fn use_rand(rng: &mut Rng) {
    let mut own = rand::rng();
    let before: [u64; 16] = own.random();
    switch(rng);
    let after: [u64; 16] = own.random();
    assert_ne!(before, after);
    let mut bytes = [0u8; 512];
    rand::rng().fill(&mut bytes[..]);
    assert!(own.random_range(10..20) < 20);
}

fn hold_borrow(rng: &mut Rng) {
    LIST.with(|list| {
        let mut list = list.try_borrow_mut().expect("nobody else's");
        list.push(MARK.get());
        switch(rng);
        let mark = MARK.get();
        assert!(list.iter().all(|entry| *entry == mark));
        if list.len() > 20 {
            list.clear();
            list.shrink_to_fit();
        }
    });
}

fn use_map(rng: &mut Rng) {
    let mut map = HashMap::new();
    for key in 0..rng.below(50) {
        map.insert(key, key.to_string());
    }
    let hash = RandomState::new().hash_one(1);
    switch(rng);
    assert!(map.iter().all(|(key, text)| *text == key.to_string()));
    assert_ne!(RandomState::new().hash_one(1), hash, "keys advance");
}

fn set_errno(rng: &mut Rng) {
    let value = 1 + rng.below(100) as i32;
    let last = || std::io::Error::last_os_error().raw_os_error();
    // SAFETY: this goroutine's errno, at once.
    unsafe { *libc::__errno_location() = value };
    thread::yield_now();
    assert_eq!(last(), Some(value));
    // SAFETY: a call that fails.
    unsafe { libc::close(-1) };
    switch(rng);
    assert_eq!(last(), Some(libc::EBADF));
}

/// Memory that is allocated on one thread and freed on others, by any goroutine.
fn trade_memory(rng: &mut Rng) {
    static MARKET: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());
    let size = 1usize << rng.below(16);
    let fill = rng.next() as u8;
    let mut goods = vec![fill; size + rng.below(size as u64) as usize];
    switch(rng);
    goods.extend_from_slice(&[fill; 10]);
    assert!(goods.iter().all(|byte| *byte == fill));
    let given_back = {
        let mut market = MARKET.lock().unwrap();
        market.push(goods);
        let at = rng.below(market.len() as u64) as usize;
        (market.len() > 100 || rng.one_in(2)).then(|| market.swap_remove(at))
    };
    if let Some(goods) = given_back {
        assert!(goods.iter().all(|byte| *byte == goods[0]));
        QUEUE.with_borrow_mut(|queue| {
            queue.push_back(goods);
            if queue.len() > 3 {
                queue.pop_front();
            }
        });
    }
    // By C's functions.
    let sizes = [24, 100, 1_000, 5_000, 200_000];
    let size = sizes[rng.below(5) as usize];
    // SAFETY: written within its size, freed once.
    unsafe {
        let memory: *mut u8 = libc::malloc(size).cast();
        assert!(!memory.is_null());
        memory.write_bytes(fill, size);
        switch(rng);
        let memory: *mut u8 = libc::realloc(memory.cast(), size * 2).cast();
        assert_eq!((memory.read(), memory.add(size - 1).read()), (fill, fill));
        libc::free(memory.cast());
    }
}

static KEY_VALUES: AtomicUsize = AtomicUsize::new(0);
static KEY_ENDS: AtomicUsize = AtomicUsize::new(0);

/// Goroutines that set a key, and calls of its destructor.
pub(crate) fn key_values() -> (usize, usize) {
    (KEY_VALUES.load(SeqCst), KEY_ENDS.load(SeqCst))
}

fn use_key(rng: &mut Rng) {
    extern "C" fn end(value: *mut c_void) {
        // SAFETY: the box that was stored, once.
        let value: Box<u64> = unsafe { Box::from_raw(value.cast()) };
        thread::yield_now();
        assert_ne!(*value, 0);
        KEY_ENDS.fetch_add(1, Relaxed);
    }
    static KEY: OnceLock<libc::pthread_key_t> = OnceLock::new();
    let key = *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: writes the new key.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(end)) }, 0);
        key
    });
    // SAFETY: the key's values are boxes of this goroutine, or nothing.
    unsafe {
        let value: *mut u64 = libc::pthread_getspecific(key).cast();
        if value.is_null() {
            let value = Box::into_raw(Box::new(MARK.get()));
            assert_eq!(libc::pthread_setspecific(key, value.cast()), 0);
            KEY_VALUES.fetch_add(1, Relaxed);
        } else {
            assert_eq!(*value, MARK.get());
        }
        switch(rng);
        let value: *mut u64 = libc::pthread_getspecific(key).cast();
        assert_eq!(*value, MARK.get());
    }
}

fn use_table(rng: &mut Rng) {
    TABLE.with(|table| {
        let first = table[0].get();
        assert!(table.iter().all(|cell| cell.get() == first));
        let next = rng.next() as u8;
        table.iter().for_each(|cell| cell.set(next));
        switch(rng);
        assert!(table.iter().all(|cell| cell.get() == next));
    });
}

/// A std lock held over a switch; it is never poisoned.
fn lock(rng: &mut Rng) {
    static LOCK: Mutex<u64> = Mutex::new(0);
    // Waiting for it would block a P that its holder may need.
    match LOCK.try_lock() {
        Ok(mut value) => {
            *value = MARK.get();
            thread::yield_now();
            assert_eq!(*value, MARK.get());
        }
        Err(std::sync::TryLockError::WouldBlock) => switch(rng),
        Err(error) => panic!("{error}"),
    }
}

fn late_values(rng: &mut Rng) {
    COUNTED.with(|_| switch(rng));
    if rng.one_in(4) {
        LATE.with(|_| ());
    }
}

/// Formats through std's machinery, into a sink and, seldom, to stdout.
fn print(rng: &mut Rng) {
    let (mark, mut sink) = (MARK.get(), Vec::new());
    writeln!(sink, "{mark:?} {:?}", std::thread::current().id()).unwrap();
    // Without a switch while it is held: a waiter blocks a P.
    std::io::stdout().lock().flush().unwrap();
    switch(rng);
    assert!(sink.starts_with(mark.to_string().as_bytes()));
}

/// A std mutex of its own is poisoned by a panic under its guard, even if that goes over switches,
/// and by nothing else.
fn poison(rng: &mut Rng) {
    let mutex = Mutex::new(0);
    drop(mutex.lock().unwrap());
    switch(rng);
    assert!(!mutex.is_poisoned());
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _guard = mutex.lock().unwrap();
        panic_any(Planned);
    }));
    assert!(caught.is_err() && mutex.is_poisoned() && !std::thread::panicking());
    let sound = Mutex::new(0);
    let guard = sound.lock().unwrap();
    switch(rng);
    drop(guard);
    assert!(!sound.is_poisoned());
}

/// The locale of a goroutine is what it has chosen.
fn change_locale(rng: &mut Rng) {
    let none = std::ptr::null_mut();
    // SAFETY: a locale of the goroutine's own, which it lays down before it frees it.
    unsafe {
        let own = libc::newlocale(libc::LC_ALL_MASK, c"C".as_ptr(), none);
        assert!(!own.is_null());
        let before = libc::uselocale(own);
        switch(rng);
        assert_eq!(libc::uselocale(none), own);
        libc::uselocale(before);
        libc::freelocale(own);
    }
}

fn use_mpsc(rng: &mut Rng) {
    let (sender, receiver) = mpsc::channel();
    let value = rng.next();
    let other = thread::spawn(move || {
        thread::yield_now();
        sender.send(value).unwrap();
    });
    other.join().unwrap();
    assert_eq!(receiver.recv(), Ok(value));
    assert!(receiver.recv().is_err());
}

/// std's park token belongs to the goroutine: what it left before a switch is there after it.
fn use_stds_token(rng: &mut Rng) {
    let me = std::thread::current();
    me.unpark();
    switch(rng);
    std::thread::park();
    assert_eq!(std::thread::current().id(), me.id());
}

fn resolve() {
    use std::net::ToSocketAddrs;
    assert!(("localhost", 1).to_socket_addrs().unwrap().count() > 0);
}

fn start_thread(rng: &mut Rng) {
    let mark = MARK.get();
    let own = tid();
    let started = std::thread::spawn(move || {
        assert_eq!(MARK.get(), 0);
        assert_ne!(tid(), own);
        COUNTED.with(|_| ());
        thread::yield_now();
        MARK.set(mark);
        vec![mark; 100]
    });
    switch(rng);
    while !started.is_finished() {
        thread::sleep(std::time::Duration::from_micros(100));
    }
    assert_eq!(started.join().unwrap(), [mark; 100]);
    assert_eq!(MARK.get(), mark);
}

fn start_process() {
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
}
