//! The written values, and the proof that a read value was written.
//!
//! ```text
//!  0 u64 record      8 u64 version      16 random bytes …      | one repeated byte …
//!                                       └── a stretch of one pool of random words, each with a mask;
//!                                           both follow from seed, record and version
//! ```
//!
//! A value follows from record, version and the options of the run. So a read value proves, without
//! a table of writes, that this run wrote it for that record: it is compared byte by byte. Making
//! and checking one costs little more than a copy and a comparison, so that the figures measure the
//! other side. The mask makes stretches that overlap in the pool differ, so that a block of values
//! compresses as if each had random bytes of its own.
//!
//! A value that has no room for that head is *short*: number and version have four bytes each, and
//! two to seven bytes of the mask prove them.
//!
//! ```text
//!  0 u32 record      4 u32 version      8 bytes of the mask, to the end
//! ```

use crate::random::{Random, STEP, mix};
use crate::sizes::Sizes;
use std::sync::Arc;

/// Bytes of record and version.
const HEAD_LEN: usize = 16;
/// The same of a short value.
const SHORT_HEAD_LEN: usize = 8;
/// Words of the pool, 64 KiB: they stay in the second cache of a core.
const POOL_WORDS: usize = 8 * 1024;

/// Makes and checks values.
#[derive(Clone, Debug)]
pub struct Values {
    sizes: Sizes,
    /// The part of a value that is one repeated byte.
    compressibility: f64,
    seed: u64,
    pool: Arc<[u64]>,
}

/// The defect of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// It has this many bytes, not those of the record's values.
    Length(usize),
    /// The head names another record.
    Record(u64),
    /// A version that nobody wrote for the record, or one that was overwritten before the read
    /// began.
    Version(u64),
    /// The first byte that differs from the written one.
    Content(usize),
}

impl core::fmt::Display for Wrong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(len) => write!(f, "has {len} bytes"),
            Self::Record(record) => write!(f, "is that of record {record}"),
            Self::Version(version) => {
                write!(f, "has version {version:#x}, which is not the one written")
            }
            Self::Content(offset) => write!(f, "differs at byte {offset} from what was written"),
        }
    }
}

impl Values {
    /// Fewest bytes of a value that is not short: its head.
    pub const LEN_MIN: usize = HEAD_LEN;
    /// Fewest bytes of a short value: its head, and a proof that one in 65,536 passes by chance.
    pub const SHORT_LEN_MIN: usize = SHORT_HEAD_LEN + 2;
    /// Most records, and most versions, of a run that has short values.
    pub const SHORT_COUNT_MAX: u64 = u32::MAX as u64;

    /// Values of these sizes (each at least [`Self::SHORT_LEN_MIN`]), of which the share
    /// `compressibility` is one repeated byte, though none of a short one.
    #[must_use]
    pub fn new(sizes: Sizes, compressibility: f64, seed: u64) -> Self {
        let len = sizes.min();
        assert!(len >= Self::SHORT_LEN_MIN, "a value of {len} bytes has no room for its head");
        let mut random = Random::new(seed);
        let pool = (0..POOL_WORDS).map(|_| random.next()).collect();
        Self { sizes, compressibility, seed, pool }
    }

    /// Bytes of each value of a record.
    #[inline]
    #[must_use]
    pub fn len_of(&self, record: u64) -> usize {
        self.sizes.of(record)
    }

    /// The record that the head of a value names.
    #[must_use]
    pub fn record_in(value: &[u8]) -> Option<u64> {
        if is_short(value.len()) {
            return Some(u64::from(u32::from_le_bytes(*value.first_chunk()?)));
        }
        Some(u64::from_le_bytes(*value.first_chunk()?))
    }

    /// Bytes before the repeated one, the head included.
    fn random_len(&self, len: usize) -> usize {
        let repeated = (len as f64 * self.compressibility).round() as usize;
        len.saturating_sub(repeated).max(HEAD_LEN)
    }

    /// Appends the value of a record at a version.
    pub fn put(&self, record: u64, version: u64, out: &mut Vec<u8>) {
        let (start, len) = (out.len(), self.len_of(record));
        if is_short(len) {
            let names = [record, version].map(u32::try_from);
            let [Ok(short_record), Ok(short_version)] = names else {
                panic!("record {record}, version {version}: too large for a short value");
            };
            out.extend_from_slice(&short_record.to_le_bytes());
            out.extend_from_slice(&short_version.to_le_bytes());
            out.extend_from_slice(&self.proof(record, version)[..len - SHORT_HEAD_LEN]);
            return;
        }
        out.resize(start + len, filler(record));
        let random_len = self.random_len(len);
        let (head, rest) = out[start..].split_at_mut(HEAD_LEN);
        head[..8].copy_from_slice(&record.to_le_bytes());
        head[8..].copy_from_slice(&version.to_le_bytes());
        let (mut from, mask) = self.stretch(record, version);
        let mut rest = &mut rest[..random_len - HEAD_LEN];
        while !rest.is_empty() {
            let words = &self.pool[from..];
            let (now, behind) = rest.split_at_mut(rest.len().min(8 * words.len()));
            let mut chunks = now.chunks_exact_mut(8);
            let whole = chunks.len();
            for (chunk, word) in chunks.by_ref().zip(words) {
                chunk.copy_from_slice(&(word ^ mask).to_le_bytes());
            }
            let last = chunks.into_remainder();
            if !last.is_empty() {
                last.copy_from_slice(&(words[whole] ^ mask).to_le_bytes()[..last.len()]);
            }
            rest = behind;
            from = 0;
        }
    }

    /// Compares a value with the one written at the version in its head, and returns that version.
    ///
    /// # Errors
    /// The first defect.
    pub fn check(&self, record: u64, value: &[u8]) -> Result<u64, Wrong> {
        if value.len() != self.len_of(record) {
            return Err(Wrong::Length(value.len()));
        }
        if is_short(value.len()) {
            return self.check_short(record, value);
        }
        let word =
            |at: usize| value[at..at + 8].iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        let (found, version) = (word(0), word(8));
        if found != record {
            return Err(Wrong::Record(found));
        }
        let random_len = self.random_len(value.len());
        let (random, repeated) = value.split_at(random_len);
        let mut rest = &random[HEAD_LEN..];
        let (mut from, mask) = self.stretch(record, version);
        while !rest.is_empty() {
            let words = &self.pool[from..];
            let (now, behind) = rest.split_at(rest.len().min(8 * words.len()));
            if let Some(same) = difference(now, words, mask) {
                return Err(Wrong::Content(random_len - rest.len() + same));
            }
            rest = behind;
            from = 0;
        }
        // One pass without a branch for each byte; the place of a difference is looked up after it.
        let differs = |byte: u8| byte ^ filler(record);
        if repeated.iter().fold(0, |all, &byte| all | differs(byte)) == 0 {
            return Ok(version);
        }
        let same = repeated.iter().take_while(|&&byte| differs(byte) == 0).count();
        Err(Wrong::Content(random_len + same))
    }

    /// The same for a short value.
    fn check_short(&self, record: u64, value: &[u8]) -> Result<u64, Wrong> {
        let word =
            |at: usize| value[at..at + 4].iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        let (found, version) = (word(0), word(4));
        if found != record {
            return Err(Wrong::Record(found));
        }
        let (proof, expected) = (&value[SHORT_HEAD_LEN..], self.proof(record, version));
        match proof.iter().zip(expected).position(|(found, expected)| *found != expected) {
            None => Ok(version),
            Some(at) => Err(Wrong::Content(SHORT_HEAD_LEN + at)),
        }
    }

    /// The bytes that stand behind a short value's head, as many as there is room for.
    fn proof(&self, record: u64, version: u64) -> [u8; 8] {
        self.stretch(record, version).1.to_le_bytes()
    }

    /// The start of a value's random bytes in the pool, and their mask.
    fn stretch(&self, record: u64, version: u64) -> (usize, u64) {
        let place = mix(mix(self.seed ^ STEP).wrapping_add(record)).wrapping_add(mix(version));
        let mask = mix(place);
        (mask as usize % POOL_WORDS, mix(mask))
    }
}

/// The bytes before the first that differs from the words under the mask, if one does. One pass
/// without a branch for each word; the place of a difference is looked up after it.
#[inline]
fn difference(bytes: &[u8], words: &[u64], mask: u64) -> Option<usize> {
    let chunks = bytes.chunks_exact(8);
    let whole = chunks.len();
    let last = chunks.remainder();
    let mut differs = chunks.zip(words).fold(0, |all, (chunk, word)| {
        let found = chunk.try_into().map_or(0, u64::from_le_bytes);
        all | (found ^ word ^ mask)
    });
    if !last.is_empty() {
        let expected = (words[whole] ^ mask).to_le_bytes();
        differs |= u64::from(*last != expected[..last.len()]);
    }
    if differs == 0 {
        return None;
    }
    let expected = words.iter().flat_map(|word| (word ^ mask).to_le_bytes());
    Some(bytes.iter().zip(expected).take_while(|(a, b)| **a == *b).count())
}

const fn is_short(len: usize) -> bool {
    len < HEAD_LEN
}

fn filler(record: u64) -> u8 {
    b'a' + (record % 26) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(len: usize, compressibility: f64, seed: u64) -> Values {
        Values::new(Sizes::one(len), compressibility, seed)
    }

    fn value(values: &Values, record: u64, version: u64) -> Vec<u8> {
        let mut out = b"before".to_vec();
        values.put(record, version, &mut out);
        out.split_off(6)
    }

    #[test]
    fn a_value_has_its_length_and_tells_its_version() {
        for len in [10, 15, 16, 32, 37, 1000, 24 * POOL_WORDS + 5] {
            for share in [0.0, 0.3, 1.0] {
                let values = of(len, share, 1);
                let bytes = value(&values, 41, 7);
                assert_eq!(bytes.len(), len);
                assert_eq!(values.check(41, &bytes), Ok(7));
                assert_eq!(Values::record_in(&bytes), Some(41));
            }
        }
    }

    #[test]
    fn no_changed_bit_passes() {
        for len in [10, 15, 61] {
            let values = of(len, 0.4, 1);
            let bytes = value(&values, 41, 7);
            for bit in 0..8 * bytes.len() {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(values.check(41, &changed).is_err(), "{len} bytes, bit {bit}");
            }
        }
    }

    #[test]
    fn a_value_of_another_record_length_or_seed_does_not_pass() {
        let values = of(100, 0.0, 1);
        let bytes = value(&values, 41, 7);
        assert_eq!(values.check(42, &bytes), Err(Wrong::Record(41)));
        assert_eq!(values.check(41, &bytes[..99]), Err(Wrong::Length(99)));
        let other = of(100, 0.0, 2).check(41, &bytes);
        assert!(matches!(other, Err(Wrong::Content(16..))), "{other:?}");
    }

    #[test]
    fn a_value_has_the_size_of_its_record_and_no_other() {
        let values = Values::new(Sizes::mixed(&[(50, 10), (50, 125)]), 0.0, 1);
        for record in 0..100 {
            let bytes = value(&values, record, 3);
            assert_eq!(bytes.len(), values.len_of(record));
            assert_eq!(values.check(record, &bytes), Ok(3));
        }
        let (short, long) = (value(&of(10, 0.0, 1), 0, 3), value(&of(125, 0.0, 1), 0, 3));
        let other = if values.len_of(0) == 10 { long } else { short };
        assert_eq!(values.check(0, &other), Err(Wrong::Length(other.len())));
    }

    #[test]
    fn compressibility_is_what_lz4_makes_of_a_block() {
        for (share, expected) in [(0.0, 1.0), (0.5, 0.5), (0.9, 0.12)] {
            let values = of(1000, share, 1);
            let mut block = Vec::new();
            for record in 0..16 {
                values.put(record, 0, &mut block);
            }
            let compressed = lz4_flex::block::compress(&block).len();
            let ratio = compressed as f64 / block.len() as f64;
            assert!((ratio - expected).abs() < 0.03, "share {share}: {ratio}");
        }
    }
}
