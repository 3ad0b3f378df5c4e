//! The error is where the path is written.

#[gosched::main(crate = "nowhere::gosched")]
fn main() {}
