//! The journal of split files: their small writes, as frames one behind the other.
//!
//! ```text
//!  0        64       128
//!  ┌────────┬────────┬───────────────┬───────────────┬───────┐
//!  │ head   │ head   │ frame, bytes  │ frame, bytes  │ …     │
//!  └────────┴────────┴───────────────┴───────────────┴───────┘
//!  head   magic u64, epoch u64, salt u64, zeros, CRC u32 of all before
//!  frame  magic u32, CRC u32 of the rest and the bytes, salt u64, file u64, offset u64,
//!         length u32, 0 u32; the bytes, zeros up to a multiple of 8
//! ```
//!
//! The journal is a log file like any other, so its bytes are stored in the order in which they
//! were written. It is emptied by a head of the next epoch, which takes the place of the older of
//! the two heads: a head that was written in part leaves the former one. Frames count that have the
//! salt of the newest head, from the first on, up to one that does not fit its checksum: no frame
//! of that head was ever stored behind that one. Bytes of older frames were, and they are what
//! clients of a program chose; so a salt is a number by chance, which nobody but the application's
//! processes knows, and no client's bytes can pass for a frame.
//!
//! Invariants: a frame's bytes are within [`FRAME_MAX`]; epochs only grow; a salt is never used
//! twice; a frame of the newest head never lies behind one that does not count.

use gabion_base::crc;
use std::ops::Range;

/// Bytes of a head.
pub const HEAD: usize = 64;
/// The place of the first frame.
pub const FRAMES_AT: u64 = 2 * HEAD as u64;
/// Bytes of a frame ahead of its own bytes.
pub const FRAME: usize = 40;
/// Bytes of a write at most that can be a frame: a record of them is one record of the log.
pub const FRAME_MAX: u64 = 64 << 10;
/// Bytes of a journal at least, and at most.
pub const LEN: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 30;

const HEAD_MAGIC: u64 = u64::from_le_bytes(*b"gabspl\x00\x01");
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"GSF\x01");

/// A small write of a split file, without its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The salt of the journal's head.
    pub salt: u64,
    /// The file, by its slot and generation: see [`file()`].
    pub file: u64,
    /// The place of the bytes in the file.
    pub offset: u64,
    /// Bytes in number.
    pub len: u32,
}

/// The number of a file in frames.
#[must_use]
pub const fn file(slot: u32, generation: u32) -> u64 {
    (generation as u64) << 32 | slot as u64
}

/// Bytes of the journal that a frame of so many bytes takes.
#[must_use]
pub const fn frame_len(len: u64) -> u64 {
    FRAME as u64 + len.next_multiple_of(8)
}

impl Frame {
    /// The frame's bytes ahead of its own.
    #[must_use]
    pub fn encode(&self, bytes: &[u8]) -> [u8; FRAME] {
        assert_eq!(bytes.len(), self.len as usize, "bytes of {self:?}");
        let mut encoded = [0; FRAME];
        encoded[..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        for (place, word) in
            encoded[8..32].chunks_exact_mut(8).zip([self.salt, self.file, self.offset])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        encoded[32..36].copy_from_slice(&self.len.to_le_bytes());
        let sum = crc::append(crc::crc32c(&encoded[8..]), bytes);
        encoded[4..8].copy_from_slice(&sum.to_le_bytes());
        encoded
    }

    /// The frame at the beginning of these bytes, and where its own lie.
    fn parse(bytes: &[u8], salt: u64) -> Option<(Self, Range<usize>)> {
        let head: &[u8; FRAME] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| head[at + byte]));
        let (salt_found, file, offset, len) = (long(8), long(16), long(24), word(32));
        if word(0) != FRAME_MAGIC || salt_found != salt || u64::from(len) > FRAME_MAX {
            return None;
        }
        let place = FRAME..FRAME + len as usize;
        let own = bytes.get(place.clone())?;
        let sum = crc::append(crc::crc32c(&head[8..]), own);
        (sum == word(4)).then_some((Self { salt, file, offset, len }, place))
    }
}

/// A head: its bytes, and their place. `salt` is a number by chance, from a source that nobody can
/// foretell.
#[must_use]
pub fn head(epoch: u64, salt: u64) -> (u64, [u8; HEAD]) {
    let mut bytes = [0; HEAD];
    for (place, word) in bytes.chunks_exact_mut(8).zip([HEAD_MAGIC, epoch, salt]) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let sum = crc::crc32c(&bytes[..HEAD - 4]);
    bytes[HEAD - 4..].copy_from_slice(&sum.to_le_bytes());
    (epoch % 2 * HEAD as u64, bytes)
}

/// Epoch and salt of a head.
fn parse_head(bytes: &[u8]) -> Option<(u64, u64)> {
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let sum = u32::from_le_bytes(std::array::from_fn(|byte| bytes[HEAD - 4 + byte]));
    (long(0) == HEAD_MAGIC && sum == crc::crc32c(&bytes[..HEAD - 4])).then(|| (long(8), long(16)))
}

/// A head that empties a journal, and its place; none if nothing is in it. `salt` is as for
/// [`head()`].
#[must_use]
pub fn next_head(journal: &[u8], salt: u64) -> Option<(u64, [u8; HEAD])> {
    let heads = journal.get(..FRAMES_AT as usize)?;
    let (epoch, _) = heads.chunks_exact(HEAD).filter_map(parse_head).max()?;
    Some(head(epoch + 1, salt))
}

/// The frames of a journal, oldest first, and where their bytes lie in it.
///
/// # Errors
/// A sentence, if the bytes are no journal's.
pub fn frames(journal: &[u8]) -> Result<Vec<(Frame, Range<usize>)>, String> {
    let heads = journal.get(..FRAMES_AT as usize).unwrap_or_default();
    let Some((_, salt)) = heads.chunks_exact(HEAD).filter_map(parse_head).max() else {
        // Made, and nothing written yet, or its first head in part.
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let first = journal.get(FRAMES_AT as usize..).and_then(|frames| frames.get(..FRAME));
        let is_new = is_zero(&heads[..heads.len().min(HEAD)]) && first.is_none_or(is_zero);
        let text = || "the journal of split files has no head that fits its checksum".to_owned();
        return if is_new { Ok(Vec::new()) } else { Err(text()) };
    };
    let (mut found, mut at) = (Vec::new(), FRAMES_AT as usize);
    while let Some((frame, own)) = Frame::parse(&journal[at..], salt) {
        found.push((frame, at + own.start..at + own.end));
        at = (at + frame_len(frame.len.into()) as usize).min(journal.len());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: u64 = file(3, 9);

    /// Salts of tests: of one epoch one.
    fn salt(epoch: u64) -> u64 {
        0x5a17_0000_0000_0000 | epoch
    }

    fn put_head(journal: &mut [u8], epoch: u64) {
        let (place, bytes) = head(epoch, salt(epoch));
        journal[place as usize..][..HEAD].copy_from_slice(&bytes);
    }

    /// Puts a frame, and gives the place behind it.
    fn put(journal: &mut [u8], at: u64, epoch: u64, offset: u64, bytes: &[u8]) -> u64 {
        let len = bytes.len() as u32;
        let frame = Frame { salt: salt(epoch), file: FILE, offset, len };
        let at = at as usize;
        journal[at..at + FRAME].copy_from_slice(&frame.encode(bytes));
        journal[at + FRAME..][..bytes.len()].copy_from_slice(bytes);
        at as u64 + frame_len(bytes.len() as u64)
    }

    fn found(journal: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let bytes = |(frame, own): (Frame, Range<usize>)| (frame.offset, journal[own].to_vec());
        frames(journal).unwrap().into_iter().map(bytes).collect()
    }

    #[test]
    fn frames_come_back_in_their_order_until_one_is_damaged() {
        let mut journal = vec![0; 1 << 12];
        assert_eq!(found(&journal), [], "nothing was written yet");
        put_head(&mut journal, 1);
        let second = put(&mut journal, FRAMES_AT, 1, 100, b"one");
        let third = put(&mut journal, second, 1, 0, b"");
        let end = put(&mut journal, third, 1, 7, b"three, and longer");
        let all = [(100, b"one".to_vec()), (0, vec![]), (7, b"three, and longer".to_vec())];
        assert_eq!(found(&journal), all);
        for byte in second..third {
            let mut damaged = journal.clone();
            damaged[byte as usize] ^= 1;
            assert_eq!(found(&damaged), all[..1], "byte {byte}");
        }
        assert_eq!(found(&journal[..end as usize - 8]), all[..2], "cut");
    }

    #[test]
    fn a_head_of_the_next_epoch_empties_the_journal_and_one_in_part_does_not() {
        let mut journal = vec![0; 1 << 12];
        put_head(&mut journal, 1);
        put(&mut journal, FRAMES_AT, 1, 0, b"old");
        let (place, next) = head(2, salt(2));
        let mut torn = journal.clone();
        torn[place as usize..][..HEAD / 2].copy_from_slice(&next[..HEAD / 2]);
        assert_eq!(found(&torn), [(0, b"old".to_vec())]);
        put_head(&mut journal, 2);
        assert_eq!(found(&journal), []);
        put(&mut journal, FRAMES_AT, 2, 5, b"new");
        put_head(&mut torn, 1);
        assert_eq!(found(&journal), [(5, b"new".to_vec())]);
        // The head of epoch 3 takes the place of that of 1.
        assert_eq!(next_head(&journal, salt(3)), Some(head(3, salt(3))));
        put_head(&mut journal, 3);
        assert_eq!(found(&journal), []);
    }

    /// A client that knows the format has a frame written as bytes of its own.
    #[test]
    fn bytes_that_look_like_a_frame_behind_the_last_one_are_none() {
        let mut journal = vec![0; 1 << 12];
        put_head(&mut journal, 1);
        let mut forged = vec![0; 8 + FRAME];
        let end = put(&mut forged, 0, 2, 0, b"forged!!") as usize;
        put(&mut journal, FRAMES_AT, 1, 100, &forged[..end]);
        let (place, bytes) = head(2, !salt(2));
        journal[place as usize..][..HEAD].copy_from_slice(&bytes);
        let frame = Frame { salt: !salt(2), file: FILE, offset: 9, len: 0 };
        journal[FRAMES_AT as usize..][..FRAME].copy_from_slice(&frame.encode(b""));
        // It lies where the next frame would.
        assert_eq!(found(&journal), [(9, vec![])]);
    }

    #[test]
    fn a_head_and_a_frame_have_these_bytes() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (place, bytes) = head(5, 7);
        let zeros = "00".repeat(36);
        let expected = format!("67616273706c000105000000000000000700000000000000{zeros}c3264a07");
        assert_eq!((place, hex(&bytes)), (64, expected));
        let frame = Frame { salt: 7, file: FILE, offset: 0x0102_0304_0506, len: 3 };
        let expected =
            "47534601abc1bf540700000000000000030000000900000006050403020100000300000000000000";
        assert_eq!(hex(&frame.encode(b"abc")), expected);
    }

    #[test]
    fn bytes_that_are_no_journal_and_lengths_that_cannot_be_are_refused() {
        let mut journal = vec![0; 1 << 12];
        journal[HEAD] = 1;
        assert_eq!(frames(&journal), Ok(vec![]), "the first head, in part");
        journal[FRAMES_AT as usize] = 1;
        assert!(frames(&journal).is_err(), "it has had frames");
        journal[FRAMES_AT as usize] = 0;
        journal[5] = 1;
        assert!(frames(&journal).is_err());
        put_head(&mut journal, 4);
        let long = Frame { salt: salt(4), file: FILE, offset: 0, len: FRAME_MAX as u32 + 1 };
        let encoded = long.encode(&vec![0; FRAME_MAX as usize + 1]);
        journal[FRAMES_AT as usize..][..FRAME].copy_from_slice(&encoded);
        assert_eq!(found(&journal), []);
        assert_eq!(frames(&[]), Ok(vec![]), "cut to nothing before its first head");
    }
}
