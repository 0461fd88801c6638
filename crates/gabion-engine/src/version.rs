//! Versions: which files make up the tree, level by level.
//!
//! ```text
//!   L0   [newest flush] [older] [load, load] may overlap; searched newest first, run after run
//!   L1   [a … f][g … m][n … z]               sorted, disjoint; at most one holds a key
//!   L2   …                                   older than everything above
//! ```
//!
//! A *run* of L0 is one flush's file, or those of one load that are left: as disjoint as a level. A
//! load of any size costs readers one cursor and counts once where runs are counted.
//!
//! A [`Version`] never changes; an edit makes the next one and shares what it leaves alone. Readers
//! and jobs hold the version that they began with. [`Versions`] keeps the current one and tells
//! when a file that left it has lost its last holder (docs/faults.md E12): only then may its slots
//! be used again.
//!
//! Encoded (part of a tree's snapshot): `u8 levels`, then per level `varint files`, and each file's
//! `FileMeta` after its length (varint). Where there are values files follow `varint files`, and
//! likewise each.

use crate::config::LEVELS_MAX;
use crate::edit::Edit;
use crate::file::FileMeta;
use crate::recipe::JobKind;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Range;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::EDIT_LEN_MAX;
use gabion_base::{Error, FileId, FileKind, Result};

mod change;
mod finder;
mod order;
mod referenced;
#[cfg(test)]
mod tests;
mod values;

use change::Change;
pub(crate) use finder::FileRef;
use finder::Finder;
pub(crate) use order::{is_of_run, newest_first};
use referenced::Referenced;
use values::ValuesFiles;
pub use values::ValuesStats;

/// The files of a level in order: L0 newest first, others ascending by key.
type Level = Arc<Vec<Arc<FileMeta>>>;

/// One state of the tree's files. Immutable.
#[derive(Clone)]
pub struct Version {
    levels: Vec<Level>,
    /// Follows from `levels`.
    finder: Finder,
    /// Likewise.
    referenced: Referenced,
    /// Those that are referenced.
    values: ValuesFiles,
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        // Values files are those that these reference.
        self.levels == other.levels
    }
}

impl Eq for Version {}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Version").field("levels", &self.levels).finish_non_exhaustive()
    }
}

impl Version {
    /// A version without files.
    ///
    /// # Panics
    /// With fewer than 2 or more than [`LEVELS_MAX`] levels, which a checked configuration has not.
    #[must_use]
    pub fn new(levels: u8) -> Self {
        assert!((2..=LEVELS_MAX).contains(&levels), "levels are checked with the configuration");
        Self::with((0..levels).map(|_| Level::default()).collect())
    }

    /// A version of these levels, whose files are in order.
    fn with(levels: Vec<Level>) -> Self {
        let finder = Finder::of(&levels);
        let referenced =
            Referenced::of(levels.iter().flat_map(|level| level.iter().map(|it| &**it)));
        Self { levels, finder, referenced, values: ValuesFiles::default() }
    }

    /// How many levels there are, L0 included.
    #[must_use]
    pub fn level_count(&self) -> u8 {
        self.levels.len() as u8
    }

    /// The files of a level: L0 newest first, others ascending by key. Empty past the last level.
    #[must_use]
    pub fn level(&self, level: u8) -> &[Arc<FileMeta>] {
        self.levels.get(usize::from(level)).map_or(&[], |files| files)
    }

    /// Bytes of a level's files.
    #[must_use]
    pub fn level_len(&self, level: u8) -> u64 {
        self.finder.len(usize::from(level))
    }

    /// The runs of L0 from new to old, by their places in [`Version::level`]: files that are
    /// disjoint and ascending by key, as those of one load are. A file for itself is a run of one.
    #[must_use]
    pub fn runs(&self) -> &[Range<usize>] {
        self.finder.runs()
    }

    /// Slots that the files of all levels, and the values files, take in a pool.
    #[must_use]
    pub fn slots(&self) -> u64 {
        self.finder.sums().slots + self.values.slots()
    }

    /// Bytes that a value takes in files, on average, there or in values files; 0 without any.
    #[must_use]
    pub fn value_len(&self) -> u64 {
        let sums = self.finder.sums();
        let packed = u128::from(sums.values_len) * u128::from(sums.len);
        let apart = u128::from(self.values.stats().live_bytes);
        let all = packed / u128::from(sums.raw_len.max(1)) + apart;
        u64::try_from(all / u128::from(sums.puts.max(1))).unwrap_or(u64::MAX)
    }

    /// Every file with its level, level by level.
    pub fn files(&self) -> impl Iterator<Item = (u8, &Arc<FileMeta>)> {
        self.levels
            .iter()
            .enumerate()
            .flat_map(|(level, files)| files.iter().map(move |file| (level as u8, file)))
    }

    /// The values files that its files reference, and before them the segments of the log, by
    /// number.
    pub fn values_files(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.values.iter()
    }

    /// The values file or segment with this id, if it is referenced.
    #[must_use]
    pub fn values_file(&self, id: FileId) -> Option<&Arc<FileMeta>> {
        self.values.get(id)
    }

    /// The values files and segments of this version that `next` does not have.
    pub fn values_gone_in<'a>(&'a self, next: &'a Self) -> impl Iterator<Item = FileId> + 'a {
        self.values.gone_in(&next.values)
    }

    /// The counts of values files.
    #[must_use]
    pub const fn values_stats(&self) -> ValuesStats {
        self.values.stats()
    }

    /// Every file that has an edit to describe it: SSTs, level by level, then segments of the log
    /// that keep values, then values files.
    pub fn described(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.files().map(|(_, file)| file).chain(self.values_files())
    }

    /// The first number behind those of all files that jobs and loads made; 0 without any.
    pub(crate) fn files_end(&self) -> u64 {
        let made = self.described().filter(|file| file.id.kind != FileKind::LogSegment);
        made.map(|file| file.id.number.saturating_add(1)).max().unwrap_or_default()
    }

    /// Values files and log segments that its files reference, and the bytes of each that are live.
    #[must_use]
    pub fn referenced(&self) -> &BTreeMap<FileId, u64> {
        self.referenced.as_map()
    }

    /// Bytes of memory that the descriptions of its files take.
    #[must_use]
    pub fn memory_used(&self) -> usize {
        let places = self.levels.iter().map(|files| files.capacity() * size_of::<Arc<FileMeta>>());
        let files = self.files().map(|(_, file)| file.memory_used());
        places.sum::<usize>() + files.sum::<usize>() + self.values.memory_used()
    }

    /// The file of a level with this id.
    #[must_use]
    pub fn file(&self, level: u8, id: FileId) -> Option<&Arc<FileMeta>> {
        self.level(level).get(self.finder.place_of(usize::from(level), id)?)
    }

    /// The files of a level below L0 that may hold keys of `smallest..=largest`.
    #[must_use]
    pub fn overlapping(&self, level: u8, smallest: &[u8], largest: &[u8]) -> &[Arc<FileMeta>] {
        debug_assert!(level > 0, "files of L0 are not sorted by key");
        let files = self.level(level);
        let start = files.partition_point(|file| &file.largest[..] < smallest);
        let end = files.partition_point(|file| &file.smallest[..] <= largest);
        files.get(start..end).unwrap_or(&[])
    }

    /// The rank of a key among the bounds of this version's files, for [`Version::place`] and
    /// [`Version::may_hold`].
    #[inline]
    pub(crate) fn rank(&self, key: &[u8]) -> u64 {
        self.finder.rank(key)
    }

    /// The place of the first file of a level below L0 that does not end before `key`, which has
    /// this rank; the number of files when there is none.
    #[inline]
    pub(crate) fn place(&self, level: u8, key: &[u8], rank: u64) -> usize {
        debug_assert!(level > 0, "files of L0 are not sorted by key");
        self.finder.place(usize::from(level), self.level(level), key, rank)
    }

    /// The place of the first file of a run of L0 that does not end before `key`, which has this
    /// rank; the run's end when there is none.
    #[inline]
    pub(crate) fn place_in_run(&self, run: &Range<usize>, key: &[u8], rank: u64) -> usize {
        if run.len() == 1 {
            return run.start; // whoever asks looks at its bounds next
        }
        run.start + self.finder.place_within(0, run.clone(), &self.level(0)[run.clone()], key, rank)
    }

    /// Whether the file at a place of a level may hold `key`, which has this rank.
    #[inline]
    pub(crate) fn may_hold(&self, level: u8, at: usize, key: &[u8], rank: u64) -> bool {
        let file = &self.level(level)[at];
        self.finder.may_hold(usize::from(level), at, file, key, rank)
    }

    /// The file at a place of a level, with its reader.
    #[inline]
    pub(crate) fn file_at(&self, level: u8, at: usize) -> FileRef<'_> {
        FileRef { meta: &self.level(level)[at], opened: self.finder.opened(usize::from(level), at) }
    }

    /// The files that may hold `key`, from new to old: at most one of each run of L0, then of each
    /// level.
    #[inline]
    pub(crate) fn files_for<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = FileRef<'a>> {
        let rank = self.rank(key);
        let in_run = move |run: &Range<usize>| (self.place_in_run(run, key, rank), run.end);
        let newest = self.runs().iter().map(in_run).filter(|(at, end)| at < end);
        let newest = newest.map(|(at, _)| (0, at));
        let below = (1..self.level_count()).map(move |level| (level, self.place(level, key, rank)));
        let below = below.filter(|&(level, at)| at < self.level(level).len());
        let within = move |&(level, at): &(u8, usize)| self.may_hold(level, at, key, rank);
        newest.chain(below).filter(within).map(|(level, at)| self.file_at(level, at))
    }

    /// Whether any level from `level` on may hold keys of `smallest..=largest`.
    #[must_use]
    pub fn overlaps_from(&self, level: u8, smallest: &[u8], largest: &[u8]) -> bool {
        (level..self.level_count())
            .any(|level| !self.overlapping(level, smallest, largest).is_empty())
    }

    /// The files of the levels in `levels` that may hold keys of `smallest..=largest`.
    pub(crate) fn files_within<'a>(
        &'a self,
        levels: Range<u8>,
        smallest: &'a [u8],
        largest: &'a [u8],
    ) -> impl Iterator<Item = &'a Arc<FileMeta>> {
        levels.flat_map(move |level| {
            let files = match level {
                0 => self.level(0),
                level => self.overlapping(level, smallest, largest),
            };
            files
                .iter()
                .filter(|file| file.smallest[..] <= *largest && *smallest <= file.largest[..])
        })
    }

    /// When the first of the operands was written, in group time, that these levels may hold for
    /// keys of `smallest..=largest`, files left out that `is_left_out`.
    pub(crate) fn operands_from_ms(
        &self,
        levels: Range<u8>,
        smallest: &[u8],
        largest: &[u8],
        is_left_out: &dyn Fn(FileId) -> bool,
    ) -> Option<u64> {
        let files = self.files_within(levels, smallest, largest);
        let operands = files.filter(|file| !is_left_out(file.id)).filter_map(|file| file.operands);
        // The largest number means none.
        operands.map(|operands| operands.first_ms.min(u64::MAX - 1)).min()
    }

    /// The version after `edit`. Its number is checked by the tree.
    ///
    /// # Errors
    /// Corruption when the edit does not fit: it removes a file that is not there, adds one that is
    /// already, names a level that does not exist, or makes files overlap.
    pub fn apply(&self, edit: &Edit) -> Result<Self> {
        Ok(self.apply_and_tell(edit)?.0)
    }

    /// The version after `edit`, and the files that left the tree with it, in their order.
    fn apply_and_tell(&self, edit: &Edit) -> Result<(Self, Vec<Arc<FileMeta>>)> {
        edit.validate()?;
        let mut changes: Vec<Change> = self.levels.iter().map(|_| Change::default()).collect();
        let mut gone = self.find_removed(edit, &mut changes)?;
        self.find_added(edit, &gone, &mut changes)?;
        match edit.kind {
            JobKind::Flush => self.check_newer_than_l0(edit)?,
            JobKind::Load => self.check_between_levels(edit)?,
            JobKind::Compaction | JobKind::TrivialMove | JobKind::Drop => {}
        }
        let mut levels = self.levels.clone();
        for (level, change) in changes.iter().enumerate().filter(|(_, change)| !change.is_empty()) {
            let added = change.added.iter().map(|(_, file)| file.clone());
            let files = change.of(&self.levels[level], added);
            check_places(level as u8, &files, change.places())
                .map_err(|e| e.within(format!("edit {}", edit.number)))?;
            levels[level] = Arc::new(files);
        }
        let finder = self.finder.after(&self.levels, &levels, &changes);
        let added = edit.added.iter().map(|(_, meta)| meta);
        let referenced = self.referenced.after(added, gone.values().map(|file| &**file));
        let values = self.values.after(edit, &referenced)?;
        for (_, meta) in &edit.added {
            gone.remove(&meta.id);
        }
        let next = Self { levels, finder, referenced, values };
        let count = |version: &Self| version.levels.iter().map(|files| files.len()).sum::<usize>();
        assert_eq!(
            count(&next) + edit.removed.len(),
            count(self) + edit.added.len(),
            "edit {}: files come and go as it says",
            edit.number
        );
        if crate::CHECKED {
            next.invariants();
        }
        Ok((next, gone.into_values().collect()))
    }

    /// The files that an edit removes; their places go into `changes`.
    fn find_removed(
        &self,
        edit: &Edit,
        changes: &mut [Change],
    ) -> Result<BTreeMap<FileId, Arc<FileMeta>>> {
        let mut removed = edit.removed.clone();
        removed.sort_unstable();
        if let Some(pair) = removed.windows(2).find(|pair| pair[0] == pair[1]) {
            let (level, id) = pair[0];
            return Err(refuse(edit, "removes a file twice:", level, id));
        }
        let mut gone = BTreeMap::new();
        for part in removed.chunk_by(|a, b| a.0 == b.0) {
            let level = part[0].0;
            let found = self.finder.places_of(usize::from(level), part);
            for (at, &(_, id)) in found.iter().zip(part) {
                let Some(file) = at.and_then(|at| self.level(level).get(at)) else {
                    return Err(refuse(edit, "removes a file that is not there:", level, id));
                };
                gone.insert(id, file.clone());
            }
            if let Some(change) = changes.get_mut(usize::from(level)) {
                change.gone = found.into_iter().flatten().collect();
                change.gone.sort_unstable();
            }
        }
        Ok(gone)
    }

    /// The places of an edit's files, into `changes`. `gone` are those that it removed.
    fn find_added(
        &self,
        edit: &Edit,
        gone: &BTreeMap<FileId, Arc<FileMeta>>,
        changes: &mut [Change],
    ) -> Result<()> {
        const THERE: &str = "adds a file that is already there:";
        let mut fresh = BTreeSet::new();
        for (level, meta) in &edit.added {
            if !fresh.insert(meta.id) {
                return Err(refuse(edit, THERE, *level, meta.id));
            }
        }
        if let Some((level, id)) = self.finder.first_of(&fresh, |id| gone.contains_key(&id)) {
            return Err(refuse(edit, THERE, level, id));
        }
        let mut added: Vec<Vec<Arc<FileMeta>>> = self.levels.iter().map(|_| Vec::new()).collect();
        for (level, meta) in &edit.added {
            let file = match gone.get(&meta.id) {
                // The same reference: who counts the holders of a moved file counts all of them.
                Some(file) if **file == *meta => file.clone(),
                Some(_) => {
                    return Err(refuse(edit, "moves a file and changes it:", *level, meta.id));
                }
                None => Arc::new(meta.clone()),
            };
            let Some(files) = added.get_mut(usize::from(*level)) else {
                return Err(refuse(edit, "adds to a level that is not there:", *level, meta.id));
            };
            files.push(file);
        }
        for (level, (added, change)) in (0..).zip(added.into_iter().zip(changes)) {
            change.place(level, self.level(level), added);
        }
        Ok(())
    }

    /// Checks that each level is in order, that below L0 no two files overlap, and that files are
    /// found by what they are. And that what is derived from files is what they say.
    ///
    /// # Panics
    /// When one of them does not hold.
    pub fn invariants(&self) {
        let mut ids = BTreeSet::new();
        for (level, files) in (0..).zip(&self.levels) {
            for file in files.iter() {
                assert!(file.smallest <= file.largest, "{}: bounds are in order", file.id);
                assert!(ids.insert(file.id), "{} is there once", file.id);
            }
            let is_apart = |a: &Arc<FileMeta>, b: &Arc<FileMeta>| match level {
                0 => newest_first(a, b).is_lt(),
                _ => a.largest < b.smallest,
            };
            assert!(files.is_sorted_by(is_apart), "level {level} is in order");
        }
        self.finder.invariants(&self.levels);
        let counted = Referenced::of(self.files().map(|(_, file)| &**file));
        assert_eq!(self.referenced, counted, "live bytes by file are the sum over all SSTs");
        self.values.check(&counted).expect("values files are those that are referenced");
    }

    /// A version of these files, for tests of what looks at versions.
    #[cfg(test)]
    pub(crate) fn of(levels: u8, files: Vec<(u8, FileMeta)>) -> Self {
        let mut version = Self::new(levels);
        for (level, meta) in files {
            Arc::make_mut(&mut version.levels[usize::from(level)]).push(Arc::new(meta));
        }
        (0..levels).for_each(|level| version.sort_and_check(level).unwrap());
        let mut version = Self::with(version.levels);
        let mut edit = Edit::nothing();
        edit.values = tests::values_of(&version, &ValuesFiles::default());
        version.values = version.values.after(&edit, &version.referenced).unwrap();
        version
    }

    /// A flush adds what is newer than all of L0, or readers would find the wrong version first.
    fn check_newer_than_l0(&self, edit: &Edit) -> Result<()> {
        let newest = self.level(0).iter().map(|file| (file.largest_sequence, file.id)).max();
        let Some((newest, id)) = newest else { return Ok(()) };
        match edit.added.iter().find(|(_, meta)| meta.smallest_sequence <= newest) {
            None => Ok(()),
            Some((_, meta)) => Err(Error::corruption(format!(
                "edit {}: flushes {} from {} on, but {id} holds entries up to {newest}",
                edit.number, meta.id, meta.smallest_sequence
            ))),
        }
    }

    /// A load adds files below nothing older and above nothing newer, or readers would find the
    /// wrong version first.
    fn check_between_levels(&self, edit: &Edit) -> Result<()> {
        let wrong = |(level, meta): &(u8, FileMeta)| {
            let mut above = self.files_within(0..*level, &meta.smallest, &meta.largest);
            let older = above.find(|file| file.smallest_sequence < meta.smallest_sequence);
            let below = *level + 1..self.level_count().max(*level + 1);
            let mut below = self.files_within(below, &meta.smallest, &meta.largest);
            let newer = below.find(|file| file.largest_sequence > meta.largest_sequence);
            older.or(newer).map(|file| (*level, meta.id, file.id))
        };
        match edit.added.iter().find_map(wrong) {
            None => Ok(()),
            Some((level, id, other)) => Err(Error::corruption(format!(
                "edit {}: loads {id} into level {level}, on the wrong side of {other}",
                edit.number
            ))),
        }
    }

    fn sort_and_check(&mut self, level: u8) -> Result<()> {
        let files = Arc::make_mut(&mut self.levels[usize::from(level)]);
        if level == 0 {
            files.sort_by(|a, b| newest_first(a, b));
        } else {
            files.sort_by(|a, b| a.smallest.cmp(&b.smallest));
        }
        files.iter().try_for_each(|file| check_bounds(file))?;
        if level == 0 {
            return Ok(());
        }
        files.windows(2).try_for_each(|pair| check_apart(level, &pair[0], &pair[1]))
    }

    /// Appends the encoded version.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u8(self.level_count());
        for files in &self.levels {
            out.put_varint(files.len() as u64);
            for file in files.iter() {
                let mut meta = Vec::new();
                file.encode(&mut meta);
                out.put_prefixed(&meta);
            }
        }
        if self.values.stats().files > 0 {
            self.values.encode(out);
        }
    }

    /// The version that the rest of `reader` holds, with every rule checked.
    ///
    /// # Errors
    /// Corruption.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let levels = reader.u8()?;
        if !(2..=LEVELS_MAX).contains(&levels) {
            return Err(Error::corruption(format!("version: {levels} levels")));
        }
        let mut version = Self::new(levels);
        let mut ids = BTreeSet::new();
        for level in 0..levels {
            let count = reader.varint()?;
            let mut files = Vec::new();
            for _ in 0..count {
                let meta = FileMeta::decode(reader.prefixed(EDIT_LEN_MAX)?)?;
                if !ids.insert(meta.id) {
                    return Err(Error::corruption(format!("version: {} twice", meta.id)));
                }
                files.push(Arc::new(meta));
            }
            let as_stored = files.clone();
            version.levels[usize::from(level)] = Arc::new(files);
            version.sort_and_check(level)?;
            if level > 0 && *version.levels[usize::from(level)] != as_stored {
                return Err(Error::corruption(format!("version: level {level} is not in order")));
            }
        }
        let mut version = Self::with(version.levels);
        version.values = ValuesFiles::decode(reader, &version.referenced)?;
        Ok(version)
    }
}

fn check_bounds(file: &FileMeta) -> Result<()> {
    if file.smallest <= file.largest {
        return Ok(());
    }
    Err(Error::corruption(format!("bounds of {} are in reverse", file.id)))
}

fn check_apart(level: u8, file: &FileMeta, next: &FileMeta) -> Result<()> {
    if file.largest < next.smallest {
        return Ok(());
    }
    Err(Error::corruption(format!("{} and {} overlap at level {level}", file.id, next.id)))
}

/// Checks the files at these places, which came to a level whose others are in order.
fn check_places(
    level: u8,
    files: &[Arc<FileMeta>],
    places: impl Iterator<Item = usize>,
) -> Result<()> {
    for at in places {
        check_bounds(&files[at])?;
        if level > 0 {
            let around = &files[at.saturating_sub(1)..files.len().min(at + 2)];
            around.windows(2).try_for_each(|pair| check_apart(level, &pair[0], &pair[1]))?;
        }
    }
    Ok(())
}

fn refuse(edit: &Edit, what: &str, level: u8, id: FileId) -> Error {
    Error::corruption(format!("edit {}: {what} {id} at level {level}", edit.number))
}

/// The current version, and the files that left it but may still be read.
#[derive(Debug)]
pub struct Versions {
    current: Arc<Version>,
    /// Files of earlier versions. Ours is the last reference once no version, view or job has one.
    leaving: Vec<Arc<FileMeta>>,
}

impl Versions {
    /// Begins with `current`.
    #[must_use]
    pub fn new(current: Version) -> Self {
        Self { current: Arc::new(current), leaving: Vec::new() }
    }

    /// The current version.
    #[must_use]
    pub const fn current(&self) -> &Arc<Version> {
        &self.current
    }

    /// Installs the version after `edit`. On an error nothing changes.
    ///
    /// # Errors
    /// Those of [`Version::apply`].
    pub fn apply(&mut self, edit: &Edit) -> Result<()> {
        let (next, gone) = self.current.apply_and_tell(edit)?;
        self.leaving.extend(gone);
        self.current = Arc::new(next);
        Ok(())
    }

    /// Forgets which readers of files were kept in the current version: the next has the same files
    /// and no readers.
    pub(crate) fn close_files(&mut self) {
        let levels = self.current.levels.clone();
        let finder = Finder::of(&levels);
        let referenced = self.current.referenced.clone();
        let values = self.current.values.clone();
        self.current = Arc::new(Version { levels, finder, referenced, values });
    }

    /// Files that nothing can read any more, each reported once, ascending.
    pub fn obsolete_files(&mut self) -> Vec<FileId> {
        let mut obsolete = Vec::new();
        // The last reference is ours. Whoever could make a second one would need one to clone from.
        // `get_mut` also has what the last reader did happen before what is done with the file's
        // slots; a mere count would not.
        self.leaving.retain_mut(|file| {
            let held = Arc::get_mut(file).is_none();
            if !held {
                obsolete.push(file.id);
            }
            held
        });
        obsolete.sort_unstable();
        obsolete
    }

    /// Files that left the tree and are still held by a reader or a job.
    #[must_use]
    pub fn leaving(&self) -> &[Arc<FileMeta>] {
        &self.leaving
    }
}
