//! The file of recorded numbers. People read it, and the command writes it.

use std::collections::{BTreeMap, BTreeSet};

/// The counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Measure {
    Assertions,
    LongFunctions,
    LargestCycle,
    FilesInCycles,
    LongLines,
}

pub(super) const MEASURES: [Measure; 5] = [
    Measure::Assertions,
    Measure::LongFunctions,
    Measure::LargestCycle,
    Measure::FilesInCycles,
    Measure::LongLines,
];

/// The words before the path of a file that is too long.
const LONG_FILE: &str = "over 800 lines:";

impl Measure {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Assertions => "assertions",
            Self::LongFunctions => "functions over 70 lines",
            Self::LargestCycle => "files in the largest cycle",
            Self::FilesInCycles => "files in cycles",
            Self::LongLines => "lines over 100 columns",
        }
    }

    pub(super) const fn is_worse(self, is: usize, was: usize) -> bool {
        match self {
            Self::Assertions => is < was,
            _ => is > was,
        }
    }
}

/// The numbers of each crate, and of the documents.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) numbers: BTreeMap<String, BTreeMap<Measure, usize>>,
    /// Paths of files that are too long.
    pub(super) long_files: BTreeSet<String>,
}

const HEADER: &str = "\
# Numbers that `cargo xtask check` lets only become better: assertions rise, all others fall.
# `cargo xtask ratchet` writes better ones, and refuses worse ones. A worse one is written here by
# hand, and its commit says why. How each is counted: xtask/src/ratchet.rs.
";

impl Record {
    pub(super) fn number(&self, owner: &str, measure: Measure) -> usize {
        self.numbers.get(owner).and_then(|numbers| numbers.get(&measure)).copied().unwrap_or(0)
    }

    pub(super) fn text(&self) -> String {
        let mut text = HEADER.to_owned();
        for (owner, numbers) in &self.numbers {
            text += &format!("\n{owner}\n");
            for (measure, number) in numbers {
                text += &format!("  {} {number}\n", measure.name());
            }
        }
        if !self.long_files.is_empty() {
            text += &format!("\n{LONG_FILE}\n");
        }
        for path in &self.long_files {
            text += &format!("  {path}\n");
        }
        text
    }

    /// # Errors
    /// The number of the line that is no line of a record.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut record = Self::default();
        let mut owner = None;
        for (index, line) in text.lines().enumerate() {
            let wrong = || format!("{}: '{line}' is no line of a record", index + 1);
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match (line.strip_prefix("  "), owner) {
                (None, _) => {
                    owner = Some(line);
                    if line != LONG_FILE
                        && record.numbers.insert(line.into(), BTreeMap::new()).is_some()
                    {
                        return Err(wrong());
                    }
                }
                (Some(path), Some(LONG_FILE)) => drop(record.long_files.insert(path.to_owned())),
                (Some(line), Some(owner)) => {
                    let (name, number) = line.rsplit_once(' ').ok_or_else(wrong)?;
                    let measure = MEASURES.into_iter().find(|measure| measure.name() == name);
                    let number = number.parse().map_err(|_| wrong())?;
                    let numbers = record.numbers.entry(owner.to_owned()).or_default();
                    if numbers.insert(measure.ok_or_else(wrong)?, number).is_some() {
                        return Err(wrong());
                    }
                }
                (Some(_), None) => return Err(wrong()),
            }
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_was_written_is_read_again() {
        let numbers = BTreeMap::from([(Measure::Assertions, 3), (Measure::LongLines, 0)]);
        let record = Record {
            numbers: BTreeMap::from([("gabion-x".to_owned(), numbers)]),
            long_files: BTreeSet::from(["a/b.rs".to_owned()]),
        };
        let text = record.text();
        let body = text.strip_prefix(HEADER).expect("a header");
        assert_eq!(
            body,
            "\ngabion-x\n  assertions 3\n  lines over 100 columns 0\n\nover 800 lines:\n  a/b.rs\n"
        );
        assert_eq!(Record::parse(&text), Ok(record));
    }

    #[test]
    fn a_line_that_is_none_of_a_record_is_named() {
        for (text, line) in [
            ("x\n  assertions many", 2),
            ("x\n  asertions 3", 2),
            ("  assertions 3", 1),
            ("x\n  assertions 3\n  assertions 4", 3),
            ("x\n\nx", 3),
        ] {
            let error = Record::parse(text).expect_err(text);
            assert!(error.starts_with(&format!("{line}: ")), "{error}");
        }
    }
}
