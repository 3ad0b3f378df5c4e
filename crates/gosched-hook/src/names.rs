//! Name lookups: libc's resolver blocks its thread, so the runtime limits how many run at a time.

use std::ffi::{c_char, c_int};

use gosched::hook;

use crate::table;

table::hook! {
    fn getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const libc::addrinfo,
        result: *mut *mut libc::addrinfo,
    ) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { real(node, service, hints, result) };
        if !table::getaddrinfo.applies() {
            return call();
        }
        hook::look_up(call).unwrap_or_else(|| {
            table::getaddrinfo.count_left();
            call()
        })
    };

    fn getnameinfo(
        address: *const libc::sockaddr,
        len: libc::socklen_t,
        host: *mut c_char,
        host_len: libc::socklen_t,
        service: *mut c_char,
        service_len: libc::socklen_t,
        flags: c_int,
    ) -> c_int = |real| {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { real(address, len, host, host_len, service, service_len, flags) };
        if flags & libc::NI_NUMERICHOST != 0 || !table::getnameinfo.applies() {
            return call();
        }
        hook::look_up(call).unwrap_or_else(|| {
            table::getnameinfo.count_left();
            call()
        })
    };
}
