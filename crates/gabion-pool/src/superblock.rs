//! The superblock: what a device is and where its parts lie. Blocks 0 and 1 hold the same bytes.
//!
//! ```text
//!   offset  bytes
//!        0      8  magic "GABPOOL\0"
//!        8      4  format version
//!       12      4  regions in use, at most 64
//!       16     16  pool id, new for every creation
//!       32      8  compatible feature bits      unknown ones are ignored
//!       40      8  ro-compatible feature bits   unknown ones forbid writing
//!       48      8  incompatible feature bits    unknown ones forbid opening
//!       56      8  revision; of two whole copies the higher counts
//!       64      8  pool length
//!       72     16  placement-log area A: offset, length
//!       88     16  placement-log area B: offset, length
//!      104      8  zero
//!      112  64×16  regions: id u32 | extents u32, at most 128 in all | group u64
//!     1136 128×16  extents, region by region: offset u64 | slots u32 | zero u32
//!     3184    908  zero
//!     4092      4  CRC32C of the 4,092 bytes before
//! ```
//!
//! Numbers are little-endian. Magic, version and CRC keep their places in every version, so an old
//! build can tell a newer pool from a broken one. The superblock is the last thing that creation
//! writes: a device that has one holds a complete pool (docs/faults.md E16).

use crate::Geometry;
use crate::geometry::{EXTENTS_MAX, Extent};
use alloc::format;
use alloc::vec::Vec;
use gabion_base::codec::{Put, Reader};
use gabion_base::crc::crc32c;
use gabion_base::units::{BLOCK_LEN, MIB, SLOT_LEN};
use gabion_base::{Error, GroupId, Result};

/// What a superblock starts with.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"GABPOOL\0";
/// The format version that this build writes and the only one that it reads.
pub const FORMAT_VERSION: u32 = 2;
/// Incompatible feature bits that this build knows: none yet.
pub const INCOMPATIBLE_KNOWN: u64 = 0;
/// Read-only-compatible feature bits that this build knows: none yet.
pub const RO_COMPATIBLE_KNOWN: u64 = 0;
/// Most regions in one pool.
pub const REGIONS_MAX: usize = 64;
/// Longest pool, in bytes (8 TiB): keeps a checkpoint well within an area of the placement log.
pub const POOL_LEN_MAX: u64 = 8 << 40;

const REGION_LEN: usize = 16;
const REGIONS_AT: usize = 112;
const EXTENT_LEN: usize = 16;
const EXTENTS_AT: usize = REGIONS_AT + REGIONS_MAX * REGION_LEN;
const CRC_AT: usize = BLOCK_LEN - 4;
/// Where area A of the placement log begins.
const AREAS_AT: u64 = MIB;
const AREA_LEN_MIN: u64 = 4 * MIB;
/// An area has this part of a small pool, and no more than that of a larger one while this will do:
/// it bounds the time to open the pool, as an area is searched whole for stray commits.
const AREA_PART: u64 = 256;
const AREA_LEN_USUAL: u64 = 256 * MIB;
/// Of a pool over 384 GiB an area has this part. Half of it, which a checkpoint may have, is a
/// 3,072nd: one 4,096th for key bounds that are longer than usual (the engine's `FILE_PER_BOUND`),
/// and 1,365 bytes for each 16 MiB, where a file takes 850 with two keys of 256 bytes.
const AREA_PART_OF_LARGE: u64 = 1536;

const _: () = assert!(EXTENTS_AT + EXTENTS_MAX * EXTENT_LEN <= CRC_AT);

/// Names a pool; new for every creation, as records of an older pool on the same device are told
/// apart by it.
pub type PoolId = [u8; 16];

/// What to create.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// The pool's name, never used before: draw it at random.
    pub pool_id: PoolId,
    /// The group that the region belongs to.
    pub group: GroupId,
    /// Bytes of the pool; at least 14 MiB and at most the device.
    pub len: u64,
    /// The region's number.
    pub region_id: u32,
}

/// A range of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A region in the superblock's table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its number.
    pub id: u32,
    /// The group that it is leased to.
    pub group: GroupId,
    /// Where its slots lie.
    pub geometry: Geometry,
}

/// A decoded superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The pool's name.
    pub pool_id: PoolId,
    /// Features that readers and writers may ignore.
    pub compatible: u64,
    /// Features that readers may ignore and writers must know.
    pub ro_compatible: u64,
    /// Features that everybody must know.
    pub incompatible: u64,
    /// Rises with every change; of two whole copies the higher counts.
    pub revision: u64,
    /// Bytes of the pool.
    pub len: u64,
    /// The two areas of the placement log.
    pub areas: [Area; 2],
    /// The regions.
    pub regions: Vec<Region>,
}

/// Bytes of an area of the placement log in a new pool of so many: its half holds a checkpoint of
/// all that there is room for, unless files are far shorter than they usually are.
fn area_len(pool_len: u64) -> u64 {
    let small = (pool_len / AREA_PART / MIB * MIB).clamp(AREA_LEN_MIN, AREA_LEN_USUAL);
    let large = (pool_len.min(POOL_LEN_MAX) / AREA_PART_OF_LARGE).div_ceil(MIB) * MIB;
    small.max(large)
}

impl Superblock {
    /// The layout of a new pool.
    ///
    /// # Errors
    /// Limit exceeded when the length is not between 14 MiB and 8 TiB.
    pub fn plan(config: &PoolConfig) -> Result<Self> {
        Self::plan_with_area(config, area_len(config.len))
    }

    /// [`Self::plan`] with areas of a given length, a multiple of the block.
    pub(crate) fn plan_with_area(config: &PoolConfig, area_len: u64) -> Result<Self> {
        let b = AREAS_AT + area_len;
        let offset = (b + area_len).div_ceil(SLOT_LEN) * SLOT_LEN;
        let slots = Geometry::slots_in(config.len.saturating_sub(offset));
        if slots == 0 || config.len > POOL_LEN_MAX {
            return Err(Error::limit(format!(
                "a pool of {} bytes is outside the limits of {} to {POOL_LEN_MAX} bytes",
                config.len,
                offset + 2 * SLOT_LEN
            )));
        }
        let geometry = Geometry::new(offset, slots);
        Ok(Self {
            pool_id: config.pool_id,
            compatible: 0,
            ro_compatible: 0,
            incompatible: 0,
            revision: 1,
            len: config.len,
            areas: [Area { offset: AREAS_AT, len: area_len }, Area { offset: b, len: area_len }],
            regions: alloc::vec![Region { id: config.region_id, group: config.group, geometry }],
        })
    }

    /// The block to write, twice.
    ///
    /// # Panics
    /// With more than 64 regions or 128 extents, which neither [`Self::plan`] nor [`Self::decode`]
    /// makes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.regions.len() <= REGIONS_MAX, "a superblock has room for 64 regions");
        let mut out = Vec::with_capacity(BLOCK_LEN);
        out.put_bytes(&SUPERBLOCK_MAGIC);
        out.put_u32(FORMAT_VERSION);
        out.put_u32(self.regions.len() as u32);
        out.put_bytes(&self.pool_id);
        for number in [self.compatible, self.ro_compatible, self.incompatible, self.revision] {
            out.put_u64(number);
        }
        out.put_u64(self.len);
        for area in self.areas {
            out.put_u64(area.offset);
            out.put_u64(area.len);
        }
        out.put_u64(0);
        debug_assert_eq!(out.len(), REGIONS_AT);
        for region in &self.regions {
            out.put_u32(region.id);
            out.put_u32(region.geometry.extents().count() as u32);
            out.put_u64(region.group.get());
        }
        out.resize(EXTENTS_AT, 0);
        for extent in self.regions.iter().flat_map(|region| region.geometry.extents()) {
            out.put_u64(extent.offset);
            out.put_u32(extent.slots);
            out.put_u32(0);
        }
        assert!(out.len() <= CRC_AT, "a superblock has room for 128 extents");
        out.resize(CRC_AT, 0);
        out.put_u32(crc32c(&out));
        out
    }

    /// The superblock in `block`, if the block starts like one.
    ///
    /// # Errors
    /// Corruption when it starts like one and is not whole; unsupported, with the numbers of both
    /// sides, when its version or features are beyond this build.
    pub fn decode(block: &[u8]) -> Result<Option<Self>> {
        let mut reader = Reader::new(block, "superblock");
        if reader.array::<8>()? != SUPERBLOCK_MAGIC {
            return Ok(None);
        }
        let mut tail = Reader::new(block.get(CRC_AT..).unwrap_or_default(), "superblock");
        let (stored, actual) = (tail.u32()?, crc32c(&block[..CRC_AT]));
        if stored != actual || block.len() != BLOCK_LEN {
            return Err(Error::corruption(format!(
                "superblock has checksum {actual:#010x}, {stored:#010x} is stored"
            )));
        }
        let version = reader.u32()?;
        if version != FORMAT_VERSION {
            return Err(Error::unsupported(format!(
                "the pool has format version {version}, this build knows version {FORMAT_VERSION}"
            )));
        }
        let block = Self::decode_fields(&mut reader)?;
        block.check_features()?;
        block.check_layout()?;
        Ok(Some(block))
    }

    fn decode_fields(reader: &mut Reader<'_>) -> Result<Self> {
        let region_count = reader.u32()? as usize;
        let pool_id = reader.array::<16>()?;
        let [compatible, ro_compatible, incompatible] =
            [reader.u64()?, reader.u64()?, reader.u64()?];
        let (revision, len) = (reader.u64()?, reader.u64()?);
        let a = Area { offset: reader.u64()?, len: reader.u64()? };
        let b = Area { offset: reader.u64()?, len: reader.u64()? };
        reader.u64()?;
        if region_count > REGIONS_MAX {
            return Err(Error::corruption(format!(
                "superblock: {region_count} regions, the limit is {REGIONS_MAX}"
            )));
        }
        let mut table = Reader::new(reader.bytes(REGIONS_MAX * REGION_LEN)?, "superblock");
        let mut left = EXTENTS_MAX;
        let mut regions = Vec::with_capacity(region_count);
        for _ in 0..region_count {
            let (id, count, group) = (table.u32()?, table.u32()? as usize, GroupId(table.u64()?));
            let within = |e: Error| e.within(format!("superblock: region {id}"));
            let Some(rest) = left.checked_sub(count) else {
                let why = format!("{count} extents, there is room for {left}");
                return Err(within(Error::corruption(why)));
            };
            left = rest;
            let geometry = Geometry::of_extents(&extents(reader, count)?).map_err(within)?;
            regions.push(Region { id, group, geometry });
        }
        let areas = [a, b];
        Ok(Self { pool_id, compatible, ro_compatible, incompatible, revision, len, areas, regions })
    }

    fn check_features(&self) -> Result<()> {
        for (name, bits, known) in [
            ("incompatible", self.incompatible, INCOMPATIBLE_KNOWN),
            ("read-only compatible", self.ro_compatible, RO_COMPATIBLE_KNOWN),
        ] {
            if bits & !known != 0 {
                return Err(Error::unsupported(format!(
                    "the pool has {name} features {bits:#x}, this build knows {known:#x}"
                )));
            }
        }
        Ok(())
    }

    /// Whether the parts lie inside the pool, on their boundaries, and none in another.
    fn check_layout(&self) -> Result<()> {
        let block = BLOCK_LEN as u64;
        let mut end = 2 * block;
        let extents = self.regions.iter().flat_map(|region| region.geometry.extents());
        let areas = self.areas.iter().map(|area| (area.offset, area.len, block));
        let parts = areas.chain(extents.map(|extent| (extent.offset, extent.len(), SLOT_LEN)));
        let mut parts: Vec<_> = parts.collect();
        parts.sort_unstable();
        for (offset, len, align) in parts {
            let next = offset.checked_add(len).filter(|&next| next <= self.len);
            match next {
                Some(next)
                    if offset >= end && len > 0 && offset % align == 0 && len % align == 0 =>
                {
                    end = next;
                }
                _ => {
                    return Err(Error::corruption(format!(
                        "superblock: a part of {len} bytes at {offset} does not fit after {end} \
                         in a pool of {} bytes",
                        self.len
                    )));
                }
            }
        }
        Ok(())
    }
}

/// The next `count` entries of the table of extents.
fn extents(reader: &mut Reader<'_>, count: usize) -> Result<Vec<Extent>> {
    let mut extents = Vec::with_capacity(count);
    for _ in 0..count {
        extents.push(Extent { offset: reader.u64()?, slots: reader.u32()? });
        reader.u32()?;
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gabion_base::units::GIB;

    /// A file's description with tag and level, two keys of 256 bytes and 16 checksums among it,
    /// and its placement with eight slots.
    const FILE_DESCRIBED_LEN: u64 = 750 + 100;
    const FILE_LEN: u64 = 16 * MIB;
    /// Bytes of data for each byte of a key bound over 256.
    const FILE_PER_BOUND: u64 = 4096;

    #[test]
    fn half_an_area_holds_all_files_of_a_full_pool_with_bounds_as_long_as_may_be() {
        let mut len = 14 * MIB;
        while len <= POOL_LEN_MAX {
            let config = PoolConfig { pool_id: [1; 16], group: GroupId(1), len, region_id: 1 };
            let pool = Superblock::plan(&config).unwrap();
            let data = u64::from(pool.regions[0].geometry.slots()) * SLOT_LEN;
            let described = data.div_ceil(FILE_LEN) * FILE_DESCRIBED_LEN + data / FILE_PER_BOUND;
            let half = pool.areas[0].len / 2;
            assert!(described <= half, "{described} bytes of a pool of {len}, half is {half}");
            assert!(half < u64::from(u32::MAX), "a record says so in 32 bits");
            assert!(pool.areas[1].len == 2 * half && 2 * half <= (len / 256).max(4 * MIB));
            len += (len / 64).next_multiple_of(MIB);
        }
        // As in pools that are there.
        assert_eq!(area_len(64 * GIB), 256 * MIB);
        assert_eq!(area_len(384 * GIB), 256 * MIB);
    }
}
