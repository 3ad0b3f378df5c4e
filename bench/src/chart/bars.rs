//! Bar charts that compare runtimes (see `chart`): groups of bars on one axis of ratios.

use super::*;

/// A comparison.
pub struct Bars {
    pub title: String,
    /// A line below the title: what the figures are and where they were measured.
    pub note: String,
    /// From top to bottom.
    pub groups: Vec<Group>,
}

/// The results of one workload.
pub struct Group {
    pub name: String,
    /// The metric that is shown: `time`, `late_p99`.
    pub metric: String,
    /// The runtimes from top to bottom. Each has the same colour in all groups.
    pub rows: Vec<Row>,
}

/// One runtime in one workload.
pub struct Row {
    pub name: String,
    pub cell: Cell,
}

/// The result of a runtime.
pub enum Cell {
    /// The ratio to the first runtime's cost, and the figure itself: `31.2 ns`.
    Ratio(f64, String),
    /// Nothing to draw: `failed`, `stalled`, or `–` for what it cannot do.
    Missing(String),
}

/// The layout of a comparison.
const ROW: f64 = 15.0;
const BAR: f64 = 10.0;
const GROUP_GAP: f64 = 11.0;
/// Room for an axis, with its numbers.
const AXIS: f64 = 24.0;
/// The most letters of a name, and of a label behind a bar.
const NAME_MAX: usize = 18;
const LABEL_MAX: usize = 24;
/// A longer bar is cut; its label has the figure.
const RATIO_MAX: f64 = 1_000.0;

/// The comparison as SVG.
pub fn bars(chart: &Bars) -> String {
    let groups: Vec<_> = chart.groups.iter().filter(|g| !g.rows.is_empty()).collect();
    let rows: usize = groups.iter().map(|group| group.rows.len()).sum();
    let body = rows as f64 * ROW + groups.len() as f64 * GROUP_GAP;
    let height = (Page::TOP + body + 2.0 * AXIS + MARGIN).ceil();
    let mut page = Page::new(&chart.title, &chart.note, height);
    let rows = || groups.iter().flat_map(|group| &group.rows);
    if rows().next().is_none() {
        page.say_nothing();
        return page.finish(&chart.title);
    }
    let names = groups.iter().flat_map(|group| [&group.name, &group.metric]);
    let names_end = MARGIN + widest(names.map(|name| clip(name, NAME_MAX))) + 12.0;
    let runtimes_end = names_end + widest(rows().map(|row| clip(&row.name, NAME_MAX)));
    let labels_width = widest(rows().map(label));
    let axis = ratio_axis(
        rows().map(|row| &row.cell),
        runtimes_end + 10.0,
        WIDTH - MARGIN - labels_width - 6.0,
    );
    let palette = Palette::of(rows());
    draw_ratio_axis(&mut page, &axis, body);
    let mut y = Page::TOP + AXIS;
    for group in groups {
        y += GROUP_GAP;
        draw_group(&mut page, group, &axis, &palette, runtimes_end, y);
        y += group.rows.len() as f64 * ROW;
    }
    page.finish(&chart.title)
}

/// The label behind a bar.
fn label(row: &Row) -> String {
    match &row.cell {
        Cell::Ratio(ratio, figure) if is_drawable(*ratio) => {
            clip(&format!("{figure} · {}×", ratio_text(*ratio)), LABEL_MAX)
        }
        Cell::Ratio(_, figure) => clip(figure, LABEL_MAX),
        Cell::Missing(why) => clip(why, LABEL_MAX),
    }
}

/// A ratio with its significant digits.
fn ratio_text(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 100.0 => format!("{ratio:.0}"),
        ratio if ratio >= 10.0 => format!("{ratio:.1}"),
        ratio => format!("{ratio:.2}"),
    }
}

/// An axis that has room for all ratios, and some below and above 1×.
fn ratio_axis<'c>(cells: impl Iterator<Item = &'c Cell>, from: f64, to: f64) -> LogAxis {
    let (mut low, mut high) = (0.5, 5.0);
    for cell in cells {
        if let Cell::Ratio(ratio, _) = cell
            && is_drawable(*ratio)
        {
            low = f64::min(low, round_down(ratio.max(1.0 / RATIO_MAX)));
            high = f64::max(high, round_up(ratio.min(RATIO_MAX)));
        }
    }
    LogAxis {
        low,
        high,
        from,
        to,
    }
}

/// The lines behind the bars, with their numbers above and below.
fn draw_ratio_axis(page: &mut Page, axis: &LogAxis, body: f64) {
    let (top, bottom) = (Page::TOP + AXIS - 4.0, Page::TOP + AXIS + body + 8.0);
    for tick in axis.ticks() {
        let x = axis.place(tick);
        let is_one = (tick - 1.0).abs() < 1e-9;
        page.line((x, top), (x, bottom), if is_one { FADED } else { GRID });
        let (text, style) = (
            format!("{}×", short(tick)),
            style(if is_one { INK } else { FADED }),
        );
        page.text((x, top - 5.0), Anchor::Middle, &text, &style);
        page.text((x, bottom + 14.0), Anchor::Middle, &text, &style);
    }
}

/// The colours of the runtimes, by the order in which they first appear.
struct Palette<'c>(Vec<&'c str>);

impl<'c> Palette<'c> {
    fn of(rows: impl Iterator<Item = &'c Row>) -> Palette<'c> {
        let mut names: Vec<&str> = Vec::new();
        for row in rows {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        Palette(names)
    }

    fn colour(&self, name: &str) -> &'static str {
        let place = self.0.iter().position(|known| *known == name);
        COLOURS[place.unwrap_or(0) % COLOURS.len()]
    }
}

fn draw_group(
    page: &mut Page,
    group: &Group,
    axis: &LogAxis,
    palette: &Palette<'_>,
    runtimes_end: f64,
    top: f64,
) {
    let rule = top - GROUP_GAP / 2.0 + 1.0;
    page.line((MARGIN, rule), (WIDTH - MARGIN, rule), GRID);
    let base = |row: usize| top + row as f64 * ROW + ROW / 2.0 + SMALL * 0.36;
    let heading = heading_style(SMALL, INK);
    page.text(
        (MARGIN, base(0)),
        Anchor::Start,
        &clip(&group.name, NAME_MAX),
        &heading,
    );
    // A single row has no room below the name, and does not need the metric.
    if group.rows.len() > 1 {
        page.text(
            (MARGIN, base(1)),
            Anchor::Start,
            &clip(&group.metric, NAME_MAX),
            &style(FADED),
        );
    }
    for (nth, row) in group.rows.iter().enumerate() {
        let name_style = match nth {
            0 => heading_style(SMALL, INK),
            _ => style(INK),
        };
        let place = (runtimes_end, base(nth));
        page.text(place, Anchor::End, &clip(&row.name, NAME_MAX), &name_style);
        let colour = palette.colour(&row.name);
        draw_row(page, row, axis, colour, top + nth as f64 * ROW, base(nth));
    }
}

/// A row's bar and the label behind it.
fn draw_row(page: &mut Page, row: &Row, axis: &LogAxis, colour: &str, top: f64, base: f64) {
    let one = axis.place(1.0);
    let (mut label_start, mut label_colour) = (one, INK);
    match &row.cell {
        Cell::Ratio(ratio, _) if is_drawable(*ratio) => {
            let end = axis.place(*ratio);
            let y = top + (ROW - BAR) / 2.0;
            // At least a stroke, for a ratio of 1.
            let (x, length) = (one.min(end) - 1.0, (end - one).abs() + 2.0);
            page.put(format_args!(
                r#"<rect x="{x:.1}" y="{y:.1}" width="{length:.1}" height="{BAR}" rx="2" fill="{colour}"/>"#
            ));
            label_start = one.max(end);
        }
        Cell::Ratio(..) => {}
        Cell::Missing(why) if why == "–" => label_colour = FADED,
        Cell::Missing(_) => label_colour = ALERT,
    }
    // Keeps the axis lines behind the text.
    let halo = format!(r#"paint-order="stroke" stroke="{PAPER}" stroke-width="3""#);
    let style = format!("{} {halo}", style(label_colour));
    let place = (label_start + 6.0, base);
    page.text(place, Anchor::Start, &label(row), &style);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_texts_apart, assert_well_formed, texts};
    use super::*;

    fn row(name: &str, ratio: f64) -> Row {
        Row {
            name: name.into(),
            cell: Cell::Ratio(ratio, format!("{:.1} ns", ratio * 31.0)),
        }
    }

    fn missing(name: &str, why: &str) -> Row {
        Row {
            name: name.into(),
            cell: Cell::Missing(why.into()),
        }
    }

    fn chart(groups: Vec<(&str, Vec<Row>)>) -> Bars {
        let groups = groups.into_iter().map(|(name, rows)| Group {
            name: name.into(),
            metric: "time".into(),
            rows,
        });
        Bars {
            title: "Costs".into(),
            note: "less is better".into(),
            groups: groups.collect(),
        }
    }

    fn usual() -> Bars {
        chart(vec![
            (
                "yield",
                vec![row("gosched", 1.0), row("go", 3.9), row("tokio", 0.2)],
            ),
            (
                "chan_unbounded",
                vec![
                    row("gosched", 1.0),
                    missing("go", "stalled"),
                    missing("tokio", "–"),
                ],
            ),
            ("hog", vec![row("gosched", 1.0), row("go", 99_000.0)]),
        ])
    }

    #[test]
    fn a_comparison_can_be_read() {
        let svg = bars(&usual());
        assert_well_formed(&svg);
        assert_texts_apart(&svg);
        let texts = texts(&svg);
        let place = |text: &str| {
            let found = texts.iter().find(|found| found.text == text);
            found.unwrap_or_else(|| panic!("no `{text}`")).y
        };
        assert!(place("yield") < place("chan_unbounded") && place("chan_unbounded") < place("hog"));
        assert_eq!(place("yield"), place("31.0 ns · 1.00×"));
        assert!(place("120.9 ns · 3.90×") < place("6.2 ns · 0.20×"));
        assert!(place("stalled") < place("–"));
        assert!(texts.iter().any(|text| text.text == "1×"));
    }

    #[test]
    fn who_costs_more_has_the_longer_bar_to_the_right() {
        let axis = ratio_axis(
            usual()
                .groups
                .iter()
                .flat_map(|g| g.rows.iter().map(|r| &r.cell)),
            0.0,
            100.0,
        );
        assert!(axis.low <= 0.2 && axis.high == RATIO_MAX);
        assert!(axis.place(0.2) < axis.place(1.0) && axis.place(1.0) < axis.place(3.9));
        assert_eq!(axis.place(99_000.0), 100.0);
        assert!(axis.place(0.0001) >= 0.0);
    }

    #[test]
    fn a_runtime_keeps_its_colour() {
        let chart = usual();
        let palette = Palette::of(chart.groups.iter().flat_map(|group| &group.rows));
        assert_eq!(palette.colour("go"), COLOURS[1]);
        assert_eq!(palette.colour("tokio"), COLOURS[2]);
    }

    #[test]
    fn odd_names_and_figures_do_no_harm() {
        let mut odd = chart(vec![
            (
                "<b>&\"'\u{1}",
                vec![
                    row("a<b", f64::NAN),
                    row("&amp;", 0.0),
                    row("c", f64::INFINITY),
                ],
            ),
            ("none", vec![]),
            (
                "a name that is longer than any name should be",
                vec![missing(
                    "another name of that kind, also too long",
                    "failed: for a reason that takes many words",
                )],
            ),
        ]);
        odd.note = "words ".repeat(100);
        let svg = bars(&odd);
        assert_well_formed(&svg);
        assert_texts_apart(&svg);
        assert!(svg.contains("&lt;b&gt;&amp;&quot;'") && svg.contains("&amp;amp;"));
        assert!(!svg.contains("=\"NaN") && !svg.contains("=\"inf"));
    }

    #[test]
    fn nothing_is_a_picture_too() {
        let svg = bars(&chart(vec![]));
        assert_well_formed(&svg);
        assert!(svg.contains("nothing was measured"));
    }
}
