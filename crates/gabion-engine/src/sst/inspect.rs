//! Looking at a file part by part, for tools: a part that is damaged hides no other. Readers take
//! [`SstReader`](super::SstReader), which refuses a file unless all of it that is not data is
//! whole.

use super::block::BlockCursor;
use super::codec::decompress;
use super::reader::{check_block, corrupt, read_exactly};
use super::{BLOCK_TRAILER_LEN, BlockCodec, FOOTER_LEN, Footer, MAGIC, Properties};
use crate::entry::{Entry, Trailer};
use crate::file::FileSource;
use alloc::format;
use alloc::vec::Vec;
use core::ops::Range;
use gabion_base::units::BLOCK_LEN;
use gabion_base::{FileId, GroupId, Result};
use gabion_media::Bytes;

/// A file whose footer is whole.
pub struct Inspector<S> {
    source: S,
    footer: Footer,
}

/// What the index says of a data block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// A key at or after every key of the block.
    pub separator: Vec<u8>,
    /// Sequence number and kind of the entry that the separator is; nothing where it is none.
    pub trailer: Option<Trailer>,
    /// Where the block begins in the file.
    pub offset: u32,
    /// Bytes, with compression byte and checksum.
    pub stored_len: u32,
}

/// A data block that was checked against its checksum.
pub struct DataBlock {
    /// How its body is stored.
    pub codec: BlockCodec,
    body: Bytes,
    cursor: BlockCursor,
    entered: bool,
}

impl<S: FileSource> Inspector<S> {
    /// Finds the footer of a file of `rounded_len` bytes, whose exact length nobody has to know.
    ///
    /// # Errors
    /// Corruption when no footer of this file is whole; unsupported for an unknown format version;
    /// what the source reports.
    pub async fn open(source: S, group: GroupId, id: FileId, rounded_len: u64) -> Result<Self> {
        let start = rounded_len.saturating_sub(2 * BLOCK_LEN as u64);
        let tail = read_exactly(&source, id, start, (rounded_len - start) as usize).await?;
        let mut error = corrupt(id, "no footer in the last two blocks");
        for at in (0..(tail.len() + 1).saturating_sub(FOOTER_LEN)).rev() {
            let Some(bytes) = tail[at..].first_chunk::<FOOTER_LEN>() else { continue };
            if !bytes.starts_with(&MAGIC.to_le_bytes()) {
                continue;
            }
            match Footer::decode(bytes, group, id, start + at as u64) {
                Ok(footer) => return Ok(Self { source, footer }),
                Err(e) => error = e,
            }
        }
        Err(error)
    }

    /// Where the parts lie.
    pub const fn footer(&self) -> &Footer {
        &self.footer
    }

    /// A part that is never compressed: filter, index or properties.
    async fn part(&self, range: Range<u32>) -> Result<Bytes> {
        let (id, len) = (self.footer.id, (range.end - range.start) as usize);
        let stored = read_exactly(&self.source, id, u64::from(range.start), len).await?;
        match check_block(&stored, self.footer.group, id, range.start)? {
            BlockCodec::None => Ok(stored.slice(..len - BLOCK_TRAILER_LEN)),
            _ => Err(corrupt(id, format!("part at {} is compressed", range.start))),
        }
    }

    /// Bytes of the filter.
    ///
    /// # Errors
    /// Corruption when it is not whole; what the source reports.
    pub async fn filter_len(&self) -> Result<usize> {
        self.part(self.footer.filter_at..self.footer.index_at).await.map(|filter| filter.len())
    }

    /// What the file says of itself.
    ///
    /// # Errors
    /// As [`Self::filter_len`].
    pub async fn properties(&self) -> Result<Properties> {
        let body = self.part(self.footer.properties_at..self.footer.footer_at).await?;
        Properties::decode(&body).map_err(|error| error.within(format!("{}", self.footer.id)))
    }

    /// The index, about 1 % of the file.
    ///
    /// # Errors
    /// As [`Self::filter_len`].
    pub async fn index(&self) -> Result<Vec<IndexEntry>> {
        let body = self.part(self.footer.index_at..self.footer.properties_at).await?;
        let within = |error: gabion_base::Error| error.within(format!("{}: index", self.footer.id));
        let mut cursor = BlockCursor::new();
        let mut entries = Vec::new();
        if self.footer.data_blocks == 0 && body.is_empty() {
            return Ok(entries);
        }
        cursor.enter(&body).map_err(within)?;
        while cursor.advance(&body).map_err(within)? {
            let value = cursor.entry(&body).and_then(|entry| entry.value.first_chunk::<8>());
            let Some(&[a, b, c, d, e, f, g, h]) = value else {
                return Err(corrupt(self.footer.id, "index has an entry without a block"));
            };
            entries.push(IndexEntry {
                separator: cursor.key().to_vec(),
                trailer: Trailer::from_raw(cursor.trailer().raw()).ok(),
                offset: u32::from_le_bytes([a, b, c, d]),
                stored_len: u32::from_le_bytes([e, f, g, h]),
            });
        }
        Ok(entries)
    }

    /// A data block.
    ///
    /// # Errors
    /// Corruption when it is not whole, or lies outside the data; what the source reports.
    pub async fn block(&self, entry: &IndexEntry) -> Result<DataBlock> {
        let id = self.footer.id;
        let (offset, len) = (entry.offset, entry.stored_len);
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.footer.filter_at);
        if !fits || len as usize <= BLOCK_TRAILER_LEN {
            return Err(corrupt(id, format!("index names a block of {len} bytes at {offset}")));
        }
        let stored = read_exactly(&self.source, id, u64::from(offset), len as usize).await?;
        let codec = check_block(&stored, self.footer.group, id, offset)?;
        let body = match codec {
            BlockCodec::None => stored.slice(..stored.len() - BLOCK_TRAILER_LEN),
            _ => {
                let mut raw = Vec::new();
                decompress(id, &stored, offset, codec, &mut raw)?;
                Bytes::from(raw)
            }
        };
        Ok(DataBlock { codec, body, cursor: BlockCursor::new(), entered: false })
    }
}

impl DataBlock {
    /// Bytes of the body, decompressed.
    #[must_use]
    pub fn raw_len(&self) -> usize {
        self.body.len()
    }

    /// The next entry of the block; nothing at its end and after an error.
    ///
    /// # Errors
    /// Corruption when the body is not what a builder writes.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>> {
        if !self.entered {
            self.entered = true;
            self.cursor.enter(&self.body)?;
        }
        if !self.cursor.advance(&self.body)? {
            return Ok(None);
        }
        if let Err(error) = Trailer::from_raw(self.cursor.trailer().raw()) {
            self.cursor.leave();
            return Err(error);
        }
        Ok(self.cursor.entry(&self.body))
    }
}
