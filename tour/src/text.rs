//! Numbers and bars as people read them.

use std::time::Duration;

/// A bar of `value` out of `max`, `width` characters wide in all.
pub(crate) fn bar(value: usize, max: usize, width: usize) -> String {
    let filled = match max {
        0 => 0,
        _ => (value.min(max) * width).div_ceil(max),
    };
    format!("{:<width$}", "#".repeat(filled))
}

/// A whole number in groups of three digits.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A time in the unit that fits it.
pub(crate) fn time(d: Duration) -> String {
    match d.as_nanos() {
        ns @ 0..10_000 => format!("{ns} ns"),
        ns @ 10_000..10_000_000 => format!("{} µs", ns / 1_000),
        _ => format!("{} ms", grouped(d.as_millis() as u64)),
    }
}

/// Bytes in the unit that fits them.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{} B", grouped(n)),
        10_000..10_240_000 => format!("{} KiB", grouped(n >> 10)),
        _ => format!("{} MiB", grouped(n >> 20)),
    }
}

/// Every line of `text` set in by four blanks; of more than `max` lines only the first ones.
pub(crate) fn indented(text: &str, max: usize) -> String {
    let mut shown: String = text
        .lines()
        .take(max)
        .map(|line| format!("    {line}\n"))
        .collect();
    let left = text.lines().count().saturating_sub(max);
    if left > 0 {
        shown += &format!("    ... and {left} more lines\n");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_keep_their_width_and_never_hide_a_value() {
        assert_eq!(bar(0, 10, 4), "    ");
        assert_eq!(bar(1, 1000, 4), "#   ");
        assert_eq!(bar(10, 10, 4), "####");
        assert_eq!(bar(99, 10, 4), "####");
        assert_eq!(bar(0, 0, 4), "    ");
    }

    #[test]
    fn numbers_are_grouped_and_carry_units() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(time(Duration::from_nanos(9_999)), "9999 ns");
        assert_eq!(time(Duration::from_micros(25)), "25 µs");
        assert_eq!(time(Duration::from_secs(2)), "2,000 ms");
        assert_eq!(bytes(4_096), "4,096 B");
        assert_eq!(bytes(65_536), "64 KiB");
        assert_eq!(bytes(64 << 20), "64 MiB");
    }

    #[test]
    fn long_texts_are_cut_and_say_so() {
        assert_eq!(indented("a\nb", 2), "    a\n    b\n");
        assert_eq!(indented("a\nb\nc", 1), "    a\n    ... and 2 more lines\n");
    }
}
