//! A version edit: one step of the tree, the same at every replica (RubbleDB §4.3). It names files
//! and the recipe that made them, never slots, and travels as a record of the group's log, whose
//! checksum covers it.
//!
//! ```text
//!  0 u16 version = 2 | u8 kind | u8 zero | u32 zero
//!  8 u64 number   16 u64 term   24 u64 next_file
//! 32 fields (gabion_base::codec), all critical, tags ascending, each at most once but 2 and 6:
//!      1 removed   u8 level, u8 file kind, varint file number each
//!      2 added     u8 level, FileMeta; one field per file
//!      3 flushed   u64 MemTable, Frontier, u64 sequence number
//!      4 floor     u64
//!      5 recipe
//!      6 values    FileMeta; one field per values file, and before them per segment of the log
//!                  that keeps values: each is referenced by an added file
//! ```
//!
//! No edit says that a values file goes: that follows from the files of the tree. It goes with the
//! last that references it.
//!
//! Numbers count by one. A gap means that an edit was lost, and is corruption: installing what
//! follows would give this replica a tree of its own. RocksDB-Cloud numbers its edits likewise
//! (manifest update sequence).

use crate::config::LEVELS_MAX;
use crate::entry::ENGINE_KEY_LEN_MAX;
use crate::file::FileMeta;
use crate::recipe::{JobKind, RECIPE_ITEMS_MAX, Recipe, file_id, file_id_len, put_file_id};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{FIELD_CRITICAL, Field, Fields, Put, Reader, put_field};
use gabion_base::units::EDIT_LEN_MAX;
use gabion_base::{
    Error, FileId, FileKind, Frontier, MemTableId, Result, SequenceNumber, TERM_MAX, Term,
};

const VERSION: u16 = 2;
const HEADER_LEN: usize = 32;
const FIELD_REMOVED: u16 = 1;
const FIELD_ADDED: u16 = 2;
const FIELD_FLUSHED: u16 = 3;
const FIELD_FLOOR: u16 = 4;
const FIELD_RECIPE: u16 = 5;
const FIELD_VALUES: u16 = 6;
/// Tag, flags and length.
const FIELD_HEADER_LEN: usize = 2 + 2 + 4;
const FLUSHED_LEN: usize = 8 + Frontier::ENCODED_LEN + 8;
const FLOOR_LEN: usize = 8;

/// What a flush takes over from the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushed {
    /// This MemTable and all before it are in files.
    pub memtable: MemTableId,
    /// Replay begins here: right after the seal of `memtable`.
    pub frontier: Frontier,
    /// The last sequence number before `frontier`.
    pub sequence: SequenceNumber,
}

/// One step of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Its ordinal: the first is 1, each the one before plus one.
    pub number: u64,
    /// What was done.
    pub kind: JobKind,
    /// Tenure of the primary that appended it.
    pub term: Term,
    /// Files that leave the tree (or their level), with the level.
    pub removed: Vec<(u8, FileId)>,
    /// Files that enter the tree (or a level), with the level.
    pub added: Vec<(u8, FileMeta)>,
    /// Values files that come with these, ascending; of a flush, before them, the segments of the
    /// log in which it left values.
    pub values: Vec<FileMeta>,
    /// What has been flushed, when this edit is a flush's.
    pub flushed: Option<Flushed>,
    /// File numbers below this one are used up. It is of the edit's term, or of an earlier one.
    pub next_file: u64,
    /// User entries with a smaller sequence number are invisible, when anything was cleared.
    pub floor: Option<SequenceNumber>,
    /// How the added files were made; at least for every edit that adds new ones.
    pub recipe: Option<Recipe>,
}

impl Edit {
    /// Bytes that an added file takes besides its description: tag, flags and length of a field,
    /// and its level.
    pub const ADDED_OVERHEAD_LEN: usize = FIELD_HEADER_LEN + 1;

    /// Bytes that the edit of a job with this recipe has for added files, at most: what
    /// [`EDIT_LEN_MAX`] leaves besides all else that [`crate::Tree::finish_job`] puts into it.
    pub(crate) fn room_for_added(recipe: &Recipe) -> usize {
        let mut encoded = Vec::new();
        recipe.encode(&mut encoded);
        let removed: usize = recipe.inputs.iter().map(|(_, id)| 1 + file_id_len(*id)).sum();
        let fields = 4 * FIELD_HEADER_LEN + FLUSHED_LEN + FLOOR_LEN;
        EDIT_LEN_MAX.saturating_sub(HEADER_LEN + fields + removed + encoded.len())
    }

    /// The encoded edit.
    ///
    /// # Errors
    /// Limit exceeded when it is longer than [`EDIT_LEN_MAX`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(1024);
        out.put_u16(VERSION);
        out.put_u8(self.kind as u8);
        out.put_u8(0);
        out.put_u32(0);
        out.put_u64(self.number);
        out.put_u64(self.term.get());
        out.put_u64(self.next_file);
        let mut payload = Vec::new();
        let mut put = |tag, fill: &dyn Fn(&mut Vec<u8>)| {
            payload.clear();
            fill(&mut payload);
            put_field(&mut out, tag, FIELD_CRITICAL, &payload);
        };
        if !self.removed.is_empty() {
            put(FIELD_REMOVED, &|payload| {
                for (level, id) in &self.removed {
                    payload.put_u8(*level);
                    put_file_id(payload, *id);
                }
            });
        }
        for (level, meta) in &self.added {
            put(FIELD_ADDED, &|payload| {
                payload.put_u8(*level);
                meta.encode(payload);
            });
        }
        if let Some(flushed) = &self.flushed {
            put(FIELD_FLUSHED, &|payload| {
                payload.put_u64(flushed.memtable.get());
                flushed.frontier.encode(payload);
                payload.put_u64(flushed.sequence.get());
            });
        }
        if let Some(floor) = self.floor {
            put(FIELD_FLOOR, &|payload| payload.put_u64(floor.get()));
        }
        if let Some(recipe) = &self.recipe {
            put(FIELD_RECIPE, &|payload| recipe.encode(payload));
        }
        for meta in &self.values {
            put(FIELD_VALUES, &|payload| meta.encode(payload));
        }
        if out.len() > EDIT_LEN_MAX {
            return Err(Error::limit(format!(
                "edit {} is {} bytes long, the limit is {EDIT_LEN_MAX}",
                self.number,
                out.len()
            )));
        }
        Ok(out)
    }

    /// The edit that `bytes` hold, validated.
    ///
    /// # Errors
    /// Corruption; Unsupported for an unknown version or a critical field that is unknown.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > EDIT_LEN_MAX {
            return Err(Error::corruption(format!(
                "edit is {} bytes long, the limit is {EDIT_LEN_MAX}",
                bytes.len()
            )));
        }
        let (header, rest) = bytes
            .split_at_checked(HEADER_LEN)
            .ok_or_else(|| Error::corruption("edit: shorter than its header"))?;
        let mut edit = decode_header(header)?;
        let mut fields = Fields::new(rest, "edit");
        let mut last_tag = 0;
        while let Some(field) = fields.next_field()? {
            let may_repeat = matches!(field.tag, FIELD_ADDED | FIELD_VALUES);
            let again = field.tag == last_tag && may_repeat;
            if field.tag <= last_tag && !again {
                return Err(Error::corruption(format!("edit: field {} out of order", field.tag)));
            }
            last_tag = field.tag;
            edit.take_field(&field)?;
        }
        edit.validate()?;
        Ok(edit)
    }

    fn take_field(&mut self, field: &Field<'_>) -> Result<()> {
        if (FIELD_REMOVED..=FIELD_VALUES).contains(&field.tag) && !field.critical {
            return Err(Error::corruption(format!("edit: field {} not critical", field.tag)));
        }
        let mut reader = Reader::new(field.payload, "edit");
        match field.tag {
            FIELD_REMOVED => {
                while self.removed.is_empty() || !reader.is_empty() {
                    self.removed.push((reader.u8()?, file_id(&mut reader, "edit")?));
                    if self.removed.len() > RECIPE_ITEMS_MAX {
                        return Err(Error::corruption("edit: removes too many files"));
                    }
                }
            }
            FIELD_ADDED => {
                let level = reader.u8()?;
                let meta = FileMeta::decode(reader.bytes(reader.remaining())?)?;
                self.added.push((level, meta));
            }
            FIELD_FLUSHED => {
                self.flushed = Some(Flushed {
                    memtable: MemTableId(reader.u64()?),
                    frontier: Frontier::decode(&mut reader, "edit")?,
                    sequence: SequenceNumber(reader.u64()?),
                });
            }
            FIELD_FLOOR => self.floor = Some(SequenceNumber(reader.u64()?)),
            FIELD_RECIPE => {
                let bytes = reader.bytes(reader.remaining())?;
                self.recipe = Some(Recipe::decode(bytes)?);
            }
            FIELD_VALUES => {
                self.values.push(FileMeta::decode(reader.bytes(reader.remaining())?)?);
            }
            _ => return field.skip_unknown("edit"),
        }
        reader.finish()
    }

    /// Checks what holds for an edit by itself; [`crate::Version::apply`] checks it against a tree.
    ///
    /// # Errors
    /// Corruption that names the edit and what is wrong with it.
    pub fn validate(&self) -> Result<()> {
        let wrong = if self.number == 0 {
            "its number is 0"
        } else if self.term > TERM_MAX {
            "its term is over the limit"
        } else if FileId::sst(self.next_file).term() > self.term {
            "next_file is of a later term"
        } else if self.levels().any(|level| level >= LEVELS_MAX) {
            "a level is over the limit"
        } else if self.flushed.is_some() != (self.kind == JobKind::Flush) {
            "flushed MemTables do not fit the kind"
        } else if self.kind == JobKind::Flush
            && (!self.removed.is_empty() || self.added.iter().any(|(level, _)| *level != 0))
        {
            "a flush does more than add to level 0"
        } else if self.kind == JobKind::Load && !self.is_load() {
            "a load does more than add files of one sequence number"
        } else if !matches!(self.kind, JobKind::Flush | JobKind::Load) && self.removed.is_empty() {
            "nothing is removed"
        } else if self.kind == JobKind::Drop && !self.added.is_empty() {
            "a drop adds files"
        } else if self.kind == JobKind::TrivialMove && !self.is_move() {
            "a move does not add what it removes"
        } else if self.removed.iter().any(|(_, id)| id.kind != FileKind::Sst) {
            "a removed file is no SST"
        } else if self.added.iter().any(|(_, meta)| meta.id.kind != FileKind::Sst) {
            "an added file is no SST"
        } else if self.added.iter().any(|(_, meta)| !meta.clears.is_empty()) {
            "an added file holds clears, which are kept as the floor"
        } else if self.added.iter().any(|(_, meta)| meta.id.number >= self.next_file) {
            "an added file's number is not below next_file"
        } else if self.added.iter().any(|(_, meta)| has_longer_bound(meta)) {
            "an added file has a bound that is longer than any key"
        } else if self.flushed.is_some_and(|f| f.sequence > SequenceNumber::MAX)
            || self.floor.is_some_and(|floor| floor > SequenceNumber::MAX)
        {
            "a sequence number is over the limit"
        } else {
            return self.validate_parts();
        };
        Err(Error::corruption(format!("edit {}: {wrong}", self.number)))
    }

    fn validate_parts(&self) -> Result<()> {
        for (_, meta) in &self.added {
            meta.check_references().map_err(|e| e.within(format!("edit {}", self.number)))?;
        }
        self.validate_values()?;
        self.validate_recipe()
    }

    fn validate_values(&self) -> Result<()> {
        let Some(first) = self.values.first() else { return Ok(()) };
        let is_unnamed = |meta: &&FileMeta| {
            let references = self.added.iter().flat_map(|(_, added)| &added.references);
            !references.into_iter().any(|reference| reference.file == meta.id)
        };
        let wrong = if !matches!(self.kind, JobKind::Flush | JobKind::Compaction) {
            "values files come with no job that makes any"
        } else if self.values.iter().any(|meta| meta.id.kind == FileKind::Sst) {
            "a values file is none"
        } else if self.kind != JobKind::Flush && self.segments().next().is_some() {
            "values stay in the log, and it is no flush"
        } else if !self.values.is_sorted_by(|a, b| a.id < b.id) {
            "values files do not ascend"
        } else if self.made_values().any(|meta| meta.id.number >= self.next_file) {
            "a values file's number is not below next_file"
        } else if self.values.iter().any(|meta| !meta.references.is_empty()) {
            "a values file references another"
        } else if self.values.iter().any(has_longer_bound) {
            "a values file has a bound that is longer than any key"
        } else if let Some(meta) = self.values.iter().find(is_unnamed) {
            return Err(Error::corruption(format!(
                "edit {}: no added file references {}",
                self.number, meta.id
            )));
        } else {
            return Ok(());
        };
        Err(Error::corruption(format!("edit {}: {wrong}: {}", self.number, first.id)))
    }

    fn validate_recipe(&self) -> Result<()> {
        let Some(recipe) = &self.recipe else { return Ok(()) };
        recipe.validate()?;
        let own = |number| (recipe.output_first..recipe.output_end()).contains(&number);
        let wrong = if recipe.kind != self.kind {
            "its recipe is of another kind"
        } else if recipe.inputs != self.removed {
            "it removes other files than its recipe reads"
        } else if self.kind.makes_files() && self.added.iter().any(|(_, m)| !own(m.id.number)) {
            "an added file's number is not one of its recipe's"
        } else if self.made_values().any(|meta| !own(meta.id.number)) {
            "a values file's number is not one of its recipe's"
        } else if self.made_values().next().is_some() && !recipe.writes_values() {
            "values files come of a recipe that makes none"
        } else if !self.segments().all(|it| recipe.kept.binary_search(&it.id).is_ok()) {
            "a segment keeps values that its recipe does not leave there"
        } else if self.kind != JobKind::Load
            && self.added.iter().any(|(level, _)| *level != recipe.output_level)
        {
            "a file is added to another level than its recipe's"
        } else {
            return Ok(());
        };
        Err(Error::corruption(format!("edit {}: {wrong}", self.number)))
    }

    /// Segments of the log that keep values for it: nobody makes them, they are there.
    pub fn segments(&self) -> impl Iterator<Item = &FileMeta> {
        self.values.iter().filter(|meta| meta.id.kind == FileKind::LogSegment)
    }

    /// Values files that its job wrote.
    fn made_values(&self) -> impl Iterator<Item = &FileMeta> {
        self.values.iter().filter(|meta| meta.id.kind == FileKind::Values)
    }

    /// The descriptions of all files that come with it, or are moved.
    pub fn made(&self) -> impl Iterator<Item = &FileMeta> {
        self.added.iter().map(|(_, meta)| meta).chain(&self.values)
    }

    fn levels(&self) -> impl Iterator<Item = u8> {
        self.removed.iter().map(|r| r.0).chain(self.added.iter().map(|a| a.0))
    }

    /// Whether it only adds files, whose entries all have one sequence number.
    fn is_load(&self) -> bool {
        let at = |meta: &FileMeta| (meta.smallest_sequence, meta.largest_sequence);
        let first = self.added.first().map(|(_, meta)| at(meta));
        first.is_some_and(|(at, last)| at == last && at > SequenceNumber::ZERO)
            && self.added.iter().all(|(_, meta)| Some(at(meta)) == first)
            && self.removed.is_empty()
            && self.recipe.is_some()
    }

    fn is_move(&self) -> bool {
        self.removed.len() == self.added.len()
            && self.removed.iter().zip(&self.added).all(|(r, a)| r.1 == a.1.id && r.0 < a.0)
    }
}

/// Whoever decodes its description refuses it: better the head does before it is in the log.
fn has_longer_bound(meta: &FileMeta) -> bool {
    meta.smallest.len().max(meta.largest.len()) > ENGINE_KEY_LEN_MAX
}

fn decode_header(header: &[u8]) -> Result<Edit> {
    let mut reader = Reader::new(header, "edit");
    let version = reader.u16()?;
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "edit has version {version}, this build knows {VERSION}"
        )));
    }
    let kind = reader.u8()?;
    let kind = JobKind::from_byte(kind)
        .ok_or_else(|| Error::unsupported(format!("edit has unknown kind {kind}")))?;
    if reader.array::<5>()? != [0; 5] {
        return Err(Error::corruption("edit: unused bytes are not zero"));
    }
    Ok(Edit {
        number: reader.u64()?,
        kind,
        term: Term(reader.u64()?),
        next_file: reader.u64()?,
        removed: Vec::new(),
        added: Vec::new(),
        values: Vec::new(),
        flushed: None,
        floor: None,
        recipe: None,
    })
}
