//! The data blocks of an open file, by its index alone.

use super::block::BlockCursor;
use super::reader::{BlockHandle, SstReader};
use crate::entry::Trailer;
use gabion_base::Result;

/// A place in the list of a file's blocks.
pub(crate) struct Blocks<'a> {
    reader: &'a SstReader,
    cursor: BlockCursor,
    is_here: bool,
}

impl<'a> Blocks<'a> {
    /// At the first block.
    pub(crate) fn first(reader: &'a SstReader) -> Result<Self> {
        let mut blocks = Self { reader, cursor: BlockCursor::new(), is_here: false };
        if !reader.index().is_empty() {
            blocks.cursor.enter(reader.index()).map_err(|error| reader.in_index(error))?;
            blocks.advance()?;
        }
        Ok(blocks)
    }

    /// At the block in which the first entry at or after `key` lies.
    pub(crate) fn at(reader: &'a SstReader, key: &[u8]) -> Result<Self> {
        let mut blocks = Self { reader, cursor: BlockCursor::new(), is_here: false };
        if !reader.index().is_empty() {
            let sought = blocks.cursor.seek(reader.index(), key, Trailer::FIRST);
            blocks.is_here = sought.map_err(|error| reader.in_index(error))?;
        }
        Ok(blocks)
    }

    /// The block here, with a key at or after all of its own and before all of the next block's.
    pub(crate) fn here(&self) -> Result<Option<(&[u8], BlockHandle)>> {
        if !self.is_here {
            return Ok(None);
        }
        let handle = self.reader.handle(self.cursor.value_range())?;
        Ok(Some((self.cursor.key(), handle)))
    }

    /// To the next block, if there is one.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let advanced = self.cursor.advance(self.reader.index());
        self.is_here = advanced.map_err(|error| self.reader.in_index(error))?;
        Ok(())
    }
}
