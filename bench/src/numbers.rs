//! Formats numbers for people, in all tables and charts.

/// Three significant digits, or all before the point.
pub fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 99.95 => grouped(value),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A ratio: `0.66×`, `3.7×`, `120×`.
pub fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 9.95 => format!("{}×", grouped(ratio)),
        ratio if ratio >= 1.995 => format!("{ratio:.1}×"),
        ratio => format!("{ratio:.2}×"),
    }
}

/// A whole number with its thousands apart.
pub fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    match value < 0.0 {
        true => format!("-{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_that_tell() {
        let values = [0.0, 0.0634, 1.5, 12.34, 99.96, 466.4, 1_234_567.0, -1_500.0];
        let texts = [
            "0",
            "0.063",
            "1.50",
            "12.3",
            "100",
            "466",
            "1,234,567",
            "-1,500",
        ];
        assert_eq!(values.map(number), texts);
        let ratios = [0.657, 1.0, 3.74, 9.96, 1_234.5];
        assert_eq!(
            ratios.map(times),
            ["0.66×", "1.00×", "3.7×", "10×", "1,234×"]
        );
    }
}
