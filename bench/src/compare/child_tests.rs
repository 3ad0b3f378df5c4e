//! Tests of driving children, with the test program itself as the child: `fake` acts as an
//! environment variable says.

use super::*;

const PART: &str = "GOSCHED_BENCH_FAKE";
const LIMIT: Duration = Duration::from_secs(60);

/// A test only if a test started it.
#[test]
fn fake() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let say = |text: &str| {
        println!("{text}");
        io::stdout().flush().expect("the test listens");
    };
    let rounds = || io::stdin().lock().lines().map_while(Result::ok);
    match part.as_str() {
        "good" => {
            say("ready");
            for (nth, _) in rounds().enumerate() {
                say(&format!("time {} ns\nrate 1e3 req/s\ndone", nth + 1));
            }
        }
        // Is ready only once it has its first order.
        "ordered" => {
            let mut rounds = rounds();
            assert_eq!(rounds.next().as_deref(), Some("round"));
            say("ready\ntime 1 ns\ndone");
            rounds.for_each(|_| say("time 2 ns\ndone"));
        }
        "server" => {
            say("port 4711");
            rounds().for_each(drop);
        }
        "unsupported" => say("unsupported no such thing"),
        "wrong" => {
            say("ready");
            rounds().next();
            eprintln!("gosched-peers: the sum is wrong\n");
            std::process::exit(1);
        }
        "stalled" => {
            say("ready");
            rounds().next();
            eprintln!("gosched-peers: stalled: 1 of 500 ticks");
            std::process::exit(1);
        }
        "dies" => {
            say("ready");
            rounds().next();
            eprintln!("fatal error: all is lost\n\ngoroutine 1:\nmain.main()");
            std::process::abort();
        }
        "panics" => {
            say("ready");
            rounds().next();
            let hook = std::env::var("RUST_BACKTRACE").expect("it was told");
            eprintln!("the reason, with backtrace {hook}");
            eprintln!("note: run with `RUST_BACKTRACE=1` for more\nnote: or do not");
            std::process::exit(101);
        }
        "babbles" => {
            say("ready");
            rounds().next();
            say("time is money");
        }
        // Hangs, with a child of its own that also hangs and holds a pipe.
        "hangs" => {
            say("ready");
            rounds().next();
            let mut grandchild = command("sleeps");
            let grandchild = grandchild.stdout(Stdio::null()).spawn();
            let mut grandchild = grandchild.expect("a grandchild");
            say(&format!("pid {} count", grandchild.id()));
            let _ = grandchild.wait();
        }
        "late" => {
            say("ready");
            std::thread::sleep(10 * LIMIT);
        }
        _ => std::thread::sleep(10 * LIMIT),
    }
    std::process::exit(0);
}

/// The test program, as a child that plays `part`.
fn command(part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "compare::child::tests::fake"])
        .args(["--nocapture", "--test-threads=2"])
        .env(PART, part);
    command
}

fn child(part: &str) -> Child {
    Child::start(&mut command(part)).expect("a child")
}

fn ready(part: &str) -> Child {
    let mut child = child(part);
    assert_eq!(child.greeting(LIMIT), Ok(Greeting::Ready));
    child
}

fn told(metric: &str, value: f64, unit: &str) -> Measure {
    Measure {
        metric: metric.into(),
        value,
        unit: unit.into(),
    }
}

#[test]
fn rounds_are_asked_for_one_by_one() {
    let mut child = ready("good");
    for nth in 1..=3 {
        let figures = child.round(LIMIT).expect("a round");
        let expected = [
            told("time", f64::from(nth), "ns"),
            told("rate", 1_000.0, "req/s"),
        ];
        assert_eq!(figures, expected);
    }
    child.finish().expect("it ends with its input");
}

#[test]
fn the_first_round_can_be_ordered_before_the_child_is_ready() {
    let mut child = child("ordered");
    child.begin_early();
    assert_eq!(child.greeting(LIMIT), Ok(Greeting::Ready));
    assert_eq!(child.figures(LIMIT), Ok(vec![told("time", 1.0, "ns")]));
    assert_eq!(child.round(LIMIT), Ok(vec![told("time", 2.0, "ns")]));
    child.finish().expect("it ends with its input");
}

#[test]
fn an_early_order_hides_no_refusal() {
    let mut child = child("unsupported");
    assert!(child.wait(LIMIT).is_some(), "it ends by itself");
    child.begin_early();
    let verdict = child.greeting(LIMIT).expect_err("a refusal");
    assert_eq!(verdict, Verdict::Unsupported("no such thing".into()));
}

#[test]
fn a_server_says_where_it_is() {
    let mut child = child("server");
    assert_eq!(child.greeting(LIMIT), Ok(Greeting::Port(4711)));
    child.finish().expect("it ends with its input");
}

#[test]
fn what_cannot_be_done_is_no_failure() {
    let verdict = child("unsupported").greeting(LIMIT).expect_err("a refusal");
    assert_eq!(verdict, Verdict::Unsupported("no such thing".into()));
}

#[test]
fn a_failure_tells_its_last_words() {
    let verdict = |part| ready(part).round(LIMIT).expect_err("no figures");
    assert_eq!(verdict("wrong"), Verdict::Failed("the sum is wrong".into()));
    assert_eq!(
        verdict("stalled"),
        Verdict::Stalled("1 of 500 ticks".into())
    );
    let reason = "killed by SIGABRT: fatal error: all is lost";
    assert_eq!(verdict("dies"), Verdict::Failed(reason.into()));
    let reason = "the reason, with backtrace 0";
    assert_eq!(verdict("panics"), Verdict::Failed(reason.into()));
    let reason = "it printed `time is money`";
    assert_eq!(verdict("babbles"), Verdict::Failed(reason.into()));
}

#[test]
fn what_is_no_program_fails() {
    let verdict = Child::start(&mut Command::new("/no/such/program"));
    assert!(matches!(verdict, Err(Verdict::Failed(_))));
}

#[test]
fn a_child_that_hangs_is_killed_with_its_own() {
    let mut child = ready("hangs");
    child.begin().expect("it listens");
    let line = child.line(Instant::now() + LIMIT, LIMIT).expect("a line");
    let grandchild = measure(&line).expect("a pid").value as u32;
    let is_alive = || {
        let stat = std::fs::read_to_string(format!("/proc/{grandchild}/stat"));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(is_alive());
    let limit = Duration::from_millis(50);
    assert_eq!(child.figures(limit), Err(Verdict::stalled_after(limit)));
    drop(child);
    let deadline = Instant::now() + LIMIT;
    while is_alive() {
        assert!(Instant::now() < deadline, "{grandchild} is still there");
        std::thread::sleep(LOOK);
    }
}

#[test]
fn a_watchdog_bites_who_is_late() {
    let mut late = ready("late");
    assert!(!late.watchdog(LIMIT).call_off());
    let watchdog = late.watchdog(Duration::from_millis(1));
    assert!(matches!(late.round(LIMIT), Err(Verdict::Failed(_))));
    assert!(watchdog.call_off());
}
