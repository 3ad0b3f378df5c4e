//! Decides how this program plays a port of its own as a child of the
//! comparison: `--round PORT WORKLOAD N PROCS`, driven as every peer is (see
//! `child`), so that all are equal.

use std::io::{self, BufRead, Read};

use crate::port::Mode;
use crate::servers;
use crate::workload::{Params, Port, Workload};

/// The argument that makes the program such a child.
pub const FLAG: &str = "--round";

/// What a child of the comparison does.
pub struct Part {
    /// The work.
    pub workload: &'static Workload,
    /// Who does it.
    pub port: &'static Port,
    /// How much of it.
    pub params: Params,
}

/// Plays the part until the input ends.
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
            other => return Err(io::Error::other(format!("`{other}` is no order"))),
        }
        let mut text = String::new();
        for sample in round()? {
            text += &format!("{} {} {}\n", sample.metric, sample.value, sample.unit);
        }
        crate::print(&(text + "done\n"))?;
    }
    Ok(())
}

/// A server's end.
fn end_with_input() {
    // However it ends, there is nobody left to serve.
    let _ = io::stdin().lock().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

/// A panic is one line and the end, whoever panics.
fn end_at_a_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("a panic");
        crate::complain(&format!("gosched-bench: {}", text.replace('\n', " ")));
        std::process::exit(1);
    }));
}
