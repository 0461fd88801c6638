//! A load's place in the tree: its sequence number, its levels, its edit. See [`crate::load`].

use super::Tree;
use super::writes::check_last;
use crate::config::GRANDPARENT_OVERLAP_FILES;
use crate::edit::Edit;
use crate::file::FileMeta;
use crate::recipe::{JobKind, Recipe};
use crate::sst::{Compression, SstOptions};
use crate::version::Version;
use alloc::vec::Vec;
use gabion_base::{Error, Result, SequenceNumber, Term};

/// What a load made, for its edit.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Tenure of the primary.
    pub term: Term,
    /// Its files, ascending by key, as [`crate::LoadBuilder`] made them.
    pub files: Vec<FileMeta>,
    /// The number that [`Tree::skip_sequences`] gave to no write.
    pub sequence: SequenceNumber,
}

impl Tree {
    /// Gives the next `count` sequence numbers, of which `first` is the first, to no write of the
    /// log: one is a load's, and those of writes past the log are gone with the process that had
    /// them.
    ///
    /// # Errors
    /// Corruption when `first` does not follow the last write; limit exceeded past the last there
    /// is.
    pub fn skip_sequences(&mut self, first: SequenceNumber, count: u32) -> Result<()> {
        self.check_next(first)?;
        check_last(first, u64::from(count))?;
        self.opening = false;
        self.last_sequence = SequenceNumber(self.last_sequence.get() + u64::from(count));
        self.end_step();
        Ok(())
    }

    /// The edit that shows what was loaded, all of it at once. `number` follows that of the last
    /// edit appended to the log, and `version` is what the tree has once that is applied. Each file
    /// goes as deep as nothing of its range lies there or above, but not directly above a level of
    /// which it overlaps more than a job would be cut for: its own job would rewrite all of that at
    /// once.
    ///
    /// All that was written before the load's sequence number must be in files by then, in
    /// `version`, and no compaction may be under way: older entries must not stay above the load's,
    /// nor newer ones get below.
    ///
    /// # Errors
    /// What [`Edit::validate`] reports, for one files of several terms.
    pub fn finish_load(&self, loaded: Loaded, version: &Version, number: u64) -> Result<Edit> {
        let Loaded { term, files, sequence } = loaded;
        let numbers = || files.iter().map(|file| file.id.number);
        let (Some(first), Some(last)) = (numbers().min(), numbers().max()) else {
            return Err(Error::invalid("a load of no files"));
        };
        // As they were when the load began.
        let (compression, made_in) = files
            .first()
            .map_or((Compression::None, term), |file| (file.compression, file.id.term()));
        let recipe = Recipe {
            kind: JobKind::Load,
            term: made_in,
            memtables: Vec::new(),
            inputs: Vec::new(),
            output_level: 0,
            output_first: first,
            output_count: u32::try_from(last - first + 1).unwrap_or(u32::MAX),
            output_len: self.config.sst_len,
            cuts: Vec::new(),
            bottommost: false,
            now_ms: self.now_ms,
            floor: self.floor,
            sst: SstOptions { compression, ..self.config.sst.clone() },
            merging: None,
            parted_from: 0,
            large_from: 0,
            emptied: Vec::new(),
            kept: Vec::new(),
            kept_from: 0,
        };
        let overlap_max = GRANDPARENT_OVERLAP_FILES * self.config.sst_len;
        let numbered = |file: FileMeta| {
            let (smallest_sequence, largest_sequence) = (sequence, sequence);
            (
                deepest(version, &file, overlap_max),
                FileMeta { smallest_sequence, largest_sequence, ..file },
            )
        };
        let edit = Edit {
            number,
            kind: recipe.kind,
            term,
            removed: Vec::new(),
            added: files.into_iter().map(numbered).collect(),
            values: Vec::new(),
            flushed: None,
            next_file: recipe.output_end(),
            floor: (recipe.floor > SequenceNumber::ZERO).then_some(recipe.floor),
            recipe: Some(recipe),
        };
        edit.validate()?;
        Ok(edit)
    }

    /// What expires of a load comes in files and was in no batch.
    pub(super) fn note_loaded(&mut self, edit: &Edit) {
        let expires = |(_, file): &&(u8, FileMeta)| file.expiry.is_some();
        if edit.kind == JobKind::Load
            && let Some((_, file)) = edit.added.iter().find(expires)
        {
            self.due.came_in_files(file.largest_sequence);
        }
    }
}

/// The deepest level at which nothing of the file's range lies, nor above it, and no more than so
/// many bytes in the level below it; L0 where there is none. From a level further up, as out of L0,
/// it goes down in parts that overlap no more than that.
fn deepest(version: &Version, file: &FileMeta, overlap_max: u64) -> u8 {
    let is_wide = |level: &u8| {
        let below = version.overlapping(level + 1, &file.smallest, &file.largest);
        below.iter().map(|file| file.len).sum::<u64>() > overlap_max
    };
    let is_free = |level: &u8| {
        version.files_within(*level..*level + 1, &file.smallest, &file.largest).next().is_none()
    };
    (0..version.level_count())
        .take_while(is_free)
        .filter(|level| !is_wide(level))
        .last()
        .unwrap_or(0)
}
