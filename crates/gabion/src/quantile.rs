//! Quantiles of times that are counted in buckets which double.

/// The time, in units of `first`, below which this part of the times lies; none where nothing was
/// counted. Bucket N ends at `first` × 2^N, and within one the times are taken as spread evenly.
/// The last bucket has no end: it is told by the end before.
pub(crate) fn quantile(counts: &[u64], first: f64, quantile: f64) -> Option<f64> {
    let all: u64 = counts.iter().sum();
    let rank = ((all as f64 * quantile).ceil() as u64).max(1);
    let mut before = 0;
    let bucket = counts.iter().position(|count| {
        before += count;
        before >= rank
    })?;
    if bucket + 1 >= counts.len() {
        return Some(first * 2_f64.powi(counts.len() as i32 - 2));
    }
    let begin = if bucket == 0 { 0.0 } else { first * 2_f64.powi(bucket as i32 - 1) };
    let end = first * 2_f64.powi(bucket as i32);
    let within = counts[bucket];
    let part = (rank - (before - within)) as f64 / within as f64;
    Some(begin + (end - begin) * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_in_its_bucket_as_far_as_its_rank() {
        assert_eq!(quantile(&[0, 0, 0], 1.0, 0.5), None);
        assert_eq!(quantile(&[], 1.0, 0.5), None);
        let at = |part| quantile(&[50, 49, 1, 0], 1.0, part);
        assert_eq!((at(0.5), at(0.99), at(1.0)), (Some(1.0), Some(2.0), Some(4.0)));
        assert_eq!(at(0.25), Some(0.5), "half of the first bucket");
        assert_eq!(quantile(&[0, 2, 0], 10.0, 0.5), Some(15.0));
        let longest = quantile(&[0, 0, 0, 1], 1.0, 0.5);
        assert_eq!(longest, Some(4.0), "longer than all that have an end");
    }
}
