//! How a group's tree is shaped: sizes of MemTables, files and levels, and when writers wait.
//!
//! A property of the group, fixed at creation and equal at every replica. Bad values are refused,
//! never corrected. Encoded (little-endian):
//!
//! ```text
//!  0 u16 version          2 u8 levels          3 u8 zero
//!  4 u32 l0_trigger       8 u32 l0_slowdown   12 u32 l0_stop
//! 16 u32 level_multiplier 20 u32 sealed_max
//! 24 u64 memtable_len     32 u64 sst_len       40 u64 level1_len
//! 48 SstOptions, after its length (varint)
//!  … version 2: codec of the bottom (version u16, level u16, name), after its length (varint)
//!  … version 3: u32 filter bits of files above the bottom besides, then as version 2, the length 0 without a codec
//!  … version 4: u32 large_values, then as version 3
//!  … version 5: u32 large_values, prefixed codec of values, then as version 3
//! ```
//!
//! Each option is written by the first version that knows it: 1 where the bottom has no codec of its own and filters have
//! as many bits everywhere, as all had before version 3; 2 where only the former is not so;
//! 4 where large values go apart.

use crate::recipe::JobKind;
use crate::sst::{Compression, FILTER_BITS_MAX, SstOptions};
use crate::values::LARGE_VALUES_MIN;
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::units::{GIB, KIB, MIB, VALUE_LEN_MAX};
use gabion_base::{Error, Result};

/// Version of the encoding of [`TreeConfig`].
const VERSION: u16 = 1;
/// With a codec of the bottom.
const VERSION_BOTTOM: u16 = 2;
/// With filters that have more bits above the bottom.
const VERSION_FILTERS: u16 = 3;
/// With values that go apart.
const VERSION_VALUES: u16 = 4;
/// With a codec of values.
const VERSION_PACKED: u16 = 5;
/// Longest encoded codec.
const CODEC_LEN_MAX: usize = 64;
const WHAT: &str = "tree options";
/// Longest encoded file options.
const SST_OPTIONS_LEN_MAX: usize = 4096;
/// Most levels that a tree may have, L0 included.
pub const LEVELS_MAX: u8 = 16;
/// An output file may overlap this many target lengths of the level below it, no more: moving it
/// on later then costs at most so much (LevelDB, `MaxGrandParentOverlapBytes`).
pub const GRANDPARENT_OVERLAP_FILES: u64 = 10;
/// A compaction out of L0 takes older files first and stops adding once its inputs reach this many
/// target lengths (RocksDB, `max_compaction_bytes`).
pub const COMPACTION_INPUT_FILES: u64 = 25;

/// L1 aims at so many times the length of a MemTable: what is compacted out of L0 is then about as long as what it is
/// merged with (RocksDB's tuning guide, "Level-style compaction").
pub const LEVEL1_MEMTABLES: u64 = 4;

/// Most bits per key that filters above the bottom have besides: with 8 at the bottom they are 32.
const FILTER_BITS_EXTRA_MAX: u64 = 24;

/// The shape of a tree. See each field for meaning, unit, default and consequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeConfig {
    /// A MemTable is sealed once it uses this many bytes of memory. Default 16 MiB: one flush then
    /// fills one SST. Twice as much halves the flushes and doubles what a restart replays.
    pub memtable_len: u64,
    /// An SST is cut before it grows over this many bytes. Default 16 MiB, eight whole slots; a value
    /// that is not a multiple of a slot wastes part of the last slot of each file.
    pub sst_len: u64,
    /// Runs in L0 ([`Version::runs`](crate::Version::runs): a file of a flush, or all files of a load) that start a
    /// compaction into L1, as do fewer with as many bytes as L1 aims at. Default 4. Every read without a match looks at all, so a larger trigger trades reads for write amplification: measured with 8
    /// and 100-byte values, a quarter less is written, and a seek takes twice as long.
    /// Runs of pointers, which are short, come together three times as many where L0 is little
    /// beside the level below.
    pub l0_trigger: u32,
    /// Runs in L0 from which writers are slowed down, more with each run: so that they need not wait for a compaction of
    /// all of L0. Default 20.
    pub l0_slowdown: u32,
    /// Runs in L0 from which writers wait. Default 36.
    pub l0_stop: u32,
    /// Bytes that L1 aims at, at most. Default 64 MiB, [`LEVEL1_MEMTABLES`] MemTables (RubbleDB §5.1).
    pub level1_len: u64,
    /// Each level below L1 aims at this many times the one above it. Default 10: what was replaced and lies deeper is
    /// then about a ninth of what the tree holds, see [`crate::picker::Picker::level_target`].
    pub level_multiplier: u32,
    /// Sealed MemTables (waiting for their flush to be applied) at which writers wait. Default 4, so at most 5 ×
    /// `memtable_len` of memory.
    pub sealed_max: u32,
    /// Levels, L0 included. Default 7: the last aims at 64 MiB × 10⁵.
    pub levels: u8,
    /// How SSTs are written: codec, filter, block length.
    pub sst: SstOptions,
    /// Compression of files below which nothing of their range lies, if it is another than [`SstOptions::compression`],
    /// which all others have. Default none: one codec for all. See [`Codecs`].
    pub bottom_compression: Option<Compression>,
    /// Bits per key that the filters of files above the bottom have besides [`SstOptions::filter_bits_per_key`]; 0 to
    /// 24, default 6, so 16 in all. No filter has more than 32, and where those at the bottom have none, none has. See
    /// [`TreeConfig::sst_of_job`].
    pub upper_filter_bits_extra: u32,
    /// Values of so many bytes, or more, lie in values files apart from the tree, which has
    /// pointers to them; 64 to 8 MiB, default 0: none does, but in a large pool, for which stores
    /// and clusters take 512 in place of this default. Such a value is written to a file once,
    /// and again when half of its file is dead, in place of once for each level: for values of
    /// 1,000 bytes that are written once, a fifth of the bytes. A read that is not in the cache
    /// takes a read more, and a scan one for each pair; values of less than a few hundred bytes are
    /// not worth that.
    pub large_values: u32,
    /// The codec of values from [`TreeConfig::large_values`] on, which the head packs once, before
    /// they go into the log: log, wire, values files and other members have them packed. Default
    /// none. LZ4 takes some 0.5 µs for 1,000 bytes, zstd 2 µs, and a read that finds its value in
    /// no cache a half of that ([`Compression`]). A value that does not shrink by an eighth stays
    /// as it is.
    pub value_compression: Compression,
}

/// Which codec a file is made with. A tree begins with those of its [`TreeConfig`] and may go on with others
/// ([`Tree::set_codecs`](crate::Tree::set_codecs)): each recipe names its own, and so does each file.
///
/// Two, as nine tenths of a tree's bytes lie at its bottom and are seldom written again, while most of what compactions
/// write lies above: what costs little for the many bytes that soon go, what packs well for those that stay (RocksDB's
/// `compression` and `bottommost_compression`; of its `compression_per_level` its guide says no more than these two do).
///
/// The bottom is not a level but wherever nothing of a compaction's range lies deeper down, which its recipe says: so a
/// young tree, and ranges to which nothing was ever added, are packed too. Flushes are never of the bottom, as L0 is
/// compacted soon; bulk loads always are. A file that comes to rest at the bottom by a move keeps its codec in RocksDB
/// unless the levels' differ; here it is written anew, once, when its codec is not the bottom's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Codecs {
    /// The codec of files that have others of their range below them.
    pub upper: Compression,
    /// The codec of files that have none; none: as `upper`.
    pub bottom: Option<Compression>,
}

impl Codecs {
    /// Checks both.
    ///
    /// # Errors
    /// Invalid input, naming a level and its limits.
    pub fn check(self) -> Result<()> {
        self.upper.check("compression")?;
        self.at_bottom().check("bottom_compression")
    }

    /// The codec of a file at the bottom.
    #[must_use]
    pub const fn at_bottom(self) -> Compression {
        match self.bottom {
            Some(codec) => codec,
            None => self.upper,
        }
    }

    /// The codec of a job's files, from what its recipe says of it.
    #[must_use]
    pub const fn of_job(self, kind: JobKind, bottommost: bool) -> Compression {
        match kind {
            JobKind::Compaction if bottommost => self.at_bottom(),
            // It goes as deep as it can; where that is, is known when its files are made.
            JobKind::Load => self.at_bottom(),
            _ => self.upper,
        }
    }
}

/// When a MemTable is sealed, and how many runs L0 may have: what may change while a tree lives
/// ([`Tree::set_write_limits`](crate::Tree::set_write_limits)), as nothing of it shows in a file. The fields are those of
/// [`TreeConfig`], with which a tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteLimits {
    /// See [`TreeConfig::memtable_len`].
    pub memtable_len: u64,
    /// See [`TreeConfig::l0_trigger`].
    pub l0_trigger: u32,
    /// See [`TreeConfig::l0_slowdown`].
    pub l0_slowdown: u32,
    /// See [`TreeConfig::l0_stop`].
    pub l0_stop: u32,
}

impl WriteLimits {
    /// Checks each.
    ///
    /// # Errors
    /// Invalid input that names the option, its value and its limits.
    pub fn check(self) -> Result<()> {
        in_range("memtable_len", self.memtable_len, 4 * KIB, GIB)?;
        in_range("l0_trigger", u64::from(self.l0_trigger), 1, 1000)?;
        in_range("l0_slowdown", u64::from(self.l0_slowdown), u64::from(self.l0_trigger), 1000)?;
        in_range("l0_stop", u64::from(self.l0_stop), u64::from(self.l0_slowdown), 1000)
    }
}

impl Default for TreeConfig {
    fn default() -> Self {
        Self {
            memtable_len: 16 * MIB,
            sst_len: 16 * MIB,
            l0_trigger: 4,
            l0_slowdown: 20,
            l0_stop: 36,
            level1_len: 64 * MIB,
            level_multiplier: 10,
            sealed_max: 4,
            levels: 7,
            sst: SstOptions::default(),
            bottom_compression: None,
            upper_filter_bits_extra: 6,
            large_values: 0,
            value_compression: Compression::None,
        }
    }
}

fn in_range(name: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format!("tree option {name} is {value}, allowed are {min} to {max}")))
}

/// Checks from which length on values go apart, or that none does.
///
/// # Errors
/// Invalid input that names the option, its value and its limits.
pub fn check_large_values(large_values: u32) -> Result<()> {
    if large_values == 0 {
        return Ok(());
    }
    let (least, most) = (u64::from(LARGE_VALUES_MIN), VALUE_LEN_MAX as u64);
    in_range("large_values", u64::from(large_values), least, most)
}

impl TreeConfig {
    /// Checks every option.
    ///
    /// # Errors
    /// Invalid input that names the option, its value and its limits.
    pub fn validate(&self) -> Result<()> {
        self.write_limits().check()?;
        in_range("sst_len", self.sst_len, 4 * KIB, 256 * MIB)?;
        in_range("level1_len", self.level1_len, self.sst_len, 1024 * GIB)?;
        in_range("level_multiplier", u64::from(self.level_multiplier), 2, 100)?;
        in_range("sealed_max", u64::from(self.sealed_max), 1, 64)?;
        in_range("levels", u64::from(self.levels), 2, u64::from(LEVELS_MAX))?;
        let extra = u64::from(self.upper_filter_bits_extra);
        in_range("upper_filter_bits_extra", extra, 0, FILTER_BITS_EXTRA_MAX)?;
        check_large_values(self.large_values)?;
        self.value_compression.check("value_compression")?;
        self.sst.check()?;
        self.codecs().check()
    }

    /// Which codec a file is made with.
    #[must_use]
    pub const fn codecs(&self) -> Codecs {
        Codecs { upper: self.sst.compression, bottom: self.bottom_compression }
    }

    /// When a MemTable is sealed, and how many runs L0 may have.
    #[must_use]
    pub const fn write_limits(&self) -> WriteLimits {
        let Self { memtable_len, l0_trigger, l0_slowdown, l0_stop, .. } = *self;
        WriteLimits { memtable_len, l0_trigger, l0_slowdown, l0_stop }
    }

    /// How the files of a job are written, by its kind and by whether nothing of their range lies below them: its codec
    /// ([`Codecs`]) and the bits of its filters, which also of a flush are those of the bottom if nothing lies there.
    /// What comes of it is in the recipe.
    ///
    /// Who looks for a key that lies at the bottom asks the filters of all files of its range above, and a wrong yes of
    /// each costs a block. All that lies above is a tenth of the keys, so bits are cheap there: an optimum gives each
    /// level a rate of wrong answers as small as its part of the keys (Monkey, Dayan et al., SIGMOD 2017, section 4),
    /// 4.8 bits more for a tenth. One step does nearly all of it: with 16 bits in place of 10 a wrong yes is eleven
    /// times as rare, and what is left of seven files above is 0.6 % of a block.
    ///
    /// A file that comes to rest at the bottom by a move keeps its bits: memory that is not worth a rewrite.
    #[must_use]
    pub fn sst_of_job(&self, kind: JobKind, is_of_bottom: bool) -> SstOptions {
        let compression = self.codecs().of_job(kind, is_of_bottom);
        let filter_bits_per_key = self.filter_bits(is_of_bottom || kind == JobKind::Load);
        SstOptions { compression, filter_bits_per_key, ..self.sst.clone() }
    }

    /// Bits per key of the filter of a file, by whether it has nothing of its range below it.
    #[must_use]
    pub const fn filter_bits(&self, is_of_bottom: bool) -> u32 {
        let bits = self.sst.filter_bits_per_key;
        if is_of_bottom || bits == 0 {
            return bits;
        }
        let bits = bits.saturating_add(self.upper_filter_bits_extra);
        if bits < FILTER_BITS_MAX { bits } else { FILTER_BITS_MAX }
    }

    /// Bytes that a level below L0 aims at, at most.
    #[must_use]
    pub fn level_target(&self, level: u8) -> u64 {
        let below_l1 = u32::from(level.saturating_sub(1));
        u64::from(self.level_multiplier).saturating_pow(below_l1).saturating_mul(self.level1_len)
    }

    /// Appends the encoded options.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let version = self.version();
        out.put_u16(version);
        out.put_u8(self.levels);
        out.put_u8(0);
        for value in [self.l0_trigger, self.l0_slowdown, self.l0_stop] {
            out.put_u32(value);
        }
        out.put_u32(self.level_multiplier);
        out.put_u32(self.sealed_max);
        for value in [self.memtable_len, self.sst_len, self.level1_len] {
            out.put_u64(value);
        }
        let mut sst = Vec::new();
        self.sst.encode(&mut sst);
        out.put_prefixed(&sst);
        if version >= VERSION_VALUES {
            out.put_u32(self.large_values);
        }
        if version == VERSION_PACKED {
            out.put_prefixed(&self.value_compression.encode());
        }
        if version >= VERSION_FILTERS {
            out.put_u32(self.upper_filter_bits_extra);
        }
        if version != VERSION {
            let codec = self.bottom_compression.map(Compression::encode);
            out.put_prefixed(&codec.unwrap_or_default());
        }
    }

    /// The version of the encoding that knows all that is said.
    const fn version(&self) -> u16 {
        match (self.upper_filter_bits_extra, self.bottom_compression) {
            _ if !matches!(self.value_compression, Compression::None) => VERSION_PACKED,
            _ if self.large_values > 0 => VERSION_VALUES,
            (0, None) => VERSION,
            (0, Some(_)) => VERSION_BOTTOM,
            _ => VERSION_FILTERS,
        }
    }

    /// The options off the front of `reader`, validated.
    ///
    /// # Errors
    /// Corruption, an unknown version, or an option out of its range.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let version = reader.u16()?;
        if !(VERSION..=VERSION_PACKED).contains(&version) {
            return Err(Error::unsupported(format!(
                "tree options have version {version}, \
                 this build knows {VERSION} to {VERSION_PACKED}"
            )));
        }
        let levels = reader.u8()?;
        if reader.u8()? != 0 {
            return Err(Error::corruption("tree options: byte 3 is not zero"));
        }
        let mut config = Self {
            levels,
            l0_trigger: reader.u32()?,
            l0_slowdown: reader.u32()?,
            l0_stop: reader.u32()?,
            level_multiplier: reader.u32()?,
            sealed_max: reader.u32()?,
            memtable_len: reader.u64()?,
            sst_len: reader.u64()?,
            level1_len: reader.u64()?,
            sst: SstOptions::decode(reader.prefixed(SST_OPTIONS_LEN_MAX)?)?,
            bottom_compression: None,
            upper_filter_bits_extra: 0,
            large_values: 0,
            value_compression: Compression::None,
        };
        if version >= VERSION_VALUES {
            config.large_values = reader.u32()?;
        }
        if version == VERSION_PACKED {
            let codec = reader.prefixed(CODEC_LEN_MAX)?;
            config.value_compression = Compression::decode(Reader::new(codec, WHAT), WHAT)?;
        }
        if version >= VERSION_FILTERS {
            config.upper_filter_bits_extra = reader.u32()?;
        }
        if version != VERSION {
            let codec = reader.prefixed(CODEC_LEN_MAX)?;
            if version == VERSION_BOTTOM || !codec.is_empty() {
                config.bottom_compression =
                    Some(Compression::decode(Reader::new(codec, WHAT), WHAT)?);
            }
        }
        config.validate()?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn options_survive_encoding() {
        let default = TreeConfig { l0_trigger: 2, levels: 5, ..TreeConfig::default() };
        let one = TreeConfig { upper_filter_bits_extra: 0, ..default.clone() };
        let bottom_compression = Some(Compression::ZSTD);
        let two = TreeConfig { bottom_compression, ..one.clone() };
        let both = TreeConfig { bottom_compression, ..default.clone() };
        let large = TreeConfig { large_values: 512, ..both.clone() };
        let packed = TreeConfig { value_compression: Compression::Lz4, ..large.clone() };
        let cases = [(one, 1), (two, 2), (default, 3), (both, 3), (large, 4), (packed, 5)];
        for (config, version) in cases {
            let mut bytes = Vec::new();
            config.encode(&mut bytes);
            assert_eq!(bytes[0], version);
            let mut reader = Reader::new(&bytes, "tree options");
            assert_eq!(TreeConfig::decode(&mut reader).unwrap(), config);
            reader.finish().unwrap();
        }
    }

    /// docs/faults.md: P12
    #[test]
    fn a_codec_or_version_of_another_build_is_unsupported() {
        let bottom_compression = Some(Compression::ZSTD);
        let config = TreeConfig { bottom_compression, ..TreeConfig::default() };
        let mut bytes = Vec::new();
        config.encode(&mut bytes);
        let changes: [(usize, u8, &str); 4] = [
            (0, 6, "tree options have version 6, this build knows 1 to 5"),
            (0, 0, "tree options have version 0, this build knows 1 to 5"),
            (bytes.len() - 6, 20, "codec zstd in version 1 at level 20"),
            (bytes.len() - 1, b'u', "codec zstu in version 1 at level 3"),
        ];
        for (at, byte, message) in changes {
            let mut other = bytes.clone();
            other[at] = byte;
            let error = TreeConfig::decode(&mut Reader::new(&other, "tree options")).unwrap_err();
            assert_eq!(error.kind(), gabion_base::ErrorKind::Unsupported, "{error}");
            assert!(error.message().contains(message), "{error}");
        }
    }

    /// docs/faults.md: P12
    #[test]
    fn flushes_have_the_upper_codec_and_compactions_and_loads_what_lies_below_them_says() {
        use JobKind::{Compaction, Flush, Load};
        let (upper, below) = (Compression::Lz4, Compression::ZSTD);
        for (bottom, at_bottom) in [(None, upper), (Some(below), below)] {
            let codecs = Codecs { upper, bottom };
            let of = |kind| [codecs.of_job(kind, false), codecs.of_job(kind, true)];
            assert_eq!(of(Flush), [upper, upper]);
            assert_eq!(of(Compaction), [upper, at_bottom]);
            assert_eq!(of(Load), [at_bottom, at_bottom]);
        }
    }

    #[test]
    fn an_option_out_of_range_is_refused_by_name() {
        let bottom = |level| Some(Compression::Zstd { level });
        let broken = [
            (TreeConfig { large_values: 63, ..TreeConfig::default() }, "large_values is 63"),
            (TreeConfig { levels: 1, ..TreeConfig::default() }, "levels is 1"),
            (TreeConfig { l0_trigger: 0, ..TreeConfig::default() }, "l0_trigger is 0"),
            (TreeConfig { l0_stop: 5, ..TreeConfig::default() }, "l0_stop is 5"),
            (TreeConfig { sst_len: 1, ..TreeConfig::default() }, "sst_len is 1"),
            (TreeConfig { level1_len: 5, ..TreeConfig::default() }, "level1_len is 5"),
            (TreeConfig { memtable_len: u64::MAX, ..TreeConfig::default() }, "memtable_len is"),
            (TreeConfig { level_multiplier: 1, ..TreeConfig::default() }, "level_multiplier is 1"),
            (TreeConfig { sealed_max: 0, ..TreeConfig::default() }, "sealed_max is 0"),
            (
                TreeConfig { upper_filter_bits_extra: 25, ..TreeConfig::default() },
                "upper_filter_bits_extra is 25, allowed are 0 to 24",
            ),
            (
                TreeConfig { bottom_compression: bottom(0), ..TreeConfig::default() },
                "bottom_compression: zstd level is 0, the limits are 1 to 19",
            ),
        ];
        for (config, message) in broken {
            let error = config.validate().unwrap_err();
            assert!(error.message().contains(message), "{error}");
        }
    }

    #[test]
    fn filters_above_the_bottom_have_more_bits_unless_there_are_none() {
        use JobKind::{Compaction, Flush, Load};
        let with = |filter_bits_per_key, upper_filter_bits_extra| {
            let sst = SstOptions { filter_bits_per_key, ..SstOptions::default() };
            TreeConfig { sst, upper_filter_bits_extra, ..TreeConfig::default() }
        };
        let cases = [
            (TreeConfig::default(), 16, 10),
            (with(10, 0), 10, 10),
            (with(0, 6), 0, 0),
            (with(1, 24), 25, 1),
            (with(32, 6), 32, 32),
        ];
        for (config, above, at_bottom) in cases {
            config.validate().unwrap();
            let of = |kind, bottommost| config.sst_of_job(kind, bottommost).filter_bits_per_key;
            assert_eq!([of(Flush, false), of(Flush, true)], [above, at_bottom]);
            assert_eq!([of(Compaction, false), of(Compaction, true)], [above, at_bottom]);
            assert_eq!([of(Load, false), of(Load, true)], [at_bottom, at_bottom]);
            // What a recipe carries is checked where it is read: there is no way to more than that allows.
            config.sst_of_job(Flush, false).check().unwrap();
        }
    }

    #[test]
    fn each_level_aims_at_ten_times_the_one_above() {
        let config = TreeConfig::default();
        assert_eq!(config.level_target(1), 64 * MIB);
        assert_eq!(config.level_target(3), 6400 * MIB);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = TreeConfig::decode(&mut Reader::new(&bytes, "tree options"));
        }
    }
}
