//! Numbers that look random and follow from a seed: SplitMix64 (Steele, Lea, Flood, 2014), a few
//! instructions per number, so that choosing records costs little beside the measured work.

/// The step between states: 2⁶⁴ divided by the golden ratio, odd.
pub(crate) const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finalizer of SplitMix64: every bit of the result depends on every bit of `x`.
#[inline]
pub(crate) const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The inverse of [`mix`]: the inverse of each of its steps, last first.
#[inline]
pub(crate) const fn unmix(x: u64) -> u64 {
    let x = (x ^ (x >> 31) ^ (x >> 62)).wrapping_mul(0x3196_42B2_D24D_8EC3);
    let x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(0x96DE_1B17_3F11_9089);
    x ^ (x >> 30) ^ (x >> 60)
}

/// A sequence of numbers that follows from a seed.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "a sequence without an end is no iterator")]
    #[inline]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number in `0..bound`. The bias is below `bound` ÷ 2⁶⁴.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `0.0..1.0`.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_sequence_and_another_seed_another() {
        let take = |seed| {
            let mut random = Random::new(seed);
            [random.next(), random.next(), random.next()]
        };
        assert_eq!(take(1), take(1));
        assert_ne!(take(1), take(2));
    }

    #[test]
    fn mixing_can_be_undone() {
        let mut random = Random::new(5);
        for x in (0..100).chain([u64::MAX]).chain((0..100).map(|_| random.next())) {
            assert_eq!(unmix(mix(x)), x);
        }
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_everywhere() {
        let mut random = Random::new(3);
        let mut seen = [0_u32; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(seen.iter().all(|&count| (850..1150).contains(&count)), "{seen:?}");
    }
}
