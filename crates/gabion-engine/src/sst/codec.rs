//! Codecs: how data blocks are stored, what a recipe says of it, and both ways through.
//!
//! A recipe names the codec in full, encoder, version of its output and level, as another encoder
//! of the same codec may well write other bytes (docs/faults.md E13). A block says only what undoes
//! it. The bytes of a block depend on its body and the codec alone: not on the blocks before it,
//! though what compresses them is the same, nor on the processor.
//!
//! LZ4 for what is soon written again, as it costs little; zstd for the bottom, where most bytes
//! lie and stay (RocksDB's wiki, "Compression"). Rows of JSON in blocks of 4 KiB take 0.50 of their
//! bytes with LZ4 and 0.31 with zstd, for five times the time, in and out; levels above 3 gain a
//! twentieth of that for four to sixty times the time in (`cargo bench -p gabion-engine --bench
//! codecs`).

use super::zstd;
use super::{BLOCK_TRAILER_LEN, reader::corrupt};
use alloc::format;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::{COMPRESSION_RATIO_MAX, SST_BLOCK_LEN_MAX};
use gabion_base::{Error, FileId, Result};
use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

/// Raw blocks up to this length may be compressed at any ratio: what a reader reserves for one is
/// small.
const ANY_RATIO_LEN_MAX: usize = 64 * 1024;
/// Bytes before what is compressed: the raw length.
const RAW_LEN: usize = 4;

/// Memory for output that is kept from one value to the next.
const KEPT_LEN_MAX: usize = 1 << 20;

/// How data blocks are to be stored. A block that its codec makes less than an eighth shorter stays
/// as it is.
///
/// As text, on command lines and in what tools say: `none`, `lz4`, `zstd` (level 3), `zstd:9`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// As they are.
    #[default]
    None,
    /// LZ4: some 2 GB/s in, 5 GB/s out, on one processor.
    Lz4,
    /// Zstandard at a level from 1 to [`Compression::ZSTD_LEVEL_MAX`]: a third smaller than LZ4
    /// where not half is noise, some 450 MB/s in at level 3 and 1 GB/s out. Each level up costs
    /// more time in for less gain, and none out.
    Zstd {
        /// The level.
        level: u8,
    },
}

impl Compression {
    /// Zstandard at its authors' level of choice.
    pub const ZSTD: Self = Self::Zstd { level: 3 };
    /// The highest level: those above it search longer for next to nothing in blocks of this size.
    pub const ZSTD_LEVEL_MAX: u8 = 19;

    /// Checks the level, if the codec has one, of the option `name`.
    ///
    /// # Errors
    /// Invalid input, naming option, level and limits.
    pub fn check(self, name: &str) -> Result<()> {
        match self {
            Self::Zstd { level } if !(1..=Self::ZSTD_LEVEL_MAX).contains(&level) => {
                Err(Error::invalid(format!(
                    "{name}: zstd level is {level}, the limits are 1 to {}",
                    Self::ZSTD_LEVEL_MAX
                )))
            }
            _ => Ok(()),
        }
    }

    /// What a recipe says: the encoder's name, the version of its output, and its level. The
    /// version is raised whenever the bytes of `tests/engine/golden_sst.rs` change with the
    /// encoder.
    const fn codec(self) -> (&'static [u8], u16, u16) {
        match self {
            Self::None => (b"none", 1, 0),
            Self::Lz4 => (b"lz4", 1, 0),
            Self::Zstd { level } => (b"zstd", 1, level as u16),
        }
    }

    /// Encoder, version and level, as recipes, files and their descriptions have them.
    pub(crate) fn encode(self) -> Vec<u8> {
        let (name, version, level) = self.codec();
        let mut out = Vec::with_capacity(self.encoded_len());
        out.put_u16(version);
        out.put_u16(level);
        out.put_bytes(name);
        out
    }

    /// Bytes of [`Compression::encode`].
    pub(crate) const fn encoded_len(self) -> usize {
        4 + self.codec().0.len()
    }

    /// What [`Compression::encode`] made; `what` is named in errors.
    pub(crate) fn decode(mut payload: Reader<'_>, what: &str) -> Result<Self> {
        let (version, level) = (payload.u16()?, payload.u16()?);
        let name = payload.bytes(payload.remaining())?;
        let zstd = Self::Zstd { level: u8::try_from(level).unwrap_or(u8::MAX) };
        let known = [Self::None, Self::Lz4, zstd];
        let is_it =
            |known: &Self| known.codec() == (name, version, level) && known.check(what).is_ok();
        known.into_iter().find(is_it).ok_or_else(|| {
            Error::unsupported(format!(
                "{what}: codec {} in version {version} at level {level} is not known to this build",
                name.escape_ascii()
            ))
        })
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("none"),
            Self::Lz4 => f.pad("lz4"),
            Self::Zstd { level } => f.pad(&format!("zstd:{level}")),
        }
    }
}

impl FromStr for Compression {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level)),
            None => (text, None),
        };
        let level = match level {
            None => Some(3),
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            Some(_) => None,
        };
        let codec = match (name, level) {
            _ if text == "none" => Self::None,
            _ if text == "lz4" => Self::Lz4,
            ("zstd", Some(level)) => Self::Zstd { level },
            _ => {
                return Err(Error::invalid(format!(
                    "`{text}` is no codec: none, lz4, zstd or zstd:LEVEL are, with a level from 1 to {}",
                    Self::ZSTD_LEVEL_MAX
                )));
            }
        };
        codec.check("codec").map(|()| codec)
    }
}

/// How the body of one block is stored. The numbers are part of the format of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockCodec {
    /// As it is.
    None = 0,
    /// As an LZ4 block, behind its raw length.
    Lz4 = 1,
    /// As a Zstandard frame, behind its raw length.
    Zstd = 2,
}

impl BlockCodec {
    /// What a stored byte means, if it means anything.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }
}

/// Compresses block after block of a file, with tables that are used again.
pub(crate) struct Compressor {
    encoder: Encoder,
    out: Vec<u8>,
}

enum Encoder {
    /// Which table serves a block depends on the block alone.
    Lz4 {
        small: CompressTable,
        large: Option<CompressTable>,
    },
    Zstd(zstd::Encoder),
}

impl Compressor {
    /// A compressor, where the codec is one; its level was checked.
    pub(crate) fn of(compression: Compression) -> Option<Self> {
        let encoder = match compression {
            Compression::None => return None,
            Compression::Lz4 => Encoder::Lz4 { small: CompressTable::small(), large: None },
            Compression::Zstd { level } => Encoder::Zstd(zstd::Encoder::new(level)),
        };
        Some(Self { encoder, out: Vec::new() })
    }

    /// The compressed body and what undoes it, if it is worth it and a reader will accept it.
    pub(super) fn compress(&mut self, raw: &[u8]) -> Option<(&[u8], BlockCodec)> {
        if raw.len() > SST_BLOCK_LEN_MAX {
            return None;
        }
        let (stored_len, codec) = self.encode(raw);
        let worth_it = stored_len <= raw.len() - raw.len() / 8;
        let accepted = raw.len() <= raw_len_max(stored_len);
        (worth_it && accepted).then(|| (&self.out[..stored_len], codec))
    }

    /// The same of a value, with a byte for the codec before it. Values have no limit of their
    /// ratio, as those that are not compressed may be as long.
    pub(crate) fn compress_value(&mut self, raw: &[u8]) -> Option<(&[u8], BlockCodec)> {
        if self.out.len() > KEPT_LEN_MAX && raw.len() < KEPT_LEN_MAX / 2 {
            self.out = Vec::new();
        }
        let (stored_len, codec) = self.encode(raw);
        let worth_it = stored_len < raw.len() - raw.len() / 8;
        worth_it.then(|| (&self.out[..stored_len], codec))
    }

    /// Bytes of memory for its output.
    pub(crate) const fn memory_used(&self) -> usize {
        self.out.capacity()
    }

    /// Compresses into `out`, behind the raw length. Returns the length of both.
    fn encode(&mut self, raw: &[u8]) -> (usize, BlockCodec) {
        let most = RAW_LEN + self.encoder.output_len_max(raw.len());
        if self.out.len() < most {
            self.out.resize(most, 0);
        }
        self.out[..RAW_LEN].copy_from_slice(&(raw.len() as u32).to_le_bytes());
        let (len, codec) = self.encoder.encode(raw, &mut self.out[RAW_LEN..most]);
        (RAW_LEN + len, codec)
    }
}

impl Encoder {
    fn output_len_max(&self, raw_len: usize) -> usize {
        match self {
            Self::Lz4 { .. } => get_maximum_output_size(raw_len),
            Self::Zstd(_) => zstd::output_len_max(raw_len),
        }
    }

    /// Compresses `raw` into `out`, which has room for any input of its length.
    fn encode(&mut self, raw: &[u8], out: &mut [u8]) -> (usize, BlockCodec) {
        match self {
            Self::Lz4 { small, large } => {
                // The library would turn a small table into a large one for good at this length.
                let table = match raw.len() < u16::MAX as usize {
                    true => small,
                    false => large.get_or_insert_with(CompressTable::large),
                };
                let len = compress_into_with_table(raw, out, table);
                (len.expect("the output has room for any input"), BlockCodec::Lz4)
            }
            Self::Zstd(encoder) => (encoder.encode(raw, out), BlockCodec::Zstd),
        }
    }
}

/// The longest body that a reader takes from so many stored bytes.
fn raw_len_max(stored_len: usize) -> usize {
    SST_BLOCK_LEN_MAX.min(ANY_RATIO_LEN_MAX.max(stored_len * COMPRESSION_RATIO_MAX))
}

/// Undoes `codec` for the stored block at `offset`, whose checksum was checked, into `raw`, whose
/// old content goes.
///
/// # Errors
/// Corruption, naming file and offset.
pub(super) fn decompress(
    id: FileId,
    stored: &[u8],
    offset: u32,
    codec: BlockCodec,
    raw: &mut Vec<u8>,
) -> Result<()> {
    let body = &stored[..stored.len() - BLOCK_TRAILER_LEN];
    let bad = |what: &str| corrupt(id, format!("block at {offset} {what}"));
    let (len, compressed) =
        body.split_first_chunk::<RAW_LEN>().ok_or_else(|| bad("has no raw length"))?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > raw_len_max(body.len()) {
        return Err(bad("would be larger than its compression allows"));
    }
    if codec == BlockCodec::None {
        return Err(bad("is not compressed"));
    }
    let found = undo(codec, compressed, len, raw)?;
    if found == Some(len) { Ok(()) } else { Err(bad("does not decompress to its length")) }
}

/// Undoes `codec` for a value of `len` bytes, which were checked against the limit of values. None
/// when it is no such value.
///
/// # Errors
/// Limit exceeded when there is no memory for a decoder.
pub(crate) fn decompress_value(
    codec: BlockCodec,
    compressed: &[u8],
    len: usize,
) -> Result<Option<Vec<u8>>> {
    let mut raw = Vec::new();
    raw.reserve_exact(len);
    let found = undo(codec, compressed, len, &mut raw)?;
    Ok((found == Some(len)).then_some(raw))
}

/// Decompresses into `raw`, whose old content goes. Returns the length that was found.
fn undo(
    codec: BlockCodec,
    compressed: &[u8],
    len: usize,
    raw: &mut Vec<u8>,
) -> Result<Option<usize>> {
    raw.clear();
    Ok(match codec {
        BlockCodec::None => None,
        BlockCodec::Lz4 => {
            raw.resize(len, 0);
            lz4_flex::block::decompress_into(compressed, raw).ok()
        }
        BlockCodec::Zstd => {
            raw.reserve(len);
            zstd::decode(compressed, raw)?
        }
    })
}

#[cfg(test)]
mod tests;
