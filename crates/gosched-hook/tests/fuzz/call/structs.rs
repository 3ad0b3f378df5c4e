//! Calls whose arguments are structs.

use std::ffi::c_int;

use libc::iovec;

use super::{Call, Op};
use crate::world::{Memory, Place, World};

impl Call {
    pub(super) fn time(&self, scale: u32) -> c_int {
        [0, 40 * scale as c_int][self.choice % 2]
    }

    pub(super) fn recvmsg(
        &self,
        fd: c_int,
        list: &mut [iovec],
        memory: &Memory,
        world: &mut World,
        more: &mut Vec<i64>,
    ) -> i64 {
        let mut control = [0u64; 8];
        let mut whole = message(list).msg_hdr;
        whole.msg_iov = self.list_at(list, memory);
        whole.msg_iovlen = self.count;
        if self.choice.is_multiple_of(2) {
            whole.msg_control = control.as_mut_ptr().cast();
            whole.msg_controllen = size_of_val(&control);
        }
        // SAFETY: the message and what it names, of this frame or of `memory`.
        let n = unsafe { libc::recvmsg(fd, &mut whole, self.flags) };
        more.extend([whole.msg_flags as i64, whole.msg_controllen as i64]);
        // SAFETY: the kernel has filled in the control data.
        unsafe {
            let head = libc::CMSG_FIRSTHDR(&whole);
            if n >= 0 && !head.is_null() && (*head).cmsg_type == libc::SCM_RIGHTS {
                let new = libc::CMSG_DATA(head).cast::<c_int>().read_unaligned();
                world.accepted(new);
            }
        }
        n as i64
    }

    pub(super) fn recvmmsg(
        &self,
        fd: c_int,
        memory: &Memory,
        scale: u32,
        more: &mut Vec<i64>,
    ) -> i64 {
        let count = self.count.min(5);
        let mut lists: Vec<[iovec; 1]> = (0..count)
            .map(|n| {
                let at = self.buffer(memory).wrapping_byte_add(n * 1_000);
                [iovec {
                    iov_base: at,
                    iov_len: self.len.min(1_000),
                }]
            })
            .collect();
        let mut messages: Vec<_> = lists.iter_mut().map(|list| message(list)).collect();
        let at = match self.is_list_wrong {
            true => self.of_wrong(memory),
            false => messages.as_mut_ptr(),
        };
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let time: *mut libc::timespec = match self.choice % 4 {
            0 => &mut time,
            1 => {
                time.tv_nsec = i64::from(8 * scale) * 1_000_000;
                &mut time
            }
            2 if self.choice.is_multiple_of(5) => memory.unmapped.cast(),
            _ => std::ptr::null_mut(),
        };
        // SAFETY: the messages and what they name, of this frame or of `memory`.
        let n = unsafe { libc::recvmmsg(fd, at, count as u32, self.flags, time) };
        more.extend(messages.iter().map(|message| i64::from(message.msg_len)));
        n.into()
    }

    pub(super) fn sendmsg(
        &self,
        fd: c_int,
        other: c_int,
        list: &mut [iovec],
        memory: &Memory,
    ) -> i64 {
        let mut control = [0u64; 4];
        let mut whole = message(list).msg_hdr;
        whole.msg_iov = self.list_at(list, memory);
        whole.msg_iovlen = self.count;
        if self.op == Op::SendRights {
            whole.msg_control = control.as_mut_ptr().cast();
            // SAFETY: the control data of this frame has room for one descriptor.
            unsafe {
                whole.msg_controllen = libc::CMSG_SPACE(4) as usize;
                let head = libc::CMSG_FIRSTHDR(&whole);
                (*head).cmsg_level = libc::SOL_SOCKET;
                (*head).cmsg_type = libc::SCM_RIGHTS;
                (*head).cmsg_len = libc::CMSG_LEN(4) as usize;
                libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(other);
            }
        }
        let at = match self.is_list_wrong && self.choice.is_multiple_of(5) {
            true => self.of_wrong(memory),
            false => &raw const whole,
        };
        // SAFETY: the message and what it names, of this frame or of `memory`, or none at all.
        unsafe { libc::sendmsg(fd, at, self.flags) as i64 }
    }

    pub(super) fn poll(
        &self,
        world: &World,
        scale: u32,
        memory: &Memory,
        more: &mut Vec<i64>,
    ) -> i64 {
        let events = [
            libc::POLLIN,
            libc::POLLOUT,
            libc::POLLIN | libc::POLLOUT,
            libc::POLLPRI,
            0,
        ];
        let events = |n: usize| events[(self.choice >> n) % events.len()] | libc::POLLRDHUP;
        let events = |n: usize| match self.choice >> n & 8 {
            0 => events(n) & !libc::POLLRDHUP,
            _ => events(n),
        };
        let places = [self.place, self.other, self.third];
        let mut fds: Vec<_> = places
            .into_iter()
            .enumerate()
            .map(|(n, place)| libc::pollfd {
                fd: world.fd(place),
                events: events(n),
                revents: 0,
            })
            .take(self.count)
            .collect();
        let (count, time) = (fds.len() as libc::nfds_t, self.time(scale));
        let at = match self.is_list_wrong {
            true => self.of_wrong(memory),
            false => fds.as_mut_ptr(),
        };
        let length = libc::timespec {
            tv_sec: 0,
            tv_nsec: if self.choice.is_multiple_of(31) {
                -1
            } else {
                i64::from(time) * 1_000_000
            },
        };
        // SAFETY: the structs of this frame are read and written.
        let n = unsafe {
            match self.op {
                Op::Poll => libc::poll(at, count, time),
                _ => libc::ppoll(at, count, &length, std::ptr::null()),
            }
        };
        more.extend(fds.iter().map(|poll| i64::from(poll.revents)));
        n.into()
    }

    pub(super) fn select(
        &self,
        world: &World,
        scale: u32,
        memory: &Memory,
        more: &mut Vec<i64>,
    ) -> i64 {
        // SAFETY: all bits zero are an empty set.
        let mut sets: [libc::fd_set; 3] = unsafe { std::mem::zeroed() };
        let places = [self.place, self.other, self.third];
        let chosen = |n: usize| self.choice >> n & 1 == 1;
        let small = |place: Place| (0..1_024).contains(&world.fd(place));
        let all = (0..9).filter(|n| chosen(*n) && small(places[n % 3]));
        for n in all.clone() {
            // SAFETY: the set of this frame; the number is below 1024.
            unsafe { libc::FD_SET(world.fd(places[n % 3]), &mut sets[n / 3]) };
        }
        let mut time = libc::timeval {
            tv_sec: 0,
            tv_usec: i64::from(self.time(scale)) * 1_000,
        };
        let count = [1_024, 1_024, 1_024, 0, -1][self.choice / 7 % 5];
        let mut at = sets.each_mut().map(|set| &raw mut *set);
        if self.is_list_wrong {
            at[self.choice % 3] = self.of_wrong(memory);
        }
        // SAFETY: the sets and the time of this frame, or no memory at all.
        let n = unsafe { libc::select(count, at[0], at[1], at[2], &mut time) };
        for n in all {
            // SAFETY: as above.
            let is_set = unsafe { libc::FD_ISSET(world.fd(places[n % 3]), &sets[n / 3]) };
            more.push(is_set.into());
        }
        n.into()
    }

    pub(super) fn wait(&self, world: &mut World, more: &mut Vec<i64>) -> i64 {
        let pid = world.child.as_ref().map_or(1, |child| child.id() as c_int);
        let pid = if self.choice.is_multiple_of(11) {
            1
        } else {
            pid
        };
        let options = match self.choice % 3 {
            0 => libc::WNOHANG,
            _ => 0,
        };
        // SAFETY: the status or the info of this frame is written.
        let n = unsafe {
            if self.op == Op::WaitPid {
                let mut status = 0;
                let n = libc::waitpid(pid, &mut status, options);
                more.push(status.into());
                n
            } else {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                let options = options
                    | [libc::WEXITED, libc::WEXITED | libc::WNOWAIT, 0][self.choice / 3 % 3];
                let n = libc::waitid(libc::P_PID, pid as u32, &mut info, options);
                more.extend([info.si_signo, info.si_code, info.si_status()].map(i64::from));
                n
            }
        };
        n.min(1).into()
    }
}

/// A message with these buffers.
pub(super) fn message(list: &mut [iovec]) -> libc::mmsghdr {
    // SAFETY: all bits zero are an empty message.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_iov = list.as_mut_ptr();
    message.msg_hdr.msg_iovlen = list.len();
    message
}
