//! What decides an SST's bytes besides its entries: part of the recipe that makes it.

use super::{Compression, FORMAT_VERSION};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{FIELD_CRITICAL, Fields, Put, Reader, put_field};
use gabion_base::units::{KIB, MIB};
use gabion_base::{Error, Result};

/// Options of an SST. Encoded as typed fields, all critical: `1` version u16, `2` block length u32,
/// `3` restart intervals of data and index u32 × 2, `4` codec (version u16, level u16, name), `5`
/// filter (kind u8: 1 is Bloom's; bits per key u32).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SstOptions {
    /// Bytes at which a data block ends; 512 B to 1 MiB, 4,096 by default. A read from disk fetches
    /// one block; larger ones compress better and need a smaller index (about 28 bytes per block).
    pub block_len: u32,
    /// Entries from one whole key of a data block to the next; 1 to 1,024, 16 by default. Fewer:
    /// faster look-ups, less prefix compression.
    pub restart_interval: u32,
    /// The same for the index; 4 by default, as it is searched at each read and held in memory.
    pub index_restart_interval: u32,
    /// Compression of data blocks; none by default. A tree may have another for what lies at its
    /// bottom: [`TreeConfig::bottom_compression`](crate::TreeConfig::bottom_compression).
    pub compression: Compression,
    /// Bits of the Bloom filter per key; 0 (no filter) to 32, 10 by default: about 1 % of the
    /// look-ups of absent keys then read a block in vain. A tree has more of them in files above
    /// its bottom:
    /// [`TreeConfig::upper_filter_bits_extra`](crate::TreeConfig::upper_filter_bits_extra).
    pub filter_bits_per_key: u32,
    /// Version of the file format; [`FORMAT_VERSION`] by default and the only one.
    pub format_version: u16,
}

impl Default for SstOptions {
    fn default() -> Self {
        Self {
            block_len: 4096,
            restart_interval: 16,
            index_restart_interval: 4,
            compression: Compression::None,
            filter_bits_per_key: 10,
            format_version: FORMAT_VERSION,
        }
    }
}

const WHAT: &str = "SST options";
/// Most bits of a filter per key.
pub(crate) const FILTER_BITS_MAX: u32 = 32;
const FILTER_BLOOM: u8 = 1;

impl SstOptions {
    /// Checks each option against its limits.
    ///
    /// # Errors
    /// Invalid input, naming the option, its value and its limits; unsupported for another format
    /// version.
    pub fn check(&self) -> Result<()> {
        let within = |name: &str, value: u32, low: u64, high: u64| {
            if (low..=high).contains(&u64::from(value)) {
                return Ok(());
            }
            Err(Error::invalid(format!(
                "{WHAT}: {name} is {value}, the limits are {low} to {high}"
            )))
        };
        within("block_len", self.block_len, KIB / 2, MIB)?;
        within("restart_interval", self.restart_interval, 1, 1024)?;
        within("index_restart_interval", self.index_restart_interval, 1, 1024)?;
        within("filter_bits_per_key", self.filter_bits_per_key, 0, FILTER_BITS_MAX.into())?;
        self.compression.check(WHAT)?;
        if self.format_version == FORMAT_VERSION {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "{WHAT}: format version {}; this build knows {FORMAT_VERSION}",
            self.format_version
        )))
    }

    /// Appends the encoded options.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_field(out, 1, FIELD_CRITICAL, &self.format_version.to_le_bytes());
        put_field(out, 2, FIELD_CRITICAL, &self.block_len.to_le_bytes());
        let mut intervals = Vec::with_capacity(8);
        intervals.put_u32(self.restart_interval);
        intervals.put_u32(self.index_restart_interval);
        put_field(out, 3, FIELD_CRITICAL, &intervals);
        put_field(out, 4, FIELD_CRITICAL, &self.compression.encode());
        let mut filter = Vec::with_capacity(5);
        filter.put_u8(FILTER_BLOOM);
        filter.put_u32(self.filter_bits_per_key);
        put_field(out, 5, FIELD_CRITICAL, &filter);
    }

    /// Decodes what [`SstOptions::encode`] made. A replica that cannot follow a recipe learns it
    /// here.
    ///
    /// # Errors
    /// Corruption; unsupported for an unknown version, compression or critical field.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut options = Self::default();
        let mut fields = Fields::new(bytes, WHAT);
        let mut last_tag = 0;
        while let Some(field) = fields.next_field()? {
            if field.tag <= 5 && field.tag != last_tag + 1 {
                return Err(Error::corruption(format!("{WHAT}: field {} out of order", field.tag)));
            }
            if field.tag > 5 {
                field.skip_unknown(WHAT)?;
                continue;
            }
            last_tag = field.tag;
            let mut payload = Reader::new(field.payload, WHAT);
            match field.tag {
                1 => options.format_version = payload.u16()?,
                2 => options.block_len = payload.u32()?,
                3 => {
                    options.restart_interval = payload.u32()?;
                    options.index_restart_interval = payload.u32()?;
                }
                4 => {
                    options.compression = Compression::decode(payload, WHAT)?;
                    continue;
                }
                _ => {
                    let kind = payload.u8()?;
                    if kind != FILTER_BLOOM {
                        return Err(Error::unsupported(format!("{WHAT}: unknown filter {kind}")));
                    }
                    options.filter_bits_per_key = payload.u32()?;
                }
            }
            payload.finish()?;
        }
        if last_tag != 5 {
            return Err(Error::corruption(format!("{WHAT}: field {} is missing", last_tag + 1)));
        }
        options.check().map_err(|error| match error.kind() {
            gabion_base::ErrorKind::InvalidInput => Error::corruption(error.message()),
            _ => error,
        })?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::ErrorKind;
    use proptest::prelude::*;

    #[test]
    fn options_survive_encoding_and_nonsense_is_refused() {
        let options = SstOptions { compression: Compression::Lz4, ..SstOptions::default() };
        let zstd = |level| Compression::Zstd { level };
        let packed = |level| SstOptions { compression: zstd(level), ..SstOptions::default() };
        let mut out = Vec::new();
        options.encode(&mut out);
        assert_eq!(SstOptions::decode(&out).unwrap(), options);
        for (bad, kind) in [
            (SstOptions { block_len: 511, ..options.clone() }, ErrorKind::Corruption),
            (SstOptions { restart_interval: 0, ..options.clone() }, ErrorKind::Corruption),
            (SstOptions { index_restart_interval: 0, ..options.clone() }, ErrorKind::Corruption),
            (SstOptions { filter_bits_per_key: 33, ..options.clone() }, ErrorKind::Corruption),
            (packed(0), ErrorKind::Unsupported),
            (packed(20), ErrorKind::Unsupported),
            (SstOptions { format_version: 2, ..options }, ErrorKind::Unsupported),
        ] {
            out.clear();
            bad.encode(&mut out);
            assert_eq!(SstOptions::decode(&out).unwrap_err().kind(), kind, "{bad:?}");
        }
        let error = SstOptions { block_len: 7, ..SstOptions::default() }.check().unwrap_err();
        assert_eq!(error.message(), "SST options: block_len is 7, the limits are 512 to 1048576");
        let error = packed(20).check().unwrap_err();
        assert_eq!(error.message(), "SST options: zstd level is 20, the limits are 1 to 19");
        for level in 1..=19 {
            out.clear();
            packed(level).encode(&mut out);
            assert_eq!(SstOptions::decode(&out).unwrap(), packed(level));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>, flip in any::<prop::sample::Index>(), bit in 0u8..8) {
            let _ = SstOptions::decode(&bytes);
            let mut out = Vec::new();
            SstOptions::default().encode(&mut out);
            let at = flip.index(out.len());
            out[at] ^= 1 << bit;
            let _ = SstOptions::decode(&out);
            let _ = SstOptions::decode(&out[..at]);
        }
    }
}
