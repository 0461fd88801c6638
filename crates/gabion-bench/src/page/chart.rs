//! Plots, drawn as SVG by hand: bars need little code, and the drawings take their colours from the
//! page's style sheet, so that one picture serves light, dark and paper.
//!
//! ```text
//!   columns            bars                 ratios (log)          stacks
//!    ▐▌  ▐▌            group a ███████ 9      a     │███ 2.0      R = 2, a ██▒▒░ 9
//!    ▐▌█ ▐▌█                   ████ 5         b  ███│    0.5      R = 2, b ███▒ 5
//!     a   b            group b …                ½   1   2                  0   5
//! ```

use super::document::{Cell, Sheet};
use super::stats::{Sample, short, significant};
use std::fmt::Write;

/// A plot with the figures that it draws.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    pub(super) title: String,
    /// The measure, its unit, and which way is better.
    pub(super) note: String,
    /// Names of the groups, in order.
    pub(super) groups: Vec<String>,
    pub(super) series: Vec<Series>,
    pub(super) form: Form,
}

/// How the figures are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Upright bars side by side, for few groups.
    Columns,
    /// Lying bars, for many groups or long names.
    Bars,
    /// Lying bars to both sides of 1 on a logarithmic axis.
    Ratios,
    /// One lying bar for each group, of parts that add up.
    Stacks,
}

/// One colour: a figure for each group, where there is one.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub(super) name: String,
    /// A class of the style sheet.
    pub(super) class: String,
    pub(super) values: Vec<Option<Sample>>,
}

impl Chart {
    /// Whether there is anything to draw.
    pub(super) fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.values.iter().all(Option::is_none))
    }

    /// The figures as a table.
    pub(super) fn sheet(&self) -> Sheet {
        let header: Vec<&str> =
            std::iter::once("").chain(self.series.iter().map(|series| &*series.name)).collect();
        let mut sheet = Sheet::new(self.title.clone(), &header);
        for (i, group) in self.groups.iter().enumerate() {
            let cells = self.series.iter().map(|series| {
                Cell::text(series.values[i].map_or_else(String::new, |v| v.text(significant)))
            });
            sheet.row(group.clone(), cells.collect());
        }
        sheet
    }

    /// The picture; `id` is unique on the page.
    pub(super) fn svg(&self, id: &str) -> String {
        self.drawing().finish(id, &self.title, &self.note)
    }

    /// The width of the picture, in pixels.
    pub(super) fn width(&self) -> f64 {
        self.drawing().width
    }

    pub(super) fn drawing(&self) -> Drawing {
        match self.form {
            Form::Columns => self.columns(),
            Form::Bars => self.bars(),
            Form::Ratios => self.ratios(),
            Form::Stacks => self.stacks(),
        }
    }

    fn values(&self) -> impl Iterator<Item = &Sample> {
        self.series.iter().flat_map(|series| series.values.iter().flatten())
    }

    /// The widest group name, in pixels.
    fn label_width(&self) -> f64 {
        self.groups.iter().map(|group| text_width(&shortened(group))).fold(0.0, f64::max)
    }

    /// The tip that a pointer sees: the whole name and the figure.
    fn tip(&self, group: usize, series: &Series, value: &Sample) -> String {
        format!("{}, {}: {}", self.groups[group], series.name, value.text(significant))
    }

    fn columns(&self) -> Drawing {
        const BAR: f64 = 45.0;
        const GAP: f64 = 26.0;
        const TOP: f64 = 22.0;
        const HEIGHT: f64 = 190.0;
        let axis = Axis::to(self.values().map(|value| value.max).fold(0.0, f64::max));
        let left = axis.label_width() + 8.0;
        let group_width = (BAR * self.series.len() as f64).max(self.label_width()) + GAP;
        let width = left + group_width * self.groups.len() as f64 + 6.0;
        let mut drawing = Drawing::new(width, TOP + HEIGHT + 26.0);
        let y = |value: f64| TOP + HEIGHT * (1.0 - value / axis.max);
        for tick in axis.ticks() {
            drawing.line("grid", (left, y(tick)), (width, y(tick)));
            drawing.text("tick", left - 5.0, y(tick) + 4.0, "end", &tick_text(tick));
        }
        for (i, group) in self.groups.iter().enumerate() {
            let middle = left + group_width * (i as f64 + 0.5);
            let start = middle - BAR * self.series.len() as f64 / 2.0;
            for (k, series) in self.series.iter().enumerate() {
                let Some(value) = &series.values[i] else { continue };
                let x = start + BAR * k as f64 + 2.0;
                let top = y(value.median);
                let tip = self.tip(i, series, value);
                drawing.bar(&series.class, (x, top), (BAR - 4.0, TOP + HEIGHT - top), &tip);
                let centre = x + BAR / 2.0 - 2.0;
                if value.count > 1 {
                    drawing.line("spread", (centre, y(value.min)), (centre, y(value.max)));
                }
                drawing.text("value", centre, y(value.max) - 5.0, "middle", &tight(value.median));
            }
            drawing.text("name", middle, TOP + HEIGHT + 18.0, "middle", &shortened(group));
        }
        drawing.line("axis", (left, TOP + HEIGHT), (width, TOP + HEIGHT));
        drawing
    }

    fn bars(&self) -> Drawing {
        let axis = Axis::to(self.values().map(|value| value.max).fold(0.0, f64::max));
        let rows = Rows::new(self.label_width(), self.series.len(), self.groups.len());
        let mut drawing = Drawing::new(Rows::WIDTH, rows.height());
        let x = |value: f64| rows.left + rows.width() * value / axis.max;
        for tick in axis.ticks() {
            drawing.line("grid", (x(tick), 0.0), (x(tick), rows.bottom()));
            drawing.text("tick", x(tick), rows.bottom() + 15.0, "middle", &tick_text(tick));
        }
        self.each_bar(&rows, &mut drawing, |drawing, series, value, y, tip| {
            let width = x(value.median) - rows.left;
            drawing.bar(&series.class, (rows.left, y), (width, Rows::BAR - 2.0), tip);
            let middle = y + Rows::BAR / 2.0 - 1.0;
            if value.count > 1 {
                drawing.line("spread", (x(value.min), middle), (x(value.max), middle));
            }
            drawing.text("value", x(value.max) + 5.0, middle + 4.0, "start", &short(value.median));
        });
        drawing.line("axis", (rows.left, 0.0), (rows.left, rows.bottom()));
        drawing
    }

    fn ratios(&self) -> Drawing {
        let far = self.values().filter(|value| value.median > 0.0);
        let far = far.map(|value| value.median.log2().abs()).fold(1.0, f64::max).ceil();
        let rows = Rows::new(self.label_width(), self.series.len(), self.groups.len());
        let mut drawing = Drawing::new(Rows::WIDTH, rows.height());
        // Beyond the last tick there is space for a figure on either side.
        let (left, width) = (rows.left + 44.0, rows.width() - 44.0);
        let x = |ratio: f64| left + width * (ratio.log2() / far + 1.0) / 2.0;
        let step = (far / 4.0).ceil().max(1.0);
        let mut power = -(far / step).floor() * step;
        while power <= far {
            let ratio = power.exp2();
            drawing.line("grid", (x(ratio), 0.0), (x(ratio), rows.bottom()));
            let label =
                if power < 0.0 { format!("1/{}", (-power).exp2()) } else { ratio.to_string() };
            drawing.text("tick", x(ratio), rows.bottom() + 15.0, "middle", &label);
            power += step;
        }
        self.each_bar(&rows, &mut drawing, |drawing, series, value, y, tip| {
            let baseline = y + Rows::BAR / 2.0 + 3.0;
            if value.median <= 0.0 {
                drawing.text("value", x(1.0) - 5.0, baseline, "end", "0");
                return;
            }
            let at = x(value.median);
            let size = ((at - x(1.0)).abs(), Rows::BAR - 2.0);
            drawing.bar(&series.class, (at.min(x(1.0)), y), size, tip);
            let (place, anchor) =
                if value.median < 1.0 { (at - 5.0, "end") } else { (at + 5.0, "start") };
            drawing.text("value", place, baseline, anchor, &significant(value.median));
        });
        drawing.line("axis", (x(1.0), 0.0), (x(1.0), rows.bottom()));
        drawing
    }

    fn stacks(&self) -> Drawing {
        const BAR: f64 = 20.0;
        let sum = |i: usize| -> f64 {
            self.series.iter().filter_map(|series| series.values[i]).map(|v| v.median).sum()
        };
        let axis = Axis::to((0..self.groups.len()).map(sum).fold(0.0, f64::max));
        let rows = Rows { bar: BAR, ..Rows::new(self.label_width(), 1, self.groups.len()) };
        let mut drawing = Drawing::new(Rows::WIDTH, rows.height());
        let x = |value: f64| rows.left + rows.width() * value / axis.max;
        for tick in axis.ticks() {
            drawing.line("grid", (x(tick), 0.0), (x(tick), rows.bottom()));
            drawing.text("tick", x(tick), rows.bottom() + 15.0, "middle", &tick_text(tick));
        }
        for (i, group) in self.groups.iter().enumerate() {
            let y = rows.top(i);
            drawing.text("name", rows.left - 6.0, y + 14.0, "end", &shortened(group));
            let mut before = 0.0;
            for series in &self.series {
                let Some(value) = &series.values[i] else { continue };
                let (from, to) = (x(before), x(before + value.median));
                let tip = self.tip(i, series, value);
                drawing.bar(&series.class, (from, y), (to - from, BAR - 2.0), &tip);
                before += value.median;
            }
            if before > 0.0 {
                drawing.text("value", x(before) + 5.0, y + 14.0, "start", &short(before));
            }
        }
        drawing.line("axis", (rows.left, 0.0), (rows.left, rows.bottom()));
        drawing
    }

    /// Names the groups and draws each figure of theirs on a line of its own.
    fn each_bar(
        &self,
        rows: &Rows,
        drawing: &mut Drawing,
        draw: impl Fn(&mut Drawing, &Series, &Sample, f64, &str),
    ) {
        for (i, group) in self.groups.iter().enumerate() {
            let middle = rows.top(i) + rows.bar * self.series.len() as f64 / 2.0;
            drawing.text("name", rows.left - 6.0, middle + 3.0, "end", &shortened(group));
            for (k, series) in self.series.iter().enumerate() {
                let Some(value) = &series.values[i] else { continue };
                let y = rows.top(i) + rows.bar * k as f64;
                draw(drawing, series, value, y, &self.tip(i, series, value));
            }
        }
    }
}

/// A figure of an axis, which is round.
pub(super) fn tick_text(value: f64) -> String {
    let (number, unit) = match short(value).split_once(' ') {
        Some((number, unit)) => (number.to_owned(), format!(" {unit}")),
        None => (short(value), String::new()),
    };
    if !number.contains('.') {
        return number + &unit;
    }
    number.trim_end_matches('0').trim_end_matches('.').to_owned() + &unit
}

/// A figure on a column, which is narrower than a line.
fn tight(value: f64) -> String {
    match value {
        v if v >= 999.5e3 => short(v),
        v if v >= 99.95e3 => format!("{:.0} k", v / 1e3),
        v if v >= 999.5 => format!("{:.1} k", v / 1e3),
        v => short(v),
    }
}

/// The places of lying bars.
struct Rows {
    left: f64,
    bar: f64,
    bars: usize,
    groups: usize,
}

impl Rows {
    const WIDTH: f64 = 600.0;
    const BAR: f64 = 16.0;
    const GAP: f64 = 9.0;
    /// Right of the longest bar, for its figure.
    const RIGHT: f64 = 62.0;

    fn new(label_width: f64, bars: usize, groups: usize) -> Self {
        Self { left: label_width + 10.0, bar: Self::BAR, bars, groups }
    }

    fn width(&self) -> f64 {
        Self::WIDTH - self.left - Self::RIGHT
    }

    fn top(&self, group: usize) -> f64 {
        4.0 + group as f64 * (self.bars as f64 * self.bar + Self::GAP)
    }

    fn bottom(&self) -> f64 {
        self.top(self.groups) - Self::GAP + 5.0
    }

    fn height(&self) -> f64 {
        self.bottom() + 22.0
    }
}

/// An axis from 0 whose ticks are round numbers.
pub(super) struct Axis {
    pub(super) max: f64,
    step: f64,
}

impl Axis {
    /// An axis that holds `max`. Without a figure above 0 it reaches to 1.
    pub(super) fn to(max: f64) -> Self {
        let max = if max > 0.0 { max } else { 1.0 };
        let power = 10_f64.powf((max / 4.0).log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| step * 4.0 >= max).unwrap_or(max);
        Self { max: (max / step).ceil() * step, step }
    }

    pub(super) fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = (self.max / self.step).round() as u64;
        (0..=count).map(|tick| tick as f64 * self.step)
    }

    pub(super) fn label_width(&self) -> f64 {
        self.ticks().map(|tick| text_width(&tick_text(tick))).fold(0.0, f64::max)
    }
}

/// Characters of a group's name that fit into a plot; the table has all of it.
const NAME_MAX: usize = 26;

fn shortened(name: &str) -> String {
    if name.chars().count() <= NAME_MAX {
        return name.to_owned();
    }
    name.chars().take(NAME_MAX - 1).chain(['…']).collect()
}

/// The approximate width of a text of 12 pixels in the usual fonts without serifs, rather more.
pub(super) fn text_width(text: &str) -> f64 {
    7.6 * text.chars().count() as f64
}

/// A picture that grows.
pub(super) struct Drawing {
    width: f64,
    height: f64,
    body: String,
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(super) const fn size(&self) -> (f64, f64) {
        (self.width, self.height)
    }

    /// Adds another one, with its corner here.
    pub(super) fn add(&mut self, other: Self, at: (f64, f64)) {
        let (x, y) = at;
        self.raw(&format!("<g transform=\"translate({x:.1} {y:.1})\">"));
        self.body.push_str(&other.body);
        self.raw("</g>");
    }

    /// Adds an element as it stands.
    pub(super) fn raw(&mut self, element: &str) {
        self.body.push_str(element);
        self.body.push('\n');
    }

    // Writing to a String cannot fail, here and below.

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.body,
            r#"<line class="{class}" x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}"/>"#,
            from.0, from.1, to.0, to.1
        );
    }

    pub(super) fn bar(&mut self, class: &str, corner: (f64, f64), size: (f64, f64), tip: &str) {
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
             <title>{}</title></rect>",
            corner.0,
            corner.1,
            size.0.max(0.5),
            size.1.max(0.5),
            super::html::escaped(tip)
        );
    }

    pub(super) fn text(&mut self, class: &str, x: f64, y: f64, anchor: &str, text: &str) {
        let _ = writeln!(
            self.body,
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{}</text>"#,
            super::html::escaped(text)
        );
    }

    /// The element. Its own size is in pixels, and it shrinks with the page.
    pub(super) fn finish(self, id: &str, title: &str, note: &str) -> String {
        let Self { width, height, body } = self;
        format!(
            "<svg role=\"img\" aria-labelledby=\"{id}t {id}d\" \
             viewBox=\"0 0 {width:.0} {height:.0}\" \
             width=\"{width:.0}\" height=\"{height:.0}\" xmlns=\"http://www.w3.org/2000/svg\">\n\
             <title id=\"{id}t\">{}</title>\n<desc id=\"{id}d\">{}</desc>\n{body}</svg>\n",
            super::html::escaped(title),
            super::html::escaped(note)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_few_round_ticks_and_room_for_the_largest_figure() {
        for (max, ticks) in [
            (7.0, vec![0.0, 2.0, 4.0, 6.0, 8.0]),
            (100.0, vec![0.0, 25.0, 50.0, 75.0, 100.0]),
            (0.3, vec![0.0, 0.1, 0.2, 0.3]),
            (0.0, vec![0.0, 0.25, 0.5, 0.75, 1.0]),
        ] {
            let axis = Axis::to(max);
            let found: Vec<f64> = axis.ticks().map(|tick| (tick * 1e6).round() / 1e6).collect();
            assert_eq!(found, ticks, "{max}");
            assert!(axis.max >= max);
        }
    }
}
