//! Appends that the driver reissues after a process has died: which of them were written before.
//!
//! The driver reissues every request without a completion, and does not know whether it was carried out. A write names
//! its position. An append does not, and if it were carried out twice it would take room that the client believes to be
//! free. But the [completion log](super::completion_log) says which ranges of each zone were completed. What was
//! written behind them has no completion ([`UnackedAppends`]); a reissued append of the same bytes completes with their
//! position.

use super::completion_log::CompletedUpTo;
use inlock_engine::zoned::Zone;
use inlock_engine::{BlockingDevice, RequestError};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Every write is a multiple of this length.
const SECTOR: usize = 512;

/// Bytes that were written without a completion.
#[derive(Default)]
pub(super) struct UnackedAppends {
    /// By number of the zone.
    runs: Mutex<HashMap<u64, Vec<Run>>>,
    /// Number of runs, mostly 0.
    count: AtomicUsize,
    zone_len: u64,
}

/// Bytes that lie one after the other.
struct Run {
    offset: u64,
    bytes: Vec<u8>,
}

impl UnackedAppends {
    /// Reads what was written to `zones` and is not in `completed`: at most `max_len` bytes, as many as can have been
    /// in flight, and has it on stable storage. Blocks.
    ///
    /// # Errors
    /// A read or the flush fails.
    pub(super) fn find(
        device: &BlockingDevice,
        zones: &[Zone],
        completed: &CompletedUpTo,
        max_len: u64,
    ) -> Result<Self, RequestError> {
        let mut found = Self { zone_len: zones.first().map_or(1, |zone| zone.len), ..Self::default() };
        let mut room = max_len;
        for Range { start, end } in completed.uncompleted(zones) {
            let start = start.max(end.saturating_sub(room));
            if start < end {
                room -= end - start;
                let mut bytes = vec![0; (end - start) as usize];
                device.read_at(&mut bytes, start)?;
                found.add(start, bytes);
            }
        }
        if *found.count.get_mut() > 0 {
            device.flush()?;
        }
        Ok(found)
    }

    fn add(&mut self, offset: u64, bytes: Vec<u8>) {
        let runs = self.runs.get_mut().unwrap_or_else(PoisonError::into_inner);
        runs.entry(offset / self.zone_len).or_default().push(Run { offset, bytes });
        *self.count.get_mut() += 1;
    }

    /// Takes out a run of `bytes` in the zone that starts at `zone`, and returns its position.
    pub(super) fn take(&self, zone: u64, bytes: &[u8]) -> Option<u64> {
        if bytes.is_empty() || self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut runs = self.lock();
        let in_zone = runs.get_mut(&(zone / self.zone_len))?;
        let (index, range) = in_zone.iter().enumerate().find_map(|(index, s)| Some((index, s.find(bytes)?)))?;
        let Run { offset, bytes } = in_zone.swap_remove(index);
        let at = offset + range.start as u64;
        let rest = [(offset, &bytes[..range.start]), (offset + range.end as u64, &bytes[range.end..])];
        let rest = rest.into_iter().filter(|(_, bytes)| !bytes.is_empty());
        in_zone.extend(rest.map(|(offset, bytes)| Run { offset, bytes: bytes.to_vec() }));
        self.count.store(runs.values().map(Vec::len).sum(), Ordering::Release);
        Some(at)
    }

    /// Drops what the zones of a range held.
    pub(super) fn forget(&self, offset: u64, len: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let gone = offset / self.zone_len..(offset + len).div_ceil(self.zone_len);
        let mut runs = self.lock();
        runs.retain(|zone, _| !gone.contains(zone));
        self.count.store(runs.values().map(Vec::len).sum(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<Run>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn find(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let last = self.bytes.len().checked_sub(bytes.len())?;
        let at = (0..=last).step_by(SECTOR).find(|at| self.bytes[*at..].starts_with(bytes))?;
        Some(at..at + bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE: u64 = 8192;

    fn sector(value: u8) -> Vec<u8> {
        vec![value; SECTOR]
    }

    #[test]
    fn unacked_append_is_found_once() {
        let mut unacked = UnackedAppends { zone_len: ZONE, ..UnackedAppends::default() };
        unacked.add(ZONE + 512, [sector(1), sector(2), sector(3), sector(2)].concat());
        assert_eq!(unacked.take(2 * ZONE, &sector(2)), None, "another zone");
        assert_eq!(unacked.take(ZONE, &sector(4)), None);
        assert_eq!(unacked.take(ZONE, &[sector(2), sector(3)].concat()), Some(ZONE + 1024));
        assert_eq!(unacked.take(ZONE, &sector(3)), None, "it was taken");
        assert_eq!(unacked.take(ZONE, &sector(2)), Some(ZONE + 2048));
        assert_eq!(unacked.take(ZONE, &sector(2)), None);
        assert_eq!(unacked.take(ZONE, &sector(1)), Some(ZONE + 512));
        assert_eq!(unacked.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn zone_that_was_reset_has_no_unacked_appends() {
        let mut unacked = UnackedAppends { zone_len: ZONE, ..UnackedAppends::default() };
        unacked.add(ZONE, sector(1));
        unacked.add(3 * ZONE, sector(1));
        unacked.forget(0, 2 * ZONE);
        assert_eq!((unacked.take(ZONE, &sector(1)), unacked.take(3 * ZONE, &sector(1))), (None, Some(3 * ZONE)));
    }
}
