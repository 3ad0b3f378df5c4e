//! The programs in `examples/` run to their ends; what they promise they assert themselves.

use std::process::ExitCode;

use super::{LONG, within};

#[path = "../../../examples/async_pool.rs"]
mod async_pool;
#[path = "../../../examples/tokio_bridge.rs"]
mod tokio_bridge;

#[test]
fn goroutines_use_a_crate_that_is_async_only() {
    let code = within(LONG, "async_pool", async_pool::main);
    assert_eq!(code, ExitCode::SUCCESS);
}

#[test]
fn a_tokio_program_awaits_goroutines() {
    within(LONG, "tokio_bridge", tokio_bridge::main);
}
