//! The values files of a version: those that its SSTs reference, with their descriptions. An edit
//! brings one with the SSTs that reference it, and it goes with the last of them. A segment of the
//! log in which a flush left values is one of them.

use super::referenced::Referenced;
use crate::edit::Edit;
use crate::file::FileMeta;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::{EDIT_LEN_MAX, SLOT_LEN};
use gabion_base::{Error, FileId, FileKind, Result};

/// Values files, and what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ValuesStats {
    /// Files, those that were segments of the log included.
    pub files: u64,
    /// Segments of the log among them: they keep the values that were logged there.
    pub segments: u64,
    /// Bytes of files.
    pub file_bytes: u64,
    /// Bytes of all values in them, and of segments all bytes: what else these hold is there for
    /// the sake of the values that live.
    pub value_bytes: u64,
    /// Bytes of the values that SSTs have pointers to. The others are dead. A value that was
    /// replaced counts until a compaction has met both.
    pub live_bytes: u64,
    /// Bytes of the values in them that nothing leads to: of segments those that edits described.
    pub replaced_bytes: u64,
    /// Group time of the job by whose edit the oldest of the dead values was found to be so; none
    /// where none is known: a tree that was opened learns it with its next edits.
    pub garbage_since_ms: Option<u64>,
}

impl ValuesStats {
    /// Bytes of values that nothing leads to, and of whatever else segments hold.
    #[must_use]
    pub const fn dead_bytes(&self) -> u64 {
        self.value_bytes - self.live_bytes
    }
}

/// By number. A version that has the same shares them with the one before.
#[derive(Clone, Debug, Default)]
pub(super) struct ValuesFiles {
    files: Arc<BTreeMap<FileId, Arc<FileMeta>>>,
    /// Since when files have garbage, in group time. Not in snapshots.
    since_ms: Arc<BTreeMap<FileId, u64>>,
    stats: ValuesStats,
    slots: u64,
}

impl ValuesFiles {
    pub(super) fn get(&self, file: FileId) -> Option<&Arc<FileMeta>> {
        self.files.get(&file)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<FileMeta>> {
        self.files.values()
    }

    /// Those that `next` does not have.
    pub(super) fn gone_in<'a>(&'a self, next: &'a Self) -> impl Iterator<Item = FileId> + 'a {
        let is_same = Arc::ptr_eq(&self.files, &next.files);
        let files = self.files.keys().filter(move |_| !is_same);
        files.filter(|file| !next.files.contains_key(file)).copied()
    }

    pub(super) const fn stats(&self) -> ValuesStats {
        self.stats
    }

    /// Slots that they take in a pool.
    pub(super) const fn slots(&self) -> u64 {
        self.slots
    }

    pub(super) fn memory_used(&self) -> usize {
        const NODE: usize = size_of::<(FileId, Arc<FileMeta>)>() * 3 / 2;
        let since = self.since_ms.len() * size_of::<(FileId, u64)>() * 2;
        self.files.values().map(|file| file.memory_used() + NODE).sum::<usize>() + since
    }

    /// After an edit, of a version whose files reference `referenced` then.
    ///
    /// # Errors
    /// Corruption when it adds one that is there, or references one that is not, or more of one
    /// than it has.
    pub(super) fn after(&self, edit: &Edit, referenced: &Referenced) -> Result<Self> {
        let sums = referenced.as_map();
        let known = |file: FileId| self.get(file).map(|meta| &**meta);
        let brought = |file: FileId| edit.values.iter().find(|meta| meta.id == file);
        for (_, reference) in edit
            .added
            .iter()
            .flat_map(|(_, meta)| meta.references.iter().map(move |reference| (meta.id, reference)))
        {
            let file = reference.file;
            let live = sums.get(&file).copied().unwrap_or_default();
            let meta = known(file).or_else(|| brought(file));
            if meta.is_none_or(|meta| live > meta.raw_value_bytes) {
                let has = meta.map_or(0, |meta| meta.raw_value_bytes);
                return Err(Error::corruption(format!(
                    "edit {}: {live} bytes of {file} are referenced, which has {has}",
                    edit.number
                )));
            }
        }
        if let Some(again) = edit.values.iter().find(|meta| self.files.contains_key(&meta.id)) {
            return Err(Error::corruption(format!(
                "edit {}: adds a file that is already there: {}",
                edit.number, again.id
            )));
        }
        let stays = |file: &FileId| sums.contains_key(file);
        let mut files = self.files.clone();
        if !edit.values.is_empty() || !self.files.keys().all(stays) {
            let changed = Arc::make_mut(&mut files);
            let brought = edit.values.iter().map(|meta| (meta.id, Arc::new(meta.clone())));
            changed.extend(brought);
            changed.retain(|file, _| stays(file));
        }
        let now_ms = edit.recipe.as_ref().map(|recipe| recipe.now_ms);
        let mut values = Self::with(files, referenced);
        values.note_garbage(&self.since_ms, referenced, now_ms);
        Ok(values)
    }

    /// Notes since when files have garbage; those before said so `known`.
    fn note_garbage(
        &mut self,
        known: &Arc<BTreeMap<FileId, u64>>,
        referenced: &Referenced,
        now_ms: Option<u64>,
    ) {
        if self.stats.dead_bytes() == 0 && known.is_empty() {
            return;
        }
        let live = |file: &FileId| referenced.as_map().get(file).copied().unwrap_or_default();
        let with_garbage =
            self.files.iter().filter(|(file, meta)| live(file) < meta.raw_value_bytes);
        let since = |(file, _): (&FileId, &Arc<FileMeta>)| {
            Some((*file, known.get(file).copied().or(now_ms)?))
        };
        self.since_ms = Arc::new(with_garbage.filter_map(since).collect());
        self.stats.garbage_since_ms = self.since_ms.values().min().copied();
    }

    fn with(files: Arc<BTreeMap<FileId, Arc<FileMeta>>>, referenced: &Referenced) -> Self {
        let mut stats = ValuesStats::default();
        let mut slots = 0;
        for (file, meta) in &*files {
            stats.files += 1;
            stats.segments += u64::from(file.kind == FileKind::LogSegment);
            stats.file_bytes += meta.rounded_len();
            stats.value_bytes += meta.held_value_bytes();
            let live = referenced.as_map().get(file).copied().unwrap_or_default();
            stats.live_bytes += live;
            stats.replaced_bytes += meta.raw_value_bytes.saturating_sub(live);
            slots += meta.rounded_len().div_ceil(SLOT_LEN);
        }
        Self { files, since_ms: Arc::default(), stats, slots }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_varint(self.files.len() as u64);
        for file in self.files.values() {
            let mut meta = Vec::new();
            file.encode(&mut meta);
            out.put_prefixed(&meta);
        }
    }

    /// Reads the values files of a version whose files reference `referenced`; none if `reader` is
    /// at its end.
    ///
    /// # Errors
    /// Corruption, too when they are not those that are referenced.
    pub(super) fn decode(reader: &mut Reader<'_>, referenced: &Referenced) -> Result<Self> {
        let mut files = BTreeMap::new();
        let count = if reader.is_empty() { 0 } else { reader.varint()? };
        for _ in 0..count {
            let meta = FileMeta::decode(reader.prefixed(EDIT_LEN_MAX)?)?;
            if files.last_key_value().is_some_and(|(last, _)| *last >= meta.id) {
                return Err(Error::corruption(format!("version: {} does not ascend", meta.id)));
            }
            files.insert(meta.id, Arc::new(meta));
        }
        let values = Self::with(Arc::new(files), referenced);
        values.check(referenced)?;
        Ok(values)
    }

    /// Checks that they are those that are referenced, and have as much.
    pub(super) fn check(&self, referenced: &Referenced) -> Result<()> {
        let mut wanted = referenced.as_map().iter();
        for (file, meta) in &*self.files {
            let next = wanted.next();
            let fits =
                |(wanted, live): (&FileId, &u64)| wanted == file && *live <= meta.raw_value_bytes;
            if !next.is_some_and(fits) {
                return Err(Error::corruption(format!(
                    "version: has {file} of {} bytes, references {next:?}",
                    meta.raw_value_bytes
                )));
            }
        }
        match wanted.next() {
            None => Ok(()),
            Some((file, live)) => Err(Error::corruption(format!(
                "version: references {live} bytes of {file}, which it does not have"
            ))),
        }
    }
}
