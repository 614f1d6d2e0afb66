//! Busy polling: a ring that has just served a short request looks for the next one before it sleeps.
//!
//! Waking a thread on an idle CPU takes 5 µs to 50 µs, in virtual machines most of all: longer than a short request. A
//! thread that polls needs no waking. It gives up the CPU ([`sched_yield`]) between looks, so that a client on the same
//! CPU runs, and polls less often while polling finds nothing.

use super::trial::Trial;
use rustix::thread::sched_yield;
use std::time::{Duration, Instant};

/// Maximum number of bytes that the last requests moved: transfers of longer ones take longer than a wake-up.
const SHORT: usize = 32 << 10;
/// Transfers of one request: adaptive polling is for clients with one in flight.
const ONE_REQUEST: u32 = 2;
/// Maximum number of waits without polling after one that found nothing.
const MAX_SKIPPED: u32 = 64;
/// How long [`BusyPoll::Adaptive`] polls at most.
const ADAPTIVE_LIMIT: Duration = Duration::from_micros(50);

/// Whether a ring polls for completions before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BusyPoll {
    /// It sleeps at once.
    Never,
    /// It polls for at most this long.
    UpTo(Duration),
    /// It polls for at most 50 µs after a single short request, while trials show that such requests become faster.
    #[default]
    Adaptive,
}

/// When and how long a ring polls.
pub(super) struct Polling {
    limit: Duration,
    /// Compares requests with and without polling; `None` if the ring polls without trials.
    trial: Option<Trial>,
    /// Begin of the last wait, if it is part of a trial.
    measured_since: Option<Instant>,
    /// Bytes moved since the last wait.
    moved: usize,
    transfers: u32,
    /// Number of waits to skip after the next failure.
    backoff: u32,
    /// Number of waits that are still skipped.
    skipped: u32,
}

impl Polling {
    pub(super) fn new(wanted: BusyPoll) -> Self {
        let (limit, trial) = match wanted {
            BusyPoll::Never => (Duration::ZERO, None),
            BusyPoll::UpTo(limit) => (limit, None),
            BusyPoll::Adaptive => (ADAPTIVE_LIMIT, Some(Trial::new())),
        };
        Self { limit, trial, measured_since: None, moved: 0, transfers: 0, backoff: 1, skipped: 0 }
    }

    pub(super) fn is_on(&self) -> bool {
        !self.limit.is_zero()
    }

    /// Takes note of a completed transfer.
    pub(super) fn add_moved(&mut self, bytes: usize) {
        self.moved = self.moved.saturating_add(bytes);
        self.transfers = self.transfers.saturating_add(1);
    }

    /// Begins a wait. Returns whether to poll first.
    pub(super) fn begin(&mut self) -> bool {
        let (moved, transfers) = (std::mem::take(&mut self.moved), std::mem::take(&mut self.transfers));
        let since = self.measured_since.take();
        if !self.is_on() || !(1..=SHORT).contains(&moved) {
            return false;
        }
        if let Some(trial) = &mut self.trial {
            if transfers > ONE_REQUEST {
                return false;
            }
            if let Some(since) = since {
                trial.record(since.elapsed(), moved);
            }
            let step = trial.next();
            self.measured_since = step.is_measured.then(Instant::now);
            if step.is_measured || !step.polls {
                return step.polls;
            }
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

    fn up_to(limit: Duration) -> Polling {
        Polling::new(BusyPoll::UpTo(limit))
    }

    fn polls_after(poll: &mut Polling, moved: usize) -> bool {
        poll.add_moved(moved);
        poll.begin()
    }

    #[test]
    fn only_a_wait_after_short_transfers_polls() {
        let mut poll = up_to(Duration::from_secs(60));
        assert!(!poll.begin(), "nothing was moved");
        assert!(polls_after(&mut poll, 28));
        assert!(!poll.begin(), "nothing since");
        assert!(polls_after(&mut poll, SHORT));
        assert!(!polls_after(&mut poll, SHORT + 1));
        assert!(!polls_after(&mut Polling::new(BusyPoll::Never), 28));
    }

    #[test]
    fn polling_that_finds_nothing_is_skipped_ever_longer() {
        let mut poll = up_to(Duration::from_nanos(1));
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
        let mut poll = up_to(Duration::from_millis(1));
        assert!(polls_after(&mut poll, 28));
        poll.poll(Duration::MAX, || {
            std::thread::sleep(Duration::from_millis(2));
            true
        });
        assert!(poll.has_missed() && !polls_after(&mut poll, 28));
    }

    #[test]
    fn polling_ends_with_the_wait() {
        let mut poll = up_to(Duration::from_secs(3600));
        let mut looks = 0;
        poll.poll(Duration::ZERO, || {
            looks += 1;
            false
        });
        assert_eq!(looks, 1);
    }

    #[test]
    fn adaptive_polling_measures_short_waits_only_and_begins_without_polling() {
        let mut poll = Polling::new(BusyPoll::Adaptive);
        assert!(!polls_after(&mut poll, SHORT + 1) && poll.measured_since.is_none());
        assert!(!polls_after(&mut poll, 28) && poll.measured_since.is_some());
        assert!(!polls_after(&mut poll, SHORT + 1) && poll.measured_since.is_none(), "a long one is not measured");
    }

    #[test]
    fn adaptive_polling_ignores_waits_after_several_requests() {
        let mut poll = Polling::new(BusyPoll::Adaptive);
        poll.add_moved(28);
        poll.add_moved(16);
        assert!(!poll.begin() && poll.measured_since.is_some());
        (0..3).for_each(|_| poll.add_moved(28));
        assert!(!poll.begin() && poll.measured_since.is_none());
    }

    #[test]
    fn adaptive_polling_measures_every_wait_of_a_trial_and_obeys_its_result() {
        for (polling, polls) in [(60, false), (10, true)] {
            let mut poll = Polling::new(BusyPoll::Adaptive);
            let mut trial = Trial::new();
            for time in [[60; 32], [polling; 32]].concat() {
                assert!(trial.next().is_measured);
                trial.record(Duration::from_micros(time), 28);
            }
            poll.trial = Some(trial);
            assert_eq!(polls_after(&mut poll, 28), polls);
            // Waits that are skipped after others that found nothing.
            poll.skipped = 5;
            assert!(!polls_after(&mut poll, 28));
        }
        let mut poll = Polling::new(BusyPoll::Adaptive);
        poll.skipped = 40;
        assert_eq!((0..).take_while(|_| !polls_after(&mut poll, 28)).count(), 32, "a trial skips none");
    }

    #[test]
    fn adaptive_polling_polls_once_requests_without_it_were_measured() {
        let mut poll = Polling::new(BusyPoll::Adaptive);
        // The times are those of this loop: short.
        let sleeping = (0..).take_while(|_| !polls_after(&mut poll, 28)).count();
        assert_eq!(sleeping, 32);
    }
}
