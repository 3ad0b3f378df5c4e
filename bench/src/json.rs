//! Writes results as JSON.
//!
//! It is written by hand because it only has to write.

use std::fmt::{self, Display, Formatter, Write};

pub enum Json {
    Null,
    Bool(bool),
    /// A number; one that is not finite is null.
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl Json {
    /// An object with these fields.
    pub fn object<const N: usize>(fields: [(&str, Json); N]) -> Json {
        Json::Object(fields.map(|(name, value)| (name.to_owned(), value)).into())
    }

    /// Whether it fits on one line: none of its items contains another.
    fn is_flat(&self) -> bool {
        let is_leaf = |json: &Json| !matches!(json, Json::List(_) | Json::Object(_));
        match self {
            Json::List(values) => values.iter().all(is_leaf),
            Json::Object(fields) => fields.iter().all(|(_, value)| is_leaf(value)),
            _ => true,
        }
    }

    fn write(&self, f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(truth) => write!(f, "{truth}"),
            Json::Number(number) if number.is_finite() => write!(f, "{number}"),
            Json::Number(_) => f.write_str("null"),
            Json::Text(text) => write_text(f, text),
            Json::List(values) => {
                let items = values.iter().map(|value| (None, value));
                write_all(f, ['[', ']'], items, self.is_flat(), depth)
            }
            Json::Object(fields) => {
                let items = fields.iter().map(|(name, value)| (Some(name), value));
                write_all(f, ['{', '}'], items, self.is_flat(), depth)
            }
        }
    }
}

/// The items of a list or an object, on one line or one per line.
fn write_all<'j>(
    f: &mut Formatter<'_>,
    [open, close]: [char; 2],
    items: impl Iterator<Item = (Option<&'j String>, &'j Json)>,
    is_flat: bool,
    depth: usize,
) -> fmt::Result {
    f.write_char(open)?;
    for (nth, (name, value)) in items.enumerate() {
        if nth > 0 {
            f.write_str(if is_flat { ", " } else { "," })?;
        }
        if !is_flat {
            write!(f, "\n{:width$}", "", width = 2 * (depth + 1))?;
        }
        if let Some(name) = name {
            write_text(f, name)?;
            f.write_str(": ")?;
        }
        value.write(f, depth + 1)?;
    }
    if !is_flat {
        write!(f, "\n{:width$}", "", width = 2 * depth)?;
    }
    f.write_char(close)
}

fn write_text(f: &mut Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for letter in text.chars() {
        match letter {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            letter if letter < ' ' => write!(f, "\\u{:04x}", letter as u32)?,
            letter => f.write_char(letter)?,
        }
    }
    f.write_char('"')
}

impl Display for Json {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write(f, 0)?;
        f.write_char('\n')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contains_nothing_that_contains_stands_on_one_line() {
        let json = Json::object([
            ("a \"b\"\\\n\u{1}", Json::Text("ö".into())),
            (
                "list",
                Json::List(vec![Json::Number(1.5), Json::Null, Json::Bool(true)]),
            ),
            ("empty", Json::List(vec![])),
            (
                "deep",
                Json::List(vec![Json::object([("n", Json::Number(f64::NAN))])]),
            ),
        ]);
        let expected = "{\n  \"a \\\"b\\\"\\\\\\n\\u0001\": \"ö\",\n  \"list\": [1.5, null, true],\n  \
                        \"empty\": [],\n  \"deep\": [\n    {\"n\": null}\n  ]\n}\n";
        assert_eq!(json.to_string(), expected);
    }
}
