//! Lines through points on axes that may be logarithmic, as a picture that stands alone.
//!
//! ```text
//!   title                      ■ peers ■ synced
//!   10 k │            ▪──▪            ◇ paper
//!     10 │   ▪────▪──▪
//!        └──────────────── requests/s
//! ```

use super::alone::{COLOURS, begin, legend, legend_width};
use super::chart::{Axis, Drawing, text_width, tick_text};
use super::html::escaped;
use std::fmt::Write;

/// Lines through points.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) x: Ruler,
    pub(crate) y: Ruler,
    pub(crate) lines: Vec<PlotLine>,
    /// Points of others, with a word on each.
    pub(crate) others: Vec<(Point, String)>,
}

/// A place by its figures.
pub(crate) type Point = (f64, f64);

#[derive(Clone, Debug)]
pub(crate) struct PlotLine {
    pub(crate) name: String,
    pub(crate) points: Vec<Point>,
}

/// An axis: its name, and how it is divided.
#[derive(Clone, Debug)]
pub(crate) enum Ruler {
    /// From zero.
    Linear(String),
    /// By powers of ten.
    Powers(String),
    /// Logarithmic, with a tick at each of these.
    At(String, Vec<f64>),
}

const WIDTH_MIN: f64 = 760.0;
const TOP: f64 = 98.0;
const HEIGHT: f64 = 300.0;
const RIGHT: f64 = 34.0;
const POINT: f64 = 3.4;

/// An axis with its figures placed: from 0 to 1.
struct Scale {
    ticks: Vec<f64>,
    min: f64,
    max: f64,
    is_log: bool,
}

impl Scale {
    fn new(ruler: &Ruler, values: impl Iterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.filter(|value| *value > 0.0).collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        let least = values.iter().copied().fold(most, f64::min);
        match ruler {
            Ruler::Linear(_) => {
                let axis = Axis::to(most);
                Self { ticks: axis.ticks().collect(), min: 0.0, max: axis.max, is_log: false }
            }
            Ruler::Powers(_) if values.is_empty() => Self::of_powers(0, 1),
            Ruler::Powers(_) => {
                let (low, high) = (least.log10().floor() as i32, most.log10().ceil() as i32);
                Self::of_powers(low, high.max(low + 1))
            }
            Ruler::At(_, ticks) => {
                let all = || ticks.iter().copied().chain(values.iter().copied());
                let (min, max) = (all().fold(f64::MAX, f64::min), all().fold(0.0, f64::max));
                Self { ticks: ticks.clone(), min, max, is_log: true }
            }
        }
    }

    fn of_powers(low: i32, high: i32) -> Self {
        let power = |power: i32| 10_f64.powi(power);
        let ticks = (low..=high).map(power).collect();
        Self { ticks, min: power(low), max: power(high), is_log: true }
    }

    fn place(&self, value: f64) -> f64 {
        match self.is_log {
            true => (value.max(self.min) / self.min).ln() / (self.max / self.min).ln(),
            false => value / self.max,
        }
    }
}

impl Ruler {
    fn name(&self) -> &str {
        match self {
            Self::Linear(name) | Self::Powers(name) | Self::At(name, _) => name,
        }
    }
}

impl Plot {
    pub(crate) fn svg(&self) -> String {
        assert!(self.lines.len() <= COLOURS, "each line has a colour");
        let others = || self.others.iter().map(|(point, _)| *point);
        let points = || self.lines.iter().flat_map(|line| line.points.iter().copied());
        let all = || points().chain(others());
        let across = Scale::new(&self.x, all().map(|(x, _)| x));
        let up = Scale::new(&self.y, all().map(|(_, y)| y));
        let labels = up.ticks.iter().map(|tick| text_width(&tick_text(*tick)));
        let left = labels.fold(0.0, f64::max) + 20.0;
        let bottom = TOP + HEIGHT;
        let names = || self.lines.iter().map(|line| &*line.name);
        let width = WIDTH_MIN.max(left + legend_width(names()));
        let mut drawing = Drawing::new(width, bottom + 44.0);
        begin(&mut drawing);
        let x = |value: f64| left + (width - RIGHT - left) * across.place(value);
        let y = |value: f64| bottom - HEIGHT * up.place(value);
        drawing.text("title", left, 22.0, "start", &self.title);
        drawing.text("tick", left, 64.0, "start", &self.note);
        legend(&mut drawing, left, names());
        for tick in &up.ticks {
            drawing.line("grid", (left, y(*tick)), (width - RIGHT, y(*tick)));
            drawing.text("tick", left - 6.0, y(*tick) + 4.0, "end", &tick_text(*tick));
        }
        for tick in &across.ticks {
            drawing.line("axis", (x(*tick), bottom), (x(*tick), bottom + 4.0));
            drawing.text("tick", x(*tick), bottom + 18.0, "middle", &tick_text(*tick));
        }
        drawing.text("tick", left, TOP - 6.0, "start", self.y.name());
        drawing.text("tick", width - RIGHT, bottom + 36.0, "end", self.x.name());
        drawing.line("axis", (left, bottom), (width - RIGHT, bottom));
        for (i, line) in self.lines.iter().enumerate() {
            draw_line(&mut drawing, i, line, (&x, &y));
        }
        for ((at_x, at_y), text) in &self.others {
            let (x, y) = (x(*at_x), y(*at_y));
            let top = y - 6.0;
            drawing.raw(&format!(r#"<path class="other" d="M{x:.1} {top:.1}l6 6l-6 6l-6 -6z"/>"#));
            drawing.text("name", x + 10.0, y + 4.0, "start", text);
        }
        drawing.finish("t", &self.title, &self.note)
    }
}

type Place<'a> = &'a dyn Fn(f64) -> f64;

fn draw_line(
    drawing: &mut Drawing,
    number: usize,
    line: &PlotLine,
    (x, y): (Place<'_>, Place<'_>),
) {
    let mut points = String::new();
    for (at_x, at_y) in &line.points {
        // Writing to a String cannot fail.
        let _ = write!(points, "{:.1},{:.1} ", x(*at_x), y(*at_y));
    }
    drawing.raw(&format!(r#"<polyline class="l{number}" points="{}"/>"#, points.trim_end()));
    for (at_x, at_y) in &line.points {
        let tip = format!("{}: {}, {}", line.name, tick_text(*at_x), tick_text(*at_y));
        let (x, y, tip) = (x(*at_x), y(*at_y), escaped(&tip));
        drawing.raw(&format!(
            "<circle class=\"k{number}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{POINT}\">\
             <title>{tip}</title></circle>"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(x: Ruler, y: Ruler) -> Plot {
        let line = |name: &str, scale: f64| PlotLine {
            name: name.to_owned(),
            points: [128.0, 1024.0, 8192.0].map(|x| (x, scale * x)).to_vec(),
        };
        Plot {
            title: "A write".to_owned(),
            note: "a note".to_owned(),
            x,
            y,
            lines: vec![line("at peers", 0.05), line("synced", 10.0)],
            others: vec![((128.0, 4.6), "paper: 4.6 µs".to_owned())],
        }
    }

    fn attributes(svg: &str, element: &str, name: &str) -> Vec<f64> {
        let document = roxmltree::Document::parse(svg).unwrap();
        let found = document.descendants().filter(|n| n.tag_name().name() == element);
        found.map(|n| n.attribute(name).unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn equal_factors_are_equal_distances_on_logarithmic_axes() {
        let sizes = vec![128.0, 1024.0, 8192.0];
        let svg = plot(Ruler::At("bytes".into(), sizes), Ruler::Powers("µs".into())).svg();
        let (x, y) = (attributes(&svg, "circle", "cx"), attributes(&svg, "circle", "cy"));
        assert_eq!(x.len(), 6);
        assert!((x[1] - x[0] - (x[2] - x[1])).abs() < 0.2, "{x:?}");
        assert!((y[1] - y[0] - (y[2] - y[1])).abs() < 0.2, "{y:?}");
        assert!((y[0] - y[3] - (y[1] - y[4])).abs() < 0.2, "{y:?}");
        assert!(y.iter().all(|y| (TOP..=TOP + HEIGHT).contains(y)), "{y:?}");
        assert!(svg.contains("paper: 4.6 µs") && svg.contains(">at peers<"));
    }

    #[test]
    fn a_legend_of_many_names_is_within_the_picture() {
        let mut plot = plot(Ruler::Linear("a".into()), Ruler::Powers("b".into()));
        let line = &plot.lines[0];
        plot.lines = (0..COLOURS)
            .map(|n| PlotLine { name: format!("a name that is long, {n}"), ..line.clone() })
            .collect();
        let svg = plot.svg();
        let (width, texts) = (attributes(&svg, "svg", "width")[0], attributes(&svg, "text", "x"));
        assert!(width > WIDTH_MIN);
        // The last name's own width is in it, too.
        let wide = text_width(&plot.lines[0].name);
        let names = texts.iter().filter(|x| **x + wide > width).count();
        assert_eq!(names, 2, "the axis's name and its last tick end at the edge: {texts:?}");
    }

    #[test]
    fn a_linear_axis_begins_at_zero_and_an_empty_plot_can_be_drawn() {
        let svg = plot(Ruler::Linear("bytes".into()), Ruler::Powers("µs".into())).svg();
        let x = attributes(&svg, "circle", "cx");
        assert!(((x[2] - x[0]) / (x[1] - x[0]) - 9.0).abs() < 0.05, "{x:?}");
        let mut empty = plot(Ruler::Linear("a".into()), Ruler::Powers("b".into()));
        (empty.lines, empty.others) = (Vec::new(), Vec::new());
        roxmltree::Document::parse(&empty.svg()).unwrap();
    }
}
