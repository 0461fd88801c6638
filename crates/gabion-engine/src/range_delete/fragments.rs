//! Range deletes cut where any of them begins or ends, to be searched, merged and stored.

use super::{Deleted, RangeDelete, RangeDeletes, WIDEST_MAX, check_range, last_before};
use crate::entry::ENGINE_KEY_LEN_MAX;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::EDIT_KEY_BOUND_LEN_MAX;
use gabion_base::{Error, Result, SequenceNumber};

/// Keys for all of which the same range deletes count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The first engine key.
    pub start: Arc<[u8]>,
    /// The first engine key behind it.
    pub end: Arc<[u8]>,
    /// Sequence numbers of the range deletes, newest first; never none.
    pub sequences: Vec<SequenceNumber>,
}

impl Fragment {
    /// The newest range delete at or below `read_sequence`.
    #[inline]
    #[must_use]
    pub fn newest(&self, read_sequence: SequenceNumber) -> Option<SequenceNumber> {
        let at = self.sequences.partition_point(|&sequence| sequence > read_sequence);
        self.sequences.get(at).copied()
    }

    /// Bytes of the fragment in a file.
    pub(crate) fn stored_len(&self) -> usize {
        let keys = self.start.len() + self.end.len();
        keys + super::FRAGMENT_OVERHEAD_LEN as usize + 8 * self.sequences.len()
    }
}

/// Fragments in order, disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fragments(Vec<Fragment>);

/// Keys that one search answers for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// The first; all from the beginning on without.
    pub(crate) from: Option<Arc<[u8]>>,
    /// The first behind it; all to the end without.
    pub(crate) to: Option<Arc<[u8]>>,
    /// The newest range delete that covers them and is seen, if there is one.
    pub(crate) newest: Option<SequenceNumber>,
}

impl Stretch {
    /// All keys, none of them gone.
    pub(crate) const EVERYWHERE: Self = Self { from: None, to: None, newest: None };

    #[inline]
    pub(crate) fn holds(&self, key: &[u8]) -> bool {
        self.from.as_ref().is_none_or(|from| **from <= *key)
            && self.to.as_ref().is_none_or(|to| *key < **to)
    }

    /// The keys of both, with what is newer.
    pub(crate) fn and(self, other: Self) -> Self {
        let to = match (self.to, other.to) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        // None is before all, as a start that is not there should be.
        let from = self.from.max(other.from);
        Self { from, to, newest: self.newest.max(other.newest) }
    }
}

impl Fragments {
    /// Of range deletes as they were written: each fragment has all that cover it.
    #[must_use]
    pub fn of(ranges: &[RangeDelete]) -> Self {
        let parts = ranges.iter().map(|range| (&range.start, &range.end, range.sequence));
        Self::build(parts, |covering, out| out.extend(covering.iter().rev()))
    }

    /// Of fragments that overlap as they like: each has the newest that covers it.
    pub(crate) fn merged<'a>(fragments: impl Iterator<Item = &'a Fragment>) -> Self {
        let parts = fragments.flat_map(|fragment| {
            fragment.sequences.iter().map(|&sequence| (&fragment.start, &fragment.end, sequence))
        });
        Self::build(parts, |covering, out| out.extend(covering.last()))
    }

    /// Goes through all ends in order, with the range deletes that cover what follows.
    fn build<'a>(
        parts: impl Iterator<Item = (&'a Arc<[u8]>, &'a Arc<[u8]>, SequenceNumber)>,
        choose: impl Fn(&BTreeSet<SequenceNumber>, &mut Vec<SequenceNumber>),
    ) -> Self {
        // What begins and what ends at a key. One number may begin where the same number ends, as
        // parts of one range delete come from several files.
        type Ends = (Vec<SequenceNumber>, Vec<SequenceNumber>);
        let mut ends: BTreeMap<&Arc<[u8]>, Ends> = BTreeMap::new();
        for (start, end, sequence) in parts {
            ends.entry(start).or_default().0.push(sequence);
            ends.entry(end).or_default().1.push(sequence);
        }
        let mut fragments = Self::default();
        let mut covering = BTreeSet::new();
        let mut from: Option<&Arc<[u8]>> = None;
        for (at, (begin, end)) in ends {
            if let Some(from) = from.filter(|_| !covering.is_empty()) {
                let mut sequences = Vec::new();
                choose(&covering, &mut sequences);
                fragments.push(from, at, sequences);
            }
            end.iter().for_each(|sequence| _ = covering.remove(sequence));
            covering.extend(begin);
            from = Some(at);
        }
        fragments
    }

    /// Adds what follows; one fragment with its neighbour where they say the same.
    fn push(&mut self, start: &Arc<[u8]>, end: &Arc<[u8]>, sequences: Vec<SequenceNumber>) {
        if sequences.is_empty() {
            return;
        }
        assert!(start < end, "a fragment has keys");
        if crate::CHECKED {
            assert!(sequences.is_sorted_by(|a, b| a > b), "the newest range delete comes first");
        }
        assert!(self.0.last().is_none_or(|last| last.end <= *start), "fragments are disjoint");
        match self.0.last_mut() {
            Some(last) if last.end == *start && last.sequences == sequences => {
                last.end = end.clone();
            }
            _ => self.0.push(Fragment { start: start.clone(), end: end.clone(), sequences }),
        }
    }

    /// Those sequence numbers that `is_wanted`, given with the start of their fragment.
    pub(crate) fn only(&self, is_wanted: impl Fn(&[u8], SequenceNumber) -> bool) -> Self {
        let mut kept = Self::default();
        for Fragment { start, end, sequences } in &self.0 {
            let wanted = sequences.iter().copied().filter(|&sequence| is_wanted(start, sequence));
            kept.push(start, end, wanted.collect());
        }
        kept
    }

    /// All of them in order.
    #[must_use]
    pub fn as_slice(&self) -> &[Fragment] {
        &self.0
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a fragment behind all that are there.
    pub(crate) fn append(&mut self, fragment: Fragment) {
        assert!(self.0.last().is_none_or(|last| last.end <= fragment.start), "fragments ascend");
        self.0.push(fragment);
    }

    /// Ends the last fragment at `end`, which lies within it.
    pub(crate) fn cut_last(&mut self, end: &Arc<[u8]>) {
        if let Some(last) = self.0.last_mut() {
            assert!(last.start < *end, "something of the fragment stays");
            assert!(*end <= last.end, "a fragment is cut within");
            last.end = end.clone();
        }
    }

    /// The newest range delete at or below `read_sequence` that covers `key`.
    #[must_use]
    pub fn newest(&self, key: &[u8], read_sequence: SequenceNumber) -> Option<SequenceNumber> {
        let at = self.0.partition_point(|fragment| *fragment.end <= *key);
        let fragment = self.0.get(at).filter(|fragment| *fragment.start <= *key)?;
        fragment.newest(read_sequence)
    }

    /// What is true of `key`, and of which keys around it besides.
    pub(crate) fn stretch(&self, key: &[u8], read_sequence: SequenceNumber) -> Stretch {
        let at = self.0.partition_point(|fragment| *fragment.end <= *key);
        match self.0.get(at) {
            Some(here) if *here.start <= *key => Stretch {
                from: Some(here.start.clone()),
                to: Some(here.end.clone()),
                newest: here.newest(read_sequence),
            },
            next => Stretch {
                from: at.checked_sub(1).map(|before| self.0[before].end.clone()),
                to: next.map(|next| next.start.clone()),
                newest: None,
            },
        }
    }

    /// The first key that is covered, and one at or after the last: that itself, or what is not
    /// covered any more.
    #[must_use]
    pub fn bounds(&self) -> Option<(&[u8], &[u8])> {
        let (first, last) = (self.0.first()?, self.0.last()?);
        Some((&first.start, last_before(&last.end)))
    }

    /// What a file's description says of them; nothing when there are none.
    #[must_use]
    pub fn described(&self) -> Option<RangeDeletes> {
        let mut all =
            RangeDeletes { first_sequence: SequenceNumber::MAX, ..RangeDeletes::default() };
        for fragment in &self.0 {
            all.fragments += 1;
            all.sequences += fragment.sequences.len() as u64;
            all.key_bytes += (fragment.start.len() + fragment.end.len()) as u64;
            let oldest = fragment.sequences.last().copied().unwrap_or(SequenceNumber::MAX);
            all.first_sequence = all.first_sequence.min(oldest);
        }
        all.widest = self.widest();
        (all.fragments > 0).then_some(all)
    }

    /// The widest stretches without a gap, by key. As wide is taken what differs most in the eight
    /// bytes behind those that all have in common; of equals, the first.
    fn widest(&self) -> Vec<Deleted> {
        let Some((first, last)) = self.0.first().zip(self.0.last()) else { return Vec::new() };
        let common = first.start.iter().zip(last.end.iter()).take_while(|(a, b)| a == b).count();
        let rank = |key: &[u8]| {
            let mut bytes = [0; 8];
            let rest = key.get(common..).unwrap_or_default();
            let len = rest.len().min(8);
            bytes[..len].copy_from_slice(&rest[..len]);
            u64::from_be_bytes(bytes)
        };
        let is_short = |key: &[u8]| key.len() <= EDIT_KEY_BOUND_LEN_MAX;
        let mut stretches: Vec<(u64, usize, Deleted)> = Vec::new();
        for run in self.0.chunk_by(|a, b| a.end == b.start) {
            let newest = || run.iter().filter_map(|fragment| fragment.sequences.first().copied());
            let ends = run.first().zip(run.last());
            let Some(((first, last), (sequence, seen_from))) =
                ends.zip(newest().min().zip(newest().max()))
            else {
                continue;
            };
            if is_short(&first.start) && is_short(&last.end) {
                let width = rank(&last.end).saturating_sub(rank(&first.start));
                let (start, end) = (first.start.to_vec(), last.end.to_vec());
                let deleted = Deleted { start, end, sequence, seen_from };
                stretches.push((width, stretches.len(), deleted));
            }
        }
        stretches.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        stretches.truncate(WIDEST_MAX);
        stretches.sort_by_key(|(_, place, _)| *place);
        stretches.into_iter().map(|(.., deleted)| deleted).collect()
    }

    /// Appends the encoded fragments.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for Fragment { start, end, sequences } in &self.0 {
            out.put_prefixed(start);
            out.put_prefixed(end);
            out.put_varint(sequences.len() as u64);
            sequences.iter().for_each(|sequence| out.put_u64(sequence.get()));
        }
    }

    /// Reads what [`Self::encode`] wrote, to the end; there is at least one.
    ///
    /// # Errors
    /// Corruption that says what is wrong.
    pub(crate) fn decode(payload: &mut Reader<'_>) -> Result<Self> {
        let mut fragments = Self::default();
        while fragments.is_empty() || !payload.is_empty() {
            let start = payload.prefixed(ENGINE_KEY_LEN_MAX)?;
            let end = payload.prefixed(ENGINE_KEY_LEN_MAX)?;
            check_range(start, end).map_err(|error| bad(error.message()))?;
            if fragments.0.last().is_some_and(|last| *last.end > *start) {
                return Err(bad("range deletes are not in order"));
            }
            let count = payload.varint()?;
            if count == 0 || count > payload.remaining() as u64 / 8 {
                return Err(bad(&format!("range delete with {count} sequence numbers")));
            }
            let mut sequences = Vec::with_capacity(count as usize);
            for _ in 0..count {
                sequences.push(SequenceNumber(payload.u64()?));
            }
            let falls = sequences.is_sorted_by(|a, b| a > b);
            if !falls || sequences[0] > SequenceNumber::MAX {
                return Err(bad("sequence numbers of a range delete do not fall"));
            }
            fragments.0.push(Fragment { start: start.into(), end: end.into(), sequences });
        }
        Ok(fragments)
    }
}

#[cold]
fn bad(what: &str) -> Error {
    Error::corruption(what)
}
