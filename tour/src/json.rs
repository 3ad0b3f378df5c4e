//! The part of JSON that the tour writes.

use std::fmt::Write;

/// A string, quoted.
pub(crate) fn string(text: &str) -> String {
    let mut quoted = String::from('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => _ = write!(quoted, "\\u{:04x}", c as u32),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// A number, to three decimals; null if it is not finite.
pub(crate) fn number(value: f64) -> String {
    match value.is_finite() {
        // Adding 0 turns a negative zero into an ordinary one.
        true => format!("{}", (value * 1e3).round() / 1e3 + 0.0),
        false => "null".into(),
    }
}

/// An array of values that are already JSON.
pub(crate) fn array(values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<_> = values.into_iter().collect();
    format!("[{}]", values.join(","))
}

/// An object with values that are already JSON.
pub(crate) fn object<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields = fields.into_iter();
    let fields: Vec<_> = fields
        .map(|(name, value)| format!("{}:{value}", string(name)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        assert_eq!(string("a µ"), "\"a µ\"");
        assert_eq!(string("\"\\\n\t\x1b"), r#""\"\\\n\t\u001b""#);
    }

    #[test]
    fn numbers_are_plain() {
        assert_eq!(number(1_000_000.0), "1000000");
        assert_eq!(number(0.123_456), "0.123");
        assert_eq!(number(-0.0), "0");
        assert_eq!(number(1e21), "1000000000000000000000");
        assert_eq!(number(f64::NAN), "null");
        assert_eq!(number(f64::INFINITY), "null");
    }

    #[test]
    fn values_nest() {
        let inner = array([number(1.0), string("x")]);
        assert_eq!(
            object([("a", inner), ("b", array([]))]),
            r#"{"a":[1,"x"],"b":[]}"#
        );
    }
}
