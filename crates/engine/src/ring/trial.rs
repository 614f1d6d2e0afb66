//! Trials that find out whether polling before a sleep serves short requests faster.
//!
//! Whether it does depends on where the scheduler runs the client. On the ring's CPU, polling takes time from the
//! client. On another CPU, most of a short request is the wake-up of two idle CPUs, and polling avoids one of them. So
//! the ring measures: some requests without polling, then as many with it. The result holds for some thousand requests.

use std::time::Duration;

/// Number of waits observed with polling, and without. The first half does not count: idle CPUs adapt, too.
const OBSERVED: usize = 32;
/// Number of waits between two trials.
const SETTLED: u32 = 2048;

/// The next wait of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub polls: bool,
    pub is_measured: bool,
}

enum Phase {
    /// Measures without polling.
    Sleeping,
    /// Measures with polling; without it, a KiB took this median time in nanoseconds.
    Polling { sleeping: u64 },
    /// Measures nothing for this number of waits.
    Settled { polls: bool, left: u32 },
}

/// Compares the time that requests take with and without polling.
pub(super) struct Trial {
    phase: Phase,
    /// Time from a wait to the next one for each KiB moved, in nanoseconds.
    times: [u64; OBSERVED],
    observed: usize,
}

impl Trial {
    pub(super) fn new() -> Self {
        Self { phase: Phase::Sleeping, times: [0; OBSERVED], observed: 0 }
    }

    /// Returns what to do in the next wait.
    pub(super) fn next(&mut self) -> Step {
        match &mut self.phase {
            Phase::Sleeping => Step { polls: false, is_measured: true },
            Phase::Polling { .. } => Step { polls: true, is_measured: true },
            Phase::Settled { left: 0, .. } => {
                self.phase = Phase::Sleeping;
                Step { polls: false, is_measured: true }
            }
            Phase::Settled { polls, left } => {
                *left -= 1;
                Step { polls: *polls, is_measured: false }
            }
        }
    }

    /// Takes the time from a measured wait to the next one, and the number of bytes moved in it. A ring that
    /// polls may wait more often and move less each time.
    pub(super) fn record(&mut self, time: Duration, moved: usize) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.times[self.observed] = nanos.saturating_mul(1024) / moved.max(1) as u64;
        self.observed += 1;
        if self.observed < OBSERVED {
            return;
        }
        self.observed = 0;
        let median = median(&mut self.times);
        self.phase = match self.phase {
            // Polling costs CPU time: it has to save a quarter of the time.
            Phase::Polling { sleeping } => {
                Phase::Settled { polls: median.saturating_mul(4) <= sleeping.saturating_mul(3), left: SETTLED }
            }
            _ => Phase::Polling { sleeping: median },
        };
    }
}

/// Returns the median of those that count.
fn median(times: &mut [u64; OBSERVED]) -> u64 {
    times[OBSERVED / 2..].sort_unstable();
    times[OBSERVED * 3 / 4]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Microseconds from one wait to the next, and bytes moved.
    type Requests = (u64, usize);

    /// Runs a trial. Returns the number of measured waits, and whether the ring polls afterwards.
    fn outcome(trial: &mut Trial, sleeping: Requests, polling: Requests) -> (usize, bool) {
        let mut measured = 0;
        loop {
            let step = trial.next();
            if !step.is_measured {
                return (measured, step.polls);
            }
            measured += 1;
            let (time, moved) = if step.polls { polling } else { sleeping };
            trial.record(Duration::from_micros(time), moved);
        }
    }

    #[test]
    fn polling_that_saves_a_quarter_of_the_time_is_kept() {
        for (polling, is_kept) in [(28, true), (45, true), (46, false), (90, false)] {
            assert_eq!(outcome(&mut Trial::new(), (60, 4124), (polling, 4124)), (64, is_kept), "{polling} us");
        }
    }

    #[test]
    fn shorter_waits_that_move_less_save_nothing() {
        assert_eq!(outcome(&mut Trial::new(), (60, 4 * 4124), (20, 4124)), (64, false));
        assert_eq!(outcome(&mut Trial::new(), (60, 2 * 4124), (20, 4124)), (64, true));
    }

    #[test]
    fn result_holds_for_a_while_and_is_then_measured_again() {
        let mut trial = Trial::new();
        assert_eq!(outcome(&mut trial, (60, 28), (10, 28)), (64, true));
        // One settled wait was taken by `outcome`.
        for _ in 1..SETTLED {
            assert_eq!(trial.next(), Step { polls: true, is_measured: false });
        }
        assert_eq!(trial.next(), Step { polls: false, is_measured: true }, "the first of the next trial");
        trial.record(Duration::from_micros(9), 28);
        assert_eq!(outcome(&mut trial, (9, 28), (10, 28)), (63, false), "the client is on the same CPU now");
    }

    #[test]
    fn first_half_and_single_long_waits_decide_nothing() {
        let mut trial = Trial::new();
        for _ in 0..OBSERVED / 2 {
            assert!(!trial.next().polls);
            trial.record(Duration::from_secs(5), 28);
        }
        for _ in 0..OBSERVED / 4 - 1 {
            trial.next();
            trial.record(Duration::from_secs(5), 28);
        }
        assert_eq!(outcome(&mut trial, (60, 28), (20, 28)), (41, true));
    }

    #[test]
    fn median_is_that_of_the_second_half() {
        // The second half has the numbers of its positions, backwards.
        let time = |at| if at < OBSERVED / 2 { u64::MAX } else { (OBSERVED / 2 + OBSERVED - 1 - at) as u64 };
        assert_eq!(median(&mut std::array::from_fn(time)), OBSERVED as u64 * 3 / 4);
    }
}
