//! SIGQUIT prints every goroutine if the builder asks for it, and the program continues.

use std::io::{Read, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use crate::common::this_test_again;

const CHILD: &str = "GOSCHED_TEST_SIGQUIT";

fn child() {
    let runtime = gosched::Runtime::builder()
        .dump_on_sigquit(true)
        .build()
        .unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&done);
    std::thread::spawn(move || {
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        told.store(true, SeqCst);
    });
    runtime.run(|| {
        let parked = gosched::thread::Builder::new()
            .name("the parked one".into())
            .spawn(gosched::thread::park)
            .unwrap();
        while gosched::debug::metrics().park_count == 0 {
            gosched::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: the handler is installed; the signal goes to this process alone.
        unsafe { libc::kill(libc::getpid(), libc::SIGQUIT) };
        while !done.load(SeqCst) {
            gosched::thread::sleep(Duration::from_millis(10));
        }
        parked.thread().unpark();
        parked.join().unwrap();
    });
}

#[test]
fn sigquit_dumps_every_goroutine_and_goes_on() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let mut process = this_test_again("sigquit_dumps_every_goroutine_and_goes_on")
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = process.stderr.take().unwrap();
    let (mut text, mut chunk) = (String::new(), [0; 4096]);
    let complete = |text: &str| text.contains("the parked one") && text.contains("goroutine 1 [");
    while !complete(&text) {
        let n = stderr.read(&mut chunk).unwrap();
        assert!(n > 0, "the child ended: {text}");
        text.push_str(&String::from_utf8_lossy(&chunk[..n]));
    }
    assert!(text.contains("SIGQUIT: quit"), "{text}");
    let mut stdin = process.stdin.take().unwrap();
    stdin.flush().unwrap();
    drop(stdin);
    assert!(process.wait().unwrap().success(), "{text}");
}
