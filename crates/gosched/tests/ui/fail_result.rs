//! A result that cannot end a program.

struct Nothing;

#[gosched::main]
fn main() -> Nothing {
    Nothing
}
