//! Limits of an export: operations and bytes a second, as token buckets, and bytes of requests in flight.
//!
//! A request may begin when no bucket is in debt, and is charged in full when it begins. So a request that is larger
//! than a bucket still runs, and those behind it wait until its debt is paid: over time the rate holds exactly. In the
//! same way a request begins while there are fewer bytes in flight than the limit, however long it is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limits of an export. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportLimits {
    /// Requests a second.
    pub operations: Option<u64>,
    /// Bytes read and written a second; zeroes too, unless they become holes.
    pub bytes: Option<u64>,
    /// Bytes of requests whose header was read and whose reply has not left. Workers share it out among them.
    pub in_flight: Option<u64>,
}

/// Effect of the limits of an export so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThrottleStats {
    /// Bytes of requests in flight.
    pub in_flight: u64,
    /// Time for which no further request of some client was read, because of the limits. Workers add up.
    pub throttled: Duration,
}

/// Time whose share of a rate an idle export saves up.
const BURST: Duration = Duration::from_millis(100);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limits of an export, which its workers share.
#[derive(Debug)]
pub(super) struct SharedLimits {
    buckets: Mutex<Buckets>,
    /// Number of workers.
    workers: u64,
}

#[derive(Debug)]
struct Buckets {
    limits: ExportLimits,
    /// When the debt of operations and of bytes is paid.
    paid: [Instant; 2],
}

impl SharedLimits {
    pub(super) fn new(limits: ExportLimits, workers: usize, now: Instant) -> Arc<Self> {
        let buckets = Mutex::new(Buckets { limits, paid: [now; 2] });
        Arc::new(Self { buckets, workers: workers.max(1) as u64 })
    }

    /// Replaces the limits. A debt is forgiven.
    pub(super) fn set(&self, limits: ExportLimits, now: Instant) {
        *lock(&self.buckets) = Buckets { limits, paid: [now; 2] };
    }

    /// Returns when all debts are paid, and the limit of bytes in flight of one worker.
    fn get(&self) -> (Instant, u64) {
        let Buckets { limits, paid } = &*lock(&self.buckets);
        (paid[0].max(paid[1]), limits.in_flight.map_or(u64::MAX, |limit| (limit / self.workers).max(1)))
    }

    /// Charges the buckets.
    fn charge(&self, operations: u64, bytes: u64, now: Instant) {
        let mut buckets = lock(&self.buckets);
        let rates = [(buckets.limits.operations, operations), (buckets.limits.bytes, bytes)];
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

/// The limits of an export, and what one of its workers has in flight.
#[derive(Debug)]
pub(super) struct Throttle {
    shared: Arc<SharedLimits>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    in_flight: u64,
    /// Last time that bytes in flight became fewer.
    released: Instant,
    /// Since when requests wait for a limit.
    held_since: Option<Instant>,
    throttled: Duration,
}

/// A reason why no request may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    /// A rate.
    Until(Instant),
    /// Requests in flight, of which one has to end.
    InFlight,
}

impl Throttle {
    pub(super) fn new(shared: &Arc<SharedLimits>, now: Instant) -> Arc<Self> {
        let state = State { in_flight: 0, released: now, held_since: None, throttled: Duration::ZERO };
        Arc::new(Self { shared: Arc::clone(shared), state: Mutex::new(state) })
    }

    /// Returns why the next request may not begin `now`, if it may not.
    pub(super) fn blocked(&self, now: Instant) -> Option<Blocked> {
        self.look(now).1
    }

    fn look(&self, now: Instant) -> (MutexGuard<'_, State>, Option<Blocked>) {
        let (paid, limit) = self.shared.get();
        let mut state = lock(&self.state);
        let blocked = match state.in_flight >= limit {
            true => Some(Blocked::InFlight),
            false => Some(Blocked::Until(paid)).filter(|_| paid > now),
        };
        if blocked.is_none()
            && let Some(since) = state.held_since.take()
        {
            let until = paid.max(state.released).min(now);
            state.throttled += until.saturating_duration_since(since);
        }
        (state, blocked)
    }

    /// Like [`Throttle::blocked`], for a request that waits if it is.
    pub(super) fn hold(&self, now: Instant) -> Option<Blocked> {
        let (mut state, blocked) = self.look(now);
        if blocked.is_some() {
            state.held_since.get_or_insert(now);
        }
        blocked
    }

    /// Charges a request that begins. `moved`: its bytes for the rate. `in_flight`: those that it may hold.
    pub(super) fn begin(self: &Arc<Self>, moved: u64, in_flight: u64, now: Instant) -> Charge {
        self.shared.charge(1, moved, now);
        lock(&self.state).in_flight += in_flight;
        Charge { throttle: Arc::clone(self), in_flight }
    }

    /// Charges bytes of a request that has begun.
    pub(super) fn charge_bytes(&self, bytes: u64, now: Instant) {
        self.shared.charge(0, bytes, now);
    }

    /// Ends the time of waiting: no request waits for a limit any longer, although none may begin.
    pub(super) fn end_hold(&self, now: Instant) {
        let (mut state, _) = self.look(now);
        if let Some(since) = state.held_since.take() {
            state.throttled += now.saturating_duration_since(since);
        }
    }

    pub(super) fn stats(&self, now: Instant) -> ThrottleStats {
        let (state, _) = self.look(now);
        let held = state.held_since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        ThrottleStats { in_flight: state.in_flight, throttled: state.throttled + held }
    }
}

/// The bytes in flight of a request, until it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    throttle: Arc<Throttle>,
    in_flight: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            let mut state = lock(&self.throttle.state);
            state.in_flight -= self.in_flight;
            if state.held_since.is_some() {
                state.released = Instant::now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttle(limits: ExportLimits, now: Instant) -> Arc<Throttle> {
        Throttle::new(&SharedLimits::new(limits, 1, now), now)
    }

    /// Runs requests of `bytes` for `secs` of a simulated clock, and returns their number.
    fn requests_in(limits: ExportLimits, start: Instant, secs: u64, bytes: u64) -> u64 {
        let throttle = throttle(limits, start);
        let (mut now, mut count) = (start, 0);
        while now < start + Duration::from_secs(secs) {
            match throttle.hold(now) {
                Some(Blocked::Until(until)) => now = until,
                Some(Blocked::InFlight) => panic!("no limit"),
                None => {
                    drop(throttle.begin(bytes, bytes, now));
                    count += 1;
                }
            }
        }
        // Everything but the burst at the start and the debt at the end is time of waiting.
        let throttled = throttle.stats(now).throttled;
        assert!(throttled <= now - start && throttled + BURST + BURST > now - start, "{throttled:?}");
        count
    }

    #[test]
    fn rates_hold_over_time() {
        let start = Instant::now() + Duration::from_secs(1);
        let limits = |operations, bytes| ExportLimits { operations, bytes, in_flight: None };
        // A tenth of a second is saved up at the start.
        let operations = requests_in(limits(Some(1000), None), start, 10, 4096);
        assert!((10_000..=10_102).contains(&operations), "{operations}");
        let bytes = requests_in(limits(None, Some(1 << 20)), start, 10, 4096);
        assert!((2560..=2590).contains(&bytes), "{bytes}");
        // Requests of four seconds each.
        let large = requests_in(limits(Some(1000), Some(1 << 20)), start, 10, 4 << 20);
        assert_eq!(large, 3);
    }

    #[test]
    fn new_limits_apply_at_once() {
        let now = Instant::now();
        let limits = ExportLimits { operations: None, bytes: Some(1), in_flight: Some(1) };
        let throttle = throttle(limits, now);
        let charge = throttle.begin(1 << 30, 1 << 30, now);
        assert_eq!(throttle.blocked(now), Some(Blocked::InFlight));
        throttle.shared.set(ExportLimits { in_flight: None, ..limits }, now);
        assert_eq!(throttle.blocked(now), None, "the debt is not forgiven");
        throttle.shared.set(ExportLimits { in_flight: Some(1 << 30), ..limits }, now);
        assert_eq!(throttle.blocked(now), Some(Blocked::InFlight));
        drop(charge);
        throttle.shared.set(ExportLimits::default(), now);
        drop(throttle.begin(1 << 30, 1 << 30, now));
        assert_eq!(throttle.blocked(now), None, "an export without limits waits");
    }

    #[test]
    fn request_begins_below_the_limit_of_bytes_in_flight() {
        let now = Instant::now();
        let limits = ExportLimits { in_flight: Some(10), ..ExportLimits::default() };
        let throttle = throttle(limits, now);
        // One that is longer than the limit begins alone.
        let long = throttle.begin(100, 100, now);
        assert_eq!((throttle.hold(now), throttle.stats(now).in_flight), (Some(Blocked::InFlight), 100));
        drop(long);
        assert_eq!(throttle.hold(now), None);
        let short: Vec<_> = (0..2).map(|_| throttle.begin(5, 5, now)).collect();
        assert_eq!(throttle.hold(now), Some(Blocked::InFlight));
        drop(short);
        assert_eq!((throttle.hold(now), throttle.stats(now).in_flight), (None, 0));
    }

    #[test]
    fn workers_share_the_bytes_in_flight_out() {
        let now = Instant::now();
        let limits = ExportLimits { in_flight: Some(20), bytes: Some(1 << 30), ..ExportLimits::default() };
        let shared = SharedLimits::new(limits, 2, now);
        let [one, other] = [0, 1].map(|_| Throttle::new(&shared, now));
        let _charge = one.begin(0, 10, now);
        assert_eq!((one.blocked(now), other.blocked(now)), (Some(Blocked::InFlight), None));
        // The rates are those of both.
        let _charge = one.begin(1 << 30, 0, now);
        assert!(matches!(other.blocked(now), Some(Blocked::Until(until)) if until > now));
        shared.set(ExportLimits { in_flight: Some(1), ..limits }, now);
        assert_eq!(other.blocked(now), None, "no request of a worker would ever begin");
    }

    #[test]
    fn time_at_a_limit_ends_with_the_limit() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let throttle = throttle(ExportLimits { bytes: Some(10), ..ExportLimits::default() }, start);
        let _charge = throttle.begin(50, 0, start);
        assert_eq!(throttle.stats(at(2)).throttled, Duration::ZERO, "nothing waits");
        assert!(throttle.hold(at(2)).is_some());
        assert_eq!(throttle.stats(at(4)).throttled, Duration::from_secs(2));
        // The debt is paid after five seconds, and nothing looked at it.
        assert_eq!(throttle.stats(at(60)).throttled, Duration::from_secs(3));
        assert_eq!(throttle.stats(at(90)).throttled, Duration::from_secs(3));
    }

    #[test]
    fn time_at_a_limit_ends_with_those_that_wait() {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let throttle = throttle(ExportLimits { in_flight: Some(1), ..ExportLimits::default() }, start);
        let _charge = throttle.begin(0, 1, start);
        throttle.end_hold(at(1));
        assert_eq!(throttle.stats(at(2)).throttled, Duration::ZERO, "nothing has waited");
        assert!(throttle.hold(at(3)).is_some());
        throttle.end_hold(at(5));
        assert_eq!(throttle.stats(at(60)).throttled, Duration::from_secs(2));
        assert!(throttle.hold(at(70)).is_some());
        assert_eq!(throttle.stats(at(71)).throttled, Duration::from_secs(3));
    }
}
