//! Traffic at random on a channel of capacity 0 to 200, or an unbounded one. There are 1 to 64
//! senders and as many receivers: goroutines of two runtimes and plain threads. They use every way
//! to send and to receive, come and go, time out, and panic in their messages. In the middle of it
//! the channel ends in one of several ways. Every value is in a *ledger*: when it was made, sent,
//! received and dropped.
//!
//! ```text
//!  drained    the senders end one by one    every value that was sent is received
//!  closed     the channel is closed         the same, and later senders get their value back
//!  deserted   the receivers leave           values that they did not take are dropped
//!  shut down  one runtime unwinds           as drained, as far as receivers are left
//!  dropped    one runtime is dropped        values that its goroutines held are lost with them
//! ```
//!
//! Whatever happens, no value is received twice or dropped twice, and each receiver gets those of
//! one sender in order.
//!
//! `GOSCHED_STRESS_SEED` repeats a run (as far as threads can be repeated), `GOSCHED_STRESS_SECS`
//! sets its length. A round that hangs ends the process with the seed and a dump.

use std::fmt::Display;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use gosched::chan::{Receiver, Sender, bounded, unbounded};

use super::traffic::{receiver, sender};
use super::*;
use crate::common::{Now, Rng, chaos, child_with, env, rounds, seed};

/// How the channel of a round ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Drained,
    Closed,
    Deserted,
    Shutdown,
    Dropped,
}

// What has become of a value.
const SENT: u8 = 1;
const RECEIVED: u8 = 2;
const DROPPED: u8 = 4;

/// What all goroutines and threads of a round share.
pub(crate) struct Round {
    pub(crate) ending: Ending,
    /// One entry per value: of sender n the `each` from n * each on.
    ledger: Vec<AtomicU8>,
    pub(crate) each: usize,
    pub(crate) made: AtomicUsize,
    pub(crate) dropped: AtomicUsize,
    /// Receivers that saw the end.
    pub(crate) drained: AtomicUsize,
    /// Receivers are to leave.
    pub(crate) is_deserted: AtomicBool,
    complaints: Mutex<Vec<String>>,
    seeds: AtomicU64,
}

impl Round {
    pub(crate) fn complain(&self, text: impl Display) {
        self.complaints.lock().unwrap().push(text.to_string());
    }

    pub(crate) fn rng(&self) -> Rng {
        Rng::new(self.seeds.fetch_add(0x632B_E593, SeqCst))
    }

    fn mark(&self, value: usize, what: u8) {
        let before = self.ledger[value].fetch_or(what, SeqCst);
        if before & what != 0 {
            self.complain(format_args!("value {value}: {what} for the second time"));
        }
    }

    pub(crate) fn sent(&self, value: usize) {
        self.mark(value, SENT);
    }

    pub(crate) fn received(&self, value: usize) {
        self.mark(value, RECEIVED);
    }

    fn count(&self, what: u8) -> usize {
        let entries = self.ledger.iter().map(|entry| entry.load(SeqCst));
        entries.filter(|entry| entry & what == what).count()
    }
}

/// A value: `WORDS` more words make it small or large.
pub(crate) struct Value<const WORDS: usize> {
    pub(crate) round: Arc<Round>,
    pub(crate) number: usize,
    words: [usize; WORDS],
}

impl<const WORDS: usize> Value<WORDS> {
    pub(crate) fn new(round: &Arc<Round>, number: usize) -> Value<WORDS> {
        round.made.fetch_add(1, SeqCst);
        Value {
            round: Arc::clone(round),
            number,
            words: [number; WORDS],
        }
    }

    pub(crate) fn check(&self) {
        if self.words != [self.number; WORDS] {
            self.round
                .complain(format_args!("{} arrived as {:?}", self.number, self.words));
        }
    }
}

impl<const WORDS: usize> Drop for Value<WORDS> {
    fn drop(&mut self) {
        self.check();
        self.round.mark(self.number, DROPPED);
        self.round.dropped.fetch_add(1, SeqCst);
    }
}

/// So many, mostly few.
fn crowd(rng: &mut Rng) -> usize {
    let most = 1 << rng.below(7);
    1 + rng.below(most) as usize
}

/// Where a sender or receiver runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    There,
    Thread,
}

/// The two runtimes of a round, and its goroutines and threads.
struct Places {
    here: Runtime,
    there: Option<Runtime>,
    threads: Vec<std::thread::JoinHandle<()>>,
    goroutines: Vec<gosched::thread::JoinHandle<()>>,
}

impl Places {
    fn start(&mut self, place: Place, body: impl FnOnce() + Send + 'static) {
        match (place, &self.there) {
            (Place::Thread, _) => self.threads.push(std::thread::spawn(body)),
            (Place::There, Some(there)) => self.goroutines.push(there.spawn(body)),
            _ => self.goroutines.push(self.here.spawn(body)),
        }
    }

    fn random(&self, rng: &mut Rng) -> Place {
        match rng.below(8) {
            0 if self.threads.len() < 8 => Place::Thread,
            1..=3 => Place::There,
            _ => Place::Here,
        }
    }

    fn join(self) {
        for one in self.threads {
            one.join().unwrap();
        }
        for one in self.goroutines {
            if let Err(payload) = one.join()
                && !payload.is::<gosched::thread::Exited>()
            {
                std::panic::resume_unwind(payload);
            }
        }
    }
}

/// One channel, from beginning to end.
fn run_round<const WORDS: usize>(seed: u64, procs: usize, now: &Now) {
    let mut rng = Rng::new(seed);
    let ending = match rng.below(12) {
        0..=1 => Ending::Closed,
        2..=3 => Ending::Deserted,
        4 if cfg!(panic = "unwind") => Ending::Shutdown,
        5 => Ending::Dropped,
        _ => Ending::Drained,
    };
    let cap = match rng.below(8) {
        0..=2 => Some(0),
        3 => None,
        4 => Some(1 + rng.below(4) as usize),
        _ => Some(1 + rng.below(200) as usize),
    };
    let (senders, receivers) = (crowd(&mut rng), crowd(&mut rng));
    let each = 1 + rng.below(2000) as usize / senders;
    let round = Arc::new(Round {
        ending,
        ledger: (0..senders * each).map(|_| AtomicU8::new(0)).collect(),
        each,
        made: AtomicUsize::new(0),
        dropped: AtomicUsize::new(0),
        drained: AtomicUsize::new(0),
        is_deserted: AtomicBool::new(false),
        complaints: Mutex::default(),
        seeds: AtomicU64::new(rng.next()),
    });
    let mut places = Places {
        here: runtime(procs),
        there: Some(runtime(1 + rng.below(2) as usize)),
        threads: Vec::new(),
        goroutines: Vec::new(),
    };
    let what = format!(
        "round {seed:#x}: {senders} senders, {receivers} receivers, capacity {cap:?}, {ending:?}"
    );
    now.begin(what.clone(), places.here.handle());
    let (s, r) = cap.map_or_else(unbounded, bounded::<Value<WORDS>>);
    start_all(
        &mut places,
        &round,
        &mut rng,
        (senders, receivers),
        (&s, &r),
    );
    end(&mut places, &round, &mut rng, s, r);
    let there = places.there.take();
    let here = places.here.handle();
    places.join();
    drop(there);
    settle(&round, &what, &here);
}

/// Starts senders and receivers, in random order and places.
fn start_all<const WORDS: usize>(
    places: &mut Places,
    round: &Arc<Round>,
    rng: &mut Rng,
    (senders, receivers): (usize, usize),
    (s, r): (&Sender<Value<WORDS>>, &Receiver<Value<WORDS>>),
) {
    let (mut sending, mut receiving) = (0, 0);
    while sending < senders || receiving < receivers {
        let place = places.random(rng);
        let shared = Arc::clone(round);
        if sending < senders && (receiving == receivers || rng.one_in(2)) {
            let (s, number) = (s.clone(), sending);
            places.start(place, move || sender(&shared, number, s, place));
            sending += 1;
        } else if receiving < receivers {
            let r = r.clone();
            places.start(place, move || receiver(&shared, r));
            receiving += 1;
        }
    }
}

/// Brings the end about, at a random moment.
fn end<const WORDS: usize>(
    places: &mut Places,
    round: &Round,
    rng: &mut Rng,
    s: Sender<Value<WORDS>>,
    r: Receiver<Value<WORDS>>,
) {
    std::thread::sleep(Duration::from_micros(rng.below(2000)));
    match round.ending {
        Ending::Drained => drop(r),
        Ending::Closed => {
            if !(if rng.one_in(2) { s.close() } else { r.close() }) {
                round.complain("somebody else has closed it");
            }
        }
        Ending::Deserted => {
            round.is_deserted.store(true, SeqCst);
            drop(r);
        }
        Ending::Shutdown => {
            drop((s, r));
            let there = places.there.take();
            there.into_iter().for_each(|there| there.shutdown(LONG))
        }
        Ending::Dropped => {
            drop(places.there.take());
            // Abandoned goroutines keep their handles for ever.
            std::thread::sleep(Duration::from_micros(rng.below(2000)));
            s.close();
        }
    }
}

/// The round is over: the ledger is closed.
fn settle(round: &Round, what: &str, _here: &Handle) {
    let (sent, received) = (round.count(SENT), round.count(RECEIVED));
    let (made, dropped) = (round.made.load(SeqCst), round.dropped.load(SeqCst));
    let complaints = round.complaints.lock().unwrap();
    assert!(complaints.is_empty(), "{what}: {complaints:#?}");
    if round.ending == Ending::Dropped {
        return assert!(dropped <= made && received <= made, "{what}");
    }
    assert_eq!(dropped, made, "{what}: values that were made and dropped");
    let both = round.count(SENT | RECEIVED);
    assert_eq!(both, received, "{what}: what was received had been sent");
    if round.drained.load(SeqCst) > 0 {
        assert_eq!(received, sent, "{what}: what was sent was received");
    }
}

/// Rounds for some seconds.
fn stress(procs: usize, seed: u64) {
    let what = format!("channels with {procs} Ps, GOSCHED_STRESS_SEED={seed}");
    let mut rng = Rng::new(seed ^ procs as u64);
    rounds(&what, 2.0, |now| match rng.below(3) {
        0 => run_round::<0>(rng.next(), procs, now),
        1 => run_round::<3>(rng.next(), procs, now),
        _ => run_round::<20>(rng.next(), procs, now),
    });
}

#[test]
fn stress_1_p() {
    stress(1, seed());
}

#[test]
fn stress_2_ps() {
    stress(2, seed());
}

#[test]
fn stress_16_ps() {
    stress(16, seed());
}

/// With disorder from the runtime itself.
#[test]
fn stress_chaos() {
    let seed = seed();
    println!("GOSCHED_STRESS_SEED={seed}");
    let out = child_with("stress::stress_chaos", "", chaos(seed), |_| {
        stress(2, env("GOSCHED_STRESS_SEED").unwrap());
    });
    out.succeeded();
}
