//! Runs a port of this program as a child of the comparison: `--round PORT WORKLOAD N PROCS`.
//!
//! It speaks the same protocol as every peer (see `child`), so that all are treated alike.

use std::io::{self, BufRead, Read};

use crate::port::Mode;
use crate::servers;
use crate::workload::{Params, Port, Workload};

/// The argument that makes the program such a child.
pub const FLAG: &str = "--round";

/// What a child of the comparison does.
pub struct Part {
    pub workload: &'static Workload,
    pub port: &'static Port,
    pub params: Params,
}

/// Runs until the input ends.
pub fn play(part: &Part) -> io::Result<()> {
    end_at_a_panic();
    match part.workload.child {
        Some(serve) if servers::is_server(part.workload.name) => {
            let mode = Mode::find(part.port.short);
            let mode = mode.ok_or_else(|| io::Error::other("only gosched serves"))?;
            std::thread::spawn(end_with_input);
            serve(&part.params, mode)
        }
        _ => rounds(part),
    }
}

fn rounds(part: &Part) -> io::Result<()> {
    let mut round = part.port.start(&part.params)?;
    crate::print("ready\n")?;
    for line in io::stdin().lock().lines() {
        match line?.as_str() {
            "round" => {}
            other => return Err(io::Error::other(format!("unknown order `{other}`"))),
        }
        let mut text = String::new();
        for sample in round()? {
            text += &format!("{} {} {}\n", sample.metric, sample.value, sample.unit);
        }
        crate::print(&(text + "done\n"))?;
    }
    Ok(())
}

/// Ends a server with its input.
fn end_with_input() {
    // Whatever the result, no client is left.
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

/// A panic of any thread prints one line and ends the process.
fn end_at_a_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("a panic");
        crate::complain(&format!("gosched-bench: {}", text.replace('\n', " ")));
        std::process::exit(1);
    }));
}
