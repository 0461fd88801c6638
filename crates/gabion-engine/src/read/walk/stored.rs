//! The value of a key as it is stored: there, or in another file.

use super::Found;
use crate::cache::ReadCache;
use crate::entry::Trailer;
use crate::file::FileSource;
use crate::packed;
use crate::pointer::Pointer;
use crate::read::Tables;
use alloc::format;
use gabion_base::{Error, Result};
use gabion_media::Bytes;

/// The length of a value, and until when it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundLen {
    /// Bytes of the value.
    pub len: usize,
    /// As [`Found::expires_ms`].
    pub expires_ms: Option<u64>,
}

/// The value of a key, as far as it is in hand.
#[derive(Clone)]
pub(in crate::read) enum Stored {
    Here(Found),
    /// To be unpacked.
    Packed(PackedFound),
    /// To be fetched from another file.
    Apart(Apart),
}

/// A value that is packed.
#[derive(Clone)]
pub(in crate::read) struct PackedFound {
    found: Found,
    raw_len: usize,
}

impl PackedFound {
    /// The packed value of an entry, until when it is there, and what entry that is.
    pub(in crate::read) fn new(trailer: Trailer, found: Found) -> Result<Self> {
        let raw_len = packed::raw_len(&found.value).map_err(|error| in_entry(trailer, error))?;
        Ok(Self { found, raw_len })
    }

    pub(in crate::read) fn unpack(self) -> Result<Found> {
        Ok(Found { value: packed::unpack(&self.found.value)?, ..self.found })
    }
}

#[cold]
fn in_entry(trailer: Trailer, error: Error) -> Error {
    error.within(format!("entry {}", trailer.sequence()))
}

/// The value of an entry, whose packed value this is.
pub(in crate::read) fn unpacked(trailer: Trailer, stored: &[u8]) -> Result<Bytes> {
    packed::unpack(stored).map_err(|error| in_entry(trailer, error))
}

/// A value in another file, and until when it is there.
#[derive(Clone, Copy)]
pub(in crate::read) struct Apart {
    pub(in crate::read) pointer: Pointer,
    pub(in crate::read) expires_ms: Option<u64>,
}

impl Apart {
    pub(in crate::read) const fn found(self, value: Bytes) -> Found {
        Found { value, expires_ms: self.expires_ms }
    }
}

impl Stored {
    pub(in crate::read) const fn len(&self) -> FoundLen {
        match self {
            Self::Here(Found { value, expires_ms }) => {
                FoundLen { len: value.len(), expires_ms: *expires_ms }
            }
            Self::Packed(PackedFound { found, raw_len }) => {
                FoundLen { len: *raw_len, expires_ms: found.expires_ms }
            }
            Self::Apart(Apart { pointer, expires_ms }) => {
                FoundLen { len: pointer.raw_len as usize, expires_ms: *expires_ms }
            }
        }
    }

    /// A value that is here.
    ///
    /// # Panics
    /// When it lies in another file, or is packed.
    pub(in crate::read) fn into_found(self) -> Found {
        match self {
            Self::Here(found) => found,
            Self::Packed(_) => panic!("a value was unpacked"),
            Self::Apart(Apart { pointer, .. }) => panic!("a value in {} was read", pointer.file),
        }
    }

    pub(in crate::read) async fn fetch<S: FileSource, C: ReadCache>(
        self,
        tables: &Tables<S, C>,
    ) -> Result<Found> {
        match self {
            Self::Here(found) => Ok(found),
            Self::Packed(packed) => packed.unpack(),
            Self::Apart(apart) => Ok(apart.found(tables.value(&apart.pointer).await?)),
        }
    }
}

/// The place of the value of an entry that is a pointer.
pub(in crate::read) fn apart(trailer: Trailer, stored: &[u8]) -> Result<Apart> {
    let (pointer, expires_ms) = Pointer::of_entry(trailer, stored)?;
    Ok(Apart { pointer, expires_ms })
}
