//! The lines of `GOSCHED_DEBUG=schedtrace` and `scheddetail` read as Go's do.

use std::time::Duration;

use crate::common::{child_with, runtime};
use gosched::thread;

/// The numbers in `key=number` pieces, in order; panics if a piece is not the next of `keys`.
#[track_caller]
fn numbers(pieces: &[&str], keys: &[&str]) -> Vec<u64> {
    assert_eq!(pieces.len(), keys.len(), "{pieces:?}");
    let number = |(piece, key): (&&str, &&str)| {
        let value = piece
            .strip_prefix(key)
            .and_then(|rest| rest.strip_prefix('='));
        let value = value.unwrap_or_else(|| panic!("{piece:?} is no {key}"));
        value
            .parse()
            .unwrap_or_else(|_| panic!("{piece:?} is no number"))
    };
    pieces.iter().zip(keys).map(number).collect()
}

const COUNTS: [&str; 7] = [
    "gomaxprocs",
    "idleprocs",
    "threads",
    "spinningthreads",
    "needspinning",
    "idlethreads",
    "runqueue",
];

/// The time and the counts at the beginning of a SCHED line, and the pieces that follow.
#[track_caller]
fn sched_line(line: &str) -> (u64, Vec<u64>, Vec<&str>) {
    let pieces: Vec<_> = line.split(' ').collect();
    assert_eq!(pieces[0], "SCHED", "{line}");
    let time = pieces[1].strip_suffix("ms:").expect("a time");
    let counts = numbers(&pieces[2..9], &COUNTS);
    (time.parse().expect("a time"), counts, pieces[9..].to_vec())
}

#[test]
fn schedtrace_prints_gos_lines() {
    let out = child_with(
        "schedtrace_prints_gos_lines",
        "",
        |command| {
            command.env("GOSCHED_DEBUG", "schedtrace=50");
        },
        |_| {
            let runtime = runtime(3);
            runtime.run(|| thread::sleep(Duration::from_secs(4)));
        },
    );
    out.succeeded();
    let lines: Vec<_> = out
        .stderr
        .lines()
        .filter(|l| l.starts_with("SCHED "))
        .collect();
    assert!(lines.len() >= 3, "{out:#?}");
    let mut times = Vec::new();
    for line in lines {
        let (time, counts, rest) = sched_line(line);
        times.push(time);
        assert_eq!(counts[0], 3, "{line}");
        let (queues, ticks) = rest.split_at(5);
        assert_eq!((queues[0], queues[4]), ("[", "]"), "{line}");
        assert_eq!(
            (ticks[0], ticks[4], ticks.len()),
            ("schedticks=[", "]", 5),
            "{line}"
        );
        for number in queues[1..4].iter().chain(&ticks[1..4]) {
            number.parse::<u64>().expect("a number");
        }
    }
    assert_eq!(times[0], 0);
    assert!(
        times.is_sorted() && times[times.len() - 1] >= 50,
        "{times:?}"
    );
}

#[test]
fn scheddetail_lists_every_p_m_and_g() {
    let out = child_with(
        "scheddetail_lists_every_p_m_and_g",
        "",
        |command| {
            command.env("GOSCHED_DEBUG", "schedtrace=100,scheddetail=1");
        },
        |_| {
            let runtime = runtime(2);
            runtime.run(|| {
                let parked = thread::spawn(thread::park);
                thread::sleep(Duration::from_secs(4));
                parked.thread().unpark();
            });
        },
    );
    out.succeeded();
    let blocks: Vec<_> = out.stderr.split("SCHED ").skip(1).map(block).collect();
    assert!(blocks.len() >= 2, "{out:#?}");
    for [ps, ms, _] in &blocks {
        assert_eq!(ps.len(), 2, "{out:#?}");
        assert!(
            ps.iter()
                .all(|p| p.contains(": status=") && p.contains(" schedtick="))
        );
        // A runtime that is being dropped may have no M.
        let shape = |m: &&str| m.contains(" mallocing=0 throwing=0 preemptoff= locks=");
        assert!(ms.iter().all(shape), "{out:#?}");
    }
    let is_idle_m = |m: &&str| {
        m.contains(": p=nil curg=nil mallocing=0 throwing=0 preemptoff= locks=")
            && m.ends_with(" spinning=false blocked=true lockedg=nil")
    };
    // At some look both goroutines waited and everything was idle.
    let is_quiet = |[ps, ms, gs]: &[Vec<&str>; 3]| {
        ps.iter()
            .all(|p| p.contains(": status=0 ") && p.contains(" m=nil runqsize=0 "))
            && ms.iter().any(is_idle_m)
            && gs.len() == 2
            && gs.contains(&"1: status=4(sleep) m=nil lockedm=nil")
            && gs
                .iter()
                .any(|g| g.ends_with(": status=4(park) m=nil lockedm=nil"))
    };
    assert!(blocks.iter().any(is_quiet), "{blocks:#?}");
}

/// The lines about Ps, Ms and Gs after a SCHED line of the detailed form, each without its letter.
fn block(text: &str) -> [Vec<&str>; 3] {
    let line = format!("SCHED {}", text.lines().next().unwrap_or_default());
    let (_, _, rest) = sched_line(&line);
    let keys: Vec<_> = rest
        .iter()
        .filter_map(|piece| piece.split('=').next())
        .collect();
    let expected = ["gcwaiting", "nmidlelocked", "stopwait", "sysmonwait"];
    assert_eq!(keys, expected, "{line}");
    ["  P", "  M", "  G"].map(|letter| {
        let lines = text
            .lines()
            .skip(1)
            .filter_map(|line| line.strip_prefix(letter));
        lines.collect()
    })
}
