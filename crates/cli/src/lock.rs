//! Two kinds of lock: on headers, shared with cryptsetup, and on whole devices, among Inlock's own processes.
//!
//! Header: `flock` on an image file itself; for a block device on `/run/cryptsetup/L_<major>:<minor>`, as libcryptsetup
//! does. Held while a header is read or written, no longer. Device: one writer, or any number of readers, for as long as a
//! volume is served or copied. That lock lies on the image itself ([`range`]), through loop devices too ([`backing`]),
//! and beside it in a file that is named after what the device is (docs/decisions/0003 and 0022).

mod range;

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::backing::{self, Extent};
use crate::device::{self, Device};
use crate::exit::Problem;
use crate::run_dir;
use range::{Attempt, RangeLock};

/// How long another program's work on a header is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long a program that is just ending may still hold its lock on a device.
const ENDING: Duration = Duration::from_millis(250);

/// Where libcryptsetup locks the headers of block devices.
const CRYPTSETUP_LOCKS: &str = "/run/cryptsetup";

/// Whether others may hold the lock too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Readers share.
    Shared,
    /// A writer is alone.
    Exclusive,
}

impl Mode {
    fn operation(self) -> FlockOperation {
        match self {
            Self::Shared => FlockOperation::NonBlockingLockShared,
            Self::Exclusive => FlockOperation::NonBlockingLockExclusive,
        }
    }
}

/// A lock, held until dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    /// `None`: there was nowhere to lock.
    held: Option<File>,
    /// The lock file that the last holder removes.
    own_file: Option<PathBuf>,
    /// The same lock where others look for it.
    beside: Option<Box<Lock>>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        let Some(file) = &self.held else { return };
        if let Some(path) = &self.own_file {
            // Alone: nobody else holds it, and whoever waits for it sees that it is gone and makes a new one.
            if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() && same_file(file, path) {
                let _ = std::fs::remove_file(path);
            }
        }
        // The open description may be shared with the device, which stays open.
        let _ = flock(file, FlockOperation::Unlock);
    }
}

/// Locks the header on `device` against cryptsetup and others, waiting briefly.
pub(crate) fn header(device: &Device, mode: Mode) -> anyhow::Result<Lock> {
    let locked = || Problem::HeaderLocked { path: device.path.clone() };
    if !device.is_block() {
        let file = device.share()?;
        take(&file, mode, PATIENCE)?.then_some(()).ok_or_else(locked)?;
        return Ok(Lock { held: Some(file), own_file: None, beside: None });
    }
    let (major, minor) = device.device_number();
    let dir = Path::new(CRYPTSETUP_LOCKS);
    // Without permission for the directory cryptsetup could not lock either: whoever can, is root.
    take_file(dir, &dir.join(format!("L_{major}:{minor}")), mode, PATIENCE)?.ok_or_else(|| locked().into())
}

/// The locks on a device, held until dropped.
#[derive(Debug)]
pub(crate) struct DeviceLock {
    _names: Vec<Lock>,
    _ranges: Vec<RangeLock>,
}

/// Takes the device for as long as the lock lives: alone to write, together with other readers to read. For an
/// exclusive lock the device is open for writing.
pub(crate) fn whole_device(device: &Device, mode: Mode) -> anyhow::Result<DeviceLock> {
    let in_use = || {
        let hint = match mode {
            Mode::Exclusive => "another inlock reads or writes it; end that one first",
            Mode::Shared => "another inlock writes to it; end that one first",
        };
        Problem::InUse { path: device.path.clone(), hint }
    };
    let below = backing::below(&device.metadata);
    let mut names = vec![device.identity()];
    // A name means all of a file, so what is a part of one has no other name.
    names.extend(below.iter().take_while(|extent| extent.range == backing::ALL).map(|extent| extent.identity.clone()));
    let dirs = lock_dirs();
    let mut held = Vec::with_capacity(names.len());
    for name in &names {
        held.push(take_everywhere(&dirs, name, mode)?.ok_or_else(in_use)?);
    }
    let own = own_description(device, mode).with_context(|| format!("cannot lock {}", device.path.display()))?;
    let below = below.iter().map_while(|extent| Some((open_below(extent, mode)?, extent.range)));
    let mut ranges = Vec::new();
    for (file, range) in std::iter::once((own, backing::ALL)).chain(below) {
        match range::take(file, range, mode, ENDING)? {
            Attempt::Taken(lock) => ranges.push(lock),
            Attempt::Busy => return Err(in_use().into()),
            Attempt::Unsupported => {}
        }
    }
    if mode == Mode::Exclusive && ranges.is_empty() && held.iter().all(|lock| lock.held.is_none()) {
        return Err(Problem::refused(
            "The image cannot be locked, and there is no directory for a lock that keeps a second writer away.",
            "set XDG_RUNTIME_DIR to a directory of your own",
        ));
    }
    Ok(DeviceLock { _names: held, _ranges: ranges })
}

/// Opens the device once more for its lock: the kernel may keep a description that a ring has open for a while after
/// the process has ended.
fn own_description(device: &Device, mode: Mode) -> io::Result<File> {
    if flock_locks_ranges(&device.file) {
        // There the lock of the header would be another owner's.
        return device.share();
    }
    let path = format!("/proc/self/fd/{}", device.file.as_raw_fd());
    let alone = mode == Mode::Exclusive;
    // A descriptor that was inherited may be all that this process may have of the file.
    OpenOptions::new().read(!alone).write(alone).open(path).or_else(|_| device.share())
}

/// Whether the file system carries out `flock` by locking all of a file's range at its server, as NFS and SMB do.
fn flock_locks_ranges(file: &File) -> bool {
    const MAGICS: [u32; 4] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42];
    // The type of `f_type` differs between architectures, its lowest 32 bits do not.
    #[allow(clippy::unnecessary_cast)]
    rustix::fs::fstatfs(file).is_ok_and(|system| MAGICS.contains(&(system.f_type as u32)))
}

/// Opens what lies below a device, to lock it. `None`: this process may not, or something else has its name by now.
fn open_below(extent: &Extent, mode: Mode) -> Option<File> {
    let file = OpenOptions::new().read(true).write(mode == Mode::Exclusive).open(&extent.path).ok()?;
    let metadata = file.metadata().ok()?;
    (device::identity(&metadata) == extent.identity).then_some(file)
}

/// Takes the lock of this name in each of the directories; `None` where others hold it in one.
fn take_everywhere(dirs: &[PathBuf], name: &str, mode: Mode) -> anyhow::Result<Option<Lock>> {
    let mut all = Lock { held: None, own_file: None, beside: None };
    for dir in dirs {
        let Some(mut taken) = take_file(dir, &dir.join(name), mode, ENDING)? else { return Ok(None) };
        // One that holds nothing is of no use beside another.
        if taken.held.is_some() {
            taken.beside = all.held.is_some().then(|| Box::new(all));
            all = taken;
        }
    }
    Ok(Some(all))
}

/// Takes the lock file at `path`; `None` where others hold it. Where no file can be made, the lock holds nothing.
fn take_file(dir: &Path, path: &Path, mode: Mode, patience: Duration) -> anyhow::Result<Option<Lock>> {
    let deadline = Instant::now() + patience;
    loop {
        let Some(file) = open_lock_file(dir, path)? else {
            return Ok(Some(Lock { held: None, own_file: None, beside: None }));
        };
        if !take(&file, mode, deadline.saturating_duration_since(Instant::now()))? {
            return Ok(None);
        }
        // The last holder removes the file; a lock on a removed file is none.
        if same_file(&file, path) {
            return Ok(Some(Lock { held: Some(file), own_file: Some(path.to_owned()), beside: None }));
        }
    }
}

/// Root's processes meet in /run. A user's meet in the user's runtime directory and in /tmp: not all of them are told of
/// the first (those of cron are not), and not all of them see the same of the second (services have one of their own).
fn lock_dirs() -> Vec<PathBuf> {
    let usable = run_dir::candidates().map(|dir| dir.join("locks")).filter(|dir| run_dir::usable(dir));
    usable.take(if rustix::process::geteuid().is_root() { 1 } else { usize::MAX }).collect()
}

/// Takes the lock file at `path`, alone; `None` where another process holds it.
pub(crate) fn alone(path: &Path) -> anyhow::Result<Option<Lock>> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    match take_file(dir, path, Mode::Exclusive, ENDING)? {
        Some(Lock { held: None, .. }) => anyhow::bail!("cannot create {}", path.display()),
        lock => Ok(lock),
    }
}

/// Whether some process holds the lock file at `path` alone.
pub(crate) fn is_taken(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err_and(|error| error == Errno::AGAIN)
}

/// Opens or creates a lock file, and its directory; `None` where that is not permitted.
fn open_lock_file(dir: &Path, path: &Path) -> anyhow::Result<Option<File>> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits().cast_signed();
    let open = || OpenOptions::new().read(true).write(true).create(true).mode(0o600).custom_flags(flags).open(path);
    let opened = match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let _ = DirBuilder::new().mode(0o700).create(dir);
            open()
        }
        opened => opened,
    };
    match opened {
        Ok(file) => Ok(Some(file)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::ROFS) => Ok(None),
            _ => Err(error).with_context(|| format!("cannot create {}", path.display())),
        },
    }
}

/// Tries until it is taken or `patience` ends.
fn take(file: &File, mode: Mode, patience: Duration) -> anyhow::Result<bool> {
    let deadline = Instant::now() + patience;
    loop {
        match flock(file, mode.operation()) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() >= deadline => return Ok(false),
            Err(Errno::AGAIN) => thread::sleep(Duration::from_millis(20)),
            // File systems without locks: cryptsetup goes on as well.
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(true),
            Err(error) => return Err(error).context("cannot lock"),
        }
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::metadata(path)) {
        (Ok(held), Ok(named)) => held.dev() == named.dev() && held.ino() == named.ino(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_one_directory_less_is_kept_away_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        let both = take_everywhere(&[one.clone(), two.clone()], "f1.2", Mode::Exclusive).unwrap().unwrap();
        for known in [&one, &two].map(std::slice::from_ref::<PathBuf>) {
            assert!(take_everywhere(known, "f1.2", Mode::Shared).unwrap().is_none());
            assert!(take_everywhere(known, "f1.3", Mode::Shared).unwrap().is_some());
        }
        drop(both);
        assert_eq!(std::fs::read_dir(&one).unwrap().count() + std::fs::read_dir(&two).unwrap().count(), 0);
        // Where nothing can be made, what can be had is enough.
        let nowhere = PathBuf::from("/proc/none");
        let held = take_everywhere(&[one.clone(), nowhere], "f1.2", Mode::Exclusive).unwrap().unwrap();
        assert!(take_everywhere(&[one], "f1.2", Mode::Shared).unwrap().is_none());
        drop(held);
    }
}
