//! Where a select may stand: among any names, under any name of the crate, in another select; and
//! how large it may be.

use gosched::chan::{bounded, never, select};

use super::{filled, ms};

#[test]
fn the_names_of_the_macro_are_its_own() {
    let (arms, arm) = filled([1]);
    let (oper, res) = (filled([2]), 3);
    let got = select! {
        recv(arm) -> msg => (msg, res, &oper),
        recv(oper.1) -> msg => (msg, res, &oper),
    };
    assert!(got.0.is_ok() && got.1 == 3);
    select! { send(arms, res) -> _ => {}, recv(oper.1) -> _ => {} }
    // Not those of the prelude either.
    #[allow(dead_code, clippy::upper_case_acronyms)]
    {
        struct Option;
        struct Some;
        struct None;
        struct Ok;
        struct Err;
        struct Result;
        select! { send(arms, res) -> _ => {}, recv(oper.1) -> _ => {}, default => {} }
        select! { recv(arm) -> _ => {}, default => {} }
        select! { recv(arm) -> _ => {}, default(ms(1)) => {} }
    }
}

mod without_a_prelude {
    #![no_implicit_prelude]

    #[test]
    fn it_works() {
        let (s, r) = ::gosched::chan::unbounded();
        ::gosched::select! {
            send(s, 1) -> res => ::std::assert!(res.is_ok()),
            recv(r) -> _ => ::std::unreachable!(),
        }
        ::gosched::chan::select_biased! {
            recv(r) -> msg => ::std::assert_eq!(msg.unwrap(), 1),
            default => ::std::unreachable!(),
        }
    }
}

mod under_another_name {
    pub mod deep {
        pub use gosched as threads;
        pub use gosched::chan as channels;
    }

    extern crate gosched as renamed;

    #[test]
    fn it_works() {
        let (s, r) = deep::channels::unbounded::<i32>();
        s.send(1).unwrap();
        deep::channels::select! { recv(r) -> _ => {}, recv(r) -> _ => {} }
        deep::threads::select! { recv(r) -> _ => {}, default => {} }
        renamed::chan::select_biased! { send(s, 1) -> _ => {}, recv(r) -> _ => {} }
        renamed::select_biased! { recv(r) -> _ => {}, recv(r) -> _ => {}, default(super::super::ms(1)) => {} }
    }

    #[test]
    fn all_at_once() {
        use gosched::chan::*;
        let (s, r) = unbounded();
        select! { send(s, 1) -> _ => {} recv(r) -> _ => {} }
        select_biased! { recv(r) -> _ => {} default => {} }
    }
}

#[test]
fn selects_in_selects() {
    let (s, r) = filled(0..10);
    let mut seen = Vec::new();
    select! {
        recv(r) -> a => select! {
            recv(r) -> b => select! {
                recv(r) -> c => {
                    select! { default => seen.extend([a, b, c]) }
                }
                recv(never::<()>()) -> _ => {}
            },
            default => {}
        },
        recv(select! { recv(never()) -> r => r.unwrap(), default => never::<()>() }) -> _ => {}
        send(&select! { default => bounded::<i32>(0).0 }, select! { default => 1 }) -> res => {
            assert!(res.is_err()); // taken at random: nobody receives there
            seen.extend(r.iter().take(3).map(Ok));
        }
    }
    assert_eq!(seen, [Ok(0), Ok(1), Ok(2)]);
    drop(s);
}

/// As many arms as there may be, without a `recursion_limit`.
macro_rules! with_32_arms {
    ($select:ident, $s:expr, $r:expr, $($more:tt)*) => {
        gosched::chan::$select! {
            recv($r[0]) -> n => n.unwrap(), recv($r[1]) -> n => n.unwrap(), recv($r[2]) -> n => n.unwrap(),
            recv($r[3]) -> n => n.unwrap(), recv($r[4]) -> n => n.unwrap(), recv($r[5]) -> n => n.unwrap(),
            recv($r[6]) -> n => n.unwrap(), recv($r[7]) -> n => n.unwrap(), recv($r[8]) -> n => n.unwrap(),
            recv($r[9]) -> n => n.unwrap(), recv($r[10]) -> n => n.unwrap(), recv($r[11]) -> n => n.unwrap(),
            recv($r[12]) -> n => n.unwrap(), recv($r[13]) -> n => n.unwrap(), recv($r[14]) -> n => n.unwrap(),
            recv($r[15]) -> n => n.unwrap(), send($s[16], 16) -> _ => 16, send($s[17], 17) -> _ => 17,
            send($s[18], 18) -> _ => 18, send($s[19], 19) -> _ => 19, send($s[20], 20) -> _ => 20,
            send($s[21], 21) -> _ => 21, send($s[22], 22) -> _ => 22, send($s[23], 23) -> _ => 23,
            send($s[24], 24) -> _ => 24, send($s[25], 25) -> _ => 25, send($s[26], 26) -> _ => 26,
            send($s[27], 27) -> _ => 27, send($s[28], 28) -> _ => 28, send($s[29], 29) -> _ => 29,
            send($s[30], 30) -> _ => 30, send($s[31], 31) -> _ => 31, $($more)*
        }
    };
}

#[test]
fn thirty_two_arms_and_a_default() {
    let (s, r): (Vec<_>, Vec<_>) = (0..32).map(|_| bounded(1)).unzip();
    // The first 16 are empty, the others full: nothing can be done.
    (16..32).for_each(|n| s[n].send(n).unwrap());
    assert_eq!(with_32_arms!(select, s, r, default => 99), 99);
    assert_eq!(
        with_32_arms!(select_biased, s, r, default(ms(1)) => { 98 }),
        98
    );
    for n in 0..32 {
        // Now there is one that can.
        match n < 16 {
            true => s[n].send(n).unwrap(),
            false => assert_eq!(r[n].recv(), Ok(n)),
        }
        assert_eq!(with_32_arms!(select, s, r,), n);
    }
    // And one within another: the limit is 128 levels.
    let inner =
        with_32_arms!(select, s, r, default => { with_32_arms!(select, s, r, default => 97) });
    assert_eq!(inner, 97);
}
