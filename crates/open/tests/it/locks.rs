//! What is locked, and for how long.

use crate::export::Export;
use crate::{Image, PASSPHRASE, kind, opened, silent};
use inlock_open::device::{Device, OpenMode};
use inlock_open::header::Header;
use inlock_open::host::{Context, Silent};
use inlock_open::lock::{self, Mode};
use inlock_open::range::Range;
use inlock_open::secret::Ask;
use inlock_open::settings::Settings;
use inlock_open::source::{HeaderOptions, KeyOptions, Luks, VolumeType};
use inlock_open::table::TableSource;
use inlock_open::{ErrorKind, KeySource, OpenOptions, run_dir};
use inlock_testing::{Call, Verdict};
use inlock_volume::{HeaderDevice, HeaderPolicy};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

/// Lock of key derivations, shared with cryptsetup.
const DERIVATIONS: &str = "/run/cryptsetup/LN_memory-hard-access";
/// Longest binary header and metadata of the image; keyslots follow.
const METADATA: u64 = 32 << 10;

fn is_locked(file: &Path) -> bool {
    File::open(file).is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_err())
}

/// Returns the lock files that this name of a lock may have.
fn lock_files(name: &str) -> Vec<PathBuf> {
    run_dir::candidates().map(|dir| dir.join("locks").join(name)).collect()
}

/// A read of the header, with the locks at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    of_keyslot: bool,
    is_header_locked: bool,
    is_derivation_locked: bool,
}

/// A LUKS2 volume on an export that looks at the locks whenever it is read.
struct Watched {
    export: Export,
    reads: Arc<Mutex<Vec<Read>>>,
}

impl Watched {
    fn new() -> Self {
        let reads: Arc<Mutex<Vec<Read>>> = Arc::default();
        let files: Arc<OnceLock<Vec<PathBuf>>> = Arc::default();
        let bytes = std::fs::read(Image::new().path()).expect("an image");
        let export = Export::new(bytes, {
            let (reads, files) = (Arc::clone(&reads), Arc::clone(&files));
            move |call| {
                if let (Call::Read { offset, .. }, Some(files)) = (call, files.get()) {
                    reads.lock().expect("no panic").push(Read {
                        of_keyslot: offset >= METADATA,
                        is_header_locked: files.iter().any(|file| is_locked(file)),
                        is_derivation_locked: is_locked(Path::new(DERIVATIONS)),
                    });
                }
                Verdict::Pass
            }
        });
        let device = Device::open(&silent(), &export.uri(), OpenMode::Read).expect("the export");
        files.set(lock_files(&format!("{}.header", device.identity()))).expect("set once");
        Self { export, reads }
    }

    /// Runs this and returns its result and the reads meanwhile. Each must be under the lock of the header.
    fn reads_of<T>(&self, what: &str, run: impl FnOnce() -> T) -> (T, Vec<Read>) {
        self.reads.lock().expect("no panic").clear();
        let result = run();
        let reads = std::mem::take(&mut *self.reads.lock().expect("no panic"));
        assert!(!reads.is_empty() && reads.iter().all(|read| read.is_header_locked), "{what}: {reads:?}");
        (result, reads)
    }
}

/// Another program may write the header between two reads.
#[test]
fn header_and_keyslots_are_read_under_the_lock_of_the_header() {
    let watched = Watched::new();
    let mut settings = Settings::default();
    settings.serialize_derivations = true;
    for (context, is_serial) in [(silent(), false), (Context::new(Silent, settings), true)] {
        let (image, policy) = (watched.export.uri(), HeaderPolicy::default());
        let options = HeaderOptions { image: image.clone(), header: None, luks: Luks::Any, policy: policy.clone() };
        let load = || Header::load(&context, &options, false).expect("a header");
        let (mut header, _) = watched.reads_of("load", load);
        let key = KeyOptions::new(KeySource::bytes(PASSPHRASE));
        let ask = Ask { context: &context, device: &image, prompt: None, verify: false };
        let unlock = || drop(header.unlock(&key, &policy, ask).expect("the key"));
        let open = || drop(header.open_keyslot(&key, ask).expect("the keyslot"));
        let derivations: [(&str, &dyn Fn()); 2] = [("unlock", &unlock), ("open a keyslot", &open)];
        for (what, derive) in derivations {
            let ((), reads) = watched.reads_of(what, derive);
            assert!(reads.iter().any(|read| read.of_keyslot), "{what}");
            // Another process may hold it at any time.
            assert!(!is_serial || reads.iter().all(|read| read.is_derivation_locked), "{what}: {reads:?}");
        }
        let edit = || header.edit(&[], |_, device| Ok(device.read_exact_at(&mut [0; 512], 0)?)).expect("it reads");
        watched.reads_of("edit", edit);
    }
}

#[test]
fn export_and_parts_of_it_have_one_writer() {
    let export = Export::new(vec![0; 1 << 20], |_| Verdict::Pass);
    let raw = OpenOptions::new(export.uri(), VolumeType::Raw, KeySource::bytes(""));
    let writer = opened(&silent(), &raw, true).expect("it opens");
    assert_eq!(kind(opened(&silent(), &raw, true)), ErrorKind::InUse);
    assert_eq!(kind(opened(&silent(), &raw, false)), ErrorKind::InUse);
    drop(writer);
    let device = Device::open(&silent(), &export.uri(), OpenMode::Header).expect("the export");
    let part = |offset, len, mode| lock::part(&device, Range { offset, len: Some(len) }, mode);
    let one = part(0, 4096, Mode::Exclusive).expect("the first part");
    let other = part(4096, 8192, Mode::Exclusive).expect("the next one, which is longer");
    for mode in [Mode::Exclusive, Mode::Shared] {
        assert_eq!(part(4095, 4096, mode).expect_err("it overlaps").kind(), ErrorKind::Overlaps);
        assert_eq!(part(12287, 1, mode).expect_err("it overlaps").kind(), ErrorKind::Overlaps);
    }
    drop(one);
    assert_eq!(kind(opened(&silent(), &raw, true)), ErrorKind::InUse, "of the other part");
    drop(other);
    opened(&silent(), &raw, true).expect("all parts are free");
}

/// A loop device, detached when dropped.
pub(crate) struct Loop(pub(crate) PathBuf);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// Returns a loop device over a file. `None`: none can be made here, which it prints.
pub(crate) fn loop_over(path: &Path) -> Option<Loop> {
    let made = Command::new("losetup").args(["--find", "--show"]).arg(path).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        println!("SKIPPED: no loop device can be made here");
        return None;
    };
    Some(Loop(String::from_utf8(made.stdout).expect("a path").trim().into()))
}

/// Returns one over a file of 1 MiB.
pub(crate) fn loop_device() -> Option<(tempfile::NamedTempFile, Loop)> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(1 << 20).expect("room");
    loop_over(file.path()).map(|node| (file, node))
}

#[test]
fn block_device_in_use_is_opened_for_its_header_alone() {
    let Some((_file, node)) = loop_device() else { return };
    let open = |mode| Device::open(&silent(), &node.0, mode).map(drop);
    let flag = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let user = File::options().read(true).custom_flags(flag).open(&node.0).expect("it is free");
    for mode in [OpenMode::Read, OpenMode::Header] {
        open(mode).expect("another may use it");
    }
    for mode in [OpenMode::Write, OpenMode::Create] {
        open(mode).expect_err("it is in use");
    }
    drop(user);
    open(OpenMode::Write).expect("it is free");
}

/// On file systems without locks of ranges, only a name excludes those who name the file.
#[test]
fn loop_device_is_locked_under_the_name_of_its_file() {
    let Some((file, node)) = loop_device() else { return };
    let open = |path: &Path| Device::open(&silent(), path, OpenMode::Write).expect("a device");
    let (device, backing) = (open(&node.0), open(file.path()));
    let is_locked = |device: &Device| lock_files(&device.identity()).iter().any(|file| is_locked(file));
    let held = lock::storage(&device, Mode::Exclusive).expect("a lock");
    assert!(is_locked(&device) && is_locked(&backing));
    drop(held);
    assert!(!is_locked(&device) && !is_locked(&backing));
}

#[test]
fn table_with_an_encrypted_line_locks_the_volume_on_its_device() {
    let image = Image::new();
    let export = Export::new(std::fs::read(image.path()).expect("an image"), |_| Verdict::Pass);
    let (uri, key) = (export.uri(), "01".repeat(64));
    let crypt = format!("0 8 crypt aes-xts-plain64 {key} 0 {} 32768\n", uri.display());
    let linear = format!("8 8 linear {} 32776\n", uri.display());
    let open = |text: &str| {
        let file = image.0.path().join("table");
        std::fs::write(&file, text).expect("a file");
        let table = TableSource::parse(file.as_os_str()).expect("a table");
        let options = OpenOptions::new(uri.clone(), VolumeType::Table(table), KeySource::bytes(""));
        opened(&silent(), &options, true).expect("it opens")
    };
    // A copy of the volume, of which a server may make the export.
    let copy = OpenOptions::luks(image.path(), KeySource::bytes(PASSPHRASE));
    let table = open(&(crypt + &linear));
    assert_eq!(kind(opened(&silent(), &copy, true)), ErrorKind::OpenElsewhere);
    drop(table);
    let table = open(&linear.replacen('8', "0", 1));
    opened(&silent(), &copy, true).expect("a table without keys leaves the volume to others");
    drop(table);
}
