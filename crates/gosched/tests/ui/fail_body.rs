//! Errors in the body stand where they would without the attribute.

#[gosched::main(procs = 4)]
fn main() -> Result<(), String> {
    let number: u32 = "text";
    missing(number);
    number
}
