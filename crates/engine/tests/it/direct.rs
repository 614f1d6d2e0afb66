//! Files and block devices with direct I/O: callers of a blocking device need not align their memory.

use crate::support::with;
use crate::support::{Random, key, segment};
use inlock_cipher::Sector;
use inlock_engine::store::direct::DirectStore;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::store::{read_all, write_all, write_all_vectored};
use inlock_engine::{Access, BackingStore, BlockingDevice, Content, Device, Target};
use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// Largest block of a disk in bytes.
const BLOCK: usize = 4096;
/// In the encrypted part: more than goes in one piece. What follows is stored as it is.
const CRYPT: usize = (1 << 20) + 5 * BLOCK;
const LEN: usize = 2 * CRYPT;

/// Offsets of memory from the start of a page.
const PLACES: [usize; 6] = [0, 1, 8, 511, 512, 4095];

fn open_direct(path: &Path) -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)
}

/// Returns `len` bytes that begin `place` bytes after the start of a page.
fn memory(of: &mut Vec<u8>, place: usize, len: usize) -> &mut [u8] {
    of.resize(LEN + 2 * BLOCK, 0);
    let page = of.as_ptr().addr().wrapping_neg() % BLOCK;
    &mut of[page + place..][..len]
}

fn device(file: File) -> Arc<Device> {
    let store: Arc<dyn BackingStore> = Arc::new(FileStore::new(file, IoMode::Sync).unwrap());
    let (sectors, block) = ((CRYPT / 512) as u64, (BLOCK / 512) as u64);
    let crypt = with!(segment(BLOCK as u32); sectors: Some(sectors), data_offset: Sector(block));
    let start = Sector(sectors);
    let linear = with!(crypt; start: start, data_offset: Sector(sectors + block), cipher: None);
    let key = key();
    let lines = [
        Target { segment: &crypt, content: Content::Crypt(&key), store: 0 },
        Target { segment: &linear, content: Content::Linear, store: 0 },
    ];
    Arc::new(Device::stacked(&lines, vec![store], Access::default()).unwrap())
}

/// Compares unaligned reads and writes with a model and with a reader through the page cache.
fn agrees_with_a_model(path: &Path) {
    let direct = BlockingDevice::new(device(open_direct(path).unwrap()));
    let mut random = Random::new(5);
    let mut model = random.bytes(LEN);
    let mut bytes = Vec::new();
    for (round, place) in PLACES.into_iter().cycle().take(5 * PLACES.len()).enumerate() {
        let (offset, len) = match round {
            0 => (0, LEN),
            // Any range of what is encrypted, whole blocks of what is not.
            _ if round % 2 == 0 => {
                let (offset, len) = random.range(CRYPT as u64, BLOCK as u64);
                (offset as usize, len as usize)
            }
            _ => {
                let first = random.below((CRYPT / BLOCK) as u64) as usize;
                let count = 1 + random.below((CRYPT / BLOCK - first) as u64) as usize;
                (CRYPT + first * BLOCK, count * BLOCK)
            }
        };
        if round > 0 {
            model[offset..offset + len].copy_from_slice(&random.bytes(len));
        }
        let from = memory(&mut bytes, place, len);
        from.copy_from_slice(&model[offset..offset + len]);
        direct.write_at(from, offset as u64).unwrap();
        let into = memory(&mut bytes, PLACES[random.below(6) as usize], len);
        into.fill(0);
        direct.read_at(into, offset as u64).unwrap();
        assert!(*into == model[offset..offset + len], "round {round}: {len} bytes from {offset}, written from {place}");
    }
    for place in PLACES {
        let into = memory(&mut bytes, place, LEN);
        into.fill(0);
        direct.read_at(into, 0).unwrap();
        assert!(*into == model[..], "into memory {place} bytes behind a page");
    }
    let cached = BlockingDevice::new(device(File::options().read(true).write(true).open(path).unwrap()));
    let into = memory(&mut bytes, 0, LEN);
    cached.read_at(into, 0).unwrap();
    assert!(*into == model[..], "through the cache");
}

fn image() -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    image.as_file().set_len((LEN + BLOCK) as u64).unwrap();
    // A hole can be read into memory anywhere.
    image.as_file().write_all_at(&[1; BLOCK], 0).unwrap();
    image.as_file().sync_all().unwrap();
    image
}

/// Returns whether the file has direct I/O and refuses unaligned memory.
fn insists(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let mut reads = |place| open_direct(path)?.read_exact_at(memory(&mut bytes, place, BLOCK), 0);
    reads(0).is_ok() && reads(1).is_err()
}

/// Returns a file with direct I/O.
fn direct_image() -> Option<tempfile::NamedTempFile> {
    let image = image();
    if !insists(image.path()) {
        println!("SKIPPED: no direct I/O on the file system of temporary files, or none that asks where memory begins");
        return None;
    }
    Some(image)
}

#[test]
fn unaligned_memory_works_for_a_file_with_direct_io() {
    let Some(image) = direct_image() else { return };
    agrees_with_a_model(image.path());
}

fn direct_store(path: &Path) -> DirectStore {
    DirectStore::new(Arc::new(FileStore::new(open_direct(path).unwrap(), IoMode::Sync).unwrap()), BLOCK)
}

#[test]
fn direct_store_takes_any_bytes_from_any_memory() {
    let Some(image) = direct_image() else { return };
    let store = direct_store(image.path());
    assert_eq!((store.profile().memory_alignment, store.as_fd().is_some()), (1, false));
    let mut random = Random::new(6);
    let (mut model, mut bytes) = (random.bytes(LEN), Vec::new());
    write_all(&store, &model, 0).unwrap();
    for (round, place) in PLACES.into_iter().cycle().take(20 * PLACES.len()).enumerate() {
        let (offset, len) = random.range(LEN as u64, BLOCK as u64);
        let range = offset as usize..(offset + len) as usize;
        model[range.clone()].copy_from_slice(&random.bytes(len as usize));
        let from = memory(&mut bytes, place, len as usize);
        from.copy_from_slice(&model[range.clone()]);
        let cut = random.below(len + 1) as usize;
        let parts = [&from[..cut], &from[cut..]].map(IoSlice::new);
        let written = if round % 2 == 0 { store.write_vectored_at(&parts, offset).unwrap() } else { 0 };
        write_all(&store, &from[written..], offset + written as u64).unwrap();
        let into = memory(&mut bytes, PLACES[random.below(6) as usize], len as usize);
        into.fill(0);
        read_all(&store, into, offset).unwrap();
        assert!(*into == model[range], "round {round}: {len} bytes from {offset}, written from {place}");
    }
    store.sync().unwrap();
    let mut cached = vec![0; LEN];
    image.as_file().read_exact_at(&mut cached, 0).unwrap();
    assert!(cached == model, "through the cache");
}

/// Parts of whole blocks in aligned memory go to the device as they are, others pass through a buffer.
#[test]
fn direct_store_writes_aligned_parts_as_they_are() {
    let Some(image) = direct_image() else { return };
    let store = direct_store(image.path());
    let mut random = Random::new(9);
    let (mut model, mut bytes) = (vec![0; LEN], Vec::new());
    write_all(&store, &model, 0).unwrap();
    for round in 0..60 {
        let place = if round % 3 == 2 { 1 } else { 0 };
        let memory = memory(&mut bytes, place, 64 * BLOCK);
        memory.copy_from_slice(&random.bytes(64 * BLOCK));
        // Every second block, in memory that is not in order.
        let mut parts: Vec<_> = memory.chunks(BLOCK).step_by(2).rev().map(IoSlice::new).collect();
        if round % 5 == 4 {
            parts.insert(3, IoSlice::new(&[]));
        }
        let offset = random.below((LEN - 32 * BLOCK) as u64 / BLOCK as u64) as usize * BLOCK;
        let expected: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
        model[offset..offset + expected.len()].copy_from_slice(&expected);
        write_all_vectored(&store, &mut parts, offset as u64).unwrap();
        let mut found = vec![0; LEN];
        read_all(&store, &mut found, 0).unwrap();
        assert!(found == model, "round {round}");
    }
}

#[test]
fn parts_of_a_block_that_threads_write_with_direct_io_are_all_there() {
    const ROUNDS: u32 = 300;
    let Some(image) = direct_image() else { return };
    let store = direct_store(image.path());
    std::thread::scope(|scope| {
        for part in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let offset = part * BLOCK as u64 / 4;
                for round in 0..ROUNDS {
                    let mut found = [0; 4];
                    write_all(store, &round.to_le_bytes(), offset).unwrap();
                    read_all(store, &mut found, offset).unwrap();
                    assert_eq!(u32::from_le_bytes(found), round, "part {part} was overwritten");
                }
            });
        }
    });
}

#[test]
fn unaligned_memory_works_for_a_block_device_with_direct_io() {
    struct Loop(String);
    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").args(["--detach", &self.0]).status();
        }
    }
    let image = image();
    let made = Command::new("losetup").args(["--find", "--show"]).arg(image.path()).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        println!("SKIPPED: no loop device can be made here");
        return;
    };
    let device = Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned());
    assert!(insists(Path::new(&device.0)), "a block device asks where memory begins");
    agrees_with_a_model(Path::new(&device.0));
}
