//! When a lookup or a dial gives up: a moment, a context, or both.
//!
//! A goroutine waits for one thing at a time, apart from channels. So a helper beside the caller
//! does the waiting that no channel can do. The helper is a goroutine of the caller's runtime. For
//! a plain thread it is a thread.

use std::io;
use std::time::Instant;

use crate::chan::{self, Receiver, Sender, select};
use crate::context::Context;
use crate::sched::model::current::current_g;
use crate::sched::sources::netpoll::{Desc, Side};
use crate::thread;

/// The limit of one call.
#[derive(Clone, Copy)]
pub(super) struct Limit<'a> {
    deadline: Option<Instant>,
    /// None: the background context.
    ctx: Option<&'a Context>,
}

impl<'a> Limit<'a> {
    pub(super) const NONE: Limit<'static> = Limit {
        deadline: None,
        ctx: None,
    };

    pub(super) fn new(deadline: Option<Instant>, ctx: Option<&'a Context>) -> Limit<'a> {
        Limit {
            deadline,
            ctx: ctx.filter(|ctx| ctx.may_end()),
        }
    }

    pub(super) fn is_none(&self) -> bool {
        self.deadline.is_none() && self.ctx.is_none()
    }

    /// The earlier of both deadlines.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let deadlines = [self.deadline, self.ctx.and_then(Context::deadline)];
        deadlines.into_iter().flatten().min()
    }

    /// A channel that gets a message at the deadline.
    pub(super) fn timer(&self) -> Receiver<Instant> {
        self.deadline.map_or_else(chan::never, chan::at)
    }

    /// A channel that closes when the context ends.
    pub(super) fn done(&self) -> Receiver<()> {
        self.ctx.map_or_else(chan::never, |ctx| ctx.done().clone())
    }

    /// Fails if the call has to give up. `late` is the text after the deadline.
    pub(super) fn check(&self, late: &'static str) -> io::Result<()> {
        let is_late = self.deadline.is_some_and(|at| at <= Instant::now());
        match is_late || self.ctx.is_some_and(|ctx| ctx.err().is_some()) {
            true => Err(self.error(late)),
            false => Ok(()),
        }
    }

    /// The error of a call that has given up.
    pub(super) fn error(&self, late: &'static str) -> io::Error {
        match self.ctx.and_then(Context::err) {
            Some(reason) => reason.into(),
            None => io::Error::new(io::ErrorKind::TimedOut, late),
        }
    }

    /// Lets the deadline and the context end reads of a descriptor that nothing else uses. The
    /// context does so until the result is dropped, and may once more right after that.
    pub(super) fn cut(&self, desc: &Desc) -> io::Result<Option<Watch>> {
        desc.set_deadline(Side::Read, self.deadline());
        let Some(ctx) = self.ctx else {
            return Ok(None);
        };
        let (done, desc) = (ctx.done().clone(), desc.share());
        let (watch, is_over) = chan::bounded(0);
        start_beside("gosched-cancel", move || {
            select! {
                recv(is_over) -> _ => {}
                recv(done) -> _ => desc.set_deadline(Side::Read, Some(Instant::now())),
            }
        })?;
        Ok(Some(Watch(watch)))
    }
}

/// A helper that waits for the end of a context. Dropping it ends the helper.
pub(super) struct Watch(#[expect(dead_code, reason = "its drop is the message")] Sender<()>);

/// Runs `f` beside the caller: on a goroutine, or on a thread if the caller is a plain thread.
pub(super) fn start_beside(name: &str, f: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let name = name.to_owned();
    match current_g() {
        Some(_) => thread::Builder::new().name(name).spawn(f).map(drop),
        None => std::thread::Builder::new().name(name).spawn(f).map(drop),
    }
}
