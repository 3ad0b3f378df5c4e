//! The stage: what a step draws with, and the report it leaves.
//!
//! It keeps screens, JSON and timing out of the steps.

use std::any::Any;
use std::io;
use std::time::{Duration, Instant};

use crate::args::Tour;
use crate::json;
use crate::screen::Screen;
use crate::steps::Step;
use crate::text::{Ink, paint, wrapped};

/// How often a step is sampled while it runs.
const LOOK: Duration = Duration::from_millis(10);
/// How often a frame is drawn.
const FRAME: Duration = Duration::from_millis(60);

/// Columns for notes and failures.
const WIDTH: usize = 75;

/// The stage of one step.
pub(crate) struct Stage<'a> {
    screen: &'a mut Screen,
    is_silent: bool,
    /// Everything is to be smaller and shorter.
    pub(crate) is_quick: bool,
    report: Report,
}

/// The result of a step.
#[derive(Default)]
pub(crate) struct Report {
    figures: Vec<Figure>,
    /// Remarks about the figures.
    notes: Vec<String>,
    /// Why the step failed; empty: it did not.
    pub(crate) failures: Vec<String>,
    seconds: f64,
}

/// A measured value.
struct Figure {
    name: &'static str,
    value: f64,
    unit: &'static str,
}

impl<'a> Stage<'a> {
    pub(crate) fn new(screen: &'a mut Screen, tour: &Tour) -> Stage<'a> {
        Stage {
            screen,
            is_silent: tour.is_json,
            is_quick: tour.is_quick,
            report: Report::default(),
        }
    }

    /// One of two sizes.
    pub(crate) fn size<T>(&self, full: T, quick: T) -> T {
        match self.is_quick {
            true => quick,
            false => full,
        }
    }

    /// Runs `work` on a thread of its own. Meanwhile calls `look` repeatedly; what it returns is
    /// the frame.
    pub(crate) fn watch<T: Send>(
        &mut self,
        work: impl FnOnce() -> io::Result<T> + Send,
        mut look: impl FnMut() -> String,
    ) -> io::Result<T> {
        let mut drawn: Option<Instant> = None;
        std::thread::scope(|scope| {
            let worker = scope.spawn(work);
            while !worker.is_finished() {
                let frame = look();
                let is_due = drawn.is_none_or(|drawn| drawn.elapsed() >= FRAME);
                if is_due && !self.is_silent {
                    self.screen.frame(&indented(&frame));
                    drawn = Some(Instant::now());
                }
                std::thread::sleep(LOOK);
            }
            match worker.join() {
                Ok(result) => result,
                Err(payload) => Err(io::Error::other(format!("panicked: {}", words(&*payload)))),
            }
        })
    }

    /// Writes text for good, in place of the frame.
    pub(crate) fn say(&mut self, text: &str) {
        if !self.is_silent {
            self.screen.put(&indented(text));
        }
    }

    /// Records a measured value.
    pub(crate) fn figure(&mut self, name: &'static str, value: f64, unit: &'static str) {
        self.report.figures.push(Figure { name, value, unit });
    }

    /// Records a remark about the figures, or what this machine cannot show.
    pub(crate) fn note(&mut self, text: String) {
        self.report.notes.push(text);
    }

    /// Fails the step unless `holds`.
    pub(crate) fn check(&mut self, holds: bool, complaint: impl FnOnce() -> String) {
        if !holds {
            self.report.failures.push(complaint());
        }
    }

    /// Ends the step, prints its notes and failures, and returns its report.
    pub(crate) fn end(mut self, result: io::Result<()>, took: Duration) -> Report {
        if let Err(error) = result {
            self.report.failures.push(error.to_string());
        }
        self.report.seconds = took.as_secs_f64();
        let mut text = String::new();
        let lines = |word: &str, what: &str| wrapped(&format!("{word}: {what}"), WIDTH) + "\n";
        for note in &self.report.notes {
            text += &paint_lines(Ink::Warm, &lines("Note", note));
        }
        for failure in &self.report.failures {
            text += &paint_lines(Ink::Bad, &lines("FAILED", failure));
        }
        // Also removes the last frame.
        self.say(&text);
        self.report
    }
}

impl Report {
    /// One line of JSON.
    pub(crate) fn to_json(&self, step: &Step) -> String {
        let strings = |texts: &[String]| json::array(texts.iter().map(|text| json::string(text)));
        let figure = |figure: &Figure| {
            json::object([
                ("name", json::string(figure.name)),
                ("value", json::number(figure.value)),
                ("unit", json::string(figure.unit)),
            ])
        };
        json::object([
            ("name", json::string(step.name)),
            ("shows", json::string(step.shows)),
            ("figures", json::array(self.figures.iter().map(figure))),
            ("notes", strings(&self.notes)),
            ("failures", strings(&self.failures)),
            ("seconds", json::number(self.seconds)),
            ("ok", self.failures.is_empty().to_string()),
        ])
    }
}

/// Indents every line by four blanks.
fn indented(text: &str) -> String {
    text.lines()
        .map(|line| format!("    {line}").trim_end().to_string() + "\n")
        .collect()
}

/// Colours every line by itself, so that the indentation is not coloured.
fn paint_lines(ink: Ink, text: &str) -> String {
    text.lines().map(|line| paint(ink, line) + "\n").collect()
}

/// The message of a panic.
fn words(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let string = || payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(string).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::Look;
    use crate::steps::STEPS;

    fn on_stage(is_json: bool, act: impl FnOnce(&mut Stage) -> io::Result<()>) -> Report {
        let look = Look::of(|_| None, false);
        let mut screen = Screen::new(Box::new(io::sink()), look);
        let tour = Tour {
            steps: Vec::new(),
            is_json,
            is_quick: true,
        };
        let mut stage = Stage::new(&mut screen, &tour);
        let result = act(&mut stage);
        stage.end(result, Duration::from_millis(1_500))
    }

    #[test]
    fn a_report_has_what_was_measured() {
        let report = on_stage(true, |stage| {
            stage.figure("a", 1.5, "ms");
            stage.note("a \"note\"".into());
            stage.check(true, || unreachable!());
            Ok(())
        });
        let step = &STEPS[0];
        let expected = format!(
            "{{\"name\":{},\"shows\":{},\
             \"figures\":[{{\"name\":\"a\",\"value\":1.5,\"unit\":\"ms\"}}],\
             \"notes\":[\"a \\\"note\\\"\"],\"failures\":[],\"seconds\":1.5,\"ok\":true}}",
            json::string(step.name),
            json::string(step.shows)
        );
        assert_eq!(report.to_json(step), expected);
    }

    #[test]
    fn checks_errors_and_panics_fail_a_step() {
        let checked = on_stage(false, |stage| {
            stage.check(false, || "no".into());
            Ok(())
        });
        assert_eq!(checked.failures, ["no"]);
        assert!(checked.to_json(&STEPS[0]).ends_with("\"ok\":false}"));
        let erred = on_stage(false, |_| Err(io::Error::other("broken")));
        assert_eq!(erred.failures, ["broken"]);
        let panicked = on_stage(false, |stage| {
            stage.watch(|| std::panic::resume_unwind(Box::new("ouch")), String::new)
        });
        assert_eq!(panicked.failures, ["panicked: ouch"]);
    }

    #[test]
    fn work_is_looked_at_while_it_lasts() {
        let mut looks = 0;
        let report = on_stage(false, |stage| {
            let (seen, waits) = std::sync::mpsc::channel();
            let work = move || waits.recv().map_err(io::Error::other);
            stage.watch(work, || {
                looks += 1;
                if looks == 3 {
                    seen.send(()).unwrap();
                }
                String::new()
            })
        });
        assert!(report.failures.is_empty() && looks >= 3);
    }
}
