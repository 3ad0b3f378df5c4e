//! The steps, in the order in which the tour takes them.

mod deadlock;
mod hogs;
mod http;
mod locals;
mod million;
mod pipeline;
mod sleep;
mod stealing;

use std::fmt;
use std::io;

use crate::stage::Stage;

/// One step of the tour.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    /// What it shows, in one line.
    pub(crate) shows: &'static str,
    /// An error is a failure of the step.
    pub(crate) run: fn(&mut Stage) -> io::Result<()>,
}

pub(crate) static STEPS: &[Step] = &[
    Step {
        name: "million",
        shows: "a million goroutines at once, all waiting",
        run: million::run,
    },
    Step {
        name: "stealing",
        shows: "a P with an empty queue steals half of another P's queue",
        run: stealing::run,
    },
    Step {
        name: "hogs",
        shows: "loops that never wait do not stop a 1 ms ticker",
        run: hogs::run,
    },
    Step {
        name: "sleep",
        shows: "std::thread::sleep, in 100 goroutines, does not block 2 Ps",
        run: sleep::run,
    },
    Step {
        name: "locals",
        shows: "goroutines move between threads and keep their thread-locals",
        run: locals::run,
    },
    Step {
        name: "pipeline",
        shows: "stages joined by channels; select! takes the first that is ready",
        run: pipeline::run,
    },
    Step {
        name: "deadlock",
        shows: "goroutines that wait for each other are reported, with reasons",
        run: deadlock::run,
    },
    Step {
        name: "http",
        shows: "an HTTP server of blocking code, answering its own clients",
        run: http::run,
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
