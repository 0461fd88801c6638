//! Prometheus's text format, version 0.0.4.
//!
//! ```text
//!   # HELP gabion_pool_slots Slots of the pool, by state.
//!   # TYPE gabion_pool_slots gauge
//!   gabion_pool_slots{group="7",replica="1",state="free"} 1893
//! ```
//!
//! A page has labels of its own, which each of its samples begins with: one scraper may see many
//! groups in one process.

use super::latencies::{BUCKETS, bounds};
use core::fmt::Write as _;

/// Kind of a family's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, until the process ends or somebody resets it.
    Counter,
    /// It may fall.
    Gauge,
    /// Times in buckets.
    Histogram,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The value of a sample. Whole numbers are written with all their digits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole one.
    Whole(u64),
    /// Any other.
    Real(f64),
}

impl Number {
    /// Milliseconds, as seconds.
    #[must_use]
    pub fn ms(ms: u64) -> Self {
        Self::Real(ms as f64 / 1e3)
    }
}

impl From<u64> for Number {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<u32> for Number {
    fn from(value: u32) -> Self {
        Self::Whole(value.into())
    }
}

impl From<usize> for Number {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Number {
    fn from(value: bool) -> Self {
        Self::Whole(value.into())
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

/// A page under construction.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    /// `name="value"` pairs of every sample, each with a comma behind it.
    labels: String,
}

impl Page {
    /// A page whose samples all have these labels.
    #[must_use]
    pub fn new(labels: &[(&str, &str)]) -> Self {
        let mut page = Self::default();
        labels.iter().for_each(|label| push_label(&mut page.labels, label));
        page
    }

    /// Begins a family: samples of one name. Each is begun once on a page.
    ///
    /// # Panics
    /// For a counter whose name does not end with `_total`.
    pub fn family<'a>(&'a mut self, name: &'a str, kind: Kind, help: &str) -> Family<'a> {
        let is_total = name.ends_with("_total");
        assert_eq!(kind == Kind::Counter, is_total, "{name}: counters, and none else, are totals");
        let kind = kind.as_str();
        // Writing to a String cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family { page: self, name }
    }

    /// A family of one counter.
    pub fn counter(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.family(name, Kind::Counter, help).sample(&[], value);
    }

    /// A family of one gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Into<Number>) {
        self.family(name, Kind::Gauge, help).sample(&[], value);
    }

    /// The whole text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }
}

/// The samples of one name.
#[derive(Debug)]
pub struct Family<'a> {
    page: &'a mut Page,
    name: &'a str,
}

impl Family<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: impl Into<Number>) {
        self.line("", labels, value.into());
    }

    /// Adds a histogram of times: how many fell into each bucket, and their sum.
    pub fn times(&mut self, labels: &[(&str, &str)], counts: &[u64; BUCKETS], sum_ns: u64) {
        let mut so_far = 0;
        let ends = bounds().map(|end| end.to_string()).chain(["+Inf".to_owned()]);
        for (end, count) in ends.zip(counts) {
            so_far += count;
            let with_end: Vec<_> = labels.iter().copied().chain([("le", &*end)]).collect();
            self.line("_bucket", &with_end, so_far.into());
        }
        self.line("_sum", labels, Number::Real(sum_ns as f64 / 1e9));
        self.line("_count", labels, so_far.into());
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: Number) {
        let Page { text, labels: all } = &mut *self.page;
        text.push_str(self.name);
        text.push_str(suffix);
        if !all.is_empty() || !labels.is_empty() {
            text.push('{');
            text.push_str(all);
            labels.iter().for_each(|label| push_label(text, label));
            // The last comma.
            text.pop();
            text.push('}');
        }
        let _ = match value {
            Number::Whole(value) => writeln!(text, " {value}"),
            Number::Real(f64::INFINITY) => writeln!(text, " +Inf"),
            Number::Real(value) => writeln!(text, " {value}"),
        };
    }
}

/// Values may come from clients, as the words of errors do.
fn push_label(text: &mut String, (name, value): &(&str, &str)) {
    text.push_str(name);
    text.push_str("=\"");
    for c in value.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str("\\n"),
            c => text.push(c),
        }
    }
    text.push_str("\",");
}
