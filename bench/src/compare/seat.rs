//! Decides how one runtime has its turns at one workload, in each manner (see
//! `plan`): what is made ready once, and what for every round.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::child::{Child, Greeting, Measure, Verdict};
use super::contestants::Contestant;
use super::plan::{Entry, Manner};
use crate::parked::quiet_samples;
use crate::proc::Activity;
use crate::rounds::{Round, Sample};
use crate::servers;

/// How long the watched come to rest before the first look; they stay so for as
/// long after the second.
const MARGIN: Duration = Duration::from_millis(500);

/// A runtime at a workload.
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
    Nobody,
    Rounds(Child),
    Server(Child, Round),
}

impl<'c> Seat<'c> {
    /// Nothing is started yet.
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
            playing: Playing::Nobody,
        }
    }

    /// Whether this runtime is asked at all, and to be had.
    pub fn check(&self) -> Result<(), Verdict> {
        let is_own_port = |name| {
            let ports = self.entry.workload().ports.iter();
            ports.into_iter().any(|port| port.short == name)
        };
        match (self.entry.manner, is_own_port(self.contestant.name)) {
            // The benchmark itself plays it, whether its own program is there or not.
            (Manner::Alone, true) => Ok(()),
            (Manner::Alone, false) => Err(Verdict::NotAsked),
            _ => self.contestant.is_there(),
        }
    }

    /// Makes ready what lives from one round to the next.
    pub fn make_ready(&mut self, limit: Duration) -> Result<(), Verdict> {
        self.playing = match self.entry.manner {
            Manner::Rounds | Manner::Alone => Playing::Rounds(self.ready_child(limit)?),
            Manner::Server => {
                let (child, client) = self.server(limit)?;
                Playing::Server(child, client)
            }
            Manner::Fresh | Manner::Watched | Manner::FreshServer => Playing::Nobody,
        };
        Ok(())
    }

    /// Does a round.
    pub fn round(&mut self, limit: Duration) -> Result<Vec<Measure>, Verdict> {
        match (&mut self.playing, self.entry.manner) {
            (Playing::Rounds(child), _) => child.round(limit),
            (Playing::Server(child, client), _) => load(child, client, limit),
            (Playing::Nobody, Manner::Watched) if !self.contestant.is_gosched() => {
                self.watch(limit)
            }
            (Playing::Nobody, Manner::FreshServer) => {
                let (mut child, mut client) = self.server(limit)?;
                // Its warm-up, as every round is its first.
                load(&mut child, &mut client, limit)?;
                load(&mut child, &mut client, limit)
            }
            (Playing::Nobody, _) => {
                let mut child = self.ready_child(limit)?;
                let figures = child.round(limit)?;
                child.finish()?;
                Ok(figures)
            }
        }
    }

    /// Ends it.
    pub fn put_away(self) -> Result<(), Verdict> {
        match self.playing {
            Playing::Nobody => Ok(()),
            Playing::Rounds(child) => child.finish(),
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
        match child.greeting(limit)? {
            Greeting::Ready => Ok(child),
            Greeting::Port(_) => Err(Verdict::Failed("it serves, and should not".into())),
        }
    }

    /// A server and its client, connected.
    fn server(&self, limit: Duration) -> Result<(Child, Round), Verdict> {
        let mut child = self.start()?;
        let Greeting::Port(port) = child.greeting(limit)? else {
            return Err(Verdict::Failed("it says no port".into()));
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let pid = child.pid();
        let client = guarded(&mut child, limit, || {
            servers::client(self.entry.name, self.n, address, pid)
        })?;
        Ok((child, client))
    }

    /// A round that is watched from outside.
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

/// A round of a client with its server.
fn load(child: &mut Child, client: &mut Round, limit: Duration) -> Result<Vec<Measure>, Verdict> {
    guarded(child, limit, client).map(|samples| told(&samples))
}

/// Samples, as a child would tell them.
fn told(samples: &[Sample]) -> Vec<Measure> {
    let told = samples.iter().map(|sample| Measure {
        metric: sample.metric.into(),
        value: sample.value,
        unit: sample.unit.into(),
    });
    told.collect()
}

/// Does something with a server, which is killed if that takes too long.
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

/// Why something with a child went wrong: it has ended, or else the error itself.
fn blame(child: &mut Child, error: &io::Error) -> Verdict {
    match child.has_ended() {
        true => child.why_it_ended(),
        false => Verdict::failed(&error.to_string()),
    }
}
