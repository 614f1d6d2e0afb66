//! Time between attempts to open a volume that cannot be opened: each costs a key derivation or a helper program, and
//! any client can ask for one.

use std::time::{Duration, Instant};

/// Wait after the first failure. It doubles with each further one.
const FIRST: Duration = Duration::from_secs(1);
/// Longest wait.
const LONGEST: Duration = Duration::from_secs(30);

/// The failures to open a volume since it last opened.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
    /// Time of the next attempt.
    next: Option<Instant>,
}

impl Backoff {
    /// Whether the next attempt is to wait.
    pub(super) fn is_waiting(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| now < next)
    }

    /// Notes a failure, and returns the wait for the next attempt.
    pub(super) fn fail(&mut self, now: Instant) -> Duration {
        let wait = LONGEST.min(FIRST * 2_u32.pow(self.failures.min(10)));
        self.failures += 1;
        self.next = Some(now + wait);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_to_the_longest() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        assert!(!backoff.is_waiting(now));
        for seconds in [1, 2, 4, 8, 16, 30, 30, 30] {
            let wait = backoff.fail(now);
            assert_eq!(wait, Duration::from_secs(seconds));
            assert!(backoff.is_waiting(now + wait - Duration::from_millis(1)));
            now += wait;
            assert!(!backoff.is_waiting(now));
        }
    }
}
