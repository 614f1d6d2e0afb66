//! Tests of what the crate sees of a device.

use super::*;
use crate::store::memory::MemoryStore;
use inlock_cipher::CipherSpec;
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
