//! SQLite by rusqlite: several writers and readers of one file, which meet in its busy back-off.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};

use crate::crowd::{join_all, until};
use crate::peak;

/// Transactions of each writer.
const TRANSACTIONS: i64 = 15;

pub(super) fn run(writers: usize) {
    let home = std::env::temp_dir().join(format!("programs-{}", std::process::id()));
    std::fs::create_dir(&home).unwrap();
    let file: Arc<Path> = home.join("base").into();
    let mut main = open(&file);
    let create = "create table items (writer int, k int, primary key (writer, k));
                  create table totals (sum int);
                  insert into totals values (0)";
    main.execute_batch(create).unwrap();
    // No writer begins before the main goroutine's transaction ends.
    let first = main
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .unwrap();
    let arrived = Arc::new(AtomicUsize::new(0));
    let goroutines = (0..writers).map(|i| {
        let (file, arrived) = (file.clone(), arrived.clone());
        gosched::thread::spawn(move || {
            let base = open(&file);
            arrived.fetch_add(1, Relaxed);
            write(i as i64, base)
        })
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    until("all writers are at the lock", || {
        arrived.load(Relaxed) == writers
    });
    peak::record();
    first.commit().unwrap();
    let seen: i64 = join_all(goroutines).into_iter().sum();
    let rows: i64 = main
        .query_row("select count(*) from items", [], |r| r.get(0))
        .unwrap();
    let sum: i64 = main
        .query_row("select sum from totals", [], |r| r.get(0))
        .unwrap();
    assert_eq!((rows, seen), (writers as i64 * TRANSACTIONS, rows));
    println!("{writers} writers, {rows} rows, sum {sum}");
    drop(main);
    std::fs::remove_dir_all(home).unwrap();
}

fn open(file: &Path) -> Connection {
    let base = Connection::open(file).unwrap();
    base.busy_timeout(Duration::from_secs(60)).unwrap();
    base.pragma_update(None, "journal_mode", "wal").unwrap();
    base.pragma_update(None, "synchronous", "off").unwrap();
    base
}

/// Returns how many rows of its own it saw at its end.
fn write(i: i64, mut base: Connection) -> i64 {
    for k in 0..TRANSACTIONS {
        let step = base
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .unwrap();
        step.execute("insert into items values (?, ?)", params![i, k])
            .unwrap();
        step.execute("update totals set sum = sum + ?", [i * k])
            .unwrap();
        step.commit().unwrap();
        let mine = "select count(*) from items where writer = ?";
        let rows: i64 = base.query_row(mine, [i], |r| r.get(0)).unwrap();
        assert_eq!(rows, k + 1);
    }
    TRANSACTIONS
}
