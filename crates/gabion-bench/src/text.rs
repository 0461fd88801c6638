//! Tables as text for a terminal and as Markdown, and numbers as people read them.

use std::fmt::Write;

/// How a report is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Markdown,
}

/// A table: the first column is words, the others are numbers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) title: String,
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, header: &[&str]) -> Self {
        let header = header.iter().map(|&word| word.to_owned()).collect();
        Self { title: title.into(), header, rows: Vec::new() }
    }

    /// Adds a row, with as many cells as the header has.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.header.len(), "a row of {}", self.title);
        self.rows.push(cells);
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Appends the table.
    pub(crate) fn write(&self, style: Style, out: &mut String) {
        let mut widths: Vec<usize> = self.header.iter().map(|cell| cell.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        match style {
            Style::Plain => line(out, &self.title),
            Style::Markdown => line(out, &format!("**{}**\n", self.title)),
        }
        write_row(&self.header, &widths, style, out);
        if style == Style::Markdown {
            let rules = widths.iter().enumerate().map(|(i, &width)| match i {
                0 => "-".repeat(width),
                _ => "-".repeat(width.max(2) - 1) + ":",
            });
            line(out, &format!("| {} |", rules.collect::<Vec<_>>().join(" | ")));
        }
        for row in &self.rows {
            write_row(row, &widths, style, out);
        }
        out.push('\n');
    }
}

fn write_row(cells: &[String], widths: &[usize], style: Style, out: &mut String) {
    let padded = cells.iter().zip(widths).enumerate().map(|(i, (cell, &width))| match i {
        0 => format!("{cell:<width$}"),
        _ => format!("{cell:>width$}"),
    });
    let padded: Vec<String> = padded.collect();
    match style {
        Style::Plain => line(out, format!("  {}", padded.join("  ")).trim_end()),
        Style::Markdown => line(out, &format!("| {} |", padded.join(" | "))),
    }
}

/// Appends a line.
pub(crate) fn line(out: &mut String, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{text}");
}

/// A number with commas between thousands: `1234567` as `1,234,567`.
#[must_use]
pub fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Bytes in megabytes (10⁶).
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / 1e6)
}

/// Bytes in gigabytes (10⁹).
pub(crate) fn gigabytes(bytes: u64) -> String {
    format!("{:.3}", bytes as f64 / 1e9)
}

/// Seconds with two digits after the point.
pub(crate) fn seconds(value: f64) -> String {
    format!("{value:.2}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_in_both_styles() {
        let mut table = Table::new("CPU (s)", &["role", "primary"]);
        table.row(vec!["flush".to_owned(), seconds(1.5)]);
        table.row(vec!["compaction".to_owned(), grouped(1_234_567)]);
        let (mut plain, mut markdown) = (String::new(), String::new());
        table.write(Style::Plain, &mut plain);
        table.write(Style::Markdown, &mut markdown);
        assert_eq!(
            plain,
            "CPU (s)\n  role          primary\n  flush            1.50\n  compaction  1,234,567\n\n"
        );
        assert_eq!(
            markdown,
            "**CPU (s)**\n\n| role       |   primary |\n| ---------- | --------: |\n\
             | flush      |      1.50 |\n| compaction | 1,234,567 |\n\n"
        );
    }

    #[test]
    fn numbers_read_well() {
        let texts = [0, 999, 1000].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000"]);
        assert_eq!((megabytes(1_550_000), gigabytes(1_550_000)), ("1.6".into(), "0.002".into()));
    }
}
