//! Memory that survives the kill of a process and not a power cut: the simulated ring.

use super::random::Random;
use crate::MemoryRegion;
use alloc::rc::Rc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::RefCell;

struct State {
    bytes: Vec<u8>,
    /// What the last write replaced: (offset, old bytes).
    replaced: (usize, Vec<u8>),
}

/// A shared handle on simulated memory: a clone sees the same bytes, as the next process does.
#[derive(Clone)]
pub struct SimulatedMemory(Rc<RefCell<State>>);

impl SimulatedMemory {
    /// `len` zero bytes.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self(Rc::new(RefCell::new(State { bytes: vec![0; len], replaced: (0, Vec::new()) })))
    }

    /// The power goes: all bytes become zeros or, for half of the seeds, garbage.
    pub fn crash_power(&self, seed: u64) {
        let state = &mut *self.0.borrow_mut();
        state.replaced = (0, Vec::new());
        let mut random = Random::new(seed);
        state.bytes.fill(0);
        if random.percent(50) {
            for word in state.bytes.chunks_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes()[..word.len()]);
            }
        }
    }

    /// The process is killed in the middle of its last write: any of the write's 8-byte words keep
    /// their old value. Only for a write whose return nobody has acted upon.
    pub fn tear_last_write(&self, seed: u64) {
        let state = &mut *self.0.borrow_mut();
        let (start, old) = core::mem::take(&mut state.replaced);
        let mut random = Random::new(seed);
        for at in (start..start + old.len()).filter(|at| at % 8 == 0 || *at == start) {
            let end = (at / 8 * 8 + 8).min(start + old.len());
            if random.percent(50) {
                state.bytes[at..end].copy_from_slice(&old[at - start..end - start]);
            }
        }
    }

    /// Inverts one bit.
    ///
    /// # Panics
    /// When the byte does not exist.
    pub fn flip_bit(&self, offset: usize, bit: u8) {
        self.0.borrow_mut().bytes[offset] ^= 1 << (bit % 8);
    }
}

impl MemoryRegion for SimulatedMemory {
    fn len(&self) -> u64 {
        self.0.borrow().bytes.len() as u64
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let State { bytes, replaced } = &mut *self.0.borrow_mut();
        let target = &mut bytes[offset as usize..][..data.len()];
        replaced.0 = offset as usize;
        replaced.1.clear();
        replaced.1.extend_from_slice(target);
        target.copy_from_slice(data);
    }

    fn read(&self, offset: u64, into: &mut [u8]) {
        into.copy_from_slice(&self.0.borrow().bytes[offset as usize..][..into.len()]);
    }
}
