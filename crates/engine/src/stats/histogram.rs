//! Latency histograms: counts in buckets whose width grows with the value.
//!
//! There are 16 buckets per power of two, from 1 ns to about 18 minutes, so a value is known to a sixteenth. A
//! histogram that is written to is a fixed array of counters: adding a value does not allocate, and any thread may read
//! at any time.

use std::sync::atomic::{AtomicU64, Ordering};
use zerocopy::FromZeros;

/// Buckets per power of two, as a power of two.
const FINE_LOG2: u32 = 4;
const FINE: usize = 1 << FINE_LOG2;
/// Longer times count as this value: 2^40 ns.
const LARGEST: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket_of(LARGEST) + 1;

const fn bucket_of(value: u64) -> usize {
    if value < FINE as u64 {
        return value as usize;
    }
    let shift = value.ilog2() - FINE_LOG2;
    // The leading bit of the shifted value is counted by the power.
    (shift as usize + 1) * FINE + (value >> shift) as usize - FINE
}

/// Returns the largest value that falls into a bucket.
const fn upper_bound(bucket: usize) -> u64 {
    if bucket < FINE {
        return bucket as u64;
    }
    let shift = bucket / FINE - 1;
    (((bucket % FINE + FINE + 1) as u64) << shift) - 1
}

/// Counters that one thread adds to while others read.
#[derive(FromZeros)]
pub(super) struct Buckets {
    counts: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Buckets {
    /// Counts `value` as `weight` values.
    pub(super) fn note(&self, value: u64, weight: u64, add: impl Fn(&AtomicU64, u64)) {
        let value = value.min(LARGEST);
        add(&self.counts[bucket_of(value)], weight);
        add(&self.sum, value.wrapping_mul(weight));
    }
}

/// Snapshot of a histogram. Values are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Empty, or one count per bucket.
    counts: Vec<u64>,
    sum: u64,
}

/// One bucket of a [`Histogram`].
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Largest value that the bucket counts, in nanoseconds.
    pub upper: u64,
    /// Number of values in the bucket.
    pub count: u64,
}

impl Histogram {
    pub(super) fn add(&mut self, from: &Buckets) {
        self.counts.resize(BUCKETS, 0);
        for (count, more) in self.counts.iter_mut().zip(&from.counts) {
            *count += more.load(Ordering::Relaxed);
        }
        self.sum = self.sum.wrapping_add(from.sum.load(Ordering::Relaxed));
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all values, in nanoseconds.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns the value that `percent` percent of all values do not exceed, in nanoseconds, to a sixteenth; 0 for an
    /// empty histogram.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count() as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0;
        let reaches = |b: &Bucket| {
            seen += b.count;
            seen >= rank
        };
        self.buckets().find(reaches).map_or(0, |b| b.upper)
    }

    /// Returns the largest value, in nanoseconds, to a sixteenth.
    pub fn max(&self) -> u64 {
        self.buckets().last().map_or(0, |b| b.upper)
    }

    /// Returns the buckets that are not empty, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> {
        let all =
            self.counts.iter().enumerate().map(|(index, count)| Bucket { upper: upper_bound(index), count: *count });
        all.filter(|b| b.count > 0)
    }

    /// Returns the number of values that are at most `ns`, to a sixteenth: for the cumulative buckets of other formats.
    pub fn count_up_to(&self, ns: u64) -> u64 {
        self.buckets().take_while(|b| b.upper <= ns).map(|b| b.count).sum()
    }

    /// Returns the values added since `earlier`, a snapshot of the same histogram.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(before).map(|(now, then)| now.saturating_sub(then)).collect();
        Self { counts, sum: self.sum.wrapping_sub(earlier.sum) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(u64, u64)]) -> Histogram {
        let buckets = Buckets::new_box_zeroed().unwrap();
        for (value, weight) in values {
            buckets.note(*value, *weight, |counter, n| {
                counter.fetch_add(n, Ordering::Relaxed);
            });
        }
        let mut histogram = Histogram::default();
        histogram.add(&buckets);
        histogram
    }

    #[test]
    fn every_value_lies_in_its_bucket_and_is_known_to_a_sixteenth() {
        let mut previous = None;
        for bucket in 0..BUCKETS {
            let upper = upper_bound(bucket);
            assert_eq!(bucket_of(upper), bucket);
            let lower = previous.map_or(0, |p| p + 1);
            assert_eq!(bucket_of(lower), bucket, "no gap before bucket {bucket}");
            assert!(upper - lower <= lower / 16, "bucket {bucket} from {lower} to {upper}");
            previous = Some(upper);
        }
        assert_eq!(previous, Some(LARGEST));
    }

    #[test]
    fn percentiles_count_from_below() {
        let values: Vec<_> = (1..=1000).map(|v| (v * 1000, 1)).collect();
        let histogram = of(&values);
        assert_eq!(histogram.count(), 1000);
        assert_eq!(histogram.sum(), 500_500_000);
        for (percent, expected) in [(0.0, 1000), (50.0, 500_000), (99.0, 990_000), (99.99, 1_000_000)] {
            let found = histogram.percentile(percent);
            assert!((expected..=expected + expected / 16).contains(&found), "p{percent}: {found}");
        }
        assert_eq!(histogram.max(), histogram.percentile(100.0));
        assert_eq!(Histogram::default().percentile(50.0), 0);
    }

    #[test]
    fn weights_count_and_differences_are_what_came_between() {
        let earlier = of(&[(10, 1), (5000, 4)]);
        let later = of(&[(10, 3), (5000, 4), (u64::MAX, 1)]);
        assert_eq!(earlier.count(), 5);
        let since = later.since(&earlier);
        assert_eq!(since.count(), 3);
        assert_eq!(since.buckets().map(|b| b.count).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(since.max(), LARGEST);
        assert_eq!(later.count_up_to(10), 3);
        assert_eq!(later.since(&Histogram::default()), later);
    }
}
