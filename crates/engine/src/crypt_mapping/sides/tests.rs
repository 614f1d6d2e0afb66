//! Tests of the mapping of a device that is re-encrypted.

use super::*;
use crate::crypt_mapping::Content;
use crate::mapping::MappedRange;
use crate::request::RequestError;
use inlock_cipher::{CipherSpec, DataUnitSize, IvNumber, Segment, VolumeKey};
use std::ops::Range;

const LEN: u64 = 64 << 10;
const STORE_LEN: u64 = LEN + 16384;
/// Places of the sides in the store, in bytes.
const OLD_AT: u64 = 1536;
const NEW_AT: u64 = 9728;
const BUFFER: usize = 1 << 20;

fn key() -> VolumeKey {
    VolumeKey::new(&[7; 64])
}

/// A side in units of 512 or 4096 bytes, or with units of one byte a linear one.
fn segment(unit: u32, at: u64) -> Segment {
    let size = DataUnitSize::new(unit.max(512)).unwrap();
    let mut segment = Segment::whole((unit > 1).then_some(CipherSpec::AES_XTS_PLAIN64), size);
    (segment.data_offset, segment.iv_offset) = (Sector(at / 512), Sector(at));
    segment
}

fn moving(units: [u32; 2], direction: MoveDirection, boundary: u64) -> Result<CryptMapping, TargetError> {
    let key = key();
    let segments = [segment(units[OLD], OLD_AT), segment(units[NEW], NEW_AT)];
    let [old, new] = [OLD, NEW].map(|side| {
        let content = if units[side] > 1 { Content::Crypt(&key) } else { Content::Linear };
        Target { segment: &segments[side], content, store: 0 }
    });
    CryptMapping::moving(&Sides { old, new, direction, boundary, len: LEN }, &[STORE_LEN])
}

/// Checks that a range is mapped as the side alone would map it.
fn check_side(range: &MappedRange, side: usize, units: [u32; 2]) {
    let at = [OLD_AT, NEW_AT][side];
    let alone = CryptMapping::new(&[segment(units[side], at)], &key(), at + LEN).unwrap();
    let expected = alone.locate(range.offset, range.len as u64, BUFFER).unwrap();
    assert_eq!(*range, MappedRange { target: side as u32, ..expected });
}

const UNITS: [[u32; 2]; 6] = [[512, 4096], [4096, 512], [1, 512], [512, 1], [1, 4096], [512, 512]];
const BOUNDARIES: [u64; 5] = [0, 4096, LEN / 2, LEN - 4096, LEN];
const DIRECTIONS: [MoveDirection; 2] = [MoveDirection::Forward, MoveDirection::Backward];

#[test]
fn range_is_mapped_to_its_side_and_ends_at_the_boundary() {
    for (units, direction) in UNITS.iter().flat_map(|units| DIRECTIONS.map(|direction| (*units, direction))) {
        for boundary in BOUNDARIES {
            let mapping = moving(units, direction, boundary).unwrap();
            assert_eq!((mapping.boundary(), mapping.len()), (Some(boundary), LEN));
            for offset in [0, 1, 511, 4095, 4096, 4097, LEN / 2 - 1, LEN / 2, LEN / 2 + 1, LEN - 4096, LEN - 1] {
                for len in [1, 2, 511, 4096, 4097, LEN].map(|len| len.min(LEN - offset)) {
                    let is_before = offset < boundary;
                    let is_new = is_before == (direction == MoveDirection::Forward);
                    let side = if is_new { NEW } else { OLD };
                    let end = if is_before { boundary.min(offset + len) } else { offset + len };
                    let range = mapping.locate(offset, len, BUFFER).unwrap();
                    assert_eq!(range.len as u64, end - offset, "{len} at {offset}, {direction:?} {boundary}");
                    check_side(&range, side, units);
                    assert!(mapping.is_current(&range) && mapping.needs_lock(&range));
                    let place = mapping.place(offset, len).unwrap();
                    assert_eq!((place.target as usize, place.len, place.within), (side, end - offset, offset));
                    assert_eq!(place.store_offset, [OLD_AT, NEW_AT][side] + offset);
                    check_discard(&mapping, offset, len, side, units[side].into());
                }
            }
            for (offset, len) in [(LEN, 1), (0, LEN + 1), (0, 0), (u64::MAX, 2)] {
                assert_eq!(mapping.locate(offset, len, BUFFER), Err(RequestError::OutOfRange));
                assert_eq!(mapping.place(offset, len), Err(RequestError::OutOfRange));
            }
        }
    }
}

/// Checks that the whole units of the part on one side are deallocated, under their lock.
fn check_discard(mapping: &CryptMapping, offset: u64, len: u64, side: usize, unit: u64) {
    let (range, place) = mapping.discardable(offset, len).unwrap();
    assert_eq!(place, mapping.place(offset, len).unwrap());
    let at = [OLD_AT, NEW_AT][side];
    let (start, end) = (offset.next_multiple_of(unit), (offset + place.len) / unit * unit);
    assert_eq!(range, at + start..at + end.max(start));
    if !range.is_empty() {
        let lock = mapping.discard_lock(&range, &place).expect("a discard is locked");
        assert_eq!((lock.offset, lock.len as u64, lock.target as usize), (start, end - start, side));
        assert_eq!((lock.store_offset, lock.aligned_len as u64), (range.start, end - start));
        assert!(mapping.is_current(&lock));
    }
}

#[test]
fn range_is_current_until_the_boundary_has_passed_any_of_it() {
    const BORDER: u64 = LEN / 2;
    for (direction, zone) in
        [(MoveDirection::Forward, BORDER..BORDER + 8192), (MoveDirection::Backward, BORDER - 8192..BORDER)]
    {
        let mapping = moving([512, 4096], direction, BORDER).unwrap();
        let locate = |range: &Range<u64>| mapping.locate(range.start, range.end - range.start, BUFFER).unwrap();
        // At, before, after and across the borders of the zone.
        let stale =
            [zone.clone(), zone.start..zone.start + 1, zone.end - 1..zone.end, zone.start + 4096..zone.start + 5000];
        let [across, kept] = match direction {
            MoveDirection::Forward => [zone.end - 1..zone.end + 1, zone.end..zone.end + 1],
            MoveDirection::Backward => [zone.start - 1..zone.start + 1, zone.start - 1..zone.start],
        };
        let new = if direction == MoveDirection::Forward { BORDER - 512..BORDER } else { BORDER..BORDER + 512 };
        let stale = stale.iter().chain([&across]).map(locate).collect::<Vec<_>>();
        let [kept, new] = [&kept, &new].map(locate);
        assert!(stale.iter().chain([&kept, &new]).all(|range| mapping.is_current(range)));
        assert!(stale.iter().all(|range| range.target as usize == OLD) && new.target as usize == NEW);
        mapping.mapping().boundary.as_deref().unwrap().pass(&zone);
        assert!(stale.iter().all(|range| !mapping.is_current(range)), "{direction:?}");
        assert!(mapping.is_current(&kept) && mapping.is_current(&new), "{direction:?}");
        assert_eq!(locate(&zone).target as usize, NEW);
        assert!(!mapping.is_current(&MappedRange { generation: 1, ..new }), "another table");
    }
}

#[test]
fn clones_of_a_mapping_share_the_boundary() {
    let mapping = moving([512, 512], MoveDirection::Forward, 0).unwrap();
    let clone = mapping.mapping().as_ref().clone();
    clone.boundary.as_deref().unwrap().pass(&(0..4096));
    assert_eq!(mapping.of_generation(7).boundary(), Some(4096));
}

#[test]
fn zone_begins_at_the_boundary_and_is_whole_units_of_both_sides() {
    let forward = moving([512, 4096], MoveDirection::Forward, 8192).unwrap();
    assert_eq!(forward.old_place(&(8192..16384)), Ok((0, OLD_AT + 8192..OLD_AT + 16384)));
    assert_eq!(forward.old_place(&(8192..LEN)), Ok((0, OLD_AT + 8192..OLD_AT + LEN)));
    for zone in
        [4096..8192, 0..8192, 12288..16384, 8192..8192, 8192..8704, 8192..LEN + 4096, Range { start: 8192, end: 4096 }]
    {
        assert_eq!(forward.old_place(&zone), Err(RequestError::OutOfRange), "{zone:?}");
    }
    let backward = moving([512, 4096], MoveDirection::Backward, 8192).unwrap();
    assert_eq!(backward.old_place(&(0..8192)), Ok((0, OLD_AT..OLD_AT + 8192)));
    for zone in [8192..16384, 0..4096, 512..8192] {
        assert_eq!(backward.old_place(&zone), Err(RequestError::OutOfRange), "{zone:?}");
    }
    assert_eq!(CryptMapping::raw(LEN).old_place(&(0..4096)), Err(RequestError::Unsupported));
}

#[test]
fn keys_units_and_lengths_are_those_of_both_sides() {
    let mapping = moving([512, 4096], MoveDirection::Forward, 0).unwrap();
    assert_eq!((mapping.unit_len(), mapping.keys(), mapping.is_encrypted()), (4096, 1, true));
    let grown = CryptMapping::grown(&mapping, &[2 * STORE_LEN]);
    assert_eq!((grown.len(), grown.boundary()), (LEN, Some(0)));
    assert!(matches!(CryptMapping::resized(&mapping, LEN / 2), Err(TargetError::MovingLen)));
    assert!(!mapping.has_zero_holes() && !mapping.can_zero_fast(0, LEN) && mapping.zeroing(0, LEN, LEN).is_none());
    assert!(matches!(mapping.with_zero_holes(&[]), Err(TargetError::MovingHoles)));
    let linear = moving([1, 512], MoveDirection::Forward, 0).unwrap();
    assert_eq!((linear.unit_len(), linear.keys(), linear.is_encrypted()), (512, 1, true));
    assert_eq!(linear.locate(1, 10, BUFFER).unwrap().first, IvNumber(OLD_AT));
}

#[test]
fn sides_that_do_not_fit_are_refused() {
    let forward = |units, boundary| moving(units, MoveDirection::Forward, boundary).map(|mapping| mapping.len());
    for boundary in [512, 4095, LEN + 4096] {
        assert!(matches!(forward([512, 4096], boundary), Err(TargetError::Boundary { .. })), "{boundary}");
    }
    assert!(matches!(forward([4096, 512], 512), Err(TargetError::Boundary { .. })));
    assert!(forward([512, 512], 512).is_ok());
    let key = key();
    let check = |len: u64, store_len: u64, content| {
        let (old, new) = (segment(512, OLD_AT), segment(4096, NEW_AT));
        let old = Target { segment: &old, content: Content::Crypt(&key), store: 0 };
        let new = Target { segment: &new, content, store: 0 };
        let sides = Sides { old, new, direction: MoveDirection::Forward, boundary: 0, len };
        CryptMapping::moving(&sides, &[store_len]).map(|mapping| mapping.len())
    };
    let crypt = Content::Crypt(&key);
    assert!(matches!(check(LEN, NEW_AT + LEN, crypt), Ok(LEN)));
    assert!(matches!(check(LEN, NEW_AT + LEN - 1, crypt), Err(TargetError::BeyondStore { index: NEW, .. })));
    assert!(matches!(check(LEN + 512, STORE_LEN, crypt), Err(TargetError::UnitLength { unit: 4096, .. })));
    assert!(matches!(check(LEN + 1, STORE_LEN, crypt), Err(TargetError::UnitLength { unit: 512, .. })));
    assert!(matches!(check(LEN, STORE_LEN, Content::Zero), Err(TargetError::NotStored(NEW))));
    assert!(matches!(check(LEN, STORE_LEN, Content::Error), Err(TargetError::NotStored(NEW))));
    let elsewhere = Target { segment: &segment(512, 0), content: crypt, store: 1 };
    let sides = Sides { old: elsewhere, new: elsewhere, direction: MoveDirection::Forward, boundary: 0, len: LEN };
    assert!(matches!(CryptMapping::moving(&sides, &[STORE_LEN]), Err(TargetError::NoStore(OLD))));
}
