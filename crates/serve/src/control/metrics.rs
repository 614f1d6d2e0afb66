//! Metrics of a running volume, as plain numbers for the control socket.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use inlock_engine::Device;
use inlock_engine::stats::{Histogram, Snapshot};
use serde::{Deserialize, Serialize};

use super::integrity::IntegrityCounters;
use inlock_open::layer::Layer;

/// Counters since the volume was opened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Requests to write zeroes.
    pub write_zeroes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Requests to read ahead.
    pub prefetches: u64,
    /// Zone appends.
    pub appends: u64,
    /// Other commands of zones.
    pub zone_actions: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Requests that were refused: not allowed, out of range, or malformed.
    #[serde(default)]
    pub refused: u64,
    /// Requests that failed with an error of the underlying device.
    #[serde(default)]
    pub store_errors: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Requests encrypted or decrypted by the worker.
    pub inline: u64,
    /// Requests encrypted or decrypted by other threads.
    pub offloaded: u64,
    /// Calls of the cipher.
    pub cipher_calls: u64,
    /// Data units of all calls.
    pub cipher_units: u64,
}

impl Counters {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        Self {
            reads: snapshot.reads,
            writes: snapshot.writes,
            write_zeroes: snapshot.write_zeroes,
            flushes: snapshot.flushes,
            discards: snapshot.discards,
            prefetches: snapshot.prefetches,
            appends: snapshot.appends,
            zone_actions: snapshot.zone_actions,
            errors: snapshot.errors,
            refused: snapshot.refused,
            store_errors: snapshot.store_errors,
            bytes_read: snapshot.bytes_read,
            bytes_written: snapshot.bytes_written,
            inline: snapshot.inline,
            offloaded: snapshot.offloaded,
            cipher_calls: snapshot.cipher_calls,
            cipher_units: snapshot.cipher_units,
        }
    }

    /// Returns the average number of data units in a cipher call.
    pub fn units_per_call(&self) -> f64 {
        self.cipher_units as f64 / self.cipher_calls.max(1) as f64
    }
}

/// The last error of the underlying device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastError {
    /// Error number of the system.
    pub errno: i32,
    /// `read`, `write`, `write_zeroes`, `flush`, `discard`, `prefetch`, `append`, `zone_management`.
    pub operation: String,
    /// Seconds since 1970.
    pub at: u64,
}

impl LastError {
    pub(crate) fn of(snapshot: &Snapshot) -> Option<Self> {
        let last = snapshot.last_store_error?;
        Some(Self { errno: last.errno.raw_os_error(), operation: last.operation.to_owned(), at: last.at_secs })
    }
}

/// Returns the latency histograms by phase: `total`, `queue`, `store`, `cipher`.
pub fn phases(snapshot: &Snapshot) -> [(&'static str, &Histogram); 4] {
    [("total", &snapshot.total), ("queue", &snapshot.queue), ("store", &snapshot.store), ("cipher", &snapshot.cipher)]
}

/// Counts of a histogram by the upper bound of each bucket, in nanoseconds. Empty buckets are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets {
    /// Sum of all values, in nanoseconds.
    pub sum: u64,
    /// Upper bound and count of each bucket.
    pub counts: Vec<(u64, u64)>,
}

impl Buckets {
    pub(crate) fn of(histogram: &Histogram) -> Self {
        Self { sum: histogram.sum(), counts: histogram.buckets().map(|bucket| (bucket.upper, bucket.count)).collect() }
    }

    /// Returns the difference to `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let before: BTreeMap<u64, u64> = earlier.counts.iter().copied().collect();
        let added =
            |(upper, count): &(u64, u64)| (*upper, count.saturating_sub(before.get(upper).copied().unwrap_or(0)));
        let counts = self.counts.iter().map(added).filter(|(_, count)| *count > 0).collect();
        Self { sum: self.sum.wrapping_sub(earlier.sum), counts }
    }

    fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// Returns the value that `percent` percent of all values do not exceed.
    fn percentile(&self, percent: f64) -> u64 {
        let rank = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut seen = 0_u64;
        let reaches = |(_, count): &&(u64, u64)| {
            seen = seen.saturating_add(*count);
            seen >= rank
        };
        self.counts.iter().find(reaches).map_or(0, |(upper, _)| *upper)
    }
}

/// Percentiles of a histogram, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Number of values.
    pub count: u64,
    /// Mean.
    pub mean: u64,
    /// Median.
    pub p50: u64,
    /// 90 percent are at most this.
    pub p90: u64,
    /// 99 percent are at most this.
    pub p99: u64,
    /// 99.9 percent are at most this.
    #[serde(rename = "p99.9")]
    pub p99_9: u64,
    /// 99.99 percent are at most this.
    #[serde(rename = "p99.99")]
    pub p99_99: u64,
    /// Largest value.
    pub max: u64,
}

impl From<&Buckets> for Percentiles {
    fn from(buckets: &Buckets) -> Self {
        let count = buckets.count();
        Self {
            count,
            mean: buckets.sum.checked_div(count).unwrap_or(0),
            p50: buckets.percentile(50.0),
            p90: buckets.percentile(90.0),
            p99: buckets.percentile(99.0),
            p99_9: buckets.percentile(99.9),
            p99_99: buckets.percentile(99.99),
            max: buckets.counts.last().map_or(0, |(upper, _)| *upper),
        }
    }
}

/// A sample for `top`, which compares two of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Time since the volume was opened, in nanoseconds.
    pub at_ns: u64,
    /// Whether requests wait.
    pub suspended: bool,
    /// Counters since it was opened.
    pub counters: Counters,
    /// Latencies by phase.
    pub histograms_ns: BTreeMap<String, Buckets>,
    /// Counters of a dm-integrity volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub integrity: Option<IntegrityCounters>,
}

impl Sample {
    /// Returns a sample of a device that was opened at `opened`.
    pub fn new(device: &Device, layer: &dyn Layer, opened: Instant) -> Self {
        let snapshot = device.stats().snapshot();
        Self {
            at_ns: u64::try_from(opened.elapsed().as_nanos()).unwrap_or(u64::MAX),
            suspended: device.is_suspended(),
            counters: Counters::of(&snapshot),
            histograms_ns: phases(&snapshot).map(|(name, histogram)| (name.to_owned(), Buckets::of(histogram))).into(),
            integrity: layer.integrity().map(|device| IntegrityCounters::of(device)),
        }
    }
}

/// Nanoseconds, shown with three digits and a unit.
pub struct Time(pub u64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            ns @ 0..1_000 => return f.pad(&format!("{ns} ns")),
            ns @ 1_000..1_000_000 => (ns as f64 / 1e3, "us"),
            ns @ 1_000_000..1_000_000_000 => (ns as f64 / 1e6, "ms"),
            ns => (ns as f64 / 1e9, "s"),
        };
        let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
        f.pad(&format!("{value:.digits$} {unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_value_at_rank() {
        let buckets = Buckets { sum: 5050, counts: (1..=100).map(|value| (value, 1)).collect() };
        let percentiles = Percentiles::from(&buckets);
        assert_eq!((percentiles.count, percentiles.mean, percentiles.max), (100, 50, 100));
        assert_eq!(
            (percentiles.p50, percentiles.p90, percentiles.p99, percentiles.p99_9, percentiles.p99_99),
            (50, 90, 99, 100, 100)
        );
        assert_eq!(Percentiles::from(&Buckets::default()), Percentiles::default());
    }

    #[test]
    fn since_returns_difference() {
        let earlier = Buckets { sum: 30, counts: vec![(10, 1), (20, 1)] };
        let now = Buckets { sum: 90, counts: vec![(5, 2), (10, 1), (20, 2), (30, 1)] };
        assert_eq!(now.since(&earlier), Buckets { sum: 60, counts: vec![(5, 2), (20, 1), (30, 1)] });
        assert_eq!(now.since(&now), Buckets::default());
    }

    #[test]
    fn units_of_a_call_are_an_average() {
        let of = |cipher_units, cipher_calls| Counters { cipher_units, cipher_calls, ..Counters::default() };
        assert_eq!([of(10, 4), of(0, 0)].map(|counters| counters.units_per_call()), [2.5, 0.0]);
    }

    #[test]
    fn time_has_three_digits() {
        let shown = |ns| Time(ns).to_string();
        assert_eq!([0, 999, 1_000, 9_994, 9_996].map(shown), ["0 ns", "999 ns", "1.00 us", "9.99 us", "10.0 us"]);
        assert_eq!([9_995, 99_950].map(shown), ["10.0 us", "100 us"]);
        assert_eq!([99_940, 99_960, 1_500_000, 2_340_000_000].map(shown), ["99.9 us", "100 us", "1.50 ms", "2.34 s"]);
    }
}
