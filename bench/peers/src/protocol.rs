//! The conversation of a contestant with the driver, through standard input and output, line by
//! line.
//!
//! The arguments are `RUNTIME WORKLOAD N PROCS`.
//!
//! - The program starts the runtime and prints `ready`; or it prints `unsupported REASON` and ends;
//!   or, as a server, it prints `port P` and serves until its input ends.
//! - For each line `round` it does the work once and prints a line `METRIC VALUE UNIT` for each
//!   figure, then `done`.
//! - It ends with its input. An error is one line on standard error and exit status 1. A wrong
//!   result is such an error.

use std::io::{self, BufRead, Read, Write};
use std::process::ExitCode;

use crate::common::{Metric, Offer, Params};

/// A runtime's answer to a workload of this size.
type Ask = fn(runtime: &str, workload: &str, params: Params) -> Result<Offer, String>;

/// The whole program, by its name.
pub fn play(program: &'static str, ask: Ask) -> ExitCode {
    end_at_a_panic(program);
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let result = find(program, &arguments, ask)
        .and_then(|offer| answer(offer).map_err(|error| error.to_string()));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("{program}: {complaint}");
            ExitCode::FAILURE
        }
    }
}

/// A panic in any task ends the process. Otherwise runtimes keep it in the task, and another task
/// would wait for it for ever.
fn end_at_a_panic(program: &'static str) {
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or("a panic");
        let text = text.replace('\n', " ");
        let place = panic.location().map(|place| {
            let file = place.file().rsplit('/').next().unwrap_or_default();
            format!(" ({file}:{})", place.line())
        });
        eprintln!("{program}: {text}{}", place.unwrap_or_default());
        std::process::exit(1);
    }));
}

fn find(program: &str, arguments: &[String], ask: Ask) -> Result<Offer, String> {
    let [runtime, workload, n, procs] = arguments else {
        return Err(format!("usage: {program} RUNTIME WORKLOAD N PROCS"));
    };
    let number = |word: &String| match word.parse() {
        Ok(number @ 1..) => Ok(number),
        _ => Err(format!("`{word}` is no number of at least 1")),
    };
    let params = Params {
        n: number(n)?,
        procs: number(procs)?,
    };
    ask(runtime, workload, params)
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
