//! Values that a job puts apart from the tree: large ones of a flush, and those that a compaction
//! meets in files that are to be emptied. They go to values files in the order in which they are
//! met, which is that of keys; in their place is a pointer.
//!
//! ```text
//!   entry ─► keeps its value? ─ yes ──────────────────────────► Outputs
//!                  │ no: it is large, or in a file that is emptied   ▲
//!                  ▼                                                 │ pointer
//!            [read with others: `waiting`] ─► ValuesBuilder ─────────┘
//! ```
//!
//! Values of a flush that stay in the log have a pointer to there: see `kept`.
//!
//! A value keeps the sequence number that it was written with, so nothing can be written or deleted
//! meanwhile that this would undo.

use super::kept::Kept;
use super::outputs::{OUTPUT_LEN_MOST, Outputs};
use super::waiting::{Moved, Waiting};
use super::{JobInputs, JobOutput};
use crate::entry::{Entry, EntryKind, Trailer};
use crate::expiry::EXPIRY_LEN;
use crate::file::{FileSink, FileSource};
use crate::packed;
use crate::pointer::Pointer;
use crate::recipe::Recipe;
use crate::values::{RECORD_OVERHEAD_MAX, ValuesBuilder, values_file};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, GroupId, Result};

/// So many values files of a job have the length that its recipe says; the next as many are twice
/// as long, and so on: the edit has room for the descriptions of some hundred, and a flush may have
/// 1 GiB for files of 4 KiB.
const FILES_OF_LENGTH: usize = 32;
/// Files that are emptied at once: the edit names each.
pub(crate) const EMPTIED_MAX: usize = 64;

/// The values files being written, and those being emptied.
pub(super) struct Apart<'a> {
    recipe: &'a Recipe,
    group: GroupId,
    builder: Option<ValuesBuilder>,
    /// Values that stay in the log.
    kept: Kept<'a>,
    /// Number of the next file.
    next: u64,
    /// How long each of the files is that are emptied.
    lengths: BTreeMap<FileId, u64>,
    /// Entries before which values of those are to be read.
    waiting: Waiting,
    /// The pointer stored in place of the last value.
    stored: Vec<u8>,
}

impl<'a> Apart<'a> {
    /// `lengths` are those of the files to be emptied.
    ///
    /// # Errors
    /// Invalid input where values are to stay in a log that the inputs do not have.
    pub(super) fn new(
        inputs: &'a JobInputs,
        group: GroupId,
        lengths: BTreeMap<FileId, u64>,
    ) -> Result<Self> {
        let (recipe, kept) = (&inputs.recipe, Kept::new(inputs)?);
        let (builder, waiting, stored) = (None, Waiting::default(), Vec::new());
        let next = recipe.values_first();
        Ok(Self { recipe, group, builder, kept, next, lengths, waiting, stored })
    }

    /// Takes the next entry by key: writes it to `files` with a pointer to the place of its value
    /// if that lies apart, or has it wait for its value or behind others that do.
    pub(super) async fn write(
        &mut self,
        entry: &Entry<'_>,
        files: &mut Outputs<'_>,
        source: &impl FileSource,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        if !self.waiting.take(entry, self.recipe, &self.lengths)? {
            let placed = self.place(entry, None, sink, output).await?;
            return files.write::<true>(&placed, sink, output).await;
        }
        match self.waiting.is_full(self.recipe) {
            true => self.write_waiting(files, source, sink, output).await,
            false => Ok(()),
        }
    }

    /// Writes the entries that wait: before anything else is written to `files`.
    pub(super) async fn write_waiting(
        &mut self,
        files: &mut Outputs<'_>,
        source: &impl FileSource,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        let mut waiting = core::mem::take(&mut self.waiting);
        waiting.read(source, sink, &mut output.stats).await?;
        for (entry, moved) in waiting.iter() {
            let placed = self.place(&entry, moved, sink, output).await?;
            files.write::<true>(&placed, sink, output).await?;
        }
        waiting.clear();
        self.waiting = waiting;
        Ok(())
    }

    /// The entry as it is written: itself, or with a pointer to the place of its value. `moved` is
    /// the value of a pointer to a file that is emptied.
    async fn place<'e>(
        &'e mut self,
        entry: &Entry<'e>,
        moved: Option<Moved<'_>>,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<Entry<'e>> {
        let kind = entry.trailer.kind();
        let value_at = if kind.is_expiring() { EXPIRY_LEN } else { 0 };
        let pointer = match kind {
            EntryKind::Put
            | EntryKind::ExpiringPut
            | EntryKind::PackedPut
            | EntryKind::ExpiringPackedPut => {
                let value = &entry.value[value_at..];
                let raw_len = packed::len_of(kind, value)
                    .map_err(|error| error.within(format!("entry {}", entry.trailer.sequence())))?;
                match self.kept.place(entry, value, raw_len) {
                    Some(pointer) => pointer,
                    None if self.recipe.large_from == 0 => return Ok(*entry),
                    None if packed::is_large(value, raw_len, self.recipe.large_from) => {
                        self.add(entry, value, raw_len as u32, sink, output).await?
                    }
                    None => return Ok(*entry),
                }
            }
            _ => match moved {
                Some(Moved { value, raw_len }) => {
                    self.add(entry, value, raw_len, sink, output).await?
                }
                None => return Ok(*entry),
            },
        };
        self.stored.clear();
        self.stored.extend_from_slice(&entry.value[..value_at]);
        pointer.encode_to(&mut self.stored);
        let kind = if value_at > 0 { EntryKind::ExpiringPointer } else { EntryKind::Pointer };
        let trailer = Trailer::new(entry.trailer.sequence(), kind);
        Ok(Entry { key: entry.key, trailer, value: &self.stored })
    }

    /// Adds what the edit says of the segments in which values stay: they come before values files.
    pub(super) async fn describe_kept(
        self,
        source: &impl FileSource,
        output: &mut JobOutput,
    ) -> Result<()> {
        let described = self.kept.describe(self.recipe.term, source, output).await?;
        output.values.splice(..0, described);
        Ok(())
    }

    /// Adds a value to the open values file, or to the next.
    async fn add(
        &mut self,
        entry: &Entry<'_>,
        value: &[u8],
        raw_len: u32,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<Pointer> {
        let record_len = (entry.key.len() + value.len() + RECORD_OVERHEAD_MAX) as u64;
        let output_len = output_len_after(output.values.len(), self.recipe.output_len);
        let is_over = |builder: &ValuesBuilder| builder.len() + record_len > output_len;
        if self.builder.as_ref().is_some_and(is_over) {
            self.finish(sink, output).await?;
        }
        let builder = match &mut self.builder {
            Some(builder) => builder,
            none => {
                let recipe = self.recipe;
                if self.next >= recipe.output_end() {
                    return Err(Error::limit(format!(
                        "a job needs more values files than the {} that its recipe reserves from \
                         {} on",
                        recipe.output_end() - recipe.values_first(),
                        recipe.values_first()
                    )));
                }
                let capacity = output_len.max(record_len) as usize + 64 * 1024;
                let (id, buffer) = (values_file(self.next), sink.buffer(capacity));
                self.next += 1;
                none.insert(ValuesBuilder::in_buffer(self.group, id, recipe.term, buffer))
            }
        };
        Ok(builder.add(entry.key, entry.trailer, value, raw_len))
    }

    /// Ends the open file, if there is one.
    pub(super) async fn finish(
        &mut self,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        let Some(builder) = self.builder.take() else { return Ok(()) };
        let file = builder.finish();
        output.stats.bytes_written += file.meta.rounded_len();
        let before = output.values.last().map(|before| before.id);
        assert!(before < Some(file.meta.id), "{}: numbers ascend", file.meta.id);
        output.values.push(file.meta.clone());
        sink.finished(file).await
    }
}

/// The length of a values file, after so many of the job; the first have `len`.
fn output_len_after(made: usize, len: u64) -> u64 {
    let doublings = (made / FILES_OF_LENGTH).min(30);
    len.saturating_mul(1 << doublings).min(OUTPUT_LEN_MOST).max(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::units::EDIT_LEN_MAX;

    /// The longest MemTable, in the shortest files: their descriptions have room in an edit.
    #[test]
    fn values_files_become_longer_before_the_edit_is_full() {
        let (mut made, mut left) = (0, 1_u64 << 30);
        while left > 0 {
            left = left.saturating_sub(output_len_after(made, 4_096));
            made += 1;
        }
        assert!(made * 700 < EDIT_LEN_MAX / 2, "{made} files");
    }
}
