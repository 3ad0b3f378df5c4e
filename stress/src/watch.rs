//! The watchdog of a worker: a round that does not end is shown, and ends the process. And the hook that makes a panic which nobody
//! planned a failure of the round, wherever it happens.

use std::io::Write;
use std::panic::PanicHookInfo;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gosched::Handle;

use crate::env::{Env, Planned};
use crate::ledger::lock;
use crate::{mixes, system};

/// How long a round may take, from its beginning to its last check. Most take a second or two.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a runtime that hangs has to show itself.
const SHOW: Duration = Duration::from_secs(10);

/// The round that is going on.
struct Current {
    since: Instant,
    what: String,
    stage: &'static str,
    env: Option<Arc<Env>>,
}

static NOW: Mutex<Option<Current>> = Mutex::new(None);

/// A round begins.
pub fn begin(what: String) {
    *lock(&NOW) = Some(Current {
        since: Instant::now(),
        what,
        stage: "building",
        env: None,
    });
}

/// Its runtimes are there.
pub fn built(env: &Arc<Env>) {
    if let Some(now) = &mut *lock(&NOW) {
        now.env = Some(Arc::clone(env));
    }
}

/// What it is at.
pub fn stage(stage: &'static str) {
    if let Some(now) = &mut *lock(&NOW) {
        now.stage = stage;
    }
}

/// It is over.
pub fn end() {
    *lock(&NOW) = None;
}

/// The round that is going on, if any.
pub fn current() -> Option<Arc<Env>> {
    lock(&NOW).as_ref()?.env.clone()
}

/// Starts the watchdog.
pub fn start() {
    let watchdog = std::thread::Builder::new().name("watchdog".into());
    let started = watchdog.spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let is_late = |now: &Current| now.since.elapsed() > PATIENCE;
            if lock(&NOW).as_ref().is_some_and(is_late) {
                show_and_end();
            }
        }
    });
    if let Err(error) = started {
        say(&format!("no watchdog: {error}"));
    }
}

/// To stderr at once, past every buffer.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn show_and_end() -> ! {
    if let Some(now) = &*lock(&NOW) {
        say(&format!("HANGS ({}): {}", now.stage, now.what));
        if let Some(env) = &now.env {
            say(&format!("{:?}", env.ledger.sums()));
            say(&env.ledger.open_entries(&mixes::names()));
            say(&format!("complaints: {:#?}", env.ledger.complaints()));
            say(&format!(
                "stop {:?}, ending {:?}",
                env.stop.load(SeqCst),
                env.is_ending.load(SeqCst)
            ));
            show("here", Some(&env.here));
            show("there", env.there.as_ref());
        }
    }
    say(&format!("threads:\n{}", system::thread_list()));
    // SAFETY: ends the process, whatever state it is in.
    unsafe { libc::_exit(1) }
}

/// Counters and goroutines of a runtime, if it still answers.
fn show(name: &'static str, handle: Option<&Handle>) {
    let Some(handle) = handle.cloned() else {
        return;
    };
    let shows = std::thread::spawn(move || {
        match handle.metrics() {
            Ok(metrics) => say(&format!("{name}:\n{metrics}")),
            Err(error) => return say(&format!("{name}: {error}")),
        }
        if let Ok(dump) = handle.dump() {
            say(&format!("{name}:\n{dump}"));
        }
    });
    let until = Instant::now() + SHOW;
    while !shows.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    if !shows.is_finished() {
        say(&format!("{name} does not answer"));
    }
}

/// What a panic says when the library had to refuse something.
const REFUSALS: [&str; 3] = [
    "gosched: cannot start a goroutine",
    "gosched::gomaxprocs(",
    "gosched::time::",
];

/// Panics that are planned are quiet; all others are complained of.
pub fn install_hook() {
    std::panic::set_hook(Box::new(|info: &PanicHookInfo<'_>| {
        if info.payload().is::<Planned>() {
            return;
        }
        let text = info.payload_as_str().unwrap_or("?");
        let env = current();
        let is_refusal = REFUSALS.iter().any(|start| text.starts_with(start));
        if let Some(env) = env.as_ref().filter(|env| is_refusal && env.may_refuse()) {
            return env.goroutine_refused();
        }
        let place = info.location().map(ToString::to_string);
        let text = format!("panic at {}: {text}", place.unwrap_or_default());
        say(&format!(
            "{text}\n{}",
            std::backtrace::Backtrace::force_capture()
        ));
        match env {
            Some(env) => env.ledger.complain(text),
            None => std::process::exit(1),
        }
    }));
}
