//! Contexts: the end of one ends all below it, and nothing above.

use std::time::{Duration, Instant};

use gosched::chan::{never, select};
use gosched::context::{Context, ContextError};

use crate::env::Actor;

pub fn root(a: &mut Actor) {
    while !a.over() {
        tree(a);
        a.nap();
    }
}

/// A context, and the index of its parent.
struct Node {
    context: Context,
    above: Option<usize>,
    /// It or an ancestor was cancelled.
    is_cancelled: bool,
}

fn tree(a: &mut Actor) {
    let background = Context::background();
    let mut nodes: Vec<Node> = Vec::new();
    for _ in 0..a.rng.few(20) {
        let above = match nodes.len() {
            0 => None,
            n => Some(a.rng.below(n as u64 + 1) as usize).filter(|at| *at < n),
        };
        let parent = above.map_or(&background, |at| &nodes[at].context);
        let context = match a.rng.below(4) {
            0 => parent.with_timeout(a.rng.micros(4000)),
            1 => parent.with_deadline(Instant::now() + Duration::from_secs(3600)),
            _ => parent.with_cancel(),
        };
        nodes.push(Node {
            context,
            above,
            is_cancelled: false,
        });
    }
    let mut handles = Vec::new();
    for node in &nodes {
        for _ in 0..a.rng.below(3) {
            let context = node.context.clone();
            handles.push(a.spawn(move |a| wait(a, &context)));
        }
    }
    for _ in 0..a.rng.few(8) {
        let at = a.rng.below(nodes.len() as u64) as usize;
        cancel(a, &mut nodes, at);
        a.nap();
    }
    look(a, &nodes);
    // Cancels the rest, so that no goroutine waits for an hour.
    for node in &nodes {
        node.context.cancel();
        a.expect(
            node.context.err().is_some(),
            "a context that was cancelled goes on",
        );
    }
    a.join_all(handles);
    a.expect(background.err().is_none(), "the background has ended");
}

fn cancel(a: &mut Actor, nodes: &mut [Node], at: usize) {
    nodes[at].context.cancel();
    nodes[at].is_cancelled = true;
    // Descendants come later in the list.
    for below in at + 1..nodes.len() {
        if nodes[below]
            .above
            .is_some_and(|above| nodes[above].is_cancelled)
        {
            nodes[below].is_cancelled = true;
        }
    }
    a.op();
}

/// Checks that each has ended if it should have, and for the right reason.
fn look(a: &mut Actor, nodes: &[Node]) {
    for node in nodes {
        let error = node.context.err();
        let is_due = node
            .context
            .deadline()
            .is_some_and(|due| due <= Instant::now());
        match error {
            None => a.expect(
                !node.is_cancelled,
                "a context below a cancelled one goes on",
            ),
            Some(ContextError::Canceled) => a.expect(node.is_cancelled, "it was not cancelled"),
            Some(ContextError::DeadlineExceeded) => a.expect(is_due, "a deadline was early"),
        }
        let is_closed = node
            .context
            .done()
            .try_recv()
            .is_err_and(|e| e.is_disconnected());
        a.expect(error.is_none() || is_closed, "done is open after the end");
    }
}

fn wait(a: &mut Actor, context: &Context) {
    if a.rng.one_in(2) {
        a.expect(context.done().recv().is_err(), "a value came from done");
    } else {
        loop {
            let soon = a.rng.micros(2000);
            select! {
                recv(context.done()) -> _ => break,
                recv(never::<()>()) -> _ => a.complain("never came"),
                default(soon) => {}
            }
        }
    }
    a.expect(
        context.err().is_some(),
        "done is closed, and there is no reason",
    );
    a.op();
}
