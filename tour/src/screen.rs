//! Writes text in the form that the output can show: a terminal with cursor control, one without,
//! or a pipe.
//!
//! Steps can so write colours and Unicode without checks of their own.
//!
//! Text is *put* for good. A *frame* is text that the next frame or put replaces; only a terminal
//! shows frames. Both may contain colours and Unicode. Where the output cannot show these, colours
//! are removed and each sign is replaced by an ASCII one of the same width.
//!
//! While a frame is drawn the terminal does not wrap long lines. So a frame has as many rows as
//! lines, however narrow the terminal is. The cursor rests below it. Every frame is one write and
//! leaves the terminal as it was, so the tour may be interrupted anywhere.

use std::io::{self, Write};

/// What the output can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) is_live: bool,
    pub(crate) has_colours: bool,
    pub(crate) is_ascii: bool,
}

impl Look {
    /// From the environment; `variable` reads a variable.
    pub(crate) fn of(variable: impl Fn(&str) -> Option<String>, is_terminal: bool) -> Look {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let terminal = variable("TERM").unwrap_or_else(|| "dumb".into());
        let is_live = is_terminal && terminal != "dumb";
        // The first variable that is set counts, as for libc. If none is set, which is usual in
        // containers, the terminal is assumed to show Unicode.
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .into_iter()
            .find_map(variable);
        let is_other = |locale: String| !locale.to_lowercase().replace('-', "").contains("utf8");
        // The kernel's own console has no font for most of Unicode.
        let is_console = is_terminal && terminal == "linux";
        Look {
            is_live,
            has_colours: is_live && variable("NO_COLOR").is_none(),
            is_ascii: is_console || locale.is_some_and(is_other),
        }
    }
}

/// The destination of all output. A write error is kept until the end, so that steps need not
/// handle it.
pub(crate) struct Screen {
    out: Box<dyn Write>,
    look: Look,
    /// Rows of the current frame.
    rows: usize,
    lost: Option<io::Error>,
}

impl Screen {
    pub(crate) fn new(out: Box<dyn Write>, look: Look) -> Screen {
        Screen {
            out,
            look,
            rows: 0,
            lost: None,
        }
    }

    /// Writes text for good, in place of the frame if there is one.
    pub(crate) fn put(&mut self, text: &str) {
        let mut bytes = self.over_the_frame();
        if self.rows > 0 {
            bytes += "\x1b[J";
        }
        self.rows = 0;
        self.render(text, &mut bytes);
        self.write(&bytes);
    }

    /// Shows a frame until the next one.
    pub(crate) fn frame(&mut self, text: &str) {
        if !self.look.is_live {
            return;
        }
        let mut bytes = self.over_the_frame() + "\x1b[?7l";
        for line in text.lines() {
            self.render(line, &mut bytes);
            bytes += "\x1b[K\n";
        }
        bytes += "\x1b[J\x1b[?7h";
        self.rows = text.lines().count();
        self.write(&bytes);
    }

    /// Whether writing has failed: the reader is gone.
    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Returns the first write error, if there was one.
    pub(crate) fn end(self) -> io::Result<()> {
        self.lost.map_or(Ok(()), Err)
    }

    fn over_the_frame(&self) -> String {
        match self.rows {
            0 => String::new(),
            rows => format!("\r\x1b[{rows}A"),
        }
    }

    /// Appends the text as the output can show it.
    fn render(&self, text: &str, into: &mut String) {
        let mut is_colour = false;
        for c in text.chars() {
            match c {
                '\x1b' if !self.look.has_colours => is_colour = true,
                _ if is_colour => is_colour = c != 'm',
                c if self.look.is_ascii && !c.is_ascii() => into.push(ascii(c)),
                c => into.push(c),
            }
        }
    }

    fn write(&mut self, text: &str) {
        if self.lost.is_none() {
            let result = self.out.write_all(text.as_bytes());
            self.lost = result.and_then(|()| self.out.flush()).err();
        }
    }
}

/// The closest ASCII sign.
fn ascii(c: char) -> char {
    const PAIRS: &str = "█#▉#▊#▋#▌#▍#▎#▏#▇8▆O▅o▄+▃=▂-▁_■#□.·.▒~▶>─-│|┐+┘+┌+└+├+┤+×xµu–-…~";
    let mut pairs = PAIRS.chars();
    while let (Some(from), Some(to)) = (pairs.next(), pairs.next()) {
        if from == c {
            return to;
        }
    }
    '?'
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    use crate::text::{Ink, paint};

    fn look(is_terminal: bool, set: &[(&str, &str)]) -> Look {
        let value = |name: &str| set.iter().find(|(n, _)| *n == name);
        Look::of(|name| value(name).map(|(_, v)| v.to_string()), is_terminal)
    }

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The output of a frame of two lines, a frame of one line and a final text.
    fn written(look: Look) -> String {
        let paper = Paper::default();
        let mut screen = Screen::new(Box::new(paper.clone()), look);
        screen.frame("1\n2\n");
        screen.frame("3\n");
        screen.put(&format!("{}\n", paint(Ink::Good, "4 µs █")));
        screen.end().unwrap();
        String::from_utf8(paper.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_terminal_is_used_as_far_as_it_goes() {
        let xterm = look(true, &[("TERM", "xterm")]);
        assert!(xterm.is_live && xterm.has_colours && !xterm.is_ascii);
        let plain = look(true, &[("TERM", "xterm"), ("NO_COLOR", "1")]);
        assert!(plain.is_live && !plain.has_colours);
        let empty = look(true, &[("TERM", "xterm"), ("NO_COLOR", "")]);
        assert!(empty.has_colours, "empty means unset");
        for dumb in [look(true, &[("TERM", "dumb")]), look(true, &[])] {
            assert!(!dumb.is_live && !dumb.has_colours);
        }
        assert!(look(true, &[("TERM", "linux")]).is_ascii);
        let pipe = look(false, &[("TERM", "xterm")]);
        assert!(!pipe.is_live && !pipe.has_colours && !pipe.is_ascii);
    }

    #[test]
    fn the_locale_decides_about_unicode() {
        assert!(!look(false, &[("LANG", "de_AT.UTF-8")]).is_ascii);
        assert!(!look(false, &[("LANG", "C.utf8")]).is_ascii);
        assert!(look(false, &[("LANG", "C")]).is_ascii);
        assert!(look(false, &[("LANG", "C.UTF-8"), ("LC_ALL", "C")]).is_ascii);
        assert!(!look(false, &[("LC_CTYPE", "C.UTF-8"), ("LANG", "C")]).is_ascii);
    }

    #[test]
    fn frames_replace_each_other_on_a_terminal() {
        let text = written(look(true, &[("TERM", "xterm")]));
        let (first, rest) = text.split_at(text.find("\x1b[2A").expect("up two rows") - 1);
        assert_eq!(first, "\x1b[?7l1\x1b[K\n2\x1b[K\n\x1b[J\x1b[?7h");
        assert_eq!(
            rest,
            "\r\x1b[2A\x1b[?7l3\x1b[K\n\x1b[J\x1b[?7h\r\x1b[1A\x1b[J\x1b[32m4 µs █\x1b[0m\n"
        );
    }

    #[test]
    fn a_pipe_gets_the_last_word_only() {
        assert_eq!(written(look(false, &[("TERM", "xterm")])), "4 µs █\n");
        assert_eq!(written(look(false, &[("LANG", "C")])), "4 us #\n");
        assert_eq!(written(look(true, &[("TERM", "dumb")])), "4 µs █\n");
    }

    #[test]
    fn what_cannot_be_written_is_known_at_the_end() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut screen = Screen::new(Box::new(Closed), look(false, &[]));
        assert!(!screen.is_lost());
        screen.put("x");
        assert!(screen.is_lost());
        assert_eq!(screen.end().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
