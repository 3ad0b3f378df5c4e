//! Waits for children: the goroutine waits for a pidfd, which is readable when the child has ended.
//!
//! Waits for any child of several, and for children that stop or continue, have no such descriptor.

use std::ffi::c_int;

use gosched::hook::{Deadline, Direction};

use crate::fd::{self, Stop, Wait, answer, attempt};
use crate::table::{self, Function};

table::hook! {
    fn waitpid(pid: libc::pid_t, status: *mut c_int, options: c_int) -> libc::pid_t = |real| {
        // SAFETY: the arguments are the caller's; with another option, too.
        let call = |options| unsafe { real(pid, status, options) };
        waited(&table::waitpid, pid, options, call)
    };

    fn wait4(
        pid: libc::pid_t,
        status: *mut c_int,
        options: c_int,
        usage: *mut libc::rusage,
    ) -> libc::pid_t = |real| {
        // SAFETY: the arguments are the caller's; with another option, too.
        let call = |options| unsafe { real(pid, status, options, usage) };
        waited(&table::wait4, pid, options, call)
    };

    fn waitid(
        kind: libc::idtype_t,
        id: libc::id_t,
        info: *mut libc::siginfo_t,
        options: c_int,
    ) -> c_int = |real| {
        // SAFETY: the arguments are the caller's; with another option, too.
        let call = |options| unsafe { real(kind, id, info, options) };
        if options & libc::WNOHANG != 0 || !table::waitid.applies() {
            return call(options);
        }
        let is_one = matches!(kind, libc::P_PID | libc::P_PIDFD);
        if !is_one || options & !libc::WNOWAIT != libc::WEXITED {
            table::waitid.count_left();
            return call(options);
        }
        let look = || {
            // The caller's struct does not say whether a child has ended if it is null or wrong.
            // SAFETY: all bits zero are a siginfo.
            let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
            let only_look = options | libc::WNOHANG | libc::WNOWAIT;
            // SAFETY: libc writes the siginfo.
            attempt(unsafe { real(kind, id, &mut ended, only_look) } as isize)?;
            // SAFETY: waitid has filled it in, or left it zero.
            match unsafe { ended.si_pid() } {
                0 => Err(libc::EAGAIN),
                _ => attempt(call(options | libc::WNOHANG) as isize),
            }
        };
        let result = match kind {
            libc::P_PIDFD => wait_for(id as c_int, look),
            _ => wait_for_child(id as libc::pid_t, look),
        };
        answer(&table::waitid, result, || call(options) as isize) as c_int
    };
}

fn waited(
    function: &Function,
    pid: libc::pid_t,
    options: c_int,
    call: impl Fn(c_int) -> libc::pid_t,
) -> libc::pid_t {
    if options & libc::WNOHANG != 0 || !function.applies() {
        return call(options);
    }
    if pid <= 0 || options != 0 {
        function.count_left();
        return call(options);
    }
    let result = wait_for_child(pid, || match attempt(call(libc::WNOHANG) as isize)? {
        0 => Err(libc::EAGAIN),
        pid => Ok(pid),
    });
    answer(function, result, || call(options) as isize) as libc::pid_t
}

/// Looks until the child has ended. `look` fails with EAGAIN while it has not.
fn wait_for_child(
    pid: libc::pid_t,
    look: impl Fn() -> Result<usize, c_int>,
) -> Result<usize, Stop> {
    match look() {
        Err(libc::EAGAIN) => {}
        done => return done.map_err(Stop::Fail),
    }
    // SAFETY: the call has no condition.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as c_int;
    if pidfd < 0 {
        return Err(Stop::Libc);
    }
    fd::opened(pidfd);
    let result = wait_for(pidfd, look);
    fd::closing(pidfd);
    type Close = unsafe extern "C" fn(c_int) -> c_int;
    // SAFETY: libc's close has this type. The number was opened above.
    unsafe { table::close.real.get::<Close>()(pidfd) };
    result
}

fn wait_for(pidfd: c_int, look: impl Fn() -> Result<usize, c_int>) -> Result<usize, Stop> {
    Wait::new(pidfd, Direction::Read)
        .until(Deadline::NEVER)
        .until_done(look)
}
