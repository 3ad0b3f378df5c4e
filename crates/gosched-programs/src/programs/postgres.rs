//! A real PostgreSQL by the blocking client of the crate `postgres`.
//!
//! Below that client is tokio, whose reactor waits in `epoll_wait`.

use postgres::error::SqlState;
use postgres::{Client, NoTls};

use crate::crowd::{all_wait, join_all, until};

/// Where the server is.
pub(super) fn address() -> String {
    let address = std::env::var("GOSCHED_PG");
    address
        .expect("GOSCHED_PG is not set: run `scripts/services run cargo test -p gosched-programs`")
}

fn connect() -> Client {
    Client::connect(&address(), NoTls).unwrap()
}

pub(super) fn run(connections: usize) {
    let id = std::process::id();
    let table = format!("postgres_{id}");
    let mut main = connect();
    let create = format!("create table {table} (n int primary key, owner int, text text)");
    main.batch_execute(&create).unwrap();
    // All connections wait for this lock.
    let key = i64::from(id);
    main.execute("select pg_advisory_lock($1)", &[&key])
        .unwrap();
    let goroutines = (0..connections).map(|i| {
        let table = table.clone();
        gosched::thread::spawn(move || client(i as i32, &table, key))
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    let waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted \
                   and objid::bigint = $1";
    until("all connections wait for the lock", || {
        let row = main.query_one(waiting, &[&key]).unwrap();
        row.get::<_, i64>(0) == connections as i64
    });
    all_wait(connections);
    main.execute("select pg_advisory_unlock($1)", &[&key])
        .unwrap();
    let rows: i64 = join_all(goroutines).into_iter().sum();
    let sums = format!("select count(*), sum(n)::bigint, sum(length(text))::bigint from {table}");
    let row = main.query_one(&sums, &[]).unwrap();
    let (count, sum, length): (i64, i64, i64) = (row.get(0), row.get(1), row.get(2));
    assert_eq!(count, rows);
    println!("{connections} connections inserted {count} rows, sum {sum}, text {length}");
    main.batch_execute(&format!("drop table {table}")).unwrap();
}

/// Returns the number of rows that it inserted.
fn client(i: i32, table: &str, key: i64) -> i64 {
    const ROWS: i32 = 10;
    let mut client = connect();
    client
        .execute("select pg_advisory_lock_shared($1)", &[&key])
        .unwrap();
    let insert = format!("insert into {table} values ($1, $2, $3)");
    let insert = client.prepare(&insert).unwrap();
    let mut transaction = client.transaction().unwrap();
    for k in 0..ROWS {
        let text = "x".repeat((i * k) as usize * 20);
        transaction
            .execute(&insert, &[&(i * ROWS + k), &i, &text])
            .unwrap();
    }
    transaction.commit().unwrap();
    // The server refuses the same row, and the connection lives on.
    let again = client
        .execute(&insert, &[&(i * ROWS), &i, &""])
        .unwrap_err();
    assert_eq!(again.code(), Some(&SqlState::UNIQUE_VIOLATION));
    let mine = format!("select n, text from {table} where owner = $1 order by n");
    let rows = client.query(&mine, &[&i]).unwrap();
    for (k, row) in rows.iter().enumerate() {
        assert_eq!(row.get::<_, i32>(0), i * ROWS + k as i32);
        assert_eq!(row.get::<_, &str>(1).len(), i as usize * k * 20);
    }
    // An answer of many packets.
    let series = client
        .query("select generate_series(1, 2000)", &[])
        .unwrap();
    assert!(series.iter().map(|row| row.get::<_, i32>(0)).eq(1..=2000));
    client.close().unwrap();
    rows.len() as i64
}
