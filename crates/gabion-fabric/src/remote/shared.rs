//! One-sided access: a client that has a region mapped writes it by itself.
//!
//! Nobody can take a mapping back. So a write counts only if its region's *gate* still stands after
//! it, and whoever takes the region away closes the gate before it reads numbers:
//!
//! ```text
//!   writer                                  peer (fence, revocation)
//!     data → region                           0 → gate
//!     ── release fence ──                     ── full fence ──
//!     number → region                         reply; numbers are read
//!     ── full fence ──
//!     gate = region's number?  → it counts
//! ```
//!
//! By the two full fences one of two holds: the writer sees the closed gate, and its write does not
//! count; or the number was there before the gate closed, and who reads numbers afterwards sees it,
//! and the data with it. A write that does not count may have landed in part. So nothing that has
//! been mapped is lent again, and a new instance copies what it recovers into new regions.
//!
//! A peer that died leaves the mapping, and writes go on to count until the client learns of it
//! from its connection. To others this is a peer that died a little later.

use super::mapping::Mapping;
use crate::space::failed;
use gabion_base::{Error, ErrorKind, Result};
use gabion_media::remote::RegionId;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The gates of a peer, mapped to be read.
pub(super) struct ReadGates {
    map: Mapping,
}

impl ReadGates {
    pub(super) fn map(file: OwnedFd, bytes: u32) -> Result<Self> {
        let map = Mapping::new(file, bytes.into(), false);
        let map = map.map_err(|e| failed(Path::new("gates of a peer"), "cannot be mapped", e))?;
        Ok(Self { map })
    }

    pub(super) fn bytes(&self) -> u32 {
        self.map.len() as u32
    }
}

/// A region of a peer, mapped by a client.
pub struct SharedRegion {
    region: RegionId,
    map: Mapping,
    gates: Arc<ReadGates>,
    gate: u32,
}

impl SharedRegion {
    pub(super) fn map(
        region: RegionId,
        file: OwnedFd,
        bytes: u64,
        (gates, gate): (Arc<ReadGates>, u32),
    ) -> Result<Self> {
        if u64::from(gate) * 8 + 8 > gates.map.len() as u64 {
            let bytes = gates.map.len();
            return Err(Error::corruption(format!("gate {gate} lies outside of {bytes} bytes")));
        }
        let map = Mapping::new(file, bytes, true);
        let map = map.map_err(|e| failed(Path::new("region of a peer"), "cannot be mapped", e))?;
        Ok(Self { region, map, gates, gate })
    }

    /// Its number.
    #[must_use]
    pub const fn region(&self) -> RegionId {
        self.region
    }

    /// Its length.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether it has no bytes, which is never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.map.len() == 0
    }

    /// The index of its gate among those of its peer.
    #[must_use]
    pub const fn gate(&self) -> u32 {
        self.gate
    }

    /// Bytes of its peer's gates.
    #[must_use]
    pub fn gates_len(&self) -> u64 {
        self.gates.map.len() as u64
    }

    /// Its memory and that of the gates, for another process of this client.
    #[must_use]
    pub fn memory(&self) -> [BorrowedFd<'_>; 2] {
        [self.map.file(), self.gates.map.file()]
    }

    /// Whether writes may count.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.gates.map.word(self.gate).load(Ordering::Acquire) == self.region.0
    }

    /// Reads bytes. A client that writes meanwhile may make them a mixture.
    ///
    /// # Panics
    /// When the range reaches past the end.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        // Earlier reads, of a number or a gate, stay before this one.
        fence(Ordering::Acquire);
        self.map.read(offset, into);
        fence(Ordering::Acquire);
    }
}

/// A chain: each part lands before the next. When it returns without error all of it counts; else
/// any part of it may have landed and it never will.
///
/// # Errors
/// Invalid input for a part past the end of its region; fenced when a region has been taken away.
pub fn write_chain(parts: &[(&SharedRegion, u64, &[u8])]) -> Result<()> {
    for (shared, offset, data) in parts {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > shared.len()) {
            return Err(Error::invalid(format!(
                "{} bytes at {offset} reach past the end of region {}: {} bytes",
                data.len(),
                shared.region,
                shared.len()
            )));
        }
        // Nothing is written over what another instance may be reading.
        check_open(shared)?;
    }
    for (at, (shared, offset, data)) in parts.iter().enumerate() {
        if at > 0 {
            fence(Ordering::Release);
        }
        shared.map.write(*offset, data);
    }
    fence(Ordering::SeqCst);
    parts.iter().try_for_each(|(shared, ..)| check_open(shared))
}

fn check_open(shared: &SharedRegion) -> Result<()> {
    if shared.is_open() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Fenced,
        format!("region {} was taken away: fenced, revoked or freed", shared.region),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::supply::{MemorySupply, SharedMemory};
    use super::*;
    use gabion_media::MemoryRegion;
    use gabion_media::remote::{LentMemory, Supply};
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    const ROUNDS: u64 = 30_000;

    fn mapped(memory: &mut SharedMemory, region: RegionId) -> SharedRegion {
        let gate = memory.share(region, true).unwrap();
        let files = memory.descriptors();
        let [file, words] = files.map(|fd| fd.as_fd().try_clone_to_owned().unwrap());
        let gates = Arc::new(ReadGates::map(words, gate.gates_bytes).unwrap());
        SharedRegion::map(region, file, memory.len(), (gates, gate.index)).unwrap()
    }

    fn wait_for(turn: &AtomicU64, round: u64) {
        for spins in 0u64.. {
            if turn.load(Ordering::SeqCst) >= round {
                return;
            }
            if spins % 1000 == 999 {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }

    /// One write and one closing of the gate meet, again and again. Without the full fences a
    /// processor takes the load of each side ahead of its store, and a counted write is lost.
    /// docs/faults.md: N7
    #[test]
    fn a_write_that_meets_the_closing_of_its_gate_does_not_count_or_is_seen() {
        let mut supply = MemorySupply::new(1).unwrap();
        let mut memory = supply.make(8192).unwrap();
        let region = RegionId(1 << 32 | 1);
        let shared = mapped(&mut memory, region);
        let (turn, did_count) = (AtomicU64::new(0), AtomicBool::new(false));
        let done = AtomicU64::new(0);
        let mut counts = [0; 2];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    wait_for(&turn, round);
                    let written = write_chain(&[(&shared, 0, &round.to_le_bytes())]);
                    did_count.store(written.is_ok(), Ordering::SeqCst);
                    done.store(round, Ordering::SeqCst);
                }
            });
            for round in 1..=ROUNDS {
                memory.share(region, true).unwrap();
                turn.store(round, Ordering::SeqCst);
                // Later from round to round, so that the two meet in some.
                for _ in 0..round % 100 {
                    std::hint::spin_loop();
                }
                memory.close();
                let mut number = [0; 8];
                memory.read(0, &mut number);
                let is_seen = u64::from_le_bytes(number) == round;
                wait_for(&done, round);
                let counted = did_count.load(Ordering::SeqCst);
                assert!(is_seen || !counted, "round {round}: a counted write was not seen");
                counts[usize::from(counted)] += 1;
            }
        });
        println!("{} writes counted, {} did not", counts[1], counts[0]);
    }
}
