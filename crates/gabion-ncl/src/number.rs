//! Numbers of records and files.

use core::fmt;

/// A record of an application. The first is 1, and none is ever given twice in one term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

impl Number {
    /// Before the first.
    pub const ZERO: Self = Self(0);

    /// The record after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}", self.0)
    }
}

/// A file of an application, for life: renames and links change names alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u64);

impl FileNumber {
    /// The two files that hold the table of names by turns.
    pub const NAMES: [Self; 2] = [Self(0), Self(1)];
    /// The first that a program's file can have.
    pub const FIRST: Self = Self(2);

    /// Whether it holds the table of names.
    #[must_use]
    pub const fn is_names(self) -> bool {
        self.0 < Self::FIRST.0
    }
}

impl fmt::Display for FileNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {}", self.0)
    }
}
