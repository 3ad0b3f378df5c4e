//! Neither attribute takes an `async` function.

#[gosched::main]
async fn main() {
    helper();
}

#[gosched::test]
async fn test() {}

fn helper() {}
