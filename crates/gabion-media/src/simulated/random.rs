//! SplitMix64: all the chance of the simulated medium comes from a seed through here.

/// A seeded source of numbers. The same seed gives the same numbers in every run and build.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not zero. The bias of the remainder does not matter here.
    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) const fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}
