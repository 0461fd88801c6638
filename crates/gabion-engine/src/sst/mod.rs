//! Sorted string tables: the files of the tree.
//!
//! A file is a pure function of its entries, its [`SstOptions`], group, term and number, so every
//! replica can be sent its bytes or make them itself. Everything inside
//! refers by offset within the file, so shipped bytes need no rewriting.
//!
//! ```text
//!  0                                                                       len       rounded
//!  ┌──────────────┬───┬──────────────┬────────┬───────┬────────────┬────────┬───────┐
//!  │ data block 0 │ … │ data block n │ filter │ index │ properties │ footer │ zeros │
//!  └──────────────┴───┴──────────────┴────────┴───────┴────────────┴────────┴───────┘
//! ```
//!
//! Numbers are little-endian. Parts adjoin without gaps, so every byte is under a checksum, save
//! the zeros up to the next 4 KiB, which are checked for being zero.
//!
//! **Block** (data, filter, index, properties): a body and 5 bytes.
//!
//! ```text
//!  │ body │ compression u8 │ crc u32 │
//!  crc = CRC32C(body, compression), lineage (group, kind, file number, block offset) folded in
//!  compression 0: the body as it is     1 (data only): │ raw length u32 │ LZ4 block │
//!                                       2 (data only): │ raw length u32 │ Zstandard frame │
//! ```
//!
//! A compressed body is kept when it is at least an eighth shorter, the raw length is at most 4 MiB
//! and either the raw length is at most 64 KiB or the ratio at most 64, so that a reader bounds
//! what it reserves. A frame says how long its content is and has neither dictionary nor checksum.
//!
//! **Data and index bodies**: entries in tree order, then restart points.
//!
//! ```text
//!  │ entry … │ restart u32 × n │ n u32 │          restart: offset of an entry with shared = 0
//!  entry: │ shared var │ unshared var │ value length var │ unshared key bytes │ trailer u64 │ value │
//! ```
//!
//! A key is the first `shared` bytes of the key before it and the unshared bytes; every
//! `restart_interval` entries the whole key stands there, for binary search. A data block ends once
//! its body has `block_len` bytes; an entry whose key and value have as many by themselves begins a
//! new one, so that small neighbours are read without it.
//!
//! An index entry is a separator, (key, trailer) at or after every entry of its block and before
//! every entry of the next, with the value `offset u32 │ length u32` of the block (5 trailing bytes
//! included). A separator whose key is not an entry's has the trailer 2^64 − 1. A file that holds
//! nothing but range deletes has no data block, and the body of its index has no bytes. The range
//! deletes lie in the properties, which a reader keeps.
//!
//! In a file that was made for a bulk load every entry has the sequence number 0, which no write
//! has, and so have the properties. What its edit says counts for all of them (`load.rs`).
//!
//! **Filter body**: a blocked Bloom filter over the distinct engine keys (one cache line per key,
//! as RocksDB's); see `sst/filter.rs`. Without a filter it is the byte 0 alone.
//!
//! ```text
//!  │ line of 64 bytes × n │ probes u8 │
//! ```
//!
//! **Properties body**: typed fields (`gabion_base::codec`); see `sst/properties.rs`.
//!
//! **Footer**, 64 bytes at the exact end:
//!
//! ```text
//!   0 magic "GABIONST"         8 version u16     10 flags u16 (0)    12 filter offset u32 (0 without data blocks)
//!  16 index offset u32        20 properties offset u32              24 footer offset u32
//!  28 data blocks u32         32 group u64      40 term u64         48 file number u64
//!  56 zero u32                60 crc u32 of bytes 0..60, lineage with the footer's offset folded in
//! ```

mod block;
mod blocks;
mod builder;
mod codec;
mod filter;
mod guide;
pub mod inspect;
mod iter;
mod options;
mod properties;
mod reader;
mod scan;
mod zstd;

pub(crate) use block::Area;
pub(crate) use blocks::Blocks;
pub(crate) use builder::Chunks;
pub use builder::SstBuilder;
pub use codec::{BlockCodec, Compression};
pub(crate) use codec::{Compressor, decompress_value};
pub use iter::SstIter;
pub(crate) use options::FILTER_BITS_MAX;
pub use options::SstOptions;
pub use properties::Properties;
pub use reader::SstReader;
pub(crate) use reader::{BlockHandle, key_hash};
pub use scan::SstScan;

#[cfg(test)]
mod tests;

use gabion_base::codec::{Put, Reader};
use gabion_base::{Error, FileId, GroupId, Result, Term, crc};

/// The format that this build writes and reads.
pub const FORMAT_VERSION: u16 = 1;
/// Bytes of the footer.
pub const FOOTER_LEN: usize = 64;
/// Bytes behind a block's body.
pub const BLOCK_TRAILER_LEN: usize = 5;

const MAGIC: u64 = u64::from_le_bytes(*b"GABIONST");
const FOOTER_CRC_AT: usize = FOOTER_LEN - 4;

/// Where the parts of a file lie and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Where the filter begins and the data blocks end.
    pub filter_at: u32,
    /// Where the index begins.
    pub index_at: u32,
    /// Where the properties begin.
    pub properties_at: u32,
    /// Where the footer itself begins.
    pub footer_at: u32,
    /// Data blocks.
    pub data_blocks: u32,
    /// The group that the file belongs to.
    pub group: GroupId,
    /// The term that made it.
    pub term: Term,
    /// Which file it is.
    pub id: FileId,
}

impl Footer {
    fn encode(&self) -> [u8; FOOTER_LEN] {
        let mut out = alloc::vec::Vec::with_capacity(FOOTER_LEN);
        out.put_u64(MAGIC);
        out.put_u16(FORMAT_VERSION);
        out.put_u16(0);
        let places = [self.filter_at, self.index_at, self.properties_at, self.footer_at];
        places.iter().for_each(|&at| out.put_u32(at));
        out.put_u32(self.data_blocks);
        out.put_u64(self.group.get());
        out.put_u64(self.term.get());
        out.put_u64(self.id.number);
        out.put_u32(0);
        let crc = crc::crc32c(&out);
        out.put_u32(crc::with_lineage(crc, self.group, self.id, u64::from(self.footer_at)));
        out.try_into().expect("the fields above make up a footer")
    }

    /// Reads the footer of `id`, which is expected at `footer_at`.
    fn decode(
        bytes: &[u8; FOOTER_LEN],
        group: GroupId,
        id: FileId,
        footer_at: u64,
    ) -> Result<Self> {
        let bad = |what: &str| Error::corruption(alloc::format!("{id}: footer {what}"));
        let mut reader = Reader::new(bytes, "SST footer");
        if reader.u64()? != MAGIC {
            return Err(bad("has no magic number"));
        }
        let expected =
            crc::with_lineage(crc::crc32c(&bytes[..FOOTER_CRC_AT]), group, id, footer_at);
        let mut stored = Reader::new(&bytes[FOOTER_CRC_AT..], "SST footer");
        if stored.u32()? != expected {
            return Err(bad("has a wrong checksum"));
        }
        let version = reader.u16()?;
        let flags = reader.u16()?;
        if version != FORMAT_VERSION || flags != 0 {
            return Err(Error::unsupported(alloc::format!(
                "{id}: format version {version}, flags {flags:#x}; this build knows {FORMAT_VERSION}, 0"
            )));
        }
        let footer = Self {
            filter_at: reader.u32()?,
            index_at: reader.u32()?,
            properties_at: reader.u32()?,
            footer_at: reader.u32()?,
            data_blocks: reader.u32()?,
            group: GroupId(reader.u64()?),
            term: Term(reader.u64()?),
            id: FileId::sst(reader.u64()?),
        };
        if u64::from(footer.footer_at) != footer_at || footer.group != group || footer.id != id {
            return Err(bad("is another file's"));
        }
        let places = [0, footer.filter_at, footer.index_at, footer.properties_at, footer.footer_at];
        // Without data the parts begin with the filter.
        let is_empty = footer.filter_at == 0;
        if is_empty != (footer.data_blocks == 0) {
            return Err(bad("does not say where the data ends"));
        }
        let places = &places[usize::from(is_empty)..];
        if places.windows(2).any(|w| u64::from(w[0]) + BLOCK_TRAILER_LEN as u64 > u64::from(w[1])) {
            return Err(bad("names parts that overlap"));
        }
        Ok(footer)
    }
}

/// The stored checksum of the block at `offset`: `bytes` are its body and compression byte.
fn block_crc(bytes: &[u8], group: GroupId, id: FileId, offset: u64) -> u32 {
    crc::with_lineage(crc::crc32c(bytes), group, id, offset)
}
