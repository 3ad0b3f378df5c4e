//! A real PostgreSQL by libpq, a C library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Arc;

use super::postgres::address;
use crate::c_library::Library;
use crate::crowd::{all_wait, join_all, until};

const CONNECTION_OK: c_int = 0;
const COMMAND_OK: c_int = 1;
const TUPLES_OK: c_int = 2;

/// The functions of libpq that this program calls.
struct Libpq {
    connect: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    status: unsafe extern "C" fn(*const c_void) -> c_int,
    error: unsafe extern "C" fn(*const c_void) -> *const c_char,
    exec: unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void,
    result_status: unsafe extern "C" fn(*const c_void) -> c_int,
    rows: unsafe extern "C" fn(*const c_void) -> c_int,
    value: unsafe extern "C" fn(*const c_void, c_int, c_int) -> *const c_char,
    clear: unsafe extern "C" fn(*mut c_void),
    finish: unsafe extern "C" fn(*mut c_void),
}

impl Libpq {
    fn load() -> Libpq {
        let library = Library::open(c"libpq.so.5");
        // SAFETY: the types are those of libpq-fe.h.
        unsafe {
            Libpq {
                connect: library.function(c"PQconnectdb"),
                status: library.function(c"PQstatus"),
                error: library.function(c"PQerrorMessage"),
                exec: library.function(c"PQexec"),
                result_status: library.function(c"PQresultStatus"),
                rows: library.function(c"PQntuples"),
                value: library.function(c"PQgetvalue"),
                clear: library.function(c"PQclear"),
                finish: library.function(c"PQfinish"),
            }
        }
    }
}

/// A connection. It belongs to one goroutine.
struct Connection {
    pq: Arc<Libpq>,
    raw: *mut c_void,
}

impl Connection {
    fn open(pq: Arc<Libpq>, address: &CStr) -> Connection {
        // SAFETY: the address is a text with a zero byte.
        let raw = unsafe { (pq.connect)(address.as_ptr()) };
        let connection = Connection { pq, raw };
        // SAFETY: `raw` is a connection until `drop`.
        let status = unsafe { (connection.pq.status)(raw) };
        assert_eq!(status, CONNECTION_OK, "{}", connection.error());
        connection
    }

    fn error(&self) -> String {
        // SAFETY: `raw` is a connection until `drop`. libpq's text stays until the next call.
        let text = unsafe { CStr::from_ptr((self.pq.error)(self.raw)) };
        text.to_string_lossy().into_owned()
    }

    /// The first column of all rows.
    fn query(&self, sql: &str) -> Result<Vec<String>, String> {
        let sql = CString::new(sql).unwrap();
        // SAFETY: `raw` is a connection until `drop`. The result is valid until `clear`, and so are
        // its values; the index of a row is below their number.
        unsafe {
            let result = (self.pq.exec)(self.raw, sql.as_ptr());
            let status = (self.pq.result_status)(result);
            let value = |row| CStr::from_ptr((self.pq.value)(result, row, 0));
            let rows = 0..(self.pq.rows)(result);
            let values = rows
                .map(|row| value(row).to_str().unwrap().to_owned())
                .collect();
            (self.pq.clear)(result);
            match status {
                COMMAND_OK | TUPLES_OK => Ok(values),
                _ => Err(self.error()),
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: `raw` is a connection, and nothing uses it after this.
        unsafe { (self.pq.finish)(self.raw) };
    }
}

pub(super) fn run(connections: usize) {
    let pq = Arc::new(Libpq::load());
    let address = CString::new(address()).unwrap();
    let id = std::process::id();
    let main = Connection::open(pq.clone(), &address);
    main.query(&format!("create table libpq_{id} (n int primary key)"))
        .unwrap();
    main.query(&format!("select pg_advisory_lock({id})"))
        .unwrap();
    let goroutines = (0..connections).map(|i| {
        let (pq, address) = (pq.clone(), address.clone());
        gosched::thread::spawn(move || client(i, id, &Connection::open(pq, &address)))
    });
    let goroutines = goroutines.collect::<Vec<_>>();
    let waiting = format!(
        "select count(*) from pg_locks where locktype = 'advisory' and not granted \
         and objid::bigint = {id}"
    );
    until("all connections wait for the lock", || {
        main.query(&waiting).unwrap() == [connections.to_string()]
    });
    all_wait(connections);
    main.query(&format!("select pg_advisory_unlock({id})"))
        .unwrap();
    let bytes: usize = join_all(goroutines).into_iter().sum();
    let rows = main
        .query(&format!("select n from libpq_{id} order by n"))
        .unwrap();
    let expected = (0..connections * 5).map(|n| n.to_string());
    assert!(rows.iter().cloned().eq(expected), "{rows:?}");
    println!(
        "{connections} connections inserted {} rows and read {bytes} bytes",
        rows.len()
    );
    main.query(&format!("drop table libpq_{id}")).unwrap();
}

/// Returns the number of bytes that it read.
fn client(i: usize, id: u32, connection: &Connection) -> usize {
    connection
        .query(&format!("select pg_advisory_lock_shared({id})"))
        .unwrap();
    connection.query("begin").unwrap();
    for n in i * 5..i * 5 + 5 {
        connection
            .query(&format!("insert into libpq_{id} values ({n})"))
            .unwrap();
    }
    connection.query("commit").unwrap();
    let again = connection.query(&format!("insert into libpq_{id} values ({})", i * 5));
    assert!(again.unwrap_err().contains("duplicate key"));
    let long = connection
        .query("select repeat('z', 500) from generate_series(1, 200)")
        .unwrap();
    assert_eq!(long.len(), 200);
    long.iter().map(String::len).sum()
}
