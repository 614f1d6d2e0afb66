//! A device whose length changes: with its store, or as requested.

use crate::support::{DATA_OFFSET, key, segment};
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, BlockingDevice, ControlError, Device, TargetError};
use std::sync::Arc;

const START: u64 = DATA_OFFSET as u64;

#[test]
fn device_grows_with_its_store_by_whole_data_units() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(START + (64 << 10)).unwrap();
    let store = FileStore::new(file.try_clone().unwrap(), IoMode::Auto).unwrap();
    let device = Arc::new(Device::new(&[segment(4096)], &key(), Arc::new(store), Access::default()).unwrap());
    let blocking = BlockingDevice::new(Arc::clone(&device));
    let before = device.len();
    let is_empty = |bytes| Device::raw(Arc::new(MemoryStore::new(bytes)), Access::default()).is_empty();
    assert!(!device.is_empty() && !is_empty(vec![0; 1]) && is_empty(Vec::new()));
    blocking.write_at(&[5; 4096], before - 4096).unwrap();
    assert!(blocking.write_at(&[6; 4096], before).is_err());
    assert_eq!(device.grow().unwrap(), before, "nothing has changed");
    file.set_len(START + (64 << 10) + 3 * 4096 + 100).unwrap();
    assert_eq!(device.len(), before, "the length was not read again");
    assert_eq!(device.grow().unwrap(), before + 3 * 4096);
    blocking.write_at(&[6; 4096 * 3], before).unwrap();
    let mut back = [0; 4096 * 2];
    blocking.read_at(&mut back, before - 4096).unwrap();
    assert_eq!((&back[..4096], &back[4096..]), (&[5; 4096][..], &[6; 4096][..]));
    // A store that shrinks takes nothing back; beyond its end there are errors.
    file.set_len(8192).unwrap();
    assert_eq!(device.grow().unwrap(), before + 3 * 4096);
    assert!(blocking.read_at(&mut back, before).is_err());
    device.suspend().unwrap();
    device.wipe_key().unwrap();
    assert!(device.grow().is_err(), "it grew without a key");
}

#[test]
fn device_gets_length_of_whole_data_units_within_its_store() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(START + (64 << 10)).unwrap();
    let store = FileStore::new(file.try_clone().unwrap(), IoMode::Auto).unwrap();
    let device = Arc::new(Device::new(&[segment(4096)], &key(), Arc::new(store), Access::default()).unwrap());
    let blocking = BlockingDevice::new(Arc::clone(&device));
    let full = device.len();
    blocking.write_at(&[5; 4096], full - 4096).unwrap();
    assert_eq!(device.set_len(8192).unwrap(), 8192);
    assert_eq!(device.len(), 8192);
    blocking.write_at(&[6; 4096], 4096).unwrap();
    assert!(blocking.write_at(&[6; 4096], 8192).is_err() && blocking.read_at(&mut [0; 4096], full - 4096).is_err());
    for wrong in [0, 512, 4096 + 512, full + 4096, u64::MAX, u64::MAX / 4096 * 4096] {
        assert!(matches!(device.set_len(wrong), Err(ControlError::Target(_))), "{wrong}");
        assert_eq!(device.len(), 8192);
    }
    assert!(matches!(device.set_len(0), Err(ControlError::Target(TargetError::EmptySegment(0)))));
    assert_eq!(device.grow().unwrap(), full);
    let mut back = [0; 4096];
    blocking.read_at(&mut back, full - 4096).unwrap();
    assert_eq!(back, [5; 4096]);
    device.suspend().unwrap();
    device.wipe_key().unwrap();
    assert!(device.set_len(4096).is_err(), "it was resized without a key");
}
