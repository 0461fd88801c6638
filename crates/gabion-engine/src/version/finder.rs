//! Which files of a version may hold a key, by ranks of their bounds, and the readers of those
//! files.
//!
//! ```text
//!   level   files     [ a … f ]   [ g … m ]   [ n … z ]          bounds: three steps away from here
//!           largest    rank f      rank m      rank z            one piece of memory, searched
//!           smallest   rank a      rank g      rank n            looked at once
//!           opened     reader      –           reader            by the first look-up that comes to a file
//!           ids        7           3           12                what edits name files by
//! ```
//!
//! Ranks ([`crate::rank`]) are those behind what all bounds of users' keys in the version begin
//! with, so that a key's is made once for all levels. Where a rank does not tell, the bound does.
//!
//! An edit of a few files in a tree of many looks at these alone: what there is of the others is
//! copied.

use super::Level;
use super::change::Change;
use super::order::is_of_run;
use crate::entry::Keyspace;
use crate::file::FileMeta;
use crate::once::OnceArc;
use crate::rank::rank_behind;
use crate::sst::SstReader;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::FileId;
use gabion_base::units::SLOT_LEN;

/// Where the reader of a file is kept once it is open: the same in all versions that have the file.
pub(crate) type Opened = OnceArc<SstReader>;

/// A file of a version, and its reader.
#[derive(Clone, Copy)]
pub(crate) struct FileRef<'a> {
    pub(crate) meta: &'a Arc<FileMeta>,
    pub(crate) opened: &'a Opened,
}

/// What the files of a version are found by.
#[derive(Clone, Default)]
pub(super) struct Finder {
    prefix: Arc<[u8]>,
    levels: Vec<Arc<Files>>,
}

/// The files of a level.
struct Files {
    sums: Sums,
    ids: Vec<FileId>,
    /// Of the bounds, in the order of the files.
    largest: Vec<u64>,
    smallest: Vec<u64>,
    opened: Vec<Arc<Opened>>,
    /// Of L0: which files are disjoint and ascend by key, as one level. Nothing of the others, of
    /// which each is one.
    runs: Vec<Range<usize>>,
}

/// Sums over files. An edit changes them by what comes and goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Bytes.
    pub(super) len: u64,
    /// Slots of a pool.
    pub(super) slots: u64,
    /// Entries that are no tombstones.
    pub(super) puts: u64,
    /// Bytes of values, before they were compressed.
    pub(super) values_len: u64,
    /// Bytes of keys and values, before they were compressed.
    pub(super) raw_len: u64,
}

impl Sums {
    fn of<'f>(files: impl IntoIterator<Item = &'f FileMeta>) -> Self {
        files.into_iter().map(Self::of_file).fold(Self::default(), Self::and)
    }

    fn of_file(file: &FileMeta) -> Self {
        Self {
            len: file.len,
            slots: file.rounded_len().div_ceil(SLOT_LEN),
            puts: file.entries.saturating_sub(file.deletes),
            values_len: file.raw_value_bytes,
            raw_len: file.raw_key_bytes.saturating_add(file.raw_value_bytes),
        }
    }

    /// With `other` as well. Descriptions come from a disk: what they say together may be more than
    /// a number holds.
    pub(super) fn and(self, other: Self) -> Self {
        self.with(other, u64::saturating_add)
    }

    fn without(self, other: Self) -> Self {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            len: of(self.len, other.len),
            slots: of(self.slots, other.slots),
            puts: of(self.puts, other.puts),
            values_len: of(self.values_len, other.values_len),
            raw_len: of(self.raw_len, other.raw_len),
        }
    }
}

impl Finder {
    /// For a version of these levels, of whose files none is open.
    pub(super) fn of(levels: &[Level]) -> Self {
        let prefix = common_prefix(levels);
        let levels = levels
            .iter()
            .enumerate()
            .map(|(at, files)| Arc::new(Files::of(at, files, &prefix)))
            .collect();
        Self { prefix, levels }
    }

    /// For the version that `changes` make of this one: what is known of its files stays.
    pub(super) fn after(&self, before: &[Level], levels: &[Level], changes: &[Change]) -> Self {
        let mut prefix = common_prefix(levels);
        let is_same = *prefix == *self.prefix;
        if is_same {
            prefix = self.prefix.clone();
        }
        let mut opened = BTreeMap::new();
        for ((known, files), change) in self.levels.iter().zip(before).zip(changes) {
            opened.extend(change.gone.iter().map(|&at| (files[at].id, known.opened[at].clone())));
        }
        let known = |at: usize| {
            let (old, change) = (&self.levels[at], &changes[at]);
            if change.is_empty() && is_same {
                return old.clone();
            }
            let mut known = old.after(&before[at], change, &prefix, &opened);
            if at == 0 {
                known.runs = runs_of(&levels[0]);
            }
            if !is_same {
                (known.largest, known.smallest) = ranks(&levels[at], &prefix);
            }
            Arc::new(known)
        };
        let known: Vec<_> = (0..levels.len()).map(known).collect();
        for (level, (known, files)) in known.iter().zip(levels).enumerate() {
            assert_eq!(known.ids.len(), files.len(), "level {level}: each file has an id");
            assert_eq!(known.opened.len(), files.len(), "level {level}: and a place to be open");
        }
        Self { prefix, levels: known }
    }

    /// # Panics
    /// When it does not say what the files of these levels do.
    pub(super) fn invariants(&self, levels: &[Level]) {
        let fresh = Self::of(levels);
        assert_eq!(self.prefix, fresh.prefix, "ranks are those behind what bounds begin with");
        for (level, is) in fresh.levels.iter().enumerate() {
            let known = &self.levels[level];
            assert_eq!(known.ids, is.ids, "level {level}: ids");
            assert_eq!(known.largest, is.largest, "level {level}: ranks of last keys");
            assert_eq!(known.smallest, is.smallest, "level {level}: ranks of first keys");
            assert_eq!(known.runs, is.runs, "level {level}: runs");
            assert_eq!(known.opened.len(), is.opened.len(), "level {level}: readers");
            // What only descriptions say may be more than a number holds.
            assert_eq!(known.sums.len, is.sums.len, "level {level}: bytes");
            assert_eq!(known.sums.slots, is.sums.slots, "level {level}: slots");
        }
    }

    /// The place of a file in a level.
    pub(super) fn place_of(&self, level: usize, id: FileId) -> Option<usize> {
        self.levels.get(level)?.ids.iter().position(|of| *of == id)
    }

    /// The places in a level of files that are sorted by their ids: one pass for all of them.
    pub(super) fn places_of(&self, level: usize, sorted: &[(u8, FileId)]) -> Vec<Option<usize>> {
        if let [(_, id)] = sorted {
            return alloc::vec![self.place_of(level, *id)];
        }
        let mut places = alloc::vec![None; sorted.len()];
        for (at, id) in
            self.levels.get(level).map_or(&[][..], |known| &known.ids).iter().enumerate()
        {
            if let Ok(of) = sorted.binary_search_by_key(id, |(_, id)| *id) {
                places[of] = Some(at);
            }
        }
        places
    }

    /// The first of `sought` that is in the tree, and its level, but for those that are gone.
    pub(super) fn first_of(
        &self,
        sought: &BTreeSet<FileId>,
        is_gone: impl Fn(FileId) -> bool,
    ) -> Option<(u8, FileId)> {
        let (first, last) = (*sought.first()?, *sought.last()?);
        let ids = (0..).zip(&self.levels).flat_map(|(level, known)| {
            let within = known.ids.iter().filter(|id| (first..=last).contains(*id));
            within.map(move |id| (level, *id))
        });
        ids.filter(|(_, id)| sought.contains(id)).find(|(_, id)| !is_gone(*id))
    }

    /// The rank of a key, for the others.
    #[inline]
    pub(super) fn rank(&self, key: &[u8]) -> u64 {
        rank_behind(&self.prefix, key)
    }

    /// Where the reader of a file is kept, by its place in its level.
    #[inline]
    pub(super) fn opened(&self, level: usize, at: usize) -> &Opened {
        &self.levels[level].opened[at]
    }

    /// Bytes of a level's files.
    pub(super) fn len(&self, level: usize) -> u64 {
        self.levels.get(level).map_or(0, |files| files.sums.len)
    }

    /// Of all files.
    pub(super) fn sums(&self) -> Sums {
        self.levels.iter().map(|files| files.sums).fold(Sums::default(), Sums::and)
    }

    /// The runs of L0, by the places of their files.
    pub(super) fn runs(&self) -> &[Range<usize>] {
        self.levels.first().map_or(&[], |files| &files.runs)
    }

    /// Whether a file may hold a key.
    #[inline]
    pub(super) fn may_hold(
        &self,
        level: usize,
        at: usize,
        file: &FileMeta,
        key: &[u8],
        rank: u64,
    ) -> bool {
        let files = &self.levels[level];
        let (smallest, largest) = (files.smallest[at], files.largest[at]);
        if smallest < rank && rank < largest {
            return true;
        }
        smallest <= rank && rank <= largest && file.may_hold(key)
    }

    /// The place of the first of a level's files that do not end before `key`. They are sorted and
    /// disjoint.
    #[inline]
    pub(super) fn place(
        &self,
        level: usize,
        files: &[Arc<FileMeta>],
        key: &[u8],
        rank: u64,
    ) -> usize {
        self.place_within(level, 0..files.len(), files, key, rank)
    }

    /// As [`Self::place`], counted from the first of the `files` at these places of a level, of
    /// which those are sorted and disjoint.
    #[inline]
    pub(super) fn place_within(
        &self,
        level: usize,
        places: Range<usize>,
        files: &[Arc<FileMeta>],
        key: &[u8],
        rank: u64,
    ) -> usize {
        let largest = &self.levels[level].largest[places];
        let at = largest.partition_point(|of| *of < rank);
        if largest.get(at) != Some(&rank) {
            return at;
        }
        let equal = largest[at..].partition_point(|of| *of == rank);
        at + files[at..at + equal].partition_point(|file| file.largest[..] < *key)
    }
}

/// Of the same files, open or not.
#[cfg(test)]
impl PartialEq for Finder {
    fn eq(&self, other: &Self) -> bool {
        let all = |finder: &Self| -> Vec<_> {
            let levels = finder.levels.iter();
            levels
                .map(|known| {
                    let ranks = (known.largest.clone(), known.smallest.clone());
                    (known.sums, known.ids.clone(), ranks, known.opened.len(), known.runs.clone())
                })
                .collect()
        };
        self.prefix == other.prefix && all(self) == all(other)
    }
}

#[cfg(test)]
impl core::fmt::Debug for Finder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Finder").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Files {
    fn of(level: usize, files: &[Arc<FileMeta>], prefix: &[u8]) -> Self {
        let (largest, smallest) = ranks(files, prefix);
        Self {
            sums: Sums::of(files.iter().map(|file| &**file)),
            ids: files.iter().map(|file| file.id).collect(),
            largest,
            smallest,
            opened: files.iter().map(|_| Arc::default()).collect(),
            runs: if level == 0 { runs_of(files) } else { Vec::new() },
        }
    }

    /// After a change of these files. `opened` has the readers of those that go, here and
    /// elsewhere.
    fn after(
        &self,
        files: &[Arc<FileMeta>],
        change: &Change,
        prefix: &[u8],
        opened: &BTreeMap<FileId, Arc<Opened>>,
    ) -> Self {
        let added = || change.added.iter().map(|(_, file)| &**file);
        let gone = change.gone.iter().map(|&at| &*files[at]);
        let reader = |file: &FileMeta| opened.get(&file.id).cloned().unwrap_or_default();
        Self {
            sums: self.sums.without(Sums::of(gone)).and(Sums::of(added())),
            ids: change.of(&self.ids, added().map(|file| file.id)),
            largest: change
                .of(&self.largest, added().map(|file| rank_behind(prefix, &file.largest))),
            smallest: change
                .of(&self.smallest, added().map(|file| rank_behind(prefix, &file.smallest))),
            opened: change.of(&self.opened, added().map(reader)),
            runs: Vec::new(),
        }
    }
}

/// The runs of L0's files, which are in its order.
fn runs_of(files: &[Arc<FileMeta>]) -> Vec<Range<usize>> {
    let mut start = 0;
    let runs = files.chunk_by(|before, file| is_of_run(before, file)).map(|run| {
        let end = start + run.len();
        core::mem::replace(&mut start, end)..end
    });
    runs.collect()
}

/// Of the bounds of files, those of the largest keys first.
fn ranks(files: &[Arc<FileMeta>], prefix: &[u8]) -> (Vec<u64>, Vec<u64>) {
    let largest = files.iter().map(|file| rank_behind(prefix, &file.largest));
    let smallest = files.iter().map(|file| rank_behind(prefix, &file.smallest));
    (largest.collect(), smallest.collect())
}

/// What all bounds of users' keys begin with. Others are few, and of them ranks say no more than
/// that they are others. Of files in order the first and the last bound tell.
fn common_prefix(levels: &[Level]) -> Arc<[u8]> {
    let (user, next) = ([Keyspace::User as u8], [Keyspace::User as u8 + 1]);
    let mut common: Option<&[u8]> = None;
    for (level, files) in levels.iter().enumerate() {
        let ends = if level == 0 {
            [&files[..], &[]]
        } else {
            let first = files.partition_point(|file| file.largest[..] < user[..]);
            let end = files.partition_point(|file| file.smallest[..] < next[..]);
            let users = files.get(first..end).unwrap_or_default();
            [&users[..users.len().min(1)], &users[users.len().saturating_sub(1)..]]
        };
        let files = ends.into_iter().flatten();
        for bound in files.flat_map(|file| [&file.smallest[..], &file.largest[..]]) {
            if bound.first() != Some(&user[0]) {
                continue;
            }
            let len = |prefix: &[u8]| prefix.iter().zip(bound).take_while(|(a, b)| a == b).count();
            common = Some(common.map_or(bound, |prefix| &prefix[..len(prefix)]));
        }
    }
    common.unwrap_or_default().into()
}
