//! What a file says of itself, for checks against the edit, tools and recovery. Typed fields, in
//! order:
//!
//! ```text
//!  1 entries u64, deletes u64, key bytes u64, value bytes u64
//!  2 smallest u64, largest u64 sequence number
//!  3 first engine key, or the start of the first range delete if that is before it (whole)
//!  4 last engine key, or what ends the last range delete if that is after it (less a zero byte at its end)
//!  5 options, as in a recipe
//!  6 { keyspace u8, sequence u64 }…  clears of whole keyspaces, newest first (absent: none)
//!  7 fragments of range deletes, as in `range_delete` (absent: none)
//! ```

use super::SstOptions;
use crate::entry::{ENGINE_KEY_LEN_MAX, Keyspace};
use crate::file::{decode_clears, encode_clears};
use crate::range_delete::Fragments;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Put, Reader, put_field};
use gabion_base::{Error, Result, SequenceNumber};

/// What a file says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Entries, deletes included, range deletes not.
    pub entries: u64,
    /// Deletes among them.
    pub deletes: u64,
    /// Sum of the engine keys' lengths.
    pub raw_key_bytes: u64,
    /// Sum of the values' lengths.
    pub raw_value_bytes: u64,
    /// Smallest sequence number.
    pub smallest_sequence: SequenceNumber,
    /// Largest sequence number.
    pub largest_sequence: SequenceNumber,
    /// First engine key, of an entry or a range delete.
    pub smallest: Vec<u8>,
    /// Last engine key, of an entry, or at or after the last that a range delete covers.
    pub largest: Vec<u8>,
    /// How the file was built.
    pub options: SstOptions,
    /// Clears of whole keyspaces, newest first.
    pub clears: Vec<(Keyspace, SequenceNumber)>,
    /// Range deletes.
    pub ranges: Fragments,
}

const WHAT: &str = "SST properties";

impl Properties {
    /// Whether the entries have no sequence numbers of their own, as no write has number 0: the
    /// file was made for a load, and its edit gives them theirs ([`crate::load`]).
    pub(crate) fn is_unnumbered(&self) -> bool {
        self.largest_sequence == SequenceNumber::ZERO
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut payload = Vec::new();
        [self.entries, self.deletes, self.raw_key_bytes, self.raw_value_bytes]
            .iter()
            .for_each(|&n| payload.put_u64(n));
        put_field(&mut out, 1, FIELD_CRITICAL, &payload);
        payload.clear();
        payload.put_u64(self.smallest_sequence.get());
        payload.put_u64(self.largest_sequence.get());
        put_field(&mut out, 2, FIELD_CRITICAL, &payload);
        put_field(&mut out, 3, FIELD_CRITICAL, &self.smallest);
        put_field(&mut out, 4, FIELD_CRITICAL, &self.largest);
        payload.clear();
        self.options.encode(&mut payload);
        put_field(&mut out, 5, FIELD_CRITICAL, &payload);
        if !self.clears.is_empty() {
            payload.clear();
            encode_clears(&self.clears, &mut payload);
            put_field(&mut out, 6, FIELD_CRITICAL, &payload);
        }
        if !self.ranges.is_empty() {
            payload.clear();
            self.ranges.encode(&mut payload);
            put_field(&mut out, 7, FIELD_CRITICAL, &payload);
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut properties = Self {
            entries: 0,
            deletes: 0,
            raw_key_bytes: 0,
            raw_value_bytes: 0,
            smallest_sequence: SequenceNumber::ZERO,
            largest_sequence: SequenceNumber::ZERO,
            smallest: Vec::new(),
            largest: Vec::new(),
            options: SstOptions::default(),
            clears: Vec::new(),
            ranges: Fragments::default(),
        };
        let mut fields = Fields::new(bytes, WHAT);
        let mut last_tag = 0;
        while let Some(field) = fields.next_field()? {
            if field.tag > 7 {
                field.skip_unknown(WHAT)?;
                continue;
            }
            // Of those that may be absent, each by itself.
            let is_next = field.tag == last_tag + 1 || (field.tag == 7 && last_tag == 5);
            if !is_next {
                return Err(Error::corruption(format!("{WHAT}: field {} out of order", field.tag)));
            }
            last_tag = field.tag;
            properties.decode_field(field.tag, Reader::new(field.payload, WHAT))?;
        }
        if last_tag < 5 {
            return Err(Error::corruption(format!("{WHAT}: field {} is missing", last_tag + 1)));
        }
        Ok(properties)
    }

    fn decode_field(&mut self, tag: u16, mut payload: Reader<'_>) -> Result<()> {
        match tag {
            1 => {
                self.entries = payload.u64()?;
                self.deletes = payload.u64()?;
                self.raw_key_bytes = payload.u64()?;
                self.raw_value_bytes = payload.u64()?;
            }
            2 => {
                self.smallest_sequence = SequenceNumber(payload.u64()?);
                self.largest_sequence = SequenceNumber(payload.u64()?);
            }
            3 => self.smallest = key(&mut payload)?,
            4 => self.largest = key(&mut payload)?,
            5 => {
                self.options = SstOptions::decode(payload.rest())?;
                return Ok(());
            }
            6 => self.clears = decode_clears(&mut payload)?,
            _ => {
                self.ranges =
                    Fragments::decode(&mut payload).map_err(|error| error.within(WHAT))?;
            }
        }
        payload.finish()
    }
}

fn key(payload: &mut Reader<'_>) -> Result<Vec<u8>> {
    let len = payload.remaining();
    if len > ENGINE_KEY_LEN_MAX {
        return Err(Error::corruption(format!(
            "{WHAT}: key of {len} bytes is over the limit of {ENGINE_KEY_LEN_MAX}"
        )));
    }
    Ok(payload.bytes(len)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Properties {
        Properties {
            entries: 5,
            deletes: 1,
            raw_key_bytes: 20,
            raw_value_bytes: 70,
            smallest_sequence: SequenceNumber(3),
            largest_sequence: SequenceNumber(8),
            smallest: b"\x01".to_vec(),
            largest: b"\x01zebra".to_vec(),
            options: SstOptions::default(),
            clears: alloc::vec![(Keyspace::User, SequenceNumber(7))],
            ranges: Fragments::of(&[
                crate::RangeDelete {
                    start: b"\x01a"[..].into(),
                    end: b"\x01m"[..].into(),
                    sequence: SequenceNumber(4),
                },
                crate::RangeDelete {
                    start: b"\x01k"[..].into(),
                    end: b"\x02"[..].into(),
                    sequence: SequenceNumber(6),
                },
            ]),
        }
    }

    #[test]
    fn properties_survive_encoding() {
        let mut properties = example();
        assert_eq!(Properties::decode(&properties.encode()).unwrap(), properties);
        properties.clears.clear();
        properties.ranges = Fragments::default();
        assert_eq!(Properties::decode(&properties.encode()).unwrap(), properties);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, flip in any::<prop::sample::Index>(), bit in 0u8..8) {
            let _ = Properties::decode(&bytes);
            let mut out = example().encode();
            let at = flip.index(out.len());
            out[at] ^= 1 << bit;
            let _ = Properties::decode(&out);
            let _ = Properties::decode(&out[..at]);
        }
    }
}
