//! Counters: the bytes that are stored for those that clients write.

use crate::support::{formatted, hash, memory, open_options};
use inlock_engine::{BackingStore, Errno};
use inlock_integrity::{FormatOptions, IntegrityDevice, IntegrityStore, Mode, Stores};
use inlock_testing::{Call, ScriptedStore, Verdict};
use std::sync::{Arc, Mutex};

/// Returns the bytes stored for each byte of sequential writes of 128 KiB, a flush after each MiB.
fn sequential(mode: Mode, hash_name: &str, block_len: usize) -> f64 {
    let format = FormatOptions { internal_hash: Some(hash(hash_name)), block_len, ..FormatOptions::default() };
    let store = memory(formatted(&format, 64 << 20, None).0);
    let device = IntegrityDevice::open(Stores::interleaved(store), open_options(mode, &format)).unwrap();
    for chunk in 0..256u64 {
        device.write(chunk * 256, &vec![chunk as u8; 128 << 10], &[]).unwrap();
        if chunk % 8 == 7 {
            device.flush().unwrap();
        }
    }
    device.close().unwrap();
    let metrics = device.metrics();
    assert_eq!(metrics.client_bytes, 32 << 20);
    metrics.stored_bytes as f64 / metrics.client_bytes as f64
}

#[test]
fn sequential_writes_are_stored_little_more_than_the_format_demands() {
    for (mode, hash_name, block_len, most) in [
        (Mode::Journal, "crc32c", 4096, 2.2),
        (Mode::Journal, "hmac-sha256", 4096, 2.2),
        (Mode::Bitmap, "crc32c", 4096, 1.1),
        (Mode::Direct, "crc32c", 4096, 1.1),
        (Mode::Journal, "crc32c", 512, 2.2),
    ] {
        let factor = sequential(mode, hash_name, block_len);
        println!("{mode:?}, {hash_name}, blocks of {block_len} bytes: {factor:.3} times");
        assert!(factor <= most, "{mode:?} {hash_name} {block_len}: {factor}");
        assert!(factor >= if mode == Mode::Journal { 2.0 } else { 1.0 }, "{mode:?} {hash_name} {block_len}: {factor}");
    }
}

/// Blocks whose tags share a shard of the cache, more than it holds: changed pieces are written to make room.
#[test]
fn evicted_tags_are_counted() {
    const BLOCKS: u64 = 6 * 16;
    let format = FormatOptions { tag_size: Some(64), internal_hash: Some(hash("sha512")), ..FormatOptions::default() };
    let (data, meta) = formatted(&format, 192 << 20, Some(32 << 20));
    let stores = Stores::separate(memory(data), memory(meta.unwrap()));
    let device = IntegrityDevice::open(stores, open_options(Mode::Direct, &format)).unwrap();
    let before = device.metrics().stored_bytes;
    for n in 0..BLOCKS {
        // A piece of 4096 bytes has 64 tags; 16 pieces side by side, and every 1024th piece, share a shard.
        let piece = n / 16 * 1024 + n % 16;
        device.write(piece * 64, &[1; 512], &[]).unwrap();
    }
    device.flush().unwrap();
    assert_eq!(device.metrics().stored_bytes - before, BLOCKS * (512 + 4096));
}

#[test]
fn changed_tags_side_by_side_are_flushed_in_one_write() {
    let format = FormatOptions { tag_size: Some(64), internal_hash: Some(hash("sha512")), ..FormatOptions::default() };
    let (data, meta) = formatted(&format, 4 << 20, Some(2 << 20));
    let lens = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&lens);
    let meta = Arc::new(ScriptedStore::new(memory(meta.unwrap()), move |call| {
        if let Call::Write { data, .. } = call {
            recorded.lock().unwrap().push(data.len());
        }
        Verdict::Pass
    }));
    let data = memory(data);
    let open = || {
        let stores = Stores::separate(data.clone(), meta.clone());
        IntegrityDevice::open(stores, open_options(Mode::Direct, &format)).unwrap()
    };
    let device = open();
    // A piece of 4096 bytes has 64 tags. Pieces 3, 4, 5 and 7; and 14 to 17, of which the last two have another lock.
    let pieces = [3, 4, 5, 7, 14, 15, 16, 17];
    for piece in pieces {
        device.write(piece * 64, &[piece as u8; 512], &[]).unwrap();
    }
    device.flush().unwrap();
    assert_eq!(*lens.lock().unwrap(), [3 * 4096, 4096, 2 * 4096, 2 * 4096]);
    device.flush().unwrap();
    assert_eq!(lens.lock().unwrap().len(), 4, "nothing is written twice");
    drop(device);
    let device = open();
    for piece in pieces {
        let mut block = [0; 512];
        device.read(piece * 64, &mut block, &mut []).unwrap();
        assert_eq!(block, [piece as u8; 512]);
    }
}

/// Opens a volume of 80 MiB whose blocks were never written: none matches its tag.
fn unwritten() -> Arc<IntegrityDevice> {
    let format = FormatOptions { internal_hash: Some(hash("crc32c")), block_len: 4096, ..FormatOptions::default() };
    let store = memory(formatted(&format, 80 << 20, None).0);
    Arc::new(IntegrityDevice::open(Stores::interleaved(store), open_options(Mode::Direct, &format)).unwrap())
}

#[test]
fn first_mismatch_of_each_region_is_reported_once_and_all_are_counted() {
    let device = unwritten();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&seen);
    device.observe_mismatches(move |mismatch| events.lock().unwrap().push((mismatch.sector, mismatch.is_last)));
    let read = |sector| device.read(sector, &mut [0; 4096], &mut []).unwrap_err();
    for sector in [16, 8, 16, 2047 / 8 * 8, 2048] {
        assert_eq!(read(sector).errno(), Errno::ILSEQ);
    }
    assert_eq!(*seen.lock().unwrap(), [(16, false), (2048, false)]);
    assert_eq!((device.metrics().mismatches, device.mismatched_sectors()), (5, vec![16, 2048]));
    // No more than 64 regions are reported.
    (2..70).for_each(|region| drop(read(region * 2048 + 8)));
    let seen = seen.lock().unwrap();
    assert_eq!((seen.len(), seen[62], seen[63]), (64, (62 * 2048 + 8, false), (63 * 2048 + 8, true)));
    assert_eq!(device.metrics().mismatches, 5 + 68);
}

#[test]
fn mismatch_in_a_request_of_a_store_is_counted_once() {
    let device = unwritten();
    let store = IntegrityStore::new(Arc::clone(&device)).unwrap();
    store.write_at(&[7; 3 * 4096], 0).unwrap();
    let mut data = [0; 5 * 4096];
    assert_eq!(store.read_at(&mut data, 0), Ok(3 * 4096));
    assert_eq!(device.metrics().mismatches, 0, "the caller has not asked for a bad block yet");
    assert_eq!(store.read_at(&mut data[3 * 4096..], 3 * 4096), Err(Errno::ILSEQ));
    assert_eq!((device.metrics().mismatches, device.mismatched_sectors()), (2, vec![24]));
    // A block that is completed is read once.
    assert_eq!(store.write_at(&[1; 10], 5 * 4096 + 1), Err(Errno::ILSEQ));
    assert_eq!(device.metrics().mismatches, 3);
}
