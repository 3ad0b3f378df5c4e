//! Modules for one kind of operating system, as `std::os`.
//!
//! [`unix::net`] has the Unix domain sockets.

pub mod unix;
