//! The body is checked all the same.

#[gosched::main(threads = 4)]
fn main() {
    let number: u32 = "text";
}

#[gosched::test(procs = 2, flavor = "current", stack = 3)]
fn test() {}
