//! Account of a request's work.

use crate::request::Operation;
use crate::stats::{Phase, Timing, Work};
use std::time::{Duration, Instant};

/// Account of a request's work.
pub(super) struct Account {
    pub(super) operation: Operation,
    pub(super) timing: Option<Timing>,
    pub(super) work: Work,
}

impl Account {
    /// Ends a phase.
    pub(super) fn lap(&mut self, phase: Phase) {
        if let Some(timing) = &mut self.timing {
            timing.lap(phase);
        }
    }

    /// Ends a phase that ended at `then`.
    pub(super) fn lap_until(&mut self, phase: Phase, then: Instant) {
        if let Some(timing) = &mut self.timing {
            timing.lap_until(phase, then);
        }
    }

    /// Counts cipher calls over `units` data units, and ends the cipher phase. No units: nothing is encrypted.
    pub(super) fn ciphered(&mut self, calls: u32, units: usize) {
        if units > 0 {
            self.work.cipher_calls += calls;
            self.work.cipher_units += units as u32;
            self.lap(Phase::Cipher);
        }
    }

    /// Counts a transfer whose cipher calls over `units` data units took `cipher` of the store phase.
    pub(super) fn copied(&mut self, calls: u32, units: usize, cipher: Duration) {
        self.lap(Phase::Store);
        if calls > 0 {
            self.work.cipher_calls += calls;
            self.work.cipher_units += units as u32;
            if let Some(timing) = &mut self.timing {
                timing.shift(Phase::Store, Phase::Cipher, cipher);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_units_that_were_encrypted_count() {
        let mut account = Account { operation: Operation::Read, timing: None, work: Work::default() };
        // The store failed before the first cipher call.
        account.copied(0, 8, Duration::ZERO);
        // Nothing is encrypted.
        account.ciphered(1, 0);
        assert_eq!((account.work.cipher_calls, account.work.cipher_units), (0, 0));
        account.copied(2, 8, Duration::ZERO);
        account.ciphered(1, 3);
        assert_eq!((account.work.cipher_calls, account.work.cipher_units), (3, 11));
    }
}
