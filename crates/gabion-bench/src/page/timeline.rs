//! Rates over time with marks, as a picture that stands alone.
//!
//! ```text
//!   title                      ■ writes ■ reads
//!   4 k │▔▔▔╲    kill      ╱▔▔▔▔▔ whole after …
//!       │    ╲   ┊     ┊  ╱       ┊
//!     0 └────────────────────────────────── s
//! ```

use super::alone::{begin, legend};
use super::chart::{Axis, Drawing, text_width, tick_text};
use super::html::escaped;
use std::fmt::Write;

/// Lines over time.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    pub(crate) title: String,
    pub(crate) note: String,
    /// The length of a bin.
    pub(crate) bin_seconds: f64,
    /// Names, and the rate in each bin.
    pub(crate) lines: Vec<(String, Vec<f64>)>,
    pub(crate) marks: Vec<Mark>,
}

/// A moment, in seconds from the begin.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) at: f64,
    pub(crate) text: String,
}

const WIDTH: f64 = 900.0;
const TOP: f64 = 96.0;
const HEIGHT: f64 = 240.0;
const RIGHT: f64 = 24.0;
/// The labels of marks stand in so many rows, so that near ones do not cover each other.
const MARK_ROWS: usize = 3;
const MARK_ROW: f64 = 16.0;

impl Timeline {
    /// The picture: a file of its own.
    pub(crate) fn svg(&self) -> String {
        let rates = || self.lines.iter().flat_map(|(_, rates)| rates.iter().copied());
        let bins = self.lines.iter().map(|(_, rates)| rates.len()).max().unwrap_or(0);
        let seconds = (bins as f64 * self.bin_seconds).max(self.bin_seconds);
        let (rate_axis, time_axis) = (Axis::to(rates().fold(0.0, f64::max)), Axis::to(seconds));
        let left = rate_axis.label_width() + 14.0;
        let bottom = TOP + HEIGHT;
        let mut drawing = Drawing::new(WIDTH, bottom + 44.0);
        begin(&mut drawing);
        let x = |at: f64| left + (WIDTH - RIGHT - left) * at / seconds;
        let y = |rate: f64| bottom - HEIGHT * rate / rate_axis.max;
        drawing.text("title", left, 22.0, "start", &self.title);
        for tick in rate_axis.ticks() {
            drawing.line("grid", (left, y(tick)), (WIDTH - RIGHT, y(tick)));
            drawing.text("tick", left - 6.0, y(tick) + 4.0, "end", &tick_text(tick));
        }
        for tick in time_axis.ticks().filter(|tick| *tick <= seconds) {
            drawing.line("axis", (x(tick), bottom), (x(tick), bottom + 4.0));
            drawing.text("tick", x(tick), bottom + 18.0, "middle", &tick_text(tick));
        }
        drawing.text("tick", WIDTH - RIGHT, bottom + 36.0, "end", "seconds");
        drawing.line("axis", (left, bottom), (WIDTH - RIGHT, bottom));
        legend(&mut drawing, left, self.lines.iter().map(|(name, _)| &**name));
        self.draw_marks(&mut drawing, left, x);
        for (i, (name, rates)) in self.lines.iter().enumerate() {
            let middle = |bin: usize| (bin as f64 + 0.5) * self.bin_seconds;
            let mut points = String::new();
            for (bin, rate) in rates.iter().enumerate() {
                // Writing to a String cannot fail.
                let _ = write!(points, "{:.1},{:.1} ", x(middle(bin)), y(*rate));
            }
            drawing.raw(&format!(
                r#"<polyline class="l{i}" points="{}"><title>{}</title></polyline>"#,
                points.trim_end(),
                escaped(name)
            ));
        }
        drawing.finish("t", &self.title, &self.note)
    }

    /// Marks that are close to each other have their labels in rows of their own.
    fn draw_marks(&self, drawing: &mut Drawing, left: f64, x: impl Fn(f64) -> f64) {
        let mut row_ends = [left - 1.0; MARK_ROWS];
        for mark in &self.marks {
            let (at, width) = (x(mark.at), text_width(&mark.text));
            let is_left = at + width + 6.0 > WIDTH;
            let (start, place, anchor) = match is_left {
                true => (at - width - 6.0, at - 5.0, "end"),
                false => (at, at + 5.0, "start"),
            };
            let free = row_ends.iter().position(|end| *end < start);
            let row = free.unwrap_or(MARK_ROWS - 1);
            row_ends[row] = start + width + 12.0;
            let label = TOP - 34.0 + MARK_ROW * row as f64;
            drawing.line("mark", (at, label - 10.0), (at, TOP + HEIGHT));
            drawing.text("name", place, label, anchor, &mark.text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        let dip = |rate: f64| (0..100).map(move |n| if (50..56).contains(&n) { 0.0 } else { rate });
        let mark = |at: f64, text: &str| Mark { at, text: text.to_owned() };
        Timeline {
            title: "Answers a second when the head <1> fails: kill".to_owned(),
            note: "a note".to_owned(),
            bin_seconds: 0.1,
            lines: vec![
                ("writes".to_owned(), dip(2000.0).collect()),
                ("reads".to_owned(), dip(7100.0).collect()),
            ],
            marks: vec![
                mark(5.0, "kill"),
                mark(5.6, "first write after 600 ms"),
                mark(9.9, "whole after 4.9 s"),
            ],
        }
    }

    #[test]
    fn a_picture_stands_alone_and_has_lines_marks_and_colours_for_light_and_dark() {
        let svg = timeline().svg();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let is_line = |n: &roxmltree::Node<'_, '_>| {
            n.has_tag_name(("http://www.w3.org/2000/svg", "polyline"))
        };
        assert_eq!(document.descendants().filter(is_line).count(), 2);
        for text in ["prefers-color-scheme: dark", "--s0:", "first write after 600 ms", "&lt;1&gt;"]
        {
            assert!(svg.contains(text), "{text}");
        }
        assert!(!svg.contains("main {"), "no rule of the page");
        assert_eq!(svg.matches("class=\"mark\"").count(), 3);
    }

    /// The points of a line, from its element.
    #[test]
    fn a_dip_is_drawn_on_the_axis_and_the_greatest_rate_within_the_picture() {
        let svg = timeline().svg();
        let points = svg.split("class=\"l1\" points=\"").nth(1).unwrap();
        let points = points.split('"').next().unwrap();
        let ys: Vec<f64> =
            points.split(' ').map(|p| p.split_once(',').unwrap().1.parse().unwrap()).collect();
        assert_eq!(ys.len(), 100);
        assert_eq!(ys.iter().filter(|y| **y == TOP + HEIGHT).count(), 6);
        assert!(ys.iter().all(|y| (TOP..=TOP + HEIGHT).contains(y)));
    }
}
