//! The contestants: gosched in both modes and with hooks, and the peers; how each is built and
//! started, and its version.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::child::Verdict;
use crate::golang;
use crate::progress::Progress;

/// gosched's modes, which always take part; the first one is the base of all ratios.
const MODES: [(&str, &str); 2] = [("own", "gosched"), ("shared", "gosched shared")];
/// The name of goroutines with hooks, which run existing code. They are a program of their own.
pub const HOOKED: &str = "hooked";
/// The peers: their names on the command line, and in tables.
pub const PEERS: [(&str, &str); 5] = [
    ("go", "Go"),
    ("tokio", "tokio"),
    ("smol", "smol"),
    ("may", "may"),
    ("std", "threads"),
];

pub struct Contestant {
    /// Its name, for programs.
    pub name: &'static str,
    /// Its name, for people.
    pub title: &'static str,
    program: Result<Program, String>,
}

#[derive(Clone)]
enum Program {
    /// This program, as a child.
    Bench(PathBuf),
    Peers(PathBuf),
    Go(PathBuf),
}

impl Contestant {
    /// Whether it can be started.
    pub fn is_there(&self) -> Result<(), Verdict> {
        match &self.program {
            Ok(_) => Ok(()),
            Err(reason) => Err(Verdict::Absent(reason.clone())),
        }
    }

    /// Whether it is gosched, in one of its modes or with hooks.
    pub fn is_gosched(&self) -> bool {
        self.name == HOOKED || MODES.iter().any(|(name, _)| *name == self.name)
    }

    /// The command that starts it. `is_alone`: as a port of the benchmark itself.
    pub fn command(
        &self,
        workload: &str,
        n: usize,
        procs: usize,
        is_alone: bool,
    ) -> Result<Command, Verdict> {
        let sizes = [n.to_string(), procs.to_string()];
        let program = match (is_alone, &self.program) {
            (true, _) => &Program::Bench(own_path().map_err(Verdict::Absent)?),
            (false, Ok(program)) => program,
            (false, Err(reason)) => return Err(Verdict::Absent(reason.clone())),
        };
        let mut command = match program {
            Program::Bench(path) => {
                let mut command = Command::new(path);
                command.args([super::round::FLAG, self.name]);
                command
            }
            Program::Peers(path) => {
                let mut command = Command::new(path);
                command.arg(self.name);
                command
            }
            Program::Go(path) => {
                let mut command = Command::new(path);
                // Garbage collector and scheduler have their default settings.
                for name in ["GOGC", "GOMEMLIMIT", "GODEBUG"] {
                    command.env_remove(name);
                }
                command
            }
        };
        command.arg(workload).args(sizes);
        Ok(command)
    }
}

/// gosched and the chosen peers, built if possible. `has_hooked`: also goroutines with hooks.
pub fn gather(
    peers: &[&'static str],
    has_hooked: bool,
    progress: &mut Progress,
) -> Vec<Contestant> {
    let own = own_path().map(Program::Bench);
    let mut contestants: Vec<_> = MODES
        .iter()
        .map(|&(name, title)| Contestant {
            name,
            title,
            program: own.clone(),
        })
        .collect();
    if has_hooked {
        let program = build_hooked(&mut |text| progress.note(text));
        let program = program.map_err(|error| error.to_string());
        contestants.push(contestant(
            HOOKED,
            "gosched hooked",
            program.map(Program::Peers),
            progress,
        ));
    }
    let rust_peers = match peers.iter().any(|peer| *peer != "go") {
        true => build_peers(&mut |text| progress.note(text)).map_err(|error| error.to_string()),
        false => Err("not asked for".into()),
    };
    for (name, title) in PEERS.iter().filter(|(name, _)| peers.contains(name)) {
        let program = match *name {
            "go" => build_go(progress).map_err(|error| error.to_string()),
            _ => rust_peers.clone().map(Program::Peers),
        };
        contestants.push(contestant(name, title, program, progress));
    }
    contestants
}

/// A contestant with a program of its own; the reason why there is none is news.
fn contestant(
    name: &'static str,
    title: &'static str,
    program: Result<Program, String>,
    progress: &mut Progress,
) -> Contestant {
    if let Err(reason) = &program {
        progress.note(&format!("{title} does not take part: {reason}"));
    }
    Contestant {
        name,
        title,
        program,
    }
}

fn own_path() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| error.to_string())
}

fn build_go(progress: &mut Progress) -> io::Result<Program> {
    let path = golang::build(&mut |text| progress.note(text))?;
    Ok(Program::Go(path))
}

/// The root of the workspace.
fn workspace() -> &'static Path {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().expect("it lies in the workspace")
}

/// Builds the Rust peers; returns their path. `note` gets a text before the long step.
pub fn build_peers(note: &mut dyn FnMut(&str)) -> io::Result<PathBuf> {
    note("building the Rust peers");
    build("gosched-peers")
}

/// Builds the program with hooks; returns its path. `note` gets a text before the long step.
pub fn build_hooked(note: &mut dyn FnMut(&str)) -> io::Result<PathBuf> {
    note("building the program with hooks");
    build("gosched-hooked")
}

/// Builds a package of the workspace with cargo in this program's target directory; returns the
/// path of its program, which has the same name.
fn build(package: &str) -> io::Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(&cargo);
    command
        .args(["build", "--release", "--quiet", "-p", package])
        .arg("--message-format=json-render-diagnostics")
        .current_dir(workspace())
        .stderr(Stdio::inherit());
    if let Some(target) = golang::scratch()?.parent() {
        command.arg("--target-dir").arg(target);
    }
    let output = command.output().map_err(|error| {
        let cargo = cargo.display();
        io::Error::other(format!(
            "{cargo} does not start ({error}); put cargo on PATH, or its path into CARGO"
        ))
    })?;
    if !output.status.success() {
        let text = format!("cargo build -p {package}: {}", output.status);
        return Err(io::Error::other(text));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    executable(&messages, package).ok_or_else(|| io::Error::other("cargo did not print its path"))
}

/// The program's path from cargo's messages.
fn executable(messages: &str, package: &str) -> Option<PathBuf> {
    let line = messages
        .lines()
        .rfind(|line| line.contains("\"executable\":\"") && line.contains(package))?;
    let rest = line.split("\"executable\":\"").nth(1)?;
    // A path with quotes or backslashes would be escaped, which is not handled.
    rest.split('"').next().map(PathBuf::from)
}

/// The version of every contestant.
pub fn versions(contestants: &[Contestant]) -> Vec<(&'static str, String)> {
    let of = |contestant: &Contestant| {
        let version = match (contestant.name, &contestant.program) {
            (_, Err(_)) => "absent".into(),
            ("own" | "shared", _) => gosched_version(),
            (HOOKED, _) => format!("{}, {}", rustc_version(), locked(&["ureq"])),
            ("go", Ok(Program::Go(path))) => {
                golang::version(path).unwrap_or_else(|error| error.to_string())
            }
            ("tokio", _) => locked(&["tokio", "hyper", "async-channel"]),
            ("smol", _) => locked(&["async-executor", "async-channel", "async-lock", "async-io"]),
            ("may", _) => locked(&["may"]),
            ("std", _) => format!(
                "{}, {}",
                rustc_version(),
                locked(&["crossbeam-channel", "ureq"])
            ),
            _ => "unknown".into(),
        };
        (contestant.name, version)
    };
    contestants.iter().map(of).collect()
}

/// gosched's version and, if this is a checkout, its commit.
fn gosched_version() -> String {
    let version = concat!("gosched ", env!("CARGO_PKG_VERSION"));
    let commit = Command::new("git")
        .args(["describe", "--always", "--dirty"])
        .current_dir(workspace())
        .output();
    match commit {
        Ok(output) if output.status.success() => {
            let commit = String::from_utf8_lossy(&output.stdout);
            format!("{version} ({})", commit.trim())
        }
        _ => version.into(),
    }
}

fn rustc_version() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    match Command::new(rustc).arg("--version").output() {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8_lossy(&output.stdout);
            text.split(' ').take(2).collect::<Vec<_>>().join(" ")
        }
        _ => "rustc".into(),
    }
}

/// The versions of crates in `Cargo.lock`.
fn locked(names: &[&str]) -> String {
    let lock = include_str!("../../../Cargo.lock");
    let all: Vec<_> = names
        .iter()
        .map(|name| format!("{name} {}", locked_version(lock, name)))
        .collect();
    all.join(", ")
}

fn locked_version<'l>(lock: &'l str, name: &str) -> &'l str {
    let start = format!("name = \"{name}\"\nversion = \"");
    let rest = lock.split(&start).nth(1);
    let version = rest.and_then(|rest| rest.split('"').next());
    version.unwrap_or("?")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A contestant that is never started.
    pub fn contestant(name: &'static str) -> Contestant {
        Contestant {
            name,
            title: name,
            program: Err("never started".into()),
        }
    }

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock = "[[package]]\nname = \"may_queue\"\nversion = \"9\"\n\n\
                    [[package]]\nname = \"may\"\nversion = \"0.3.51\"\nsource = \"\"\n";
        assert_eq!(locked_version(lock, "may"), "0.3.51");
        assert_eq!(locked_version(lock, "maybe"), "?");
        assert!(
            !locked(&[
                "tokio",
                "async-executor",
                "may",
                "crossbeam-channel",
                "ureq"
            ])
            .contains('?')
        );
    }

    #[test]
    fn who_is_absent_has_no_version_but_plays_the_ports_of_the_benchmark() {
        let absent = Contestant {
            name: "std",
            title: "threads",
            program: Err("no cargo".into()),
        };
        assert!(absent.command("malloc", 1, 1, true).is_ok());
        let verdict = absent.command("yield", 1, 1, false).err();
        assert_eq!(verdict, Some(Verdict::Absent("no cargo".into())));
        assert_eq!(versions(&[absent]), [("std", "absent".to_owned())]);
    }

    #[test]
    fn cargo_tells_where_the_program_is() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
             {\"target\":{\"name\":\"gosched-peers\"},\"executable\":\"/t/release/gosched-peers\",\"fresh\":true}\n\
             {\"reason\":\"build-finished\",\"success\":true}\n";
        let found = executable(messages, "gosched-peers");
        assert_eq!(found, Some(PathBuf::from("/t/release/gosched-peers")));
        assert_eq!(executable("", "gosched-peers"), None);
        assert_eq!(executable(messages, "gosched-hooked"), None);
    }
}
