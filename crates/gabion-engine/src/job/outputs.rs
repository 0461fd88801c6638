//! The files that a job writes: where they are cut, and which part of the range deletes each has.
//!
//! ```text
//!   entries        a   c   c   e │ g   h   k │           n   p
//!   range deletes    [b ───────── │ ── g) [i ─│── ── ─│─────── z)      cut where the files are,
//!   files          └── 1 ──────┘ └─── 2 ────┘└── 3 ──┘└── 4 ──┘        also where nothing else is
//! ```
//!
//! A file ends before an entry or a range delete that would take it over `output_len`, and before
//! every key in the recipe's `cuts`; a stretch of range deletes without entries, too. Of range
//! deletes it has an eighth of `output_len` at most, as whoever opens it holds them in memory,
//! several times as long.
//!
//! Where the recipe says so (`parted_from`), a file ends before the last of so many tombstones in a
//! row, if it holds other entries too, and after them.
//!
//! All lie within the bounds of the inputs, and so touch no file that is none of them.
//!
//! One edit names them all. How many there will be is reckoned when a job is picked, from bytes
//! that may pack worse than they did, and of a flush not at all. So files become longer where there
//! are too many: when an eighth of the edit is left, twice as long, then four times, as what is
//! left is halved, and when nothing is left none ends any more. That follows from the recipe and
//! the files before, and is the same at every replica.

use super::parting::{OwnBounds, Parting, bounds_touch};
use super::{JobInputs, JobOutput};
use crate::edit::Edit;
use crate::entry::{Entry, EntryKind};
use crate::file::{
    FILE_LEN_MAX, FILE_REFERENCES_MAX, FileMeta, FileSink, REFERENCE_LEN, lower_bound_of,
    upper_bound_of,
};
use crate::range_delete::{Fragment, Fragments, cut_before, last_before};
use crate::recipe::Recipe;
use crate::sst::SstBuilder;
use crate::tree::PARTS;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use gabion_base::{Error, FileId, GroupId, Result};

/// The files being written.
pub(super) struct Outputs<'a> {
    recipe: &'a Recipe,
    group: GroupId,
    builder: Option<SstBuilder>,
    /// Number of the next file.
    next: u64,
    /// The next of the recipe's cuts.
    cut: usize,
    /// The key added last to the open file.
    last_key: Vec<u8>,
    /// Range deletes to be written.
    ranges: Fragments,
    /// The first of them that no file has anything of.
    next_range: usize,
    /// Bytes that the open file has in common with the one before: a range delete that was cut.
    carried_len: u64,
    /// Bounds of the open file beside those which its keys give.
    bounds: OwnBounds,
    /// Between what the inputs lie, where there are files among them.
    within: Option<(Vec<u8>, Vec<u8>)>,
    /// Bytes that the edit has for descriptions of files.
    room: usize,
    /// What is left of it.
    room_left: usize,
    /// Values files whose descriptions are taken off it.
    values: usize,
    /// Longest file: the recipe's `output_len`, or more, so that the edit can name all that are to
    /// come.
    output_len: u64,
    /// Tombstones in a row that were written last.
    tombstones: u32,
    /// The open file has entries that are none.
    has_others: bool,
    /// How often a file ended for the sake of tombstones.
    parts: u64,
}

/// Longest description of a file whose bounds are no longer than usual: 1,024 checksums of chunks,
/// four stretches that are deleted, and all other fields.
const DESCRIBED_LEN_MOST: usize = 12 * 1024;
/// Of the room in an edit so much is left when files become longer, and that much is theirs who are
/// open then.
const ROOM_TIGHT_PART: usize = 8;
const ROOM_KEPT_LEN: usize = 4 * DESCRIBED_LEN_MOST;
/// Files become no longer than this for their edit's sake: with the rest of what they hold they are
/// below the longest that can be.
pub(crate) const OUTPUT_LEN_MOST: u64 = FILE_LEN_MAX / 8 * 3;

/// Bytes that an entry adds to a file besides key and value, at most: lengths, trailer, filter bits
/// and its share of the index.
pub(crate) const ENTRY_OVERHEAD_LEN: u64 = 48;

/// A file has this part of its length of range deletes, at most, or one.
pub(super) const RANGES_PART: u64 = 8;

/// How the open file ends before a key.
enum Ending {
    /// It cannot: the next key is the same, or bounds between the two would be too long for what it
    /// has.
    Nowhere,
    /// As it is.
    Here,
    /// With longer bounds than usual, and its last range delete cut there, if that goes on.
    Parted(Parting),
    /// With its last range delete cut, the rest of which begins the next file.
    Cut(Arc<[u8]>),
}

impl<'a> Outputs<'a> {
    pub(super) fn new(inputs: &'a JobInputs, group: GroupId, ranges: Fragments) -> Self {
        let recipe = &inputs.recipe;
        let files = || inputs.files.iter().map(|(_, file)| &**file);
        let smallest = files().map(|file| &file.smallest).min();
        let largest = files().map(|file| &file.largest).max();
        let room = Edit::room_for_added(recipe);
        Self {
            recipe,
            group,
            builder: None,
            next: recipe.output_first,
            cut: 0,
            last_key: Vec::new(),
            ranges,
            next_range: 0,
            carried_len: 0,
            bounds: OwnBounds::default(),
            within: smallest.cloned().zip(largest.cloned()),
            room,
            room_left: room,
            values: 0,
            output_len: recipe.output_len,
            tombstones: 0,
            has_others: false,
            parts: 0,
        }
    }

    /// Writes an entry, into the next file where the open one ends before it.
    pub(super) async fn write<const APART: bool>(
        &mut self,
        entry: &Entry<'_>,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        if !self.ranges.is_empty() {
            self.take_ranges(Some(entry.key), sink, output).await?;
        }
        let entry_len = (2 * entry.key.len() + entry.value.len()) as u64 + ENTRY_OVERHEAD_LEN;
        let is_tombstone = entry.trailer.kind() == EntryKind::Delete;
        if APART {
            self.describe_values(&output.values);
        }
        let is_full = APART && self.is_full_of_references();
        if self.wants_end(entry.key, entry_len, 0) | self.parts_before(is_tombstone) | is_full {
            self.end_before(entry.key, sink, output).await?;
        }
        self.has_others |= !is_tombstone;
        output.stats.entries_out += 1;
        self.add(entry, sink)
    }

    /// Whether the open file is to end before `key`, with which `len` bytes come, so many of them
    /// of a range delete.
    #[inline]
    fn wants_end(&mut self, key: &[u8], len: u64, ranges_len: u64) -> bool {
        let cuts = &self.recipe.cuts;
        let passed = cuts.get(self.cut).is_some_and(|cut| key >= &cut[..]);
        if passed {
            self.cut += cuts[self.cut..].partition_point(|cut| &cut[..] <= key);
        }
        let Some(builder) = &self.builder else { return false };
        let output_len = self.output_len;
        // Or files would hold nothing but what they have in common, and be more than the recipe
        // reserves.
        let carried_len =
            if self.carried_len > output_len / RANGES_PART { self.carried_len } else { 0 };
        let is_long = builder.estimated_len() + len > output_len + carried_len;
        let ranges_max = output_len / RANGES_PART + carried_len;
        let has_ranges = ranges_len > 0 && builder.ranges_len() + ranges_len > ranges_max;
        passed || is_long || has_ranges
    }

    /// Whether the open file references as many files as one may.
    fn is_full_of_references(&self) -> bool {
        let open = self.builder.as_ref();
        open.is_some_and(|builder| builder.references() >= FILE_REFERENCES_MAX)
    }

    /// Whether the open file is to end before an entry for the sake of tombstones: it follows
    /// enough of them, or is, among others, the last that makes them enough. No more often than the
    /// recipe has files for, as what expires becomes tombstones too.
    #[inline]
    fn parts_before(&mut self, is_tombstone: bool) -> bool {
        let (from, before) = (self.recipe.parted_from, self.tombstones);
        if from == 0 {
            return false;
        }
        self.tombstones = if is_tombstone { before.saturating_add(1) } else { 0 };
        let is_part = match is_tombstone {
            true => self.has_others && self.tombstones == from,
            false => before >= from,
        };
        let parts = is_part && self.parts < PARTS;
        self.parts += u64::from(parts);
        parts
    }

    /// Ends the open file before `key`, if it can. Versions of one key stay together.
    async fn end_before(
        &mut self,
        key: &[u8],
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        match self.ending(key) {
            ending if !self.edit_holds_next(&ending) => self.check_len(),
            Ending::Here => self.finish_file(sink, output).await,
            Ending::Parted(parting) => self.part(parting, key, sink, output).await,
            Ending::Cut(at) => self.cut_ranges(at, sink, output).await,
            Ending::Nowhere => self.check_len(),
        }
    }

    fn ending(&self, key: &[u8]) -> Ending {
        // The one that began last; those before it end at or before its start.
        let open = self.builder.as_ref().and_then(SstBuilder::last_range);
        let Some(open) = open else {
            return if self.binds(key) { self.parted(&self.last_key, key) } else { Ending::Here };
        };
        let touches = upper_bound_of(last_before(&open.end)) >= lower_bound_of(key);
        if !touches && !self.binds(key) {
            return Ending::Here;
        }
        let last = (&self.last_key[..]).max(&open.start);
        match cut_before(last, key) {
            Some(cut) if cut[..] < open.end[..] => Ending::Cut(cut.into()),
            // All that is before the cut ends there or before it.
            Some(_) => Ending::Here,
            None => self.parted(last, key),
        }
    }

    /// Whether bounds of the usual length do not tell `key` from the one before it.
    fn binds(&self, key: &[u8]) -> bool {
        key == self.last_key || bounds_touch(&self.last_key, key)
    }

    /// How the open file, which has nothing after `last`, ends before `key` where usual bounds
    /// would touch.
    fn parted(&self, last: &[u8], key: &[u8]) -> Ending {
        let len = self.builder.as_ref().map_or(0, SstBuilder::estimated_len);
        let parting = Parting::of_file(last, key, len);
        parting.map_or(Ending::Nowhere, Ending::Parted)
    }

    /// Whether the edit has room for the open file, if it ends so, and for one more.
    fn edit_holds_next(&self, ending: &Ending) -> bool {
        let parting_len = match ending {
            Ending::Parted(parting) => parting.upper.len() + parting.lower_len,
            _ => 0,
        };
        let bounds_len = self.bounds.lower.len() + self.within_len() + parting_len;
        let references = self.builder.as_ref().map_or(0, SstBuilder::references);
        // The next may have as many.
        let references_len = 2 * REFERENCE_LEN * references;
        2 * DESCRIBED_LEN_MOST + bounds_len + references_len <= self.room_left
    }

    /// Bytes of the inputs' bounds in what an edit says of the open file and of one more.
    fn within_len(&self) -> usize {
        self.within.as_ref().map_or(0, |(lower, upper)| lower.len() + 2 * upper.len())
    }

    /// Takes what an edit says of a file off the room that is left, and lets the next be longer
    /// where that is little.
    fn describe(&mut self, meta: &FileMeta) {
        let len = Edit::ADDED_OVERHEAD_LEN + meta.encoded_len();
        self.room_left = self.room_left.saturating_sub(len);
        // Or ends would stop before files are longer: one is asked for these, and its own may be as
        // long as these were.
        let bounds_len = self.within_len() + meta.smallest.len() + meta.largest.len();
        let (tight, kept) = (self.room / ROOM_TIGHT_PART, ROOM_KEPT_LEN + bounds_len);
        let left = self.room_left.saturating_sub(kept);
        if left < tight {
            let doublings = (tight / left.max(1)).ilog2() + 1;
            let longer = self.recipe.output_len.saturating_mul(1 << doublings);
            self.output_len = longer.min(OUTPUT_LEN_MOST).max(self.recipe.output_len);
        }
    }

    /// Takes what the edit says of values files that were made meanwhile off the room that is left.
    #[inline]
    fn describe_values(&mut self, made: &[FileMeta]) {
        for meta in &made[self.values..] {
            self.room_left =
                self.room_left.saturating_sub(Edit::ADDED_OVERHEAD_LEN + meta.encoded_len());
        }
        self.values = made.len();
    }

    #[cold]
    fn check_len(&self) -> Result<()> {
        if self.builder.as_ref().is_some_and(|it| it.references() >= FILE_REFERENCES_MAX) {
            return Err(Error::invalid(format!(
                "what is written past the files that one edit can name references more than \
                 {FILE_REFERENCES_MAX} files"
            )));
        }
        check_len_of_one(self.builder.as_ref().map_or(0, SstBuilder::estimated_len))
    }

    #[inline]
    fn add(&mut self, entry: &Entry<'_>, sink: &mut impl FileSink) -> Result<()> {
        self.open(sink)?.add(entry.key, entry.trailer, entry.value);
        self.last_key.clear();
        self.last_key.extend_from_slice(entry.key);
        Ok(())
    }

    #[inline]
    fn open(&mut self, sink: &mut impl FileSink) -> Result<&mut SstBuilder> {
        Ok(match &mut self.builder {
            Some(builder) => builder,
            none => {
                let (recipe, len) = (self.recipe, self.output_len);
                none.insert(open_output(recipe, self.group, self.next, len, sink)?)
            }
        })
    }

    /// Takes up the range deletes that begin at `upto` or before, or all, and ends files where that
    /// is due.
    async fn take_ranges(
        &mut self,
        upto: Option<&[u8]>,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        let is_due = |key: &[u8]| upto.is_none_or(|upto| key <= upto);
        loop {
            let next = self.ranges.as_slice().get(self.next_range);
            let next = next.filter(|next| is_due(&next.start)).cloned();
            self.cut_within(next.as_ref().map(|next| &next.start[..]).or(upto), sink, output)
                .await?;
            let Some(next) = next else { return Ok(()) };
            assert_eq!(next.sequences.len(), 1, "the newest range delete of a key goes to files");
            let len = next.stored_len() as u64;
            if self.wants_end(&next.start, len, len) {
                self.end_before(&next.start, sink, output).await?;
            }
            self.next_range += 1;
            self.open(sink)?.add_range(next);
        }
    }

    /// Ends files at the recipe's cuts before `upto` that lie within a range delete.
    async fn cut_within(
        &mut self,
        upto: Option<&[u8]>,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        let recipe = self.recipe;
        while let Some(cut) = recipe.cuts.get(self.cut)
            && upto.is_none_or(|upto| cut[..] < *upto)
            && let Some(open) = self.builder.as_ref().and_then(SstBuilder::last_range)
            && cut[..] < open.end[..]
        {
            self.cut += 1;
            if open.start[..] < cut[..] {
                self.end_before(cut, sink, output).await?;
            }
        }
        Ok(())
    }

    /// Ends the open file and its last range delete at `at`, where the next file goes on with it.
    async fn cut_ranges(
        &mut self,
        at: Arc<[u8]>,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        let Some(builder) = &mut self.builder else { return Ok(()) };
        let rest = builder.last_range().cloned();
        builder.cut_last_range(&at);
        self.finish_file(sink, output).await?;
        if let Some(Fragment { end, sequences, .. }) = rest {
            let rest = Fragment { start: at, end, sequences };
            // Its keys may be bounds besides.
            self.carried_len = 2 * rest.stored_len() as u64;
            self.open(sink)?.add_range(rest);
        }
        Ok(())
    }

    /// Ends the open file before `key`, at bounds that lie between the two.
    async fn part(
        &mut self,
        parting: Parting,
        key: &[u8],
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        let next_to = parting.next_to();
        let open = self.builder.as_ref().and_then(SstBuilder::last_range);
        let goes_on = open.is_some_and(|open| next_to[..] < open.end[..]);
        self.bounds.upper = Some(parting.upper);
        let lower = if goes_on {
            self.cut_ranges(next_to[..].into(), sink, output).await?;
            next_to
        } else {
            self.finish_file(sink, output).await?;
            key[..parting.lower_len].to_vec()
        };
        self.bounds.lower = lower;
        Ok(())
    }

    /// Writes what is left.
    pub(super) async fn finish(
        mut self,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        self.take_ranges(None, sink, output).await?;
        self.finish_file(sink, output).await
    }

    async fn finish_file(
        &mut self,
        sink: &mut impl FileSink,
        output: &mut JobOutput,
    ) -> Result<()> {
        let Some(builder) = self.builder.take() else { return Ok(()) };
        let mut file = builder.finish();
        self.bound(&mut file.meta);
        self.describe(&file.meta);
        let before = output.added.last().map(|(_, before)| &before.largest);
        assert!(before < Some(&file.meta.smallest), "{}: outputs ascend by key", file.meta.id);
        output.stats.bytes_written += file.meta.rounded_len();
        output.added.push((self.recipe.output_level, file.meta.clone()));
        self.next += 1;
        let made = self.next - self.recipe.output_first;
        assert_eq!(made, output.added.len() as u64, "numbers are used up in their order");
        assert!(self.next <= self.recipe.values_first(), "no more files than are reserved");
        self.last_key.clear();
        self.has_others = false;
        self.carried_len = 0;
        sink.finished(file).await
    }

    /// Narrows the bounds of a file that has ended to its own and to those of the inputs. Where
    /// these are long, bounds that were cut would reach out of them, to where other files may be.
    fn bound(&mut self, meta: &mut FileMeta) {
        core::mem::take(&mut self.bounds).narrow(meta);
        if let Some((lower, upper)) = &self.within {
            OwnBounds { lower: lower.clone(), upper: Some(upper.clone()) }.narrow(meta);
        }
        assert!(meta.smallest <= meta.largest, "{}: bounds that were narrowed hold keys", meta.id);
    }
}

/// Checks that a file that could not end has a length which it may have.
///
/// # Errors
/// Invalid input, as the same job fails again: of a limit that is exceeded, who runs jobs thinks
/// that more slots help.
pub(super) fn check_len_of_one(len: u64) -> Result<()> {
    const LEN_MAX: u64 = FILE_LEN_MAX / 2;
    if len <= LEN_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "what is written of one key, or past the files that one edit can name, comes to {len} bytes, a file holds at most \
         {LEN_MAX}"
    )))
}

fn open_output(
    recipe: &Recipe,
    group: GroupId,
    number: u64,
    output_len: u64,
    sink: &mut impl FileSink,
) -> Result<SstBuilder> {
    if number >= recipe.values_first() {
        return Err(Error::limit(format!(
            "a job needs more files than the {} that its recipe reserves from {} on",
            recipe.values_first() - recipe.output_first,
            recipe.output_first
        )));
    }
    // Room for the whole file: a buffer that grows is copied into one of twice its length, both of
    // which are there then, and its fresh pages are touched twice. Those that the file does not
    // come to are never touched.
    let capacity = output_len.min(OUTPUT_LEN_MOST) as usize + 64 * 1024;
    let (id, buffer) = (FileId::sst(number), sink.buffer(capacity));
    Ok(SstBuilder::in_buffer(&recipe.sst, group, id, recipe.term, buffer))
}
