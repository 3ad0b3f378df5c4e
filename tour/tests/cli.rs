//! The tour as users start it, with `--quick`: the full sizes are for `cargo run --release`.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A tour that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const NAMES: [&str; 8] = [
    "million", "stealing", "hogs", "sleep", "locals", "pipeline", "deadlock", "http",
];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gosched-tour"));
    command
        .args(args)
        .env_remove("GOSCHED_DEBUG")
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn tour(args: &[&str]) -> Output {
    output(command(args).spawn().unwrap())
}

/// Waits with a limit, and returns all output, which fits into a pipe.
fn output(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it hangs: {:?}", child.wait_with_output().unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn the_list_names_the_steps_in_order() {
    let list = tour(&["--list"]);
    assert_eq!(list.status.code(), Some(0));
    let names = text(&list.stdout).lines();
    let names = names.filter_map(|line| line.split_whitespace().next());
    assert!(names.eq(NAMES), "{}", text(&list.stdout));
}

#[test]
fn help_names_steps_and_options() {
    let help = tour(&["--help"]);
    assert_eq!(help.status.code(), Some(0));
    for word in NAMES
        .iter()
        .chain(&["--list", "--json", "--quick", "NO_COLOR"])
    {
        assert!(text(&help.stdout).contains(word), "{word} is missing");
    }
}

#[test]
fn the_whole_tour_runs_into_a_pipe() {
    let output = tour(&["--quick"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert_eq!(err, "");
    for (i, name) in NAMES.iter().enumerate() {
        let heading = format!("\n{}/8 {name}: ", i + 1);
        assert!(out.contains(&heading), "{name} is missing in {out}");
    }
    assert!(
        out.contains("all goroutines are asleep - deadlock!"),
        "{out}"
    );
    assert!(out.contains("all as expected"), "{out}");
    for line in out.lines() {
        assert!(
            !line.contains(char::is_control),
            "control characters: {line:?}"
        );
        assert!(line.chars().count() < 80, "too wide: {line}");
        assert_eq!(line, line.trim_end(), "blanks at the end");
    }
}

#[test]
fn every_step_has_an_object_for_machines() {
    let output = tour(&["--quick", "--json"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    assert_eq!(out.lines().count(), NAMES.len(), "{out}");
    for (line, name) in out.lines().zip(NAMES) {
        let step = json::parse(line).unwrap_or_else(|at| panic!("no JSON at {at}: {line}"));
        assert_eq!(step.get("name").str(), name);
        assert!(!step.get("shows").str().is_empty());
        assert!(step.get("seconds").num() > 0.0);
        assert!(matches!(step.get("ok"), json::Value::Bool(true)), "{line}");
        assert!(step.get("failures").items().is_empty());
        for note in step.get("notes").items() {
            assert!(!note.str().is_empty());
        }
        let figures = step.get("figures").items();
        assert!(!figures.is_empty(), "{line}");
        for figure in figures {
            let (name, unit) = (figure.get("name").str(), figure.get("unit").str());
            assert!(!name.is_empty() && !unit.is_empty(), "{line}");
            assert!(figure.get("value").num() >= 0.0, "{line}");
        }
    }
}

#[test]
fn the_list_is_there_for_machines_too() {
    let output = tour(&["--list", "--json"]);
    let names = text(&output.stdout).lines();
    let names = names.map(|line| json::parse(line).unwrap().get("name").str().to_string());
    assert!(names.eq(NAMES));
}

#[test]
fn one_step_runs_alone() {
    let output = tour(&["--quick", "deadlock"]);
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{out}");
    assert!(out.starts_with("1/1 deadlock: "), "{out}");
    assert!(
        !NAMES[..6]
            .iter()
            .any(|name| out.contains(&format!(" {name}: "))),
        "{out}"
    );
}

#[test]
fn an_unknown_step_ends_with_status_2_a_hint_and_the_list() {
    let output = tour(&["deadlok"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("no step \"deadlok\"; did you mean \"deadlock\"?"),
        "{err}"
    );
    assert!(NAMES.iter().all(|name| err.contains(name)), "{err}");
    assert!(output.stdout.is_empty());
    let output = tour(&["--jsn"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(
        err.contains("did you mean \"--json\"?") && err.contains("usage:"),
        "{err}"
    );
}

/// If loops cannot be interrupted, they starve the ticker.
#[test]
fn a_step_that_fails_says_so_and_the_others_run() {
    let child = command(&["--quick", "hogs", "deadlock"])
        .env("GOSCHED_DEBUG", "asyncpreemptoff=1")
        .spawn();
    let output = output(child.unwrap());
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("FAILED: the ticker was starved"), "{out}");
    assert!(out.contains("all goroutines are asleep"), "{out}");
    assert!(out.contains("FAILED: hogs."), "{out}");
}

#[test]
fn a_failure_is_there_for_machines_too() {
    let child = command(&["--quick", "--json", "hogs"])
        .env("GOSCHED_DEBUG", "asyncpreemptoff=1")
        .spawn();
    let output = output(child.unwrap());
    assert_eq!(output.status.code(), Some(1));
    let step = json::parse(text(&output.stdout).trim_end()).unwrap();
    assert!(matches!(step.get("ok"), json::Value::Bool(false)));
    assert!(step.get("failures").items()[0].str().contains("starved"));
}

#[test]
fn without_unicode_there_is_ascii() {
    let child = command(&["--quick", "deadlock", "pipeline"])
        .env("LC_ALL", "C")
        .spawn();
    let output = output(child.unwrap());
    let out = text(&output.stdout);
    assert!(out.is_ascii() && !out.contains('?'), "{out}");
    assert!(out.contains("left --> right --> left"), "{out}");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let mut child = command(&["--quick", "deadlock"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = output(child);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
}

/// Two steps, of which the second never begins.
#[test]
fn a_reader_that_leaves_in_between_ends_the_tour() {
    let mut child = command(&["--quick", "--json", "deadlock", "hogs", "hogs"])
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    drop(stdout);
    let output = output(child);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// A JSON reader, as small as the checks allow.
mod json {
    #[derive(Debug)]
    pub enum Value {
        Null,
        Bool(bool),
        Num(f64),
        Str(String),
        List(Vec<Value>),
        Object(Vec<(String, Value)>),
    }

    impl Value {
        pub fn get(&self, name: &str) -> &Value {
            let Value::Object(fields) = self else {
                panic!("no object: {self:?}")
            };
            let field = fields.iter().find(|(field, _)| field == name);
            &field.unwrap_or_else(|| panic!("no {name} in {self:?}")).1
        }

        pub fn str(&self) -> &str {
            match self {
                Value::Str(text) => text,
                _ => panic!("no string: {self:?}"),
            }
        }

        pub fn num(&self) -> f64 {
            match self {
                Value::Num(number) => *number,
                _ => panic!("no number: {self:?}"),
            }
        }

        pub fn items(&self) -> &[Value] {
            match self {
                Value::List(items) => items,
                _ => panic!("no list: {self:?}"),
            }
        }
    }

    /// Parses `text` as one value; the error is the position.
    pub fn parse(text: &str) -> Result<Value, usize> {
        let mut reader = Reader(text, text.len());
        let value = reader.value().ok_or(reader.at())?;
        match reader.0 {
            "" => Ok(value),
            _ => Err(reader.at()),
        }
    }

    /// The rest of the text, and its whole length.
    struct Reader<'a>(&'a str, usize);

    impl Reader<'_> {
        fn at(&self) -> usize {
            self.1 - self.0.len()
        }

        fn take(&mut self, word: &str) -> Option<()> {
            self.0 = self.0.strip_prefix(word)?;
            Some(())
        }

        fn value(&mut self) -> Option<Value> {
            match self.0.chars().next()? {
                '"' => self.string().map(Value::Str),
                '[' => self.list(['[', ']'], Reader::value).map(Value::List),
                '{' => self.list(['{', '}'], Reader::field).map(Value::Object),
                't' => self.take("true").map(|()| Value::Bool(true)),
                'f' => self.take("false").map(|()| Value::Bool(false)),
                'n' => self.take("null").map(|()| Value::Null),
                _ => self.number(),
            }
        }

        fn number(&mut self) -> Option<Value> {
            let is_part = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
            let end = self.0.find(|c| !is_part(c)).unwrap_or(self.0.len());
            let number = self.0[..end].parse().ok()?;
            self.0 = &self.0[end..];
            Some(Value::Num(number))
        }

        fn field(&mut self) -> Option<(String, Value)> {
            let name = self.string()?;
            self.take(":")?;
            Some((name, self.value()?))
        }

        fn list<T>(
            &mut self,
            [open, close]: [char; 2],
            item: fn(&mut Self) -> Option<T>,
        ) -> Option<Vec<T>> {
            self.take(&open.to_string())?;
            let mut items = Vec::new();
            while !self.0.starts_with(close) {
                if !items.is_empty() {
                    self.take(",")?;
                }
                items.push(item(self)?);
            }
            self.take(&close.to_string())?;
            Some(items)
        }

        fn string(&mut self) -> Option<String> {
            self.take("\"")?;
            let mut text = String::new();
            loop {
                let c = self.0.chars().next()?;
                self.0 = &self.0[c.len_utf8()..];
                match c {
                    '"' => return Some(text),
                    '\\' => text.push(self.escaped()?),
                    c if c < ' ' => return None,
                    c => text.push(c),
                }
            }
        }

        fn escaped(&mut self) -> Option<char> {
            let c = self.0.chars().next()?;
            self.0 = &self.0[c.len_utf8()..];
            Some(match c {
                'n' => '\n',
                't' => '\t',
                '"' | '\\' | '/' => c,
                'u' => {
                    let code = u32::from_str_radix(self.0.get(..4)?, 16).ok()?;
                    self.0 = &self.0[4..];
                    char::from_u32(code)?
                }
                _ => return None,
            })
        }
    }

    #[test]
    fn the_reader_tells_json_from_what_is_none() {
        let value = parse(r#"{"a":[1,-2.5e1,null,true,"\"\u00b5\n"],"b":{}}"#).unwrap();
        let items = value.get("a").items();
        assert_eq!((items[1].num(), items[4].str()), (-25.0, "\"µ\n"));
        for wrong in [
            "",
            "{",
            "[1,]",
            "{\"a\" 1}",
            "\"a",
            "1 2",
            "\"\n\"",
            "nan",
            "{'a':1}",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
