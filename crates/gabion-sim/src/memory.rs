//! Memory that survives the kill of a process but not a power cut: the simulated ring.

use crate::Random;
use gabion_media::MemoryRegion;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

struct State {
    bytes: Vec<u8>,
    /// The bytes that the last write replaced: (offset, old bytes).
    replaced: (usize, Vec<u8>),
}

/// A shared handle on simulated memory: a clone sees the same bytes, and so does the next process.
#[derive(Clone)]
pub struct SimulatedMemory(Arc<Mutex<State>>);

impl SimulatedMemory {
    /// `len` zero bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self(Arc::new(Mutex::new(State { bytes: vec![0; len], replaced: (0, Vec::new()) })))
    }

    /// Memory of its own with the same bytes.
    #[must_use]
    pub fn fork(&self) -> Self {
        let bytes = self.state().bytes.clone();
        Self(Arc::new(Mutex::new(State { bytes, replaced: (0, Vec::new()) })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The power goes: all bytes become zeros or, for half of the seeds, garbage.
    pub fn crash_power(&self, seed: u64) {
        let state = &mut *self.state();
        state.replaced = (0, Vec::new());
        let mut random = Random::new(seed);
        state.bytes.fill(0);
        if random.below(100) < 50 {
            for word in state.bytes.chunks_mut(8) {
                word.copy_from_slice(&random.number().to_le_bytes()[..word.len()]);
            }
        }
    }

    /// The process is killed in the middle of its last write: any of the write's 8-byte words keep
    /// their old value. Only for a write whose return nobody has acted upon.
    pub fn tear_last_write(&self, seed: u64) {
        let state = &mut *self.state();
        let (start, old) = std::mem::take(&mut state.replaced);
        let mut random = Random::new(seed);
        for at in (start..start + old.len()).filter(|at| at % 8 == 0 || *at == start) {
            let end = (at / 8 * 8 + 8).min(start + old.len());
            if random.below(100) < 50 {
                state.bytes[at..end].copy_from_slice(&old[at - start..end - start]);
            }
        }
    }

    /// Inverts one bit.
    ///
    /// # Panics
    /// When the byte does not exist.
    pub fn flip_bit(&self, offset: usize, bit: u8) {
        self.state().bytes[offset] ^= 1 << (bit % 8);
    }
}

impl MemoryRegion for SimulatedMemory {
    fn len(&self) -> u64 {
        self.state().bytes.len() as u64
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let State { bytes, replaced } = &mut *self.state();
        let target = &mut bytes[offset as usize..][..data.len()];
        replaced.0 = offset as usize;
        replaced.1.clear();
        replaced.1.extend_from_slice(target);
        target.copy_from_slice(data);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.state().bytes[offset as usize..][..into.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_memory_survives_a_kill_and_not_a_power_cut() {
        let memory = SimulatedMemory::new(4096);
        let mut process = memory.clone();
        process.write(100, &[5; 1000]);
        drop(process);
        let mut read = [0; 1000];
        memory.read(100, &mut read);
        assert_eq!(read, [5; 1000]);
        memory.clone().write(100, &[6; 1000]);
        memory.tear_last_write(3);
        memory.read(100, &mut read);
        assert!(read.contains(&5) && read.contains(&6), "torn by words");
        memory.crash_power(9);
        memory.read(100, &mut read);
        assert!(!read.iter().all(|&b| b == 6));
        assert_eq!(memory.len(), 4096);
    }
}
