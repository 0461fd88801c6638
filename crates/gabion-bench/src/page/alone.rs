//! Needs of pictures that stand alone: the page's colours, a title, a legend.

use super::chart::{Chart, Drawing, Form, Series, text_width};
use super::html::STYLE;
use super::stats::Sample;

/// Rules of a picture that no page gives any; colours are those of the page. Lines have the classes
/// `l0` and on; bars, points and keys of the same colours `k0` and on.
const RULES: &str = "
text { fill: var(--ink);
  font: 12px system-ui, -apple-system, \"Segoe UI\", Roboto, \"DejaVu Sans\", sans-serif; }
.paper { fill: var(--paper); }
.title { font-weight: 600; font-size: 14px; }
.tick { fill: var(--soft); }
.grid { stroke: var(--rule); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1.2; }
.spread { stroke: var(--ink); stroke-width: 1.6; }
.mark { stroke: var(--soft); stroke-width: 1.2; stroke-dasharray: 4 3; }
.other { fill: none; stroke: var(--ink); stroke-width: 1.6; }
.l0, .l1, .l2, .l3, .l4, .l5 { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.l0 { stroke: var(--s1); } .l1 { stroke: var(--s0); } .l2 { stroke: var(--s3); }
.l3 { stroke: var(--s4); } .l4 { stroke: var(--s2); } .l5 { stroke: var(--s5); }
.k0 { fill: var(--s1); } .k1 { fill: var(--s0); } .k2 { fill: var(--s3); }
.k3 { fill: var(--s4); } .k4 { fill: var(--s2); } .k5 { fill: var(--s5); }
";
/// Colours of [`RULES`].
pub(super) const COLOURS: usize = 6;
const KEY: f64 = 11.0;
/// A key, and the gaps around it.
const BESIDE_NAME: f64 = 34.0;
const MARGIN: f64 = 14.0;
/// Above a chart: its title, its note and its legend.
const HEAD: f64 = 84.0;

/// The page's colours, for light, dark and print: what stands before its first other rule.
fn colours() -> &'static str {
    STYLE.split_once("* {").map_or(STYLE, |(colours, _)| colours)
}

/// The first elements of a picture.
pub(super) fn begin(drawing: &mut Drawing) {
    drawing.raw(&format!("<style>{}{RULES}</style>", colours()));
    drawing.raw(r#"<rect class="paper" width="100%" height="100%"/>"#);
}

/// The width of a legend.
pub(super) fn legend_width<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    names.map(|name| BESIDE_NAME + text_width(name)).sum()
}

/// Names with their colours, below a title.
pub(super) fn legend<'a>(drawing: &mut Drawing, left: f64, names: impl Iterator<Item = &'a str>) {
    let mut x = left;
    for (i, name) in names.enumerate() {
        drawing.bar(&format!("k{i}"), (x, 33.0), (KEY, KEY), name);
        drawing.text("name", x + 16.0, 43.0, "start", name);
        x += BESIDE_NAME + text_width(name);
    }
}

/// Bars as a picture of its own.
#[derive(Clone, Debug)]
pub(crate) struct Bars {
    pub(crate) title: String,
    pub(crate) note: String,
    pub(crate) groups: Vec<String>,
    /// Names, and a figure for each group.
    pub(crate) series: Vec<(String, Vec<Option<f64>>)>,
    /// One lying bar for each group, of parts that add up.
    pub(crate) is_stacked: bool,
}

impl Bars {
    pub(crate) fn svg(&self) -> String {
        assert!(self.series.len() <= COLOURS, "each series has a colour");
        let series = self.series.iter().enumerate().map(|(i, (name, values))| Series {
            name: name.clone(),
            class: format!("k{i}"),
            values: values.iter().map(|value| Sample::of(*value)).collect(),
        });
        let chart = Chart {
            title: self.title.clone(),
            note: self.note.clone(),
            groups: self.groups.clone(),
            series: series.collect(),
            form: if self.is_stacked { Form::Stacks } else { Form::Columns },
        };
        let bars = chart.drawing();
        let (width, height) = bars.size();
        let names = || self.series.iter().map(|(name, _)| &**name);
        let texts = [&self.title, &self.note].map(|text| text_width(text));
        let wide = texts.into_iter().chain([legend_width(names()), width]).fold(0.0, f64::max);
        let mut drawing = Drawing::new(wide + 2.0 * MARGIN, HEAD + height + MARGIN);
        begin(&mut drawing);
        drawing.text("title", MARGIN, 22.0, "start", &self.title);
        legend(&mut drawing, MARGIN, names());
        drawing.text("tick", MARGIN, 64.0, "start", &self.note);
        drawing.add(bars, (MARGIN, HEAD));
        drawing.finish("t", &self.title, &self.note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_stand_alone_with_a_legend_and_a_gap_where_nothing_was_measured() {
        for is_stacked in [false, true] {
            let bars = Bars {
                title: "Requests <a second>".to_owned(),
                note: "a note that is long enough to be wider than its two groups of bars".into(),
                groups: vec!["YCSB A".to_owned(), "YCSB C".to_owned()],
                series: vec![
                    ("unsynced".to_owned(), vec![Some(9000.0), Some(10_000.0)]),
                    ("synced".to_owned(), vec![Some(90.0), None]),
                ],
                is_stacked,
            };
            let svg = bars.svg();
            let document = roxmltree::Document::parse(&svg).unwrap();
            let bars = document.descendants().filter(|n| {
                n.attribute("class").is_some_and(|class| ["k0", "k1"].contains(&class))
            });
            assert_eq!(bars.count(), 3 + 2, "three figures, and the legend");
            assert!(svg.contains("prefers-color-scheme: dark") && svg.contains("a note that"));
        }
    }
}
