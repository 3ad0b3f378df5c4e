//! What happens while a call waits.

use std::ffi::c_int;
use std::time::Duration;

use gosched::chan::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::world::Place;

/// One action of the partner.
#[derive(Debug)]
pub enum Act {
    /// So many bytes to this descriptor.
    Write(c_int, usize),
    /// Reads until the call has returned; nothing if it has returned before.
    Drain(c_int),
    Shutdown(c_int),
    Close(c_int, Place),
    /// A connection to the listener.
    ConnectTcp(c_int),
    ConnectUnix(Box<libc::sockaddr_un>),
    Event(c_int),
    Timer(c_int),
    EndChild(std::process::ChildStdin),
}

/// An action, and how long the call may wait before.
pub type Step = (Duration, Act);

/// A thread or goroutine that acts when a call has returned, or waits for too long.
pub struct Partner {
    steps: Sender<Vec<Step>>,
    returned: Sender<()>,
    closed: Receiver<Vec<Place>>,
}

impl Partner {
    pub fn start(spawn: fn(Box<dyn FnOnce() + Send>)) -> Partner {
        let (steps, get_steps) = bounded::<Vec<Step>>(1);
        let (returned, has_returned) = bounded(1);
        let (tell_closed, closed) = bounded(1);
        spawn(Box::new(move || {
            while let Ok(steps) = get_steps.recv() {
                let mut has_it = false;
                let mut closed = Vec::new();
                for (wait, act) in steps {
                    has_it = has_it || has_returned.recv_timeout(wait).is_ok();
                    has_it |= act.perform(has_it, &has_returned, &mut closed);
                }
                if !has_it {
                    _ = has_returned.recv();
                }
                if tell_closed.send(closed).is_err() {
                    return;
                }
            }
        }));
        Partner {
            steps,
            returned,
            closed,
        }
    }

    /// The call begins.
    pub fn begin(&self, steps: Vec<Step>) {
        self.steps.send(steps).unwrap();
    }

    /// The call has returned. All steps are done when this returns the places that are closed now.
    pub fn end(&self) -> Vec<Place> {
        self.returned.send(()).unwrap();
        self.closed.recv().unwrap()
    }
}

impl Act {
    /// Returns whether the call has returned meanwhile.
    fn perform(self, has_it: bool, has_returned: &Receiver<()>, closed: &mut Vec<Place>) -> bool {
        // SAFETY: calls on numbers of the run, with memory of this frame.
        unsafe {
            match self {
                Act::Write(fd, len) => {
                    let bytes = vec![b'w'; len];
                    let mut poll = libc::pollfd {
                        fd,
                        events: libc::POLLOUT,
                        revents: 0,
                    };
                    // With a full buffer at the other side, nothing is written.
                    if libc::poll(&mut poll, 1, 0) == 1 && poll.revents == libc::POLLOUT {
                        libc::write(fd, bytes.as_ptr().cast(), len);
                    }
                }
                Act::Drain(fd) if !has_it => return drain(fd, has_returned),
                Act::Drain(_) => {}
                Act::Shutdown(fd) => _ = libc::shutdown(fd, libc::SHUT_WR),
                Act::Close(fd, place) => {
                    libc::close(fd);
                    closed.push(place);
                }
                Act::ConnectTcp(listener) => connect_tcp(listener),
                Act::ConnectUnix(addr) => {
                    let fd =
                        libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
                    let len = size_of::<libc::sockaddr_un>() as u32;
                    libc::connect(fd, (&raw const *addr).cast(), len);
                    libc::close(fd);
                }
                Act::Event(fd) => {
                    libc::write(fd, 3u64.to_ne_bytes().as_ptr().cast(), 8);
                }
                Act::Timer(fd) => {
                    let mut time: libc::itimerspec = std::mem::zeroed();
                    time.it_value.tv_nsec = 1;
                    libc::timerfd_settime(fd, 0, &time, std::ptr::null_mut());
                }
                Act::EndChild(stdin) => drop(stdin),
            }
        }
        false
    }
}

fn connect_tcp(listener: c_int) {
    let mut addr = crate::world::loopback(0);
    let mut len = size_of_val(&addr) as u32;
    // SAFETY: calls on the run's listener and a socket of this function.
    unsafe {
        if libc::getsockname(listener, (&raw mut addr).cast(), &mut len) != 0 {
            return;
        }
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0);
        libc::connect(fd, (&raw const addr).cast(), len);
        libc::close(fd);
    }
}

/// Reads until the call has returned and nothing is left.
fn drain(fd: c_int, has_returned: &Receiver<()>) -> bool {
    let mut has_it = false;
    let mut bytes = vec![0u8; 1 << 16];
    loop {
        let mut poll = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: the struct and the buffer of this frame are written.
        let n = unsafe {
            match libc::poll(&mut poll, 1, 0) {
                1 if poll.revents & libc::POLLIN != 0 => {
                    libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len())
                }
                _ => -1,
            }
        };
        if n > 0 {
            continue;
        }
        if has_it || n == 0 {
            return has_it;
        }
        let wait = Duration::from_micros(300);
        has_it = !matches!(
            has_returned.recv_timeout(wait),
            Err(RecvTimeoutError::Timeout)
        );
    }
}
