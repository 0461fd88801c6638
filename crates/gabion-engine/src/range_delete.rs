//! Range deletes: every key from one up to another is gone, at the price of one entry.
//!
//! ```text
//!   written      [a ────────── m)#7   [k ──────── z)#9              as they came, by sequence number
//!
//!   Fragments    [a ───── k) 7   [k ── m) 9 7   [m ──── z) 9         sorted, disjoint; each with the numbers
//!                                                                    that cover all of it, newest first
//! ```
//!
//! A range delete hides each entry of its keys that has a smaller sequence number, as far as a
//! reader sees both. It is no entry of the key that it begins with: it lies beside the entries, in
//! MemTables and files alike, and is looked up there as *fragments* (RocksDB's
//! `FragmentedRangeTombstoneList`): between two neighbouring ends the same range deletes count for
//! all keys, so a binary search finds those of a key.
//!
//! What holds everywhere, and why nothing that was deleted comes back:
//!
//! - Of two places that hold something of a key, the one that reads ask first holds all that is
//!   newer. So the first that has an entry of the key *or covers it* decides, and a fragment says
//!   all about what lies below it.
//! - The key bounds of a file enclose its fragments. Whatever is moved below a fragment is in files
//!   that overlap it, so it is merged with it.
//! - Where a job ends a file, it cuts the fragments too: a file covers no key of its neighbours. As
//!   bounds are keys that are part of the file, a cut comes right after a key (`cut_before`): `[a,
//!   q‖0)` has the last key `q`, and its other half begins with `q‖0`. (In RocksDB what a file says
//!   reaches beyond it, and readers and compactions cut it to bounds; that is where deleted keys
//!   came back and others went: facebook/rocksdb#2752, #2833, #4476, cockroachdb/pebble#26.)
//! - A job drops a fragment's number when nothing older can come to light, by the rule for the
//!   delete of one key.
//!
//! **Cost.** Sequence numbers of a fragment are as many as range deletes overlap there. A job keeps
//! the newest; a MemTable keeps all, as readers see a part of it, and is sealed at
//! [`MEMTABLE_RANGES_MAX`] so that range deletes within each other, of which `n` make `n²` numbers,
//! stay within a few megabytes.
//!
//! Bytes of fragments, in a file's properties, all of it known before memory is reserved:
//!
//! ```text
//!  { start prefixed, end prefixed, count varint ≥ 1, sequence number u64 × count, falling }…
//!    ascending, disjoint; start and end are engine keys of one keyspace, the end not included
//! ```

mod fragments;
mod table;

pub(crate) use fragments::Stretch;
pub use fragments::{Fragment, Fragments};
pub(crate) use table::TableRanges;

use crate::entry::{ENGINE_KEY_LEN_MAX, Keyspace};
use crate::file::FileMeta;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, Result, SequenceNumber};

/// Range deletes from which on a MemTable is full, whatever else it holds; no batch has more.
pub const MEMTABLE_RANGES_MAX: usize = 1024;

/// One as it was written: engine keys from `start` to before `end` are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeDelete {
    /// The first key that is gone.
    pub start: Arc<[u8]>,
    /// The first key behind it that is not.
    pub end: Arc<[u8]>,
    /// Older entries are hidden.
    pub sequence: SequenceNumber,
}

/// What a file's description says of its range deletes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeDeletes {
    /// Fragments.
    pub fragments: u64,
    /// Sequence numbers of all of them.
    pub sequences: u64,
    /// Bytes of their starts and ends.
    pub key_bytes: u64,
    /// The smallest of the sequence numbers.
    pub first_sequence: SequenceNumber,
    /// The widest stretches that are deleted without a gap, at most [`WIDEST_MAX`], by key: files
    /// deeper down that lie within one of them can be dropped unread.
    pub widest: Vec<Deleted>,
}

/// Most stretches of which a file's description tells.
pub const WIDEST_MAX: usize = 4;

/// All keys from one to before another, of which nothing older than a sequence number is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deleted {
    /// The first engine key, of at most 256 bytes.
    pub start: Vec<u8>,
    /// The first engine key behind it, of at most 256 bytes.
    pub end: Vec<u8>,
    /// What is older is gone.
    pub sequence: SequenceNumber,
    /// To whoever reads at this sequence number or later: all range deletes that it is made of are
    /// seen there.
    pub seen_from: SequenceNumber,
}

impl Deleted {
    /// Whether all that a file holds is gone, to who sees this.
    pub(crate) fn hides_all_of(&self, file: &FileMeta) -> bool {
        // The upper bound may be a key that is there.
        self.start <= file.smallest
            && file.largest < self.end
            && file.largest_sequence < self.sequence
    }
}

impl RangeDeletes {
    /// Most bytes of a file that fragments take which are made of these. Each start and each end
    /// becomes an end and a start at most, with the newest number.
    pub(crate) const fn output_len_max(&self) -> u64 {
        let each = FRAGMENT_OVERHEAD_LEN + size_of::<SequenceNumber>() as u64;
        // A description comes from disk and wire.
        self.key_bytes.saturating_add(self.fragments.saturating_mul(each)).saturating_mul(2)
    }
}

/// Bytes of a fragment besides keys and sequence numbers, at most: two lengths and a count.
pub(crate) const FRAGMENT_OVERHEAD_LEN: u64 = 3 + 3 + 10;

/// Checks that `start` and `end` are engine keys of one keyspace, the end after the start.
///
/// # Errors
/// Invalid input that says what is wrong.
pub fn check_range(start: &[u8], end: &[u8]) -> Result<()> {
    let keyspace = start.first().and_then(|&byte| Keyspace::from_byte(byte));
    let Some(keyspace) = keyspace else {
        return Err(Error::invalid("range delete: it begins in no keyspace"));
    };
    if start.len().max(end.len()) > ENGINE_KEY_LEN_MAX {
        return Err(Error::invalid(format!(
            "range delete: from a key of {} bytes to one of {}, the limit is {ENGINE_KEY_LEN_MAX}",
            start.len(),
            end.len()
        )));
    }
    if end <= start {
        return Err(Error::invalid("range delete: its end is not after its start"));
    }
    if *end > end_of(keyspace)[..] {
        return Err(Error::invalid("range delete: it leaves its keyspace"));
    }
    Ok(())
}

/// Where a keyspace ends: the first engine key behind it.
#[must_use]
pub const fn end_of(keyspace: Keyspace) -> [u8; 1] {
    [keyspace as u8 + 1]
}

/// A key at or after every key before `end`, the last of them where there is a last: what ends with
/// a zero byte is the next key after what it is without.
pub(crate) fn last_before(end: &[u8]) -> &[u8] {
    match end.split_last() {
        Some((0, last)) => last,
        _ => end,
    }
}

/// The first key after `key` that is no longer than keys may be. None where `key` is as long as
/// that and all `0xff`, which no engine key is.
pub(crate) fn next_key(key: &[u8]) -> Option<Vec<u8>> {
    let mut next = key.to_vec();
    if next.len() < ENGINE_KEY_LEN_MAX {
        next.push(0);
    } else {
        raise(&mut next)?;
    }
    Some(next)
}

/// Whether what ends before `end` covers no key after `largest`, a file's bound. Where that is as
/// long as a key may be, `end` can be after it with no key in between.
pub(crate) fn ends_within(end: &[u8], largest: &[u8]) -> bool {
    let is_next = || next_key(largest).is_some_and(|next| *end <= next[..]);
    last_before(end) <= largest || (largest.len() == ENGINE_KEY_LEN_MAX && is_next())
}

/// Longest key after which fragments are cut, so that it and the next key are bounds of files as
/// they are.
const CUT_KEY_LEN_MAX: usize = gabion_base::units::EDIT_KEY_BOUND_LEN_MAX - 1;
/// How much of a key is looked at for one shortly before it.
const NEAR_KEY_LEN_MAX: usize = 200;

/// Where fragments are cut between a file that ends with the entry of `last` (empty: it has no
/// entry) and one that begins at `next`: the first key of the second. It is after `last`, at or
/// before `next`, and the next key after one of at most 255 bytes, so that no bound has to be
/// shortened. None where there is no such key, as of long keys that begin alike.
pub(crate) fn cut_before(last: &[u8], next: &[u8]) -> Option<Vec<u8>> {
    let mut cut = shortly_before(next)?;
    if *cut < *last {
        cut.clear();
        cut.extend_from_slice(last);
        if cut.len() > CUT_KEY_LEN_MAX {
            cut.truncate(CUT_KEY_LEN_MAX);
            raise(&mut cut)?;
        }
    }
    cut.push(0);
    (*cut <= *next).then_some(cut)
}

/// A key before `key` that few keys lie between, if any is before it.
fn shortly_before(key: &[u8]) -> Option<Vec<u8>> {
    if key.len() > NEAR_KEY_LEN_MAX {
        return Some(key[..NEAR_KEY_LEN_MAX].to_vec());
    }
    let (last, rest) = key.split_last()?;
    let mut before = rest.to_vec();
    if *last > 0 {
        before.push(last - 1);
        before.extend_from_slice(&[0xff; 8]);
    }
    Some(before)
}

/// The next number up, of the same bytes or fewer.
fn raise(key: &mut Vec<u8>) -> Option<()> {
    while key.pop_if(|last| *last == 0xff).is_some() {}
    *key.last_mut()? += 1;
    Some(())
}

#[cfg(test)]
mod tests;
