//! Tests of what the crate sees of a device.

use super::*;
use crate::boundary::MoveDirection;
use crate::crypt_mapping::{Content, Sides};
use crate::store::Geometry;
use crate::store::memory::MemoryStore;
use crate::zoned_memory::{MemoryZones, Shape};
use inlock_cipher::{CipherSpec, SECTOR_SIZE};
use std::num::NonZeroU64;
use std::time::Duration;

fn key() -> VolumeKey {
    VolumeKey::new(&(0..64).collect::<Vec<u8>>())
}

fn device() -> Device {
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
    Device::new(&[segment], &key(), Arc::new(MemoryStore::new(vec![0; 1 << 20])), Access::default()).unwrap()
}

#[test]
fn ciphers_are_measured_on_request_and_after_each_change_of_keys() {
    let device = device();
    let cipher_time = |device: &Device| {
        let range = device.mapping().locate(0, 1 << 19, 1 << 20).unwrap();
        device.enter().unwrap().cipher_time(&range)
    };
    let change_keys = |device: &Device| {
        device.suspend().unwrap();
        device.wipe_key().unwrap();
        device.set_key(&key()).unwrap();
        device.resume().unwrap();
    };
    change_keys(&device);
    assert_eq!(cipher_time(&device), Duration::ZERO);
    device.measure_ciphers();
    assert!(cipher_time(&device) > Duration::ZERO);
    change_keys(&device);
    assert!(cipher_time(&device) > Duration::ZERO);
}

#[test]
fn block_status_covers_no_more_than_was_asked_for() {
    // A store that reports all of it as allocated.
    let device = device();
    for (offset, len) in [(0, 100), (0, 512), (100, 412), (1000, 50), (4096, 8192), (512, 700)] {
        let found = device.block_status(offset, len).unwrap();
        assert_eq!(found, BlockStatus { offset, len, hole: false });
    }
}

/// A store of sectors, each of which is a hole or not.
struct Sectors(Vec<bool>);

impl BackingStore for Sectors {
    fn geometry(&self) -> Geometry {
        Geometry::new(self.0.len() as u64 * SECTOR_SIZE)
    }

    fn read_at(&self, data: &mut [u8], _: u64) -> Result<usize, Errno> {
        data.fill(0);
        Ok(data.len())
    }

    fn write_at(&self, _: &[u8], _: u64) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    fn sync(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        let (first, end) = (offset / SECTOR_SIZE, (offset + len).div_ceil(SECTOR_SIZE));
        let hole = self.0[first as usize];
        let same = (first..end).take_while(|sector| self.0[*sector as usize] == hole).count() as u64;
        Ok(BlockStatus { offset, len: ((first + same) * SECTOR_SIZE - offset).min(len), hole })
    }
}

/// A data unit is a hole if all of it is one in the store; a status says so of every unit that it covers, begins at any
/// byte, and is no shorter than the rest of the first unit.
#[test]
fn block_status_is_that_of_whole_units() {
    const UNIT: u64 = 4096;
    let mut random = 1_u64;
    for _ in 0..40 {
        let sectors: Vec<bool> = (0..64)
            .map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Long runs are likely.
                random.is_multiple_of(8)
            })
            .scan(true, |state, turns| {
                *state ^= turns;
                Some(*state)
            })
            .collect();
        let is_hole: Vec<bool> = sectors.chunks(8).map(|unit| unit.iter().all(|hole| *hole)).collect();
        let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::new(UNIT as u32).unwrap());
        let device = Device::new(&[segment], &key(), Arc::new(Sectors(sectors)), Access::default()).unwrap();
        for offset in (0..device.len()).step_by(512).flat_map(|at| [at, at + 1, at + 511]) {
            for len in [1, 512, 513, UNIT, UNIT + 1, 3 * UNIT, device.len()] {
                let len = len.min(device.len() - offset);
                let status = device.block_status(offset, len).unwrap();
                assert_eq!(status.offset, offset);
                assert!((1..=len).contains(&status.len), "{offset}, {len}: {status:?}");
                let rest = (UNIT - offset % UNIT).min(len);
                assert!(status.len >= rest, "{offset}, {len}: {status:?} ends within the first unit");
                let mut units = offset / UNIT..(offset + status.len).div_ceil(UNIT);
                let is_right = units.all(|unit| is_hole[unit as usize] == status.hole);
                assert!(is_right, "{offset}, {len}: {status:?} in {is_hole:?}");
                let end = offset + status.len;
                assert!(end == offset + len || end.is_multiple_of(UNIT), "{offset}, {len}: {status:?} ends in a unit");
            }
        }
    }
}

/// Returns the crypt mapping of a device of `len` bytes that is re-encrypted from data units of 512 bytes to linear.
fn moving(len: u64) -> CryptMapping {
    let key = key();
    let segment = Segment::whole(Some(CipherSpec::AES_XTS_PLAIN64), DataUnitSize::SECTOR);
    let target = |content| Target { segment: &segment, content, store: 0 };
    let (old, new) = (target(Content::Crypt(&key)), target(Content::Linear));
    let sides = Sides { old, new, direction: MoveDirection::Forward, boundary: 4096, len };
    CryptMapping::moving(&sides, &[len]).unwrap()
}

#[test]
fn device_that_is_re_encrypted_reports_no_holes_and_keeps_its_length() {
    let device = Device::raw(Arc::new(Sectors(vec![true; 64])), Access::default());
    let len = device.len();
    assert_eq!(device.block_status(0, len), Ok(BlockStatus::hole(0, len)));
    device.reload(moving(len)).unwrap();
    let status = |offset, end| device.block_status(offset, end - offset).map(|found| (found.len, found.hole));
    assert_eq!([status(0, len), status(5000, 6000)], [Ok((4096, false)), Ok((1000, false))]);
    assert!(matches!(device.set_len(4096), Err(ControlError::Target(TargetError::MovingLen))));
    assert!(matches!(device.grow(), Ok(grown) if grown == len));
    assert_eq!(device.boundary(), Some(4096));
    device.reload(CryptMapping::raw(len)).unwrap();
    assert_eq!((device.boundary(), device.block_status(0, len)), (None, Ok(BlockStatus::hole(0, len))));
}

#[test]
fn device_with_zones_or_zero_holes_is_not_re_encrypted_while_it_is_used() {
    let shape = Shape {
        zone_len: 1 << 20,
        capacity: 1 << 20,
        zones: 4,
        conventional: 4,
        max_open: 0,
        max_active: 0,
        granularity: 512,
    };
    let zoned = Device::raw(Arc::new(MemoryZones::new(shape)), Access::default());
    let refused = zoned.reload(moving(zoned.len()));
    assert!(matches!(refused, Err(ControlError::Target(TargetError::MovingZones))));
    let store = MemoryStore::new(vec![0; 1 << 20]).with_exact_holes(NonZeroU64::new(4096).unwrap());
    let holes = Device::raw(Arc::new(store), Access::default()).with_zero_holes().unwrap();
    let refused = holes.reload(moving(holes.len()));
    assert!(matches!(refused, Err(ControlError::Target(TargetError::MovingHoles))));
    assert!(!zoned.is_suspended() && !holes.is_suspended());
}
