//! The steps, in the order in which the tour takes them.

mod deadlock;
mod hello;
mod many;
mod sleepers;
mod stack;
mod stealing;

use std::fmt;
use std::io::{self, Write};

/// One thing to see.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// What it shows, in one line.
    pub(crate) shows: &'static str,
    pub(crate) run: fn(&mut dyn Write) -> io::Result<()>,
}

pub(crate) static STEPS: &[Step] = &[
    Step {
        name: "hello",
        shows: "goroutines have ids, and share a few threads",
        run: hello::run,
    },
    Step {
        name: "many",
        shows: "100,000 goroutines at once, all parked",
        run: many::run,
    },
    Step {
        name: "stealing",
        shows: "work put on one processor's queue spreads to the others",
        run: stealing::run,
    },
    Step {
        name: "sleepers",
        shows: "10,000 goroutines sleep, no thread waits for each",
        run: sleepers::run,
    },
    Step {
        name: "deadlock",
        shows: "goroutines that wait for each other are reported, not left hanging",
        run: deadlock::run,
    },
    Step {
        name: "stack",
        shows: "a stack costs the pages it has touched, whatever its limit",
        run: stack::run,
    },
];

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Step {
    fn eq(&self, other: &Step) -> bool {
        self.name == other.name
    }
}

impl Eq for Step {}
