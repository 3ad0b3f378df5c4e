//! Shows the progress of a run on standard error: one changing line on a terminal, otherwise
//! several lines.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

pub struct Progress {
    is_terminal: bool,
    started: Instant,
    /// The last text, for output that cannot change a line.
    last: String,
}

impl Progress {
    pub fn new() -> Progress {
        Progress {
            is_terminal: io::stderr().is_terminal(),
            started: Instant::now(),
            last: String::new(),
        }
    }

    /// Shows a long action, and its current step.
    pub fn step(&mut self, what: &str, step: &str) {
        let seconds = self.started.elapsed().as_secs();
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        match self.is_terminal {
            true => {
                // To the start of the line, and erase it.
                self.put(&format!("\r\x1b[K{minutes}:{seconds:02} {what}, {step}"));
            }
            false if what != self.last => {
                self.put(&format!("{minutes}:{seconds:02} {what}\n"));
                self.last = what.into();
            }
            false => {}
        }
    }

    /// Prints a text that stays.
    pub fn note(&mut self, text: &str) {
        self.clear();
        self.put(&format!("{text}\n"));
    }

    /// Erases the line.
    pub fn clear(&mut self) {
        if self.is_terminal {
            self.put("\r\x1b[K");
        }
    }

    fn put(&self, text: &str) {
        // There is no other place to report an error.
        let _ = io::stderr().write_all(text.as_bytes());
    }
}
