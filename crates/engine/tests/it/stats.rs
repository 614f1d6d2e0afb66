//! The statistics of a device match the requests made.

use crate::scripted::{self, Ask};
use crate::support::{DATA_OFFSET, key, segment};
use inlock_engine::store::file::IoMode;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, BlockingDevice, Device, StatsLevel};
use std::sync::Arc;

const UNIT: u32 = 512;

fn device() -> Arc<Device> {
    let store = Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + (64 << 10)]));
    let device = Device::new(&[segment(UNIT)], &key(), store, Access::default()).unwrap();
    Arc::new(device.with_stats(StatsLevel::Exact))
}

#[test]
fn requests_cipher_calls_and_times_are_counted() {
    for blocking in [false, true] {
        let device = device();
        let write = |offset, len| Ask::Write { offset, data: vec![1; len], durable: false };
        let script = vec![
            write(0, 4096),
            // Both edges are read and decrypted first.
            write(8192 + 10, 1000),
            Ask::Read { offset: 100, len: 1000 },
            Ask::Zeroes { offset: 512, len: 512 },
            Ask::Flush,
            Ask::Discard { offset: 0, len: 512 },
        ];
        let asked = script.len() as u64;
        if blocking {
            let device = BlockingDevice::new(Arc::clone(&device));
            device.write_at(&[1; 4096], 0).unwrap();
            device.write_at(&[1; 1000], 8192 + 10).unwrap();
            device.read_at(&mut [0; 1000], 100).unwrap();
            device.write_zeroes(512, 512).unwrap();
            device.flush().unwrap();
            assert!(device.discard(0, 512).is_err());
        } else {
            scripted::run(&device, IoMode::Auto, 2, script);
        }
        let s = device.stats().snapshot();
        assert_eq!((s.reads, s.writes, s.write_zeroes, s.flushes), (1, 2, 1, 1), "blocking: {blocking}");
        assert_eq!((s.discards, s.errors), (0, 1), "a discard that is not allowed is an error");
        assert_eq!((s.bytes_read, s.bytes_written), (1000, 4096 + 1000 + 512));
        assert_eq!((s.inline, s.offloaded), (4, 0));
        assert_eq!(s.cipher_calls, 1 + (2 + 1) + 1 + 1, "edges are calls of their own");
        assert_eq!(s.cipher_units, 8 + (2 + 2) + 3 + 1);
        assert_eq!((s.total.count(), s.queue.count(), s.cipher.count()), (asked, 4, 4));
        assert!(s.store.count() >= 5 && s.total.sum() >= s.store.sum() + s.cipher.sum());
    }
}

#[test]
fn failed_requests_count_as_errors_only() {
    let device = Device::new(
        &[segment(UNIT)],
        &key(),
        Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + 4096])),
        Access { read_only: true, allow_discards: false },
    );
    let device = Arc::new(device.unwrap());
    let ask = Ask::Write { offset: 0, data: vec![1; 512], durable: false };
    assert!(scripted::run(&device, IoMode::Auto, 1, vec![ask]).remove(0).is_err());
    let s = device.stats().snapshot();
    assert_eq!((s.errors, s.writes, s.bytes_written, s.inline, s.cipher_calls), (1, 0, 0, 0, 0));
}
