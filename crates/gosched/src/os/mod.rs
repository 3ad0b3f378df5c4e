//! What is particular to one kind of operating system: [`unix::net`] has the sockets of the Unix domain.
//!
//! As `std::os`, for goroutines.

pub mod unix;
