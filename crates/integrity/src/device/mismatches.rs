//! Blocks that do not match their tags: their number, and the first one found in each region.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Sectors of a region: 1 MiB of data.
const REGION_SECTORS: u64 = 2048;
/// Regions that are recorded. Mismatches in further ones are counted only.
const MAX_REGIONS: usize = 64;

/// The first mismatch in a region of 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// First sector of the block.
    pub sector: u64,
    /// Whether mismatches in further regions are no longer reported.
    pub is_last: bool,
}

type Observer = Box<dyn Fn(Mismatch) + Send + Sync>;

#[derive(Default)]
pub(super) struct Mismatches {
    count: AtomicU64,
    /// The block found first in each region.
    sectors: Mutex<Vec<u64>>,
    observer: OnceLock<Observer>,
}

impl Mismatches {
    /// Counts what has no position in the data.
    pub(super) fn count(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a block, and reports it if it is the first one of its region.
    pub(super) fn note(&self, sector: u64) {
        self.count();
        let mut sectors = self.sectors.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = sectors.iter().any(|known| known / REGION_SECTORS == sector / REGION_SECTORS);
        if is_known || sectors.len() == MAX_REGIONS {
            return;
        }
        sectors.push(sector);
        let mismatch = Mismatch { sector, is_last: sectors.len() == MAX_REGIONS };
        drop(sectors);
        if let Some(observer) = self.observer.get() {
            observer(mismatch);
        }
    }

    pub(super) fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(super) fn sectors(&self) -> Vec<u64> {
        self.sectors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn observe(&self, observer: Observer) {
        let sectors = self.sectors();
        // A second one is ignored.
        if self.observer.set(observer).is_ok()
            && let (Some(observer), [.., sector], MAX_REGIONS) = (self.observer.get(), &sectors[..], sectors.len())
        {
            // Those of the replay have filled the list: nothing else would tell that later ones are only counted.
            observer(Mismatch { sector: *sector, is_last: true });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn observer_is_told_of_a_list_that_the_replay_has_filled() {
        for (regions, expected) in [(MAX_REGIONS - 1, None), (MAX_REGIONS, Some((MAX_REGIONS as u64 - 1, true)))] {
            let (mismatches, seen) = (Mismatches::default(), Arc::new(Mutex::new(None)));
            (0..regions as u64).for_each(|region| mismatches.note(region * REGION_SECTORS));
            let last = Arc::clone(&seen);
            let note = move |found: Mismatch| {
                *last.lock().unwrap() = Some((found.sector / REGION_SECTORS, found.is_last));
            };
            mismatches.observe(Box::new(note));
            assert_eq!(*seen.lock().unwrap(), expected);
        }
    }
}
