//! A recipe says how files were, or are to be, made. It is complete at job start and *a file is a
//! pure function of its recipe*: whoever holds the same inputs gets the same
//! bytes. No clock, randomness, hash order, thread count or allocator shows in them.
//!
//! ```text
//!  0 u16 version = 2 | u8 kind | u8 output level | u8 flags (bit 0: bottommost) | 3 zero bytes
//!  8 u64 term  16 u64 first output file  24 u32 output files  28 u32 zero  32 u64 output_len
//! 40 u64 now_ms  48 u64 floor
//! 56 fields (gabion_base::codec), all critical, tags ascending, each at most once:
//!      1 MemTables   u64 id each
//!      2 inputs      u8 level, u8 file kind, varint file number each
//!      3 cuts        prefixed key each, ascending
//!      5 SstOptions
//!      6 merging     u8 operator, u8 version, u64 first and last expiry, u64 operands above from; each ms,
//!                    u64::MAX first and 0 last: none expires; u64::MAX: no operands above
//!      7 parted from u32, not 0: so many tombstones in a row have files of their own (absent: as all other entries)
//!      8 large from u32, not 0: values of so many bytes or more go to values files (absent: none)
//!      9 emptied    u8 file kind, varint file number each, ascending: values that pointers lead
//!                    to there go to values files of the job's own
//!     10 kept       u32, not 0, then u8 file kind, varint file number each, ascending: of a flush,
//!                    values of so many bytes or more stay in these segments of the log
//! ```
//!
//! A job that makes values files too has the second half of the numbers for them: no two of its
//! files have the same, though kinds differ. A values file ends as an SST does, before the record
//! that would take it over `output_len`.
//!
//! Boundaries of output files are derived, never stored: a file is cut before the entry that would
//! take it over `output_len`, and before every key in `cuts`; over a multiple of it, where else one
//! edit could not name them all (`job::outputs`).

use crate::counter::{OPERATOR_ADD, OPERATOR_VERSION, unknown_operator};
use crate::expiry::ExpirySpan;
use crate::sst::SstOptions;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Put, Reader, put_field, varint_len};
use gabion_base::units::KEY_LEN_MAX;
use gabion_base::{Error, FileId, FileKind, MemTableId, Result, SequenceNumber, TERM_MAX, Term};

const VERSION: u16 = 2;
const HEADER_LEN: usize = 56;
const FLAG_BOTTOMMOST: u8 = 1;
const FIELD_MEMTABLES: u16 = 1;
const FIELD_INPUTS: u16 = 2;
const FIELD_CUTS: u16 = 3;
// 4 is not used: it named snapshots, which keep versions of the tree instead.
const FIELD_SST: u16 = 5;
const FIELD_MERGING: u16 = 6;
const FIELD_PARTED_FROM: u16 = 7;
const FIELD_LARGE_FROM: u16 = 8;
const FIELD_EMPTIED: u16 = 9;
const FIELD_KEPT: u16 = 10;

/// Most MemTables, input files or cuts that one recipe may name.
pub const RECIPE_ITEMS_MAX: usize = 65_536;

/// What a job does to the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum JobKind {
    /// Writes sealed MemTables to L0.
    Flush = 1,
    /// Merges files of a level with those that they overlap one level below.
    Compaction = 2,
    /// Moves files to a level below as they are, since they overlap nothing there.
    TrivialMove = 3,
    /// Removes files that hold nothing visible (all below the floor).
    Drop = 4,
    /// Adds files that were made of sorted input of a client's ([`crate::load`]). Nobody can make
    /// them again, so they are had as bytes alone: who is sent such a recipe declines.
    Load = 5,
}

impl JobKind {
    /// The kind that a stored byte means, if it means one.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Flush),
            2 => Some(Self::Compaction),
            3 => Some(Self::TrivialMove),
            4 => Some(Self::Drop),
            5 => Some(Self::Load),
            _ => None,
        }
    }

    /// Whether the job writes files; the other kinds only change which files count.
    #[must_use]
    pub const fn makes_files(self) -> bool {
        matches!(self, Self::Flush | Self::Compaction | Self::Load)
    }
}

/// What a job has to know where there are operands of the merge operator ([`crate::counter`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Merging {
    /// When what is in the inputs, or below them, expires, if any of it does: operands that were
    /// written before and after such a time do not become one.
    pub expiries: Option<ExpirySpan>,
    /// Above the inputs there are operands, the first of them written at this group time, in ms:
    /// what expired later stays for them to find it gone. None: nothing that has expired needs to
    /// stay.
    pub above_from_ms: Option<u64>,
}

impl Merging {
    fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u8(OPERATOR_ADD);
        out.put_u8(OPERATOR_VERSION);
        let span = self.expiries.unwrap_or(ExpirySpan { first_ms: u64::MAX, last_ms: 0 });
        out.put_u64(span.first_ms);
        out.put_u64(span.last_ms);
        out.put_u64(self.above_from_ms.unwrap_or(u64::MAX));
        out
    }

    fn decode(mut payload: Reader<'_>) -> Result<Self> {
        let (operator, version) = (payload.u8()?, payload.u8()?);
        if (operator, version) != (OPERATOR_ADD, OPERATOR_VERSION) {
            return Err(unknown_operator(operator, version).within("recipe"));
        }
        let (first_ms, last_ms) = (payload.u64()?, payload.u64()?);
        let above_from_ms = Some(payload.u64()?).filter(|from| *from < u64::MAX);
        let expiries = (first_ms <= last_ms).then_some(ExpirySpan { first_ms, last_ms });
        if expiries.is_none() && (first_ms, last_ms) != (u64::MAX, 0) {
            return Err(Error::corruption(format!(
                "recipe: expiries from {first_ms} to {last_ms} ms"
            )));
        }
        payload.finish()?;
        Ok(Self { expiries, above_from_ms })
    }
}

/// A job, complete: everything that its outputs depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// What the job does.
    pub kind: JobKind,
    /// Tenure of the primary that wrote it.
    pub term: Term,
    /// MemTables to flush, ascending.
    pub memtables: Vec<MemTableId>,
    /// Files to read, with their level: levels ascending, L0 newest first, others by key.
    pub inputs: Vec<(u8, FileId)>,
    /// Where the outputs go.
    pub output_level: u8,
    /// First of the file numbers reserved for outputs, which are numbered in key order. They are
    /// all of the recipe's term.
    pub output_first: u64,
    /// How many numbers are reserved: an upper bound.
    pub output_count: u32,
    /// Longest output file in bytes, unless one entry alone is longer, or one edit could not name
    /// them all.
    pub output_len: u64,
    /// Keys (ascending) before which a file ends: no output overlaps too much of the level below
    /// it, and a job may be split there.
    pub cuts: Vec<Vec<u8>>,
    /// No level below the outputs' holds any key of the inputs' range: tombstones can go.
    pub bottommost: bool,
    /// Group time at the start, in milliseconds: what has expired by then counts as deleted for
    /// whoever reads after the job.
    pub now_ms: u64,
    /// User entries with a smaller sequence number are invisible; 0 when nothing was cleared.
    pub floor: SequenceNumber,
    /// How the outputs are written.
    pub sst: SstOptions,
    /// How operands are folded; none where the inputs hold no operands, and need not heed any above
    /// them.
    pub merging: Option<Merging>,
    /// A file ends before and after so many tombstones in a row, so that they can be merged with
    /// what they delete, and not with all that the rest of a wide file overlaps; 0: nowhere.
    pub parted_from: u32,
    /// Of a flush: values of so many bytes, or more, go to values files; 0: none does.
    pub large_from: u32,
    /// Of a compaction: values files, and segments of the log, out of which the values that it
    /// meets are copied to values files of its own. Ascending.
    pub emptied: Vec<FileId>,
    /// Of a flush: the segments of the log in which values stay. Ascending.
    pub kept: Vec<FileId>,
    /// So many bytes or more have the values that stay there; 0 where there are no such segments.
    pub kept_from: u32,
}

impl Recipe {
    /// Appends the encoded recipe.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.put_u16(VERSION);
        out.put_u8(self.kind as u8);
        out.put_u8(self.output_level);
        out.put_u8(if self.bottommost { FLAG_BOTTOMMOST } else { 0 });
        out.put_bytes(&[0; 3]);
        out.put_u64(self.term.get());
        out.put_u64(self.output_first);
        out.put_u32(self.output_count);
        out.put_u32(0);
        out.put_u64(self.output_len);
        out.put_u64(self.now_ms);
        out.put_u64(self.floor.get());
        put_list(out, FIELD_MEMTABLES, &self.memtables, |out, id| out.put_u64(id.get()));
        put_list(out, FIELD_INPUTS, &self.inputs, |out, (level, id)| {
            out.put_u8(*level);
            put_file_id(out, *id);
        });
        put_list(out, FIELD_CUTS, &self.cuts, |out, key| out.put_prefixed(key));
        let mut sst = Vec::new();
        self.sst.encode(&mut sst);
        put_field(out, FIELD_SST, FIELD_CRITICAL, &sst);
        if let Some(merging) = self.merging {
            put_field(out, FIELD_MERGING, FIELD_CRITICAL, &merging.encode());
        }
        if self.parted_from > 0 {
            put_field(out, FIELD_PARTED_FROM, FIELD_CRITICAL, &self.parted_from.to_le_bytes());
        }
        if self.large_from > 0 {
            put_field(out, FIELD_LARGE_FROM, FIELD_CRITICAL, &self.large_from.to_le_bytes());
        }
        put_list(out, FIELD_EMPTIED, &self.emptied, |out, id| put_file_id(out, *id));
        if !self.kept.is_empty() {
            let mut kept = Vec::new();
            kept.put_u32(self.kept_from);
            self.kept.iter().for_each(|id| put_file_id(&mut kept, *id));
            put_field(out, FIELD_KEPT, FIELD_CRITICAL, &kept);
        }
    }

    /// The recipe that `bytes` hold, validated.
    ///
    /// # Errors
    /// Corruption; Unsupported for an unknown version or a critical field that is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (header, rest) = bytes
            .split_at_checked(HEADER_LEN)
            .ok_or_else(|| Error::corruption("recipe: shorter than its header"))?;
        let (mut recipe, mut sst) = (decode_header(header)?, None);
        let mut fields = Fields::new(rest, "recipe");
        let mut last_tag = 0;
        while let Some(field) = fields.next_field()? {
            if field.tag <= last_tag {
                return Err(Error::corruption(format!("recipe: field {} out of order", field.tag)));
            }
            last_tag = field.tag;
            if (FIELD_MEMTABLES..=FIELD_KEPT).contains(&field.tag) && !field.critical {
                return Err(Error::corruption(format!("recipe: field {} not critical", field.tag)));
            }
            let mut payload = Reader::new(field.payload, "recipe");
            match field.tag {
                FIELD_MEMTABLES => {
                    recipe.memtables = list(payload, |r| r.u64().map(MemTableId))?;
                }
                FIELD_INPUTS => {
                    recipe.inputs = list(payload, |r| Ok((r.u8()?, file_id(r, "recipe")?)))?;
                }
                FIELD_CUTS => {
                    recipe.cuts = list(payload, |r| Ok(r.prefixed(KEY_LEN_MAX + 1)?.to_vec()))?;
                }
                FIELD_SST => sst = Some(SstOptions::decode(field.payload)?),
                FIELD_MERGING => recipe.merging = Some(Merging::decode(payload)?),
                FIELD_PARTED_FROM => recipe.parted_from = number(payload, "parted from")?,
                FIELD_LARGE_FROM => recipe.large_from = number(payload, "large from")?,
                FIELD_EMPTIED => recipe.emptied = list(payload, |r| file_id(r, "recipe"))?,
                FIELD_KEPT => {
                    recipe.kept_from = payload.u32()?;
                    recipe.kept = list(payload, |r| file_id(r, "recipe"))?;
                }
                _ => field.skip_unknown("recipe")?,
            }
        }
        recipe.sst = sst.ok_or_else(|| Error::corruption("recipe: no file options"))?;
        recipe.validate()?;
        Ok(recipe)
    }

    /// Checks what an encoding cannot express: orders, and that the parts fit the kind.
    ///
    /// # Errors
    /// Corruption that names what is wrong.
    pub fn validate(&self) -> Result<()> {
        let flush = self.kind == JobKind::Flush;
        let wrong = if !ascending(&self.cuts) {
            "cuts are not ascending"
        } else if !ascending(&self.memtables) {
            "MemTables are not ascending"
        } else if !self.inputs.is_sorted_by(|a, b| a.0 <= b.0) {
            "inputs are not ordered by level"
        } else if flush == self.memtables.is_empty()
            || (flush || self.kind == JobKind::Load) != self.inputs.is_empty()
        {
            "inputs do not fit the kind"
        } else if flush && self.output_level != 0 {
            "a flush does not go to level 0"
        } else if self.kind.makes_files() != (self.output_count > 0) {
            "reserved files do not fit the kind"
        } else if self.kind.makes_files() && self.output_len == 0 {
            "its files may have no bytes"
        } else if self.term > TERM_MAX {
            "its term is over the limit"
        } else if !self.numbers_are_of_its_term() {
            "reserved files exceed the number space of its term"
        } else if self.floor > SequenceNumber::MAX {
            "the floor is no sequence number"
        } else if self.writes_values() && self.output_count < 2 {
            "no numbers are left for values files"
        } else if self.large_from > 0 && !flush {
            "values go apart, and it is no flush"
        } else if !self.emptied.is_empty() && self.kind != JobKind::Compaction {
            "files are emptied, and it is no compaction"
        } else if !ascending(&self.emptied) {
            "the files to be emptied are not ascending"
        } else if self.emptied.iter().any(|file| file.kind == FileKind::Sst) {
            "an SST is to be emptied of values"
        } else if !self.kept.is_empty() && !flush {
            "values stay in the log, and it is no flush"
        } else if self.kept.is_empty() != (self.kept_from == 0) {
            "values stay in the log of no length, or in no segment"
        } else if !ascending(&self.kept) {
            "the segments that keep values are not ascending"
        } else if self.kept.iter().any(|file| file.kind != FileKind::LogSegment) {
            "values stay in the log, in what is no segment"
        } else {
            return self.sst.check();
        };
        Err(Error::corruption(format!("recipe: {wrong}")))
    }

    /// Whether the reserved numbers are those that the primary has in its term, and one is left:
    /// the next is a number, too.
    pub(crate) const fn numbers_are_of_its_term(&self) -> bool {
        let left = FileId::numbers_left(self.output_first, self.term);
        self.output_count == 0 || (self.output_count as u64) < left
    }

    /// Whether the job writes values files, or may.
    #[must_use]
    pub const fn writes_values(&self) -> bool {
        self.large_from > 0 || !self.emptied.is_empty()
    }

    /// The first number of its values files, if it may make any: those of SSTs are below.
    #[must_use]
    pub const fn values_first(&self) -> u64 {
        let half = if self.writes_values() { self.output_count / 2 } else { self.output_count };
        self.output_first.saturating_add(half as u64)
    }

    /// The output file numbers are below this one.
    #[must_use]
    pub fn output_end(&self) -> u64 {
        self.output_first.saturating_add(u64::from(self.output_count))
    }
}

fn decode_header(header: &[u8]) -> Result<Recipe> {
    let mut reader = Reader::new(header, "recipe");
    let version = reader.u16()?;
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "recipe has version {version}, this build knows {VERSION}"
        )));
    }
    let kind = reader.u8()?;
    let kind = JobKind::from_byte(kind)
        .ok_or_else(|| Error::unsupported(format!("recipe has unknown kind {kind}")))?;
    let output_level = reader.u8()?;
    let flags = reader.u8()?;
    if flags & !FLAG_BOTTOMMOST != 0 {
        return Err(Error::unsupported(format!("recipe has unknown flags {flags:#04x}")));
    }
    let padding = reader.array::<3>()?;
    let (term, output_first, output_count) = (reader.u64()?, reader.u64()?, reader.u32()?);
    if padding != [0; 3] || reader.u32()? != 0 {
        return Err(Error::corruption("recipe: unused bytes are not zero"));
    }
    Ok(Recipe {
        kind,
        term: Term(term),
        memtables: Vec::new(),
        inputs: Vec::new(),
        output_level,
        output_first,
        output_count,
        output_len: reader.u64()?,
        cuts: Vec::new(),
        bottommost: flags & FLAG_BOTTOMMOST != 0,
        now_ms: reader.u64()?,
        floor: SequenceNumber(reader.u64()?),
        sst: SstOptions::default(),
        merging: None,
        parted_from: 0,
        large_from: 0,
        emptied: Vec::new(),
        kept: Vec::new(),
        kept_from: 0,
    })
}

/// A number that is not 0: without one there is no field.
fn number(mut payload: Reader<'_>, what: &str) -> Result<u32> {
    let number = payload.u32()?;
    if number == 0 {
        return Err(Error::corruption(format!("recipe: {what} 0")));
    }
    payload.finish()?;
    Ok(number)
}

/// Appends a whole file id: kind u8, number as a varint.
pub(crate) fn put_file_id(out: &mut Vec<u8>, id: FileId) {
    out.put_u8(id.kind as u8);
    out.put_varint(id.number);
}

/// Bytes that [`put_file_id`] appends.
pub(crate) const fn file_id_len(id: FileId) -> usize {
    1 + varint_len(id.number)
}

/// The file id that comes next in `reader`, whose subject is `what`.
pub(crate) fn file_id(reader: &mut Reader<'_>, what: &str) -> Result<FileId> {
    let kind = reader.u8()?;
    let kind = FileKind::from_byte(kind)
        .ok_or_else(|| Error::unsupported(format!("{what}: unknown file kind {kind}")))?;
    Ok(FileId { kind, number: reader.varint()? })
}

fn ascending<T: PartialOrd>(items: &[T]) -> bool {
    items.is_sorted_by(|a, b| a < b)
}

/// Appends a field with one item after the other; nothing when there are none.
fn put_list<T>(out: &mut Vec<u8>, tag: u16, items: &[T], put: impl Fn(&mut Vec<u8>, &T)) {
    if items.is_empty() {
        return;
    }
    let mut payload = Vec::new();
    for item in items {
        put(&mut payload, item);
    }
    put_field(out, tag, FIELD_CRITICAL, &payload);
}

/// Every item of a field, of which there is at least one: an empty list has no field.
fn list<'a, T>(
    mut reader: Reader<'a>,
    item: impl Fn(&mut Reader<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut items = Vec::new();
    loop {
        items.push(item(&mut reader)?);
        if reader.is_empty() {
            return Ok(items);
        }
        if items.len() == RECIPE_ITEMS_MAX {
            return Err(Error::corruption(format!("recipe: over {RECIPE_ITEMS_MAX} items")));
        }
    }
}
