//! Reading and writing files through their placements, on this device or on a peer's namespace.
//!
//! Adjacent slots are adjacent bytes, so a file in neighbouring slots is one run, cut only by the
//! medium's largest transfer. All transfers of a call are under way at once.

use crate::{Commit, FilePlacement, Geometry, PoolId, SlotHeader};
use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::units::{BLOCK_LEN, CHUNK_LEN, SLOT_LEN, TRANSFER_LEN_MAX};
use gabion_base::{Error, GroupId, Result, SlotIndex, crc};
use gabion_media::{AlignedBuf, Bytes, MediumHandle, OperationKind};

const BLOCK: u64 = BLOCK_LEN as u64;

/// Writes a commit of the placement log.
///
/// # Durability
/// When it returns without error the commit survives a power cut; then, and not before,
/// [`crate::Pool::committed`] may be called.
///
/// # Errors
/// The medium's; the pool must then be opened anew.
pub async fn write_commit(medium: &MediumHandle, commit: Commit) -> Result<()> {
    for stage in commit.stages {
        medium.write_all(stage.offset, stage.data).await?;
        medium.flush().await?;
    }
    Ok(())
}

/// Runs of bytes on the medium that hold `len` bytes of a file from `offset`: pairs of offset and
/// length. Bytes beyond the last slot are left out.
pub fn extents<'a>(
    geometry: &'a Geometry,
    placement: &'a FilePlacement,
    offset: u64,
    len: u64,
) -> Extents<'a> {
    Extents { geometry, placement, at: offset, end: offset.saturating_add(len) }
}

/// See [`extents`].
#[derive(Clone)]
pub struct Extents<'a> {
    geometry: &'a Geometry,
    placement: &'a FilePlacement,
    at: u64,
    end: u64,
}

impl Iterator for Extents<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        if self.at >= self.end {
            return None;
        }
        let slots = &self.placement.slots;
        let mut index = usize::try_from(self.at / SLOT_LEN).ok()?;
        let within = self.at % SLOT_LEN;
        let start = self.geometry.slot_offset(slots.get(index)?.slot) + within;
        let mut len = (SLOT_LEN - within).min(self.end - self.at);
        while self.at + len < self.end
            && let Some(next) = slots.get(index + 1)
            && self.geometry.slot_offset(next.slot) == start + len
        {
            index += 1;
            len += SLOT_LEN.min(self.end - self.at - len);
        }
        self.at += len;
        Some((start, len))
    }
}

/// Runs cut into transfers of at most `step` bytes.
fn transfers(extents: Extents<'_>, step: u64) -> impl Iterator<Item = (u64, usize)> {
    extents.flat_map(move |(start, len)| {
        (0..len.div_ceil(step)).map(move |i| (start + i * step, step.min(len - i * step) as usize))
    })
}

fn transfer_len(medium: &MediumHandle) -> u64 {
    medium.properties().transfer_len_max.min(TRANSFER_LEN_MAX) as u64
}

/// Reads ranges at once and joins them in order.
pub(crate) async fn read_ranges(
    medium: &MediumHandle,
    ranges: impl Iterator<Item = (u64, usize)>,
) -> Result<Bytes> {
    Ok(joined(medium.read_ranges(ranges).await?))
}

fn joined(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut whole = AlignedBuf::with_capacity(parts.iter().map(Bytes::len).sum());
    for part in parts {
        whole.extend(&part);
    }
    whole.freeze()
}

/// Reads `len` bytes at `offset` of the device in transfers, at once.
pub(crate) async fn read_span(medium: &MediumHandle, offset: u64, len: u64) -> Result<Bytes> {
    let step = transfer_len(medium);
    let ranges =
        (0..len.div_ceil(step)).map(|i| (offset + i * step, step.min(len - i * step) as usize));
    read_ranges(medium, ranges).await
}

/// Reads `len` bytes of a file from `offset`, neither of which need be aligned.
///
/// # Errors
/// Invalid input when the range reaches past the file; the medium's error with the file's name.
pub async fn read_file(
    medium: &MediumHandle,
    geometry: &Geometry,
    placement: &FilePlacement,
    offset: u64,
    len: u64,
) -> Result<Bytes> {
    let blocks = blocks_of(geometry, placement, offset, len)?;
    if len == 0 {
        return Ok(Bytes::new());
    }
    let bytes = read_ranges(medium, transfers(blocks, transfer_len(medium)))
        .await
        .map_err(|error| failed_read(placement, offset, len, error))?;
    Ok(cut_out(&bytes, offset, len))
}

/// Reads many ranges of files, all at once: pairs of a placement and a range as [`read_file`] takes
/// them, of at least one byte. Each has a result of its own, with its errors.
pub async fn read_files(
    medium: &MediumHandle,
    geometry: &Geometry,
    reads: &[(&FilePlacement, Range<u64>)],
) -> Vec<Result<Bytes>> {
    let step = transfer_len(medium);
    let mut ranges = Vec::with_capacity(reads.len());
    let mut counts = Vec::with_capacity(reads.len());
    for (placement, Range { start, end }) in reads {
        let blocks = blocks_of(geometry, placement, *start, end.saturating_sub(*start));
        counts.push(blocks.map(|blocks| {
            let before = ranges.len();
            ranges.extend(transfers(blocks, step));
            ranges.len() - before
        }));
    }
    let mut parts = medium.read_each(ranges.into_iter()).await.into_iter();
    let read = |(count, (placement, range)): (Result<usize>, &(&FilePlacement, Range<u64>))| {
        let (offset, len) = (range.start, range.end.saturating_sub(range.start));
        // All of them, so that the next range begins with its own.
        let parts: Vec<Result<Bytes>> = parts.by_ref().take(count?).collect();
        let parts: Result<Vec<Bytes>> = parts.into_iter().collect();
        let bytes = joined(parts.map_err(|error| failed_read(placement, offset, len, error))?);
        Ok(cut_out(&bytes, offset, len))
    };
    counts.into_iter().zip(reads).map(read).collect()
}

/// The whole blocks that hold `len` bytes of a file from `offset`.
fn blocks_of<'a>(
    geometry: &'a Geometry,
    placement: &'a FilePlacement,
    offset: u64,
    len: u64,
) -> Result<Extents<'a>> {
    if offset.checked_add(len).is_none_or(|end| end > placement.len) {
        return Err(Error::invalid(format!(
            "{}: {len} bytes at {offset} reach past its {} bytes",
            placement.file, placement.len
        )));
    }
    placement.check_shape(geometry)?;
    let start = offset / BLOCK * BLOCK;
    let aligned_len = (offset + len).div_ceil(BLOCK) * BLOCK - start;
    Ok(extents(geometry, placement, start, aligned_len))
}

/// What was asked for, out of the blocks that hold it.
fn cut_out(blocks: &Bytes, offset: u64, len: u64) -> Bytes {
    let skip = (offset % BLOCK) as usize;
    blocks.slice(skip..skip + len as usize)
}

fn failed_read(placement: &FilePlacement, offset: u64, len: u64, error: Error) -> Error {
    error.within(format!("{}: read of {len} bytes at {offset}", placement.file))
}

/// Writes a whole file into its slots, then the slots' headers. `pool_id` and `geometry` are those
/// of the pool that is written to; on a peer's namespace that is the peer's, and
/// [`Geometry::namespace`]. `chunk_crcs` are the CRC32Cs of the file's chunks of 1 MiB; where the
/// medium takes transfers of that length, each is one chunk, so its digest on the wire is the
/// chunk's.
///
/// # Durability
/// None before a flush that follows.
///
/// # Errors
/// Invalid input when data, chunks and placement disagree; the medium's error with the file's name.
/// When its kind is unknown, quarantine the slots; else release them.
pub async fn write_file(
    medium: &MediumHandle,
    geometry: &Geometry,
    pool_id: PoolId,
    group: GroupId,
    placement: &FilePlacement,
    data: &Bytes,
    chunk_crcs: &[u32],
) -> Result<()> {
    let file = placement.file;
    placement.check(geometry)?;
    if data.len() as u64 != placement.len {
        return Err(Error::invalid(format!(
            "{file}: {} bytes for a placement of {}",
            data.len(),
            placement.len
        )));
    }
    let headers = file_headers(pool_id, group, placement, chunk_crcs)?;
    let mut writes = Vec::new();
    let mut at = 0;
    for (offset, len) in
        transfers(extents(geometry, placement, 0, placement.len), transfer_len(medium))
    {
        writes.push(OperationKind::Write { offset, data: data.slice(at..at + len) });
        at += len;
    }
    let within = |e: Error| e.within(format!("{file}: write of {} bytes", placement.len));
    write_all_of(medium, writes).await.map_err(within)?;
    let writes = headers
        .into_iter()
        .map(|(slot, data)| OperationKind::Write { offset: geometry.header_offset(slot), data });
    write_all_of(medium, writes.collect()).await.map_err(within)
}

/// An unknown outcome among them outweighs a failure: the caller must then quarantine.
async fn write_all_of(medium: &MediumHandle, writes: Vec<OperationKind>) -> Result<()> {
    let mut result = Ok(());
    for pending in medium.submit(writes, false) {
        if let Err(error) = pending.await.outcome.into_result()
            && (result.is_ok() || error.kind() == gabion_base::ErrorKind::Unknown)
        {
            result = Err(error);
        }
    }
    result
}

/// The header blocks of a file's slots, as [`write_file`] writes them: `pool_id` names the pool
/// that they are for.
///
/// # Errors
/// Invalid input when the number of chunks is not that of the placement, or their checksums do not
/// combine into the file's.
pub fn file_headers(
    pool_id: PoolId,
    group: GroupId,
    placement: &FilePlacement,
    chunk_crcs: &[u32],
) -> Result<Vec<(SlotIndex, Bytes)>> {
    let (file, len) = (placement.file, placement.len);
    let chunks = len.div_ceil(CHUNK_LEN);
    if chunk_crcs.len() as u64 != chunks {
        return Err(Error::invalid(format!(
            "{file}: {} chunk checksums, {len} bytes have {chunks} chunks",
            chunk_crcs.len()
        )));
    }
    let mut headers = Vec::with_capacity(placement.slots.len());
    let (mut whole, mut at) = (0, 0);
    for (index, crcs) in chunk_crcs.chunks((SLOT_LEN / CHUNK_LEN) as usize).enumerate() {
        let (mut slot_crc, mut slot_len) = (0, 0);
        for &chunk_crc in crcs {
            let chunk_len = CHUNK_LEN.min(len - at);
            slot_crc = crc::combine(slot_crc, chunk_crc, chunk_len);
            (at, slot_len) = (at + chunk_len, slot_len + chunk_len);
        }
        whole = crc::combine(whole, slot_crc, slot_len);
        if index >= placement.slots.len() {
            return Err(Error::invalid(format!("{file}: {len} bytes in {index} slots")));
        }
        let header = SlotHeader::of(pool_id, group, placement, index, slot_crc);
        let block = AlignedBuf::copy_of(&header.encode()).freeze();
        headers.push((header.slot, block));
    }
    if whole != placement.checksum {
        return Err(Error::invalid(format!(
            "{file}: its chunks have checksum {whole:#010x}, the placement says {:#010x}",
            placement.checksum
        )));
    }
    Ok(headers)
}

/// Reads the header of a slot.
///
/// # Errors
/// As [`SlotHeader::decode`], with the slot's name; the medium's error.
pub async fn read_slot_header(
    medium: &MediumHandle,
    geometry: &Geometry,
    slot: SlotIndex,
) -> Result<SlotHeader> {
    geometry.check(slot)?;
    let offset = geometry.header_offset(slot);
    let block = medium.read(offset, BLOCK_LEN).await?;
    SlotHeader::decode(&block).map_err(|e| e.within(format!("{slot}, header at byte {offset}")))
}

/// Reads a file whole and holds it against its headers and its checksum: what a secondary does once
/// before first use behind a target that does not report checksums (docs/faults.md H8), and a
/// scrub.
///
/// # Errors
/// Corruption that names file, slot and what differs; the medium's error.
pub async fn verify_file(
    medium: &MediumHandle,
    geometry: &Geometry,
    pool_id: PoolId,
    group: GroupId,
    placement: &FilePlacement,
) -> Result<()> {
    let file = placement.file;
    placement.check(geometry)?;
    let mut whole = 0;
    for (index, placed) in placement.slots.iter().enumerate() {
        let start = index as u64 * SLOT_LEN;
        let len = SLOT_LEN.min(placement.len - start);
        let header = read_slot_header(medium, geometry, placed.slot)
            .await
            .map_err(|e| e.within(format!("{file}")))?;
        let bytes = read_file(medium, geometry, placement, start, len).await?;
        let checksum = crc::crc32c(&bytes);
        let expected = SlotHeader::of(pool_id, group, placement, index, checksum);
        header.check(&expected).map_err(|e| e.within(format!("{file}")))?;
        whole = crc::combine(whole, checksum, len);
    }
    if whole != placement.checksum {
        return Err(Error::corruption(format!(
            "{file}: checksum is {whole:#010x}, expected {:#010x}",
            placement.checksum
        )));
    }
    Ok(())
}
