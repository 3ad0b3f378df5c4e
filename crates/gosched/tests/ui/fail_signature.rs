//! A function that the attribute could not call.

use std::fmt::Debug;

#[gosched::main]
fn main(arguments: Vec<String>) {
    drop(arguments);
}

#[gosched::main]
fn generic<T: Debug>() {}

#[gosched::main]
unsafe fn perilous() {}

#[gosched::main]
extern "C" fn foreign() {}

#[gosched::test]
fn with_argument(n: u32) {
    drop(n);
}

#[gosched::test]
#[test]
fn twice() {}
