//! Identifiers. Each is a number with a type of its own, so that a slot is never taken for a file
//! nor a log position for a sequence number.

use crate::{Error, Result};
use alloc::format;
use core::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// Zero: the value before the first.
            pub const ZERO: Self = Self(0);

            /// The bare number.
            #[inline]
            pub const fn get(self) -> $inner {
                self.0
            }

            /// The number after this one.
            ///
            /// # Panics
            /// When the number space is exhausted, which no run reaches.
            #[inline]
            #[must_use]
            pub const fn next(self) -> Self {
                match self.0.checked_add(1) {
                    Some(n) => Self(n),
                    None => panic!(concat!(stringify!($name), " space is exhausted")),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

number!(
    /// A replication group: the owner of a key range and of one log.
    GroupId(u64), "g");
number!(
    /// The tenure of a primary. Names subsystems, keys and grants; a durable counter, never a
    /// clock.
    Term(u64), "t");
number!(
    /// The number of a group's membership. A new one ends connections and grants; a term begins.
    ConfigNumber(u64), "c");
number!(
    /// A member of a group.
    ReplicaId(u32), "r");
number!(
    /// An independent log of a group (Cyclone's physical logs). One shard, number 0, today.
    ShardId(u16), "s");
number!(
    /// Position of an entry in the total order of a group's writes. Fits in 56 bits.
    SequenceNumber(u64), "#");
number!(
    /// A byte position in a shard's log, counted from the beginning of the group.
    LogPosition(u64), "@");
number!(
    /// Ordinal of a record in a shard's log.
    LogIndex(u64), "i");
number!(
    /// Ordinal of a MemTable of a group: the first is 1, each seal begins the next.
    MemTableId(u64), "m");
number!(
    /// A slot of a region, counted from the region's first.
    SlotIndex(u32), "slot ");
number!(
    /// A pool's durable count of slot allocations: tells two uses of one slot apart.
    Generation(u64), "gen ");

impl SequenceNumber {
    /// The largest sequence number: 2^56 − 1, as an entry's trailer packs it with the kind.
    pub const MAX: Self = Self((1 << 56) - 1);
}

/// The readers of a log. It is the same for the log's life and does not follow from the number of
/// members: a group may shrink to one and grow again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LogKind {
    /// This replica alone, at its next start. Its records may leave out what their place says. It
    /// may end where a flush has put everything into files, and lack what was written past that.
    Private = 1,
    /// Every member of the group. Each record says of itself all that a member has to know, and all
    /// batches and edits are there.
    Shared = 2,
}

impl LogKind {
    /// The kind that is stored as this byte.
    ///
    /// # Errors
    /// Unsupported for a kind that this build does not know.
    pub fn from_byte(byte: u8) -> Result<Self> {
        match byte {
            1 => Ok(Self::Private),
            2 => Ok(Self::Shared),
            _ => Err(Error::unsupported(format!("a log of kind {byte}; this build knows 1 and 2"))),
        }
    }

    /// Both kinds in words, for messages about the wrong one.
    pub const BOTH: &'static str = "a private log is read by its own replica alone, and its \
        records do not say what their place says; a shared log is sent to the members of a group, \
        and each of its records says all";

    /// The kind as it is named in messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Private => "private",
            Self::Shared => "shared",
        }
    }
}

/// The content of a numbered file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A sorted string table.
    Sst = 1,
    /// A segment of a log; its number is shard and position ÷ segment length.
    LogSegment = 2,
    /// A sorted file of values that left the tree (Parallax's medium values). Reserved.
    Values = 3,
}

impl FileKind {
    /// The kind that a stored byte means, if any.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Sst),
            2 => Some(Self::LogSegment),
            3 => Some(Self::Values),
            _ => None,
        }
    }
}

/// A file of a group: the same number names the same bytes at every replica.
///
/// ```text
/// SST, values file   u32 term | u32 counter       a promoted primary gives none twice
/// log segment        u16 shard | u48 position ÷ segment length      known before it is written
/// ```
///
/// The term of an SST is the tenure of the primary that gave the number. A primary that starts has
/// a new term, so it need not know which numbers an earlier one gave and never used; their orphans
/// may lie at any replica. A segment spans terms and pointers name it beforehand, so its number
/// follows from its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Its content; each kind has a number space of its own.
    pub kind: FileKind,
    /// Its number, never used twice in the life of a group.
    pub number: u64,
}

/// The largest term whose files have numbers: the high half of a file's number holds it.
pub const TERM_MAX: Term = Term(u32::MAX as u64);
/// The largest ordinal of a log segment in its shard.
pub const SEGMENT_ORDINAL_MAX: u64 = (1 << 48) - 1;

impl FileId {
    /// The SST with this number.
    #[must_use]
    pub const fn sst(number: u64) -> Self {
        Self { kind: FileKind::Sst, number }
    }

    /// The number of the first file that a primary makes in `term`; the others follow.
    ///
    /// # Panics
    /// When the term is over [`TERM_MAX`]: code that takes a term from a wire or a disk checks it.
    #[must_use]
    pub const fn first_number(term: Term) -> u64 {
        assert!(term.0 <= TERM_MAX.0, "the term is over the limit");
        term.0 << 32
    }

    /// The tenure of the primary that gave an SST or a values file its number.
    #[must_use]
    pub const fn term(&self) -> Term {
        Term(self.number >> 32)
    }

    /// How many numbers the primary of `term` has left for files when the next is `number`. None
    /// once it has given all of them, and none of another term's.
    #[must_use]
    pub const fn numbers_left(number: u64, term: Term) -> u64 {
        if number >> 32 == term.0 { (1 << 32) - (number & u32::MAX as u64) } else { 0 }
    }

    /// The segment of `shard` whose first byte is at `ordinal` × segment length.
    ///
    /// # Panics
    /// When the ordinal is over [`SEGMENT_ORDINAL_MAX`], which no log reaches.
    #[must_use]
    pub const fn log_segment(shard: ShardId, ordinal: u64) -> Self {
        assert!(ordinal <= SEGMENT_ORDINAL_MAX, "the segment's ordinal is over the limit");
        Self { kind: FileKind::LogSegment, number: (shard.0 as u64) << 48 | ordinal }
    }

    /// The shard of a log segment.
    #[must_use]
    pub const fn shard(&self) -> ShardId {
        ShardId((self.number >> 48) as u16)
    }

    /// The position of a log segment in its shard ÷ segment length.
    #[must_use]
    pub const fn ordinal(&self) -> u64 {
        self.number & SEGMENT_ORDINAL_MAX
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (high, low, ending) = match self.kind {
            FileKind::Sst => (self.number >> 32, self.number & u64::from(u32::MAX), "sst"),
            FileKind::Values => (self.number >> 32, self.number & u64::from(u32::MAX), "val"),
            FileKind::LogSegment => (u64::from(self.shard().0), self.ordinal(), "log"),
        };
        if high > 0 {
            write!(f, "{high}-")?;
        }
        write!(f, "{low:06}.{ending}")
    }
}

impl fmt::Debug for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::format;

    #[test]
    fn identifiers_print_with_their_kind() {
        assert_eq!(format!("{} {} {}", GroupId(1), Term(2), SlotIndex(3)), "g1 t2 slot 3");
        assert_eq!(format!("{}", FileId::sst(7)), "000007.sst");
        assert_eq!(format!("{}", FileId::sst(FileId::first_number(Term(3)) + 7)), "3-000007.sst");
        assert_eq!(FileId::sst(FileId::first_number(Term(3)) + 7).term(), Term(3));
        let segment = FileId::log_segment(ShardId(2), 9);
        assert_eq!(format!("{segment}"), "2-000009.log");
        assert_eq!((segment.shard(), segment.ordinal()), (ShardId(2), 9));
    }

    #[test]
    fn a_term_has_numbers_for_its_own_files_and_for_no_others() {
        let first = FileId::first_number(Term(3));
        assert_eq!(FileId::numbers_left(first, Term(3)), 1 << 32);
        assert_eq!(FileId::numbers_left(first + 5, Term(3)), (1 << 32) - 5);
        assert_eq!(FileId::numbers_left(FileId::first_number(Term(4)) - 1, Term(3)), 1);
        assert_eq!(FileId::numbers_left(FileId::first_number(Term(4)), Term(3)), 0);
        assert_eq!(FileId::numbers_left(first - 1, Term(3)), 0);
        assert_eq!(FileId::numbers_left(u64::MAX, TERM_MAX), 1);
    }

    #[test]
    fn every_file_kind_survives_its_byte() {
        for kind in [FileKind::Sst, FileKind::LogSegment, FileKind::Values] {
            assert_eq!(FileKind::from_byte(kind as u8), Some(kind));
        }
        assert_eq!(FileKind::from_byte(0), None);
        assert_eq!(FileKind::from_byte(4), None);
    }
}
