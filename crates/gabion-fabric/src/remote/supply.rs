//! The memory of a peer on this machine: each region a sealed memfd, and one more with the gates.
//!
//! A gate is a word that holds the number of its region while writes to it may count, and zero from
//! then on. Clients map the gates to read them; the seal `FUTURE_WRITE` keeps them from more.

use super::mapping::Mapping;
use crate::space::failed;
use gabion_base::Result;
use gabion_media::MemoryRegion;
use gabion_media::remote::{Gate, Key, LentMemory, RegionId, Supply};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

const WORD: u32 = 8;
/// Random bytes that are got at once.
const RANDOM_LEN: usize = 256;

/// Descriptors of memory have numbers from here on, as far as the process may have such. The system
/// closes those of a process that ends in their order, and frees memory for many milliseconds:
/// clients learn of the end by their sockets, which therefore come first.
const FIRST_DESCRIPTOR: i32 = 1024;

/// A memfd of zeros that keeps its length.
pub(super) fn sealed_memory(name: &str, len: u64) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let file = fcntl_dupfd_cloexec(&file, FIRST_DESCRIPTOR).unwrap_or(file);
    ftruncate(&file, len)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// The gates of a peer.
struct Gates {
    map: Mapping,
    /// Those that no region has. A gate that is used again holds another number: no two regions
    /// have the same.
    free: Mutex<Vec<u32>>,
}

impl Gates {
    fn new(count: u32) -> io::Result<Self> {
        let len = (u64::from(count) * u64::from(WORD)).next_multiple_of(4096);
        let file = sealed_memory("gabion-gates", len)?;
        let map = Mapping::new(file, len, true)?;
        // The mapping above stays writable; nobody maps more to write.
        fcntl_add_seals(map.file(), SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok(Self { map, free: Mutex::new((0..count).rev().collect()) })
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a gate: see [`super::shared`].
    fn close(&self, index: u32) {
        self.map.word(index).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// A region's memory.
pub struct SharedMemory {
    map: Mapping,
    gates: Arc<Gates>,
    gate: Option<u32>,
}

impl SharedMemory {
    /// The descriptors that a client maps: of the region and of the gates.
    #[must_use]
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.map.file(), self.gates.map.file()]
    }
}

impl MemoryRegion for SharedMemory {
    fn len(&self) -> u64 {
        self.map.len() as u64
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.map.write(offset, data);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        self.map.read(offset, into);
    }
}

impl LentMemory for SharedMemory {
    fn zero(&mut self, offset: u64, len: u64) {
        self.map.zero(offset, len);
    }

    fn bring_in(&mut self, offset: u64, len: u64) {
        self.map.bring_in(offset, len as usize);
    }

    fn close(&mut self) {
        if let Some(gate) = self.gate {
            self.gates.close(gate);
        }
    }

    fn is_shared(&self) -> bool {
        self.gate.is_some()
    }

    fn share(&mut self, region: RegionId, writable: bool) -> Option<Gate> {
        let gate = match self.gate {
            Some(gate) => gate,
            None => {
                let gate = self.gates.free().pop()?;
                self.gate = Some(gate);
                gate
            }
        };
        if writable {
            self.gates.map.word(gate).store(region.0, Ordering::SeqCst);
        }
        Some(Gate { index: gate, gates_bytes: self.gates.map.len() as u32 })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if let Some(gate) = self.gate {
            self.gates.close(gate);
            self.gates.free().push(gate);
        }
    }
}

/// Memory and keys of a peer on this machine.
pub struct MemorySupply {
    gates: Arc<Gates>,
    random: [u8; RANDOM_LEN],
    used: usize,
}

impl MemorySupply {
    /// For `regions_max` regions at a time.
    ///
    /// # Errors
    /// The system's, when it has no memory or no descriptor.
    pub fn new(regions_max: u32) -> Result<Self> {
        let gates = Gates::new(regions_max)
            .map_err(|e| failed(Path::new("gates of a peer"), "cannot be made", e))?;
        Ok(Self { gates: Arc::new(gates), random: [0; RANDOM_LEN], used: RANDOM_LEN })
    }
}

impl Supply for MemorySupply {
    type Memory = SharedMemory;

    fn make(&mut self, len: u64) -> Option<SharedMemory> {
        let file = sealed_memory("gabion-region", len).ok()?;
        let map = Mapping::new(file, len, true).ok()?;
        Some(SharedMemory { map, gates: Arc::clone(&self.gates), gate: None })
    }

    fn key(&mut self) -> Key {
        if self.used == RANDOM_LEN {
            fill_random(&mut self.random);
            self.used = 0;
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.random[self.used..][..16]);
        self.random[self.used..][..16].fill(0);
        self.used += 16;
        Key(u128::from_le_bytes(bytes))
    }
}

/// Fills with what nobody guesses.
///
/// # Panics
/// When the system has no randomness: a key that can be guessed is worse than none.
pub(super) fn fill_random(bytes: &mut [u8]) {
    let mut at = 0;
    while at < bytes.len() {
        match getrandom(&mut bytes[at..], GetRandomFlags::empty()) {
            Ok(len) => at += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the system has no randomness: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_closed_with_their_region_used_again_and_never_written_by_others() {
        let mut supply = MemorySupply::new(2).unwrap();
        let mut first = supply.make(4096).unwrap();
        let gate = first.share(RegionId(7), true).unwrap();
        let [_, words] = first.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        let again = words.try_clone().unwrap();
        assert!(Mapping::new(again, gate.gates_bytes.into(), true).is_err(), "they are sealed");
        let map = Mapping::new(words, gate.gates_bytes.into(), false).unwrap();
        let word = || map.word(gate.index).load(Ordering::SeqCst);
        assert_eq!(word(), 7);
        first.close();
        assert_eq!(word(), 0);

        let mut second = supply.make(4096).unwrap();
        assert_ne!(second.share(RegionId(8), true).unwrap().index, gate.index);
        let mut third = supply.make(4096).unwrap();
        assert_eq!(third.share(RegionId(9), true), None, "there are two gates");
        drop(first);
        assert_eq!(third.share(RegionId(9), true).unwrap().index, gate.index);
        assert_eq!(word(), 9, "the number is another, so the first one's writer counts nothing");
        drop(third);
        assert_eq!(word(), 0);
    }

    #[test]
    fn keys_differ() {
        let mut supply = MemorySupply::new(1).unwrap();
        let keys: std::collections::BTreeSet<u128> = (0..1000).map(|_| supply.key().0).collect();
        assert_eq!(keys.len(), 1000);
    }
}
