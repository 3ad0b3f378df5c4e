//! Which words share a cache line. Words that different threads write often lie on different lines:
//! otherwise a store by one thread takes the line from the others, for nothing.
//!
//! A line counts as 128 bytes, because Intel CPUs fetch pairs of 64. `docs/scaling.md` has the
//! threads that touch each word, and how often.

use std::mem::{offset_of, size_of};

use super::*;
use crate::sched::model::p::P;

const LINE: usize = 128;

/// A field: its name, offset and size.
type Field = (&'static str, usize, usize);

/// The field of a struct, by its name and type.
macro_rules! field {
    ($of:ty, $name:ident) => {{
        fn size<F>(_: fn(&$of) -> &F) -> usize {
            size_of::<F>()
        }
        let at = offset_of!($of, $name);
        (stringify!($name), at, size(|all| &all.$name))
    }};
}

/// Whether both have bytes on one line.
fn share_a_line(one: Field, other: Field) -> bool {
    let lines = |(_, at, size): Field| at / LINE..=(at + size - 1) / LINE;
    let (one, other) = (lines(one), lines(other));
    one.start() <= other.end() && other.start() <= one.end()
}

/// No two fields of different groups share a line.
fn assert_apart(groups: &[&[Field]]) {
    for (nth, group) in groups.iter().enumerate() {
        for one in *group {
            for other in groups[nth + 1..].iter().copied().flatten() {
                assert!(!share_a_line(*one, *other), "{one:?} beside {other:?}");
            }
        }
    }
}

/// The first group is read at every switch, spawn or search and hardly ever written. Each of the
/// other groups has writers of its own.
#[test]
fn pl_words_of_a_runtime_with_different_writers_are_on_different_lines() {
    assert_apart(&[
        &[
            field!(Sched, config),
            field!(Sched, nprocs),
            field!(Sched, allp),
            field!(Sched, gcwaiting),
            field!(Sched, dead),
            field!(Sched, closed),
            field!(Sched, stack_class),
            field!(Sched, tls),
            field!(Sched, arena),
            field!(Sched, started_ns),
            field!(Sched, at_limit),
            field!(Sched, scavenge_now),
        ],
        &[field!(Sched, core)],
        &[field!(Sched, runq_len)],
        &[field!(Sched, spin)],
        &[field!(Sched, idle_mask)],
        &[field!(Sched, next_goid)],
        &[field!(Sched, blocks)],
        &[field!(Sched, timers)],
        &[field!(Sched, poller)],
        &[field!(Sched, now_ms)],
        &[field!(Sched, sysmon)],
        &[field!(Sched, outside)],
        &[field!(Sched, claims)],
        &[
            field!(Sched, strays),
            field!(Sched, calls),
            field!(Sched, is_carrying),
        ],
        &[
            field!(Sched, room),
            field!(Sched, lookups),
            field!(Sched, starts),
        ],
    ]);
}

/// The holder's own fields, what thieves change, the timers that any thread may expire, and
/// sysmon's samples.
#[test]
fn pl_words_of_a_p_with_different_writers_are_on_different_lines() {
    assert_apart(&[
        &[field!(P, schedtick), field!(P, counters)],
        &[field!(P, runq)],
        &[field!(P, timers)],
        &[field!(P, seen)],
    ]);
    assert_eq!(align_of::<P>() % LINE, 0);
}

/// Two Ms have no line in common: an M stores into its first words at every entry into the runtime.
#[test]
fn mg_two_ms_share_no_line() {
    assert_eq!(align_of::<M>() % LINE, 0);
}
