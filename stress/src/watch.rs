//! The watchdog of a worker, and its panic hook.
//!
//! A round that hangs cannot report itself: the watchdog prints it and ends the process. The hook
//! makes any unplanned panic a failure of the round.

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
/// How long a hanging runtime may take to print its state.
const SHOW: Duration = Duration::from_secs(10);

/// The current round.
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

/// Its runtimes are built.
pub fn built(env: &Arc<Env>) {
    if let Some(now) = &mut *lock(&NOW) {
        now.env = Some(Arc::clone(env));
    }
}

/// The current stage of the round.
pub fn stage(stage: &'static str) {
    if let Some(now) = &mut *lock(&NOW) {
        now.stage = stage;
    }
}

/// The round is over.
pub fn end() {
    *lock(&NOW) = None;
}

/// The current round, if any.
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

/// Writes to stderr at once, without a buffer.
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
    // SAFETY: `_exit` ends the process in any state and runs no other code of it.
    unsafe { libc::_exit(1) }
}

/// Prints counters and goroutines of a runtime, if it still answers.
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

/// How panic messages begin when the library had to refuse something.
const REFUSALS: [&str; 3] = [
    "gosched: cannot start a goroutine",
    "gosched::gomaxprocs(",
    "gosched::time::",
];

/// Planned panics are silent; the hook complains of all others.
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
