//! Which files of a version may hold a key, by ranks of their bounds, and the readers of those files.
//!
//! ```text
//!   level   files     [ a … f ]   [ g … m ]   [ n … z ]          bounds: three steps away from here
//!           largest    rank f      rank m      rank z            one piece of memory, searched
//!           smallest   rank a      rank g      rank n            looked at once
//!           opened     reader      –           reader            by the first look-up that comes to a file
//! ```
//!
//! Ranks ([`crate::rank`]) are those behind what all bounds of users' keys in the version begin with, so that a key's
//! is made once for all levels. Where a rank does not tell, the bound does.

use super::{Level, is_of_run};
use crate::entry::Keyspace;
use crate::file::FileMeta;
use crate::once::OnceArc;
use crate::rank::rank_behind;
use crate::sst::SstReader;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::FileId;

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
    /// Bytes of all of them.
    len: u64,
    /// Of the bounds, in the order of the files.
    largest: Vec<u64>,
    smallest: Vec<u64>,
    opened: Vec<Arc<Opened>>,
    /// Of L0: which files are disjoint and ascend by key, as one level. Nothing of the others, of which each is one.
    runs: Vec<Range<usize>>,
}

impl Finder {
    /// For a version of these levels. What was found for the files of `before`, a version that shares some of them,
    /// is taken over.
    pub(super) fn of(levels: &[Level], before: Option<(&[Level], &Self)>) -> Self {
        let mut prefix = common_prefix(levels);
        let (old_levels, old) = match before {
            Some((old_levels, old)) if old.levels.len() == old_levels.len() => (old_levels, old),
            _ => (&[][..], &Self::default()),
        };
        if *prefix == *old.prefix {
            prefix = old.prefix.clone();
        }
        let shared = |at: usize| {
            let same = old_levels.get(at).is_some_and(|level| Arc::ptr_eq(level, &levels[at]));
            (same && Arc::ptr_eq(&prefix, &old.prefix)).then(|| old.levels[at].clone())
        };
        let kept: Vec<_> = (0..levels.len()).map(shared).collect();
        let mut opened = BTreeMap::new();
        for (at, files) in old_levels.iter().enumerate() {
            if kept.get(at).is_none_or(Option::is_none) {
                let old = &old.levels[at];
                opened.extend(files.iter().map(|file| file.id).zip(old.opened.iter().cloned()));
            }
        }
        let level = |(at, (files, kept)): (usize, (&Level, Option<Arc<Files>>))| {
            kept.unwrap_or_else(|| Arc::new(Files::of(at, files, &prefix, &opened)))
        };
        let levels = levels.iter().zip(kept).enumerate().map(level).collect();
        Self { prefix, levels }
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
        self.levels.get(level).map_or(0, |files| files.len)
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

    /// The place of the first of a level's files that do not end before `key`. They are sorted and disjoint.
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

    /// As [`Self::place`], counted from the first of the `files` at these places of a level, of which those are sorted
    /// and disjoint.
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

impl Files {
    fn of(
        level: usize,
        files: &[Arc<FileMeta>],
        prefix: &[u8],
        opened: &BTreeMap<FileId, Arc<Opened>>,
    ) -> Self {
        let opened = |file: &Arc<FileMeta>| opened.get(&file.id).cloned().unwrap_or_default();
        Self {
            len: files.iter().map(|file| file.len).fold(0, u64::saturating_add),
            largest: files.iter().map(|file| rank_behind(prefix, &file.largest)).collect(),
            smallest: files.iter().map(|file| rank_behind(prefix, &file.smallest)).collect(),
            opened: files.iter().map(opened).collect(),
            runs: if level == 0 { runs_of(files) } else { Vec::new() },
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

/// What all bounds of users' keys begin with. Others are few, and of them ranks say no more than that they are
/// others.
fn common_prefix(levels: &[Level]) -> Arc<[u8]> {
    let mut common: Option<&[u8]> = None;
    for files in levels {
        for bound in files.iter().flat_map(|file| [&file.smallest[..], &file.largest[..]]) {
            if bound.first() != Some(&(Keyspace::User as u8)) {
                continue;
            }
            let len = |prefix: &[u8]| prefix.iter().zip(bound).take_while(|(a, b)| a == b).count();
            common = Some(common.map_or(bound, |prefix| &prefix[..len(prefix)]));
        }
    }
    common.unwrap_or_default().into()
}
