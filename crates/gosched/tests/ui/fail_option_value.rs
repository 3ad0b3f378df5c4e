#[gosched::main(procs = "x")]
fn main() {}

#[gosched::main(procs = -1, stack_size = 1.5)]
fn negative() {}

#[gosched::main(stack_size)]
fn missing() {}

#[gosched::main(crate = gosched)]
fn without_quotes() {}

#[gosched::main(4)]
fn without_key() {}

#[gosched::main(procs = 4 stack_size = 65536)]
fn without_comma() {}
