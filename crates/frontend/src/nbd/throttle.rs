//! Limits of an export: operations and bytes a second, as token buckets.
//!
//! A request may begin when no bucket is in debt, and is charged in full when it begins. So a request that is larger
//! than a bucket still runs, and those behind it wait until its debt is paid: over time the rate holds exactly.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Limits of an export. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportLimits {
    /// Requests a second.
    pub operations: Option<u64>,
    /// Bytes read and written a second.
    pub bytes: Option<u64>,
}

/// Time whose share of a rate an idle export saves up.
const BURST: Duration = Duration::from_millis(100);

/// The buckets of an export, which its workers share.
#[derive(Debug)]
pub(super) struct Throttle(Mutex<Buckets>);

#[derive(Debug)]
struct Buckets {
    limits: ExportLimits,
    /// When the debt of operations and of bytes is paid.
    paid: [Instant; 2],
}

impl Throttle {
    pub(super) fn new(limits: ExportLimits, now: Instant) -> Self {
        Self(Mutex::new(Buckets { limits, paid: [now; 2] }))
    }

    /// Replaces the limits. A debt is forgiven.
    pub(super) fn set(&self, limits: ExportLimits, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Buckets { limits, paid: [now; 2] };
    }

    /// Returns when the next request may begin, if not `now`.
    pub(super) fn blocked_until(&self, now: Instant) -> Option<Instant> {
        let paid = self.0.lock().unwrap_or_else(PoisonError::into_inner).paid;
        paid.into_iter().max().filter(|until| *until > now)
    }

    /// Charges a request that begins.
    pub(super) fn charge(&self, bytes: u64, now: Instant) {
        let mut buckets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = [(buckets.limits.operations, 1), (buckets.limits.bytes, bytes)];
        for (paid, (rate, amount)) in buckets.paid.iter_mut().zip(rates) {
            let Some(rate) = rate else { continue };
            let nanos = u128::from(amount) * 1_000_000_000 / u128::from(rate.max(1));
            let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
            let since = now.checked_sub(BURST).map_or(*paid, |earliest| earliest.max(*paid));
            // A debt of centuries needs no more.
            *paid = since.checked_add(cost).unwrap_or(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs requests of `bytes` for `secs` of a simulated clock, and returns their number.
    fn requests_in(throttle: &Throttle, start: Instant, secs: u64, bytes: u64) -> u64 {
        let (mut now, mut count) = (start, 0);
        while now < start + Duration::from_secs(secs) {
            match throttle.blocked_until(now) {
                Some(until) => now = until,
                None => {
                    throttle.charge(bytes, now);
                    count += 1;
                }
            }
        }
        count
    }

    #[test]
    fn rates_hold_over_time() {
        let start = Instant::now() + Duration::from_secs(1);
        let limits = |operations, bytes| ExportLimits { operations, bytes };
        // A tenth of a second is saved up at the start.
        let operations = requests_in(&Throttle::new(limits(Some(1000), None), start), start, 10, 4096);
        assert!((10_000..=10_102).contains(&operations), "{operations}");
        let bytes = requests_in(&Throttle::new(limits(None, Some(1 << 20)), start), start, 10, 4096);
        assert!((2560..=2590).contains(&bytes), "{bytes}");
        // Requests of four seconds each.
        let large = requests_in(&Throttle::new(limits(Some(1000), Some(1 << 20)), start), start, 10, 4 << 20);
        assert_eq!(large, 3);
    }

    #[test]
    fn new_limits_apply_at_once() {
        let now = Instant::now();
        let throttle = Throttle::new(ExportLimits { operations: None, bytes: Some(1) }, now);
        throttle.charge(1 << 30, now);
        assert!(throttle.blocked_until(now).is_some());
        throttle.set(ExportLimits::default(), now);
        assert_eq!(throttle.blocked_until(now), None);
        throttle.charge(1 << 30, now);
        assert_eq!(throttle.blocked_until(now), None, "an export without limits waits");
    }
}
