//! How long a description is in an edit, without encoding it: the picker asks this of thousands of
//! files at a time.

use super::FileMeta;
use super::REFERENCE_LEN;
use crate::sst::Compression;
use gabion_base::codec::varint_len;
use gabion_base::units::EDIT_KEY_BOUND_LEN_MAX;

/// Tag, flags and length of a field.
const FIELD_LEN: usize = 2 + 2 + 4;
/// Identity, term, length, the checksum of the whole file, two bounds of no bytes, sequence
/// numbers, counts.
const FIXED_LEN: usize = 8 * FIELD_LEN + 9 + 8 + 8 + 4 + 16 + 32;
/// First and last expiry; likewise the operands.
const PAIR_LEN: usize = FIELD_LEN + 16;

impl FileMeta {
    /// Bytes that [`FileMeta::encode`] appends.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let bounds =
            [(&self.smallest, self.smallest.len()), (&self.largest, raised(&self.largest))];
        let bounds = bounds.map(|(bound, cut_len)| {
            let is_long = bound.len() > EDIT_KEY_BOUND_LEN_MAX;
            let in_full = if is_long { FIELD_LEN + bound.len() } else { 0 };
            cut_len.min(EDIT_KEY_BOUND_LEN_MAX) + in_full
        });
        let clears = self.clears.len();
        let (codec, references) = (self.compression, self.references.len());
        FIXED_LEN
            + self.chunk_crcs.len() * size_of::<u32>()
            + bounds.iter().sum::<usize>()
            + if clears > 0 { FIELD_LEN + 9 * clears } else { 0 }
            + if self.expiry.is_some() { PAIR_LEN } else { 0 }
            + if self.operands.is_some() { PAIR_LEN } else { 0 }
            + self.ranges_len()
            + if codec == Compression::None { 0 } else { FIELD_LEN + codec.encoded_len() }
            + if references > 0 { FIELD_LEN + REFERENCE_LEN * references } else { 0 }
    }

    fn ranges_len(&self) -> usize {
        let Some(ranges) = &self.ranges else { return 0 };
        let key = |key: &[u8]| varint_len(key.len() as u64) + key.len();
        let widest = ranges.widest.iter().map(|it| key(&it.start) + key(&it.end) + 16);
        FIELD_LEN + 32 + widest.sum::<usize>()
    }
}

/// Bytes of the usual upper bound in place of `key`, which is its first bytes with the last raised
/// that can be.
fn raised(key: &[u8]) -> usize {
    let Some((cut, _)) = key.split_at_checked(EDIT_KEY_BOUND_LEN_MAX + 1) else { return key.len() };
    let cut = &cut[..EDIT_KEY_BOUND_LEN_MAX];
    cut.iter().rposition(|byte| *byte != 0xff).map_or(0, |last| last + 1)
}

#[cfg(test)]
mod tests {
    use crate::entry::Keyspace;
    use crate::expiry::ExpirySpan;
    use crate::file::{FileMeta, FileReference, Operands};
    use crate::picker::tests::meta;
    use crate::range_delete::{Deleted, RangeDeletes};
    use crate::sst::Compression;
    use alloc::{vec, vec::Vec};
    use gabion_base::{FileId, SequenceNumber, ShardId};

    #[test]
    fn a_description_is_as_long_as_it_is_said_to_be_whatever_it_has() {
        let sequence = SequenceNumber(7);
        let deleted = |len: usize| Deleted {
            start: vec![1; len],
            end: vec![2; 256],
            sequence,
            seen_from: sequence,
        };
        let ranges = |widest| RangeDeletes { widest, ..RangeDeletes::default() };
        let with: [fn(&mut FileMeta); 6] = [
            |_| {},
            |file| file.chunk_crcs = vec![7; 16],
            |file| file.clears = vec![(Keyspace::User, SequenceNumber(9)); 2],
            |file| file.expiry = Some(ExpirySpan { first_ms: 1, last_ms: 2 }),
            |file| file.operands = Some(Operands { count: 1, first_ms: 2 }),
            |file| {
                let file_of = |n| FileId::log_segment(ShardId::ZERO, n);
                let reference = |n| FileReference { file: file_of(n), live_bytes: 9 };
                file.references = (1..4).map(reference).collect();
            },
        ];
        let mut files: Vec<FileMeta> = Vec::new();
        for change in with {
            files.extend([meta(1, "a", "b", 9)]);
            files.iter_mut().for_each(change);
        }
        for compression in [Compression::Lz4, Compression::ZSTD] {
            files.push(FileMeta { compression, ..files[0].clone() });
        }
        for widest in [vec![], vec![deleted(1), deleted(127), deleted(128), deleted(256)]] {
            files.push(FileMeta { ranges: Some(ranges(widest)), ..files[0].clone() });
        }
        for bound in [vec![1], vec![1; 256], vec![1; 257], [&[1][..], &[0xff; 300]].concat()] {
            for other in [vec![1, 2], [&[1; 200][..], &[0xff; 60_000]].concat()] {
                let (smallest, largest) = (bound.clone(), other.clone());
                files.push(FileMeta { smallest, largest, ..files[0].clone() });
                let (smallest, largest) = (other, bound.clone());
                files.push(FileMeta { smallest, largest, ..files[0].clone() });
            }
        }
        for file in files {
            let mut encoded = Vec::new();
            file.encode(&mut encoded);
            assert_eq!(file.encoded_len(), encoded.len(), "{file:?}");
        }
    }
}
