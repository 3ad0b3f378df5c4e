//! Modules for Unix: [`net`], as `std::os::unix::net`.

pub mod net;
