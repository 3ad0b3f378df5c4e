use std::net::Ipv4Addr;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc;

use super::*;
use crate::Runtime;
use crate::context::ContextError;
use crate::tests::{NEVER, eventually};

type Addrs = io::Result<Vec<SocketAddr>>;

fn addr() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 1).into()
}

fn after(ms: u64) -> Limit<'static> {
    Limit::new(Some(Instant::now() + Duration::from_millis(ms)), None)
}

/// A lookup that ends when the sender is dropped.
fn slow(count: &Arc<AtomicUsize>) -> (mpsc::Sender<()>, impl FnOnce() -> Addrs + Send + 'static) {
    let (go_on, wait) = mpsc::channel();
    let count = Arc::clone(count);
    let lookup = move || {
        count.fetch_add(1, SeqCst);
        _ = wait.recv_timeout(NEVER);
        Ok(vec![addr()])
    };
    (go_on, lookup)
}

/// Runs `f` as a goroutine, with one lookup at a time, and on a plain thread.
fn everywhere(f: impl Fn() + Send + Sync) {
    let runtime = Runtime::builder().procs(2).max_lookups(1).build();
    runtime.unwrap().run(&f);
    f();
}

#[test]
fn a_result_in_time_is_returned() {
    everywhere(|| {
        let found = find_beside(|| Ok(vec![addr(), addr()]), &after(60_000));
        assert_eq!(found.unwrap(), [addr(), addr()]);
        let error = find_beside(|| Err(io::Error::other("no such name")), &after(60_000));
        assert_eq!(error.unwrap_err().to_string(), "no such name");
    });
}

/// The caller continues at the limit. The lookup ends later, by itself.
#[test]
fn the_caller_does_not_wait_for_a_lookup_past_its_limit() {
    everywhere(|| {
        let count = Arc::new(AtomicUsize::new(0));
        let (go_on, lookup) = slow(&count);
        let error = find_beside(lookup, &after(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), LATE);
        drop(go_on);
    });
}

#[test]
fn a_cancelled_context_ends_the_wait() {
    everywhere(|| {
        let ctx = Context::background().with_cancel();
        let limit = Limit::new(None, Some(&ctx));
        let count = Arc::new(AtomicUsize::new(0));
        let (go_on, lookup) = slow(&count);
        let canceller = {
            let (ctx, count) = (ctx.clone(), Arc::clone(&count));
            std::thread::spawn(move || {
                assert!(eventually(|| count.load(SeqCst) == 1));
                ctx.cancel();
            })
        };
        let error = find_beside(lookup, &limit).unwrap_err();
        assert_eq!(
            error.downcast::<ContextError>().unwrap(),
            ContextError::Canceled
        );
        canceller.join().unwrap();
        drop(go_on);

        let ctx = Context::background().with_timeout(Duration::from_millis(5));
        let (go_on, lookup) = slow(&count);
        let error = find_beside(lookup, &Limit::new(None, Some(&ctx))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let reason = error.downcast::<ContextError>().unwrap();
        assert_eq!(reason, ContextError::DeadlineExceeded);
        drop(go_on);
    });
}

/// A lookup that was given up keeps its permit. A lookup given up before it began never runs.
#[test]
fn lookups_that_were_given_up_stay_bounded() {
    let runtime = Runtime::builder().procs(2).max_lookups(1).build().unwrap();
    runtime.run(|| {
        let count = Arc::new(AtomicUsize::new(0));
        let (go_on, lookup) = slow(&count);
        let ctx = Context::background().with_cancel();
        let canceller = {
            let (ctx, count) = (ctx.clone(), Arc::clone(&count));
            std::thread::spawn(move || {
                assert!(eventually(|| count.load(SeqCst) == 1));
                ctx.cancel();
            })
        };
        find_beside(lookup, &Limit::new(None, Some(&ctx))).unwrap_err();
        canceller.join().unwrap();

        let never = Arc::new(AtomicUsize::new(0));
        for _ in 0..10 {
            let (_go_on, lookup) = slow(&never);
            find_beside(lookup, &after(5)).unwrap_err();
        }
        assert_eq!(count.load(SeqCst), 1);
        drop(go_on);
        // In order: the lookups that were given up have had their turns before this one.
        find_beside(
            || Ok(Vec::new()),
            &Limit::new(None, Some(&ctx.with_cancel())),
        )
        .unwrap_err();
        find_beside(|| Ok(Vec::new()), &after(60_000)).unwrap();
        assert_eq!(never.load(SeqCst), 0, "they were wanted no more");
        assert!(eventually(|| crate::num_goroutines() == 1));
    });
}

/// A permit of a plain thread comes back, whatever became of the lookup.
#[test]
fn permits_of_plain_threads_come_back() {
    for _ in 0..2 * PLAIN_MAX / 10 {
        find_beside(|| Ok(Vec::new()), &after(60_000)).unwrap();
    }
    let count = Arc::new(AtomicUsize::new(0));
    let (go_on, lookup) = slow(&count);
    find_beside(lookup, &after(20)).unwrap_err();
    drop(go_on);
    assert!(eventually(|| TAKEN.1.len() < 10));
}

/// A runtime that ends does not wait for a lookup.
#[test]
fn a_runtime_ends_while_a_lookup_runs() {
    let count = Arc::new(AtomicUsize::new(0));
    let (go_on, lookup) = slow(&count);
    let runtime = crate::tests::runtime(2);
    runtime.go(move || {
        _ = find_beside(lookup, &after(3_600_000));
    });
    assert!(eventually(|| count.load(SeqCst) == 1));
    drop(runtime);
    drop(go_on);
}
