//! Takes Ps from goroutines that block, and preempts goroutines that compute too long (SM, D7, D8).
//!
//! It exists because user code may block or compute without calling the runtime. sysmon calls it,
//! and in part the leader of a stopping world. The claim lock admits one of them at a time.
//!
//! ```text
//!  the P is                how sysmon sees it                   what sysmon does
//!  in a marked call        status Syscall, the same call        retakes the P if goroutines wait;
//!                          for 20 µs                            after 10 ms in any case
//!  blocked in the kernel,  same time slice for 1 ms, no CPU     claims the P (`claim`) if
//!  unmarked                time used, the kernel reports that   goroutines wait; after 10 ms in
//!                          the thread is blocked; after 10 ms   any case. The M is a *stray*
//!                          one such report is enough            from then on
//!  computing               same time slice for 10 ms            if goroutines wait: asks, and at
//!                                                               least 50 µs later signals
//!                                                               (`preempt`)
//!  computing, and a        same time slice for 0.5 ms           the same, for the P with the
//!  goroutine was readied                                        oldest slice
//! ```
//!
//! Why these tests:
//!
//! - Time alone proves nothing. On a busy machine a runnable thread may wait long for a CPU, and a
//!   signal does not help it.
//! - A stopped CPU clock proves nothing either: a runnable thread that waits for a CPU looks the
//!   same.
//! - So the kernel's report of the thread (`/proc/self/task/TID/syscall`) decides. sysmon reads it
//!   right before it sends a signal, so that signals hardly ever meet a system call.
//! - A thread that was woken in a call and waits for a CPU to return on also counts as running. So
//!   the signal goes only to a thread that has used its CPU for 3/4 of the time between two scans,
//!   or 200 µs of CPU time without going to sleep (its count of voluntary switches is unchanged).
//! - A goroutine that has used less than 200 µs of CPU time since its slice was first seen is
//!   spared, for up to 100 ms.
//! - A thread that was runnable when the kernel was asked, and whose CPU clock has not moved since,
//!   cannot have blocked without running. sysmon skips the `/proc` read, does not preempt the
//!   goroutine, and does not scan sooner for it. On a shared machine most scans find this case.
//!
//! An M whose P was claimed is a *stray* until it is back in the runtime (`stray`).
//!
//! ORDER: `m.p` and `p.m` are stored with Release. The stores pair with the Acquire loads of `p.m`
//! in `retake` and `force_stop`: a thread that finds an M at a P sees the M's fields as they were
//! when the two were bound.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::base::chaos;
use crate::base::lock::Held;
use crate::sched::Sched;
use crate::sched::model::gstatus::Status;
use crate::sched::model::m::{GIVE_UP_P, YIELD};
use crate::sched::model::p::PStatus;
use crate::sched::model::ptr::{Mp, Pp};
pub(crate) use crate::sched::model::watch::p_sample::{BLOCKED_NS, SLICE_NS};
use crate::sched::model::watch::{BEGUN_MAX, Begun, Claims, claim};
use crate::sched::monitor::preempt;
use crate::sched::worker::{IdleP, Inside};
use crate::sys;
use crate::sys::{Doing, TaskFile};

/// A marked call shorter than this keeps its P.
const MARKED_NS: u64 = 20_000;
/// sysmon reads the CPU clock of a slice from this age on.
const SAMPLE_NS: u64 = 200_000;
/// A goroutine that has run for this long is preempted for a readied one.
const PRESS_NS: u64 = 500_000;
/// A goroutine that has used less CPU time since its slice was first seen gets no signal ...
const BUSY_NS: u64 = 200_000;
/// ... until it has held the P for this long.
const PATIENCE_NS: u64 = 100_000_000;
/// Between the request and the signal.
pub(crate) const SIGNAL_AFTER_NS: u64 = 50_000;
/// A thread that has used this much CPU time without going to sleep computes.
const PULSE_NS: u64 = 200_000;
/// A signal that has not arrived after this time counts as lost.
const LOST_NS: u64 = 100_000_000;
/// After this many lost signals in a row the kernel is asked whether the thread blocks the signal.
/// It may just have had no CPU: a virtual machine can lose one for seconds.
pub(in crate::sched) const LOST_IN_A_ROW: u32 = 10;
/// How many descriptors of `/proc` files stay open. With more Ps one for each P. Never more than a
/// quarter of the descriptors that the process may have.
const FILES_MAX: u32 = 128;

/// Between two scans: while a marked call holds a P that others want; while a P may be stuck; while
/// goroutines wait; while the thread that holds a P waits for a CPU.
const PACE_MARKED_NS: u64 = 20_000;
const PACE_STUCK_NS: u64 = 250_000;
const PACE_WAITING_NS: u64 = 500_000;
const PACE_READY_NS: u64 = 1_000_000;
/// While every scan finds progress, the interval doubles, at most this many times. It stays below a
/// DOZE.
const CALM_MAX: u32 = 1;

impl crate::sched::model::m::M {
    /// Whether the thread has used CPU time for a while without going to sleep. Under the claim
    /// lock.
    fn has_only_computed(&self, claims: &mut Claims) -> bool {
        let tid = self.tid.load(Relaxed);
        let Some(cpu) = sys::thread_cpu_ns(tid) else {
            return false;
        };
        let switches = sys::voluntary_switches(tid);
        let pulse = &mut self.watched.known(claims).pulse;
        match *pulse {
            Some((then, slept)) if slept == switches => cpu >= then + PULSE_NS,
            _ => {
                *pulse = Some((cpu, switches));
                false
            }
        }
    }
}

impl Sched {
    /// Scans every P and the strays. Returns how soon the next scan should come (None: nothing is
    /// urgent), and whether a P was taken. sysmon.
    pub(crate) fn retake(&self, now: u64) -> (Option<u64>, bool) {
        let mut claims = self.claims.lock();
        let taken = || self.calls.retaken.get() + self.calls.claimed.get();
        let taken_before = taken();
        let waits = self.has_work();
        let mut pace = u64::MAX;
        let mut oldest: Option<(u64, Pp, Mp)> = None;
        for p in self.procs_in_use() {
            match p.status() {
                PStatus::Syscall => pace = pace.min(self.look_at_marked(p, now, waits)),
                PStatus::Running => {
                    let Some(m) = p.m.load(Acquire) else { continue };
                    let (age, soon) = self.look_at_running(&mut claims, p, m, now, waits);
                    pace = pace.min(soon);
                    if age > 0 && oldest.is_none_or(|(most, ..)| age > most) {
                        oldest = Some((age, p, m));
                    }
                }
                _ => {}
            }
        }
        self.confirm_claims(&mut claims);
        let calm = self.sysmon.calm_looks(waits && oldest.is_none());
        if waits {
            pace = pace.min(PACE_WAITING_NS << calm.min(CALM_MAX));
        }
        // Also if no goroutine waits: this call withdraws a press that was served in the meantime.
        // Otherwise the press would end each pause at once (`Nap::pause`), for as long as a
        // goroutine computes.
        pace = pace.min(self.press(&mut claims, oldest, now));
        pace = pace.min(self.look_at_strays(&mut claims));
        ((pace < u64::MAX).then_some(pace), taken() != taken_before)
    }

    /// A P that a marked call left behind (P3).
    fn look_at_marked(&self, p: Pp, now: u64, waits: bool) -> u64 {
        let seen = &p.seen;
        let call = p.syscalltick.load(Relaxed);
        if call != seen.call.get() {
            seen.call.set(call);
            seen.call_since_ns.set(now);
            return if waits { PACE_MARKED_NS } else { u64::MAX };
        }
        let age = now - seen.call_since_ns.get();
        let others_look = self.spin.npidle.load(Relaxed) + self.spin.count() > 0;
        let is_spared = !waits || p.runq.is_empty() && others_look;
        if age < MARKED_NS || is_spared && age < SLICE_NS {
            return if waits { PACE_MARKED_NS } else { u64::MAX };
        }
        chaos::point("retake");
        if let Some(p) = IdleP::retake(p) {
            self.calls.retaken.add_shared(1);
            self.room.call_is_out();
            self.hand_off_p(p);
        }
        PACE_MARKED_NS
    }

    /// A P in use. Returns the age of its time slice (0: just begun, or inside the runtime), and
    /// how soon to scan again.
    fn look_at_running(
        &self,
        claims: &mut Held<'_, Claims>,
        p: Pp,
        m: Mp,
        now: u64,
        waits: bool,
    ) -> (u64, u64) {
        let seen = &p.seen;
        let tick = p.schedtick.load(Relaxed);
        if tick != seen.tick.get() {
            seen.begin(tick, now);
            if waits && let Some(cpu) = sys::thread_cpu_ns(m.tid.load(Relaxed)) {
                seen.note_cpu(cpu, now);
            }
            return (0, u64::MAX);
        }
        let age = now - seen.since_ns.get();
        if chaos::one_in(4, "blind claim")
            && self.has_thread_to_spare(claims)
            && self.begin_claim(claims, Begun::new(m, p, tick))
        {
            return (0, PACE_STUCK_NS);
        }
        if age < SAMPLE_NS || m.claim.depth() > 0 {
            return (0, if waits { PACE_STUCK_NS } else { u64::MAX });
        }
        let is_due = age >= self.config.slice_ns;
        if (waits || is_due) && self.look_whether_blocked(claims, p, m, now) {
            return (0, PACE_STUCK_NS);
        }
        match waits {
            false => (age, u64::MAX),
            // The thread has no CPU, so it keeps no other thread from one. Once it runs it may see
            // the request.
            true if seen.waits_for_cpu(now) => {
                if is_due {
                    m.ask(YIELD);
                }
                (0, PACE_READY_NS)
            }
            true if is_due => {
                let soon = self.ask_then_signal(claims, p, m, now);
                (age, soon.min(PACE_STUCK_NS))
            }
            true => (age, PACE_STUCK_NS),
        }
    }

    /// Begins to take the P of a goroutine that is blocked in the kernel; `confirm_claims` must
    /// follow.
    pub(in crate::sched) fn look_whether_blocked(
        &self,
        claims: &mut Held<'_, Claims>,
        p: Pp,
        m: Mp,
        now: u64,
    ) -> bool {
        let seen = &p.seen;
        let age = now - seen.since_ns.get();
        let Some(cpu) = sys::thread_cpu_ns(m.tid.load(Relaxed)) else {
            return false;
        };
        let has_stood_still = seen.note_cpu(cpu, now);
        // A goroutine that sleeps often and briefly has also used up its slice.
        let is_suspect = has_stood_still || age >= SLICE_NS;
        if !is_suspect || seen.is_known(cpu, age, now) || !self.has_thread_to_spare(claims) {
            return false;
        }
        let call = match self.doing(claims, m) {
            Doing::Blocked(_) if age < BLOCKED_NS => {
                seen.asleep_cpu_ns.set(cpu);
                return false;
            }
            Doing::Blocked(call) => call,
            Doing::Unknown if has_stood_still && age >= SLICE_NS => -1,
            Doing::Running if has_stood_still => {
                seen.note_ready(cpu, now);
                return false;
            }
            _ => return false,
        };
        let mut begun = Begun::new(m, p, seen.tick.get());
        begun.wants_lock = call == libc::SYS_futex;
        self.take_blocked(claims, begun)
    }

    /// Begins to take the P of an M that is blocked in the kernel. Returns false if the M keeps the
    /// P for now.
    fn take_blocked(&self, claims: &mut Held<'_, Claims>, begun: Begun) -> bool {
        if !self.calls.has_no_membarrier.load(Relaxed) {
            return self.begin_claim(claims, begun);
        }
        // Without membarrier the M must release the P itself, in the handler. The signal cuts its
        // call short.
        let m = begun.m;
        if self.config.preemption && !m.signalled.load(Acquire) {
            m.ask(GIVE_UP_P);
            self.send(claims, m, sys::monotonic_ns());
        }
        false
    }

    /// Begins a claim by the claim protocol (`claim`). The caller has seen the P on the M in that
    /// time slice, and calls `confirm_claims` soon.
    pub(in crate::sched) fn begin_claim(
        &self,
        claims: &mut Held<'_, Claims>,
        begun: Begun,
    ) -> bool {
        if self.calls.has_no_membarrier.load(Relaxed) || !begun.m.claim.begin() {
            return false;
        }
        let at = claims.nbegun;
        claims.begun[at] = Some(begun);
        claims.nbegun += 1;
        if claims.nbegun == BEGUN_MAX {
            self.confirm_claims(claims);
        }
        true
    }

    /// Makes one barrier for all claims that have begun. Then takes the P of each M that is still
    /// where it was, and hands it off.
    pub(in crate::sched) fn confirm_claims(&self, claims: &mut Held<'_, Claims>) {
        let begun = std::mem::take(&mut claims.nbegun);
        if begun == 0 {
            return;
        }
        chaos::point("claim");
        let has_passed = claim::barrier();
        let mut cancelled = 0;
        for nth in 0..begun {
            if let Some(begun) = claims.begun[nth].take() {
                cancelled += u64::from(!self.finish_claim(claims, begun, has_passed));
            }
        }
        if cancelled > 0 {
            self.calls.cancelled.add_shared(cancelled);
            // A seccomp filter may have come since the last claim. If so, the next scan sends the M
            // a signal instead.
            let is_served = sys::membarrier_register();
            self.calls.has_no_membarrier.store(!is_served, Relaxed);
        }
    }

    /// Takes the P if nothing has changed, and hands it off. Behind the barrier.
    fn finish_claim(&self, claims: &mut Held<'_, Claims>, begun: Begun, has_passed: bool) -> bool {
        let Begun { m, p, tick, .. } = begun;
        let is_same = || {
            m.p.load(Relaxed) == Some(p)
                && p.schedtick.load(Relaxed) == tick
                && p.status() == PStatus::Running
        };
        if !m.claim.confirm(has_passed, is_same) {
            // The goroutine has left the kernel. If its slice is over, it must leave the P as well.
            let age = sys::monotonic_ns() - p.seen.since_ns.get();
            if is_same() && age >= self.config.slice_ns {
                m.ask(YIELD);
            }
            return false;
        }
        let Some(g) = m.curg() else {
            crate::base::fatal::throw("an M outside the runtime without a goroutine")
        };
        g.status.transition(Status::Running, Status::Syscall);
        m.p.store(None, Release);
        p.m.store(None, Release);
        p.set_status(PStatus::Idle);
        chaos::point("claimed");
        self.count_stray(m);
        m.claim.finish();
        self.calls.claimed.add_shared(1);
        self.watch_stray(claims, m);
        // SAFETY: the claim took p from its M, which is blocked outside the runtime and finds
        // TAKEN.
        self.hand_off_p(unsafe { IdleP::new(p) });
        if begun.wants_lock {
            self.core.lock().runq.hurry_spent();
        }
        true
    }

    /// A goroutine was readied and found no P: preempts the oldest slice, if it is old enough.
    /// Returns how soon to scan again.
    fn press(&self, claims: &mut Held<'_, Claims>, oldest: Option<(u64, Pp, Mp)>, now: u64) -> u64 {
        if !self.sysmon.is_pressed() {
            return u64::MAX;
        }
        let may_begin = !self.is_at_limit();
        let is_served = || {
            let is_pressing = self.core.lock().runq.is_pressing(may_begin);
            !is_pressing && self.procs_in_use().all(|p| p.runq.is_empty())
        };
        if self.sysmon.unpress_if(is_served) {
            return u64::MAX;
        }
        match oldest {
            Some((age, p, m)) if age >= PRESS_NS => self.ask_then_signal(claims, p, m, now),
            Some((age, ..)) => PRESS_NS - age,
            None => u64::MAX, // all slices have just begun
        }
    }

    fn ask_then_signal(&self, claims: &mut Held<'_, Claims>, p: Pp, m: Mp, now: u64) -> u64 {
        let asked = p.seen.asked_ns.get();
        if asked == 0 {
            p.seen.asked_ns.set(now);
            m.ask(YIELD);
            return SIGNAL_AFTER_NS;
        }
        m.ask(YIELD); // leaving the runtime may have cleared it
        let used = p
            .seen
            .cpu_ns
            .get()
            .saturating_sub(p.seen.first_cpu_ns.get());
        let has_had_it = used >= BUSY_NS || now - p.seen.since_ns.get() >= PATIENCE_NS;
        if now - asked >= SIGNAL_AFTER_NS && has_had_it {
            self.signal_if_computing(claims, m, now, p.seen.is_busy.get());
        }
        SIGNAL_AFTER_NS * 2
    }

    /// Sends the signal to an M that computes, never to one that is blocked in a call. `is_busy`:
    /// its thread has used its CPU for 3/4 of the time between two scans.
    pub(in crate::sched) fn signal_if_computing(
        &self,
        claims: &mut Held<'_, Claims>,
        m: Mp,
        now: u64,
        is_busy: bool,
    ) {
        if !self.config.preemption || m.claim.depth() > 0 {
            return;
        }
        if m.signalled.load(Acquire) {
            if now.saturating_sub(m.watched.known(claims).sent_ns) >= LOST_NS {
                self.look_for_signal(claims, m);
            }
            return;
        }
        // A thread that was woken inside a call also counts as running, and a signal would still
        // cut that call short.
        if (is_busy || m.has_only_computed(claims))
            && !matches!(self.doing(claims, m), Doing::Blocked(_))
        {
            self.send(claims, m, now);
        }
    }

    fn send(&self, claims: &mut Claims, m: Mp, now: u64) {
        let known = m.watched.known(claims);
        if now.saturating_sub(std::mem::replace(&mut known.sent_ns, now)) < LOST_NS {
            known.lost = 0; // the last one arrived in time
        }
        // ORDER: Release; pairs with the Acquire swap in `preempt::on_signal`.
        m.signalled.store(true, Release);
        let signal = self.config.preemption_signal;
        if sys::signal_thread(m.tid.load(Relaxed), signal).is_ok() {
            self.calls.signals.add_shared(1);
        } else {
            m.signalled.store(false, Relaxed);
        }
    }

    /// A signal has not arrived for long: lets another one be sent. Prints once if the program has
    /// replaced the handler or blocked the signal.
    pub(in crate::sched) fn look_for_signal(&self, claims: &mut Claims, m: Mp) {
        m.signalled.store(false, Relaxed);
        let known = m.watched.known(claims);
        known.lost += 1;
        let signal = self.config.preemption_signal;
        let why = if !preempt::is_installed(signal) {
            "replaced the handler of"
        } else if known.lost >= LOST_IN_A_ROW && sys::blocks_signal(m.tid.load(Relaxed), signal) {
            "blocked, in a thread of the runtime,"
        } else {
            return; // the thread may just have had no CPU
        };
        if !self.calls.is_signal_lost.swap(true, Relaxed) {
            sys::eprint_raw(format_args!(
                "gosched: the program has {why} signal {signal}; goroutines that make no calls are not preempted any more \
                 (Builder::preemption_signal chooses another signal)\n"
            ));
        }
    }

    /// What the kernel reports of the M's thread.
    pub(crate) fn doing(&self, claims: &mut Held<'_, Claims>, m: Mp) -> Doing {
        if let Some(file) = &m.watched.known(claims).file {
            match file.doing() {
                Doing::Unknown => {
                    m.watched.known(claims).file = None; // closed behind our back
                    claims.files -= 1;
                }
                known => return known,
            }
        }
        let Ok(file) = TaskFile::open(m.tid.load(Relaxed)) else {
            // The thread may just have ended. The caller's own file shows whether `/proc` is
            // readable at all.
            let own = TaskFile::open(sys::gettid());
            self.calls.has_no_proc.store(own.is_err(), Relaxed);
            return Doing::Unknown;
        };
        self.calls.has_no_proc.store(false, Relaxed);
        let doing = file.doing();
        if claims.files < FILES_MAX.max(self.nprocs()).min(sys::files_limit() / 4) {
            claims.files += 1;
            m.watched.known(claims).file = Some(file);
        }
        doing
    }

    /// Closes the descriptors: sysmon has ended.
    pub(crate) fn close_files(&self) {
        let mut claims = self.claims.lock();
        let core = self.core.lock();
        for m in std::iter::successors(core.allm, |m| m.alllink.get()) {
            if m.watched.known(&mut claims).file.take().is_some() {
                claims.files -= 1;
            }
        }
    }

    /// The M ends: removes all that the monitor keeps of it.
    pub(crate) fn forget_m(&self, m: Mp) {
        let mut claims = self.claims.lock();
        // Another thread will use the M struct.
        if std::mem::take(m.watched.known(&mut claims)).file.is_some() {
            claims.files -= 1;
        }
        self.forget_stray(&mut claims, m);
    }

    /// Whether one more P that is taken away gets a thread. A thread that waits with a bound
    /// goroutine counts. Claims that have begun may need a thread each.
    pub(in crate::sched) fn has_thread_to_spare(&self, claims: &Claims) -> bool {
        let core = self.core.lock();
        core.nparked.saturating_add(self.spare_ms(&core)) as usize > claims.nbegun
    }

    /// The world is to stop and some Ps still run. Takes the Ps whose goroutines block, and signals
    /// the threads that compute. The leader.
    pub(crate) fn force_stop(&self) {
        let mut claims = self.claims.lock();
        let now = sys::monotonic_ns();
        let own = self.own_m();
        for p in self.procs() {
            match p.status() {
                PStatus::Syscall => {
                    let Some(p) = IdleP::retake(p) else { continue };
                    self.calls.retaken.add_shared(1);
                    self.room.call_is_out();
                    self.hand_off_p(p);
                }
                PStatus::Running => {
                    let tick = p.schedtick.load(Relaxed);
                    let holder = p.m.load(Acquire).filter(|m| Some(*m) != own);
                    let Some(m) = holder.filter(|m| m.claim.depth() == 0) else {
                        continue;
                    };
                    m.ask(YIELD);
                    match self.doing(&mut claims, m) {
                        // Without a thread to hand the P to, it could never stop.
                        Doing::Blocked(_) if self.has_thread_to_spare(&claims) => {
                            self.take_blocked(&mut claims, Begun::new(m, p, tick));
                        }
                        Doing::Blocked(_) => {}
                        _ => self.signal_if_computing(&mut claims, m, now, false),
                    }
                }
                _ => {}
            }
        }
        self.confirm_claims(&mut claims);
    }

    /// The M gives up its P in the middle of a call that is about to be restarted. In the handler,
    /// inside the runtime.
    pub(crate) fn give_up_p_in_call(&self, inside: &mut Inside) {
        let m = inside.m();
        let Some(g) = m.curg() else { return };
        g.status.transition(Status::Running, Status::Syscall);
        let p = inside.release_p();
        self.count_stray(m);
        m.claim.finish();
        self.calls.claimed.add_shared(1);
        self.watch_stray(&mut self.claims.lock(), m);
        self.hand_off_p(p);
    }
}
