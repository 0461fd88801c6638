//! Looking at a pool part by part, for tools: each part is shown for itself, so one that is damaged
//! hides no other. Nothing is written. What a pool *is*, [`crate::recovery`] decides alone.

use crate::Superblock;
use crate::placement_log::{RecordHeader, RecordKind};
use crate::recovery::{AreaReader, read_superblock};
use alloc::format;
use gabion_base::units::BLOCK_LEN;
use gabion_base::{Error, Result};
use gabion_media::{Bytes, MediumHandle};

const BLOCK: u64 = BLOCK_LEN as u64;

/// Both copies of the superblock, each as it is; nothing where a block does not start like one.
pub async fn superblocks(medium: &MediumHandle) -> [Result<Option<Superblock>>; 2] {
    let copy = async |offset| Superblock::decode(&medium.read(offset, BLOCK_LEN).await?);
    [copy(0).await, copy(BLOCK).await]
}

/// The superblock that counts.
///
/// # Errors
/// Those of [`crate::open`] that concern the superblock.
pub async fn superblock(medium: &MediumHandle) -> Result<Superblock> {
    read_superblock(medium).await.map(|(superblock, _)| superblock)
}

/// What stands at a place of the placement log.
#[derive(Debug)]
pub enum Seen {
    /// A whole record of this pool.
    Record {
        /// Where it begins on the device.
        offset: u64,
        /// Its place in the order of things.
        header: RecordHeader,
        /// Its operations: [`crate::placement_log::Operation::decode_all`].
        body: Bytes,
    },
    /// Something that begins like a record and is none.
    Bad {
        /// Where it begins on the device.
        offset: u64,
        /// What is wrong.
        error: Error,
    },
    /// Blocks that are neither zeros nor the beginning of a record: the rest of a damaged record,
    /// or of one that a later one was written over.
    Other {
        /// Where they begin on the device.
        offset: u64,
        /// Bytes.
        len: u64,
    },
}

/// Everything in one area of the placement log, in the order of its bytes: what counts, what is
/// left of earlier epochs, and what is damaged.
pub struct AreaScan<'a> {
    reader: AreaReader<'a>,
    at: u64,
}

impl<'a> AreaScan<'a> {
    /// The area `index` of a pool.
    ///
    /// # Panics
    /// When `index` is not 0 or 1.
    #[must_use]
    pub const fn new(medium: &'a MediumHandle, superblock: &Superblock, index: usize) -> Self {
        let area = superblock.areas[index];
        Self { reader: AreaReader::new(medium, index, area, superblock.pool_id), at: 0 }
    }

    /// What comes next; nothing at the end of the area.
    ///
    /// # Errors
    /// The medium's, unless it is single blocks that cannot be read: they are [`Seen::Bad`].
    pub async fn next(&mut self) -> Result<Option<Seen>> {
        let mut other = 0;
        while self.at + BLOCK <= self.reader.area.len {
            let offset = self.reader.area.offset + self.at;
            let before = (other > 0).then(|| Seen::Other { offset: offset - other, len: other });
            let seen = self.look(offset).await?;
            let is_other = matches!(seen, Some(Seen::Other { .. }));
            if before.is_some() && !is_other {
                return Ok(before);
            }
            self.at += match &seen {
                Some(Seen::Record { header, .. }) => header.padded_len(),
                _ => BLOCK,
            };
            match seen {
                Some(Seen::Other { len, .. }) => other += len,
                Some(seen) => return Ok(Some(seen)),
                None => {}
            }
        }
        let end = self.reader.area.offset + self.at;
        Ok((other > 0).then(|| Seen::Other { offset: end - other, len: other }))
    }

    /// What stands here; nothing when it is a block of zeros.
    async fn look(&mut self, offset: u64) -> Result<Option<Seen>> {
        let record = self.reader.record(self.at).await;
        let bad = |error| Ok(Some(Seen::Bad { offset, error }));
        if let Some((_, error)) = self.reader.unreadable.take() {
            return bad(error);
        }
        match record {
            Ok(Some((header, bytes))) => {
                return Ok(Some(Seen::Record { offset, header, body: header.body(&bytes) }));
            }
            Ok(None) => {}
            Err(error) if error.kind() == gabion_base::ErrorKind::Unsupported => return bad(error),
            Err(error) => return Err(error),
        }
        let block = self.reader.bytes(self.at, BLOCK).await?;
        if let Some((_, header)) = RecordHeader::peek(&block) {
            let kind = match header.kind {
                RecordKind::Snapshot => "snapshot",
                RecordKind::Commit => "commit",
            };
            return bad(Error::corruption(format!(
                "starts like {kind} {} of epoch {} and is not whole",
                header.number, header.epoch
            )));
        }
        let is_zero = block.iter().all(|&byte| byte == 0);
        Ok((!is_zero).then_some(Seen::Other { offset, len: BLOCK }))
    }
}
