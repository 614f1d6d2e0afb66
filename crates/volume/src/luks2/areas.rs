//! Areas of the header device: two headers, then the keyslot areas, then the payload.

use super::binary_header::BinaryHeader;
use super::metadata::{KeyslotDamage, KeyslotKind, Metadata};
use crate::key_material::needed_area;
use crate::violation::{HeaderFault, HeaderPath, Violation};
use std::ops::Range;

/// Maximum length of all keyslot areas together, in bytes.
pub(crate) const MAX_KEYSLOTS_LEN: u64 = 128 << 20;
/// Alignment of the length of all keyslot areas together.
pub(crate) const KEYSLOTS_ALIGN: u64 = 4096;

/// Returns the start of the keyslot areas.
pub(crate) fn keyslots_start(header: &BinaryHeader) -> u64 {
    2 * header.hdr_size
}

/// Returns the end of the keyslot areas: the minimum start of a payload on the same device.
pub(crate) fn keyslots_end(header: &BinaryHeader, metadata: &Metadata) -> u64 {
    keyslots_start(header) + metadata.config.keyslots_size
}

/// Returns the gaps between the keyslot areas in order, each from an aligned byte to the next area. Some are empty.
fn gaps(header: &BinaryHeader, metadata: &Metadata) -> impl Iterator<Item = Range<u64>> {
    let mut used: Vec<_> = metadata.keyslots.values().map(|slot| (slot.area_offset, slot.reserved_len())).collect();
    used.sort_unstable();
    used.push((keyslots_end(header, metadata), 0));
    let mut start = keyslots_start(header);
    used.into_iter().map(move |(offset, used_len)| {
        let gap = start..offset.max(start);
        // Ends of areas were checked against that of all.
        start = start.max((offset + used_len).next_multiple_of(KEYSLOTS_ALIGN));
        gap
    })
}

/// Returns the start of the first gap between the keyslot areas for an area of `len` bytes.
pub(super) fn find_gap(header: &BinaryHeader, metadata: &Metadata, len: u64) -> Option<u64> {
    gaps(header, metadata).find(|gap| gap.end - gap.start >= len).map(|gap| gap.start)
}

/// Returns the largest gap between the keyslot areas, of aligned length; of several the first. It may be empty.
pub(super) fn largest_gap(header: &BinaryHeader, metadata: &Metadata) -> Range<u64> {
    let whole = gaps(header, metadata).map(|gap| gap.start..gap.end / KEYSLOTS_ALIGN * KEYSLOTS_ALIGN);
    let start = keyslots_start(header);
    whole.fold(
        start..start,
        |best, gap| if gap.end.saturating_sub(gap.start) > best.end - best.start { gap } else { best },
    )
}

/// Checks that no area overlaps another one. `keyslots_size` was checked before.
pub(super) fn check(name: &'static str, header: &BinaryHeader, metadata: &Metadata) -> Result<(), HeaderFault> {
    check_keyslots(header, metadata)
        .map_err(|(number, violation)| violation.at(name, HeaderPath::object("keyslots", number).part("area")))?;
    check_segments(header, metadata)
        .map_err(|(number, violation)| violation.at(name, HeaderPath::object("segments", number)))
}

fn check_keyslots(header: &BinaryHeader, metadata: &Metadata) -> Result<(), (u32, Violation)> {
    let (start, limit) = (keyslots_start(header), keyslots_end(header, metadata));
    for (&number, keyslot) in &metadata.keyslots {
        let (offset, size) = (keyslot.area_offset, keyslot.area_len);
        let refuse = |violation| Err((number, violation));
        if size == 0 {
            return refuse(Violation::NotAllowed { field: "size", value: 0 });
        }
        if offset < start {
            return refuse(Violation::Overlap { offset, with: "the header" });
        }
        if offset.checked_add(size).is_none_or(|end| end > limit) {
            return refuse(Violation::PastEnd { offset, size, limit, of: "the keyslot areas" });
        }
        for (&object, other) in metadata.keyslots.range(..number) {
            // The end of the other area was checked before.
            if offset < other.area_offset + other.area_len && other.area_offset < offset + size {
                return refuse(Violation::OverlapObject { offset, with: "keyslots", object });
            }
        }
    }
    Ok(())
}

/// Notes keyslots whose area is too small for their key. The key can be read all the same if the bytes behind the area
/// belong to no other keyslot.
pub(super) fn note_small(name: &'static str, header: &BinaryHeader, metadata: &mut Metadata) {
    let limit = keyslots_end(header, metadata);
    let ranges: Vec<_> = metadata.keyslots.iter().map(|(&number, slot)| (number, slot.area_offset)).collect();
    for (&number, slot) in &mut metadata.keyslots {
        let (size, needed) = (slot.area_len, needed_area(slot.key_len));
        if !matches!(slot.kind, KeyslotKind::Luks2(_)) || size >= needed || slot.is_invalid() {
            continue;
        }
        let end = slot.area_offset.saturating_add(needed);
        let is_free = |other: &(u32, u64)| other.0 == number || other.1 < slot.area_offset || other.1 >= end;
        let is_usable = end <= limit && ranges.iter().all(is_free);
        let path = HeaderPath::object("keyslots", number).part("area");
        let fault = Violation::AreaTooSmall { size, needed }.at(name, path);
        slot.damage = Some(KeyslotDamage { fault, is_usable });
    }
}

fn check_segments(header: &BinaryHeader, metadata: &Metadata) -> Result<(), (u32, Violation)> {
    let numbers = metadata.segments.keys().zip(0..);
    if let Some((&number, _)) = numbers.into_iter().find(|&(&number, wanted)| number != wanted) {
        return Err((number, Violation::SegmentGap));
    }
    let live: Vec<_> = metadata.segments.iter().filter(|(_, segment)| !segment.is_backup()).collect();
    // A payload at offset 0 means that the header is detached: no part of it is on the data device.
    let detached = live.iter().any(|(_, segment)| segment.offset == 0);
    for (index, &(&number, segment)) in live.iter().enumerate() {
        let offset = segment.offset;
        if !detached && offset < keyslots_end(header, metadata) {
            return Err((number, Violation::Overlap { offset, with: "the keyslot areas" }));
        }
        if segment.size.is_none() && index + 1 != live.len() {
            return Err((number, Violation::DynamicNotLast));
        }
        let end = segment.size.map_or(u64::MAX, |size| offset.saturating_add(size));
        for &(&object, other) in &live[..index] {
            let other_end = other.size.map_or(u64::MAX, |size| other.offset.saturating_add(size));
            if offset < other_end && other.offset < end {
                return Err((number, Violation::OverlapObject { offset, with: "segments", object }));
            }
        }
    }
    Ok(())
}
