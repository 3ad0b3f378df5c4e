//! Routers: sources send numbers over channels of their own, routers select over all of them and
//! send on, a sink adds up. All actors of one bout are in one runtime.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use gosched::chan::{
    Receiver, Select, Sender, after, bounded, never, select, select_biased, unbounded,
};

use crate::env::{Actor, Member};
use crate::ledger::Token;

struct Flow {
    sent: AtomicU64,
    routed: AtomicU64,
    arrived: AtomicU64,
}

type Item = (u64, Token);

fn verify(flow: &Flow, a: &Actor, is_whole: bool) {
    let [sent, routed, arrived] = [&flow.sent, &flow.routed, &flow.arrived].map(|n| n.load(SeqCst));
    if is_whole {
        let text = format!("sums: {sent} sent, {routed} routed, {arrived} arrived");
        a.expect(sent == routed && routed == arrived, text);
    }
}

fn channel<T>(a: &mut Actor) -> (Sender<T>, Receiver<T>) {
    match a.rng.below(4) {
        0..=1 => bounded(0),
        2 => bounded(a.rng.few(64)),
        _ => unbounded(),
    }
}

pub fn root(a: &mut Actor) {
    while !a.over() {
        bout(a);
        a.nap();
    }
}

fn bout(a: &mut Actor) {
    let group = a.group(
        Flow {
            sent: AtomicU64::new(0),
            routed: AtomicU64::new(0),
            arrived: AtomicU64::new(0),
        },
        verify,
    );
    let me = group.member(); // the sink
    let (mut sources, mut handles) = (Vec::new(), Vec::new());
    let each = a.rng.few(200) as u64;
    for _ in 0..a.rng.few(9) {
        let (s, r) = channel(a);
        let member = group.member();
        handles.push(a.spawn(move |a| {
            for n in 1..=each {
                if s.send((n, a.token())).is_err() {
                    break;
                }
                member.sent.fetch_add(n, SeqCst);
                a.op();
                if a.rng.one_in(8) {
                    a.nap();
                }
                if a.over() {
                    break;
                }
            }
            member.done();
        }));
        sources.push(r);
    }
    let (out, sink) = channel(a);
    for _ in 0..a.rng.few(4) {
        let (member, out, sources) = (group.member(), out.clone(), sources.clone());
        handles.push(a.spawn(move |a| route(a, member, &sources, out)));
    }
    drop((out, sources));
    for (n, token) in sink.iter() {
        token.check();
        group.arrived.fetch_add(n, SeqCst);
        a.op();
    }
    a.join_all(handles);
    me.done();
}

/// Receives from all sources until all have ended.
fn route(a: &mut Actor, member: Member<Flow>, sources: &[Receiver<Item>], out: Sender<Item>) {
    let mut open: Vec<&Receiver<Item>> = sources.iter().collect();
    while !open.is_empty() {
        let item = match a.rng.below(4) {
            0 if open.len() >= 2 => {
                let (one, two, soon) = (open[0], open[1], after(a.rng.micros(300)));
                select! {
                    recv(one) -> item => Some((0, item.ok())),
                    recv(two) -> item => Some((1, item.ok())),
                    recv(soon) -> _ => None,
                }
            }
            1 => {
                let one = open[0];
                select_biased! {
                    recv(one) -> item => Some((0, item.ok())),
                    recv(never::<()>()) -> _ => None,
                    default => None,
                }
            }
            way => choose(a, &open, way == 2),
        };
        match item {
            Some((_, Some(item))) => pass_on(a, &member, &out, item),
            Some((at, None)) => drop(open.swap_remove(at)),
            None => a.nap(),
        }
        if a.rng.one_in(16) && !open.is_empty() {
            let at = a.rng.below(open.len() as u64) as usize;
            open.swap(0, at);
        }
    }
    member.done();
}

/// Receives one item through `Select`.
fn choose(
    a: &mut Actor,
    open: &[&Receiver<Item>],
    is_patient: bool,
) -> Option<(usize, Option<Item>)> {
    let mut sel = if a.rng.one_in(4) {
        Select::new_biased()
    } else {
        Select::new()
    };
    for r in open {
        sel.recv(r);
    }
    if a.rng.one_in(8) {
        let at = sel.ready_timeout(a.rng.micros(300)).ok()?;
        // Another router may have been quicker.
        return match open[at].try_recv() {
            Ok(item) => Some((at, Some(item))),
            Err(error) => error.is_disconnected().then_some((at, None)),
        };
    }
    let chosen = if is_patient {
        sel.select()
    } else {
        sel.select_timeout(a.rng.micros(300)).ok()?
    };
    let at = chosen.index();
    Some((at, chosen.recv(open[at]).ok()))
}

/// Sends it on, in a select that may find no room at first.
fn pass_on(a: &mut Actor, member: &Member<Flow>, out: &Sender<Item>, item: Item) {
    let (n, mut item) = (item.0, Some(item));
    loop {
        let sent = if a.rng.one_in(4) {
            let soon = a.rng.micros(200);
            select! {
                send(out, item.take().expect("chosen once")) -> sent => Some(sent.is_ok()),
                default(soon) => None,
            }
        } else {
            item.take().map(|item| out.send(item).is_ok())
        };
        match sent {
            Some(true) => {
                member.routed.fetch_add(n, SeqCst);
                return a.op();
            }
            // The sink has been unwound.
            Some(false) => return,
            None => a.nap(),
        }
    }
}
