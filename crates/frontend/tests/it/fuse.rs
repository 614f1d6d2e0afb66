//! The volume as a file, through the kernel, as programs use it.

use crate::support::{Faults, FaultyStore, MIB, READ_WRITE_DISCARD, device, memory, pattern, store_len};
use inlock_engine::store::memory::MemoryStore;
use inlock_engine::{Access, BlockingDevice, Device};
use inlock_frontend::fuse::loop_device::{LoopDevice, LoopError, LoopOptions};
use inlock_frontend::fuse::mount::{FuseError, FuseMount, FuseOptions};
use inlock_testing::{Call, Gate, ScriptedStore, Verdict};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Shown {
    mount: FuseMount,
    dir: tempfile::TempDir,
}

impl Shown {
    /// Mounts a volume. `None`: FUSE mounts are not possible here, which it prints.
    fn new(device: &Arc<Device>) -> Option<Self> {
        let dir = tempfile::tempdir().expect("a directory for the file");
        let mut options = FuseOptions::default();
        (options.name, options.threads) = ("inlock:test".into(), 4);
        match FuseMount::start(device, &dir.path().join("volume"), &options) {
            Ok(mount) => Some(Self { mount, dir }),
            Err(FuseError::NoFuse | FuseError::NotPermitted(_)) => {
                println!("SKIPPED: nothing can be mounted with FUSE here");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("volume")
    }

    fn open(&self, flags: OFlags) -> std::io::Result<File> {
        let write = !self.path().metadata()?.permissions().readonly() || flags.contains(OFlags::RDWR);
        OpenOptions::new().read(true).write(write).custom_flags(flags.bits().cast_signed()).open(self.path())
    }

    fn stop(&mut self) -> Result<(), FuseError> {
        self.mount.stop()
    }
}

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

fn plaintext(device: &Arc<Device>) -> Vec<u8> {
    let mut bytes = vec![0; device.len() as usize];
    BlockingDevice::new(Arc::clone(device)).read_at(&mut bytes, 0).expect("memory does not fail");
    bytes
}

#[test]
fn file_has_bytes_of_volume() {
    let device = device(memory(4 * MIB), 4096, READ_WRITE_DISCARD);
    let Some(mut shown) = Shown::new(&device) else { return };
    let metadata = shown.path().metadata().unwrap();
    assert_eq!((metadata.len(), metadata.blocks(), metadata.blksize()), (4 * MIB, 4 * MIB / 512, 4096));
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    let mut model = plaintext(&device);
    let file = shown.open(OFlags::empty()).unwrap();
    let mut state = 1u64;
    let mut next = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for round in 0..120 {
        let offset = next(4 * MIB);
        let len = (1 + next(if round % 10 == 0 { 2 * MIB } else { 9000 })).min(4 * MIB - offset);
        let range = offset as usize..(offset + len) as usize;
        if next(2) == 0 {
            let bytes = pattern(round, len);
            file.write_all_at(&bytes, offset).unwrap();
            model[range].copy_from_slice(&bytes);
        } else {
            let mut bytes = vec![0; len as usize];
            file.read_exact_at(&mut bytes, offset).unwrap();
            assert!(bytes == model[range], "round {round}: {len} bytes at {offset}");
        }
    }
    assert!(plaintext(&device) == model, "what was written is in the device without a sync");
    drop(file);
    shown.stop().unwrap();
    assert!(!shown.path().exists(), "the file under the mount stays");
}

#[test]
fn several_programs_read_and_write_at_once() {
    let device = device(memory(8 * MIB), 512, READ_WRITE_DISCARD);
    let Some(shown) = Shown::new(&device) else { return };
    std::thread::scope(|scope| {
        for part in 0..8u64 {
            let shown = &shown;
            scope.spawn(move || {
                let flags = if part % 2 == 0 { OFlags::empty() } else { OFlags::DSYNC };
                let file = shown.open(flags).unwrap();
                for round in 0..6 {
                    let bytes = pattern(part * 100 + round, MIB);
                    file.write_all_at(&bytes, part * MIB).unwrap();
                    let mut back = vec![0; MIB as usize];
                    file.read_exact_at(&mut back, part * MIB).unwrap();
                    assert!(back == bytes, "part {part}, round {round}");
                }
            });
        }
    });
    let whole = plaintext(&device);
    for part in 0..8u64 {
        let place = (part * MIB) as usize..((part + 1) * MIB) as usize;
        assert!(whole[place] == pattern(part * 100 + 5, MIB), "part {part}");
    }
}

#[test]
fn each_thread_reads_at_the_same_time() {
    let gate = Arc::new(Gate::default());
    let held = Arc::clone(&gate);
    let store = ScriptedStore::new(Arc::new(MemoryStore::new(vec![0; store_len(MIB) as usize])), move |call| {
        if let Call::Read { .. } = call {
            held.pass();
        }
        Verdict::Pass
    });
    // A data unit may be longer than a page of the kernel, and a block of the file is.
    let device = device(Arc::new(store), 65536, READ_WRITE_DISCARD);
    let Some(shown) = Shown::new(&device) else { return };
    assert_eq!(shown.path().metadata().unwrap().blksize(), 65536);
    let file = shown.open(OFlags::DIRECT).unwrap();
    gate.close();
    std::thread::scope(|scope| {
        // As many as the mount has threads.
        let read = |at: u64| file.read_at(&mut vec![0; 512], at * 65536).map_err(|error| error.kind());
        let readers: Vec<_> = (0..4).map(|at| scope.spawn(move || read(at))).collect();
        let waiting = || gate.waiting() == 4 || readers.iter().any(|reader| reader.is_finished());
        inlock_tests::wait::eventually("all reads reach the store, or one fails", waiting, |met| *met);
        gate.open();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), Ok(512));
        }
    });
}

#[test]
fn file_ends_with_volume_and_keeps_length() {
    let device = device(memory(MIB), 512, READ_WRITE_DISCARD);
    let Some(shown) = Shown::new(&device) else { return };
    let file = shown.open(OFlags::empty()).unwrap();
    assert_eq!(file.write_at(&[7; 1000], MIB - 300).unwrap(), 300);
    assert_eq!(errno(file.write_at(&[7], MIB)), Some(Errno::NOSPC));
    assert_eq!(errno(file.write_at(&[7], 1 << 62)), Some(Errno::NOSPC));
    let mut back = [0; 1000];
    assert_eq!(file.read_at(&mut back, MIB - 300).unwrap(), 300);
    assert_eq!(back[..300], [7; 300]);
    assert_eq!(file.read_at(&mut back, MIB).unwrap(), 0);
    assert_eq!(file.read_at(&mut back, i64::MAX as u64 - 5000).unwrap(), 0);
    file.set_len(MIB).unwrap();
    for len in [0, MIB - 512, MIB + 512, 1 << 50] {
        assert_eq!(errno(file.set_len(len)), Some(Errno::PERM), "{len}");
    }
    assert!(OpenOptions::new().write(true).truncate(true).open(shown.path()).is_err());
    assert_eq!(errno(file.set_permissions(std::fs::Permissions::from_mode(0o666))), Some(Errno::PERM));
    assert!(std::fs::remove_file(shown.path()).is_err());
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(file.metadata().unwrap().len(), MIB);
}

#[test]
fn zeroes_are_encrypted_and_holes_cannot_be_punched() {
    let store = FaultyStore::new(MIB);
    let device = device(store.clone(), 4096, READ_WRITE_DISCARD);
    let Some(shown) = Shown::new(&device) else { return };
    let file = shown.open(OFlags::empty()).unwrap();
    let mut model = pattern(1, MIB);
    file.write_all_at(&model, 0).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    fallocate(&file, FallocateFlags::ZERO_RANGE, 5000, 300_000).unwrap();
    fallocate(&file, FallocateFlags::ZERO_RANGE | keep, MIB - 100, 10_000).unwrap();
    model[5000..305_000].fill(0);
    model[MIB as usize - 100..].fill(0);
    let mut back = vec![0; MIB as usize];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == model);
    assert!(plaintext(&device) == model);
    let stored = store.inner.contents();
    assert!(!stored[store_len(8192) as usize..].windows(64).any(|w| w == [0; 64]), "a hole in the store");
    for mode in [FallocateFlags::PUNCH_HOLE | keep, FallocateFlags::empty(), keep, FallocateFlags::COLLAPSE_RANGE] {
        assert_eq!(fallocate(&file, mode, 0, 65536), Err(Errno::OPNOTSUPP), "{mode:?}");
    }
    assert_eq!(fallocate(&file, FallocateFlags::ZERO_RANGE, MIB - 100, 101), Err(Errno::NOSPC));
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back == model, "what was refused changes nothing");
}

#[test]
fn fsync_reaches_store_and_failed_one_is_not_forgotten() {
    let store = FaultyStore::new(MIB);
    let device = device(store.clone(), 512, READ_WRITE_DISCARD);
    let Some(shown) = Shown::new(&device) else { return };
    let file = shown.open(OFlags::empty()).unwrap();
    let syncs = || store.syncs.load(Ordering::SeqCst);
    file.write_all_at(&[1; 70_000], 3).unwrap();
    assert_eq!(syncs(), 0);
    file.sync_data().unwrap();
    file.sync_all().unwrap();
    assert_eq!(syncs(), 2);
    assert_eq!(store.synced_writes.load(Ordering::SeqCst), store.writes.load(Ordering::SeqCst));
    for (flags, what) in [(OFlags::DSYNC, "O_DSYNC"), (OFlags::DSYNC | OFlags::DIRECT, "O_DSYNC with O_DIRECT")] {
        let durable = shown.open(flags).unwrap();
        let before = syncs();
        durable.write_all_at(&[2; 4096], 8192).unwrap();
        assert!(syncs() > before, "{what}");
        assert_eq!(store.synced_writes.load(Ordering::SeqCst), store.writes.load(Ordering::SeqCst), "{what}");
    }
    store.set(Faults { bad_sync: Some(inlock_engine::Errno::IO), ..Faults::default() });
    assert_eq!(errno(file.sync_data()), Some(Errno::IO));
    assert_eq!(errno(file.sync_data()), Some(Errno::IO), "a sync after a failed one must not succeed");
}

#[test]
fn store_error_reaches_program() {
    let store = FaultyStore::new(MIB);
    let device = device(store.clone(), 4096, READ_WRITE_DISCARD);
    let Some(shown) = Shown::new(&device) else { return };
    let file = shown.open(OFlags::DIRECT).unwrap();
    let bad = 8192..12288;
    let faults = || (bad.clone(), inlock_engine::Errno::IO);
    store.set(Faults { bad_reads: Some(faults()), bad_writes: Some(faults()), ..Faults::default() });
    let page = |offset: u64| {
        let mut bytes = vec![0; 8192];
        let start = bytes.as_ptr().align_offset(4096);
        file.read_at(&mut bytes[start..start + 4096], offset)
    };
    assert_eq!(page(4096).unwrap(), 4096);
    assert_eq!(errno(page(8192)), Some(Errno::IO));
    assert_eq!(page(12288).unwrap(), 4096);
    let buffered = shown.open(OFlags::empty()).unwrap();
    assert_eq!(errno(buffered.write_at(&[1; 100], 8200)), Some(Errno::IO));
    buffered.write_all_at(&[1; 100], 12288).unwrap();
    store.set(Faults::default());
    assert_eq!(page(8192).unwrap(), 4096);
}

#[test]
fn read_only_volume_cannot_be_opened_for_writing() {
    let device = device(memory(MIB), 512, Access { read_only: true, allow_discards: false });
    let Some(mut shown) = Shown::new(&device) else { return };
    assert_eq!(shown.path().metadata().unwrap().permissions().mode() & 0o777, 0o400);
    assert_eq!(errno(shown.open(OFlags::RDWR)), Some(Errno::ROFS));
    let file = File::open(shown.path()).unwrap();
    file.read_exact_at(&mut [0; 5000], 77).unwrap();
    drop(file);
    shown.stop().unwrap();
}

#[test]
fn file_in_use_cannot_be_unmounted() {
    let store = FaultyStore::new(MIB);
    let device = device(store.clone(), 512, READ_WRITE_DISCARD);
    let Some(mut shown) = Shown::new(&device) else { return };
    let file = shown.open(OFlags::empty()).unwrap();
    assert!(matches!(shown.stop(), Err(FuseError::Busy(_))));
    file.write_all_at(b"still there", 5).unwrap();
    drop(file);
    let syncs = store.syncs.load(Ordering::SeqCst);
    shown.stop().unwrap();
    assert!(store.syncs.load(Ordering::SeqCst) > syncs, "taking it away makes everything durable");
    assert_eq!(&plaintext(&device)[5..16], b"still there");
}

#[test]
fn failed_mount_leaves_nothing() {
    let device = device(memory(MIB), 512, READ_WRITE_DISCARD);
    let dir = tempfile::tempdir().unwrap();
    let mut options = FuseOptions::default();
    options.threads = 1;
    let missing = dir.path().join("none/volume");
    assert!(matches!(FuseMount::start(&device, &missing, &options), Err(FuseError::Mount { .. } | FuseError::NoFuse)));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    // What was there before stays.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&missing, &link).unwrap();
    assert!(matches!(FuseMount::start(&device, &link, &options), Err(FuseError::Mount { .. } | FuseError::NoFuse)));
    assert!(link.is_symlink());
}

#[test]
fn loop_device_is_attached_until_its_last_user_has_gone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(MIB).unwrap();
    let path = file.path().canonicalize().unwrap();
    let mut options = LoopOptions::default();
    options.block = 4096;
    let mut device = match LoopDevice::attach(&path, &options) {
        Err(LoopError::NoLoop) if std::path::Path::new("/dev/loop-control").exists() => panic!("there is one"),
        Err(error) => return println!("SKIPPED: no loop device can be made here: {error}"),
        Ok(device) => device,
    };
    let name = device.node().file_name().unwrap().to_owned();
    let block =
        std::fs::read_to_string(std::path::Path::new("/sys/block").join(&name).join("queue/logical_block_size"));
    assert_eq!(block.unwrap().trim(), "4096");
    assert_eq!(LoopDevice::all_on(&path), [device.clone()]);
    let user = File::open(device.node()).unwrap();
    for _ in 0..2 {
        assert!(!device.detach().unwrap(), "it has a user");
    }
    assert!(device.is_attached());
    drop(user);
    inlock_tests::wait::eventually("the kernel detaches it", || device.is_attached(), |attached| !attached);
    assert!(device.detach().unwrap() && !device.is_direct() && LoopDevice::all_on(&path).is_empty());
    let mut device = LoopDevice::attach(&path, &options).unwrap();
    assert!(device.detach().unwrap());
}
