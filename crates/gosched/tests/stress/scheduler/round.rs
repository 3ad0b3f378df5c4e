//! One round: its goroutines counted in and out, and what each came to.

use super::*;

// What goroutines come to, by plan.
pub(crate) const RETURNS: u8 = 0;
pub(crate) const PANICS: u8 = 1;
pub(crate) const EXITS: u8 = 2;

/// One goroutine's entry in the ledger; dropped with its closure.
pub(crate) struct Ticket {
    pub(crate) round: Arc<Round>,
    pub(crate) has_run: AtomicBool,
}

impl Ticket {
    pub(crate) fn new(round: &Arc<Round>) -> Ticket {
        round.born.fetch_add(1, SeqCst);
        Ticket {
            round: Arc::clone(round),
            has_run: AtomicBool::new(false),
        }
    }

    pub(crate) fn run(&self) {
        self.round.ran.fetch_add(1, SeqCst);
        if self.has_run.swap(true, SeqCst) {
            self.round.complain("a goroutine ran twice");
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let count = if *self.has_run.get_mut() {
            &self.round.ended
        } else {
            &self.round.unrun
        };
        count.fetch_add(1, SeqCst);
    }
}

/// What all goroutines and threads of a round share.
pub(crate) struct Round {
    pub(crate) procs: usize,
    /// The runtime lives until all goroutines have ended.
    pub(crate) is_drained: bool,
    /// The ledger: closures made; run; dropped after they ran; dropped without.
    pub(crate) born: AtomicUsize,
    pub(crate) ran: AtomicUsize,
    pub(crate) ended: AtomicUsize,
    pub(crate) unrun: AtomicUsize,
    /// Goroutines that may still be started.
    pub(crate) budget: AtomicUsize,
    pub(crate) seeds: AtomicU64,
    /// Goroutines that are parked until they are taken out of this list.
    pub(crate) waiting: Mutex<Vec<(Thread, Arc<AtomicBool>)>>,
    /// Goroutines that get unexpected tokens.
    pub(crate) known: Mutex<Vec<Thread>>,
    /// Plain threads that goroutines have started.
    pub(crate) outsiders: AtomicUsize,
    /// The runtime is being ended: joins may be answered with `Exited`.
    pub(crate) is_ending: AtomicBool,
    pub(crate) complaints: Mutex<Vec<String>>,
}

impl Round {
    pub(crate) fn new(rng: &mut Rng, procs: usize, is_drained: bool) -> Arc<Round> {
        Arc::new(Round {
            procs,
            is_drained,
            born: AtomicUsize::new(0),
            ran: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            unrun: AtomicUsize::new(0),
            budget: AtomicUsize::new(20 + rng.below(1500) as usize),
            seeds: AtomicU64::new(rng.next()),
            waiting: Mutex::default(),
            known: Mutex::default(),
            outsiders: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
            complaints: Mutex::default(),
        })
    }

    pub(crate) fn complain(&self, text: impl Display) {
        lock(&self.complaints).push(text.to_string());
    }

    pub(crate) fn rng(&self) -> Rng {
        Rng::new(self.seeds.fetch_add(0x632B_E593, SeqCst))
    }

    /// Whether one more goroutine may be started.
    pub(crate) fn may_spawn(&self) -> bool {
        let take = |n: usize| n.checked_sub(1);
        self.budget.fetch_update(SeqCst, SeqCst, take).is_ok()
    }

    pub(crate) fn counts(&self) -> (usize, usize, usize, usize) {
        let get = |count: &AtomicUsize| count.load(SeqCst);
        let (ended, unrun) = (get(&self.ended), get(&self.unrun));
        (get(&self.born), get(&self.ran), ended, unrun)
    }

    /// Wakes up to `n` of those that wait.
    pub(crate) fn wake(&self, n: u64) {
        for _ in 0..n {
            let Some((thread, is_wanted)) = lock(&self.waiting).pop() else {
                return;
            };
            is_wanted.store(true, SeqCst);
            thread.unpark();
        }
    }

    /// A token for a goroutine that does not expect one, and may be gone.
    pub(crate) fn stray(&self, rng: &mut Rng) {
        let known = lock(&self.known);
        let at = rng.below(known.len().max(1) as u64) as usize;
        let thread = known.get(at).cloned();
        drop(known);
        if let Some(thread) = thread {
            thread.unpark();
        }
    }

    pub(crate) fn introduce(&self, rng: &mut Rng, thread: &Thread) {
        let mut known = lock(&self.known);
        if known.len() < KNOWN_MAX {
            known.push(thread.clone());
        } else {
            known[rng.below(KNOWN_MAX as u64) as usize] = thread.clone();
        }
    }

    /// What a join may say.
    pub(crate) fn judge(&self, joined: thread::Result<u64>, number: u64, fate: &AtomicU8) {
        let fate = fate.load(SeqCst);
        let as_planned = match &joined {
            Ok(value) => fate == RETURNS && *value == number,
            Err(payload) if payload.is::<Exited>() => fate == EXITS || self.is_ending.load(SeqCst),
            Err(payload) => fate == PANICS && payload.is::<Planned>(),
        };
        if !as_planned {
            self.complain(format_args!(
                "goroutine {number}, planned {fate}, gave {}",
                outcome(&joined)
            ));
        }
    }
}

pub(crate) fn outcome(joined: &thread::Result<u64>) -> String {
    match joined {
        Ok(value) => format!("the value {value}"),
        Err(payload) => format!("the panic {}", text_of(payload.as_ref())),
    }
}

pub(crate) fn text_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    payload
        .downcast_ref::<String>()
        .cloned()
        .unwrap_or_else(|| {
            let name = if payload.is::<Exited>() {
                "Exited"
            } else {
                "?"
            };
            name.to_owned()
        })
}

/// A goroutine that may be joined, and how it is to end.
pub(crate) struct Child {
    pub(crate) handle: JoinHandle<u64>,
    pub(crate) number: u64,
    pub(crate) fate: Arc<AtomicU8>,
}

impl Child {
    /// A closure for a goroutine, with its ticket.
    pub(crate) fn body(
        round: &Arc<Round>,
        depth: u32,
    ) -> (u64, Arc<AtomicU8>, impl FnOnce() -> u64 + use<>) {
        let ticket = Ticket::new(round);
        let (rng, fate) = (round.rng(), Arc::new(AtomicU8::new(RETURNS)));
        let (number, plan) = (rng.clone().next(), Arc::clone(&fate));
        let body = move || {
            ticket.run();
            let mut life = Life::new(&ticket.round, rng, depth, Some(plan));
            life.live();
            number
        };
        (number, fate, body)
    }

    pub(crate) fn join(self, round: &Round) {
        round.judge(self.handle.join(), self.number, &self.fate);
    }
}
