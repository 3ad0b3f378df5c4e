//! The peers: runs one workload on one of the runtimes that gosched is compared with, in that
//! runtime's own idiom.
//!
//! It is a program of its own, so that nothing of gosched is linked.
//!
//! `gosched-peers RUNTIME WORKLOAD N PROCS` is driven through its standard input and output, line
//! by line:
//!
//! - It starts the runtime and prints `ready`; or it prints `unsupported REASON` and ends; or, as a
//!   server, it prints `port P` and serves until its input ends.
//! - For each line `round` it does the work once and prints a line `METRIC VALUE UNIT` for each
//!   figure, then `done`.
//! - It ends with its input. An error is one line on standard error and exit status 1. A wrong
//!   result is such an error.
//!
//! There are two styles, each with code of its own for all workloads: `tasks` for runtimes of
//! futures, `threads` for runtimes that look like threads. A runtime is an implementation of the
//! style's trait.

mod common;
mod hogs;
mod http;
mod may_coroutines;
mod smol_tasks;
mod std_threads;
mod tasks;
mod threads;
mod tokio_tasks;

use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;

use common::{Metric, Offer, Params};

fn main() -> ExitCode {
    end_at_a_panic();
    match play(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("gosched-peers: {complaint}");
            ExitCode::FAILURE
        }
    }
}

/// A panic in any task ends the process. Otherwise runtimes keep it in the task, and another task
/// would wait for it for ever.
fn end_at_a_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("a panic");
        let text = text.replace('\n', " ");
        let place = panic.location().map(|place| {
            let file = place.file().rsplit('/').next().unwrap_or_default();
            format!(" ({file}:{})", place.line())
        });
        eprintln!("gosched-peers: {text}{}", place.unwrap_or_default());
        std::process::exit(1);
    }));
}

fn play(arguments: &[String]) -> Result<(), String> {
    let [runtime, workload, n, procs] = arguments else {
        return Err("usage: gosched-peers RUNTIME WORKLOAD N PROCS".into());
    };
    let number = |word: &String| match word.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err(format!("`{word}` is no number of at least 1")),
    };
    let params = Params {
        n: number(n)?,
        procs: number(procs)?,
    };
    let offer = match runtime.as_str() {
        "tokio" => tasks::offer::<tokio_tasks::Tokio>(workload, params)?,
        "smol" => tasks::offer::<smol_tasks::Smol>(workload, params)?,
        "may" => threads::offer::<may_coroutines::May>(workload, params)?,
        "std" => threads::offer::<std_threads::Std>(workload, params)?,
        _ => return Err(format!("no runtime is called `{runtime}`")),
    };
    answer(offer).map_err(|error| error.to_string())
}

/// Runs the protocol with the driver.
fn answer(offer: Offer) -> io::Result<()> {
    let mut rounds = match offer {
        Offer::Unsupported(reason) => return say(&format!("unsupported {reason}\n")),
        Offer::Server(port) => {
            say(&format!("port {port}\n"))?;
            io::stdin().lock().read_to_end(&mut Vec::new())?;
            // The server's tasks end with the process.
            std::process::exit(0);
        }
        Offer::Rounds(rounds) => rounds,
    };
    say("ready\n")?;
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "round" => {}
            other => return Err(io::Error::other(format!("`{other}` is no order"))),
        }
        let metrics = rounds().map_err(io::Error::other)?;
        let mut text: String = metrics.iter().map(Metric::line).collect();
        text.push_str("done\n");
        say(&text)?;
    }
    // Tasks that still run, or are parked for good, end with the process.
    std::process::exit(0)
}

fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
