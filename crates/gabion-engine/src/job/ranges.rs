//! The range deletes of a job: what is there, what they hide, and what has to stay of them.

use super::JobInputs;
use super::rules::{is_below_floor, is_tombstone_wanted};
use crate::file::{FileMeta, FileSource, noted};
use crate::range_delete::{Fragment, Fragments};
use crate::recipe::Recipe;
use crate::sst::SstReader;
use alloc::borrow::Cow;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{GroupId, Result, SequenceNumber};

/// The newest of the inputs' that covers each key: it hides all that the older ones do. Reads the
/// ends of the files that have range deletes.
pub(super) async fn of_inputs(
    inputs: &JobInputs,
    group: GroupId,
    source: &impl FileSource,
) -> Result<Fragments> {
    let ranges = inputs.memtables.iter().flat_map(|table| table.range_deletes());
    let mut fragments: Vec<_> = ranges
        .map(|range| Fragment {
            start: range.start.clone(),
            end: range.end.clone(),
            sequences: alloc::vec![range.sequence],
        })
        .collect();
    for (_, meta) in inputs.files.iter().filter(|(_, meta)| meta.ranges.is_some()) {
        let opened = SstReader::open(source, group, meta).await;
        let reader = noted(source, meta.id, opened)?;
        fragments.extend_from_slice(reader.ranges().as_slice());
    }
    Ok(Fragments::merged(fragments.iter()))
}

type Files = [(u8, Arc<FileMeta>)];

/// The input files without those of which all is hidden: they need not be read. And how long those
/// are.
pub(super) fn without_hidden<'a>(
    inputs: &'a JobInputs,
    ranges: &Fragments,
) -> (Cow<'a, Files>, u64) {
    if ranges.is_empty() {
        return (Cow::Borrowed(&inputs.files[..]), 0);
    }
    let mut hidden_len = 0;
    let mut files = inputs.files.clone();
    files.retain(|(_, meta)| {
        let is_hidden = hides_all(ranges, meta);
        hidden_len += if is_hidden { meta.len } else { 0 };
        !is_hidden
    });
    (Cow::Owned(files), hidden_len)
}

/// Whether one range delete covers all keys of a file and is newer than all that it holds.
fn hides_all(ranges: &Fragments, meta: &FileMeta) -> bool {
    let fragments = ranges.as_slice();
    let at = fragments.partition_point(|fragment| *fragment.end <= *meta.smallest);
    let Some(fragment) = fragments.get(at) else { return false };
    // The upper bound may be a key that is there.
    let covers = *fragment.start <= *meta.smallest && *meta.largest < *fragment.end;
    covers && fragment.sequences.first() > Some(&meta.largest_sequence)
}

/// What has to stay, by the rule for tombstones. What was cleared with its keyspace hides nothing
/// more.
pub(super) fn kept(recipe: &Recipe, ranges: &Fragments) -> Fragments {
    ranges.only(|start, sequence| {
        is_tombstone_wanted(recipe) && !is_below_floor(start, sequence, recipe.floor)
    })
}

/// What fragments hide of entries that come in the order of their keys.
pub(super) struct Hiding<'a> {
    /// Those that do not end before the last key.
    fragments: &'a [Fragment],
}

impl<'a> Hiding<'a> {
    pub(super) fn new(ranges: &'a Fragments) -> Self {
        Self { fragments: ranges.as_slice() }
    }

    /// Whether a range delete hides an entry.
    #[inline]
    pub(super) fn hides(&mut self, key: &[u8], sequence: SequenceNumber) -> bool {
        !self.fragments.is_empty() && self.newest(key) > Some(sequence)
    }

    fn newest(&mut self, key: &[u8]) -> Option<SequenceNumber> {
        while let Some((first, rest)) = self.fragments.split_first() {
            if *key < *first.end {
                return first.sequences.first().copied().filter(|_| *first.start <= *key);
            }
            self.fragments = rest;
        }
        None
    }
}
