//! What is particular to Unix: [`net`].

pub mod net;
