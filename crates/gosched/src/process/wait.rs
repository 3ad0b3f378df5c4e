//! Waits for the end of a child without a thread: by a descriptor that becomes readable then.
//!
//! std's `Child` reaps the process and remembers its status. This file only decides when to ask it.

use std::io;
use std::os::fd::AsFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use crate::io::Registration;
use crate::sched::calls::syscall::blocking;
use crate::sched::sources::netpoll::Side;
use crate::sys;
use crate::time::sleep;

/// The pauses between two looks at a child, where the system has no descriptors for processes.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Waits until the child has ended.
pub(super) fn wait(child: &mut Child) -> io::Result<ExitStatus> {
    if let Some(status) = wait_until(child, None)? {
        return Ok(status);
    }
    blocking(|| child.wait())
}

/// Waits until the child has ended. None: the timeout has passed.
pub(super) fn wait_timeout(child: &mut Child, timeout: Duration) -> io::Result<Option<ExitStatus>> {
    let Some(deadline) = Instant::now().checked_add(timeout) else {
        return wait(child).map(Some);
    };
    let mut pause = SHORTEST_PAUSE;
    loop {
        let status = wait_until(child, Some(deadline))?;
        let left = deadline.saturating_duration_since(Instant::now());
        if status.is_some() || left.is_zero() {
            return Ok(status);
        }
        sleep(pause.min(left));
        pause = LONGEST_PAUSE.min(pause * 2);
    }
}

/// Waits by a descriptor. None: the child runs, because the deadline has passed or the system has
/// refused.
fn wait_until(child: &mut Child, deadline: Option<Instant>) -> io::Result<Option<ExitStatus>> {
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    let Ok(process) = sys::pidfd_open(child.id()) else {
        return Ok(None);
    };
    // Once more: where the system reaps children itself, the number may have been that of another
    // process. While the child runs, the number is the child's.
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    let registration = Registration::new(process.as_fd());
    if deadline.is_some() {
        registration.desc().set_deadline(Side::Read, deadline);
    }
    // The child has ended, the deadline has passed, or the system cannot report the end.
    drop(registration.wait_readable(process.as_fd()));
    child.try_wait()
}
