//! Tests of zoned files.

mod behaviour;
mod beside;
mod crash;
mod damage;
mod files;
mod model;
mod table;

use super::*;
use crate::{Damage, Mismatch};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::store::{read_all, write_all};
use inlock_engine::zoned::ZoneKind;

/// Block length of the tests.
pub(super) const BLOCK: u64 = 4096;
/// Zone length of the tests; the capacity is three quarters of it.
pub(super) const ZONE: u64 = 16 * BLOCK;

/// Returns two conventional zones and six sequential ones, the last of which is short.
pub(super) fn layout() -> ZonedLayout {
    ZonedLayout { capacity: 12 * BLOCK, conventional: 2, ..ZonedLayout::new(7 * ZONE + 4 * BLOCK, ZONE) }
}

/// Returns a data store and its sidecar in memory, newly formatted.
pub(super) fn stores(layout: &ZonedLayout) -> (Arc<MemoryStore>, Arc<MemoryStore>) {
    let store = |len: u64| Arc::new(MemoryStore::new(vec![0; len as usize]));
    let (data, sidecar) = (store(ZonedFile::data_len(layout)), store(ZonedFile::sidecar_len(layout)));
    ZonedFile::format(&*data, &*sidecar, layout).unwrap();
    (data, sidecar)
}

/// Returns a new file in memory.
pub(super) fn in_memory(layout: &ZonedLayout) -> ZonedFile {
    let (data, sidecar) = stores(layout);
    ZonedFile::over(data, sidecar, 1).unwrap()
}

/// Returns a zone as reported.
pub(super) fn zone(file: &ZonedFile, zone: u64) -> Zone {
    let mut zones = [Zone::UNKNOWN];
    assert_eq!(file.report(zone * ZONE, &mut zones), Ok(1));
    zones[0]
}

/// Returns condition and number of written bytes of a zone.
pub(super) fn state(file: &ZonedFile, number: u64) -> (ZoneCondition, u64) {
    let zone = zone(file, number);
    (zone.condition, zone.write_pointer.map_or(0, |pointer| pointer - zone.start))
}

/// Pseudo-random numbers, the same for the same seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number: Sebastiano Vigna's SplitMix64.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
