//! Writes results to one directory as Markdown, JSON and SVG.
//!
//! The files are opened before anything is measured, so that a long run cannot fail at its end.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::golang;
use crate::progress::Progress;

/// In the order of `Files::write`.
const ENDINGS: [&str; 3] = ["md", "json", "svg"];

/// The files of one kind of run.
pub struct Files {
    place: PathBuf,
    stem: &'static str,
    /// Why the last results are not in the files.
    trouble: Option<io::Error>,
}

impl Files {
    /// In this directory, or the program's own. An error if the files cannot be written there. The
    /// results of an earlier run stay in them for now.
    pub fn new(place: Option<&Path>, stem: &'static str) -> io::Result<Files> {
        let place = match place {
            Some(place) => place.to_owned(),
            None => golang::scratch()?,
        };
        fs::create_dir_all(&place).map_err(|error| explain(&place, &error))?;
        let files = Files {
            place,
            stem,
            trouble: None,
        };
        for path in files.paths() {
            let opened = OpenOptions::new().create(true).append(true).open(&path);
            opened.map_err(|error| explain(&path, &error))?;
        }
        Ok(files)
    }

    fn paths(&self) -> [PathBuf; 3] {
        ENDINGS.map(|ending| self.place.join(format!("{}.{ending}", self.stem)))
    }

    /// Writes all files: Markdown, JSON, SVG. An error is kept, so that the run continues; a later
    /// success clears it.
    pub fn write(&mut self, texts: [&str; 3]) {
        self.trouble = None;
        for (path, text) in self.paths().iter().zip(texts) {
            if let Err(error) = fs::write(path, text) {
                self.trouble = Some(explain(path, &error));
            }
        }
    }

    /// Prints where the results are. The error has the failures of the run, and the write error if
    /// the last results are missing.
    pub fn finish(self, failed: &[String], progress: &mut Progress) -> io::Result<()> {
        let mut complaints = Vec::new();
        let name = format!("{}.{{{}}}", self.stem, ENDINGS.join(","));
        match self.trouble {
            None => progress.note(&format!("written to {}", self.place.join(name).display())),
            Some(error) => complaints.push(error.to_string()),
        }
        if !failed.is_empty() {
            complaints.push(format!("failed: {}", failed.join(", ")));
        }
        match complaints.is_empty() {
            true => Ok(()),
            false => Err(io::Error::other(complaints.join("; "))),
        }
    }
}

fn explain(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_known_first_and_told_last() {
        let id = std::process::id();
        let place = std::env::temp_dir().join(format!("gosched-bench-files-{id}"));
        let mut files = Files::new(Some(&place.join("deep")), "run").expect("a place");
        files.write(["tables", "{}", "<svg/>"]);
        let file = place.join("deep/run.md");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "tables");
        // Opening the files for a test removes nothing.
        drop(Files::new(Some(&place.join("deep")), "run").expect("the same place"));
        assert_eq!(fs::read_to_string(&file).expect("a file"), "tables");
        let error = Files::new(Some(&file), "run")
            .err()
            .expect("a file, not a place");
        assert!(error.to_string().contains("run.md"), "{error}");
        fs::remove_dir_all(place.join("deep")).expect("it goes away");
        files.write(["more", "{}", "<svg/>"]);
        fs::create_dir(place.join("deep")).expect("it is back");
        files.write(["most", "{}", "<svg/>"]);
        assert_eq!(fs::read_to_string(&file).expect("a file"), "most");
        fs::remove_dir_all(&place).expect("it goes away");
        files.write(["lost", "{}", "<svg/>"]);
        let end = files.finish(&["yield".into()], &mut Progress::new());
        let complaint = end.expect_err("the last ones were lost").to_string();
        assert!(complaint.ends_with("; failed: yield"), "{complaint}");
    }
}
