//! Counters: the bytes that are stored for those that clients write.

use crate::support::{formatted, hash, memory, open_options};
use inlock_integrity::{FormatOptions, IntegrityDevice, Mode, Stores};

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
