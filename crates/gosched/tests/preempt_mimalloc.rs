//! mimalloc as the program's allocator, and goroutines that are preempted anywhere in it.

mod common;
#[path = "preempt/holders.rs"]
mod holders;
#[path = "preempt/spin.rs"]
mod spin;

use std::time::Duration;

use gosched::alloc::OnThread;
use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: OnThread<MiMalloc> = OnThread::new(MiMalloc);

const TIME: Duration = Duration::from_secs(4);

#[test]
fn d7_d9_preempted_holders_of_locks_never_stop_the_process() {
    let name = "d7_d9_preempted_holders_of_locks_never_stop_the_process";
    common::child(name, || holders::mix(TIME, 2)).succeeded();
}

#[test]
fn d7_d9_preempted_holders_of_locks_under_chaos() {
    let name = "d7_d9_preempted_holders_of_locks_under_chaos";
    let seed = common::env("GOSCHED_STRESS_SEED").unwrap_or(13);
    let set = |command: &mut _| holders::set(command, false, Some(seed));
    common::child_with(name, "", set, |_| holders::mix(TIME, 2)).succeeded();
}
