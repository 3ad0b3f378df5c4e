//! An `Err` that is not `Send` ends the process as it does without a runtime.

use std::error::Error;
use std::process::Command;

const CHILD: &str = "GOSCHED_UI_CHILD";

#[gosched::main]
fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os(CHILD).is_some() {
        return Err("a failure on purpose".into());
    }
    let child = Command::new(std::env::current_exe()?)
        .env(CHILD, "1")
        .output()?;
    assert_eq!(child.status.code(), Some(1));
    assert_eq!(
        String::from_utf8(child.stderr)?,
        "Error: \"a failure on purpose\"\n"
    );
    Ok(())
}
