//! A chat server: each member's lines go to all others.
//!
//! ```text
//! cargo run --release --example chat -- 127.0.0.1:7778       and: nc 127.0.0.1 7778, several times
//! ```
//!
//! The hub is one goroutine that knows all members. All others talk to it through channels, so
//! nothing is shared and nothing is locked. A member has two goroutines: one reads its lines and
//! passes them on, the other writes the lines of the others. If a member does not read, its queue
//! becomes full and its connection is closed: no goroutine waits for it.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::time::Instant;

use gosched::chan::{Receiver, Sender, bounded, select};
use gosched::context::Context;
use gosched::net::{TcpListener, TcpStream};

/// How many lines may wait for a member before its connection is closed.
const PATIENCE: usize = 64;
/// The longest line; a longer one ends the connection.
const LINE_MAX: u64 = 4096;

#[gosched::main]
fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:7778".into());
    let listener = TcpListener::bind(&address)?;
    println!("chat: listening on {}", listener.local_addr()?);
    let ctx = Context::background().with_cancel();
    let interrupts = gosched::signal::notify(&[2]);
    let stop = ctx.clone();
    gosched::go(move || {
        _ = interrupts.recv();
        stop.cancel();
    });
    serve(listener, &ctx)
}

/// What happens in the room.
enum Event {
    Came(usize, Member),
    Said(usize, String),
    Left(usize),
}

struct Member {
    name: String,
    hears: Sender<String>,
    /// To close its connection.
    stream: TcpStream,
}

/// Serves until the context ends.
pub fn serve(listener: TcpListener, ctx: &Context) -> io::Result<()> {
    let (events, room) = bounded(0);
    let hub = gosched::thread::spawn({
        let done = ctx.done().clone();
        move || hub(&room, &done)
    });
    let (door, done) = (listener.try_clone()?, ctx.done().clone());
    gosched::go(move || {
        _ = done.recv();
        _ = door.set_deadline(Some(Instant::now()));
    });
    for (number, stream) in listener.incoming().enumerate() {
        let events = events.clone();
        match stream {
            Ok(stream) => gosched::go(move || _ = attend(number, stream, &events)),
            Err(_) if ctx.err().is_some() => break,
            Err(error) => eprintln!("chat: {error}"),
        }
    }
    drop(events);
    hub.join().expect("the hub does not panic");
    Ok(())
}

/// The goroutine that knows all members.
fn hub(room: &Receiver<Event>, done: &Receiver<()>) {
    let mut members: HashMap<usize, Member> = HashMap::new();
    loop {
        let event = select! {
            recv(room) -> event => event,
            recv(done) -> _ => break,
        };
        let (from, line) = match event {
            Err(_) => break,
            Ok(Event::Came(number, member)) => {
                let line = format!("* {} is here\n", member.name);
                _ = member.hears.try_send(format!("welcome, {}\n", member.name));
                members.insert(number, member);
                (number, line)
            }
            Ok(Event::Said(number, text)) => match members.get(&number) {
                Some(member) => (number, format!("{}: {text}\n", member.name)),
                None => continue,
            },
            Ok(Event::Left(number)) => match members.remove(&number) {
                Some(member) => (number, format!("* {} has left\n", member.name)),
                None => continue,
            },
        };
        for (number, member) in &members {
            if *number != from && member.hears.try_send(line.clone()).is_err() {
                _ = member.stream.shutdown(Shutdown::Both); // its reader ends, and sends `Left`
            }
        }
    }
    for member in members.values() {
        _ = member.stream.shutdown(Shutdown::Both);
    }
}

/// A member's life. The first line is its name.
fn attend(number: usize, stream: TcpStream, events: &Sender<Event>) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    (&stream).write_all(b"your name?\n")?;
    let Some(name) = next_line(&mut lines)? else {
        return Ok(());
    };
    let (hears, to_write) = bounded::<String>(PATIENCE);
    let ears = stream.try_clone()?;
    gosched::go(move || {
        for line in to_write {
            if (&ears).write_all(line.as_bytes()).is_err() {
                break;
            }
        }
    });
    let member = Member {
        name,
        hears,
        stream,
    };
    let mut result = events.send(Event::Came(number, member));
    while result.is_ok()
        && let Ok(Some(line)) = next_line(&mut lines)
    {
        result = events.send(Event::Said(number, line));
    }
    _ = events.send(Event::Left(number));
    Ok(())
}

/// The next line without its end; None: there are no more.
fn next_line(lines: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let n = io::Read::take(lines, LINE_MAX).read_line(&mut line)?;
    if n == 0 {
        return Ok(None);
    }
    if !line.ends_with('\n') && n as u64 == LINE_MAX {
        return Err(io::Error::other("a line that is too long"));
    }
    Ok(Some(line.trim_end().to_owned()))
}
