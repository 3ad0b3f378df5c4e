//! Line charts that show growth (see `chart`): panels of lines, with both axes logarithmic.

use super::*;

/// Panels with lines.
pub struct Lines {
    pub title: String,
    /// A line below the title.
    pub note: String,
    /// In two columns, row by row.
    pub panels: Vec<Panel>,
}

/// Lines over one axis, in one unit.
pub struct Panel {
    pub title: String,
    /// What grows to the right.
    pub across: String,
    /// The unit of the upward axis.
    pub unit: String,
    pub series: Vec<Series>,
}

pub struct Series {
    pub name: String,
    /// From left to right; both numbers above zero.
    pub points: Vec<(f64, f64)>,
}

/// The layout of a panel.
const COLUMNS: usize = 2;
const PANEL_GAP: f64 = 24.0;
const PANEL_WIDTH: f64 = (WIDTH - 2.0 * MARGIN - PANEL_GAP) / COLUMNS as f64;
const PANEL_HEIGHT: f64 = 270.0;
/// Room for the numbers at the left, the title and the unit, and the numbers below.
const PLOT_LEFT: f64 = 44.0;
const PLOT_TOP: f64 = 44.0;
const PLOT_BOTTOM: f64 = 44.0;
/// The most letters of a line's name and of a panel's title.
const SERIES_MAX: usize = 24;
const TITLE_MAX: usize = 50;
/// The smallest distance between names of lines.
const NAME_GAP: f64 = 14.0;

/// The panels as SVG.
pub fn lines(chart: &Lines) -> String {
    let panels: Vec<_> = chart.panels.iter().filter(|p| has_points(p)).collect();
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let body = rows as f64 * (PANEL_HEIGHT + PANEL_GAP);
    let mut page = Page::new(&chart.title, &chart.note, (Page::TOP + body).ceil());
    if panels.is_empty() {
        page.say_nothing();
    }
    for (nth, panel) in panels.into_iter().enumerate() {
        let (row, column) = (nth / COLUMNS, nth % COLUMNS);
        let left = MARGIN + column as f64 * (PANEL_WIDTH + PANEL_GAP);
        let top = Page::TOP + row as f64 * (PANEL_HEIGHT + PANEL_GAP);
        draw_panel(&mut page, panel, left, top);
    }
    page.finish(&chart.title)
}

/// Whether both axes have a place for the point.
fn is_point((x, y): &(f64, f64)) -> bool {
    is_drawable(*x) && is_drawable(*y)
}

fn has_points(panel: &Panel) -> bool {
    panel.series.iter().any(|s| s.points.iter().any(is_point))
}

fn draw_panel(page: &mut Page, panel: &Panel, left: f64, top: f64) {
    let points = || panel.series.iter().flat_map(|s| &s.points);
    let points = || points().filter(|point| is_point(point));
    let names = panel.series.iter().map(|s| clip(&s.name, SERIES_MAX));
    let right = widest(names) + 14.0;
    let (mut low, mut high) = span(points().map(|point| point.0));
    if low == high {
        (low, high) = (low / 2.0, high * 2.0);
    }
    let across = LogAxis {
        low,
        high,
        from: left + PLOT_LEFT,
        to: left + PANEL_WIDTH - right,
    };
    let (low, high) = span(points().map(|point| point.1));
    let (mut low, mut high) = (round_down(low), round_up(high));
    // Less than a decade would exaggerate noise.
    while high / low < 9.9 {
        (low, high) = (round_down(low * 0.7), round_up(high * 1.3));
    }
    let up = LogAxis {
        low,
        high,
        from: top + PANEL_HEIGHT - PLOT_BOTTOM,
        to: top + PLOT_TOP,
    };
    let title = heading_style(13.0, INK);
    page.text(
        (left, top + 14.0),
        Anchor::Start,
        &clip(&panel.title, TITLE_MAX),
        &title,
    );
    page.text(
        (left, top + 32.0),
        Anchor::Start,
        &panel.unit,
        &style(FADED),
    );
    draw_axes(page, panel, &across, &up, points().map(|point| point.0));
    draw_series(page, panel, &across, &up);
}

fn span(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((f64::MAX, 0.0), |(low, high), number| {
        (low.min(number), high.max(number))
    })
}

/// Both axes; the lower one is marked where there are points.
fn draw_axes(
    page: &mut Page,
    panel: &Panel,
    across: &LogAxis,
    up: &LogAxis,
    points: impl Iterator<Item = f64>,
) {
    for tick in up.ticks() {
        let y = up.place(tick);
        page.line((across.from, y), (across.to, y), GRID);
        let place = (across.from - 6.0, y + SMALL * 0.36);
        page.text(place, Anchor::End, &short(tick), &style(FADED));
    }
    let mut marks: Vec<f64> = points.collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let mut free_from = f64::MIN;
    for mark in marks {
        let (x, text) = (across.place(mark), short(mark));
        page.line((x, up.from), (x, up.from + 4.0), FADED);
        let half = width(&text, SMALL) / 2.0;
        if x - half >= free_from {
            let place = (x, up.from + 17.0);
            page.text(place, Anchor::Middle, &text, &style(FADED));
            free_from = x + half + 4.0;
        }
    }
    page.line((across.from, up.from), (across.to, up.from), FADED);
    let middle = (across.from + across.to) / 2.0;
    let place = (middle, up.from + 33.0);
    page.text(place, Anchor::Middle, &panel.across, &style(FADED));
}

/// The lines, each with its name near its end.
fn draw_series(page: &mut Page, panel: &Panel, across: &LogAxis, up: &LogAxis) {
    let mut ends = Vec::new();
    for (nth, series) in panel.series.iter().enumerate() {
        let colour = nth_colour(nth);
        let points = series.points.iter().filter(|point| is_point(point));
        let places: Vec<_> = points
            .map(|(x, y)| (across.place(*x), up.place(*y)))
            .collect();
        let Some(last) = places.last() else {
            continue;
        };
        let path: Vec<_> = places
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let path = path.join(" ");
        page.put(format_args!(
            r#"<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>"#
        ));
        for (x, y) in &places {
            page.put(format_args!(
                r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#
            ));
        }
        ends.push((last.1, &series.name, colour));
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut wanted: Vec<f64> = ends.iter().map(|end| end.0).collect();
    spread(&mut wanted, up.to, up.from);
    for (y, (_, name, colour)) in wanted.into_iter().zip(ends) {
        let place = (across.to + 8.0, y + SMALL * 0.36);
        let style = format!(r#"font-size="{SMALL}" font-weight="600" fill="{colour}""#);
        page.text(place, Anchor::Start, &clip(name, SERIES_MAX), &style);
    }
}

/// The colour of a line. Lines have no first one that stands out, so the pale colour comes last.
fn nth_colour(nth: usize) -> &'static str {
    const ORDER: [usize; COLOURS.len()] = [0, 2, 3, 4, 5, 6, 1];
    COLOURS[ORDER[nth % ORDER.len()]]
}

/// Moves sorted places apart until each is far enough from the next. If the last ones are below the
/// bottom then, moves them up again.
fn spread(places: &mut [f64], top: f64, bottom: f64) {
    let mut free_from = top;
    for place in places.iter_mut() {
        *place = place.max(free_from);
        free_from = *place + NAME_GAP;
    }
    let mut free_to = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(free_to);
        free_to = *place - NAME_GAP;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{assert_texts_apart, assert_well_formed, texts};
    use super::*;

    fn series(name: &str, values: &[f64]) -> Series {
        let sizes = (1..).map(|power| 10f64.powi(power));
        Series {
            name: name.into(),
            points: sizes.zip(values.iter().copied()).collect(),
        }
    }

    fn panel(title: &str, series: Vec<Series>) -> Panel {
        Panel {
            title: title.into(),
            across: "goroutines".into(),
            unit: "ns each".into(),
            series,
        }
    }

    fn chart(panels: Vec<Panel>) -> Lines {
        Lines {
            title: "Growth".into(),
            note: "flat is good".into(),
            panels,
        }
    }

    #[test]
    fn growth_can_be_read() {
        let near = [100.0, 101.0, 99.0, 100.0, 100.0, 100.0];
        let svg = lines(&chart(vec![
            panel(
                "spawn",
                vec![
                    series("first", &near),
                    series("second", &near),
                    series("third", &near),
                ],
            ),
            panel("wake", vec![series("steep", &[1.0, 3e2, 1e5, 8e6])]),
            panel("one", vec![series("lonely", &[7.0])]),
        ]));
        assert_well_formed(&svg);
        assert_texts_apart(&svg);
        let texts = texts(&svg);
        let has = |wanted: &str| texts.iter().any(|text| text.text == wanted);
        for wanted in [
            "spawn", "steep", "lonely", "10", "1000", "100k", "1M", "ns each",
        ] {
            assert!(has(wanted), "no `{wanted}`");
        }
        assert_eq!(svg.matches("<polyline").count(), 5);
    }

    #[test]
    fn what_is_no_point_is_left_out() {
        let odd = series("<odd>", &[f64::NAN, 0.0, -1.0, f64::INFINITY]);
        let svg = lines(&chart(vec![
            panel("empty", vec![odd]),
            panel("none", vec![]),
        ]));
        assert_well_formed(&svg);
        assert!(svg.contains("nothing was measured"));
        let svg = lines(&chart(vec![panel(
            "<p>",
            vec![series("<s>", &[f64::NAN, 2.0])],
        )]));
        assert_well_formed(&svg);
        assert!(svg.contains("&lt;s&gt;") && !svg.contains("NaN"));
    }

    #[test]
    fn names_move_apart_and_stay_inside() {
        let mut places = [50.0, 51.0, 98.0, 99.0];
        spread(&mut places, 0.0, 100.0);
        assert!(
            places.is_sorted_by(|a, b| b - a >= NAME_GAP - 1e-9),
            "{places:?}"
        );
        assert!(places[0] >= 0.0 && places[3] <= 100.0);
    }
}
