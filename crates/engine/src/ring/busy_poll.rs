//! Busy polling: a ring that has just served a short request looks for the next one before it sleeps.
//!
//! Waking a thread on an idle CPU takes 5 µs to 50 µs, in virtual machines most of all: longer than a short request. A
//! thread that polls needs no waking. It gives up the CPU ([`sched_yield`]) between looks, so that a client on the same
//! CPU runs, and polls less often while polling finds nothing.

use rustix::thread::sched_yield;
use std::time::{Duration, Instant};

/// Maximum number of bytes that the last requests moved: transfers of longer ones take longer than a wake-up.
const SHORT: usize = 32 << 10;
/// Maximum number of waits without polling after one that found nothing.
const MAX_SKIPPED: u32 = 64;

/// When and how long a ring polls.
pub(super) struct BusyPoll {
    limit: Duration,
    /// Bytes moved since the last wait.
    moved: usize,
    /// Number of waits to skip after the next failure.
    backoff: u32,
    /// Number of waits that are still skipped.
    skipped: u32,
}

impl BusyPoll {
    /// Polls for at most `limit` at a time; not at all if that is zero.
    pub(super) fn new(limit: Duration) -> Self {
        Self { limit, moved: 0, backoff: 1, skipped: 0 }
    }

    pub(super) fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Takes note of a completed transfer.
    pub(super) fn add_moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
    }

    /// Whether to poll before a wait.
    pub(super) fn begin(&mut self) -> bool {
        let is_short = (1..=SHORT).contains(&std::mem::take(&mut self.moved));
        if !self.is_on() || !is_short {
            return false;
        }
        let is_due = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        is_due
    }

    /// Whether the last polling found nothing.
    #[cfg(test)]
    pub(super) fn has_missed(&self) -> bool {
        self.backoff > 1
    }

    /// Polls until `is_ready`, but not longer than `wait`. Another thread may have had the CPU for longer than the
    /// limit: polling has failed then, too.
    pub(super) fn poll(&mut self, wait: Duration, mut is_ready: impl FnMut() -> bool) {
        let (began, limit) = (Instant::now(), self.limit.min(wait));
        loop {
            let is_ready = is_ready();
            let is_late = began.elapsed() > limit;
            if is_late {
                self.skipped = self.backoff;
                self.backoff = (2 * self.backoff).min(MAX_SKIPPED);
            } else if is_ready {
                self.backoff = 1;
            }
            if is_ready || is_late {
                return;
            }
            sched_yield();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn polls_after(poll: &mut BusyPoll, moved: usize) -> bool {
        poll.add_moved(moved);
        poll.begin()
    }

    #[test]
    fn only_a_wait_after_short_transfers_polls() {
        let mut poll = BusyPoll::new(Duration::from_secs(60));
        assert!(!poll.begin(), "nothing was moved");
        assert!(polls_after(&mut poll, 28));
        assert!(!poll.begin(), "nothing since");
        assert!(polls_after(&mut poll, SHORT));
        assert!(!polls_after(&mut poll, SHORT + 1));
        assert!(!polls_after(&mut BusyPoll::new(Duration::ZERO), 28));
    }

    #[test]
    fn polling_that_finds_nothing_is_skipped_ever_longer() {
        let mut poll = BusyPoll::new(Duration::from_nanos(1));
        let mut waits_until_poll = || {
            let skipped = (0..).take_while(|_| !polls_after(&mut poll, 28)).count();
            poll.poll(Duration::MAX, || false);
            skipped
        };
        let skipped: Vec<usize> = (0..9).map(|_| waits_until_poll()).collect();
        assert_eq!(skipped, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
        while !polls_after(&mut poll, 28) {}
        poll.limit = Duration::from_secs(60);
        poll.poll(Duration::MAX, || true);
        assert!(polls_after(&mut poll, 28), "a success ends the back-off");
    }

    #[test]
    fn polling_that_finds_something_too_late_has_failed() {
        let mut poll = BusyPoll::new(Duration::from_millis(1));
        assert!(polls_after(&mut poll, 28));
        poll.poll(Duration::MAX, || {
            std::thread::sleep(Duration::from_millis(2));
            true
        });
        assert!(poll.has_missed() && !polls_after(&mut poll, 28));
    }

    #[test]
    fn polling_ends_with_the_wait() {
        let mut poll = BusyPoll::new(Duration::from_secs(3600));
        let mut looks = 0;
        poll.poll(Duration::ZERO, || {
            looks += 1;
            false
        });
        assert_eq!(looks, 1);
    }
}
