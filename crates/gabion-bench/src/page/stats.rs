//! Medians, spreads and ratios: the valid statements about two things that were measured a few
//! times.

use crate::figures::median;
use crate::text::grouped;

/// A difference below this share is none: the same program on the same machine differs by as much
/// from one run to the next.
const EVEN_SHARE: f64 = 0.05;

/// A figure over the rounds of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// The middle one, or the mean of the two in the middle.
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    /// Rounds.
    pub(super) count: usize,
}

impl Sample {
    /// `None` of nothing.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        let median = median(&mut values)?;
        let (&min, &max) = (values.first()?, values.last()?);
        Some(Self { median, min, max, count: values.len() })
    }

    /// The largest distance of a round from the median, in percent of it; `None` of one round.
    pub(super) fn spread_percent(&self) -> Option<f64> {
        let farthest = (self.max - self.median).max(self.median - self.min);
        (self.count > 1 && self.median > 0.0).then(|| 100.0 * farthest / self.median)
    }

    /// The median as `show` writes it, and the spread if there is one.
    pub(super) fn text(&self, show: impl Fn(f64) -> String) -> String {
        let spread = self.spread_percent();
        spread.map_or_else(
            || show(self.median),
            |spread| format!("{} ±{spread:.0} %", show(self.median)),
        )
    }
}

/// The good direction of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    More,
    Less,
}

/// The verdict of a ratio on its first side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Ahead,
    Behind,
    /// They differ by less than two runs of the same thing do.
    Even,
}

impl Tone {
    /// As a word, which stands beside every colour.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Behind => "behind",
            Self::Even => "no clear difference",
        }
    }
}

/// The median of one side ÷ the median of the other.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) value: f64,
    /// The least and the most that it may be by the rounds of both sides: any of one ÷ any of the
    /// other. They lie on two sides of 1 when the rounds overlap.
    bounds: [f64; 2],
}

impl Ratio {
    /// `None` when there is nothing to divide by.
    pub(super) fn of(side: &Sample, other: &Sample) -> Option<Self> {
        let most = if other.min > 0.0 { side.max / other.min } else { f64::INFINITY };
        (other.median > 0.0).then(|| Self {
            value: side.median / other.median,
            bounds: [side.min / other.max, most],
        })
    }

    /// The geometric mean of ratios, which is the same whichever side is the divisor; `None` when
    /// there is none above 0. Its bounds are the means of theirs. So a mean of parts whose rounds
    /// overlap is no clear difference either, unless others outweigh them by more than rounds
    /// scatter.
    pub(super) fn mean(ratios: &[Self]) -> Option<Self> {
        let ratios: Vec<&Self> = ratios.iter().filter(|ratio| ratio.value > 0.0).collect();
        let mean = |of: fn(&Self) -> f64| {
            let logs = ratios.iter().map(|ratio| of(ratio).ln());
            (logs.sum::<f64>() / ratios.len() as f64).exp()
        };
        (!ratios.is_empty()).then(|| Self {
            value: mean(|ratio| ratio.value),
            bounds: [mean(|ratio| ratio.bounds[0]), mean(|ratio| ratio.bounds[1])],
        })
    }

    /// Whether any round divided by any other gives the same verdict.
    fn is_apart(&self) -> bool {
        let [least, most] = self.bounds;
        least > 1.0 || most < 1.0
    }

    pub(super) fn tone(&self, better: Better) -> Tone {
        let is_small = self.value > 1.0 / (1.0 + EVEN_SHARE) && self.value < 1.0 + EVEN_SHARE;
        match (self.value > 1.0, better) {
            _ if is_small || !self.is_apart() => Tone::Even,
            (true, Better::More) | (false, Better::Less) => Tone::Ahead,
            _ => Tone::Behind,
        }
    }

    pub(super) fn text(&self) -> String {
        significant(self.value)
    }
}

/// A number with as many digits as are worth reading: two after the point, fewer from 10 on.
pub(super) fn significant(value: f64) -> String {
    match value {
        v if v >= 999.5 => grouped(v.round() as u64),
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v if v > 0.0 && v < 0.005 => "<0.01".to_owned(),
        v => format!("{v:.2}"),
    }
}

/// A number of few characters for a plot: 659 k, 1.25 M.
pub(super) fn short(value: f64) -> String {
    match value {
        v if v >= 999.5e6 => format!("{} G", significant(v / 1e9)),
        v if v >= 999.5e3 => format!("{} M", significant(v / 1e6)),
        v if v >= 9_995.0 => format!("{} k", significant(v / 1e3)),
        v => significant(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::of(values.iter().copied()).unwrap()
    }

    #[test]
    fn a_sample_is_its_median_and_how_far_rounds_are_from_it() {
        let one = sample(&[10.0, 8.0, 11.0]);
        assert_eq!((one.median, one.min, one.max, one.count), (10.0, 8.0, 11.0, 3));
        assert_eq!(one.text(significant), "10.0 ±20 %");
        assert_eq!(sample(&[1.0, 2.0]).median, 1.5);
        assert_eq!(sample(&[1.0]).text(significant), "1.00", "one round has no spread");
        assert_eq!(Sample::of([]), None);
        assert_eq!(sample(&[0.0, 0.0]).spread_percent(), None);
    }

    #[test]
    fn who_is_ahead_depends_on_which_way_is_better_and_on_the_spread() {
        let tone =
            |a: &[f64], b: &[f64], better| Ratio::of(&sample(a), &sample(b)).unwrap().tone(better);
        assert_eq!(tone(&[2.0], &[1.0], Better::More), Tone::Ahead);
        assert_eq!(tone(&[2.0], &[1.0], Better::Less), Tone::Behind);
        assert_eq!(tone(&[1.0], &[2.0], Better::Less), Tone::Ahead);
        assert_eq!(tone(&[1.04], &[1.0], Better::More), Tone::Even);
        assert_eq!(tone(&[1.0], &[1.04], Better::More), Tone::Even);
        assert_eq!(tone(&[1.0, 2.0], &[1.2, 1.3], Better::More), Tone::Even, "rounds overlap");
        assert_eq!(tone(&[1.9, 2.0], &[1.2, 1.3], Better::More), Tone::Ahead);
        assert_eq!(Ratio::of(&sample(&[1.0]), &sample(&[0.0])), None);
    }

    #[test]
    fn a_mean_of_ratios_is_the_same_from_both_sides() {
        let ratio = |value| Ratio { value, bounds: [value; 2] };
        assert!((Ratio::mean(&[ratio(4.0), ratio(0.25)]).unwrap().value - 1.0).abs() < 1e-12);
        assert!((Ratio::mean(&[ratio(8.0), ratio(2.0)]).unwrap().value - 4.0).abs() < 1e-12);
        assert_eq!(Ratio::mean(&[ratio(0.0)]), None);
    }

    #[test]
    fn a_mean_of_ratios_whose_rounds_overlap_is_no_clear_difference() {
        let ratio = |a: &[f64], b: &[f64]| Ratio::of(&sample(a), &sample(b)).unwrap();
        let overlapping = ratio(&[1.0, 3.0, 4.0], &[0.9, 1.2, 2.0]);
        let apart = ratio(&[1.5, 1.6], &[1.0, 1.1]);
        let tone = |parts: &[Ratio]| Ratio::mean(parts).unwrap().tone(Better::More);
        assert!(overlapping.value > 2.0);
        assert_eq!(tone(&[overlapping]), Tone::Even, "as the part by itself is");
        assert_eq!(tone(&[overlapping, overlapping]), Tone::Even);
        assert_eq!(tone(&[overlapping, apart]), Tone::Even, "it may be that it is not ahead");
        assert_eq!(
            tone(&[overlapping, apart, apart, apart]),
            Tone::Ahead,
            "nor by one part of four"
        );
        assert_eq!(tone(&[apart, ratio(&[2.0], &[1.0])]), Tone::Ahead, "one round has no spread");
    }

    #[test]
    fn a_side_that_was_nothing_in_a_round_bounds_nothing() {
        let ratio = Ratio::of(&sample(&[5.0, 6.0, 7.0]), &sample(&[0.0, 1.0, 2.0])).unwrap();
        assert_eq!(ratio.tone(Better::More), Tone::Ahead);
        let ratio = Ratio::of(&sample(&[0.0, 6.0, 7.0]), &sample(&[1.0])).unwrap();
        assert_eq!(ratio.tone(Better::More), Tone::Even);
        assert_eq!(Ratio::mean(&[ratio]).unwrap().tone(Better::More), Tone::Even);
    }

    #[test]
    fn numbers_keep_the_digits_that_are_worth_reading() {
        let texts = [0.0, 0.001, 1.234, 9.999, 12.34, 123.4, 999.7, 12_345.0].map(significant);
        assert_eq!(texts, ["0.00", "<0.01", "1.23", "10.0", "12.3", "123", "1,000", "12,345"]);
        let texts = [999.7, 9_999.0, 12_345.0, 999_900.0, 1.25e6, 2e9].map(short);
        assert_eq!(texts, ["1,000", "10.0 k", "12.3 k", "1.00 M", "1.25 M", "2.00 G"]);
    }
}
