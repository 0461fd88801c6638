//! Identifiers. Each is a number with a type of its own, so that a slot is never taken for a file
//! nor a log position for a sequence number.

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
    /// The tenure of a primary. Names subsystems, keys and grants; a durable counter, never a clock.
    Term(u64), "t");
number!(
    /// The number of a group's membership. Changes without a change of writer fence nobody.
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
    /// How often slots of a pool have been handed out: a durable counter that tells two uses of one
    /// slot apart.
    Generation(u64), "gen ");

impl SequenceNumber {
    /// The largest sequence number: 2^56 − 1, as an entry's trailer packs it with the kind.
    pub const MAX: Self = Self((1 << 56) - 1);
}

/// What a numbered file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// A sorted string table.
    Sst = 1,
    /// A segment of a log; its number is position ÷ segment length.
    LogSegment = 2,
    /// A sorted file of values that left the tree (Parallax's medium values). Reserved.
    Values = 3,
}

impl FileKind {
    /// The kind that a stored byte means, if it means one.
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// What it holds; each kind has a number space of its own.
    pub kind: FileKind,
    /// Its number, never used twice in the life of a group.
    pub number: u64,
}

impl FileId {
    /// The SST with this number.
    #[must_use]
    pub const fn sst(number: u64) -> Self {
        Self { kind: FileKind::Sst, number }
    }

    /// The log segment with this number.
    #[must_use]
    pub const fn log_segment(number: u64) -> Self {
        Self { kind: FileKind::LogSegment, number }
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            FileKind::Sst => write!(f, "{:06}.sst", self.number),
            FileKind::LogSegment => write!(f, "{:06}.log", self.number),
            FileKind::Values => write!(f, "{:06}.val", self.number),
        }
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
