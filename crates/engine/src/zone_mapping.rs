//! Zones of a device: its store's, shifted by the position of the device on it.

use crate::ciphertext::Ciphertext;
use crate::crypt_mapping::{CryptMapping, TargetError};
use crate::errno::Errno;
use crate::mapping::{MappedRange, Mapping};
use crate::request::RequestError;
use crate::store::BackingStore;
use crate::zoned::{Zone, ZoneAction, ZoneLimits, ZonedStore};
use std::ops::Range;
use std::sync::Arc;

/// Returns the device's zoned store, if it has one.
fn zoned_store(stores: &[Arc<dyn BackingStore>]) -> Option<&dyn ZonedStore> {
    stores.iter().find_map(|store| store.zoned())
}

/// Checks that on a zoned store every segment lies there, begins and ends at zone boundaries, and has data units that
/// divide the write granularity.
pub(crate) fn check(mapping: &Mapping, stores: &[Arc<dyn BackingStore>]) -> Result<(), TargetError> {
    let Some(zones) = zoned_store(stores) else { return Ok(()) };
    if mapping.boundary.is_some() {
        return Err(TargetError::MovingZones);
    }
    let ZoneLimits { zone_len, write_granularity: granularity, .. } = zones.limits();
    for (index, part) in mapping.targets.iter().enumerate() {
        let store = stores.get(part.store as usize).filter(|store| store.zoned().is_some());
        let stored = part.kind.is_stored();
        let store = store.filter(|_| stored && stores.len() == 1).ok_or(TargetError::NotZoned(index))?;
        let (start, end) = (part.store_offset, part.store_end());
        let at_border = |position: u64| position.is_multiple_of(zone_len);
        let ends = at_border(end) || end == store.geometry().len && index + 1 == mapping.targets.len();
        if !at_border(part.start) || !at_border(start) || !ends {
            return Err(TargetError::CutsZone { index, start, end, zone_len });
        }
        let unit = part.unit_len();
        if !(granularity as usize).is_multiple_of(unit) {
            return Err(TargetError::ZoneUnit { unit, granularity });
        }
    }
    Ok(())
}

/// Returns the zone limits of a device with this mapping.
pub(crate) fn limits_of(mapping: &Mapping, stores: &[Arc<dyn BackingStore>]) -> Option<ZoneLimits> {
    let limits = zoned_store(stores)?.limits();
    Some(ZoneLimits { zones: mapping.len.div_ceil(limits.zone_len) as u32, ..limits })
}

/// Reports the zones of a device with this mapping.
pub(crate) fn report(
    mapping: &Mapping,
    stores: &[Arc<dyn BackingStore>],
    offset: u64,
    into: &mut [Zone],
) -> Result<usize, RequestError> {
    let store = zoned_store(stores).ok_or(RequestError::Unsupported)?;
    let zone_len = store.limits().zone_len;
    let mut at = offset / zone_len * zone_len;
    let mut count = 0;
    while at < mapping.len && count < into.len() {
        let place = mapping.place(at, mapping.len - at)?;
        let most = into.len().min(count + place.len.div_ceil(zone_len) as usize);
        let reported = store.report(place.store_offset, &mut into[count..most])?;
        if reported == 0 {
            break;
        }
        for zone in &mut into[count..count + reported] {
            *zone = zone.shifted(place.store_offset, at);
        }
        count += reported;
        at += reported as u64 * zone_len;
    }
    Ok(count)
}

/// Maps an append written at `position` of its store.
pub(crate) fn moved(mapping: &Mapping, range: &MappedRange, position: u64) -> Result<MappedRange, RequestError> {
    // The position may be before the old one, and the store begin before the device.
    let offset = range.offset.wrapping_add(position.wrapping_sub(range.store_offset));
    let moved = mapping.locate(offset, range.len as u64, range.aligned_len.max(2 * range.unit_len))?;
    // A write that must not be split cannot cross the point at which sector numbers wrap.
    if moved.aligned_len == range.aligned_len { Ok(moved) } else { Err(RequestError::Io(Errno::IO)) }
}

/// Encrypts the data of `range` again, for `position` of its store. Returns the data with the error if they have no
/// place there.
pub(crate) fn encrypt_elsewhere(
    crypt: &CryptMapping,
    range: &MappedRange,
    position: u64,
    data: Ciphertext,
) -> Result<(MappedRange, Ciphertext), (RequestError, Ciphertext)> {
    match moved(crypt, range, position) {
        Ok(elsewhere) => Ok((elsewhere, crypt.encrypt(&elsewhere, crypt.decrypt(range, data)))),
        Err(error) => Err((error, data)),
    }
}

/// Returns the ranges of the store for a zone management operation on a range of the device.
pub(crate) fn ranges_of(
    mapping: &Mapping,
    action: ZoneAction,
    zone_len: u64,
    offset: u64,
    len: u64,
) -> Result<Vec<Range<u64>>, RequestError> {
    let whole = action == ZoneAction::ResetAll;
    let (offset, len) = if whole { (0, mapping.len) } else { (offset, len) };
    let end = offset.checked_add(len).filter(|end| *end <= mapping.len).ok_or(RequestError::OutOfRange)?;
    let at_border = |position: u64| position.is_multiple_of(zone_len);
    if !at_border(offset) || !(at_border(end) || end == mapping.len) || len == 0 {
        return Err(RequestError::Io(Errno::INVAL));
    }
    let mut ranges = Vec::new();
    let mut at = offset;
    while at < end {
        let place = mapping.place(at, end - at)?;
        ranges.push(place.store_offset..place.store_offset + place.len);
        at += place.len;
    }
    Ok(ranges)
}
