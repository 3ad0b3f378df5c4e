//! One goroutine's life: random steps until its time is up.

use super::*;
use crate::common::tid;

/// One goroutine's doings.
pub(crate) struct Life {
    pub(crate) round: Arc<Round>,
    pub(crate) rng: Rng,
    pub(crate) depth: u32,
    /// Where it says what it comes to; None: it must return.
    pub(crate) fate: Option<Arc<AtomicU8>>,
    pub(crate) children: Vec<Child>,
}

impl Life {
    pub(crate) fn new(
        round: &Arc<Round>,
        rng: Rng,
        depth: u32,
        fate: Option<Arc<AtomicU8>>,
    ) -> Life {
        Life {
            round: Arc::clone(round),
            rng,
            depth,
            fate,
            children: Vec::new(),
        }
    }

    pub(crate) fn live(&mut self) {
        if self.rng.one_in(4) {
            self.round.introduce(&mut self.rng, &thread::current());
        }
        for _ in 0..self.rng.below(16) {
            self.step();
        }
        while let Some(child) = self.children.pop() {
            match self.rng.below(3) {
                0 => drop(child),
                _ => child.join(&self.round),
            }
        }
    }

    /// One random deed; the common ones first.
    pub(crate) fn step(&mut self) {
        let pause = Duration::from_micros(self.rng.below(300));
        match self.rng.below(100) {
            0..=17 => gosched::yield_now(),
            18..=33 => self.spawn(),
            34..=39 => self.go(),
            40..=47 => self.wait(),
            48..=59 => self.round.wake(1 + self.rng.below(3)),
            60..=63 => self.round.stray(&mut self.rng),
            64..=68 => thread::park_timeout(pause),
            69..=73 => thread::sleep(pause),
            74..=80 => self.join_one(),
            81..=83 => self.lock(),
            84..=85 => self.scope(),
            86..=87 => self.die(),
            88..=89 => drop(self.children.pop()),
            90 => std::thread::sleep(pause / 2),
            91..=92 => self.deepen(),
            _ => self.rare_step(),
        }
    }

    /// What is slow, or stops the world.
    pub(crate) fn rare_step(&mut self) {
        match self.rng.below(60) {
            0..=9 => self.check(),
            10..=13 => {
                let procs = 1 + self.rng.below(2 * self.round.procs as u64);
                gosched::gomaxprocs(procs as usize);
            }
            14..=17 => self.thread_outside(),
            18 => drop(debug::dump()),
            19 => self.other_runtime(),
            20..=25 => drop(debug::metrics()),
            _ => gosched::yield_now(),
        }
    }

    pub(crate) fn spawn(&mut self) {
        if self.depth == 0 || !self.round.may_spawn() {
            return;
        }
        let (number, fate, body) = Child::body(&self.round, self.depth - 1);
        let mut builder = thread::Builder::new();
        if self.rng.one_in(8) {
            builder = builder.name(format!("number {number}"));
        }
        if self.rng.one_in(16) {
            builder = builder.stack_size(512 << 10);
        }
        let spawned = builder.spawn(body);
        match spawned {
            Ok(handle) => self.children.push(Child {
                handle,
                number,
                fate,
            }),
            Err(_) if self.round.is_ending.load(SeqCst) => {}
            Err(error) => self.round.complain(error),
        }
    }

    pub(crate) fn go(&mut self) {
        if self.depth == 0 || !self.round.may_spawn() {
            return;
        }
        let (ticket, rng, depth) = (Ticket::new(&self.round), self.round.rng(), self.depth - 1);
        let body = move || {
            ticket.run();
            Life::new(&ticket.round, rng, depth, None).live();
        };
        if self.round.is_drained {
            gosched::go(body);
        } else {
            // `go` panics where this is an error, for the runtime may be ending.
            drop(Handle::current().try_spawn(body));
        }
    }

    /// Waits until another goroutine or thread takes it out of the list of waiters.
    pub(crate) fn wait(&mut self) {
        let is_wanted = Arc::new(AtomicBool::new(false));
        let me = (thread::current(), Arc::clone(&is_wanted));
        lock(&self.round.waiting).push(me);
        let has_timeout = self.rng.one_in(3);
        while !is_wanted.load(SeqCst) {
            if has_timeout {
                thread::park_timeout(Duration::from_micros(self.rng.below(500)));
            } else {
                thread::park();
            }
        }
    }

    pub(crate) fn join_one(&mut self) {
        let Some(child) = self.children.pop() else {
            return;
        };
        if self.rng.one_in(4) {
            let _ = child.handle.is_finished();
        }
        child.join(&self.round);
    }

    /// Stays on its thread; ends it, if it ends so.
    pub(crate) fn lock(&mut self) {
        gosched::lock_os_thread();
        let before = tid();
        for _ in 0..self.rng.below(4) {
            match self.rng.below(4) {
                0 => thread::sleep(Duration::from_micros(self.rng.below(100))),
                1 => self.wait(),
                2 => self.spawn(),
                _ => gosched::yield_now(),
            }
            if tid() != before {
                self.round.complain("a locked goroutine changed its thread");
            }
        }
        if !self.rng.one_in(4) {
            gosched::unlock_os_thread();
        }
    }

    pub(crate) fn scope(&mut self) {
        let n = self.rng.below(4);
        let (sum, round) = (AtomicU64::new(0), &self.round);
        thread::scope(|s| {
            for at in 0..n {
                let (ticket, sum) = (Ticket::new(round), &sum);
                let spawned = thread::Builder::new().spawn_scoped(s, move || {
                    ticket.run();
                    let mut life = Life::new(&ticket.round, ticket.round.rng(), 0, None);
                    for _ in 0..at {
                        life.step();
                    }
                    sum.fetch_add(1, SeqCst);
                });
                if let Err(error) = spawned
                    && !round.is_ending.load(SeqCst)
                {
                    round.complain(error);
                }
            }
        });
        if sum.load(SeqCst) != n && !self.round.is_ending.load(SeqCst) {
            self.round.complain("a scope ended before its goroutines");
        }
    }

    /// Ends before its time: a panic or an exit, with a destructor that waits.
    #[cfg(panic = "unwind")]
    pub(crate) fn die(&mut self) {
        struct Lingers(Duration);
        impl Drop for Lingers {
            fn drop(&mut self) {
                gosched::yield_now();
                thread::sleep(self.0);
            }
        }
        let Some(fate) = &self.fate else { return };
        let _lingers = Lingers(Duration::from_micros(self.rng.below(100)));
        if self.rng.one_in(2) {
            fate.store(PANICS, SeqCst);
            std::panic::panic_any(Planned);
        }
        fate.store(EXITS, SeqCst);
        gosched::goexit();
    }

    #[cfg(not(panic = "unwind"))]
    pub(crate) fn die(&mut self) {
        let _ = &self.fate;
    }

    pub(crate) fn deepen(&mut self) {
        fn touch(depth: u64) -> u64 {
            let frame = std::hint::black_box([depth; 64]);
            if depth == 0 {
                gosched::yield_now();
                return frame[7];
            }
            touch(depth - 1) + frame[depth as usize % 64] - depth
        }
        let depth = self.rng.below(48);
        if touch(depth) != 0 {
            self.round
                .complain("a stack changed while its goroutine was away");
        }
    }

    pub(crate) fn check(&mut self) {
        if let Err(violations) = debug::check() {
            self.round.complain(violations);
        }
    }

    /// A plain thread of the goroutine's own, which is not joined.
    pub(crate) fn thread_outside(&mut self) {
        let (round, mut rng) = (Arc::clone(&self.round), self.round.rng());
        let (me, handle) = (thread::current(), Handle::current());
        round.outsiders.fetch_add(1, SeqCst);
        std::thread::spawn(move || {
            outside_step(&round, &handle, &mut rng, &mut Vec::new());
            round.outsiders.fetch_sub(1, SeqCst);
        });
        std::thread::spawn(move || me.unpark());
    }

    /// A runtime that comes and goes within this one.
    pub(crate) fn other_runtime(&mut self) {
        let procs = 1 + self.rng.below(3) as usize;
        let other = Runtime::builder().procs(procs).build().unwrap();
        let me = thread::current();
        other.run(|| me.unpark());
        let parked: Vec<_> = (0..3).map(|_| other.spawn(thread::park)).collect();
        parked[0].thread().unpark();
        gosched::yield_now();
        drop(other);
        let mut parked = parked.into_iter();
        let first = parked.next().map(JoinHandle::join);
        drop(first); // it may have been quick enough
        if !parked.all(|handle| handle.join().is_err()) {
            self.round.complain("a parked goroutine ended by itself");
        }
    }
}
