//! The mixes: each exercises one part of the library and checks the result.
//!
//! A mix is a function that its root goroutines run: it repeats its work until [`Actor::over`].
//! What it waits for comes by itself, or from a goroutine of the same runtime. That goroutine may
//! be abandoned; then waits from outside need a timeout ([`Actor::may_hang`]). A goroutine may be
//! unwound wherever it waits. What it leaves behind must be usable for the others.

mod blocks;
mod chains;
mod chans;
mod contexts;
mod futures;
mod heart;
mod hogs;
mod locked;
mod locks;
mod looks;
mod panics;
mod parks;
mod pipes;
mod resize;
mod runtimes;
mod selects;
pub mod signals;
mod spawns;
mod stacks;
pub mod tcp;
mod timers;
mod tls;
mod udp;
mod unix;

use crate::env::Actor;

pub struct Mix {
    pub name: &'static str,
    pub what: &'static str,
    pub root: fn(&mut Actor),
    /// How many roots it has at most.
    pub roots: usize,
    /// It may run in a round where goroutines share their thread's thread-locals.
    pub may_share: bool,
    /// It cannot make progress if memory mappings are refused; if threads are.
    pub needs_memory: bool,
    pub needs_threads: bool,
    /// It computes for long, so it needs preemption.
    pub hogs: bool,
}

const fn mix(name: &'static str, what: &'static str, root: fn(&mut Actor), roots: usize) -> Mix {
    Mix {
        name,
        what,
        root,
        roots,
        may_share: true,
        needs_memory: false,
        needs_threads: false,
        hogs: false,
    }
}

pub static ALL: &[Mix] = &[
    mix(
        "heart",
        "sleeps, yields and wake-ups; how late they are, in time and in scheduling decisions",
        heart::root,
        1,
    ),
    mix(
        "spawn",
        "trees of goroutines: spawn, go, scope, builders, plain threads that join",
        spawns::root,
        3,
    ),
    mix(
        "chains",
        "chains of spawns and pairs that wake each other; no other goroutine may starve",
        chains::root,
        2,
    ),
    mix(
        "chan",
        "channels of every capacity between goroutines, runtimes and threads",
        chans::root,
        3,
    ),
    mix(
        "select",
        "routers: select!, Select, defaults and timeouts over many channels",
        selects::root,
        3,
    ),
    mix(
        "locks",
        "mutexes, rwlocks, condvars, barriers, onces, semaphores, wait groups",
        locks::root,
        3,
    ),
    mix(
        "timers",
        "sleeps, timers, tickers, functions called later",
        timers::root,
        3,
    ),
    mix(
        "context",
        "trees of contexts, cancelled and expired",
        contexts::root,
        2,
    ),
    mix(
        "park",
        "park and unpark, with unexpected tokens",
        parks::root,
        2,
    ),
    Mix {
        may_share: false,
        ..mix(
            "tls",
            "thread-locals that stay a goroutine's own, and their destructors",
            tls::root,
            3,
        )
    },
    mix(
        "blocks",
        "blocking calls, marked and not, std's locks and channels",
        blocks::root,
        2,
    ),
    mix(
        "pipes",
        "pipes read and written in plain system calls",
        pipes::root,
        2,
    ),
    Mix {
        hogs: true,
        ..mix(
            "hogs",
            "loops without a call, with their registers checked",
            hogs::root,
            2,
        )
    },
    mix("resize", "gomaxprocs from 1 to 64", resize::root, 1),
    Mix {
        needs_threads: true,
        ..mix(
            "locked",
            "goroutines locked to their threads",
            locked::root,
            2,
        )
    },
    mix(
        "panics",
        "panics and exits, with destructors that wait",
        panics::root,
        2,
    ),
    mix(
        "stacks",
        "deep stacks of many sizes, with their contents checked",
        stacks::root,
        2,
    ),
    mix(
        "tcp",
        "TCP: crowds that talk, half close, reset, time out, clone",
        tcp::root,
        2,
    ),
    mix("unix", "unix sockets, streams and datagrams", unix::root, 2),
    mix("udp", "UDP: numbered datagrams", udp::root, 2),
    mix(
        "future",
        "block_on, handles awaited, an executor and wakers by hand",
        futures::root,
        2,
    ),
    Mix {
        needs_memory: true,
        ..mix(
            "looks",
            "dumps, leaks, metrics and checks at random moments",
            looks::root,
            1,
        )
    },
    Mix {
        needs_threads: true,
        ..mix(
            "signals",
            "signals received, and storms of SIGURG",
            signals::root,
            1,
        )
    },
    Mix {
        needs_memory: true,
        needs_threads: true,
        ..mix(
            "runtimes",
            "runtimes that come and go within the others",
            runtimes::root,
            1,
        )
    },
];

pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|mix| mix.name).collect()
}
