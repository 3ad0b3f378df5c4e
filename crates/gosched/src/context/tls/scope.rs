//! The loader's lists of objects in which symbols are looked up, and who reads them.
//!
//! A thread that looks a symbol up (`dlsym`, the first call of a function that is bound lazily) sets a flag in its thread block
//! meanwhile, takes no lock, and is done within microseconds. `dlopen` and `dlclose` replace such lists; before they free an old
//! one they wait until each thread that libc knows has its flag down. libc does not know the blocks of goroutines.
//!
//! So a goroutine is not preempted while its flag is up: its look-up would last for as long as it waits for a processor, and
//! somebody may free what it reads. The handler returns, and sysmon sends its signal again. What is left is the look-up
//! itself, on its thread; `docs/guide/limits.md` has it.
//!
//! The flag's place is part of the head of glibc's thread blocks and in none of its tables. It is tried out before it is
//! believed: a look-up must take a flag down that was put up there.

use std::arch::asm;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::glibc::symbol;

/// Where glibc's x86-64 blocks have the flag, from FS: 32 bits.
const PLACE: usize = 0x1c;
const DOWN: u32 = 0;
const UP: u32 = 1;

/// The place, once it is known; 0: it is not.
static FLAG: AtomicUsize = AtomicUsize::new(0);

/// Tries the place out. On a thread that libc made, where nothing else runs, after there was a second thread.
pub(super) fn find() {
    if read(PLACE) != DOWN {
        return;
    }
    write(PLACE, UP);
    let found = symbol(c"gosched_no_such_symbol");
    let is_it = found.is_none() && read(PLACE) == DOWN;
    write(PLACE, DOWN);
    if is_it {
        FLAG.store(PLACE, Relaxed);
    }
}

/// Whether the interrupted code of this thread is looking a symbol up; CONTEXT: signal.
#[inline]
pub(crate) fn is_looking_up() -> bool {
    let flag = FLAG.load(Relaxed);
    flag != 0 && read(flag) != DOWN
}

#[inline]
fn read(at: usize) -> u32 {
    let value: u32;
    // SAFETY: D6, a word at the head of the present thread block.
    unsafe { asm!("mov {:e}, fs:[{}]", out(reg) value, in(reg) at, options(nostack, readonly)) };
    value
}

/// On a thread of the caller's own.
fn write(at: usize, value: u32) {
    // SAFETY: D6, as above; the thread looks nothing up meanwhile, and nobody waits for the flag.
    unsafe { asm!("mov fs:[{}], {:e}", in(reg) at, in(reg) value, options(nostack)) };
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Runtime, thread};

    #[test]
    fn d6_the_loaders_flag_is_where_it_is_looked_for() {
        super::super::Room::own().unwrap();
        assert_eq!(FLAG.load(SeqCst), PLACE);
        assert!(!is_looking_up());
    }

    /// Computes until the other goroutine has run, or for so long.
    fn wait(other: &AtomicBool, most: Duration) -> bool {
        let began = Instant::now();
        while !other.load(SeqCst) && began.elapsed() < most {
            std::hint::spin_loop();
        }
        other.load(SeqCst)
    }

    #[test]
    fn d6_nobody_is_preempted_while_it_looks_a_symbol_up() {
        let runtime = Runtime::builder().procs(1).build().unwrap();
        if !runtime.run(|| crate::debug::metrics().own_thread_locals) {
            return;
        }
        runtime.run(|| {
            let has_run = AtomicBool::new(false);
            thread::scope(|s| {
                s.spawn(|| has_run.store(true, SeqCst));
                // The loader's lists do not change in this test, so nobody waits for the flag.
                write(PLACE, UP);
                let ran_meanwhile = wait(&has_run, Duration::from_millis(300));
                write(PLACE, DOWN);
                assert!(!ran_meanwhile, "preempted with the flag up");
                assert!(wait(&has_run, Duration::from_secs(20)), "never preempted");
            });
        });
    }
}
