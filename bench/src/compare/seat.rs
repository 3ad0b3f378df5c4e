//! One runtime at one workload: what is started once, and what for every round (see `plan` for the
//! manners).

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::child::{Child, Greeting, Measure, Verdict};
use super::contestants::{self, Contestant};
use super::plan::{Entry, Manner};
use crate::parked::quiet_samples;
use crate::proc::Activity;
use crate::rounds::{Round, Sample};
use crate::servers;

/// How long a watched process may settle before the first sample; it stays idle for as long after
/// the second.
const MARGIN: Duration = Duration::from_millis(500);

pub struct Seat<'c> {
    contestant: &'c Contestant,
    entry: &'static Entry,
    /// The size of its work.
    pub n: usize,
    procs: usize,
    /// What lives from one round to the next.
    playing: Playing,
}

enum Playing {
    Nothing,
    /// A child, and whether its first round was ordered before it was ready.
    Rounds(Child, bool),
    Server(Child, Round),
}

impl<'c> Seat<'c> {
    /// A seat where nothing is started yet.
    pub fn new(
        contestant: &'c Contestant,
        entry: &'static Entry,
        n: usize,
        procs: usize,
    ) -> Seat<'c> {
        Seat {
            contestant,
            entry,
            n: entry.n_for(contestant.name, n),
            procs,
            playing: Playing::Nothing,
        }
    }

    /// Whether this runtime takes part in the workload and is available.
    pub fn check(&self) -> Result<(), Verdict> {
        let is_own_port = |name| {
            let ports = self.entry.workload().ports.iter();
            ports.into_iter().any(|port| port.short == name)
        };
        let name = self.contestant.name;
        let is_asked = match name {
            contestants::HOOKED => self.entry.is_hooked(),
            _ if self.entry.manner == Manner::Alone || self.contestant.is_gosched() => {
                is_own_port(name)
            }
            _ => true,
        };
        match self.entry.manner {
            _ if !is_asked => Err(Verdict::NotAsked),
            // The benchmark itself runs it, whether or not the runtime's own program exists.
            Manner::Alone => Ok(()),
            _ => self.contestant.is_there(),
        }
    }

    /// Starts what lives from one round to the next.
    pub fn make_ready(&mut self, limit: Duration) -> Result<(), Verdict> {
        self.playing = match self.entry.manner {
            Manner::Rounds | Manner::Alone => Playing::Rounds(self.ready_child(limit)?, false),
            Manner::Cold | Manner::Fresh => {
                let mut child = self.start()?;
                child.begin_early();
                Playing::Rounds(child, true)
            }
            Manner::Server | Manner::ColdServer => {
                let (child, client) = self.server(limit)?;
                Playing::Server(child, client)
            }
            Manner::Watched | Manner::FreshServer => Playing::Nothing,
        };
        Ok(())
    }

    pub fn round(&mut self, limit: Duration) -> Result<Vec<Measure>, Verdict> {
        match (&mut self.playing, self.entry.manner) {
            (Playing::Rounds(child, is_ordered), _) => match std::mem::take(is_ordered) {
                true => ordered_round(child, limit),
                false => child.round(limit),
            },
            (Playing::Server(child, client), _) => load(child, client, limit),
            (Playing::Nothing, Manner::Watched) if !self.contestant.is_gosched() => {
                self.watch(limit)
            }
            (Playing::Nothing, Manner::FreshServer) => {
                let (mut child, mut client) = self.server(limit)?;
                // A warm-up, because every round is the server's first.
                load(&mut child, &mut client, limit)?;
                load(&mut child, &mut client, limit)
            }
            (Playing::Nothing, _) => {
                let mut child = self.ready_child(limit)?;
                let figures = child.round(limit)?;
                child.finish()?;
                Ok(figures)
            }
        }
    }

    /// Ends what lives from one round to the next.
    pub fn put_away(&mut self) -> Result<(), Verdict> {
        match std::mem::replace(&mut self.playing, Playing::Nothing) {
            Playing::Nothing => Ok(()),
            Playing::Rounds(child, _) => child.finish(),
            Playing::Server(child, client) => {
                drop(client);
                child.finish()
            }
        }
    }

    fn start(&self) -> Result<Child, Verdict> {
        let is_alone = self.entry.manner == Manner::Alone;
        let mut command = self
            .contestant
            .command(self.entry.name, self.n, self.procs, is_alone)?;
        Child::start(&mut command)
    }

    fn ready_child(&self, limit: Duration) -> Result<Child, Verdict> {
        let mut child = self.start()?;
        greet(&mut child, limit)?;
        Ok(child)
    }

    /// A server and its client, connected.
    fn server(&self, limit: Duration) -> Result<(Child, Round), Verdict> {
        let mut child = self.start()?;
        let Greeting::Port(port) = child.greeting(limit)? else {
            return Err(Verdict::Failed("it printed no port".into()));
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let pid = child.pid();
        let client = guarded(&mut child, limit, || {
            servers::client(self.entry.name, self.n, address, pid)
        })?;
        Ok((child, client))
    }

    /// A round that is measured from outside.
    fn watch(&self, limit: Duration) -> Result<Vec<Measure>, Verdict> {
        let mut child = self.ready_child(limit)?;
        child.begin()?;
        let pid = child.pid();
        let look = |child: &mut Child| Activity::of(pid).map_err(|error| blame(child, &error));
        std::thread::sleep(MARGIN);
        let before = look(&mut child)?;
        std::thread::sleep(Duration::from_secs(self.n as u64));
        let after = look(&mut child)?;
        child.figures(limit)?;
        child.finish()?;
        Ok(told(&quiet_samples(&after.since(&before))))
    }
}

/// Waits until a child is ready for rounds.
fn greet(child: &mut Child, limit: Duration) -> Result<(), Verdict> {
    match child.greeting(limit)? {
        Greeting::Ready => Ok(()),
        Greeting::Port(_) => Err(Verdict::Failed("it serves, but should not".into())),
    }
}

/// The round that was ordered before the child was ready.
fn ordered_round(child: &mut Child, limit: Duration) -> Result<Vec<Measure>, Verdict> {
    greet(child, limit)?;
    child.figures(limit)
}

/// A round of a client with its server.
fn load(child: &mut Child, client: &mut Round, limit: Duration) -> Result<Vec<Measure>, Verdict> {
    guarded(child, limit, client).map(|samples| told(&samples))
}

/// Samples in the form of a child's answer.
fn told(samples: &[Sample]) -> Vec<Measure> {
    let told = samples.iter().map(|sample| Measure {
        metric: sample.metric.into(),
        value: sample.value,
        unit: sample.unit.into(),
    });
    told.collect()
}

/// Uses a server, which is killed if that takes too long.
fn guarded<T>(
    child: &mut Child,
    limit: Duration,
    act: impl FnOnce() -> io::Result<T>,
) -> Result<T, Verdict> {
    let watchdog = child.watchdog(limit);
    let result = act();
    if watchdog.call_off() {
        return Err(Verdict::stalled_after(limit));
    }
    result.map_err(|error| blame(child, &error))
}

/// Why using a child failed: it has ended, or else the error itself.
fn blame(child: &mut Child, error: &io::Error) -> Verdict {
    match child.has_ended() {
        true => child.why_it_ended(),
        false => Verdict::failed(&error.to_string()),
    }
}
