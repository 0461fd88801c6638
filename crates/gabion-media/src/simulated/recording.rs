//! The log of everything that a workload wrote, from which an exhaustive crash enumerator rebuilds
//! the disk as a power cut at any boundary would have left it.

use super::crash::{Written, persist};
use super::pages::Pages;
use super::{DiskOptions, SimulatedDisk};
use crate::Bytes;
use alloc::vec::Vec;

/// One effect on the disk, in the order in which they happened.
#[derive(Clone, Debug)]
pub enum Recorded {
    /// A write took effect (whole, or what a failing one left behind).
    Write {
        /// Ordinal among the disk's writes.
        serial: u64,
        /// First byte.
        offset: u64,
        /// The bytes.
        data: Bytes,
    },
    /// A flush succeeded: all writes with a serial up to this one are durable.
    Flush {
        /// The last serial that it covers.
        covers: u64,
    },
    /// A flush failed: some sectors of the writes before it are durable, the rest never will be.
    FlushFailed,
}

/// What a disk recorded since [`SimulatedDisk::start_recording`].
#[derive(Clone)]
pub struct Recording {
    pub(super) len: u64,
    pub(super) base: Pages,
    pub(super) effects: Vec<Recorded>,
}

impl Recording {
    /// The effects in order. Boundary `k` lies before effect `k`; the last boundary is their
    /// number.
    #[must_use]
    pub fn effects(&self) -> &[Recorded] {
        &self.effects
    }

    /// What a flush that fails as the next effect makes of the unflushed writes: the same in the
    /// disk and in the replay.
    pub(super) const fn failure_variant(&self) -> u64 {
        self.effects.len() as u64 + 2
    }

    /// A walk over all boundaries, from boundary 0: cheaper than [`Self::image_at`] for each.
    #[must_use]
    pub fn replay(&self) -> Replay<'_> {
        Replay { recording: self, boundary: 0, durable: self.base.clone(), unsynced: Vec::new() }
    }

    /// The disk after a power cut at boundary `k`. Variant 0 keeps nothing that was not flushed, 1
    /// keeps all of it (as the kill of the process does), any other number seeds a mixture.
    ///
    /// # Panics
    /// When there is no boundary `k`.
    #[must_use]
    pub fn image_at(&self, k: usize, variant: u64) -> SimulatedDisk {
        assert!(k <= self.effects.len(), "boundary {k} of {}", self.effects.len());
        let mut replay = self.replay();
        while replay.boundary() < k {
            replay.advance();
        }
        replay.image(variant)
    }
}

/// A position in a [`Recording`].
pub struct Replay<'a> {
    recording: &'a Recording,
    boundary: usize,
    durable: Pages,
    unsynced: Vec<Written>,
}

impl Replay<'_> {
    /// How many effects lie before this position.
    #[must_use]
    pub const fn boundary(&self) -> usize {
        self.boundary
    }

    /// How many writes are not yet covered by a flush here: with none, all variants are equal.
    #[must_use]
    pub const fn unsynced(&self) -> usize {
        self.unsynced.len()
    }

    /// Goes to the next boundary. Returns false at the last.
    pub fn advance(&mut self) -> bool {
        let Some(effect) = self.recording.effects.get(self.boundary) else { return false };
        self.boundary += 1;
        match effect {
            Recorded::Write { serial, offset, data } => {
                self.unsynced.push(Written { serial: *serial, offset: *offset, data: data.clone() })
            }
            Recorded::Flush { covers } => {
                settle(&mut self.durable, &mut self.unsynced, *covers);
            }
            Recorded::FlushFailed => {
                persist(&mut self.durable, &self.unsynced, self.boundary as u64 + 1);
                self.unsynced.clear();
            }
        }
        true
    }

    /// The disk after a power cut here; see [`Recording::image_at`].
    #[must_use]
    pub fn image(&self, variant: u64) -> SimulatedDisk {
        let mut pages = self.durable.clone();
        persist(&mut pages, &self.unsynced, variant);
        SimulatedDisk::from_pages(DiskOptions::immediate(self.recording.len), pages)
    }
}

/// Moves the writes up to serial `covers` into `durable`.
pub(super) fn settle(durable: &mut Pages, unsynced: &mut Vec<Written>, covers: u64) {
    unsynced.retain(|write| {
        let covered = write.serial <= covers;
        if covered {
            durable.write(write.offset, &write.data);
        }
        !covered
    });
}
