//! Tests of zoned files.

mod behaviour;

use super::*;
use crate::store::memory::MemoryStore;
use crate::zoned::ZoneKind;

/// Writes in these blocks.
pub(super) const BLOCK: u64 = 4096;
/// Zones of this length, of which three quarters can be written.
pub(super) const ZONE: u64 = 16 * BLOCK;

/// Two conventional zones and six that are not, the last of which is short.
pub(super) fn layout() -> ZonedLayout {
    ZonedLayout { capacity: 12 * BLOCK, conventional: 2, ..ZonedLayout::new(7 * ZONE + 4 * BLOCK, ZONE) }
}

/// A data store and its sidecar, in memory, as new.
pub(super) fn stores(layout: &ZonedLayout) -> (Arc<MemoryStore>, Arc<MemoryStore>) {
    let store = |len: u64| Arc::new(MemoryStore::new(vec![0; len as usize]));
    let (data, sidecar) = (store(ZonedFile::data_len(layout)), store(ZonedFile::sidecar_len(layout)));
    ZonedFile::format(&*data, &*sidecar, layout).unwrap();
    (data, sidecar)
}

/// A new file in memory.
pub(super) fn in_memory(layout: &ZonedLayout) -> ZonedFile {
    let (data, sidecar) = stores(layout);
    ZonedFile::over(data, sidecar, 1).unwrap()
}

/// The zone as it is reported.
pub(super) fn zone(file: &ZonedFile, zone: u64) -> Zone {
    let mut zones = [Zone::UNKNOWN];
    assert_eq!(file.report(zone * ZONE, &mut zones), Ok(1));
    zones[0]
}

/// Condition and bytes written of a zone.
pub(super) fn state(file: &ZonedFile, number: u64) -> (ZoneCondition, u64) {
    let zone = zone(file, number);
    (zone.condition, zone.write_pointer.map_or(0, |pointer| pointer - zone.start))
}
