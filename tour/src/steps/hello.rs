//! Goroutines have ids, and share a few threads.

use std::collections::HashSet;
use std::io::{self, Write};

use gosched::thread;

const GOROUTINES: usize = 8;

pub(super) fn run(out: &mut dyn Write) -> io::Result<()> {
    let mut greetings = gosched::run(|| {
        let handles: Vec<_> = (0..GOROUTINES).map(|_| thread::spawn(greet)).collect();
        handles
            .into_iter()
            .flat_map(thread::JoinHandle::join)
            .collect::<Vec<_>>()
    });
    greetings.sort_by_key(|(id, _)| *id);
    let ids: Vec<_> = greetings.iter().map(|(id, _)| id.to_string()).collect();
    let threads: HashSet<_> = greetings.iter().map(|(_, thread)| thread).collect();
    writeln!(
        out,
        "    main is goroutine 1; hello from goroutines {}",
        ids.join(", ")
    )?;
    writeln!(
        out,
        "    {} goroutines ran on {} OS thread(s)",
        greetings.len(),
        threads.len()
    )
}

/// Which goroutine this is, and which thread runs it at the moment.
fn greet() -> (u64, std::thread::ThreadId) {
    let id = thread::current().id().goroutine().map_or(0, |id| id.get());
    (id, std::thread::current().id())
}
