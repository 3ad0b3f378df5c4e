//! Goroutines that are preempted anywhere in mimalloc.

use std::time::Duration;

use crate::{common, holders};

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
