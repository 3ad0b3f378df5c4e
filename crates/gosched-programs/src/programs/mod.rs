//! The programs, one file each.

mod command;
mod connections;
mod crossbeam;
mod flume;
mod libcurl;
mod libpq;
mod lookups;
mod postgres;
mod redis;
mod rusqlite;
mod rustls;
pub(crate) mod stdin;
mod tiny_http;
mod tungstenite;
mod ureq;

/// A program, and what is expected of its threads.
pub(crate) struct Program {
    /// The name on the command line, and of the test.
    pub(crate) name: &'static str,
    /// How many goroutines, connections, or whatever it has many of, unless the caller says.
    pub(crate) count: usize,
    pub(crate) run: fn(usize),
    /// The hooks without which its goroutines hold threads.
    pub(crate) needs: &'static [&'static str],
    /// How many goroutines hold a thread each, at one moment, without hooks.
    pub(crate) blocks: fn(usize) -> usize,
}

/// The functions with which std's sockets wait.
const SOCKETS: &[&str] = &["accept4", "connect", "recv", "send", "poll"];

/// The same, and the system call by which std's locks wait.
const SOCKETS_AND_LOCKS: &[&str] = &["accept4", "connect", "recv", "send", "poll", "syscall"];

/// Every program.
pub(crate) const ALL: &[Program] = &[
    Program {
        name: "ureq",
        count: 400,
        run: ureq::run,
        needs: SOCKETS_AND_LOCKS,
        blocks: |clients| clients,
    },
    Program {
        name: "tiny_http",
        count: tiny_http::CONNECTIONS,
        run: tiny_http::run,
        needs: tiny_http::NEEDS,
        blocks: |connections| 2 * connections,
    },
    Program {
        name: "postgres",
        count: 40,
        run: postgres::run,
        needs: &["connect", "epoll_wait", "poll"],
        blocks: |connections| connections,
    },
    Program {
        name: "redis",
        count: 300,
        run: redis::run,
        needs: SOCKETS,
        blocks: |connections| connections,
    },
    Program {
        name: "tungstenite",
        count: 150,
        run: tungstenite::run,
        needs: SOCKETS,
        blocks: |clients| clients,
    },
    Program {
        name: "rustls",
        count: 100,
        run: rustls::run,
        needs: SOCKETS_AND_LOCKS,
        blocks: |clients| clients,
    },
    Program {
        name: "rusqlite",
        count: 16,
        run: rusqlite::run,
        needs: &["clock_nanosleep", "nanosleep", "usleep"],
        blocks: |_| 0,
    },
    Program {
        name: "crossbeam",
        count: 200,
        run: crossbeam::run,
        needs: &["syscall"],
        blocks: |goroutines| goroutines,
    },
    Program {
        name: "flume",
        count: 200,
        run: flume::run,
        needs: &["syscall"],
        blocks: |goroutines| goroutines,
    },
    Program {
        name: "libpq",
        count: 40,
        run: libpq::run,
        needs: &["connect", "poll", "recv"],
        blocks: |connections| connections,
    },
    Program {
        name: "libcurl",
        count: 200,
        run: libcurl::run,
        needs: &["poll", "recv", "accept4"],
        blocks: |clients| clients,
    },
    Program {
        name: "command",
        count: 500,
        run: command::run,
        needs: &["waitpid", "poll", "read"],
        blocks: |children| children,
    },
    Program {
        name: "lookups",
        count: 1_000,
        run: lookups::run,
        needs: &["getaddrinfo"],
        blocks: |_| 0,
    },
    Program {
        name: "stdin",
        count: 100,
        run: stdin::run,
        needs: &["read", "waitpid"],
        blocks: |_| 0,
    },
    Program {
        name: "connections",
        count: 200,
        run: connections::run,
        needs: &["pthread_create", "accept4", "recv", "send"],
        blocks: |connections| 2 * connections,
    },
];
