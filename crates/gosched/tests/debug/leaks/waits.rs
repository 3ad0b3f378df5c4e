//! What a dump shows of waiting goroutines: the reason, the channel or lock, and its holder.

use std::sync::Arc;
use std::time::Duration;

use gosched::chan::{Select, bounded, select, unbounded};
use gosched::debug::Goroutine;
use gosched::sync::{Condvar, Mutex, RwLock};
use gosched::thread;

use crate::common::{by_name, child, dump_when_waiting, named};

/// The lines of a goroutine's entry that say what it waits on, without addresses.
fn targets(goroutine: &Goroutine) -> Vec<String> {
    let text = goroutine.to_string();
    let lines = text.lines().filter(|line| line.starts_with("waits "));
    let without_address = |word: &str| match word.starts_with("0x") {
        true => "0x".to_owned(),
        false => word.to_owned(),
    };
    lines
        .map(|line| {
            let words: Vec<_> = line.split(' ').map(without_address).collect();
            words.join(" ")
        })
        .collect()
}

/// The addresses of what it waits on.
fn addresses(goroutine: &Goroutine) -> Vec<String> {
    let text = goroutine.to_string();
    let lines = text.lines().filter(|line| line.starts_with("waits "));
    let address = |line: &str| {
        line.split(' ')
            .find(|w| w.starts_with("0x"))
            .map(String::from)
    };
    lines.filter_map(address).collect()
}

#[gosched::test]
fn a_dump_says_which_channel() {
    let (empty_s, empty_r) = bounded::<i32>(3);
    let (full_s, full_r) = bounded::<i32>(1);
    full_s.send(0).expect("room");
    let (zero_s, zero_r) = bounded::<i32>(0);
    let (list_s, list_r) = unbounded::<i32>();
    let r = empty_r.clone();
    let receiver = named("receiver", move || r.recv_timeout(Duration::from_secs(60)));
    let s = full_s.clone();
    let sender = named("sender", move || s.send(1));
    let (r, z, l) = (empty_r.clone(), zero_s.clone(), list_r.clone());
    let chooser = named("chooser", move || {
        select! {
            recv(r) -> _ => {}
            send(z, 1) -> _ => {}
            recv(l) -> _ => {}
            recv(gosched::chan::never::<i32>()) -> _ => {}
        }
    });
    let single = named("single", || {
        let ticker = gosched::time::Ticker::new(Duration::from_secs(60));
        let mut select = Select::new();
        select.recv(ticker.chan());
        select.ready()
    });
    dump_when_waiting("receiver", "chan receive");
    dump_when_waiting("sender", "chan send");
    dump_when_waiting("single", "select (1 case)");
    let dump = dump_when_waiting("chooser", "select (4 cases)");
    let of = |name| by_name(&dump, name).expect("alive");
    let empty = "waits to receive from channel 0x (capacity 3, 0 queued, 1 sender, 3 receivers)";
    assert_eq!(targets(of("receiver")), [empty], "{dump}");
    assert_eq!(
        targets(of("sender")),
        ["waits to send to channel 0x (capacity 1, 1 queued, 2 senders, 1 receiver)"],
        "{dump}"
    );
    assert_eq!(
        targets(of("chooser")),
        [
            empty,
            "waits to send to channel 0x (capacity 0, 2 senders, 1 receiver)",
            "waits to receive from channel 0x (unbounded, 0 queued, 1 sender, 2 receivers)",
            "waits to receive from no channel (never)"
        ],
        "{dump}"
    );
    assert_eq!(
        targets(of("single")),
        ["waits to receive from timer 0x"],
        "{dump}"
    );
    // The same channel has the same address.
    assert_eq!(
        addresses(of("receiver"))[0],
        addresses(of("chooser"))[0],
        "{dump}"
    );
    assert_ne!(
        addresses(of("sender"))[0],
        addresses(of("chooser"))[0],
        "{dump}"
    );
    assert!(
        dump.to_string()
            .contains(" [select (4 cases)] {name: chooser}:\n")
    );
    assert_eq!(of("chooser").waits_for(), None);
    drop((zero_r, zero_s, full_r, list_s, list_r, empty_s));
    sender
        .join()
        .expect("no panic")
        .expect_err("nobody receives");
    receiver
        .join()
        .expect("no panic")
        .expect_err("nobody sends");
    chooser.join().expect("no panic");
    drop((single, empty_r));
}

#[gosched::test]
fn a_dump_says_which_lock_and_who_holds_it() {
    let locks = Arc::new((Mutex::new(()), RwLock::new(()), Condvar::new()));
    let spawn = |name: &str, f: fn(&(Mutex<()>, RwLock<()>, Condvar))| {
        let locks = Arc::clone(&locks);
        named(name, move || f(&locks))
    };
    let holder = spawn("holder", |locks| {
        let _both = (locks.0.lock(), locks.1.write());
        thread::park();
    });
    dump_when_waiting("holder", "park");
    let waiters = [
        spawn("locker", |locks| drop(locks.0.lock())),
        spawn("reader", |locks| drop(locks.1.read())),
        spawn("writer", |locks| drop(locks.1.write())),
    ];
    let other = Arc::clone(&locks);
    let notified = named("notified", move || {
        let own = Mutex::new(());
        drop(other.2.wait(own.lock().expect("no panic")));
    });
    dump_when_waiting("locker", "sync.Mutex.Lock");
    dump_when_waiting("reader", "sync.RwLock.Read");
    dump_when_waiting("writer", "sync.RwLock.Write");
    let dump = dump_when_waiting("notified", "sync.Condvar.Wait");
    let of = |name| by_name(&dump, name).expect("alive");
    let id = of("holder").id();
    // The comma goes with the address.
    let held = |what| [format!("waits on {what} 0x held by goroutine {id}")];
    assert_eq!(targets(of("locker")), held("mutex"), "{dump}");
    assert_eq!(targets(of("reader")), held("rwlock"), "{dump}");
    assert_eq!(targets(of("writer")), held("rwlock"), "{dump}");
    assert_eq!(targets(of("notified")), ["waits on condvar 0x"], "{dump}");
    assert_eq!(addresses(of("reader")), addresses(of("writer")), "{dump}");
    for name in ["locker", "reader", "writer"] {
        assert_eq!(of(name).waits_for(), Some(id), "{dump}");
    }
    assert_eq!(of("notified").waits_for(), None);
    holder.thread().unpark();
    locks.2.notify_all();
    for handle in waiters.into_iter().chain([holder, notified]) {
        handle.join().expect("no panic");
    }
}

/// A select with more cases than the dump prints.
#[gosched::test]
fn a_dump_shows_the_first_cases_of_many() {
    let (end, ended) = bounded::<()>(0);
    let many = named("many", move || {
        let receivers: Vec<_> = (0..30).map(|_| ended.clone()).collect();
        let mut select = Select::new();
        for receiver in &receivers {
            select.recv(receiver);
        }
        select.ready()
    });
    let dump = dump_when_waiting("many", "select (30 cases)");
    let found = by_name(&dump, "many").expect("alive");
    assert_eq!(targets(found).len(), 16, "{dump}");
    assert!(
        dump.to_string().contains("\n...14 more cases...\n"),
        "{dump}"
    );
    drop(end);
    many.join().expect("no panic");
}

/// The report of a deadlock shows waits for channels and selects, too.
#[test]
fn a_deadlock_says_what_everybody_waits_on() {
    let out = child("waits::a_deadlock_says_what_everybody_waits_on", || {
        gosched::run(|| {
            let (s, r) = bounded::<i32>(2);
            let (other_s, other_r) = bounded::<i32>(0);
            let (clone, other_clone) = (s.clone(), other_s.clone());
            let stuck = named("stuck", move || {
                select! {
                    recv(r) -> _ => {}
                    recv(other_r) -> _ => {}
                }
            });
            let _ = stuck.join();
            drop((s, clone, other_s, other_clone));
        });
    });
    out.died_with(&["fatal error: all goroutines are asleep - deadlock!", ""]);
    out.says(&[
        " [select (2 cases)] {name: stuck} pcs: 0x",
        " [select (2 cases)] {name: stuck}:\n",
        "\nwaits to receive from channel 0x",
        " (capacity 2, 0 queued, 2 senders, 1 receiver)\n",
        " (capacity 0, 2 senders, 1 receiver)\n",
    ]);
}
