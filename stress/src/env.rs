//! What the actors of a round share, and what an actor can do.
//!
//! An *actor* runs a closure of a mix: a goroutine of one of the round's runtimes, or a plain
//! thread. It has its own random numbers, and can tell when the round is over. A *group* is data
//! that several actors work on. The last actor to leave checks the result. If an actor did not
//! finish, the check is weaker.

use std::any::Any;
use std::fmt::Display;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::time::Duration;

use gosched::thread::{self, Exited, JoinHandle};
use gosched::{Handle, Runtime};

use crate::ledger::{Ledger, Ticket, Token};
use crate::plan::Plan;
use crate::rng::Rng;

/// The payload of a planned panic.
pub struct Planned;

/// A round, as its actors see it.
pub struct Env {
    pub plan: Plan,
    pub ledger: Arc<Ledger>,
    /// All actors are to end.
    pub stop: AtomicBool,
    /// A runtime is being ended: it may refuse requests, and joins may return `Exited`.
    pub is_ending: AtomicBool,
    /// The system refuses threads all the time.
    pub has_no_threads: AtomicBool,
    pub here: Handle,
    pub there: Option<Handle>,
    pub seeds: AtomicU64,
    /// How many goroutines may still be started beside those that live.
    pub room: AtomicI64,
}

impl Env {
    /// Whether an error for lack of memory is allowed.
    pub fn may_refuse(&self) -> bool {
        self.plan.inject.map || self.is_ending.load(SeqCst)
    }

    /// Counts a refused goroutine, unless a runtime is ending.
    pub fn goroutine_refused(&self) {
        if self.plan.inject.map && !self.is_ending.load(SeqCst) {
            self.ledger.refused_goroutines.fetch_add(1, Relaxed);
        }
    }

    /// A root actor of a mix.
    pub fn actor(self: &Arc<Env>, mix: usize) -> Actor {
        let seed = self.seeds.fetch_add(0x632B_E593, SeqCst);
        Actor {
            env: Arc::clone(self),
            mix,
            rng: Rng::new(seed ^ (mix as u64) << 48),
        }
    }
}

/// Where an actor runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the runtime of the actor that starts it.
    Same,
    Here,
    There,
    Thread,
}

/// A goroutine or plain thread that runs a closure of a mix.
pub struct Actor {
    pub env: Arc<Env>,
    pub mix: usize,
    pub rng: Rng,
}

/// Room for one goroutine, returned with its closure.
pub struct Room(Arc<Env>);

impl Drop for Room {
    fn drop(&mut self) {
        self.0.room.fetch_add(1, SeqCst);
    }
}

/// A plain thread's entry in the ledger.
struct AtWork(Arc<Ledger>, usize);

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.columns[self.1].threads.fetch_sub(1, SeqCst);
    }
}

impl Actor {
    /// Whether the actor is to end.
    pub fn over(&self) -> bool {
        self.env.stop.load(Relaxed)
    }

    /// Counts an operation.
    pub fn op(&self) {
        self.env.ledger.columns[self.mix].ops.fetch_add(1, Relaxed);
    }

    /// Checks an invariant; `text` is the complaint if it does not hold.
    pub fn expect(&self, holds: bool, text: impl Display) {
        self.env.ledger.checks.fetch_add(1, Relaxed);
        if !holds {
            self.complain(text);
        }
    }

    /// Records a failure.
    pub fn complain(&self, text: impl Display) {
        let name = crate::mixes::ALL[self.mix].name;
        self.env.ledger.complain(format_args!("{name}: {text}"));
    }

    /// A value's entry in the ledger.
    pub fn token(&self) -> Token {
        Token::new(&self.env.ledger, self.mix)
    }

    /// The ledger entry of a value with an open file.
    pub fn file(&self) -> Token {
        Token::files(&self.env.ledger, self.mix, 1)
    }

    /// Whether other actors may be abandoned at any point, so that no actor may wait for them
    /// without a timeout.
    pub fn may_hang(&self) -> bool {
        self.env.plan.may_abandon()
    }

    /// Pauses for a moment, in a random way.
    pub fn nap(&mut self) {
        match self.rng.below(24) {
            0..=8 => thread::yield_now(),
            9..=10 => thread::sleep(self.rng.micros(300)),
            11 => thread::park_timeout(self.rng.micros(200)),
            12..=14 => (0..self.rng.below(600)).for_each(|_| std::hint::spin_loop()),
            15 => {
                let time = self.rng.micros(60);
                gosched::blocking(|| std::thread::sleep(time));
            }
            _ => {}
        }
    }

    /// A closure for another actor of the same mix.
    fn body<T, F>(&mut self, f: F) -> impl FnOnce() -> T + use<T, F>
    where
        F: FnOnce(&mut Actor) -> T,
    {
        let mut ticket = Ticket::new(&self.env.ledger, self.mix);
        let mut actor = Actor {
            env: Arc::clone(&self.env),
            mix: self.mix,
            rng: Rng::new(self.rng.next()),
        };
        move || {
            ticket.run();
            let value = f(&mut actor);
            drop(ticket);
            value
        }
    }

    /// Room for one more goroutine, if there is any.
    pub fn room(&self) -> Option<Room> {
        if self.env.room.fetch_sub(1, SeqCst) <= 0 {
            self.env.room.fetch_add(1, SeqCst);
            return None;
        }
        Some(Room(Arc::clone(&self.env)))
    }

    /// A closure for a goroutine, if there is room for one.
    pub fn goroutine<T, F>(&mut self, f: F) -> Option<impl FnOnce() -> T + use<T, F>>
    where
        F: FnOnce(&mut Actor) -> T,
    {
        let room = self.room()?;
        Some(self.goroutine_in(room, f))
    }

    /// As `goroutine`, with the room already taken.
    pub fn goroutine_in<T, F>(&mut self, room: Room, f: F) -> impl FnOnce() -> T + use<T, F>
    where
        F: FnOnce(&mut Actor) -> T,
    {
        let body = self.body(f);
        move || {
            let _room = room;
            body()
        }
    }

    /// The spawned goroutine, or None if it was refused, which must have a reason.
    pub fn accept<H>(&self, spawned: std::io::Result<H>) -> Option<H> {
        match spawned {
            Ok(handle) => Some(handle),
            Err(_) if self.env.may_refuse() => {
                self.env.goroutine_refused();
                None
            }
            Err(error) => {
                self.complain(format_args!("a goroutine was refused: {error}"));
                None
            }
        }
    }

    /// Starts a goroutine in the caller's runtime.
    pub fn spawn<T: Send + 'static>(
        &mut self,
        f: impl FnOnce(&mut Actor) -> T + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let body = self.goroutine(f)?;
        self.accept(thread::Builder::new().spawn(body))
    }

    /// Starts a plain thread.
    pub fn thread(&mut self, f: impl FnOnce(&mut Actor) + Send + 'static) {
        let ledger = Arc::clone(&self.env.ledger);
        ledger.columns[self.mix].threads.fetch_add(1, SeqCst);
        let at_work = AtWork(ledger, self.mix);
        let body = self.body(f);
        let named = std::thread::Builder::new().name("plain".into());
        let spawned = named.spawn(move || {
            let _at_work = at_work;
            body();
        });
        if let Err(error) = spawned {
            self.complain(format_args!("no thread: {error}"));
        }
    }

    /// Starts an actor somewhere; threads are not joined.
    pub fn start<T: Send + 'static>(
        &mut self,
        place: Place,
        f: impl FnOnce(&mut Actor) -> T + Send + 'static,
    ) -> Option<JoinHandle<T>> {
        let handle = match (place, &self.env.there) {
            (Place::Same, _) => return self.spawn(f),
            (Place::Thread, _) => {
                self.thread(|actor| drop(f(actor)));
                return None;
            }
            (Place::There, Some(there)) => there.clone(),
            _ => self.env.here.clone(),
        };
        let body = self.goroutine(f)?;
        self.accept(handle.try_spawn(body))
    }

    /// A random place, mostly in a runtime.
    pub fn place(&mut self) -> Place {
        match self.rng.below(8) {
            0 => Place::Thread,
            1 => Place::Here,
            2..=3 => Place::There,
            _ => Place::Same,
        }
    }

    /// Joins a goroutine; None if it did not finish, which must have a reason.
    pub fn join<T>(&self, handle: JoinHandle<T>) -> Option<T> {
        match handle.join() {
            Ok(value) => Some(value),
            Err(payload) => {
                self.judge(payload.as_ref());
                None
            }
        }
    }

    /// Checks that a goroutine may have ended in this way. The panic hook complains of unplanned
    /// panics.
    pub fn judge(&self, payload: &(dyn Any + Send)) {
        if payload.is::<Exited>() {
            let is_legal = self.env.is_ending.load(SeqCst);
            self.expect(is_legal, "a join returned Exited");
        }
    }

    pub fn join_all<T>(&self, handles: Vec<Option<JoinHandle<T>>>) {
        for handle in handles.into_iter().flatten() {
            self.join(handle);
        }
    }

    /// A group around some data.
    pub fn group<T>(&self, data: T, verify: fn(&T, &Actor, bool)) -> Arc<Group<T>> {
        Arc::new(Group {
            data,
            verify,
            is_spoiled: AtomicBool::new(false),
            actor: Actor {
                env: Arc::clone(&self.env),
                mix: self.mix,
                rng: self.rng.clone(),
            },
        })
    }
}

/// Data that several actors work on; see the head of this file.
pub struct Group<T> {
    data: T,
    verify: fn(&T, &Actor, bool),
    is_spoiled: AtomicBool,
    actor: Actor,
}

impl<T> Group<T> {
    /// A member of the group.
    pub fn member(self: &Arc<Group<T>>) -> Member<T> {
        Member {
            group: Arc::clone(self),
            is_done: false,
        }
    }
}

impl<T> Deref for Group<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

impl<T> Drop for Group<T> {
    fn drop(&mut self) {
        (self.verify)(&self.data, &self.actor, !*self.is_spoiled.get_mut());
    }
}

/// One actor's part in a group.
pub struct Member<T> {
    group: Arc<Group<T>>,
    is_done: bool,
}

impl<T> Member<T> {
    /// The actor has finished its part.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl<T> Deref for Member<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.group.data
    }
}

impl<T> Drop for Member<T> {
    fn drop(&mut self) {
        if !self.is_done {
            self.group.is_spoiled.store(true, SeqCst);
        }
    }
}

/// Ends a planned panic, and resumes any other.
pub fn resume_unplanned(payload: Box<dyn Any + Send>) {
    if !payload.is::<Planned>() {
        std::panic::resume_unwind(payload);
    }
}

/// A runtime that a mix makes for itself.
pub fn small_runtime(actor: &mut Actor) -> Option<Runtime> {
    let procs = actor.rng.within(1, 3);
    let mut builder = Runtime::builder().procs(procs).name("small");
    if !actor.env.plan.own {
        // SAFETY: only this program's code runs there. In a round with shared thread-locals it
        // keeps nothing of a thread-local over a call (D6).
        builder = unsafe { builder.shared_thread_locals() };
    }
    match builder.build() {
        Ok(runtime) => Some(runtime),
        Err(_) if actor.env.plan.inject.map || actor.env.plan.inject.thread => None,
        Err(error) => {
            actor.complain(format_args!("no runtime: {error}"));
            None
        }
    }
}

/// How long an actor waits for one more event before it checks whether the round is over.
pub const TURN: Duration = Duration::from_millis(20);
