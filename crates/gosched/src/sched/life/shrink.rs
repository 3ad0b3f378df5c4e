//! Returns the unused stack pages of goroutines that wait long (U8).
//!
//! A goroutine that once ran deep and now waits keeps its touched pages. The background work visits
//! all goroutines, a few at a time, and returns the pages below their saved stack pointers.
//! Meanwhile the goroutine is in state CopyStack, and a waker waits for about a microsecond.

use std::sync::atomic::Ordering::Relaxed;

use crate::sched::Sched;
use crate::sched::model::gstatus::Status;
use crate::sched::model::ptr::Gp;
use crate::stack::Arena;

/// How long a goroutine must have waited.
const WAIT_MS: u32 = 5_000;
/// Goroutines visited in one step.
const STEP: usize = 256;

impl Sched {
    /// Visits some goroutines. True: the round is not over. Two Ms at once visit different
    /// goroutines.
    pub(crate) fn shrink_parked(&self) -> bool {
        let (mut found, mut n) = ([None::<Gp>; STEP], 0);
        let now = self.coarse_ms();
        let more = self.blocks.visit(STEP, |g| {
            if is_due(g, now) {
                found[n] = Some(g);
                n += 1;
            }
        });
        for g in found.into_iter().flatten() {
            shrink(g);
        }
        more
    }

    /// Visits every goroutine, however short its wait. For tests, which do not wait for the
    /// background work.
    pub(crate) fn shrink_all(&self) {
        // The rest of a round that may be under way, and a whole one.
        for _ in 0..2 {
            let mut more = true;
            while more {
                // Few at a time: the list lies on the stack of the calling goroutine.
                let (mut found, mut n) = ([None::<Gp>; STEP / 4], 0);
                more = self.blocks.visit(STEP / 4, |g| {
                    found[n] = (g.status.get() == Status::Waiting).then_some(g);
                    n += 1;
                });
                found.into_iter().flatten().for_each(shrink);
            }
        }
    }
}

fn is_due(g: Gp, now_ms: u32) -> bool {
    let since = g.wait_since.load(Relaxed);
    g.status.get() == Status::Waiting
        && now_ms.wrapping_sub(since) >= WAIT_MS
        && g.shrunk_at.load(Relaxed) != since.wrapping_add(1)
}

fn shrink(g: Gp) {
    if !g.status.begin_shrink() {
        return; // it was just woken
    }
    if let Some(stack) = g.stack() {
        // SAFETY: D4, the goroutine is off its stack, and CopyStack keeps it off.
        unsafe { Arena::shrink_below(stack, g.sp.get()) };
        g.shrunk_at
            .store(g.wait_since.load(Relaxed).wrapping_add(1), Relaxed);
    }
    g.status.transition(Status::CopyStack, Status::Waiting);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::Runtime;
    use crate::sched::model::current::current_g;

    /// Touches about `depth` KiB of stack.
    #[inline(never)]
    fn run_deep(depth: usize) -> usize {
        let room = std::hint::black_box([depth as u8; 1024]);
        if depth == 0 {
            return room[0].into();
        }
        run_deep(depth - 1) + usize::from(room[1])
    }

    /// Resident pages of the stacks of all waiting goroutines.
    fn resident(sched: &Sched) -> usize {
        let mut pages = 0;
        sched.blocks.for_each(|g| {
            if g.status.get() == Status::Waiting && g.stack_hi.get() != 0 {
                let lo = g.stack_lo.get();
                let len = g.stack_hi.get() - lo;
                let mut there = [0u8; 512];
                // SAFETY: the range is a mapped stack, and has a byte in `there` for each page.
                let asked = unsafe { libc::mincore(lo as *mut _, len, there.as_mut_ptr()) };
                assert_eq!(asked, 0);
                pages += there.iter().filter(|page| **page & 1 != 0).count();
            }
        });
        pages
    }

    #[test]
    fn u8_a_goroutine_that_waits_long_gives_its_unused_stack_back() {
        const MANY: usize = 100;
        let runtime = Runtime::builder().stack_size(1 << 20).build().unwrap();
        let parked = std::sync::Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..MANY)
            .map(|_| {
                let parked = std::sync::Arc::clone(&parked);
                runtime.spawn(move || {
                    std::hint::black_box(run_deep(400));
                    let here = [7u8; 64];
                    parked.fetch_add(1, Relaxed);
                    crate::thread::park();
                    assert_eq!(std::hint::black_box(here), [7; 64]);
                })
            })
            .collect();
        while parked.load(Relaxed) < MANY {
            std::thread::yield_now();
        }
        let (before, after) = runtime.run(|| {
            let g = current_g().unwrap();
            let sched = g.sched();
            let before = resident(sched);
            let _rt = crate::sched::park::enter();
            // sysmon may set the clock right in between. What is shrunk stays so.
            for _ in 0..10 {
                sched.now_ms.store(sched.coarse_ms() + 2 * WAIT_MS, Relaxed);
                while sched.shrink_parked() {}
            }
            (before, resident(sched))
        });
        assert!(before > MANY * 50, "they ran deep: {before} pages");
        assert!(after <= MANY * 8, "{after} of {before} pages are left");
        for handle in handles {
            handle.thread().unpark();
            handle.join().unwrap();
        }
    }
}
