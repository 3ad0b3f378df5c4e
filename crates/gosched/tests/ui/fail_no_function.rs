#[gosched::main]
struct Program;

#[gosched::test]
const TEST: Program = Program;

#[gosched::main]
mod program {}

fn main() {
    drop(TEST);
}
