//! Charts as SVG, without scripts, readable on a light and on a dark page.
//!
//! It is written by hand, so that a chart needs no other program.
//!
//! There are two kinds. *Bars* compare runtimes: a group for each workload, in it a row for each
//! runtime. A bar goes from the line of the first runtime (1×) to its own ratio, to the right if it
//! costs more. Rows have their names and figures, so no colour has to be looked up. *Lines* show
//! how costs grow: panels with both axes logarithmic, each line named at its end.
//!
//! Text is never measured, because the reader's font is unknown. Room is left for the widest usual
//! letters.

mod bars;
mod lines;

use std::fmt::Write;

pub use bars::{Bars, Cell, Group, Row, bars};
pub use lines::{Lines, Panel, Series, lines};

/// The colours of runtimes and lines, distinguishable for all kinds of eyes as far as seven can be.
const COLOURS: [&str; 7] = [
    "#1f5fd1", "#7ea6ee", "#0a9a8f", "#d9730d", "#8a56c2", "#c23b6d", "#7b8494",
];
const INK: &str = "#1d2430";
const FADED: &str = "#5b6472";
const GRID: &str = "#e3e6ec";
const PAPER: &str = "#fcfcfd";
const ALERT: &str = "#b3261e";

/// The largest width of a letter, as a share of its font size.
const LETTER: f64 = 0.6;
/// The sizes of ordinary text and of headings.
const SMALL: f64 = 11.0;
const LARGE: f64 = 17.0;
/// The margin around everything.
const MARGIN: f64 = 20.0;
const WIDTH: f64 = 960.0;

/// The largest width of a text.
fn width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * LETTER * size
}

/// The first letters of a text; a cut is marked.
fn clip(text: &str, letters_max: usize) -> String {
    if text.chars().count() <= letters_max {
        return text.to_owned();
    }
    let kept = text.chars().take(letters_max - 1);
    kept.chain(['…']).collect()
}

/// A text with XML's special characters escaped and forbidden ones replaced.
fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            letter if letter.is_control() => safe.push('\u{fffd}'),
            letter => safe.push(letter),
        }
    }
    safe
}

/// On which side of its place a text stands.
#[derive(Clone, Copy)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// A document under construction.
struct Page {
    svg: String,
    height: f64,
}

impl Page {
    /// A page with its heading.
    fn new(title: &str, note: &str, height: f64) -> Page {
        let mut page = Page {
            svg: String::new(),
            height,
        };
        let right = WIDTH - 1.0;
        let bottom = height - 1.0;
        page.put(format_args!(
            r#"<rect x="0.5" y="0.5" width="{right}" height="{bottom}" rx="8" fill="{PAPER}" stroke="{GRID}"/>"#
        ));
        let y = MARGIN + LARGE;
        let fitting = |text, size| clip(text, ((WIDTH - 2.0 * MARGIN) / (LETTER * size)) as usize);
        let (title, note) = (fitting(title, LARGE), fitting(note, SMALL));
        let heading = heading_style(LARGE, INK);
        page.text((MARGIN, y), Anchor::Start, &title, &heading);
        page.text((MARGIN, y + 19.0), Anchor::Start, &note, &style(FADED));
        page
    }

    /// Where the heading ends.
    const TOP: f64 = MARGIN + LARGE + 19.0 + 16.0;

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.svg, "{element}").expect("a String takes every write");
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str, style: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.put(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" {style}>{text}</text>"#
        ));
    }

    /// The text of an empty chart.
    fn say_nothing(&mut self) {
        let place = (MARGIN, Page::TOP + LARGE);
        let text = "nothing was measured";
        self.text(place, Anchor::Start, text, &style(FADED));
    }

    fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), stroke: &str) {
        self.put(format_args!(
            r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{stroke}"/>"#
        ));
    }

    /// The whole document.
    fn finish(self, title: &str) -> String {
        let Page { svg, height } = self;
        let title = escape(title);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
             viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             font-family=\"system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif\">\n\
             <title>{title}</title>\n{svg}</svg>\n"
        )
    }
}

fn style(fill: &str) -> String {
    format!(r#"font-size="{SMALL}" fill="{fill}""#)
}

fn heading_style(size: f64, fill: &str) -> String {
    format!(r#"font-size="{size}" font-weight="600" fill="{fill}""#)
}

/// A logarithmic axis.
struct LogAxis {
    /// The numbers at its ends.
    low: f64,
    high: f64,
    /// Their places.
    from: f64,
    to: f64,
}

impl LogAxis {
    /// The place of a number; numbers beyond the ends are put at the end.
    fn place(&self, number: f64) -> f64 {
        let part = (number / self.low).ln() / (self.high / self.low).ln();
        self.from + part.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// The round numbers to mark: powers of ten, and 2 and 5 between if there are few.
    fn ticks(&self) -> Vec<f64> {
        let decades = (self.high / self.low).log10();
        let steps: &[f64] = match decades {
            d if d <= 2.1 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let first = self.low.log10().floor() as i32;
        let last = self.high.log10().ceil() as i32;
        (first..=last)
            .flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)))
            .filter(|tick| (self.low * 0.999..=self.high * 1.001).contains(tick))
            .collect()
    }
}

/// The largest of 1, 2 and 5 times a power of ten that is at most `number`.
fn round_down(number: f64) -> f64 {
    let power = 10f64.powf(number.log10().floor());
    let step = [5.0, 2.0].into_iter().find(|step| step * power <= number);
    step.unwrap_or(1.0) * power
}

/// The smallest of them that is at least `number`.
fn round_up(number: f64) -> f64 {
    let power = 10f64.powf(number.log10().floor());
    let step = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|step| step * power >= number);
    step.unwrap_or(10.0) * power
}

/// A number for an axis: `0.5`, `200`, `10k`, `1M`.
fn short(number: f64) -> String {
    let (number, unit) = match number {
        n if n >= 1e9 => (n / 1e9, "G"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e4 => (n / 1e3, "k"),
        n => (n, ""),
    };
    // Round numbers have few digits; longer ones come from rounding errors.
    let digits = format!("{number:.4}");
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{unit}")
}

/// The largest width of several texts.
fn widest(texts: impl Iterator<Item = String>) -> f64 {
    texts.map(|text| width(&text, SMALL)).fold(0.0, f64::max)
}

/// Whether the number has a place on a logarithmic axis.
fn is_drawable(ratio: f64) -> bool {
    ratio.is_finite() && ratio > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text of a chart, and its largest extent.
    pub struct Text {
        pub text: String,
        pub y: f64,
        left: f64,
        right: f64,
        size: f64,
    }

    fn attribute<'s>(tag: &'s str, name: &str) -> Option<&'s str> {
        let rest = tag.split(&format!(" {name}=\"")).nth(1)?;
        rest.split('"').next()
    }

    /// Every text of a chart.
    pub fn texts(svg: &str) -> Vec<Text> {
        let elements = svg.split("<text").skip(1);
        elements
            .map(|element| {
                let (tag, rest) = element.split_once('>').expect("a whole tag");
                let number = |name| -> f64 {
                    let value = attribute(tag, name).expect("an attribute");
                    value.parse().expect("a number")
                };
                let text = rest.split("</text>").next().expect("an end");
                let text = text.replace("&lt;", "<").replace("&gt;", ">");
                let text = text.replace("&quot;", "\"").replace("&amp;", "&");
                let (x, size) = (number("x"), number("font-size"));
                let room = width(&text, size);
                let left = match attribute(tag, "text-anchor") {
                    Some("middle") => x - room / 2.0,
                    Some("end") => x - room,
                    _ => x,
                };
                Text {
                    text,
                    y: number("y"),
                    left,
                    right: left + room,
                    size,
                }
            })
            .collect()
    }

    /// No text overlaps another one or leaves the page.
    pub fn assert_texts_apart(svg: &str) {
        let texts = texts(svg);
        for (nth, a) in texts.iter().enumerate() {
            let is_inside = a.left >= 0.0 && a.right <= WIDTH && a.y > 0.0;
            assert!(is_inside, "`{}` is outside", a.text);
            for b in &texts[nth + 1..] {
                let is_beside = a.right <= b.left || b.right <= a.left;
                let is_above = (a.y - b.y).abs() >= 0.9 * a.size.max(b.size);
                assert!(is_beside || is_above, "`{}` meets `{}`", a.text, b.text);
            }
        }
    }

    /// Every element is closed, in order, and no forbidden character occurs.
    pub fn assert_well_formed(svg: &str) {
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("<script"));
        assert!(svg.chars().all(|c| c == '\n' || !c.is_control()));
        let mut open = Vec::new();
        for piece in svg.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').expect("a whole tag");
            assert!(!text.contains('>'), "`{text}`");
            for entity in text.split('&').skip(1) {
                let name = entity.split_once(';').expect("a whole entity").0;
                assert!(["amp", "lt", "gt", "quot"].contains(&name), "&{name};");
            }
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name));
                continue;
            }
            assert!(tag.matches('"').count().is_multiple_of(2), "<{tag}>");
            if !tag.ends_with('/') {
                open.push(tag.split(' ').next().expect("a name"));
            }
        }
        assert!(open.is_empty(), "{open:?} is not closed");
    }

    #[test]
    fn axes_have_round_numbers() {
        let axis = |low, high| LogAxis {
            low,
            high,
            from: 0.0,
            to: 1.0,
        };
        assert_eq!(axis(0.5, 5.0).ticks(), [0.5, 1.0, 2.0, 5.0]);
        assert_eq!(axis(1.0, 1e4).ticks(), [1.0, 1e1, 1e2, 1e3, 1e4]);
        assert_eq!(axis(1.0, 100.0).place(10.0), 0.5);
        for (number, down, up) in [(1.0, 1.0, 1.0), (3.0, 2.0, 5.0), (70.0, 50.0, 100.0)] {
            assert_eq!((round_down(number), round_up(number)), (down, up));
        }
        let shorts = [0.5, 200.0, 2e4, 1e6].map(short);
        assert_eq!(shorts, ["0.5", "200", "20k", "1M"]);
    }
}
