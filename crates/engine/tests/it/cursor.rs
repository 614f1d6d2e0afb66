//! The device as `Read`, `Write` and `Seek`: positions, the end, and a FAT file system on it.

use crate::support::{DATA_OFFSET, Random, device, independent_plaintext};
use inlock_engine::store::BackingStore;
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, BlockingDevice, Device, DeviceCursor};
use std::io::{Cursor, ErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

const LEN: usize = 64 << 10;

fn cursor(len: usize) -> (Arc<MemoryStore>, DeviceCursor) {
    let store = Arc::new(MemoryStore::new(vec![0; DATA_OFFSET + len]));
    let device = device(Arc::clone(&store) as Arc<dyn BackingStore>, 4096);
    (store, BlockingDevice::new(device).cursor())
}

/// A device's cursor behaves as a cursor of the standard library on as many bytes.
#[test]
fn cursor_acts_as_the_standard_librarys() {
    let (store, mut ours) = cursor(LEN);
    let mut bytes = independent_plaintext(&store.contents(), 4096);
    let mut theirs = Cursor::new(&mut bytes[..]);
    let mut random = Random::new(11);
    for step in 0..2000 {
        // Lengths of bytes, of units and of more than the device has, at any position.
        let len = [1, 100, 4096, 10_000][random.below(4) as usize].min(1 + random.below(10_000)) as usize;
        match random.below(8) {
            0..=2 => {
                let (mut got, mut wanted) = (vec![0; len], vec![0; len]);
                assert_eq!(ours.read(&mut got).unwrap(), theirs.read(&mut wanted).unwrap(), "step {step}");
                assert_eq!(got, wanted, "step {step}");
            }
            3..=5 => {
                let data = random.bytes(len);
                match theirs.write(&data).unwrap() {
                    0 => assert_eq!(ours.write(&data).unwrap_err().kind(), ErrorKind::StorageFull, "step {step}"),
                    written => assert_eq!(ours.write(&data).unwrap(), written, "step {step}"),
                }
            }
            _ => {
                let distance = random.below(3 * LEN as u64) as i64 - LEN as i64;
                let to = match random.below(3) {
                    0 => SeekFrom::Start(random.below(LEN as u64 + 5000)),
                    1 => SeekFrom::End(distance - LEN as i64 / 2),
                    _ => SeekFrom::Current(distance),
                };
                let (got, wanted) = (ours.seek(to), theirs.seek(to));
                assert_eq!(got.as_ref().ok(), wanted.as_ref().ok(), "step {step}: {to:?}");
                assert_eq!(got.map_err(|e| e.kind()).err(), wanted.map_err(|e| e.kind()).err(), "step {step}: {to:?}");
            }
        }
        assert_eq!(ours.stream_position().unwrap(), theirs.stream_position().unwrap(), "step {step}");
    }
    ours.flush().unwrap();
    assert_eq!(ours.device().device().stats().snapshot().flushes, 1);
    assert!(independent_plaintext(&store.contents(), 4096) == bytes);
}

#[test]
fn writing_beyond_the_end_fails_after_the_bytes_that_fit() {
    let (_, mut cursor) = cursor(LEN);
    assert_eq!(cursor.seek(SeekFrom::End(-10)).unwrap(), LEN as u64 - 10);
    assert_eq!(cursor.write_all(&[7; 11]).unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(cursor.stream_position().unwrap(), LEN as u64);
    assert_eq!(cursor.write(&[]).unwrap(), 0);
    cursor.seek(SeekFrom::Current(-11)).unwrap();
    let mut read = Vec::new();
    assert_eq!(cursor.read_to_end(&mut read).unwrap(), 11);
    assert_eq!(read, [&[read[0]][..], &[7; 10]].concat());
    cursor.seek(SeekFrom::Start(u64::MAX)).unwrap();
    assert_eq!((cursor.read(&mut [0; 9]).unwrap(), cursor.seek(SeekFrom::Current(1)).is_err()), (0, true));
    assert_eq!(cursor.read_exact(&mut [0]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn clones_have_their_own_positions() {
    let (_, mut first) = cursor(LEN);
    first.seek(SeekFrom::Start(5)).unwrap();
    let mut second = first.clone();
    second.write_all(b"abc").unwrap();
    let mut read = [0; 3];
    first.read_exact(&mut read).unwrap();
    assert_eq!((&read, first.stream_position().unwrap()), (b"abc", second.stream_position().unwrap()));
}

#[test]
fn errors_of_the_device_keep_their_kind() {
    let store = Arc::new(MemoryStore::new(vec![0; LEN]));
    let read_only = Access { read_only: true, ..Access::default() };
    let device = Arc::new(Device::raw(store, read_only));
    let mut cursor = BlockingDevice::new(device).cursor();
    assert_eq!(cursor.write(&[1]).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!((cursor.stream_position().unwrap(), cursor.read(&mut [0; 2]).unwrap()), (0, 2));
}

/// A file system in a crate that knows nothing of us: made, filled and read again on an encrypted store.
#[test]
fn fat_file_system_survives_reopening() {
    const NAMES: [&str; 3] = ["a long name of a file.txt", "SHORT.BIN", "empty"];
    let len = 8 << 20;
    let (store, mut disk) = cursor(len);
    let label = *b"INLOCK TEST";
    fatfs::format_volume(&mut disk, fatfs::FormatVolumeOptions::new().volume_label(label)).unwrap();
    let contents = [Random::new(3).bytes(300_001), b"eleven char".to_vec(), Vec::new()];
    {
        disk.rewind().unwrap();
        let system = fatfs::FileSystem::new(&mut disk, fatfs::FsOptions::new()).unwrap();
        {
            let directory = system.root_dir().create_dir("directory").unwrap();
            for (name, content) in NAMES.iter().zip(&contents) {
                directory.create_file(name).unwrap().write_all(content).unwrap();
            }
        }
        system.unmount().unwrap();
    }
    disk.flush().unwrap();
    // Another device on the same bytes.
    let image = store.contents();
    let reopened = device(Arc::new(MemoryStore::new(image.clone())) as Arc<dyn BackingStore>, 4096);
    let system = fatfs::FileSystem::new(BlockingDevice::new(reopened).cursor(), fatfs::FsOptions::new()).unwrap();
    assert_eq!(system.volume_label_as_bytes(), label.trim_ascii_end());
    let directory = system.root_dir().open_dir("directory").unwrap();
    for (name, content) in NAMES.iter().zip(&contents) {
        let mut read = Vec::new();
        directory.open_file(name).unwrap().read_to_end(&mut read).unwrap();
        assert!(read == *content, "{name}");
    }
    // The store has ciphertext, and an implementation that is not ours finds the same file system in it.
    let has = |bytes: &[u8], wanted: &[u8]| bytes.windows(wanted.len()).any(|window| window == wanted);
    assert!(!has(&image, b"eleven char") && !has(&image, b"INLOCK TEST"));
    let plain = independent_plaintext(&image, 4096);
    assert!(has(&plain, b"eleven char") && has(&plain, b"INLOCK TEST"));
    let theirs = fatfs::FileSystem::new(Cursor::new(plain), fatfs::FsOptions::new()).unwrap();
    assert_eq!(theirs.root_dir().iter().count(), 1);
    theirs.stats().unwrap();
}
