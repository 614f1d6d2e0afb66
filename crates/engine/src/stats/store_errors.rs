//! Errors that stores returned: their number, and the last one.

use crate::errno::Errno;
use crate::request::{Operation, RequestError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Errors of a device's stores. One for all threads, because errors are rare.
#[derive(Default)]
pub(super) struct StoreErrors {
    count: AtomicU64,
    /// Last error. From the top: seconds since 1970 (32 bits), the operation (16), the error number (16). Zero: none
    /// yet.
    last: AtomicU64,
}

/// Last error of a store.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// Error number.
    pub errno: Errno,
    /// Name of the operation that failed: `read`, `write`, `write_zeroes`, `flush`, `discard`, `prefetch`, `append`,
    /// `zone_management`.
    pub operation: &'static str,
    /// Time of the error, in seconds since 1970.
    pub at_secs: u64,
}

const OPERATIONS: [&str; 8] =
    ["read", "write", "write_zeroes", "flush", "discard", "prefetch", "append", "zone_management"];

impl StoreErrors {
    pub(super) fn note(&self, operation: Operation, error: &RequestError) {
        let RequestError::Io(errno) = error else { return };
        let operation = match operation {
            Operation::Read => 0,
            Operation::Write { .. } | Operation::WriteReissued { .. } => 1,
            Operation::WriteZeroes { .. } => 2,
            Operation::Flush => 3,
            Operation::Discard { .. } | Operation::Deallocate { .. } => 4,
            Operation::Prefetch => 5,
            Operation::Append { .. } => 6,
            Operation::Zones(_) => 7,
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let errno = u64::from(errno.raw_os_error().unsigned_abs() as u16);
        self.last.store(now << 32 | operation << 16 | errno, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn last(&self) -> Option<StoreError> {
        // No error has the number zero.
        let last = Some(self.last.load(Ordering::Relaxed)).filter(|last| *last != 0)?;
        let operation = *OPERATIONS.get((last >> 16 & 0xffff) as usize)?;
        let errno = Errno::from_raw_os_error((last & 0xffff) as i32);
        Some(StoreError { errno, operation, at_secs: last >> 32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_error_is_reported_with_its_operation() {
        let errors = StoreErrors::default();
        assert_eq!((errors.count(), errors.last()), (0, None));
        errors.note(Operation::Read, &RequestError::Io(Errno::IO));
        errors.note(Operation::Discard { durable: false }, &RequestError::Io(Errno::NOSPC));
        // A refused request is not an error of the store.
        errors.note(Operation::Write { durable: true }, &RequestError::ReadOnly);
        let last = errors.last().unwrap();
        assert_eq!((errors.count(), last.errno, last.operation), (2, Errno::NOSPC, "discard"));
        assert!(last.at_secs > 1_700_000_000);
    }
}
