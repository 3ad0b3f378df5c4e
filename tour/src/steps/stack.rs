//! A stack has a limit of address space and costs the pages it has touched.

use std::hint::black_box;
use std::io::{self, Write};
use std::time::Duration;

use gosched::thread;

use crate::proc;
use crate::text::{bytes, grouped};

const LIMIT: usize = 256 << 20;
const DEPTH: u32 = 50_000;
/// By when the memory of an ended goroutine's stack has been returned.
const GIVEN_BACK: Duration = Duration::from_millis(1_500);

/// What was measured.
struct Seen {
    /// Growth of the process's memory: when the goroutine had started, at the deepest call, after its end.
    started: u64,
    deepest: u64,
    ended: u64,
    /// Bytes of stack between the first call and the deepest.
    used: usize,
}

pub(super) fn run(out: &mut dyn Write) -> io::Result<()> {
    let seen = gosched::run(measure)?;
    writeln!(
        out,
        "    one goroutine with a stack limit of {}",
        bytes(LIMIT as u64)
    )?;
    writeln!(
        out,
        "    started:             the process has grown by {}",
        bytes(seen.started)
    )?;
    writeln!(
        out,
        "    {} calls deep:   the process has grown by {} (stack in use: {})",
        grouped(DEPTH.into()),
        bytes(seen.deepest),
        bytes(seen.used as u64)
    )?;
    writeln!(
        out,
        "    ended, 1.5 s later:  the process has grown by {}",
        bytes(seen.ended)
    )
}

fn measure() -> io::Result<Seen> {
    let before = proc::status()?.memory_bytes;
    let grown = move || Ok::<_, io::Error>(proc::status()?.memory_bytes.saturating_sub(before));
    let deep = thread::Builder::new().name("deep".into()).stack_size(LIMIT);
    let deep = deep.spawn(move || {
        let started = grown()?;
        let top = address();
        let (deepest, bottom) = descend(DEPTH, &grown);
        Ok::<_, io::Error>((started, deepest?, top - bottom))
    })?;
    let (started, deepest, used) = match deep.join() {
        Ok(seen) => seen?,
        Err(_) => return Err(io::Error::other("the deep goroutine panicked")),
    };
    // Memory that nobody has used for a second is given back, by an idle thread of the runtime.
    thread::sleep(GIVEN_BACK);
    Ok(Seen {
        started,
        deepest,
        ended: grown()?,
        used,
    })
}

/// Calls itself and measures at the bottom; also returns where the deepest frame lies.
#[inline(never)]
fn descend<T>(depth: u32, measure: &impl Fn() -> T) -> (T, usize) {
    let frame = black_box([depth; 32]);
    if depth == 0 {
        return (measure(), address());
    }
    let result = descend(depth - 1, measure);
    // Used after the call, so that the frame is alive during it.
    black_box(&frame);
    result
}

/// Where the caller's frame lies, about.
#[inline(never)]
fn address() -> usize {
    let here = 0u8;
    black_box(&raw const here) as usize
}
