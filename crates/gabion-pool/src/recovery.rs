//! Creation and opening of a pool.
//!
//! Creation writes the placement log first and the superblock last, so a device either holds a
//! whole pool or none (docs/faults.md E16). Opening picks the newest area of the placement log
//! whose snapshot and opening commit are whole, applies its commits, and repairs single bad copies.
//! What is older than the chosen area is of no interest, however damaged. What is damaged and
//! newer, or has something whole behind it, is refused with its place (docs/faults.md E3–E5).

use crate::file_io::{read_span, write_commit};
use crate::placement_log::{Operation, RECORD_VERSION, RecordHeader, RecordKind};
use crate::superblock::{Area, PoolConfig, Superblock};
use crate::{Pool, PoolId};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use gabion_base::units::{BLOCK_LEN, MIB};
use gabion_base::{Error, ErrorKind, Result};
use gabion_media::{AlignedBuf, Bytes, MediumHandle};

const BLOCK: u64 = BLOCK_LEN as u64;

/// An opened pool and what the upper layer kept in it.
pub struct Recovered {
    /// The pool.
    pub pool: Pool,
    /// The upper layer's state at the last checkpoint.
    pub opaque_snapshot: Bytes,
    /// The upper layer's entries since then, in order: kind and bytes.
    pub opaque: Vec<(u16, Vec<u8>)>,
}

/// Makes a pool with one region on an empty medium.
///
/// # Durability
/// When it returns without error the pool survives a power cut. Interrupted, or after an error, it
/// leaves no pool or the whole one.
///
/// # Errors
/// Invalid input when the medium is too small or holds a pool already; limit exceeded when the
/// length is out of bounds; the medium's errors.
pub async fn create(
    medium: &MediumHandle,
    config: &PoolConfig,
    opaque_snapshot: &[u8],
) -> Result<()> {
    create_planned(medium, &Superblock::plan(config)?, opaque_snapshot).await
}

pub(crate) async fn create_planned(
    medium: &MediumHandle,
    superblock: &Superblock,
    opaque_snapshot: &[u8],
) -> Result<()> {
    let mut pool = new_pool(medium, superblock).await?;
    finish_creation(medium, superblock, &mut pool, opaque_snapshot).await
}

/// The pool that is to be made on a medium that holds none.
pub(crate) async fn new_pool(medium: &MediumHandle, superblock: &Superblock) -> Result<Pool> {
    check_medium(medium, superblock.len)?;
    match read_superblock(medium).await {
        Err(error) if error.kind() == ErrorKind::NotFound => empty_pool(superblock),
        Err(error) => Err(error.within("no pool is created over what may be one")),
        Ok((found, _)) => {
            Err(Error::invalid(format!("the medium already holds pool {}", hex(&found.pool_id))))
        }
    }
}

/// Writes the first checkpoint and then, last, the superblock.
pub(crate) async fn finish_creation(
    medium: &MediumHandle,
    superblock: &Superblock,
    pool: &mut Pool,
    opaque_snapshot: &[u8],
) -> Result<()> {
    write_commit(medium, pool.checkpoint(opaque_snapshot)?).await?;
    let block = AlignedBuf::copy_of(&superblock.encode()).freeze();
    // One after the other: a torn first copy with a blank second one is an unfinished creation, two
    // bad copies are rot.
    for offset in [0, BLOCK] {
        medium.write(offset, block.clone()).await?;
        medium.flush().await?;
    }
    Ok(())
}

/// What may be taken for durable of what can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Everything, after one flush.
    Readable,
    /// Only what a flush is known to have covered. A process that ran since the machine started met
    /// a flush that failed: what that should have covered may never reach the device, though reads
    /// see it and every later flush succeeds (docs/faults.md E8). It is written again.
    Flushed,
}

/// Opens the pool on a medium. The caller holds the device's lock, so that nobody else writes.
///
/// A commit that was on its way at a crash is there or not; which of the two is settled when this
/// returns, as the next commit then stands where it would be. An opening that is itself interrupted
/// settles nothing.
///
/// # Durability
/// Everything that the returned state rests on survives a power cut.
///
/// # Errors
/// Not found when the medium holds no complete pool; unsupported, naming both sides, when version
/// or features are beyond this build; corruption, naming the place, when what is there is not what
/// was written and no second copy helps; the medium's errors.
pub async fn open(medium: &MediumHandle, trust: Trust) -> Result<Recovered> {
    let Image { mut recovered, repairs, last } = recover(medium).await?;
    for (offset, data) in repairs {
        medium.write_all(offset, data).await?;
    }
    if trust == Trust::Flushed {
        // Each commit is flushed before the next one begins, so no other one is in doubt. One copy
        // after the other: a power cut may damage the one that is being written.
        for offset in last.copies {
            medium.write_all(offset, last.bytes.clone()).await?;
            medium.flush().await?;
        }
    }
    // A record read back may have been written by a process that died before its flush.
    medium.flush().await?;
    let pool = &mut recovered.pool;
    pool.reserve_generations();
    if let Some(commit) = pool.take_commit() {
        let number = commit.number;
        write_commit(medium, commit).await?;
        pool.committed(number);
    }
    Ok(recovered)
}

/// What [`read`] found.
pub struct AtRest {
    /// What [`open`] would return.
    pub recovered: Recovered,
    /// Copies that are bad and that [`open`] would write again: offset and bytes.
    pub bad_copies: Vec<(u64, u64)>,
}

/// Reads the pool on a medium as [`open`] does, and writes nothing: for tools that look at a pool
/// which no replica runs on.
///
/// # Errors
/// As [`open`].
pub async fn read(medium: &MediumHandle) -> Result<AtRest> {
    let Image { recovered, repairs, .. } = recover(medium).await?;
    let place = |(offset, data): (u64, Bytes)| (offset, data.len() as u64);
    Ok(AtRest { recovered, bad_copies: repairs.into_iter().map(place).collect() })
}

/// What a medium holds, and what has to be written to have every copy whole again.
pub(crate) struct Image {
    pub(crate) recovered: Recovered,
    pub(crate) repairs: Vec<(u64, Bytes)>,
    last: LastCommit,
}

/// The newest commit, and where its copies stand on the medium.
struct LastCommit {
    copies: [u64; 2],
    bytes: Bytes,
}

/// Reads a pool without changing anything.
pub(crate) async fn recover(medium: &MediumHandle) -> Result<Image> {
    let (superblock, mut repairs) = read_superblock(medium).await?;
    check_medium(medium, superblock.len)?;
    let mut pool = empty_pool(&superblock)?;
    let mut states = Vec::new();
    for (index, &area) in superblock.areas.iter().enumerate() {
        states.push(read_area(medium, index, area, superblock.pool_id).await?);
    }
    let log = choose(states)?;
    let mut opaque_snapshot = Bytes::new();
    let mut opaque = Vec::new();
    for record in &log.records {
        let place = || format!("placement log, commit {} at byte {}", record.number, record.offset);
        let operations = Operation::decode_all(&record.body).map_err(|e| e.within(place()))?;
        for operation in operations {
            match operation {
                Operation::Opaque { kind, bytes } => opaque.push((kind, bytes)),
                Operation::OpaqueSnapshot(bytes) => opaque_snapshot = Bytes::from(bytes),
                operation => pool
                    .replay(operation)
                    .map_err(|e| Error::with_source(ErrorKind::Corruption, place(), e))?,
            }
        }
    }
    repairs.extend(log.repairs);
    pool.resume(log.index, log.epoch, log.number, log.previous_crc, log.used);
    let recovered = Recovered { pool, opaque_snapshot, opaque };
    let end = superblock.areas[log.index].offset + log.used;
    let len = log.last.len() as u64;
    let last = LastCommit { copies: [end - 2 * len, end - len], bytes: log.last };
    Ok(Image { recovered, repairs, last })
}

fn hex(pool_id: &PoolId) -> String {
    pool_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn check_medium(medium: &MediumHandle, len: u64) -> Result<()> {
    let properties = medium.properties();
    if properties.len < len {
        return Err(Error::invalid(format!(
            "the pool has {len} bytes, the medium only {}",
            properties.len
        )));
    }
    if !BLOCK_LEN.is_multiple_of(properties.alignment) {
        return Err(Error::unsupported(format!(
            "the medium needs an alignment of {} bytes, the pool keeps {BLOCK_LEN}",
            properties.alignment
        )));
    }
    Ok(())
}

fn empty_pool(superblock: &Superblock) -> Result<Pool> {
    let [region] = &superblock.regions[..] else {
        return Err(Error::unsupported(format!(
            "the pool has {} regions, this build knows pools of one",
            superblock.regions.len()
        )));
    };
    Ok(Pool::new(superblock, region.geometry.clone(), region.group))
}

/// The superblock, and the copy to write over a bad one.
pub(crate) async fn read_superblock(
    medium: &MediumHandle,
) -> Result<(Superblock, Vec<(u64, Bytes)>)> {
    let len = medium.properties().len;
    if len < 2 * BLOCK {
        return Err(Error::not_found(format!(
            "not a Gabion pool: {len} bytes in whole blocks, its superblocks alone take {}",
            2 * BLOCK
        )));
    }
    let mut copies = Vec::new();
    for offset in [0, BLOCK] {
        let copy = match medium.read(offset, BLOCK_LEN).await {
            Ok(block) => Superblock::decode(&block),
            Err(error) => Err(error),
        };
        match copy {
            Err(error) if error.kind() == ErrorKind::Unsupported => return Err(error),
            copy => copies.push(copy),
        }
    }
    let (second, first) = (copies.pop(), copies.pop());
    let repair = |at: u64, good: &Superblock| {
        alloc::vec![(at, AlignedBuf::copy_of(&good.encode()).freeze())]
    };
    match (first, second) {
        (Some(Ok(Some(a))), Some(Ok(Some(b)))) if a == b => Ok((a, Vec::new())),
        (Some(Ok(Some(a))), Some(Ok(Some(b)))) if a.revision == b.revision => {
            Err(Error::corruption(format!(
                "two superblocks of revision {} differ (pools {} and {})",
                a.revision,
                hex(&a.pool_id),
                hex(&b.pool_id)
            )))
        }
        (Some(Ok(Some(a))), Some(Ok(Some(b)))) => Ok(if a.revision > b.revision {
            let repairs = repair(BLOCK, &a);
            (a, repairs)
        } else {
            let repairs = repair(0, &b);
            (b, repairs)
        }),
        (Some(Ok(Some(a))), _) => {
            let repairs = repair(BLOCK, &a);
            Ok((a, repairs))
        }
        (_, Some(Ok(Some(b)))) => {
            let repairs = repair(0, &b);
            Ok((b, repairs))
        }
        (_, Some(Err(error))) => Err(error.within("both superblocks are bad")),
        (Some(Err(error)), _) if error.kind() != ErrorKind::Corruption => Err(error),
        _ => Err(Error::not_found(
            "not a complete pool: no superblock (`GABPOOL`) in blocks 0 and 1 (never created, or creation \
             was interrupted)",
        )),
    }
}

/// A whole record's body and where it stands.
struct Record {
    number: u64,
    offset: u64,
    body: Bytes,
}

/// What a usable area holds.
struct AreaLog {
    index: usize,
    epoch: u64,
    number: u64,
    previous_crc: u32,
    used: u64,
    records: Vec<Record>,
    repairs: Vec<(u64, Bytes)>,
    /// One copy of the last commit; of an area without one, nothing.
    last: Bytes,
}

enum AreaState {
    /// Snapshot, opening and all commits behind them.
    Complete(AreaLog),
    /// No checkpoint was ever finished here in the epoch that it would be of.
    Unfinished,
    /// The commit of this number stands where it can be only if something bad before it was whole
    /// once, or may stand where nothing can be read.
    Damaged { number: u64, error: Error },
}

impl AreaLog {
    /// Whether this area was opened after everything in `older`. Commit numbers rise from area to
    /// area, so the one is after the other, except for what is left of a checkpoint that never
    /// finished, which bits of a later write can make look whole: then `older` went on meanwhile.
    fn succeeds(&self, older: &Self) -> bool {
        self.records[0].number > older.number
    }
}

/// The newest complete area, unless damage is as new.
fn choose(states: Vec<AreaState>) -> Result<AreaLog> {
    let mut best: Option<AreaLog> = None;
    let mut damage: Option<(u64, Error)> = None;
    for state in states {
        match state {
            AreaState::Complete(log) => {
                best = Some(match best.take() {
                    Some(other) if other.succeeds(&log) => other,
                    Some(other) if !log.succeeds(&other) && other.epoch < log.epoch => other,
                    _ => log,
                });
            }
            AreaState::Damaged { number, error } => {
                if damage.as_ref().is_none_or(|&(other, _)| number > other) {
                    damage = Some((number, error));
                }
            }
            AreaState::Unfinished => {}
        }
    }
    match (best, damage) {
        (Some(log), Some((number, _))) if log.number >= number => Ok(log),
        (_, Some((_, error))) => Err(error),
        (Some(log), None) => Ok(log),
        (None, None) => {
            Err(Error::corruption("neither area of the placement log holds a whole checkpoint"))
        }
    }
}

async fn read_area(
    medium: &MediumHandle,
    index: usize,
    area: Area,
    pool_id: PoolId,
) -> Result<AreaState> {
    let mut reader = AreaReader::new(medium, index, area, pool_id);
    let snapshot = reader.record(0).await?.filter(|(h, _)| h.kind == RecordKind::Snapshot);
    let Some((header, bytes)) = snapshot else {
        return reader.without_snapshot().await;
    };
    let mut log = AreaLog {
        index,
        epoch: header.epoch,
        number: header.number,
        previous_crc: header.crc,
        used: header.padded_len(),
        records: alloc::vec![reader.to_record(0, &header, &bytes)],
        repairs: Vec::new(),
        last: Bytes::new(),
    };
    let mut expected = header.number;
    while let Some(found) = reader.commit(&log, expected).await? {
        match found {
            Found::Commit { header, bytes, repair } => {
                log.records.push(reader.to_record(log.used, &header, &bytes));
                log.repairs.extend(repair);
                log.last = bytes;
                log.used += 2 * header.padded_len();
                (log.number, log.previous_crc) = (header.number, header.crc);
                expected = header.number + 1;
            }
            Found::Damage(number, error) => return Ok(AreaState::Damaged { number, error }),
        }
    }
    let has_opening = log.records.len() > 1;
    Ok(if has_opening { AreaState::Complete(log) } else { AreaState::Unfinished })
}

enum Found {
    /// A whole copy, and what to write over the other one if that is bad.
    Commit { header: RecordHeader, bytes: Bytes, repair: Option<(u64, Bytes)> },
    /// The newest number that stands behind a bad place, and the error.
    Damage(u64, Error),
}

/// What a look at the rest of an area found.
enum Search {
    /// The second copy of the commit whose first copy is bad.
    SecondCopy(RecordHeader, Bytes),
    /// No second copy.
    Newest {
        /// The newest whole commit and its position.
        newest: Option<(u64, RecordHeader)>,
        /// How many blocks could not be read, and why the last of them.
        unreadable: Option<(u32, Error)>,
    },
}

/// Reads records of one area through a window. Positions count from the area's start.
pub(crate) struct AreaReader<'a> {
    medium: &'a MediumHandle,
    index: usize,
    pub(crate) area: Area,
    pool_id: PoolId,
    window: Bytes,
    window_at: u64,
    /// How many blocks could not be read and were taken for zeros, and why the last of them.
    pub(crate) unreadable: Option<(u32, Error)>,
}

impl<'a> AreaReader<'a> {
    pub(crate) const fn new(
        medium: &'a MediumHandle,
        index: usize,
        area: Area,
        pool_id: PoolId,
    ) -> Self {
        let window = Bytes::new();
        Self { medium, index, area, pool_id, window, window_at: 0, unreadable: None }
    }
}

impl AreaReader<'_> {
    fn to_record(&self, at: u64, header: &RecordHeader, bytes: &Bytes) -> Record {
        Record { number: header.number, offset: self.area.offset + at, body: header.body(bytes) }
    }

    /// What an area is whose snapshot is bad. If a checkpoint was ever finished here, its opening
    /// commit stands in two copies, which one unreadable block cannot both hide; more could.
    async fn without_snapshot(&mut self) -> Result<AreaState> {
        let Search::Newest { newest, unreadable } = self.search(0, |_| false).await? else {
            unreachable!("nothing follows");
        };
        Ok(match (newest, unreadable) {
            (Some((at, stray)), None | Some((1, _))) => AreaState::Damaged {
                number: stray.number,
                error: self.damage(0, "a bad snapshot", at, &stray),
            },
            (_, Some((_, error))) => AreaState::Damaged { number: u64::MAX, error },
            (None, None) => AreaState::Unfinished,
        })
    }

    const fn name(&self) -> &'static str {
        if self.index == 0 { "A" } else { "B" }
    }

    fn damage(&self, at: u64, what: &str, later: u64, record: &RecordHeader) -> Error {
        Error::corruption(format!(
            "placement log, area {}: {what} at byte {}, but commit {} of epoch {} is whole at byte {}",
            self.name(),
            self.area.offset + at,
            record.number,
            record.epoch,
            self.area.offset + later
        ))
    }

    /// `len` bytes at `at`, both whole blocks inside the area.
    pub(crate) async fn bytes(&mut self, at: u64, len: u64) -> Result<Bytes> {
        let end = self.window_at + self.window.len() as u64;
        if at < self.window_at || at + len > end {
            let window_len = len.max(MIB).min(self.area.len - at);
            self.window = match read_span(self.medium, self.area.offset + at, window_len).await {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Io => {
                    self.readable_blocks(at, window_len).await
                }
                Err(error) => return Err(error),
            };
            self.window_at = at;
        }
        let start = (at - self.window_at) as usize;
        Ok(self.window.slice(start..start + len as usize))
    }

    /// What can be read, block by block; a block that cannot is zeros here, as a second copy may
    /// make good for it; where none does, [`Self::search`] tells.
    async fn readable_blocks(&mut self, at: u64, len: u64) -> Bytes {
        let mut whole = AlignedBuf::with_capacity(len as usize);
        for block in (at..at + len).step_by(BLOCK_LEN) {
            match self.medium.read(self.area.offset + block, BLOCK_LEN).await {
                Ok(bytes) => whole.extend(&bytes),
                Err(error) => {
                    let before = self.unreadable.as_ref().map_or(0, |&(blocks, _)| blocks);
                    self.unreadable = Some((before + 1, error));
                    whole.pad_to(whole.len() + BLOCK_LEN);
                }
            }
        }
        whole.freeze()
    }

    /// The whole record of this pool at `at`, if there is one.
    pub(crate) async fn record(&mut self, at: u64) -> Result<Option<(RecordHeader, Bytes)>> {
        if at + BLOCK > self.area.len {
            return Ok(None);
        }
        let Some((version, header)) = RecordHeader::peek(&self.bytes(at, BLOCK).await?) else {
            return Ok(None);
        };
        if header.pool_id != self.pool_id || header.padded_len() > self.area.len - at {
            return Ok(None);
        }
        let bytes = self.bytes(at, header.padded_len()).await?;
        if !header.is_whole(&bytes) {
            return Ok(None);
        }
        if version != RECORD_VERSION {
            return Err(Error::unsupported(format!(
                "placement log: the record at byte {} has version {version}, this build knows \
                 version {RECORD_VERSION}",
                self.area.offset + at
            )));
        }
        Ok(Some((header, bytes)))
    }

    /// Looks from `from` to the end of the area for the second copy of a commit that `follows` and
    /// has a bad first copy at `from`, and for the newest whole commit.
    async fn search(
        &mut self,
        from: u64,
        follows: impl Fn(&RecordHeader) -> bool,
    ) -> Result<Search> {
        (self.window, self.unreadable) = (Bytes::new(), None);
        let mut newest: Option<(u64, RecordHeader)> = None;
        for at in (from..self.area.len).step_by(BLOCK_LEN) {
            let Some((header, bytes)) = self.record(at).await? else { continue };
            if header.kind != RecordKind::Commit {
                continue;
            }
            if follows(&header) && at == from + header.padded_len() {
                return Ok(Search::SecondCopy(header, bytes));
            }
            if newest.is_none_or(|(_, n)| (header.epoch, header.number) > (n.epoch, n.number)) {
                newest = Some((at, header));
            }
        }
        let unreadable = self.unreadable.take().map(|(blocks, error)| {
            (blocks, error.within(format!("placement log, area {}", self.name())))
        });
        Ok(Search::Newest { newest, unreadable })
    }

    /// The commit numbered `expected` at the end of `log`, from either copy; nothing at the end of
    /// the log.
    async fn commit(&mut self, log: &AreaLog, expected: u64) -> Result<Option<Found>> {
        let at = log.used;
        let follows = |header: &RecordHeader| {
            header.kind == RecordKind::Commit
                && header.epoch == log.epoch
                && header.number == expected
                && header.previous_crc == log.previous_crc
        };
        if let Some((header, bytes)) = self.record(at).await?.filter(|(h, _)| follows(h)) {
            let second = at + header.padded_len();
            let is_same = match self.area.len.checked_sub(second + header.padded_len()) {
                Some(_) => self.bytes(second, header.padded_len()).await? == bytes,
                None => true,
            };
            let repair = (!is_same).then(|| (self.area.offset + second, bytes.clone()));
            return Ok(Some(Found::Commit { header, bytes, repair }));
        }
        let (newest, unreadable) = match self.search(at, follows).await? {
            Search::SecondCopy(header, bytes) => {
                let repair = Some((self.area.offset + at, bytes.clone()));
                return Ok(Some(Found::Commit { header, bytes, repair }));
            }
            Search::Newest { newest, unreadable } => (newest, unreadable),
        };
        if let Some((_, error)) = unreadable {
            // An acknowledged commit may stand there: not a torn tail.
            let number = newest.map_or(log.number, |(_, newest)| newest.number.max(log.number));
            return Ok(Some(Found::Damage(number, error)));
        }
        let Some((later, newest)) = newest else { return Ok(None) };
        if (newest.epoch, newest.number) < (log.epoch, expected) {
            return Ok(None);
        }
        let error = self.damage(at, &format!("no whole commit {expected}"), later, &newest);
        Ok(Some(Found::Damage(newest.number, error)))
    }
}
