//! What a job is given: slots for its files, and numbers to name them by.
//!
//! Outputs are reckoned by inputs, as no job knows before it ends what it drops and how well the
//! rest packs. What counts is how long an input would be if it were written as the recipe says,
//! which is its length only where it is stored like that:
//!
//! ```text
//!   input                        usually as long as                        at most as long as
//!   MemTable                     the memory charged for it                 twice that
//!   file, not packed             it is                                     keys twice, values, what each entry
//!   file, packed as outputs are  it is                                     costs besides: see ENTRY_LEN_MOST
//!   file, packed otherwise       its keys and values, or, where outputs    (the same)
//!                                are packed, four times its length
//! ```
//!
//! So a job that reads files of zstd or LZ4, and writes such as are not packed, is given as many
//! slots as it will fill. Files of one codec that are merged may pack worse than before, when rows
//! that resemble one another come apart, small entries may be given filters of many more bits than
//! before, and values may be long beside a file: a job that was given too little for that fails,
//! and is tried again with all that it can take, or all that are free. When these are too few as
//! well it waits until there are more, and smaller ones go on. What makes the tree longer for good
//! leaves slots for what makes it shorter, as a put does. File numbers cost nothing: each recipe
//! has as many as its job can need.

use super::outputs::RANGES_PART;
use crate::file::FileMeta;
use crate::memtable::MemTable;
use crate::range_delete::RangeDeletes;
use crate::recipe::JobKind;
use crate::sst::Compression;
use gabion_base::units::SLOT_LEN;

/// How many slots are set aside for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Estimate {
    /// As many as it takes with values that are small beside a file and pack as they did; a job
    /// that needs more fails.
    #[default]
    Usual,
    /// Up to what it can take: all that are free, if that is twice as many as usual, and as many as
    /// are known to be wanted.
    Ample {
        /// More than a job had that failed.
        at_least: u64,
    },
}

/// Bytes that an entry takes in a file that is not packed, besides key and value: lengths, trailer,
/// filter bits, its share of restart points, index and the ends of blocks. With entries as long as
/// a block it is 70, two hundredths of them, for which there is room elsewhere.
const ENTRY_LEN: u64 = 16;
/// The same at most: lengths 11, trailer 8, restart point and count 8, filter 4, the end of its
/// block 5, its place in the index 27.
const ENTRY_LEN_MOST: u64 = 64;
/// Bytes that an entry takes in a file that is not packed, besides its value, at least: three
/// lengths and a trailer.
const ENTRY_LEN_LEAST: u64 = 11;
/// A codec makes of what another packed at most so many times its length, usually: zstd makes of
/// rows of JSON 0.6 of what LZ4 does, and of what has no repetitions but few symbols a third.
const REPACKED: u64 = 4;
/// The rest of a file: its ends.
const FILE_LEN: u64 = 64 * 1024;

/// Of each kind of job its own, as a flush must not wait for what a compaction lacks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimates {
    pub(crate) flush: Estimate,
    pub(crate) compaction: Estimate,
}

impl Estimates {
    pub(crate) const fn of(&self, kind: JobKind) -> Estimate {
        match kind {
            JobKind::Flush => self.flush,
            _ => self.compaction,
        }
    }

    const fn of_mut(&mut self, kind: JobKind) -> &mut Estimate {
        match kind {
            JobKind::Flush => &mut self.flush,
            _ => &mut self.compaction,
        }
    }

    /// A job failed for want of slots, which was `given` so many: others wait for a quarter more.
    pub(crate) fn ran_out(&mut self, kind: JobKind, given: u64) {
        let more = given.saturating_add(given / 4 + 1);
        let estimate = self.of_mut(kind);
        let at_least = match *estimate {
            Estimate::Usual => more,
            Estimate::Ample { at_least } => at_least.max(more),
        };
        *estimate = Estimate::Ample { at_least };
    }

    /// A job ended well.
    pub(crate) fn ended_well(&mut self, kind: JobKind) {
        if kind.makes_files() {
            *self.of_mut(kind) = Estimate::Usual;
        }
    }
}

/// How long a job's outputs become, in bytes, added up over what it reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outgoing {
    usual: u64,
    most: u64,
    /// Bytes of the files that it takes the place of, and their slots.
    read: u64,
    read_slots: u64,
    /// Whether how long it becomes rests on how well it packs.
    is_packed: bool,
    /// Whether it copies values, so that the files in which they lie may go.
    collects: bool,
}

/// Slots for a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// All that are free.
    pub(crate) free: u64,
    /// So many are to be left by jobs that make the tree longer: for flushes, and for jobs that
    /// make it shorter.
    pub(crate) kept: u64,
    /// So many of these are for jobs that copy values out of files with garbage.
    pub(crate) for_collection: u64,
    pub(crate) estimate: Estimate,
}

impl Outgoing {
    /// With so many bytes, usually.
    pub(crate) const fn of_len(usual: u64) -> Self {
        Self {
            usual,
            most: u64::MAX,
            read: usual,
            read_slots: 0,
            is_packed: false,
            collects: false,
        }
    }

    /// Of files that are written anew with `codec`.
    pub(crate) fn of_files<'a>(
        files: impl IntoIterator<Item = &'a FileMeta>,
        codec: Compression,
    ) -> Self {
        let mut all = Self { is_packed: codec != Compression::None, ..Self::default() };
        for file in files {
            all.read = all.read.saturating_add(file.len);
            all.read_slots = all.read_slots.saturating_add(file.len.div_ceil(SLOT_LEN));
            all.add(usual_len(file, codec), len_most(file));
            if let Some(ranges) = &file.ranges {
                all.add_ranges(ranges);
            }
        }
        all
    }

    /// And of a MemTable.
    pub(crate) fn and_table(mut self, table: &MemTable) -> Self {
        let memory = table.memory_used() as u64;
        self.add(memory, memory.saturating_mul(2));
        self.read = self.read.saturating_add(memory);
        let mut all = RangeDeletes::default();
        for range in table.range_deletes() {
            all.fragments += 1;
            all.key_bytes += (range.start.len() + range.end.len()) as u64;
        }
        self.add_ranges(&all);
        self
    }

    /// And of values that go apart, so many bytes of them out of other files: with them each has
    /// its key, and the last of the files is not full.
    pub(crate) const fn and_values(mut self, moved: u64, output_len: u64) -> Self {
        let last = if output_len < SLOT_LEN { output_len } else { SLOT_LEN };
        self.collects |= moved > 0;
        self.add(moved.saturating_add(moved / 16).saturating_add(last), last);
        self.most = self.most.saturating_mul(2).saturating_add(moved.saturating_mul(2));
        self
    }

    const fn add(&mut self, usual: u64, most: u64) {
        self.usual = self.usual.saturating_add(usual);
        self.most = self.most.saturating_add(most);
    }

    /// Range deletes that overlap are more when they are cut, and fill a part of a file only.
    const fn add_ranges(&mut self, ranges: &RangeDeletes) {
        let len = ranges.output_len_max().saturating_mul(RANGES_PART);
        self.add(len, len);
        // Which is no reason to hold back what deletes: see `limit`.
        self.read = self.read.saturating_add(len);
    }

    /// Bytes, usually.
    pub(crate) const fn usual_len(self) -> u64 {
        self.usual
    }

    /// How many of a room's slots a job may take: all, but where it may make the tree longer for
    /// good, no more than what it gives back and what is not kept for flushes and for jobs that
    /// make room.
    pub(crate) fn limit(self, room: Room) -> u64 {
        let grows = self.usual > self.read.saturating_add(self.read / 8);
        let may_grow = self.is_packed && room.estimate != Estimate::Usual;
        if grows || may_grow {
            let own = if self.collects { room.for_collection } else { 0 };
            let kept = room.kept.saturating_sub(own);
            return room.free.min(room.free.saturating_add(self.read_slots).saturating_sub(kept));
        }
        room.free
    }

    /// Whether there is room for a job.
    pub(crate) fn fits(self, output_len: u64, cuts: u64, room: Room) -> bool {
        self.slots(output_len, cuts, room.estimate) <= self.limit(room)
    }

    /// Slots that a job for which there is room is given.
    pub(crate) fn given(self, output_len: u64, cuts: u64, room: Room) -> u64 {
        let least = self.slots(output_len, cuts, room.estimate);
        match room.estimate {
            Estimate::Usual => least,
            Estimate::Ample { .. } => {
                self.slots_max(output_len, cuts).min(self.limit(room)).max(least)
            }
        }
    }

    /// Slots without which a job is not begun.
    pub(crate) fn slots(self, output_len: u64, cuts: u64, how: Estimate) -> u64 {
        let usual = self.slots_usual(output_len, cuts);
        match how {
            Estimate::Usual => usual,
            Estimate::Ample { at_least } => {
                let wanted = usual.saturating_mul(2).max(at_least);
                wanted.min(self.slots_max(output_len, cuts)).max(usual)
            }
        }
    }

    /// Slots that a job takes usually, with files that end at `output_len` and at so many cuts
    /// besides.
    pub(crate) const fn slots_usual(self, output_len: u64, cuts: u64) -> u64 {
        let len = self.usual.saturating_add(self.usual / 32 + FILE_LEN);
        let as_full_files = len.div_ceil(output_len).saturating_mul(output_len.div_ceil(SLOT_LEN));
        let as_bytes = len.div_ceil(SLOT_LEN) + self.usual / output_len + 1;
        (if as_full_files < as_bytes { as_full_files } else { as_bytes }) + cuts + 1
    }

    /// Slots that it can take.
    pub(crate) const fn slots_max(self, output_len: u64, cuts: u64) -> u64 {
        let files = self.files_max(output_len, cuts);
        // Each file has a last slot that is not full, and its bounds besides: two keys.
        let of_files = files.saturating_add(files / 8);
        self.most.saturating_add(FILE_LEN).div_ceil(SLOT_LEN).saturating_add(of_files)
    }

    /// How many files can come out of it: two neighbours are together longer than `output_len`, or
    /// the first entry of the second would have gone into the first, in which it is reckoned as if
    /// it were not packed, and the first with its bounds; a cut is the exception.
    pub(crate) const fn files_max(self, output_len: u64, cuts: u64) -> u64 {
        let full = self.most.saturating_add(FILE_LEN) / output_len;
        full.saturating_mul(3).saturating_add(cuts + 3)
    }
}

/// How long a file is when it is written with `codec`, usually.
fn usual_len(file: &FileMeta, codec: Compression) -> u64 {
    let is_alike = file.compression == codec && codec != Compression::None;
    if is_alike || !is_packed(file) {
        return file.len;
    }
    let unpacked = entries_len(file, 1, ENTRY_LEN).max(file.len);
    match codec {
        Compression::None => unpacked,
        _ => unpacked.min(file.len.saturating_mul(REPACKED)),
    }
}

/// How long a file is when nothing of it can be packed, and its keys and values are as bad as can
/// be for its index.
fn len_most(file: &FileMeta) -> u64 {
    entries_len(file, 2, ENTRY_LEN_MOST).max(file.len)
}

/// Bytes of a file's entries. What descriptions say comes from disk and wire.
const fn entries_len(file: &FileMeta, keys: u64, overhead: u64) -> u64 {
    let keys = file.raw_key_bytes.saturating_mul(keys);
    let entries = file.entries.saturating_mul(overhead);
    keys.saturating_add(file.raw_value_bytes).saturating_add(entries)
}

/// Whether a file is packed: also one of a build that did not tell, which is shorter than its
/// entries.
fn is_packed(file: &FileMeta) -> bool {
    file.compression != Compression::None || file.len < entries_len(file, 0, ENTRY_LEN_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picker::tests::meta;
    use alloc::vec;
    use gabion_base::units::MIB;

    const LEN: u64 = 16 * MIB;

    /// A file of 16 MiB with entries of 1,000 bytes, which unpacked are so many times as long.
    fn file(compression: Compression, ratio: u64) -> FileMeta {
        let entries = ratio * LEN / 1_033;
        let (raw_key_bytes, raw_value_bytes) = (17 * entries, 1_000 * entries);
        let meta = meta(1, "a", "b", LEN);
        FileMeta { compression, entries, raw_key_bytes, raw_value_bytes, ..meta }
    }

    fn usual(file: &FileMeta, codec: Compression) -> u64 {
        Outgoing::of_files([file], codec).usual_len()
    }

    #[test]
    fn files_that_stay_as_they_are_stored_are_as_long_as_they_were() {
        for codec in [Compression::None, Compression::Lz4, Compression::ZSTD] {
            assert_eq!(usual(&file(Compression::None, 1), codec), LEN);
            let ratio = if codec == Compression::None { 1 } else { 9 };
            assert_eq!(usual(&file(codec, ratio), codec), LEN);
        }
        let slots = |how| {
            Outgoing::of_files([&file(Compression::None, 1)], Compression::None).slots(LEN, 0, how)
        };
        assert_eq!(slots(Estimate::Usual), 12);
    }

    #[test]
    fn files_whose_codec_is_undone_are_as_long_as_their_entries() {
        let tenth = LEN / 10;
        for packed in [Compression::ZSTD, Compression::Lz4, Compression::None] {
            // The last is of a build that did not tell.
            let len = usual(&file(packed, 3), Compression::None);
            assert!(len.abs_diff(3 * LEN) < tenth, "{packed}: {len}");
        }
        let lz4 = usual(&file(Compression::ZSTD, 3), Compression::Lz4);
        assert!(lz4.abs_diff(3 * LEN) < tenth, "{lz4}");
        assert_eq!(usual(&file(Compression::ZSTD, 9), Compression::Lz4), 4 * LEN);
    }

    #[test]
    fn eleven_files_of_zstd_that_are_undone_have_slots_for_all_that_they_become() {
        let files = vec![file(Compression::ZSTD, 3); 11];
        let outgoing = Outgoing::of_files(&files, Compression::None);
        let slots = outgoing.slots(LEN, 2, Estimate::Usual);
        assert!((264..290).contains(&slots), "{slots}");
        assert!(outgoing.files_max(LEN, 2) > 2 * 33);
        assert!(outgoing.slots_max(LEN, 2) > slots);
    }

    #[test]
    fn jobs_that_become_longer_leave_what_is_kept_and_others_take_all() {
        let estimate = Estimate::Usual;
        let of = |ratio| Outgoing::of_files([&file(Compression::ZSTD, ratio)], Compression::None);
        let fits = |ratio, free| {
            of(ratio).fits(LEN, 0, Room { free, kept: 100, for_collection: 0, estimate })
        };
        // It gives back eight.
        let needed = 100 + of(3).slots(LEN, 0, estimate) - 8;
        assert!(!fits(3, needed - 1) && fits(3, needed));
        assert!(!fits(1, 11) && fits(1, 12));
    }

    #[test]
    fn what_comes_from_disk_is_reckoned_without_an_overflow() {
        let mut file = file(Compression::ZSTD, 1);
        (file.entries, file.raw_key_bytes, file.raw_value_bytes) = (u64::MAX, u64::MAX, u64::MAX);
        file.ranges = Some(RangeDeletes {
            fragments: u64::MAX,
            key_bytes: u64::MAX,
            ..RangeDeletes::default()
        });
        let outgoing = Outgoing::of_files([&file, &file], Compression::None);
        for how in [Estimate::Usual, Estimate::Ample { at_least: u64::MAX }] {
            assert!(outgoing.slots(4096, 7, how) > 1 << 40);
        }
        assert!(outgoing.files_max(4096, 7) > 1 << 40);
        assert!(!outgoing.fits(
            4096,
            0,
            Room { free: 1 << 32, kept: 5, for_collection: 0, estimate: Estimate::Usual }
        ));
    }

    #[test]
    fn a_job_that_had_too_little_waits_for_a_quarter_more_or_for_all_that_it_can_take() {
        let mut estimates = Estimates::default();
        estimates.ran_out(JobKind::Compaction, 40);
        assert_eq!(estimates.flush, Estimate::Usual);
        let files = [file(Compression::ZSTD, 9)];
        let outgoing = Outgoing::of_files(&files, Compression::ZSTD);
        let least =
            |estimates: &Estimates| outgoing.slots(LEN, 0, estimates.of(JobKind::Compaction));
        assert_eq!(least(&estimates), 51);
        estimates.ran_out(JobKind::Compaction, 1_000);
        assert_eq!(least(&estimates), outgoing.slots_max(LEN, 0));
        estimates.ended_well(JobKind::TrivialMove);
        assert_eq!(least(&estimates), outgoing.slots_max(LEN, 0));
        estimates.ended_well(JobKind::Compaction);
        assert_eq!(least(&estimates), 12);
    }
}
