//! Entries: the kinds of change that the tree knows, and their order.
//!
//! An *engine key* is a keyspace byte followed by the user's key. An *internal key* is an engine key
//! and a [`Trailer`], which packs sequence number and kind into 8 bytes:
//!
//! ```text
//!   63                               8 7        0
//!  ┌──────────────────────────────────┬──────────┐
//!  │ sequence number (56 bits)        │ kind     │
//!  └──────────────────────────────────┴──────────┘
//! ```
//!
//! Order: engine keys ascending as bytes, then trailers *descending*, so that the newest version of a
//! key comes first and a seek to (key, read point) lands on what that reader sees.

use core::cmp::Ordering;
use core::fmt;
use gabion_base::units::KEY_LEN_MAX;
use gabion_base::{Error, Result, SequenceNumber};

/// Longest engine key: a keyspace byte and the longest user key.
pub const ENGINE_KEY_LEN_MAX: usize = 1 + KEY_LEN_MAX;

/// What an entry does to its key. The numbers are part of every format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EntryKind {
    /// The key is gone.
    Delete = 0,
    /// The key has this value.
    Put = 1,
    /// Reserved: removes the one put before it.
    SingleDelete = 2,
    /// Every key of the keyspace is gone. Its engine key is the bare keyspace byte.
    Clear = 3,
    /// An operand of the merge operator ([`crate::counter`]): what is older counts too.
    Merge = 4,
    /// The key has this value until a time: the value begins with it ([`crate::expiry`]).
    ExpiringPut = 5,
    /// The key has a value that lies in another file ([`crate::pointer`]). In files alone.
    Pointer = 6,
    /// Reserved: a pointer that garbage collection moved.
    Relocation = 7,
    /// Every key from its engine key up to its value, which is an engine key too, is gone
    /// ([`crate::range_delete`]).
    RangeDelete = 8,
    /// A pointer to a value that is there until a time: its expiry comes first, as in an
    /// [`ExpiringPut`](Self::ExpiringPut).
    ExpiringPointer = 9,
    /// The key has a value that is packed ([`crate::packed`]).
    PackedPut = 10,
    /// A packed value that is there until a time: its expiry comes first, as in an
    /// [`ExpiringPut`](Self::ExpiringPut).
    ExpiringPackedPut = 11,
}

impl EntryKind {
    /// The kind that a stored byte means, if it means one.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Delete,
            1 => Self::Put,
            2 => Self::SingleDelete,
            3 => Self::Clear,
            4 => Self::Merge,
            5 => Self::ExpiringPut,
            6 => Self::Pointer,
            7 => Self::Relocation,
            8 => Self::RangeDelete,
            9 => Self::ExpiringPointer,
            10 => Self::PackedPut,
            11 => Self::ExpiringPackedPut,
            _ => return None,
        })
    }

    /// Whether the value lies in another file.
    #[inline]
    #[must_use]
    pub const fn is_pointer(self) -> bool {
        matches!(self, Self::Pointer | Self::ExpiringPointer)
    }

    /// Whether the value is packed.
    #[inline]
    #[must_use]
    pub const fn is_packed(self) -> bool {
        matches!(self, Self::PackedPut | Self::ExpiringPackedPut)
    }

    /// Whether an expiry stands before the value, or before the pointer to it.
    #[inline]
    #[must_use]
    pub const fn is_expiring(self) -> bool {
        matches!(self, Self::ExpiringPut | Self::ExpiringPointer | Self::ExpiringPackedPut)
    }

    /// Whether a reader that meets this entry first finds no value.
    #[inline]
    #[must_use]
    pub const fn is_delete(self) -> bool {
        matches!(self, Self::Delete | Self::SingleDelete | Self::Clear | Self::RangeDelete)
    }
}

/// The first byte of every engine key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Keyspace {
    /// What the node itself keeps: sessions, group metadata.
    System = 0,
    /// What clients keep.
    User = 1,
}

impl Keyspace {
    /// The keyspace that a stored byte means, if it means one.
    #[inline]
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::System),
            1 => Some(Self::User),
            _ => None,
        }
    }
}

/// Sequence number and kind of an entry in one number: `sequence << 8 | kind`.
///
/// Its `Ord` is that of the number; in the tree *larger comes first* ([`compare`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Trailer(u64);

const _: () = assert!(size_of::<Trailer>() == 8);

impl Trailer {
    /// Comes before every entry of its key.
    pub const FIRST: Self = Self(u64::MAX);

    /// The trailer of an entry.
    ///
    /// # Panics
    /// When the sequence number is over 56 bits, which no run reaches.
    #[inline]
    #[must_use]
    pub const fn new(sequence: SequenceNumber, kind: EntryKind) -> Self {
        assert!(sequence.0 <= SequenceNumber::MAX.0, "sequence numbers have 56 bits");
        Self(sequence.0 << 8 | kind as u64)
    }

    /// Where a reader at `sequence` starts to look: before every entry of that sequence number and
    /// older ones, after every newer one.
    #[inline]
    #[must_use]
    pub const fn seek(sequence: SequenceNumber) -> Self {
        if sequence.0 >= SequenceNumber::MAX.0 { Self::FIRST } else { Self(sequence.0 << 8 | 0xff) }
    }

    /// A stored number as a trailer.
    ///
    /// # Errors
    /// Corruption when its kind is none that exists.
    #[inline]
    pub fn from_raw(raw: u64) -> Result<Self> {
        match EntryKind::from_byte(raw as u8) {
            Some(_) => Ok(Self(raw)),
            None => Err(Self::bad_kind(raw)),
        }
    }

    #[cold]
    fn bad_kind(raw: u64) -> Error {
        Error::corruption(alloc::format!(
            "entry trailer {raw:#018x} has unknown kind {}",
            raw & 0xff
        ))
    }

    /// Any stored number, a separator's included; [`Trailer::kind`] of it may not exist.
    #[inline]
    pub(crate) const fn from_raw_unchecked(raw: u64) -> Self {
        Self(raw)
    }

    /// The number as it is stored.
    #[inline]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The sequence number.
    #[inline]
    #[must_use]
    pub const fn sequence(self) -> SequenceNumber {
        SequenceNumber(self.0 >> 8)
    }

    /// The kind.
    ///
    /// # Panics
    /// For a seek target ([`Trailer::seek`], [`Trailer::FIRST`]), which is no entry's trailer.
    #[inline]
    #[must_use]
    pub const fn kind(self) -> EntryKind {
        match EntryKind::from_byte(self.0 as u8) {
            Some(kind) => kind,
            None => panic!("a seek target has no kind"),
        }
    }
}

impl fmt::Debug for Trailer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match EntryKind::from_byte(self.0 as u8) {
            Some(kind) => write!(f, "{}/{kind:?}", self.sequence()),
            None => write!(f, "{}/seek", self.sequence()),
        }
    }
}

/// The order of the tree: keys ascending, newer before older.
#[inline]
#[must_use]
pub fn compare(a_key: &[u8], a: Trailer, b_key: &[u8], b: Trailer) -> Ordering {
    match a_key.cmp(b_key) {
        Ordering::Equal => b.cmp(&a),
        other => other,
    }
}

/// An entry under a cursor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Engine key, keyspace byte included.
    pub key: &'a [u8],
    /// Sequence number and kind.
    pub trailer: Trailer,
    /// Empty for deletes.
    pub value: &'a [u8],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newer_entries_of_a_key_come_first_and_a_seek_lands_on_what_the_reader_sees() {
        let old = Trailer::new(SequenceNumber(5), EntryKind::Put);
        let new = Trailer::new(SequenceNumber(6), EntryKind::Delete);
        assert_eq!(compare(b"k", new, b"k", old), Ordering::Less);
        assert_eq!(compare(b"k", Trailer::seek(SequenceNumber(5)), b"k", old), Ordering::Less);
        assert_eq!(compare(b"k", Trailer::seek(SequenceNumber(5)), b"k", new), Ordering::Greater);
        assert_eq!(compare(b"k", Trailer::seek(SequenceNumber::MAX), b"k", new), Ordering::Less);
        assert_eq!(compare(b"j", old, b"k", new), Ordering::Less);
    }

    #[test]
    fn every_kind_and_keyspace_survives_its_byte() {
        for byte in 0..=11 {
            assert_eq!(EntryKind::from_byte(byte).unwrap() as u8, byte);
        }
        assert_eq!(EntryKind::from_byte(12), None);
        assert_eq!(Keyspace::from_byte(Keyspace::System as u8), Some(Keyspace::System));
        assert_eq!(Keyspace::from_byte(Keyspace::User as u8), Some(Keyspace::User));
        assert_eq!(Keyspace::from_byte(2), None);
    }

    #[test]
    fn a_trailer_of_unknown_kind_is_corruption() {
        let error = Trailer::from_raw(0x050c).unwrap_err();
        assert_eq!(error.message(), "entry trailer 0x000000000000050c has unknown kind 12");
        let trailer = Trailer::new(SequenceNumber::MAX, EntryKind::RangeDelete);
        assert_eq!(Trailer::from_raw(trailer.raw()).unwrap(), trailer);
        assert_eq!(
            (trailer.sequence(), trailer.kind()),
            (SequenceNumber::MAX, EntryKind::RangeDelete)
        );
    }
}
