//! The one owner of files. It knows for each file of the pool whether its place is durable and all
//! that refers to it, and it alone has the pool take a file, swap its place, retire and free it.
//!
//! ```text
//!   reference            to               begins with                ends with
//! ┌ an edit to come      SST, values      a place in the pool        the edit, or nobody's file
//! │ a copy to come       all of a state   a place in the pool        the state, or nobody's file
//! │ the tree             SST              an edit that adds it       an edit that removes it
//! │ a file of the tree   values, segment  an edit that adds that     an edit that removes that
//! │ the log              segment          a place in the pool        the log begins behind it
//! └── keeps the file across a restart
//! ┌ readers              SST              an edit that removes it    the last view, job or mark
//! │ a file that is read  values, segment  an edit that removes that  that file's last reader
//! │ a shipment           SST              bytes to be read here      these are read, or not needed
//! │ an order             segment          a read for a member, a drain   its result
//! └── keeps the slots
//! ```
//!
//! **The rule.** A file is retired once no reference of the first five is left: the next commit
//! takes it out of the files that a start finds. Its slots are given back once no reference of all
//! eight is left *and* its retirement is durable, for which the pool waits. Before, a crash would
//! bring the file back.
//!
//! So the log may begin behind a segment to which pointers in SSTs lead: it stays as a file that is
//! referenced, and a start finds it as one. How many bytes of it are live is the sum over the files
//! of the version ([`gabion_engine::Version::referenced`]); where that has nothing, nothing of the
//! tree refers to it here. Checkpoints and marks read a view of the tree, and are its readers.
//!
//! Readers of blocks ask a [`FileMap`] where a file lies, and nothing else here: a clone of it
//! costs next to nothing.

use crate::files::FileMap;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry::Vacant;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::RangeInclusive;
use gabion_base::{Error, FileId, FileKind, Result};
use gabion_engine::{FileMeta, Version};
use gabion_pool::{FilePlacement, Pool};

/// The files of a replica's pool.
pub(super) struct FileTable {
    /// Places of files that may be read. Those of segments are read by the log's own places, or as
    /// files that keep values.
    readable: FileMap,
    entries: BTreeMap<FileId, Entry>,
    /// The first segment of the log.
    log_begin: FileId,
    /// Live segments that the log has, and live ones that it has no more.
    segments: Segments,
    /// Segments that an order under way reads or writes.
    orders: BTreeMap<SegmentOrder, RangeInclusive<FileId>>,
    /// Files of former versions that no reader needs, and a shipment does.
    to_ship: Vec<FileId>,
    /// Values files that were given back and that readers have not been told of.
    freed: Vec<FileId>,
    /// The planted defect by which readers keep no values file.
    frees_under_readers: bool,
    /// The planted defect by which files of the tree keep no segment.
    trims_kept: bool,
}

/// Live segments, in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Segments {
    /// Those of the log.
    pub(super) of_log: u64,
    /// Those that the log begins behind, and that files of the tree reference.
    pub(super) referenced: u64,
}

/// An order that reads or writes segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SegmentOrder {
    /// The drain under way.
    Drain,
    /// A read for a member, by its ticket.
    Read(u64),
}

/// The references to one file, but those that follow from its number: of the log and of orders.
#[derive(Debug)]
struct Entry {
    named: Named,
    /// Files of the tree that reference it.
    of_tree: u32,
    /// Files that left the tree, are still read, and reference it.
    of_read: u32,
    /// Its place is durable.
    is_durable: bool,
    /// Nothing refers to it that a restart would find.
    is_retired: bool,
    /// What it references itself, once an edit has named it.
    references: Box<[FileId]>,
}

/// What names a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// An edit to come, maybe.
    NotYet,
    /// The tree's version.
    Tree,
    /// Former versions, which have readers.
    Former,
    /// Nothing but files that reference it, the log, or an order.
    Nothing,
}

impl Entry {
    fn new(file: FileId) -> Self {
        let named = match file.kind {
            FileKind::LogSegment => Named::Nothing,
            FileKind::Sst | FileKind::Values => Named::NotYet,
        };
        let (is_durable, is_retired, references) = (false, false, Box::default());
        Self { named, of_tree: 0, of_read: 0, is_durable, is_retired, references }
    }

    /// Whether a start must find it, be it the log's or not.
    const fn is_kept(&self) -> bool {
        matches!(self.named, Named::NotYet | Named::Tree) || self.of_tree > 0
    }

    const fn is_read(&self) -> bool {
        matches!(self.named, Named::Former) || self.of_read > 0
    }
}

impl FileTable {
    /// Of a pool without files, and a log that begins with this segment.
    pub(super) fn new(log_begin: FileId) -> Self {
        Self {
            readable: FileMap::default(),
            entries: BTreeMap::new(),
            log_begin,
            segments: Segments::default(),
            orders: BTreeMap::new(),
            to_ship: Vec::new(),
            freed: Vec::new(),
            frees_under_readers: false,
            trims_kept: false,
        }
    }

    /// Takes over the files that the pool holds, at start. Segments below the log's beginning that
    /// no file references go: the process ended between the commit with that beginning and the one
    /// that would have retired them, and no later trim comes to them. Those beyond its end, which a
    /// power cut may leave, stay, as the log comes to them again.
    ///
    /// `keeps_old` is the planted defect by which they do not go. While the replica is filled it
    /// has no log: segments are files of the state that it copies.
    ///
    /// # Errors
    /// Corruption where a file of the tree references one that the pool does not have.
    pub(super) fn open(
        pool: &mut Pool,
        version: &Version,
        log_begin: FileId,
        (keeps_old, is_filled): (bool, bool),
    ) -> Result<Self> {
        let mut table = Self::new(log_begin);
        for placement in pool.files() {
            table.insert(placement.file);
            if is_filled && let Some(entry) = table.entries.get_mut(&placement.file) {
                entry.named = Named::NotYet;
            }
            table.made_durable(placement.clone());
        }
        for (_, meta) in version.files() {
            table.enter_tree(meta, &|_| false)?;
        }
        let segments = table.entries.keys().filter(|file| file.kind == FileKind::LogSegment);
        let segments: Vec<FileId> = segments.copied().collect();
        for file in segments {
            if keeps_old && !table.keeps(file) {
                table.entries.remove(&file);
                table.segments.referenced -= 1;
            }
            table.judge(pool, file)?;
        }
        Ok(table)
    }

    /// Plants the defect by which values files go under readers, or does not.
    /// Plants as well that segments go with the log though files reference them.
    pub(super) const fn plant(&mut self, values_freed: bool, kept_trimmed: bool) {
        (self.frees_under_readers, self.trims_kept) = (values_freed, kept_trimmed);
    }

    // ---- questions

    /// Where files lie that may be read.
    pub(super) const fn readable(&self) -> &FileMap {
        &self.readable
    }

    /// The place of a file that may be read.
    pub(super) fn get(&self, file: FileId) -> Option<Arc<FilePlacement>> {
        self.readable.get(file)
    }

    /// Whether a file has a place and no edit that is applied names it.
    pub(super) fn is_unnamed(&self, file: FileId) -> bool {
        self.entries.get(&file).is_some_and(|entry| entry.named == Named::NotYet)
    }

    /// The files that have a place and that no applied edit names.
    pub(super) fn unnamed(&self) -> impl Iterator<Item = FileId> {
        let unnamed = self.entries.iter().filter(|(_, entry)| entry.named == Named::NotYet);
        unnamed.map(|(file, _)| *file)
    }

    /// Live segments, in numbers.
    pub(super) const fn segments(&self) -> Segments {
        self.segments
    }

    /// Whether all of these segments have slots.
    pub(super) fn has_all(&self, segments: RangeInclusive<FileId>) -> bool {
        let wanted = segments.end().number - segments.start().number + 1;
        let placed = self.entries.range(segments).filter(|(_, entry)| !entry.is_retired);
        placed.count() as u64 == wanted
    }

    /// The first segment of the log whose place is not durable.
    pub(super) fn first_not_durable(&self) -> Option<FileId> {
        let of_log = self.entries.range(self.log_begin..=LAST_SEGMENT);
        of_log.filter(|(_, entry)| !entry.is_durable).map(|(file, _)| *file).next()
    }

    /// Bytes of memory that it takes, about: nodes of trees are taken to be two thirds full.
    pub(super) fn memory_used(&self) -> usize {
        const NODE: usize = (size_of::<FileId>() + size_of::<Entry>()) * 3 / 2;
        let references = self.entries.values().map(|entry| size_of_val(&*entry.references));
        self.readable.memory_used() + self.entries.len() * NODE + references.sum::<usize>()
    }

    /// Whether the log has a segment: all from where it begins.
    pub(super) fn is_of_log(&self, file: FileId) -> bool {
        file.kind == FileKind::LogSegment && file >= self.log_begin
    }

    /// Whether files of the tree, or of former versions that are read, reference it.
    pub(super) fn is_referenced(&self, file: FileId) -> bool {
        self.entries.get(&file).is_some_and(|entry| entry.of_tree > 0 || entry.of_read > 0)
    }

    /// Whether a start must find a file.
    fn keeps(&self, file: FileId) -> bool {
        self.is_of_log(file) || self.entries.get(&file).is_some_and(Entry::is_kept)
    }

    // ---- places

    /// Makes a file live in its slots, with the next commit.
    ///
    /// # Errors
    /// As [`Pool::add_file`]; then nothing changes.
    pub(super) fn add(&mut self, pool: &mut Pool, placement: FilePlacement) -> Result<()> {
        let file = placement.file;
        let is_copied = file.kind == FileKind::LogSegment && !self.is_of_log(file);
        pool.add_file(placement)?;
        self.insert(file);
        if is_copied && let Some(entry) = self.entries.get_mut(&file) {
            entry.named = Named::NotYet;
        }
        Ok(())
    }

    /// Swaps the place of a damaged file for one that holds it whole, with the next commit. Readers
    /// go to the old one until then.
    ///
    /// # Errors
    /// As [`Pool::replace_file`]; then nothing changes.
    pub(super) fn replace(pool: &mut Pool, placement: FilePlacement) -> Result<()> {
        pool.replace_file(placement)
    }

    fn insert(&mut self, file: FileId) {
        // The same place once more changes nothing.
        let Vacant(vacant) = self.entries.entry(file) else { return };
        vacant.insert(Entry::new(file));
        match file.kind {
            FileKind::LogSegment if self.is_of_log(file) => self.segments.of_log += 1,
            FileKind::LogSegment => self.segments.referenced += 1,
            FileKind::Sst | FileKind::Values => {}
        }
    }

    /// The place of a file, or its new one, is durable: from here on it may be read. Returns
    /// whether it is still here.
    pub(super) fn placed(&mut self, pool: &Pool, file: FileId) -> bool {
        let is_here = self.entries.contains_key(&file);
        let placement = pool.placement(file).filter(|_| is_here);
        placement.is_some_and(|placement| self.made_durable(placement))
    }

    fn made_durable(&mut self, placement: Arc<FilePlacement>) -> bool {
        let Some(entry) = self.entries.get_mut(&placement.file) else { return false };
        entry.is_durable = true;
        self.readable.insert(placement);
        true
    }

    // ---- the tree

    /// An edit adds a file to the tree, or moves it there. One that is not here, as an edit of the
    /// same commit removes it, is left out. `is_left_out` are values files that are not here for
    /// the same reason.
    ///
    /// # Errors
    /// Corruption where it references another file that has no durable place here. Nothing changes.
    pub(super) fn enter_tree(
        &mut self,
        meta: &FileMeta,
        is_left_out: &dyn Fn(FileId) -> bool,
    ) -> Result<()> {
        let file = meta.id;
        if self.entries.get(&file).is_none_or(|entry| entry.named != Named::NotYet) {
            return Ok(());
        }
        let is_whole = |entry: &Entry| entry.is_durable && !entry.is_retired;
        let is_here = |file| self.entries.get(&file).is_some_and(is_whole);
        let is_lost = |file| !is_here(file) && !is_left_out(file);
        if let Some(lost) = meta.references.iter().find(|it| is_lost(it.file)) {
            return Err(Error::corruption(format!(
                "{file} references {} bytes of {}, which has no place here",
                lost.live_bytes, lost.file
            )));
        }
        let references = meta.references.iter().map(|it| it.file);
        let references: Box<[FileId]> = references.filter(|file| is_here(*file)).collect();
        for file in &references {
            if let Some(entry) = self.entries.get_mut(file) {
                entry.of_tree += 1;
                entry.named = Named::Nothing;
            }
        }
        if let Some(entry) = self.entries.get_mut(&file) {
            (entry.named, entry.references) = (Named::Tree, references);
        }
        Ok(())
    }

    /// An edit removes a file from the tree. Former versions may have readers of it.
    ///
    /// # Errors
    /// Not found when it is not here; the pool's.
    pub(super) fn leave_tree(&mut self, pool: &mut Pool, file: FileId) -> Result<()> {
        let Some(entry) = self.entries.get_mut(&file).filter(|entry| !entry.is_retired) else {
            return Err(Error::not_found(format!("{file} is not live in the pool")));
        };
        entry.named = Named::Former;
        for referenced in entry.references.clone() {
            if let Some(entry) = self.entries.get_mut(&referenced) {
                assert!(entry.of_tree > 0, "{referenced} was not counted for {file}");
                (entry.of_tree, entry.of_read) = (entry.of_tree - 1, entry.of_read + 1);
            }
            self.judge(pool, referenced)?;
        }
        self.judge(pool, file)
    }

    /// Values files that were given back since the last call.
    pub(super) fn take_freed(&mut self) -> Vec<FileId> {
        core::mem::take(&mut self.freed)
    }

    /// Files of former versions that lost their last reader, less those that are to be read for a
    /// shipment, and with those that no longer are.
    pub(super) fn unread(
        &mut self,
        files: Vec<FileId>,
        is_to_be_shipped: impl Fn(FileId) -> bool,
    ) -> Vec<FileId> {
        let mut files = files;
        files.append(&mut self.to_ship);
        // Files that edits of one commit added and removed were never here.
        files.retain(|file| self.entries.contains_key(file));
        (self.to_ship, files) = files.into_iter().partition(|file| is_to_be_shipped(*file));
        files
    }

    /// A file of former versions has no readers and goes.
    ///
    /// # Errors
    /// The pool's.
    pub(super) fn free_unread(&mut self, pool: &mut Pool, file: FileId) -> Result<()> {
        let Some(entry) = self.entries.get_mut(&file) else {
            return Err(Error::not_found(format!("{file} is not in the pool")));
        };
        entry.named = Named::Nothing;
        self.judge(pool, file)
    }

    /// Nothing names a file, or ever will.
    ///
    /// # Errors
    /// Not found when it is not here, or an edit has named it; the pool's.
    pub(super) fn forget(&mut self, pool: &mut Pool, file: FileId) -> Result<()> {
        let entry = self.entries.get_mut(&file).filter(|entry| entry.named == Named::NotYet);
        let Some(entry) = entry else {
            return Err(Error::not_found(format!("{file} is no file that nothing names")));
        };
        entry.named = Named::Nothing;
        self.judge(pool, file)
    }

    // ---- the log

    /// The log begins with this segment, durably.
    ///
    /// # Errors
    /// The pool's.
    pub(super) fn begin_log(&mut self, pool: &mut Pool, first: FileId) -> Result<()> {
        assert!(first >= self.log_begin, "the log's beginning goes back to {first}");
        let before = self.log_begin;
        let passed: Vec<FileId> =
            self.entries.range(before..first).map(|(file, _)| *file).collect();
        self.log_begin = first;
        self.segments.of_log -= passed.len() as u64;
        self.segments.referenced += passed.len() as u64;
        passed.into_iter().try_for_each(|file| self.judge(pool, file))
    }

    /// An order reads or writes these segments from here on. Returns where those lie that are here.
    pub(super) fn begin_order(
        &mut self,
        pool: &Pool,
        order: SegmentOrder,
        segments: RangeInclusive<FileId>,
    ) -> BTreeMap<FileId, Arc<FilePlacement>> {
        let here = self.entries.range(segments.clone()).filter(|(_, entry)| !entry.is_retired);
        let places = here.filter_map(|(file, _)| Some((*file, pool.placement(*file)?))).collect();
        let before = self.orders.insert(order, segments);
        assert!(before.is_none(), "{order:?} is under way already");
        places
    }

    /// An order is over.
    ///
    /// # Errors
    /// The pool's.
    pub(super) fn end_order(&mut self, pool: &mut Pool, order: SegmentOrder) -> Result<()> {
        let Some(segments) = self.orders.remove(&order) else { return Ok(()) };
        let left = self.entries.range(segments).filter(|(_, entry)| entry.is_retired);
        let left: Vec<FileId> = left.map(|(file, _)| *file).collect();
        left.into_iter().try_for_each(|file| self.judge(pool, file))
    }

    fn is_in_order(&self, file: FileId) -> bool {
        self.orders.values().any(|segments| segments.contains(&file))
    }

    // ---- the one place where files go

    /// A reference to a file ended: retires it if none is left that a start must find, and frees it
    /// if none is left at all.
    fn judge(&mut self, pool: &mut Pool, file: FileId) -> Result<()> {
        let (is_of_log, is_in_order) = (self.is_of_log(file), self.is_in_order(file));
        let Some(entry) = self.entries.get_mut(&file) else { return Ok(()) };
        let is_trimmed = self.trims_kept && file.kind == FileKind::LogSegment;
        if is_of_log || entry.is_kept() && !is_trimmed {
            return Ok(());
        }
        if !core::mem::replace(&mut entry.is_retired, true) {
            pool.retire_file(file)?;
            self.segments.referenced -= u64::from(file.kind == FileKind::LogSegment);
        }
        let is_lost = self.frees_under_readers && file.kind == FileKind::Values;
        if is_in_order || entry.is_read() && !is_lost {
            return Ok(());
        }
        let Some(entry) = self.entries.remove(&file) else { return Ok(()) };
        if entry.is_durable {
            self.readable.remove(file);
        }
        if file.kind != FileKind::Sst {
            self.freed.push(file);
        }
        for referenced in &entry.references {
            if let Some(entry) = self.entries.get_mut(referenced) {
                assert!(entry.of_read > 0, "{referenced} was not counted for {file}");
                entry.of_read -= 1;
            }
            self.judge(pool, *referenced)?;
        }
        pool.free_file(file)
    }

    // ---- invariants

    /// Checks what holds between steps, of few files.
    pub(super) fn invariants(&self) {
        let drain = self.orders.get(&SegmentOrder::Drain);
        assert!(
            drain.is_none_or(|segments| self.is_of_log(*segments.start())),
            "{drain:?} are drained into, and the log begins with {}",
            self.log_begin
        );
    }

    /// Checks every file against the pool and the tree.
    pub(super) fn check(&self, pool: &Pool, version: &Version) {
        let mut segments = Segments::default();
        for (file, entry) in &self.entries {
            assert!(pool.placement(*file).is_some(), "{file} is known and in no slot");
            assert_eq!(entry.is_retired, !self.keeps(*file), "{file}: {entry:?}");
            assert_eq!(self.readable.get(*file).is_some(), entry.is_durable, "{file}: {entry:?}");
            if file.kind == FileKind::LogSegment && !entry.is_retired {
                let is_of_log = self.is_of_log(*file);
                segments.of_log += u64::from(is_of_log);
                segments.referenced += u64::from(!is_of_log);
            }
        }
        assert_eq!(segments, self.segments, "segments are counted as they come and go");
        let mut live = 0;
        for placement in pool.files() {
            let file = placement.file;
            let entry = self.entries.get(&file);
            assert!(entry.is_some_and(|entry| !entry.is_retired), "{file}: {entry:?} is live");
            live += 1;
        }
        let kept = self.entries.values().filter(|entry| !entry.is_retired).count();
        assert_eq!(kept, live, "what is not retired is live in the pool");
        self.check_tree(pool, version);
    }

    fn check_tree(&self, pool: &Pool, version: &Version) {
        let named = self.entries.values().filter(|entry| entry.named == Named::Tree).count();
        assert_eq!(named, version.files().count(), "the tree's files are all known");
        for (_, meta) in version.files() {
            let entry = self.entries.get(&meta.id);
            assert!(entry.is_some_and(|entry| entry.named == Named::Tree), "{}", meta.id);
        }
        let referenced = self.entries.iter().filter(|(_, entry)| entry.of_tree > 0);
        let referenced = referenced.map(|(file, _)| *file);
        assert!(referenced.eq(version.referenced().keys().copied()), "what has live bytes is kept");
        for (file, live) in version.referenced() {
            let len = pool.placement(*file).map_or(0, |placement| placement.len);
            assert!(*live <= len, "{live} bytes of {file} are live, it has {len}");
        }
    }
}

/// The largest segment of the largest shard.
pub(super) const LAST_SEGMENT: FileId = FileId { kind: FileKind::LogSegment, number: u64::MAX };

#[cfg(test)]
mod tests;
