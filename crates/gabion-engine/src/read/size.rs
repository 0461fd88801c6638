//! How much a key range takes, without reading it.

use super::tables::Tables;
use crate::cache::ReadCache;
use crate::file::{FileMeta, FileSource, noted};
use crate::readers::Shape;
use gabion_base::Result;

/// What a key range takes, about. Versions and deletes that no reader sees any more count until a
/// compaction has dropped them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeSize {
    /// Bytes of files, compressed as they lie there. Each bound of the range is taken to be where
    /// the block begins in which it lies, so for each file of L0 and for each level below, each
    /// bound adds an error of less than one block (`block_len`, or one entry that is longer). Sizes
    /// of adjoining ranges add up to the size of both. A file's index and filter, about 1 %, count
    /// with its end. Values that lie apart count evenly over the file that
    /// references them.
    pub file_bytes: u64,
    /// Bytes of memory charged for entries in MemTables; see [`crate::MemTable::estimate`] for its
    /// error.
    pub memtable_bytes: u64,
    /// Entries: every version of a key, and deletes too. Of a file that lies in the range by a part
    /// the same part of its entries.
    pub entries: u64,
}

pub(super) async fn size_of<S: FileSource, C: ReadCache>(
    shape: &Shape,
    tables: &Tables<S, C>,
    from: &[u8],
    to: Option<&[u8]>,
) -> Result<RangeSize> {
    let mut size = RangeSize::default();
    if to.is_some_and(|to| to <= from) {
        return Ok(size);
    }
    for table in &shape.memtables {
        let (entries, bytes) = table.estimate(from, to);
        size.entries += entries;
        size.memtable_bytes += bytes;
    }
    for (_, file) in shape.version.files() {
        let start = offset_of(tables, file, from).await?;
        let end = match to {
            Some(to) => offset_of(tables, file, to).await?,
            None => file.len,
        };
        let bytes = end - start;
        size.file_bytes += bytes;
        let apart: u64 = file.references.iter().map(|it| it.live_bytes).sum();
        let apart = u128::from(apart) * u128::from(bytes) / u128::from(file.len.max(1));
        size.file_bytes += apart as u64;
        let part = u128::from(file.entries) * u128::from(bytes) / u128::from(file.len.max(1));
        size.entries += part as u64;
    }
    Ok(size)
}

/// Where the block begins in which the first entry at or after `key` lies. Reads the index of a
/// file only when the key is within its bounds, and it is not in memory.
async fn offset_of<S: FileSource, C: ReadCache>(
    tables: &Tables<S, C>,
    file: &FileMeta,
    key: &[u8],
) -> Result<u64> {
    if key <= &file.smallest[..] {
        return Ok(0);
    }
    if key > &file.largest[..] {
        return Ok(file.len);
    }
    let reader = tables.reader(file).await?;
    let offset = noted(&tables.source, file.id, reader.offset_of(key))?;
    Ok(offset.unwrap_or(file.len))
}
