//! How much of each values file and log segment the files of a version need: the sum of what their
//! descriptions say. It is derived and never stored. A version whose files reference nothing shares
//! one empty map with the next.

use crate::file::{FileMeta, FileReference};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use gabion_base::FileId;

/// Live bytes by file; only files of which anything is live.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Referenced(Arc<BTreeMap<FileId, u64>>);

impl Referenced {
    /// Of these files together.
    pub(super) fn of<'f>(files: impl Iterator<Item = &'f FileMeta>) -> Self {
        let mut sums = Self::default();
        for file in files.filter(|file| !file.references.is_empty()) {
            sums.add(file);
        }
        sums
    }

    /// After an edit that adds and removes these files. One that it moves is among both.
    pub(super) fn after<'f>(
        &self,
        added: impl Iterator<Item = &'f FileMeta>,
        gone: impl Iterator<Item = &'f FileMeta>,
    ) -> Self {
        let mut sums = self.clone();
        let counts = |file: &&FileMeta| !file.references.is_empty();
        added.filter(counts).for_each(|file| sums.add(file));
        gone.filter(counts).for_each(|file| sums.remove(file));
        sums
    }

    pub(super) fn as_map(&self) -> &BTreeMap<FileId, u64> {
        &self.0
    }

    /// A description says at most 2^31 bytes of each file, and no version has 2^33 files.
    fn add(&mut self, file: &FileMeta) {
        let sums = Arc::make_mut(&mut self.0);
        for &FileReference { file, live_bytes } in &file.references {
            let sum = sums.entry(file).or_default();
            assert!(*sum <= u64::MAX - live_bytes, "live bytes of {file} are a number");
            *sum += live_bytes;
        }
    }

    fn remove(&mut self, file: &FileMeta) {
        let sums = Arc::make_mut(&mut self.0);
        for &FileReference { file, live_bytes } in &file.references {
            let before = sums.get(&file).copied().unwrap_or_default();
            assert!(before >= live_bytes, "more of {file} goes than was counted");
            match before - live_bytes {
                0 => sums.remove(&file),
                left => sums.insert(file, left),
            };
        }
    }
}
