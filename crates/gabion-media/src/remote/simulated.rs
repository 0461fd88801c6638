//! Memory and keys for tests and simulations: vectors, and keys from a seed.

use super::message::{Key, RegionId};
use super::peer::{Gate, LentMemory, Supply};
use alloc::vec;
use alloc::vec::Vec;

impl LentMemory for Vec<u8> {
    fn zero(&mut self, offset: u64, len: u64) {
        self[offset as usize..][..len as usize].fill(0);
    }

    fn bring_in(&mut self, _: u64, _: u64) {}

    fn close(&mut self) {}

    fn is_shared(&self) -> bool {
        false
    }

    fn share(&mut self, _: RegionId, _: bool) -> Option<Gate> {
        None
    }
}

/// Memory that only its owner sees, and keys from a seed.
#[derive(Clone, Debug)]
pub struct SimulatedSupply {
    state: u64,
    /// Bytes that the simulated system still has.
    pub system_bytes: u64,
}

impl SimulatedSupply {
    /// With memory without end.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed, system_bytes: u64::MAX }
    }

    const fn next(&mut self) -> u64 {
        // SplitMix64.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Supply for SimulatedSupply {
    type Memory = Vec<u8>;

    fn make(&mut self, len: u64) -> Option<Vec<u8>> {
        (len <= self.system_bytes).then(|| vec![0; len as usize])
    }

    fn key(&mut self) -> Key {
        Key(u128::from(self.next()) << 64 | u128::from(self.next()))
    }
}
