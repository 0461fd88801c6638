//! What is written, and whether what is read was written.
//!
//! ```text
//!  0 u64 record      8 u64 version      16 random bytes …      | one repeated byte …
//!                                       └── by seed, record and version ──┘
//! ```
//!
//! A value follows from record, version and the options of the run, so a value that is read proves,
//! without a table of what was written, that a client wrote it for that record: it is made again
//! and compared. Version 0 is that of the load; an update has a version that no other request has.

use crate::random::{STEP, mix};

/// Bytes of record and version.
const HEAD_LEN: usize = 16;
/// The version that the load writes.
pub(crate) const LOADED: u64 = 0;

/// Makes and checks values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Values {
    len: usize,
    /// Bytes before the repeated one, the head included.
    random_len: usize,
    seed: u64,
}

/// What is wrong with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Length(usize),
    /// The head names another record.
    Record(u64),
    /// It was not this run that wrote it last, though only this run's load wrote.
    Version(u64),
    /// The first byte that differs from what was written.
    Content(usize),
}

impl core::fmt::Display for Wrong {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Length(len) => write!(f, "has {len} bytes"),
            Self::Record(record) => write!(f, "is that of record {record}"),
            Self::Version(version) => write!(f, "has version {version:#x}, only 0 was written"),
            Self::Content(offset) => write!(f, "differs at byte {offset} from what was written"),
        }
    }
}

impl Values {
    /// Values of `len` bytes (at least the head), of which the share `compressibility` is one
    /// repeated byte.
    pub(crate) fn new(len: usize, compressibility: f64, seed: u64) -> Self {
        assert!(len >= HEAD_LEN, "a value of {len} bytes has no room for its head");
        let repeated = (len as f64 * compressibility).round() as usize;
        Self { len, random_len: len.saturating_sub(repeated).max(HEAD_LEN), seed }
    }

    /// Bytes of a value.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Appends the value of a record at a version.
    pub(crate) fn put(&self, record: u64, version: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.reserve(self.len);
        out.extend_from_slice(&record.to_le_bytes());
        out.extend_from_slice(&version.to_le_bytes());
        let mut state = self.state(record, version);
        let mut rest = self.random_len - HEAD_LEN;
        while rest >= 8 {
            state = state.wrapping_add(STEP);
            out.extend_from_slice(&mix(state).to_le_bytes());
            rest -= 8;
        }
        let last = mix(state.wrapping_add(STEP)).to_le_bytes();
        out.extend_from_slice(&last[..rest]);
        out.resize(start + self.len, filler(record));
    }

    /// Compares a value with what was written at the version that it names, and returns that.
    pub(crate) fn check(&self, record: u64, value: &[u8]) -> Result<u64, Wrong> {
        if value.len() != self.len {
            return Err(Wrong::Length(value.len()));
        }
        let word =
            |at: usize| value[at..at + 8].iter().rev().fold(0, |w, b| w << 8 | u64::from(*b));
        let (found, version) = (word(0), word(8));
        if found != record {
            return Err(Wrong::Record(found));
        }
        let mut state = self.state(record, version);
        let (random, repeated) = value.split_at(self.random_len);
        for (i, chunk) in random[HEAD_LEN..].chunks(8).enumerate() {
            state = state.wrapping_add(STEP);
            let expected = mix(state).to_le_bytes();
            if let Some(at) = difference(chunk, &expected) {
                return Err(Wrong::Content(HEAD_LEN + 8 * i + at));
            }
        }
        match repeated.iter().position(|&byte| byte != filler(record)) {
            Some(at) => Err(Wrong::Content(self.random_len + at)),
            None => Ok(version),
        }
    }

    fn state(&self, record: u64, version: u64) -> u64 {
        mix(mix(self.seed ^ STEP).wrapping_add(record)).wrapping_add(mix(version))
    }
}

fn filler(record: u64) -> u8 {
    b'a' + (record % 26) as u8
}

#[inline]
fn difference(found: &[u8], expected: &[u8; 8]) -> Option<usize> {
    if *found == expected[..found.len()] {
        return None;
    }
    found.iter().zip(expected).position(|(a, b)| a != b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(values: &Values, record: u64, version: u64) -> Vec<u8> {
        let mut out = b"before".to_vec();
        values.put(record, version, &mut out);
        out.split_off(6)
    }

    #[test]
    fn a_value_has_its_length_and_tells_its_version() {
        for len in [16, 32, 37, 1000] {
            for share in [0.0, 0.3, 1.0] {
                let values = Values::new(len, share, 1);
                let bytes = value(&values, 41, 7);
                assert_eq!(bytes.len(), len);
                assert_eq!(values.check(41, &bytes), Ok(7));
            }
        }
    }

    #[test]
    fn no_changed_bit_passes() {
        let values = Values::new(61, 0.4, 1);
        let bytes = value(&values, 41, 7);
        for bit in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(values.check(41, &changed).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_value_of_another_record_length_or_seed_does_not_pass() {
        let values = Values::new(100, 0.0, 1);
        let bytes = value(&values, 41, 7);
        assert_eq!(values.check(42, &bytes), Err(Wrong::Record(41)));
        assert_eq!(values.check(41, &bytes[..99]), Err(Wrong::Length(99)));
        assert_eq!(Values::new(100, 0.0, 2).check(41, &bytes), Err(Wrong::Content(16)));
    }

    #[test]
    fn compressibility_is_what_lz4_makes_of_a_block() {
        for (share, expected) in [(0.0, 1.0), (0.5, 0.5), (0.9, 0.12)] {
            let values = Values::new(1000, share, 1);
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
