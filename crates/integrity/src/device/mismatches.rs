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
        // A second one is ignored.
        let _ = self.observer.set(observer);
    }
}
