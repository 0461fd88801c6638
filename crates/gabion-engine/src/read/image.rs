//! A view in bytes, all but its files: for a backup, which copies these as they are.
//!
//! ```text
//!   image  u16 version = 1 | u16 0 | u32 CRC32C of what follows
//!          u64 read point, u64 floor, u64 group time | u32 count, u64 number of each MemTable,
//!          newest first | version of the tree, with each file's description
//!   page   u16 version = 1 | u16 kind: 1 entries, 2 range deletes | u32 CRC32C of what follows
//!          u64 number of the MemTable | u32 count ≥ 1, then of each
//!          entry         u64 trailer, key prefixed, value prefixed
//!          range delete  u64 sequence number, start prefixed, end prefixed
//! ```
//!
//! Pages hold what the view sees of its MemTables, in the order of the image: of each its entries
//! in the order of the tree, then its range deletes. A page is about as long as was asked for, or
//! one entry longer. Values stand at their keys, as they do in every MemTable.
//!
//! A MemTable without anything that the view sees has no page. So pages do not tell where they end:
//! whoever keeps them keeps their number.

use super::{ReadPoint, ReadView};
use crate::entry::{ENGINE_KEY_LEN_MAX, EntryKind, Trailer, compare};
use crate::memtable::MemTable;
use crate::range_delete::{MEMTABLE_RANGES_MAX, RangeDelete, check_range};
use crate::readers::{Pin, Shape};
use crate::version::Version;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cmp::Ordering;
use gabion_base::codec::{Put, Reader};
use gabion_base::crc::crc32c;
use gabion_base::units::VALUE_LEN_MAX;
use gabion_base::{Error, MemTableId, Result, SequenceNumber};

const VERSION: u16 = 1;
const KIND_IMAGE: u16 = 0;
const KIND_ENTRIES: u16 = 1;
const KIND_RANGES: u16 = 2;
const HEADER_LEN: usize = 8;
const WHAT: &str = "image of a tree";
/// An expiry, and what packing adds, stand before a value.
const STORED_LEN_MAX: usize = VALUE_LEN_MAX + 64;
/// MemTables that a tree may hold at once: far more than any configuration lets wait.
const TABLES_MAX: usize = 4096;

/// How far the pages of a view's MemTables were read.
#[derive(Clone, Debug, Default)]
pub struct PageCursor {
    /// The MemTable of the next page, newest first.
    table: usize,
    /// The last entry of the page before.
    after: Option<(Vec<u8>, SequenceNumber)>,
    /// Its entries are done.
    at_ranges: bool,
}

impl PageCursor {
    fn next_table(&mut self) {
        *self = Self { table: self.table + 1, ..Self::default() };
    }
}

impl ReadView {
    /// All that the view sees besides entries in MemTables and bytes of files.
    ///
    /// # Errors
    /// As [`Self::pin`].
    pub fn image(&self) -> Result<Vec<u8>> {
        let pin = self.pin()?;
        let mut body = Vec::new();
        body.put_u64(self.point.sequence.get());
        body.put_u64(self.point.floor.get());
        body.put_u64(self.point.now_ms);
        body.put_u32(pin.0.memtables.len() as u32);
        for table in &pin.0.memtables {
            body.put_u64(table.id().get());
        }
        pin.0.version.encode(&mut body);
        Ok(sealed(KIND_IMAGE, &body))
    }

    /// The next page of the view's MemTables, of about `len` bytes; nothing behind the last.
    ///
    /// # Errors
    /// As [`Self::pin`].
    pub fn page(&self, cursor: &mut PageCursor, len: usize) -> Result<Option<Vec<u8>>> {
        let pin = self.pin()?;
        while let Some(table) = pin.0.memtables.get(cursor.table) {
            if !cursor.at_ranges {
                if let Some(page) = entries_page(table, self.point.sequence, cursor, len) {
                    return Ok(Some(page));
                }
                cursor.at_ranges = true;
            }
            let page = ranges_page(table, self.point.sequence);
            cursor.next_table();
            if page.is_some() {
                return Ok(page);
            }
        }
        Ok(None)
    }

    /// The view of an image, with MemTables made of its pages. It lasts.
    ///
    /// # Errors
    /// Corruption of image or pages, and of pages of another view.
    pub fn of_image(image: &[u8], pages: impl Iterator<Item = Result<Vec<u8>>>) -> Result<Self> {
        let (kind, body) = opened(image)?;
        if kind != KIND_IMAGE {
            return Err(Error::corruption(format!("{WHAT}: is a page")));
        }
        let mut reader = Reader::new(body, WHAT);
        let (sequence, floor) = (reader.u64()?, reader.u64()?);
        if sequence.max(floor) > SequenceNumber::MAX.get() {
            return Err(Error::corruption(format!("{WHAT}: a sequence number over its limit")));
        }
        let (sequence, floor) = (SequenceNumber(sequence), SequenceNumber(floor));
        let point = ReadPoint { sequence, floor, now_ms: reader.u64()? };
        let ids = table_ids(&mut reader)?;
        let version = Version::decode(&mut reader)?;
        reader.finish()?;
        let mut tables: BTreeMap<_, _> = ids.iter().map(|id| (*id, Filling::new(*id))).collect();
        for page in pages {
            take_page(&page?, &mut tables, point.sequence)?;
        }
        let memtables = ids.iter().filter_map(|id| tables.remove(id)).map(Filling::finish);
        let shape = Shape { memtables: memtables.collect(), version: Arc::new(version) };
        Ok(Self::lasting(Pin(Arc::new(shape)), point))
    }
}

fn sealed(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + body.len());
    out.put_u16(VERSION);
    out.put_u16(kind);
    out.put_u32(crc32c(body));
    out.put_bytes(body);
    out
}

fn opened(bytes: &[u8]) -> Result<(u16, &[u8])> {
    let mut reader = Reader::new(bytes, WHAT);
    let (version, kind, crc) = (reader.u16()?, reader.u16()?, reader.u32()?);
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "{WHAT} has version {version}, this build knows {VERSION}"
        )));
    }
    let body = reader.rest();
    match crc32c(body) == crc {
        true => Ok((kind, body)),
        false => Err(Error::corruption(format!("{WHAT}: bad checksum"))),
    }
}

fn entries_page(
    table: &MemTable,
    upto: SequenceNumber,
    cursor: &mut PageCursor,
    len: usize,
) -> Option<Vec<u8>> {
    let mut iter = table.iter();
    match &cursor.after {
        None => iter.seek_to_first(),
        Some((key, sequence)) => {
            iter.seek(key, *sequence);
            // Onto the last entry, which was told.
            iter.advance();
        }
    }
    let (mut items, mut count) = (Vec::new(), 0_u32);
    while let Some(entry) = iter.entry()
        && items.len() < len
    {
        if entry.trailer.sequence() <= upto {
            items.put_u64(entry.trailer.raw());
            items.put_prefixed(entry.key);
            items.put_prefixed(entry.value);
            count += 1;
            cursor.after = Some((entry.key.to_vec(), entry.trailer.sequence()));
        }
        iter.advance();
    }
    page_of(KIND_ENTRIES, table.id(), count, &items)
}

fn ranges_page(table: &MemTable, upto: SequenceNumber) -> Option<Vec<u8>> {
    let (mut items, mut count) = (Vec::new(), 0_u32);
    for range in table.range_deletes().filter(|range| range.sequence <= upto) {
        items.put_u64(range.sequence.get());
        items.put_prefixed(&range.start);
        items.put_prefixed(&range.end);
        count += 1;
    }
    page_of(KIND_RANGES, table.id(), count, &items)
}

fn page_of(kind: u16, table: MemTableId, count: u32, items: &[u8]) -> Option<Vec<u8>> {
    if count == 0 {
        return None;
    }
    let mut body = Vec::with_capacity(12 + items.len());
    body.put_u64(table.get());
    body.put_u32(count);
    body.put_bytes(items);
    Some(sealed(kind, &body))
}

/// The numbers of MemTables, which fall.
fn table_ids(reader: &mut Reader<'_>) -> Result<Vec<MemTableId>> {
    let count = reader.u32()? as usize;
    if count > TABLES_MAX {
        return Err(Error::corruption(format!(
            "{WHAT}: {count} MemTables, the limit is {TABLES_MAX}"
        )));
    }
    let mut ids: Vec<MemTableId> = Vec::new();
    for _ in 0..count {
        let id = MemTableId(reader.u64()?);
        if id.get() == u64::MAX || ids.last().is_some_and(|before| *before <= id) {
            return Err(Error::corruption(format!("{WHAT}: {id} is out of order")));
        }
        ids.push(id);
    }
    Ok(ids)
}

/// A MemTable that is being made of its pages.
struct Filling {
    table: MemTable,
    last: Option<(Vec<u8>, Trailer)>,
    ranges: Vec<RangeDelete>,
}

impl Filling {
    fn new(id: MemTableId) -> Self {
        Self { table: MemTable::new(id), last: None, ranges: Vec::new() }
    }

    fn take_entry(&mut self, reader: &mut Reader<'_>, upto: SequenceNumber) -> Result<()> {
        let trailer = Trailer::from_raw(reader.u64()?)?;
        let key = reader.prefixed(ENGINE_KEY_LEN_MAX)?;
        let value = reader.prefixed(STORED_LEN_MAX)?;
        let kind = trailer.kind();
        let is_entry = !matches!(kind, EntryKind::Clear | EntryKind::RangeDelete)
            && !kind.is_pointer()
            && kind != EntryKind::Relocation;
        let is_next = self
            .last
            .as_ref()
            .is_none_or(|(last, at)| compare(last, *at, key, trailer) == Ordering::Less);
        if !is_entry || !is_next || key.is_empty() || trailer.sequence() > upto {
            return Err(Error::corruption(format!(
                "{WHAT}: {} has an entry that no MemTable has there",
                self.table.id()
            )));
        }
        self.table.insert(key, trailer.sequence(), kind, value);
        self.last = Some((key.to_vec(), trailer));
        Ok(())
    }

    fn take_range(&mut self, reader: &mut Reader<'_>, upto: SequenceNumber) -> Result<()> {
        let sequence = SequenceNumber(reader.u64()?);
        let start = reader.prefixed(ENGINE_KEY_LEN_MAX)?;
        let end = reader.prefixed(ENGINE_KEY_LEN_MAX)?;
        check_range(start, end)?;
        // A batch may bring as many to a table that is not full yet.
        if sequence > upto || start >= end || self.ranges.len() >= 2 * MEMTABLE_RANGES_MAX {
            return Err(Error::corruption(format!(
                "{WHAT}: {} has a range delete that no MemTable has",
                self.table.id()
            )));
        }
        self.ranges.push(RangeDelete { start: start.into(), end: end.into(), sequence });
        Ok(())
    }

    fn finish(self) -> Arc<MemTable> {
        Arc::new(match self.ranges.is_empty() {
            true => self.table,
            false => self.table.with_range_deletes(self.ranges),
        })
    }
}

fn take_page(
    page: &[u8],
    tables: &mut BTreeMap<MemTableId, Filling>,
    upto: SequenceNumber,
) -> Result<()> {
    let (kind, body) = opened(page)?;
    let mut reader = Reader::new(body, WHAT);
    let (id, count) = (MemTableId(reader.u64()?), reader.u32()?);
    let table = tables.get_mut(&id);
    let table = table
        .ok_or_else(|| Error::corruption(format!("{WHAT}: a page of {id}, which it lacks")))?;
    for _ in 0..count {
        match kind {
            KIND_ENTRIES => table.take_entry(&mut reader, upto)?,
            KIND_RANGES => table.take_range(&mut reader, upto)?,
            _ => return Err(Error::unsupported(format!("{WHAT}: a page of kind {kind}"))),
        }
    }
    reader.finish()
}
