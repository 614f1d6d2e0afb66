//! Appends that come again after a process has died: which of them had landed.
//!
//! The driver asks once more for what was not answered, and does not know how far it came. A write says where it belongs. An
//! append does not, and carried out twice it takes room that whoever appends believes to be free. But a file in memory
//! outlives the process and says what of each zone was answered ([`super::answered`]). The rest up to the write pointer has
//! landed without an answer ([`Landed`]); an append with these bytes is answered with their place.

use super::answered::Reach;
use inlock_engine::zoned::Zone;
use inlock_engine::{BlockingDevice, RequestError};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What can be written is a multiple of this.
const SECTOR: usize = 512;

/// What has landed without an answer.
#[derive(Default)]
pub(super) struct Landed {
    stretches: Mutex<HashMap<u64, Vec<Stretch>>>,
    /// How many there are: mostly none.
    count: AtomicUsize,
    zone_len: u64,
}

struct Stretch {
    offset: u64,
    bytes: Vec<u8>,
}

impl Landed {
    /// Reads what of `zones` was written and is not within `reach`: at most `most` bytes in all, as many as can have been under
    /// way. They are on stable storage then.
    pub(super) fn find(
        device: &BlockingDevice,
        zones: &[Zone],
        reach: &Reach,
        most: u64,
    ) -> Result<Self, RequestError> {
        let mut found = Self { zone_len: zones.first().map_or(1, |zone| zone.len), ..Self::default() };
        let mut room = most;
        for Range { start, end } in reach.unanswered(zones) {
            let start = start.max(end.saturating_sub(room));
            if start < end {
                room -= end - start;
                let mut bytes = vec![0; (end - start) as usize];
                device.read_at(&mut bytes, start)?;
                found.keep(start, bytes);
            }
        }
        if *found.count.get_mut() > 0 {
            device.flush()?;
        }
        Ok(found)
    }

    fn keep(&mut self, offset: u64, bytes: Vec<u8>) {
        let stretches = self.stretches.get_mut().unwrap_or_else(PoisonError::into_inner);
        stretches.entry(offset / self.zone_len).or_default().push(Stretch { offset, bytes });
        *self.count.get_mut() += 1;
    }

    /// Where `bytes` have landed in the zone that starts at `zone`; once.
    pub(super) fn take(&self, zone: u64, bytes: &[u8]) -> Option<u64> {
        if bytes.is_empty() || self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut stretches = self.lock();
        let there = stretches.get_mut(&(zone / self.zone_len))?;
        let (index, range) = there.iter().enumerate().find_map(|(index, s)| Some((index, s.find(bytes)?)))?;
        let Stretch { offset, bytes } = there.swap_remove(index);
        let at = offset + range.start as u64;
        let rest = [(offset, &bytes[..range.start]), (offset + range.end as u64, &bytes[range.end..])];
        let rest = rest.into_iter().filter(|(_, bytes)| !bytes.is_empty());
        there.extend(rest.map(|(offset, bytes)| Stretch { offset, bytes: bytes.to_vec() }));
        self.count.store(stretches.values().map(Vec::len).sum(), Ordering::Release);
        Some(at)
    }

    /// The zones of the range hold something else now.
    pub(super) fn forget(&self, offset: u64, len: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let gone = offset / self.zone_len..(offset + len).div_ceil(self.zone_len);
        let mut stretches = self.lock();
        stretches.retain(|zone, _| !gone.contains(zone));
        self.count.store(stretches.values().map(Vec::len).sum(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Vec<Stretch>>> {
        self.stretches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stretch {
    fn find(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let last = self.bytes.len().checked_sub(bytes.len())?;
        let at = (0..=last).step_by(SECTOR).find(|at| self.bytes[*at..].starts_with(bytes))?;
        Some(at..at + bytes.len())
    }
}

/// Up to where a zone is written; its start where it does not matter.
pub(super) fn written(zone: &Zone) -> u64 {
    zone.write_pointer.map_or(zone.start, |pointer| pointer.min(zone.start + zone.capacity))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE: u64 = 8192;

    fn sector(value: u8) -> Vec<u8> {
        vec![value; SECTOR]
    }

    #[test]
    fn what_has_landed_is_found_once() {
        let mut landed = Landed { zone_len: ZONE, ..Landed::default() };
        landed.keep(ZONE + 512, [sector(1), sector(2), sector(3), sector(2)].concat());
        assert_eq!(landed.take(2 * ZONE, &sector(2)), None, "another zone");
        assert_eq!(landed.take(ZONE, &sector(4)), None);
        assert_eq!(landed.take(ZONE, &[sector(2), sector(3)].concat()), Some(ZONE + 1024));
        assert_eq!(landed.take(ZONE, &sector(3)), None, "it was taken");
        assert_eq!(landed.take(ZONE, &sector(2)), Some(ZONE + 2048));
        assert_eq!(landed.take(ZONE, &sector(2)), None);
        assert_eq!(landed.take(ZONE, &sector(1)), Some(ZONE + 512));
        assert_eq!(landed.count.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_zone_that_was_reset_is_forgotten() {
        let mut landed = Landed { zone_len: ZONE, ..Landed::default() };
        landed.keep(ZONE, sector(1));
        landed.keep(3 * ZONE, sector(1));
        landed.forget(0, 2 * ZONE);
        assert_eq!((landed.take(ZONE, &sector(1)), landed.take(3 * ZONE, &sector(1))), (None, Some(3 * ZONE)));
    }
}
