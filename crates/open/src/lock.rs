//! Two kinds of lock: on headers, shared with cryptsetup, and on whole devices, among Inlock's own processes.
//!
//! A header is locked while it is read or written: by `flock` on an image file itself, for a block device on
//! `/run/cryptsetup/L_<major>:<minor>`, as libcryptsetup does; for a loop device also on its file. A device is locked
//! while a volume is served or copied, for one writer or any number of readers: on the image itself (`range`),
//! through loop devices too ([`backing`]), and in a lock file named after the device's identity. Exports have names
//! that do not show whether they mean the same storage, so the volume on them is locked, too. See
//! docs/decisions/locks-and-outputs.md.

mod range;
mod volume;

use crate::error::{Error, ErrorKind, Result, ResultExt as _};
use crate::host::Context;
use std::borrow::Cow;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::backing::{self, BackingRange};
use super::device::{self, Device};
use crate::range::Range;
use crate::run_dir;
pub use range::Mode;
use range::{Attempt, Bytes, RangeLock};
use volume::VolumeLock;
pub use volume::VolumeName;

/// Time to wait for another program's lock on a header. It may be deriving the key of a new keyslot.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);

/// Name of cryptsetup's lock file of key derivations that take much memory.
const PBKDF_LOCK: &str = "LN_memory-hard-access";

/// Start of the names of cryptsetup's lock files of volumes in re-encryption; the UUID follows.
const REENCRYPTION_LOCK: &str = "LN_LUKS2-reencryption-";

/// Time to wait for the key derivations of other processes.
const PBKDF_TIMEOUT: Duration = Duration::from_secs(600);

/// Time to wait for the lock on a device of a process that is exiting.
const EXIT_TIMEOUT: Duration = Duration::from_millis(250);

/// Longest name of a lock file that is used as it is, in bytes.
const MAX_NAME: usize = 200;

/// Where libcryptsetup locks the headers of block devices.
const CRYPTSETUP_LOCKS: &str = "/run/cryptsetup";

/// A lock, held until dropped.
#[derive(Debug)]
pub struct Lock {
    /// `None`: no lock file could be made.
    held: Option<File>,
    /// Lock file, which the last holder removes.
    own_file: Option<PathBuf>,
    /// Other lock files for the same device: in other directories, or under other names.
    others: Vec<Lock>,
}

impl Lock {
    /// Returns the lock that excludes nothing.
    pub(crate) fn none() -> Self {
        Self { held: None, own_file: None, others: Vec::new() }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let Some(file) = &self.held else { return };
        if let Some(path) = &self.own_file {
            // The last holder: a waiting process sees that the file is gone and makes a new one.
            if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() && same_file(file, path) {
                let _ = std::fs::remove_file(path);
            }
        }
        // The open description may be shared with the device, which stays open.
        let _ = flock(file, FlockOperation::Unlock);
    }
}

/// Locks the header on `device` against cryptsetup and others, waiting briefly.
pub fn header(device: &Device, mode: Mode) -> Result<Lock> {
    if device.context().settings().no_header_locks {
        return Ok(Lock::none());
    }
    let kind = if mode == Mode::Exclusive { "write" } else { "read" };
    device.context().debug(format_args!("Acquiring {kind} lock for the header on {}.", device.path.display()));
    let locked = || Error::in_use(ErrorKind::HeaderLocked, &device.path);
    if device.file().is_none() {
        // Known to the processes of this host alone.
        let mut all = Lock::none();
        for identity in device.identities() {
            let lock = take_everywhere(&lock_dirs(), &format!("{identity}.header"), mode, HEADER_TIMEOUT)?;
            all.others.push(lock.ok_or_else(locked)?);
        }
        return Ok(all);
    }
    if !device.is_block() {
        let file = device.share()?;
        let is_taken = take(&file, mode, HEADER_TIMEOUT);
        let is_taken = is_taken.with_context(|| format!("cannot lock {}", device.path.display()))?;
        is_taken.then_some(()).ok_or_else(locked)?;
        return Ok(Lock { held: Some(file), own_file: None, others: Vec::new() });
    }
    let (major, minor) = device.device_number();
    let dir = Path::new(CRYPTSETUP_LOCKS);
    // A process without permission for the directory cannot run cryptsetup on the device either.
    let own = take_file(dir, &dir.join(format!("L_{major}:{minor}")), mode, HEADER_TIMEOUT)?.ok_or_else(locked)?;
    // Those who name the file of a loop device lock the file.
    let backing = device.file().map(backing::ranges_of).unwrap_or_default();
    backing.iter().filter(|file| file.range.offset == 0).try_fold(own, |own, file| {
        let Some(file) = open_backing(file, mode) else { return Ok(own) };
        take(&file, mode, HEADER_TIMEOUT)?.then_some(()).ok_or_else(locked)?;
        Ok(Lock { held: Some(file), own_file: None, others: vec![own] })
    })
}

/// Waits until no other process derives a key under the lock that cryptsetup takes, too. `None`: the option is not
/// given.
pub fn memory_hard_pbkdf(context: &Context) -> Result<Option<Lock>> {
    if !context.settings().serialize_derivations {
        return Ok(None);
    }
    let dir = Path::new(CRYPTSETUP_LOCKS);
    context.debug("Waiting for the lock of memory-hard key derivations.");
    match take_file(dir, &dir.join(PBKDF_LOCK), Mode::Exclusive, PBKDF_TIMEOUT)? {
        Some(lock) if lock.held.is_some() => Ok(Some(lock)),
        _ => Err(Error::new(
            ErrorKind::NoDerivationLock,
            "Failed to acquire global memory-hard access serialization lock.",
        )),
    }
}

/// Locks the re-encryption of a LUKS2 volume against other processes, as cryptsetup does.
pub fn reencryption(device: &Device, uuid: &str, mode: Mode) -> Result<Lock> {
    if device.context().settings().no_header_locks {
        return Ok(Lock::none());
    }
    let dir = Path::new(CRYPTSETUP_LOCKS);
    let path = dir.join(format!("{REENCRYPTION_LOCK}{uuid}"));
    take_file(dir, &path, mode, EXIT_TIMEOUT)?.ok_or_else(|| {
        let text = format!("The volume on {} is being re-encrypted by another process.", device.path.display());
        Error::new(ErrorKind::BeingReencrypted, text).about(&device.path)
    })
}

/// Locks on a device, held until dropped.
#[derive(Debug)]
pub struct DeviceLock {
    // Before the lock files that some of them are on.
    _ranges: Vec<RangeLock>,
    _names: Vec<Lock>,
    _volume: Vec<VolumeLock>,
}

impl From<Lock> for DeviceLock {
    fn from(lock: Lock) -> Self {
        Self { _ranges: Vec::new(), _names: vec![lock], _volume: Vec::new() }
    }
}

fn in_use(device: &Device) -> Error {
    Error::in_use(ErrorKind::InUse, &device.path)
}

/// Locks the device, exclusively to write or shared with other readers, and the volume that its first bytes tell. For
/// an exclusive lock the device is open for writing.
pub fn whole_device(device: &Device, mode: Mode) -> Result<DeviceLock> {
    let lock = storage(device, mode)?;
    let volume = volume::name_on(device)?.map(|name| self::volume(device, &name, mode)).transpose()?;
    Ok(DeviceLock { _volume: volume.map(|lock| lock._volume).unwrap_or_default(), ..lock })
}

/// Locks a volume against others that may be on the same storage, under names that do not show it.
pub fn volume(device: &Device, name: &VolumeName, mode: Mode) -> Result<DeviceLock> {
    let volume = match volume::take(&lock_dirs(), name, volume::Party::of(device, mode))? {
        Some(locks) => locks,
        None if device.context().settings().allow_copies => Vec::new(),
        None => {
            let path = device.path.display();
            let text = format!("Device {path} is in use: its volume ({name}) is open under another name.");
            return Err(Error::new(ErrorKind::OpenElsewhere, text).about(&device.path));
        }
    };
    Ok(DeviceLock { _ranges: Vec::new(), _names: Vec::new(), _volume: volume })
}

/// Locks the bytes of the device under all of its names: as [`whole_device`], without the volume.
pub fn storage(device: &Device, mode: Mode) -> Result<DeviceLock> {
    let dirs = lock_dirs();
    let mut names = Vec::new();
    for name in names_of(device) {
        names.push(take_everywhere(&dirs, &name, mode, EXIT_TIMEOUT)?.ok_or_else(|| in_use(device))?);
    }
    let files = files_of(device, backing::ALL, mode)?;
    let files = files.into_iter().map(|(file, range)| (file, Bytes::of_image(range))).collect();
    let ranges = take_ranges(device, files, mode)?.ok_or_else(|| in_use(device))?;
    if mode == Mode::Exclusive && ranges.is_empty() && names.iter().all(|lock| lock.held.is_none()) {
        return Err(Error::new(
            ErrorKind::NoLock,
            "The image cannot be locked against other writers, and there is no directory for a lock file.",
        ));
    }
    Ok(DeviceLock { _ranges: ranges, _names: names, _volume: Vec::new() })
}

/// Locks a part of a device that other volumes share (`--shared`), against those that overlap it.
pub fn part(device: &Device, part: Range, mode: Mode) -> Result<DeviceLock> {
    let (dirs, mut names) = (lock_dirs(), Vec::new());
    let mut files = files_of(device, part, mode)?;
    for name in names_of(device) {
        // For storage whose own bytes cannot be locked.
        let lock = take_everywhere(&dirs, &name, Mode::Shared, EXIT_TIMEOUT)?.ok_or_else(|| in_use(device))?;
        for file in std::iter::once(&lock).chain(&lock.others).filter_map(|lock| lock.held.as_ref()) {
            files.push((file.try_clone().with_context(cannot_lock(device))?, part));
        }
        names.push(lock);
    }
    let files = files.into_iter().map(|(file, range)| (file, Bytes::of_parts(range))).collect();
    let overlaps = || {
        let text = format!("Device {} is in use: another volume has a part of the range.", device.path.display());
        Error::new(ErrorKind::Overlaps, text).about(&device.path)
    };
    let ranges = take_ranges(device, files, mode)?.ok_or_else(overlaps)?;
    Ok(DeviceLock { _ranges: ranges, _names: names, _volume: Vec::new() })
}

/// Locks bytes of files. `None`: another process holds some of them.
fn take_ranges(device: &Device, files: Vec<(File, Bytes)>, mode: Mode) -> Result<Option<Vec<RangeLock>>> {
    let mut ranges = Vec::new();
    for (file, bytes) in files {
        match range::take(file, bytes, mode, EXIT_TIMEOUT).with_context(cannot_lock(device))? {
            Attempt::Taken(lock) => ranges.push(lock),
            Attempt::Busy => return Ok(None),
            Attempt::Unsupported => {}
        }
    }
    Ok(Some(ranges))
}

fn cannot_lock(device: &Device) -> impl Fn() -> String {
    || format!("cannot lock {}", device.path.display())
}

/// Returns the names under which the processes of this host lock all of the device.
fn names_of(device: &Device) -> Vec<String> {
    let mut names = device.identities();
    let backing = device.file().map(backing::ranges_of).unwrap_or_default();
    // A name locks a whole file, so a part of a file has no other name.
    names.extend(backing.into_iter().take_while(|file| file.range == backing::ALL).map(|file| file.identity));
    names
}

/// Opens the files in which a part of the device is, each with its range there. A server has none: the names lock it.
fn files_of(device: &Device, part: Range, mode: Mode) -> Result<Vec<(File, Range)>> {
    let Some(file) = device.file() else { return Ok(Vec::new()) };
    let own = own_description(file, mode).with_context(cannot_lock(device))?;
    let backing = backing::ranges_of(file);
    let backing = backing.iter().map_while(|file| Some((open_backing(file, mode)?, backing::part(file.range, part))));
    Ok(std::iter::once((own, part)).chain(backing).collect())
}

/// Opens the device again for its lock: the kernel may keep the description that a ring has open for a while after the
/// process has exited.
fn own_description(file: &File, mode: Mode) -> io::Result<File> {
    if flock_locks_ranges(file) {
        // There, the lock of the header would belong to another owner.
        return file.try_clone();
    }
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let alone = mode == Mode::Exclusive;
    // A process that inherited the descriptor may lack permission to open the file.
    OpenOptions::new().read(!alone).write(alone).open(path).or_else(|_| file.try_clone())
}

/// Whether the file system implements `flock` as a lock of the whole range at its server, as NFS and SMB do.
fn flock_locks_ranges(file: &File) -> bool {
    const MAGICS: [u32; 4] = [0x6969, 0x517b, 0xff53_4d42, 0xfe53_4d42];
    // The type of `f_type` differs between architectures, its lowest 32 bits do not.
    #[allow(clippy::unnecessary_cast)]
    rustix::fs::fstatfs(file).is_ok_and(|system| MAGICS.contains(&(system.f_type as u32)))
}

/// Opens the file behind a device, to lock it. `None`: not permitted, or the name belongs to another file by now.
fn open_backing(backing: &BackingRange, mode: Mode) -> Option<File> {
    let file = OpenOptions::new().read(true).write(mode == Mode::Exclusive).open(&backing.path).ok()?;
    let metadata = file.metadata().ok()?;
    (device::identity(&metadata) == backing.identity).then_some(file)
}

/// Takes the lock of this name in each directory. `None`: another process holds one of them.
fn take_everywhere(dirs: &[PathBuf], name: &str, mode: Mode, timeout: Duration) -> Result<Option<Lock>> {
    let mut all = Lock::none();
    for dir in dirs {
        let Some(taken) = take_file(dir, &dir.join(&*file_name(name)), mode, timeout)? else { return Ok(None) };
        // A lock without a file adds nothing.
        if taken.held.is_some() {
            let others = std::mem::replace(&mut all, taken);
            all.others.extend(others.held.is_some().then_some(others));
        }
    }
    Ok(Some(all))
}

/// Returns the name of a lock file. Of two long names that are the same to it, one excludes the other.
fn file_name(name: &str) -> Cow<'_, str> {
    match name.get(..MAX_NAME) {
        Some(start) if name.len() > MAX_NAME => {
            // FNV-1a: the same in all versions of the program.
            let mix = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
            format!("{start}+{hash:016x}").into()
        }
        _ => name.into(),
    }
}

/// Takes the lock file at `path`. `None`: another process holds it. If no file can be made, the lock has none.
fn take_file(dir: &Path, path: &Path, mode: Mode, timeout: Duration) -> Result<Option<Lock>> {
    let deadline = Instant::now() + timeout;
    loop {
        let Some(file) = open_lock_file(dir, path)? else {
            return Ok(Some(Lock::none()));
        };
        let timeout = deadline.saturating_duration_since(Instant::now());
        if !take(&file, mode, timeout).with_context(|| format!("cannot lock {}", path.display()))? {
            return Ok(None);
        }
        // The last holder removes the file; a lock on a removed file excludes no process.
        if same_file(&file, path) {
            return Ok(Some(Lock { held: Some(file), own_file: Some(path.to_owned()), others: Vec::new() }));
        }
    }
}

/// Returns the directories of lock files: for root in /run; for users in the runtime directory, which cron does not
/// name to its processes, and in /tmp, of which services have one of their own.
fn lock_dirs() -> Vec<PathBuf> {
    let dirs = run_dir::candidates().map(|dir| dir.join("locks")).filter(|dir| run_dir::is_usable(dir));
    dirs.take(if rustix::process::geteuid().is_root() { 1 } else { usize::MAX }).collect()
}

/// Takes the lock file at `path` exclusively. `None`: another process holds it.
pub fn exclusive(path: &Path) -> Result<Option<Lock>> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    match take_file(dir, path, Mode::Exclusive, EXIT_TIMEOUT)? {
        Some(Lock { held: None, .. }) => {
            Err(Error::new(ErrorKind::Failed, format!("cannot create {}", path.display())))
        }
        lock => Ok(lock),
    }
}

/// Whether a process holds the lock file at `path` exclusively.
pub fn is_taken(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    flock(&file, FlockOperation::NonBlockingLockShared).is_err_and(|error| error == Errno::AGAIN)
}

/// Opens or creates a lock file and its directory. `None`: not permitted.
fn open_lock_file(dir: &Path, path: &Path) -> Result<Option<File>> {
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

fn operation(mode: Mode) -> FlockOperation {
    match mode {
        Mode::Shared => FlockOperation::NonBlockingLockShared,
        Mode::Exclusive => FlockOperation::NonBlockingLockExclusive,
    }
}

/// Retries for `timeout` to lock the file.
fn take(file: &File, mode: Mode, timeout: Duration) -> Result<bool> {
    let deadline = Instant::now() + timeout;
    loop {
        match flock(file, operation(mode)) {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if Instant::now() >= deadline => return Ok(false),
            Err(Errno::AGAIN) => thread::sleep(Duration::from_millis(20)),
            // On file systems without locks cryptsetup continues, too.
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => return Ok(true),
            Err(error) => return Err(error.into()),
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
    use std::io::Seek;

    #[test]
    fn lock_in_two_directories_excludes_process_that_sees_one() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| dir.path().join(name));
        let both =
            take_everywhere(&[one.clone(), two.clone()], "f1.2", Mode::Exclusive, EXIT_TIMEOUT).unwrap().unwrap();
        for known in [&one, &two].map(std::slice::from_ref::<PathBuf>) {
            assert!(take_everywhere(known, "f1.2", Mode::Shared, EXIT_TIMEOUT).unwrap().is_none());
            assert!(take_everywhere(known, "f1.3", Mode::Shared, EXIT_TIMEOUT).unwrap().is_some());
        }
        drop(both);
        assert_eq!(std::fs::read_dir(&one).unwrap().count() + std::fs::read_dir(&two).unwrap().count(), 0);
        // One directory is enough if the other cannot be created.
        let nowhere = PathBuf::from("/proc/none");
        let held = take_everywhere(&[one.clone(), nowhere], "f1.2", Mode::Exclusive, EXIT_TIMEOUT).unwrap().unwrap();
        assert!(take_everywhere(&[one], "f1.2", Mode::Shared, EXIT_TIMEOUT).unwrap().is_none());
        drop(held);
    }

    /// The last holder removes its lock file while another process waits for it.
    #[test]
    fn lock_on_a_file_that_was_removed_meanwhile_is_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f1.2");
        let take = |mode, timeout| take_file(dir.path(), &path, mode, timeout).unwrap();
        let open_files = || {
            let files =
                std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| entry.ok()?.path().read_link().ok());
            files.filter(|file| *file == path).count()
        };
        for first in [Mode::Exclusive, Mode::Shared] {
            let held = take(first, Duration::ZERO).unwrap();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| take(Mode::Exclusive, Duration::from_secs(120)));
                inlock_tests::wait::eventually("the other one waits", open_files, |open| *open == 2);
                drop(held);
                let lock = waiting.join().unwrap().unwrap();
                for mode in [Mode::Exclusive, Mode::Shared] {
                    assert!(
                        take(mode, Duration::ZERO).is_none(),
                        "{first:?}, then {mode:?} next to the one that waited"
                    );
                }
                drop(lock);
            });
            assert!(!path.exists());
        }
    }

    #[test]
    fn lock_file_stays_as_long_as_a_process_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f1.2");
        let take = |mode| take_file(dir.path(), &path, mode, Duration::ZERO).unwrap();
        let [one, other] = [0, 1].map(|_| take(Mode::Shared).unwrap());
        drop(one);
        assert!(path.exists() && take(Mode::Exclusive).is_none());
        // Somebody removes the file, and a process makes another one.
        std::fs::remove_file(&path).unwrap();
        let newer = take(Mode::Exclusive).unwrap();
        drop(other);
        assert!(path.exists() && take(Mode::Shared).is_none());
        drop(newer);
        assert!(!path.exists());
    }

    #[test]
    fn locks_of_a_device_are_on_an_open_file_of_their_own() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut file = File::options().read(true).write(true).open(&path).unwrap();
        if flock_locks_ranges(&file) {
            return;
        }
        file.seek(io::SeekFrom::Start(7)).unwrap();
        for mode in [Mode::Shared, Mode::Exclusive] {
            let mut own = own_description(&file, mode).unwrap();
            // A duplicate has the position of the first one.
            assert_eq!(own.stream_position().unwrap(), 0, "{mode:?}");
            assert!(same_file(&own, &path));
        }
    }

    #[test]
    fn long_names_have_lock_files_of_their_own() {
        assert_eq!(file_name("f1.2"), "f1.2");
        let [one, two] = ["1", "2"].map(|end| "n".repeat(4000) + end);
        assert!(file_name(&one).len() <= 255 && file_name(&one) != file_name(&two));
        assert_eq!(file_name(&one), file_name(&one));
    }
}
