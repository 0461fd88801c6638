//! The content of a report, before it is HTML or Markdown: plain text only, so that each writer
//! escapes everything.

use super::chart::Chart;
use super::stats::{Better, Ratio, Tone};

/// A whole report.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) title: String,
    pub(super) sections: Vec<Section>,
}

/// A part with a heading.
#[derive(Clone, Debug)]
pub(super) struct Section {
    pub(super) title: String,
    pub(super) blocks: Vec<Block>,
}

/// A piece of a section.
#[derive(Clone, Debug)]
pub(super) enum Block {
    Text(String),
    /// Names and their values.
    Facts {
        title: String,
        facts: Vec<(&'static str, String)>,
    },
    /// The warnings that a reader needs before trusting a figure.
    Warnings(Vec<String>),
    Verdicts(Vec<Verdict>),
    Sheet(Sheet),
    /// Side by side if there is space. Markdown has only the tables of the same figures.
    Charts(Vec<Chart>),
    /// The result of a command, and the command.
    Command {
        what: String,
        command: String,
    },
}

/// A verdict: the side that is ahead, by how much, and at what cost.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    /// The two sides, as `a ÷ b`.
    pub(super) sides: String,
    pub(super) place: String,
    pub(super) figures: Vec<(String, Ratio, Better)>,
}

impl Verdict {
    /// The figures in which the first side is ahead, behind or even, as `throughput ×1.31`.
    pub(super) fn with_tone(&self, tone: Tone) -> Vec<String> {
        let figures = self.figures.iter().filter(|(_, ratio, better)| ratio.tone(*better) == tone);
        figures.map(|(name, ratio, _)| format!("{name} ×{}", ratio.text())).collect()
    }
}

/// A table: the first column is words, the others are figures.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sheet {
    pub(super) title: String,
    pub(super) header: Vec<String>,
    pub(super) rows: Vec<Vec<Cell>>,
}

/// A figure, and its ratio to another.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) ratio: Option<(String, Tone)>,
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ratio: None }
    }

    /// A ratio alone.
    pub(super) fn ratio(ratio: Option<Ratio>, better: Better) -> Self {
        let ratio = ratio.map(|ratio| (ratio.text(), ratio.tone(better)));
        Self { text: String::new(), ratio }
    }

    /// The same with a ratio beside it.
    pub(super) fn with(self, ratio: Option<Ratio>, better: Better) -> Self {
        Self { text: self.text, ..Self::ratio(ratio, better) }
    }
}

impl Sheet {
    pub(super) fn new(title: impl Into<String>, header: &[&str]) -> Self {
        let header = header.iter().map(|&word| word.to_owned()).collect();
        Self { title: title.into(), header, rows: Vec::new() }
    }

    /// Adds a row, with as many cells as the header has.
    pub(super) fn row(&mut self, name: impl Into<String>, cells: Vec<Cell>) {
        assert_eq!(cells.len() + 1, self.header.len(), "a row of {}", self.title);
        self.rows.push(std::iter::once(Cell::text(name)).chain(cells).collect());
    }
}
