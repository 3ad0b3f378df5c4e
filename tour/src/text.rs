//! Numbers in readable form, and the colours of words.

use std::time::Duration;

/// What a colour means.
#[derive(Clone, Copy)]
pub(crate) enum Ink {
    /// Names.
    Strong,
    /// Less important text.
    Faint,
    /// Pictures.
    Bar,
    /// What blocks others.
    Warm,
    Good,
    Bad,
    /// One of several similar things.
    Nth(usize),
}

/// Coloured text. The screen removes colours that cannot be shown. Pad before: colours have no
/// width.
pub(crate) fn paint(ink: Ink, text: &str) -> String {
    let code = match ink {
        Ink::Strong => "1",
        Ink::Faint => "2",
        Ink::Bar => "36",
        Ink::Warm => "33",
        Ink::Good => "32",
        Ink::Bad => "1;31",
        Ink::Nth(n) => ["36", "33", "35", "32", "34", "31"][n % 6],
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// The columns of the text, without colours.
#[cfg(test)]
pub(crate) fn width(text: &str) -> usize {
    let pieces = text.split('\x1b').enumerate();
    pieces
        .map(|(i, piece)| match i {
            0 => piece,
            _ => piece.split_once('m').map_or("", |(_, rest)| rest),
        })
        .map(|piece| piece.chars().count())
        .sum()
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

/// The plural ending for `n`.
pub(crate) fn plural(n: u64) -> &'static str {
    match n {
        1 => "",
        _ => "s",
    }
}

/// Text in lines of at most `width` characters, broken at blanks. A longer word has a line of its
/// own.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    let (mut lines, mut used) = (String::new(), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > width {
            lines.push('\n');
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines += word;
        used += length;
    }
    lines
}

/// A large number, to about three digits.
pub(crate) fn large(n: f64) -> String {
    match n {
        n if n >= 1e10 => format!("{} billion", grouped((n / 1e9) as u64)),
        n if n >= 1e9 => format!("{:.2} billion", n / 1e9),
        n if n >= 1e7 => format!("{:.0} million", n / 1e6),
        n if n >= 1e6 => format!("{:.2} million", n / 1e6),
        n => grouped(n as u64),
    }
}

/// A time in the unit that fits it.
pub(crate) fn time(d: Duration) -> String {
    let ns = d.as_nanos() as f64;
    match ns {
        ns if ns < 1e3 => format!("{ns} ns"),
        ns if ns < 1e4 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1e6 => format!("{:.0} µs", ns / 1e3),
        ns if ns < 1e7 => format!("{:.1} ms", ns / 1e6),
        ns if ns < 1e9 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Bytes in the unit that fits them.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        0..10_000 => format!("{} bytes", grouped(n)),
        10_000..10_240_000 => format!("{} KiB", grouped(n >> 10)),
        _ => format!("{} MiB", grouped(n >> 20)),
    }
}

/// In milliseconds, for figures.
pub(crate) fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// The value that a share `q` of the `sorted` values does not exceed; 0 if there are none.
pub(crate) fn quantile(sorted: &[Duration], q: f64) -> Duration {
    let last = sorted.len().saturating_sub(1);
    let place = (sorted.len() as f64 * q).ceil() as usize;
    let found = sorted.get(place.saturating_sub(1).min(last));
    found.copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_carry_units() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(large(999_999.0), "999,999");
        assert_eq!(large(1_234_567.0), "1.23 million");
        assert_eq!(large(45_600_000.0), "46 million");
        assert_eq!(large(1.5e9), "1.50 billion");
        assert_eq!(large(1.2e13), "12,000 billion");
        assert_eq!(time(Duration::from_nanos(450)), "450 ns");
        assert_eq!(time(Duration::from_nanos(3_710)), "3.7 µs");
        assert_eq!(time(Duration::from_micros(25)), "25 µs");
        assert_eq!(time(Duration::from_micros(3_600)), "3.6 ms");
        assert_eq!(time(Duration::from_millis(25)), "25 ms");
        assert_eq!(time(Duration::from_millis(2_345)), "2.35 s");
        assert_eq!(bytes(4_096), "4,096 bytes");
        assert_eq!(bytes(65_536), "64 KiB");
        assert_eq!(bytes(64 << 20), "64 MiB");
    }

    #[test]
    fn quantiles_are_values_that_were_there() {
        let values: Vec<_> = (1..=100).map(Duration::from_secs).collect();
        assert_eq!(quantile(&values, 0.5), Duration::from_secs(50));
        assert_eq!(quantile(&values, 0.99), Duration::from_secs(99));
        assert_eq!(quantile(&values, 1.0), Duration::from_secs(100));
        assert_eq!(quantile(&values[..1], 0.99), Duration::from_secs(1));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn long_texts_are_broken_at_blanks() {
        assert_eq!(wrapped("a bc  def", 4), "a bc\ndef");
        assert_eq!(wrapped("a bcdefg h", 4), "a\nbcdefg\nh");
        assert_eq!(wrapped("", 4), "");
        assert_eq!([plural(0), plural(1), plural(2)], ["s", "", "s"]);
    }

    #[test]
    fn colours_have_no_width() {
        assert_eq!(width(&format!("a{}c", paint(Ink::Nth(7), "µ"))), 3);
    }
}
