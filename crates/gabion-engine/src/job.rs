//! Runs a job: merges the inputs of a recipe, drops what nobody can see, and cuts the rest into
//! files.
//!
//! ```text
//!  MemTables ─┐
//!  L0 files  ─┼─► Merge ─► Visibility (shadowed? cleared? expired? tombstone?) ─► Outputs ─► FileSink
//!  Ln files  ─┘              │     ▲                                       cut by length, by `cuts`
//!                            ▼     │
//!                           Fold (operands of a counter become one, or the value)
//! ```
//!
//! Before `Outputs`, values may go apart into values files: see `apart`.
//!
//! Range deletes do not go through the merge: those of all inputs are read first and cut into
//! fragments. They hide entries like tombstones of each key; what has to stay of them goes to the
//! outputs, each of which has the part that lies between it and its neighbours
//! ([`crate::range_delete`]).
//!
//! The future yields only in reads of the source and in the sink, and depends on nothing but the
//! recipe and the inputs: on any thread, at any replica, it makes the same bytes (docs/faults.md
//! E13).

use crate::counter::{Base, Operand, stored_number};
use crate::entry::{Entry, EntryKind, Trailer};
use crate::expiry::expiry_of;
use crate::file::{FileMeta, FileSink, FileSource, noted};
use crate::memtable::{MemTable, MemTableIter};
use crate::merge::{Cursor, Merge};
use crate::places::{LogLayout, Places};
use crate::range_delete::Fragments;
use crate::recipe::{JobKind, Recipe};
use crate::sst::{SstReader, SstScan};
use crate::version::is_of_run;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::units::TRANSFER_LEN_MAX;
use gabion_base::{Error, GroupId, Result, SequenceNumber};

/// A job to be run, with everything that it reads. Can be sent to a thread.
pub struct JobInputs {
    /// What to do.
    pub recipe: Recipe,
    /// The MemTables that the recipe names.
    pub memtables: Vec<Arc<MemTable>>,
    /// The files that the recipe names, in its order; their slots are not used anew while the job
    /// has them.
    pub files: Vec<(u8, Arc<FileMeta>)>,
    /// The files that the recipe has emptied of values, in its order. Those of `files` keep their
    /// slots.
    pub emptied: Vec<Arc<FileMeta>>,
    /// Of a flush: where the log has large values, as it is cut into files.
    pub places: Arc<Places>,
    /// How the log is cut into files, where values may stay in it.
    pub layout: Option<LogLayout>,
}

/// What a job read and wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobStats {
    /// Bytes of input files, or memory of MemTables.
    pub bytes_read: u64,
    /// Bytes of output files, rounded to blocks.
    pub bytes_written: u64,
    /// Entries read.
    pub entries_in: u64,
    /// Entries written.
    pub entries_out: u64,
}

/// What a job made: all that an edit needs.
#[derive(Clone, Debug)]
pub struct JobOutput {
    /// What was done.
    pub recipe: Recipe,
    /// Files that enter a level.
    pub added: Vec<(u8, FileMeta)>,
    /// Values files that these reference, and before them segments of the log.
    pub values: Vec<FileMeta>,
    /// What it took.
    pub stats: JobStats,
}

impl JobInputs {
    /// Bytes that the job reads, at most.
    #[must_use]
    pub fn input_len(&self) -> u64 {
        let tables: u64 = self.memtables.iter().map(|table| table.memory_used() as u64).sum();
        tables + self.files.iter().map(|(_, file)| file.len).sum::<u64>()
    }

    /// How long the outputs become.
    pub(crate) fn outgoing(&self) -> Outgoing {
        let recipe = &self.recipe;
        let files = self.files.iter().map(|(_, file)| &**file);
        let of_files = Outgoing::of_files(files, recipe.sst.compression);
        let all = self.memtables.iter().fold(of_files, |all, table| all.and_table(table));
        match recipe.writes_values() {
            true => all.and_values(self.moved_len(), recipe.output_len),
            false => all,
        }
    }

    /// Bytes of values that are copied out of the files to be emptied.
    #[must_use]
    pub fn moved_len(&self) -> u64 {
        let references = self.files.iter().flat_map(|(_, file)| &file.references);
        let moved = |file| self.recipe.emptied.binary_search(&file).is_ok();
        references.filter(|it| moved(it.file)).map(|it| it.live_bytes).sum()
    }

    /// Bytes that were written for what the job takes out of L0: of its files there, and of the
    /// values to which these lead.
    #[must_use]
    pub fn level0_len(&self) -> u64 {
        let files = self.files.iter().filter(|(level, _)| *level == 0).map(|(_, file)| file);
        let values = |file: &FileMeta| file.references.iter().map(|it| it.live_bytes).sum::<u64>();
        files.map(|file| file.len.saturating_add(values(file))).fold(0, u64::saturating_add)
    }

    /// Bytes of large values in the MemTables of a flush. May differ between replicas.
    #[must_use]
    pub fn large_len(&self) -> u64 {
        self.memtables.iter().map(|table| table.large_bytes() as u64).sum()
    }

    /// Whether values go apart, or pointers pass: else no entry need be looked at for it.
    fn has_apart(&self) -> bool {
        self.recipe.writes_values()
            || !self.recipe.kept.is_empty()
            || self.files.iter().any(|(_, file)| !file.references.is_empty())
    }

    /// Most slots that the outputs can take.
    #[must_use]
    pub fn slots_max(&self) -> u64 {
        self.slots_by(|all, cuts| all.slots_max(self.recipe.output_len, cuts))
    }

    /// Whether there is room for it.
    pub(crate) fn fits(&self, room: Room) -> bool {
        let (len, cuts) = (self.recipe.output_len, self.cuts());
        !self.recipe.kind.makes_files() || self.outgoing().fits(len, cuts, room)
    }

    /// Slots that it is given where there is room.
    pub(crate) fn slots(&self, room: Room) -> u64 {
        self.slots_by(|all, cuts| all.given(self.recipe.output_len, cuts, room))
    }

    fn slots_by(&self, by: impl Fn(Outgoing, u64) -> u64) -> u64 {
        if !self.recipe.kind.makes_files() {
            return 0;
        }
        by(self.outgoing(), self.cuts())
    }

    /// Where files end besides where they are full, at most.
    fn cuts(&self) -> u64 {
        let parts = if self.recipe.parted_from > 0 { crate::tree::PARTS } else { 0 };
        self.recipe.cuts.len() as u64 + parts
    }

    fn check(&self) -> Result<()> {
        self.recipe.validate()?;
        let named = self.memtables.iter().map(|table| table.id());
        let files = self.files.iter().map(|(level, file)| (*level, file.id));
        if named.eq(self.recipe.memtables.iter().copied())
            && files.eq(self.recipe.inputs.iter().copied())
            && self.emptied.iter().map(|file| file.id).eq(self.recipe.emptied.iter().copied())
        {
            return Ok(());
        }
        Err(Error::invalid("a job's inputs are not those of its recipe"))
    }
}

/// Runs a job. Files go to `sink` in key order as they are finished.
///
/// # Errors
/// Corruption of an input; what source or sink report; limit exceeded when the reserved file
/// numbers do not suffice; invalid input when what has to be in one file is longer than a file may
/// be, which it will be again. Nothing counts then: files already handed over belong to no edit.
pub async fn run_job(
    inputs: &JobInputs,
    group: GroupId,
    source: &impl FileSource,
    sink: &mut impl FileSink,
) -> Result<JobOutput> {
    inputs.check()?;
    let recipe = &inputs.recipe;
    let mut output = JobOutput {
        recipe: recipe.clone(),
        added: Vec::new(),
        values: Vec::new(),
        stats: JobStats::default(),
    };
    match recipe.kind {
        JobKind::Drop => {}
        JobKind::Load => return Err(only_as_bytes()),
        JobKind::TrivialMove => {
            let moved =
                inputs.files.iter().map(|(_, file)| (recipe.output_level, (**file).clone()));
            output.added = moved.collect();
        }
        JobKind::Flush | JobKind::Compaction => {
            // Apart, so that entries of jobs without large values are not looked at for them.
            if inputs.has_apart() {
                merge_inputs::<true>(inputs, group, source, sink, &mut output).await?;
            } else {
                merge_inputs::<false>(inputs, group, source, sink, &mut output).await?;
            }
        }
    }
    Ok(output)
}

/// The answer to the recipe of a load.
#[cold]
pub(crate) fn only_as_bytes() -> Error {
    Error::unsupported(
        "the files of a load are made of a client's input, they are had as bytes alone",
    )
}

async fn merge_inputs<const APART: bool>(
    inputs: &JobInputs,
    group: GroupId,
    source: &impl FileSource,
    sink: &mut impl FileSink,
    output: &mut JobOutput,
) -> Result<()> {
    let recipe = &inputs.recipe;
    let ranges = ranges::of_inputs(inputs, group, source).await?;
    let (files, hidden_len) = ranges::without_hidden(inputs, &ranges);
    let input_len = inputs.input_len();
    assert!(hidden_len <= input_len, "what is hidden is part of what is there");
    output.stats.bytes_read = input_len - hidden_len;
    let mut merge = Merge::new(open_inputs(inputs, &files, group, source).await?);
    let mut visibility = Visibility::new(recipe, &ranges);
    let mut files = Outputs::new(inputs, group, ranges::kept(recipe, &ranges));
    let lengths = inputs.emptied.iter().map(|file| (file.id, file.len)).collect();
    let mut apart = Apart::new(inputs, group, lengths)?;
    while let Some(entry) = merge.entry() {
        output.stats.entries_in += 1;
        if visibility.is_folding() {
            for made in visibility.go_on_folding(&entry)? {
                let made = made.entry(&visibility.folding_key);
                if APART {
                    apart.write(&made, &mut files, source, sink, output).await?;
                } else {
                    files.write::<APART>(&made, sink, output).await?;
                }
            }
        }
        if let Some(kept) = visibility.keep(&entry)? {
            if APART {
                apart.write(&kept, &mut files, source, sink, output).await?;
            } else {
                files.write::<APART>(&kept, sink, output).await?;
            }
        }
        merge.advance().await?;
    }
    apart.write_waiting(&mut files, source, sink, output).await?;
    // Operands are left where the last key had nothing else; they never go apart.
    for made in visibility.end_folding()? {
        files.write::<APART>(&made.entry(&visibility.folding_key), sink, output).await?;
    }
    apart.finish(sink, output).await?;
    files.finish(sink, output).await?;
    apart.describe_kept(source, output).await?;
    let JobStats { entries_in, entries_out, .. } = output.stats;
    assert!(entries_out <= entries_in, "a job makes no entries");
    Ok(())
}

/// One cursor for each MemTable, each run of L0 and each other level.
async fn open_inputs<'a, S: FileSource>(
    inputs: &'a JobInputs,
    files: &'a [(u8, Arc<FileMeta>)],
    group: GroupId,
    source: &'a S,
) -> Result<Vec<Input<'a, S>>> {
    let mut cursors = Vec::new();
    for table in &inputs.memtables {
        let mut iter = table.iter();
        iter.seek_to_first();
        cursors.push(Input::Table(iter));
    }
    // A recipe may name files of L0 in another order: then each has a cursor of its own, and the
    // bytes are the same.
    for run in files.chunk_by(|a, b| a.0 == b.0 && (a.0 > 0 || is_of_run(&a.1, &b.1))) {
        let mut level = LevelScan { files: run, current: None, group, source };
        level.advance().await?;
        cursors.push(Input::Level(level));
    }
    Ok(cursors)
}

#[expect(clippy::large_enum_variant, reason = "a handful per merge; a box would cost each entry")]
enum Input<'a, S: FileSource> {
    Table(MemTableIter),
    Level(LevelScan<'a, S>),
}

impl<S: FileSource> Cursor for Input<'_, S> {
    #[inline]
    fn entry(&self) -> Option<Entry<'_>> {
        match self {
            Self::Table(iter) => iter.entry(),
            Self::Level(level) => level.current.as_ref()?.entry(),
        }
    }

    #[inline]
    async fn advance(&mut self) -> Result<()> {
        match self {
            Self::Table(iter) => {
                iter.advance();
                Ok(())
            }
            Self::Level(level) => level.advance().await,
        }
    }
}

/// Disjoint files one after the other, each opened when its turn comes.
struct LevelScan<'a, S: FileSource> {
    /// Not opened yet.
    files: &'a [(u8, Arc<FileMeta>)],
    current: Option<SstScan<'a, &'a S>>,
    group: GroupId,
    source: &'a S,
}

impl<S: FileSource> LevelScan<'_, S> {
    #[inline]
    async fn advance(&mut self) -> Result<()> {
        if let Some(scan) = &mut self.current {
            let advanced = scan.advance().await;
            if noted(self.source, scan.file(), advanced)? {
                return Ok(());
            }
        }
        self.next_file().await
    }

    async fn next_file(&mut self) -> Result<()> {
        self.current = None;
        while let Some(((_, meta), rest)) = self.files.split_first() {
            self.files = rest;
            let opened = SstReader::open(self.source, self.group, meta).await;
            let reader = Arc::new(noted(self.source, meta.id, opened)?);
            let mut scan = SstScan::new(reader, self.source, &[], None, TRANSFER_LEN_MAX);
            let advanced = scan.advance().await;
            if noted(self.source, meta.id, advanced)? {
                self.current = Some(scan);
                break;
            }
        }
        Ok(())
    }
}

/// Which entries somebody can still see.
///
/// Readers are those after the job alone: those before keep the version of the tree that they
/// began with. So of each key the newest entry counts, and what is added to it.
///
/// A value that has expired by the recipe's group time is a tombstone to them, as group time is
/// past that before the job's edit is applied.
struct Visibility<'a> {
    recipe: &'a Recipe,
    /// The key of the last entry seen, if one was.
    key: Option<Vec<u8>>,
    /// The operands of the last entry's key, as long as nothing was met that they are added to.
    fold: Option<Fold>,
    /// The key that was folded last.
    folding_key: Vec<u8>,
    /// What range deletes hide.
    hiding: Hiding<'a>,
}

impl<'a> Visibility<'a> {
    fn new(recipe: &'a Recipe, ranges: &'a Fragments) -> Self {
        Self { recipe, key: None, fold: None, folding_key: Vec::new(), hiding: Hiding::new(ranges) }
    }

    /// Whether an entry is deleted with its range or with its keyspace.
    #[inline]
    fn is_hidden(&mut self, key: &[u8], sequence: SequenceNumber) -> bool {
        is_below_floor(key, sequence, self.recipe.floor) || self.hiding.hides(key, sequence)
    }

    /// Whether a newer entry of the same key came before this one, which is then of no use.
    #[inline]
    fn is_shadowed(&mut self, entry: &Entry<'_>) -> bool {
        let Some(key) = &mut self.key else {
            self.key = Some(entry.key.to_vec());
            return false;
        };
        if *key == entry.key {
            return true;
        }
        key.clear();
        key.extend_from_slice(entry.key);
        false
    }

    /// What is to be written of an entry, if anything.
    #[inline]
    fn keep<'e>(&mut self, entry: &Entry<'e>) -> Result<Option<Entry<'e>>> {
        let sequence = entry.trailer.sequence();
        if self.is_shadowed(entry) || self.is_hidden(entry.key, sequence) {
            return Ok(None);
        }
        match entry.trailer.kind() {
            EntryKind::Put | EntryKind::Pointer | EntryKind::PackedPut => Ok(Some(*entry)),
            EntryKind::ExpiringPut | EntryKind::ExpiringPointer | EntryKind::ExpiringPackedPut => {
                let (expiry, _) = expiry_of(entry.trailer, entry.value)?;
                if !self.is_gone(expiry) {
                    return Ok(Some(*entry));
                }
                let trailer = Trailer::new(sequence, EntryKind::Delete);
                let tombstone = Entry { key: entry.key, trailer, value: &[] };
                Ok(is_tombstone_wanted(self.recipe).then_some(tombstone))
            }
            EntryKind::Delete => Ok(is_tombstone_wanted(self.recipe).then_some(*entry)),
            EntryKind::Merge => self.begin_folding(entry).map(|()| None),
            other => Err(no_rule(other, sequence)),
        }
    }

    /// Whether a value that expires at `expiry` counts as deleted for whoever comes: its time has
    /// passed, and no operand lies above that was written before.
    fn is_gone(&self, expiry: Option<u64>) -> bool {
        let above_from_ms = self.recipe.merging.and_then(|merging| merging.above_from_ms);
        let by_ms = self.recipe.now_ms.min(above_from_ms.unwrap_or(u64::MAX));
        expiry.is_some_and(|at| at <= by_ms)
    }

    /// Whether what operands are added to is still looked for.
    #[inline]
    const fn is_folding(&self) -> bool {
        self.fold.is_some()
    }

    #[cold]
    fn begin_folding(&mut self, entry: &Entry<'_>) -> Result<()> {
        let sequence = entry.trailer.sequence();
        let Some(merging) = self.recipe.merging else {
            return Err(Error::corruption(format!(
                "operand {sequence} among the inputs of a recipe that names no merge operator"
            )));
        };
        assert!(self.fold.is_none(), "operand {sequence}: those of the key before were written");
        let mut fold = Fold::new(merging.expiries);
        let _first = fold.push_older(sequence, Operand::decode(entry.value)?);
        self.folding_key.clear();
        self.folding_key.extend_from_slice(entry.key);
        self.fold = Some(fold);
        Ok(())
    }

    /// The next entry while operands wait for what they are added to. Returns what is to be written
    /// before it; to [`Self::keep`] it is shadowed if it went into that.
    #[cold]
    fn go_on_folding(&mut self, entry: &Entry<'_>) -> Result<Vec<Made>> {
        if entry.key != self.folding_key {
            return self.end_folding();
        }
        let sequence = entry.trailer.sequence();
        if self.is_hidden(entry.key, sequence) {
            return self.fold_onto(Base::Absent, None);
        }
        match entry.trailer.kind() {
            EntryKind::Merge => {
                let operand = Operand::decode(entry.value)?;
                let fold = self.fold.as_mut();
                let made = fold.and_then(|fold| fold.push_older(sequence, operand));
                Ok(made.into_iter().collect())
            }
            EntryKind::Put
            | EntryKind::ExpiringPut
            | EntryKind::Pointer
            | EntryKind::ExpiringPointer
            | EntryKind::PackedPut
            | EntryKind::ExpiringPackedPut
            | EntryKind::Delete => {
                self.fold_onto(Base::of(entry.trailer, entry.value)?, Some(entry))
            }
            other => Err(no_rule(other, sequence)),
        }
    }

    /// No older entry of the key is there. Returns what is to be written.
    fn end_folding(&mut self) -> Result<Vec<Made>> {
        if self.recipe.bottommost {
            return self.fold_onto(Base::Absent, None);
        }
        let operands = self.fold.take().map(Fold::into_operands);
        Ok(operands.into_iter().flatten().collect())
    }

    /// The operands meet what they are added to, which is `entry` if that has a value.
    fn fold_onto(&mut self, base: Base, entry: Option<&Entry<'_>>) -> Result<Vec<Made>> {
        let Some(fold) = self.fold.take() else { return Ok(Vec::new()) };
        let (newest, folded) = fold.onto(base);
        // In the place of what they were added to: from its sequence number a tree that opens knows
        // which expiries came before (`expiry::Due`).
        let sequence = entry.map_or(newest, |entry| entry.trailer.sequence());
        let (trailer, stored) = match (folded, entry) {
            (Base::Number { number, expires_ms }, _) => {
                let (kind, stored) = stored_number(number, expires_ms);
                (Trailer::new(sequence, kind), stored)
            }
            // What was added to it is void.
            (Base::Other { .. }, Some(entry)) => (entry.trailer, entry.value.to_vec()),
            (Base::Other { .. } | Base::Absent, _) => return Ok(Vec::new()),
        };
        if fold.is_cut() || !self.is_gone(folded.expires_ms()) {
            return Ok(alloc::vec![Made { trailer, stored }]);
        }
        let tombstone =
            Made { trailer: Trailer::new(sequence, EntryKind::Delete), stored: Vec::new() };
        Ok(is_tombstone_wanted(self.recipe).then_some(tombstone).into_iter().collect())
    }
}

#[cold]
fn no_rule(kind: EntryKind, sequence: SequenceNumber) -> Error {
    Error::unsupported(format!(
        "an entry of kind {kind:?} (sequence number {sequence}) has no rule for merging"
    ))
}

mod apart;
mod fold;
mod kept;
mod outputs;
mod parting;
mod ranges;
mod rules;
mod slots;
mod waiting;
use apart::Apart;
pub(crate) use apart::EMPTIED_MAX;
use fold::{Fold, Made};
use outputs::Outputs;
pub(crate) use outputs::{ENTRY_OVERHEAD_LEN, OUTPUT_LEN_MOST};
pub(crate) use parting::{FILE_PER_BOUND, OwnBounds, Parting, bounds_touch};
use ranges::Hiding;
pub(crate) use rules::is_below_floor;
use rules::is_tombstone_wanted;
pub(crate) use slots::{Estimate, Estimates, Outgoing, Room};

#[cfg(test)]
mod tests;
