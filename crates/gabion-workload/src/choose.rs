//! The choice of records, as YCSB has it (Cooper et al., SoCC 2010; `ZipfianGenerator`,
//! `ScrambledZipfianGenerator`, `SkewedLatestGenerator`), so that figures can be compared with
//! others'. Records are numbered 0, 1, 2 … in the order of insertion.

use crate::key::Permutation;
use crate::random::Random;
use clap::ValueEnum;

/// The distribution of requests over records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Distribution {
    /// A few records get most requests, spread over all of them (YCSB's default; θ = 0.99).
    Zipfian,
    /// All records alike.
    Uniform,
    /// Zipfian, with the records that were inserted last in front.
    Latest,
}

impl Distribution {
    /// The name on the command line and in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Zipfian => "zipfian",
            Self::Uniform => "uniform",
            Self::Latest => "latest",
        }
    }
}

/// The skew of YCSB's zipfian distributions.
const THETA: f64 = 0.99;
/// Ranks of the scrambled distribution, however many records there are.
const SCRAMBLED_RANKS: f64 = 1e10;
/// ζ(10¹⁰, 0.99), as YCSB states it.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;

/// YCSB's `fnvhash64`: FNV over the eight octets of the number, low first, without its sign.
#[must_use]
#[inline]
pub fn fnv_hash(mut number: u64) -> u64 {
    let mut hash = 0xCBF2_9CE4_8422_2325_u64;
    for _ in 0..8 {
        hash = (hash ^ (number & 0xFF)).wrapping_mul(1_099_511_628_211);
        number >>= 8;
    }
    (hash as i64).unsigned_abs()
}

/// Ranks by popularity: rank `i` comes with a probability in proportion to `1 / (i + 1)^θ` (Gray et
/// al., SIGMOD 1994, as in YCSB).
#[derive(Clone, Debug)]
struct Zipfian {
    ranks: f64,
    zeta: f64,
    alpha: f64,
    eta: f64,
    /// Sum of the first two weights.
    two: f64,
}

impl Zipfian {
    fn new(ranks: f64, zeta: f64) -> Self {
        let two = 1.0 + 0.5_f64.powf(THETA);
        let eta = (1.0 - (2.0 / ranks).powf(1.0 - THETA)) / (1.0 - two / zeta);
        Self { ranks, zeta, alpha: 1.0 / (1.0 - THETA), eta, two }
    }

    /// The distribution over `ranks` ranks.
    fn of(ranks: u64) -> Self {
        Self::new(ranks as f64, zeta(ranks))
    }

    fn next(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.two {
            return 1;
        }
        (self.ranks * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64
    }
}

/// Sum of `1 / i^θ` for `i` from 1 to `count`: the first million terms one by one, the rest as
/// the integral with its first correction, which is exact to nine digits.
fn zeta(count: u64) -> f64 {
    const EXACT: u64 = 1_000_000;
    let exact: f64 = (1..=count.min(EXACT)).map(|i| (i as f64).powf(-THETA)).sum();
    if count <= EXACT {
        return exact;
    }
    let (from, to) = (EXACT as f64, count as f64);
    let integral = (to.powf(1.0 - THETA) - from.powf(1.0 - THETA)) / (1.0 - THETA);
    exact + integral + (to.powf(-THETA) - from.powf(-THETA)) / 2.0
}

/// Ranks 1 to `ranks`, rank `k` with a probability in proportion to `1 / k^skew`, for any skew from
/// 0 on (YCSB's method is for skews below 1): rejection-inversion, W. Hörmann and G. Derflinger,
/// "Rejection-inversion to generate variates from monotone discrete distributions", ACM TOMACS
/// 6(3), 1996.
#[derive(Clone, Copy, Debug)]
struct Ranks {
    ranks: f64,
    skew: f64,
    /// The integral of the weights at the ends.
    first: f64,
    last: f64,
    /// Nothing nearer than this to a rank is rejected.
    near: f64,
}

impl Ranks {
    fn new(ranks: u64, skew: f64) -> Self {
        let mut new = Self { ranks: ranks as f64, skew, first: 0.0, last: 0.0, near: 0.0 };
        new.first = new.integral(1.5) - 1.0;
        new.last = new.integral(new.ranks + 0.5);
        new.near = 2.0 - new.inverse(new.integral(2.5) - new.weight(2.0));
        new
    }

    fn weight(&self, x: f64) -> f64 {
        (-self.skew * x.ln()).exp()
    }

    /// `(x^(1−skew) − 1) / (1−skew)`, and the logarithm of `x` where the skew is 1.
    fn integral(&self, x: f64) -> f64 {
        let t = (1.0 - self.skew) * x.ln();
        let factor = if t.abs() > 1e-8 { t.exp_m1() / t } else { 1.0 + t / 2.0 };
        factor * x.ln()
    }

    /// The inverse of the integral.
    fn inverse(&self, y: f64) -> f64 {
        // Rounding may lead below the domain of the logarithm.
        let t = (y * (1.0 - self.skew)).max(-1.0);
        let factor = if t.abs() > 1e-8 { t.ln_1p() / t } else { 1.0 - t / 2.0 };
        (factor * y).exp()
    }

    /// A rank from 0 on.
    fn next(&self, random: &mut Random) -> u64 {
        loop {
            let y = self.last + random.unit() * (self.first - self.last);
            let x = self.inverse(y);
            let rank = (x + 0.5).floor().clamp(1.0, self.ranks);
            if rank - x <= self.near || y >= self.integral(rank + 0.5) - self.weight(rank) {
                return rank as u64 - 1;
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Shape {
    /// Ranks spread over all records.
    Skewed(Ranks, Permutation),
    Uniform,
    Scrambled(Zipfian),
    Latest(Zipfian),
}

/// Chooses the records that requests ask for.
#[derive(Clone, Debug)]
pub struct Chooser {
    records: u64,
    shape: Shape,
}

impl Chooser {
    /// Chooses among `records` records, at least one.
    #[must_use]
    pub fn new(distribution: Distribution, records: u64) -> Self {
        let shape = match distribution {
            // A zipfian distribution has at least a first and a second rank.
            _ if records < 3 => Shape::Uniform,
            Distribution::Uniform => Shape::Uniform,
            Distribution::Zipfian => {
                Shape::Scrambled(Zipfian::new(SCRAMBLED_RANKS, SCRAMBLED_ZETA))
            }
            Distribution::Latest => Shape::Latest(Zipfian::of(records)),
        };
        Self { records, shape }
    }

    /// Chooses among `records` records, at least one. The `k`-th most popular comes with a
    /// probability in proportion to `1 / k^skew`, for any skew from 0 on. The popular ones are
    /// spread over all.
    #[must_use]
    pub fn with_skew(skew: f64, records: u64) -> Self {
        assert!(skew >= 0.0, "a skew of {skew}");
        let order = Permutation::new(records, records);
        Self { records, shape: Shape::Skewed(Ranks::new(records, skew), order) }
    }

    /// The next record.
    #[inline]
    pub fn next(&self, random: &mut Random) -> u64 {
        self.next_of(self.records, random)
    }

    /// The next record when there are `records` by now, at least one. The weights stay those of the
    /// number that the chooser was made for, as in YCSB's `SkewedLatestGenerator` between
    /// insertions.
    #[inline]
    pub fn next_of(&self, records: u64, random: &mut Random) -> u64 {
        match &self.shape {
            Shape::Skewed(ranks, order) => order.at(ranks.next(random)).min(records - 1),
            Shape::Uniform => random.below(records),
            Shape::Scrambled(zipfian) => fnv_hash(zipfian.next(random)) % records,
            Shape::Latest(zipfian) => records - 1 - zipfian.next(random).min(records - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution, records: u64, requests: u32) -> Vec<u32> {
        let chooser = Chooser::new(distribution, records);
        let mut random = Random::new(7);
        let mut counts = vec![0; records as usize];
        for _ in 0..requests {
            counts[chooser.next(&mut random) as usize] += 1;
        }
        counts
    }

    #[test]
    fn the_sum_of_weights_is_the_one_that_ycsb_states() {
        let sum = zeta(SCRAMBLED_RANKS as u64);
        assert!((sum - SCRAMBLED_ZETA).abs() < 1e-6, "{sum}");
        assert_eq!(zeta(2), 1.0 + 0.5_f64.powf(0.99));
    }

    #[test]
    fn uniform_asks_for_all_alike() {
        let counts = counts(Distribution::Uniform, 100, 100_000);
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn zipfian_has_a_few_popular_records_spread_over_all() {
        let counts = counts(Distribution::Zipfian, 1000, 100_000);
        let mut sorted = counts.clone();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        // The first rank has 1 / 26.47 of all requests, and a little that other ranks hash to it.
        assert!((3_600..4_100).contains(&sorted[0]), "{}", sorted[0]);
        assert_eq!(counts[(fnv_hash(0) % 1000) as usize], sorted[0]);
        assert!(sorted[..10].iter().sum::<u32>() > 10_000);
        assert!(sorted[999] > 0);
    }

    #[test]
    fn latest_asks_most_for_what_was_loaded_last() {
        let counts = counts(Distribution::Latest, 1000, 100_000);
        let expected = 100_000.0 / zeta(1000);
        assert!((f64::from(counts[999]) / expected - 1.0).abs() < 0.05, "{}", counts[999]);
        assert!(counts[999] > counts[998]);
        let newest: u32 = counts[900..].iter().sum();
        assert!(newest > 60_000, "{newest}");
    }

    #[test]
    fn latest_follows_the_records_that_were_inserted_since() {
        let chooser = Chooser::new(Distribution::Latest, 1000);
        let mut random = Random::new(7);
        let newest = (0..10_000).filter(|_| chooser.next_of(2000, &mut random) >= 1900).count();
        assert!(newest > 6_000, "{newest}");
    }

    #[test]
    fn any_skew_gives_each_rank_its_share() {
        const REQUESTS: u32 = 200_000;
        for skew in [0.0, 0.0242, 0.735, 1.0, 1.065, 1.4908] {
            let chooser = Chooser::with_skew(skew, 1000);
            let mut random = Random::new(7);
            let mut counts = vec![0_u32; 1000];
            for _ in 0..REQUESTS {
                counts[chooser.next(&mut random) as usize] += 1;
            }
            let weight = |rank: u64| (rank as f64 + 1.0).powf(-skew);
            let sum: f64 = (0..1000).map(weight).sum();
            let order = Permutation::new(1000, 1000);
            for rank in [0, 1, 2, 10, 100, 999] {
                let expected = f64::from(REQUESTS) * weight(rank) / sum;
                let found = f64::from(counts[order.at(rank) as usize]);
                // Five standard deviations.
                assert!(
                    (found - expected).abs() < 5.0 * expected.sqrt() + 1.0,
                    "skew {skew}, rank {rank}: {found} in place of {expected:.0}"
                );
            }
        }
    }

    #[test]
    fn one_record_can_be_asked_for_in_every_distribution() {
        for distribution in [Distribution::Uniform, Distribution::Zipfian, Distribution::Latest] {
            assert_eq!(counts(distribution, 1, 10), [10]);
            assert_eq!(counts(distribution, 3, 10).len(), 3);
        }
        let one = Chooser::with_skew(1.4908, 1);
        assert_eq!(one.next(&mut Random::new(7)), 0);
    }
}
