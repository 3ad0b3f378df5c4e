//! Decides what is seen of a run while it lasts, on standard error: one line
//! that changes, if somebody looks at it; otherwise lines one after the other.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// The line.
pub struct Progress {
    is_terminal: bool,
    started: Instant,
    /// What the line was about, where lines cannot change.
    last: String,
}

impl Progress {
    /// Nothing has happened yet.
    pub fn new() -> Progress {
        Progress {
            is_terminal: io::stderr().is_terminal(),
            started: Instant::now(),
            last: String::new(),
        }
    }

    /// What happens now: something that takes long, and the step of it.
    pub fn step(&mut self, what: &str, step: &str) {
        let seconds = self.started.elapsed().as_secs();
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        match self.is_terminal {
            true => {
                // To the start of the line, and away with what was there.
                self.put(&format!("\r\x1b[K{minutes}:{seconds:02} {what}, {step}"));
            }
            false if what != self.last => {
                self.put(&format!("{minutes}:{seconds:02} {what}\n"));
                self.last = what.into();
            }
            false => {}
        }
    }

    /// Something that stays.
    pub fn note(&mut self, text: &str) {
        self.clear();
        self.put(&format!("{text}\n"));
    }

    /// The line is needed for something else.
    pub fn clear(&mut self) {
        if self.is_terminal {
            self.put("\r\x1b[K");
        }
    }

    fn put(&self, text: &str) {
        // Nobody is told if nobody can be.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
