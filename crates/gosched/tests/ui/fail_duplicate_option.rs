#[gosched::main(procs = 4, stack_size = 65536, procs = 2)]
fn main() {}

#[gosched::test(crate = "gosched", crate = "gosched")]
fn test() {}
