//! The fate of writes that no flush covered, after a power cut (docs/faults.md, "SimFs crash
//! semantics"): every 512-byte sector of each such write is new, old, zero or garbage,
//! independently.

use super::pages::Pages;
use super::random::Random;
use crate::Bytes;
use alloc::vec;
use alloc::vec::Vec;

/// What a device writes at once or not at all.
pub const SECTOR_LEN: usize = 512;

/// A write that no flush has covered yet.
#[derive(Clone)]
pub(super) struct Written {
    /// Ordinal among the writes of a disk.
    pub(super) serial: u64,
    pub(super) offset: u64,
    pub(super) data: Bytes,
}

/// Applies to `pages` what a power cut leaves of `writes`, which are in the order of their effect.
/// Variant 0 leaves nothing of them, 1 all; any other number seeds a mixture.
pub(super) fn persist(pages: &mut Pages, writes: &[Written], variant: u64) {
    if variant == 0 {
        return;
    }
    let mut random = Random::new(variant);
    // All of them is a number of its own, and no mixture.
    let style = if variant == 1 { 1 } else { [0, 2, 3][random.below(3) as usize] };
    let chosen = random.below(writes.len().max(1) as u64) as usize;
    for (i, write) in writes.iter().enumerate() {
        match style {
            1 => pages.write(write.offset, &write.data),
            // A prefix of the writes, the last of them damaged.
            2 if i < chosen => pages.write(write.offset, &write.data),
            2 if i > chosen => {}
            // All but one.
            3 if i != chosen => pages.write(write.offset, &write.data),
            3 => {}
            _ => tear(pages, write.offset, &write.data, &mut random),
        }
    }
}

/// Applies some sectors of one write.
pub(super) fn tear(pages: &mut Pages, offset: u64, data: &[u8], random: &mut Random) {
    let sectors = data.len().div_ceil(SECTOR_LEN) as u64;
    let mode = random.below(6);
    let cut = random.below(sectors + 1);
    for (i, sector) in data.chunks(SECTOR_LEN).enumerate() {
        let at = offset + (i * SECTOR_LEN) as u64;
        let landed = match mode {
            0 => false,
            1 => true,
            2 => (i as u64) < cut,
            3 => (i as u64) >= cut,
            _ => random.percent(50),
        };
        if landed {
            pages.write(at, sector);
        } else if mode == 5 && random.percent(30) {
            pages.write(at, &junk(sector.len(), random));
        }
    }
}

fn junk(len: usize, random: &mut Random) -> Vec<u8> {
    if random.percent(50) {
        return vec![0; len];
    }
    (0..len).map(|_| random.next() as u8).collect()
}
