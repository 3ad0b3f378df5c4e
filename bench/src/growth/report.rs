//! The curves as tables with a line of ratios below them, as JSON, and as a chart.

use std::fmt::Write;

use super::curves::{Along, Curve, Family, Size};
use crate::chart::{self, Lines, Panel, Series};
use crate::json::Json;
use crate::numbers::{grouped, number};

/// A curve and its points.
pub struct Traced {
    pub curve: &'static Curve,
    /// By size.
    pub points: Vec<Point>,
}

/// The result of a curve at one size.
pub struct Point {
    n: usize,
    procs: usize,
    outcome: Result<f64, &'static str>,
}

impl Point {
    /// A measured cost.
    pub fn value(size: &Size, value: f64) -> Point {
        Point::new(size, Ok(value))
    }

    /// A missing cost, with its reason in a word.
    pub fn missing(size: &Size, why: &'static str) -> Point {
        Point::new(size, Err(why))
    }

    fn new(size: &Size, outcome: Result<f64, &'static str>) -> Point {
        Point {
            n: size.n,
            procs: size.procs,
            outcome,
        }
    }

    /// The cost with its unit, or why there is none.
    pub fn text(&self, curve: &Curve) -> String {
        match self.outcome {
            Ok(value) => format!("{} {}", number(value), curve.family.unit),
            Err(why) => why.to_owned(),
        }
    }

    /// The value that grows.
    fn at(&self, curve: &Curve) -> usize {
        match curve.along {
            Along::Count(_) => self.n,
            Along::Procs(_) => self.procs,
        }
    }
}

impl Traced {
    /// The ratio of the costs at the largest and the smallest measured size.
    fn growth(&self) -> Option<f64> {
        let mut values = self.points.iter().filter_map(|point| point.outcome.ok());
        let first = values.next()?;
        let last = values.next_back()?;
        Some(last / first).filter(|ratio| ratio.is_finite())
    }
}

/// The families in their order, each with its curves.
fn families(traced: &[Traced]) -> impl Iterator<Item = (Family, &[Traced])> {
    traced
        .chunk_by(|a, b| a.curve.family == b.curve.family)
        .map(|curves| (curves[0].curve.family, curves))
}

/// Tables, the meaning of their columns, and how much each cost grows.
pub fn markdown(traced: &[Traced]) -> String {
    let mut text = String::from("# Growth\n");
    let mut put = |line: String| writeln!(text, "{line}").expect("a String takes every write");
    for (family, curves) in families(traced) {
        put(format!("\n## {}\n", family.title));
        let names: Vec<_> = curves.iter().map(|traced| traced.curve.name).collect();
        put(format!(
            "| {} | {} |",
            family.across,
            names.join(&format!(", {} | ", family.unit)) + ", " + family.unit
        ));
        put(format!("|---:|{}", "---:|".repeat(curves.len())));
        for row in sizes(curves) {
            let cells: Vec<_> = curves.iter().map(|traced| cell(traced, row)).collect();
            put(format!(
                "| {} | {} |",
                grouped(row as f64),
                cells.join(" | ")
            ));
        }
        put(String::new());
        for Traced { curve, .. } in curves {
            put(format!("- `{}`: {}.", curve.name, curve.about));
        }
    }
    put(format!(
        "\nGrowth from the smallest to the largest: {}.",
        growths(traced)
    ));
    text
}

/// The sizes at which any of the curves has a point.
fn sizes(curves: &[Traced]) -> Vec<usize> {
    let mut sizes: Vec<_> = curves
        .iter()
        .flat_map(|traced| traced.points.iter().map(|point| point.at(traced.curve)))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn cell(traced: &Traced, at: usize) -> String {
    let mut points = traced.points.iter();
    let point = points.find(|point| point.at(traced.curve) == at);
    match point.map(|point| point.outcome) {
        Some(Ok(value)) => number(value),
        Some(Err(why)) => why.to_owned(),
        None => "–".to_owned(),
    }
}

fn growths(traced: &[Traced]) -> String {
    let each = traced.iter().map(|traced| {
        let growth = traced.growth();
        let growth = growth.map_or("–".to_owned(), |ratio| format!("{ratio:.2}×"));
        format!("{} {growth}", traced.curve.name)
    });
    each.collect::<Vec<_>>().join(", ")
}

/// The curves as JSON.
pub fn json(traced: &[Traced]) -> Json {
    let curves = traced.iter().map(json_curve).collect();
    Json::object([("curves", Json::List(curves))])
}

fn json_curve(traced: &Traced) -> Json {
    let text = |text: &str| Json::Text(text.into());
    let Traced { curve, points } = traced;
    let points = points.iter().map(|point| {
        let outcome = match point.outcome {
            Ok(value) => ("value", Json::Number(value)),
            Err(why) => ("missing", text(why)),
        };
        Json::object([
            ("n", Json::Number(point.n as f64)),
            ("procs", Json::Number(point.procs as f64)),
            outcome,
        ])
    });
    Json::object([
        ("name", text(curve.name)),
        ("about", text(curve.about)),
        ("unit", text(curve.family.unit)),
        ("growth", traced.growth().map_or(Json::Null, Json::Number)),
        ("points", Json::List(points.collect())),
    ])
}

/// The curves as SVG.
pub fn svg(traced: &[Traced]) -> String {
    let panels = families(traced).map(|(family, curves)| Panel {
        title: family.title.into(),
        across: family.across.into(),
        unit: family.unit.into(),
        series: curves.iter().map(series).collect(),
    });
    chart::lines(&Lines {
        title: "Growth".into(),
        note: "The cost of one operation among many; best round of each point. Both axes are logarithmic.".into(),
        panels: panels.collect(),
    })
}

fn series(traced: &Traced) -> Series {
    let Traced { curve, points } = traced;
    let points = points.iter().filter_map(|point| {
        let value = point.outcome.ok()?;
        Some((point.at(curve) as f64, value))
    });
    Series {
        name: curve.name.into(),
        points: points.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::curves::{CURVES, Effort};
    use super::*;

    const EFFORT: Effort = Effort {
        work: 1,
        rounds: 1,
        n_max: 1_000_000,
    };

    /// Curve `nth` with these costs; NaN means stalled.
    fn traced(nth: usize, values: &[f64]) -> Traced {
        let curve = &CURVES[nth];
        let sizes = curve.sizes(&EFFORT);
        let point = |(size, value): (&Size, &f64)| match value.is_nan() {
            false => Point::value(size, *value),
            true => Point::missing(size, "stalled"),
        };
        let points = sizes.iter().zip(values).map(point).collect();
        Traced { curve, points }
    }

    #[test]
    fn a_table_has_all_points_and_the_ratios() {
        let text = markdown(&[
            traced(0, &[100.0, 120.0, 1235.0]),
            traced(2, &[8.0, f64::NAN, 4.0]),
            traced(3, &[9000.0]),
        ]);
        for line in [
            "| goroutines | spawn, ns | wake, ns |",
            "|---:|---:|---:|",
            "| 10 | 100 | 8.00 |",
            "| 100 | 120 | stalled |",
            "| 1,000 | 1,235 | 4.00 |",
            "| 1,000 | 9,000 |",
            "Growth from the smallest to the largest: spawn 12.35×, wake 0.50×, memory –.",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn machines_read_the_same() {
        let text = json(&[traced(0, &[1.5, f64::NAN]), traced(12, &[2.0, 3.0])]).to_string();
        assert!(text.contains(r#"{"n": 10, "procs": 2, "value": 1.5}"#));
        assert!(text.contains(r#"{"n": 100, "procs": 2, "missing": "stalled"}"#));
        assert!(text.contains(r#""name": "procs_mutex""#));
        assert!(text.contains(r#""growth": null"#) && text.contains(r#""growth": 1.5"#));
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert_eq!(text.matches('[').count(), text.matches(']').count());
    }

    #[test]
    fn the_picture_has_a_line_for_each_curve() {
        let text = svg(&[traced(0, &[1.0, 2.0]), traced(2, &[3.0]), traced(3, &[9.0])]);
        assert_eq!(text.matches("<polyline").count(), 3);
        assert!(text.contains(">spawn<") && text.contains(">Per goroutine<"));
        // Without any curve there is still a chart.
        assert!(svg(&[]).contains("nothing was measured"));
    }
}
