//! Files on their way from the primary to secondaries, and the memory that they keep. It is counted
//! as it changes, since it holds jobs back and every turn asks.

use crate::work::BuiltFile;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use bytes::Bytes;
use gabion_base::{FileId, ReplicaId};
use gabion_engine::FileMeta;

/// A file that some secondary is to get.
pub(super) struct Outgoing {
    pub meta: Arc<FileMeta>,
    /// In memory since it was built, or read back to be shipped again.
    pub bytes: Option<Bytes>,
    /// Bytes of memory that `bytes` keeps.
    pub memory: u64,
    /// It frees a MemTable, for which writes may wait, so it goes before all other files.
    pub is_flush: bool,
    pub reading: bool,
    /// Members that it was sent to, with or without success.
    tried: BTreeSet<ReplicaId>,
    pub held_by: BTreeSet<ReplicaId>,
    /// Members that have lost it and whose edits name it.
    pub wanted_by: BTreeSet<ReplicaId>,
    /// Its edit is not applied here yet: every secondary must hold it.
    pub of_job: bool,
}

impl Outgoing {
    /// A file that was built.
    pub(super) fn built(file: &BuiltFile, is_flush: bool) -> Self {
        let (bytes, memory) = (Some(file.bytes.clone()), file.memory);
        Self { bytes, memory, is_flush, of_job: true, ..Self::of(file.meta.clone()) }
    }

    /// A file that was built, and that only a member gets that is being filled.
    pub(super) fn besides(file: &BuiltFile, is_flush: bool, to: ReplicaId) -> Self {
        let wanted_by = BTreeSet::from([to]);
        Self { of_job: false, wanted_by, ..Self::built(file, is_flush) }
    }

    /// A file that is here, to be shipped again to a member that has lost it.
    pub(super) fn lost(meta: Arc<FileMeta>, by: ReplicaId) -> Self {
        Self { wanted_by: BTreeSet::from([by]), ..Self::of(meta) }
    }

    fn of(meta: Arc<FileMeta>) -> Self {
        let (tried, held_by, wanted_by) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        let (reading, is_flush, of_job) = (false, false, false);
        Self { meta, bytes: None, memory: 0, is_flush, reading, tried, held_by, wanted_by, of_job }
    }

    /// Whether a secondary is to be sent it: one that counts without asking for it.
    pub(super) fn is_lacking_at(&self, member: ReplicaId, counts: bool) -> bool {
        let is_awaited = counts && self.of_job && !self.held_by.contains(&member);
        is_awaited || self.wanted_by.contains(&member)
    }

    /// Bytes of memory that are kept for its sake.
    fn kept(&self) -> u64 {
        if self.bytes.is_some() { self.memory } else { 0 }
    }

    /// Whether nobody is to be sent it any more.
    fn is_done(&self) -> bool {
        !self.of_job && self.wanted_by.is_empty()
    }
}

/// All outgoing files; a file leaves once no member is to be sent it.
#[derive(Default)]
pub(super) struct OutgoingFiles {
    files: BTreeMap<FileId, Outgoing>,
    kept: u64,
    kept_of_flushes: u64,
}

impl OutgoingFiles {
    pub(super) fn get(&self, file: FileId) -> Option<&Outgoing> {
        self.files.get(&file)
    }

    /// Whether its bytes are to be read here before it can be sent.
    pub(super) fn is_to_be_read(&self, file: FileId) -> bool {
        self.get(file).is_some_and(|outgoing| outgoing.bytes.is_none())
    }

    /// Whether nobody has begun to read such a file.
    pub(super) fn is_unread(&self, file: FileId) -> bool {
        self.get(file).is_some_and(|outgoing| outgoing.bytes.is_none() && !outgoing.reading)
    }

    /// Whether a file is being read for a member that asked for it, or is in memory for it.
    pub(super) fn is_read_for(&self, file: FileId, member: ReplicaId) -> bool {
        let is_read = |it: &&Outgoing| it.reading || it.bytes.is_some();
        self.get(file).filter(is_read).is_some_and(|it| it.wanted_by.contains(&member))
    }

    pub(super) fn is_flush(&self, file: FileId) -> bool {
        self.get(file).is_some_and(|outgoing| outgoing.is_flush)
    }

    /// Files that a secondary is to be sent, in the order of their numbers.
    pub(super) fn lacking_at(
        &self,
        member: ReplicaId,
        counts: bool,
    ) -> impl Iterator<Item = FileId> {
        let files = self.files.iter().filter(move |(_, file)| file.is_lacking_at(member, counts));
        files.map(|(id, _)| *id)
    }

    /// Adds a file, in place of its earlier entry.
    pub(super) fn insert(&mut self, file: FileId, outgoing: Outgoing) {
        self.remove(file);
        self.kept += outgoing.kept();
        self.kept_of_flushes += if outgoing.is_flush { outgoing.kept() } else { 0 };
        self.files.insert(file, outgoing);
    }

    pub(super) fn remove(&mut self, file: FileId) -> Option<Outgoing> {
        let outgoing = self.files.remove(&file)?;
        self.kept -= outgoing.kept();
        self.kept_of_flushes -= if outgoing.is_flush { outgoing.kept() } else { 0 };
        Some(outgoing)
    }

    /// Notes that a file is sent to a secondary. Returns whether it was before.
    pub(super) fn note_sent(&mut self, file: FileId, to: ReplicaId) -> bool {
        self.files.get_mut(&file).is_some_and(|outgoing| !outgoing.tried.insert(to))
    }

    /// Changes a file, if it is there. It leaves if no member is to be sent it then.
    pub(super) fn change(&mut self, file: FileId, change: impl FnOnce(&mut Outgoing)) {
        let Some(mut outgoing) = self.remove(file) else { return };
        change(&mut outgoing);
        if !outgoing.is_done() {
            self.insert(file, outgoing);
        }
    }

    /// A secondary is gone. It will ask again for the files that it lacks.
    pub(super) fn forget_wishes_of(&mut self, member: ReplicaId) {
        let wanted = self.files.iter().filter(|(_, file)| file.wanted_by.contains(&member));
        let wanted: alloc::vec::Vec<FileId> = wanted.map(|(id, _)| *id).collect();
        for file in wanted {
            self.change(file, |outgoing| _ = outgoing.wanted_by.remove(&member));
        }
    }

    /// Bytes of memory that all of them keep.
    pub(super) const fn kept(&self) -> u64 {
        self.kept
    }

    /// Bytes of memory that files of flushes keep.
    pub(super) const fn kept_of_flushes(&self) -> u64 {
        self.kept_of_flushes
    }

    /// Checks the count of memory against the files.
    pub(super) fn invariants(&self) {
        assert!(self.kept_of_flushes <= self.kept, "flushes keep a part");
        if cfg!(debug_assertions) {
            let kept: u64 = self.files.values().map(Outgoing::kept).sum();
            assert_eq!(self.kept, kept, "bytes of memory are counted as they change");
        }
    }

    /// Bytes of memory that one file keeps.
    pub(super) fn kept_of(&self, file: FileId) -> u64 {
        self.get(file).map_or(0, Outgoing::kept)
    }
}
