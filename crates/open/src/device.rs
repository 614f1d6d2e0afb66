//! Image files, block devices, exports of NBD servers, images of Ceph RBD: resolving names, opening, length, identity.

use crate::error::{Error, Result, ResultExt as _, cannot_open};
use crate::host::Context;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inlock_engine::BackingStore;
use inlock_engine::store::direct::DirectStore;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_volume::{FileDevice, Zones};

use super::remote::{self, DeviceHeader, Remote};
use crate::staged::{StagedHeader, Staging};

/// Purpose of opening a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading.
    Read,
    /// Reading and writing. A block device that is in use, such as a mounted one, is refused.
    Write,
    /// Like `Write`, for an action that creates something: a missing file gets another hint.
    Create,
    /// Reading, and writing to the header only: also of a device in use, such as that of an open volume.
    Header,
}

/// Where the bytes of a device are.
#[derive(Clone, Debug)]
pub enum Medium {
    /// In a regular file or a block device.
    Local(Arc<File>, Metadata),
    /// At an NBD server, or in a Ceph cluster.
    Remote(Remote),
}

/// An open regular file, block device, export or image of RBD.
#[derive(Debug)]
pub struct Device {
    context: Context,
    /// The name that it was opened with, without `UUID=` and the like.
    pub path: PathBuf,
    /// Where its bytes are.
    pub medium: Medium,
    /// Length in bytes.
    pub len: u64,
    /// Its zones, if `with_zones` has found some.
    pub zones: Option<Zones>,
    /// Keeps what is written to its header.
    staging: Option<Arc<Staging>>,
}

impl Device {
    /// Opens `name`: a path, or `UUID=`, `LABEL=`, `PARTUUID=`, `PARTLABEL=` and a value, or the URI of
    /// an export, or the name of an image of RBD.
    pub fn open(context: &Context, name: &Path, access: OpenMode) -> Result<Self> {
        if let Some(uri) = remote::uri_of(name) {
            context.debug(format_args!("Connecting to {} ({access:?}).", remote::shown(uri)));
            let remote = remote::open(context, uri, access != OpenMode::Read)?;
            let len = remote.store().geometry().len;
            // The process may leave its directory, and others have theirs.
            let path = remote.name().into();
            return Ok(Self::new(context, path, Medium::Remote(remote), len));
        }
        let path = resolve(name);
        context.debug(format_args!("Opening {} ({access:?}).", path.display()));
        let creating = access == OpenMode::Create;
        let metadata = std::fs::metadata(&path).map_err(cannot_open(&path, creating))?;
        check_kind(&path, &metadata)?;
        let mut options = OpenOptions::new();
        options.read(true).write(access != OpenMode::Read);
        if is_block(&metadata) && matches!(access, OpenMode::Write | OpenMode::Create) {
            options.custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
        }
        let mut file = options.open(&path).map_err(|error| match access {
            OpenMode::Header | OpenMode::Create if can_only_be_read(&path, &error) => Error::read_only(&path),
            _ => cannot_open(&path, creating)(error),
        })?;
        let metadata = file.metadata()?;
        check_kind(&path, &metadata)?;
        let len = file.seek(SeekFrom::End(0))?;
        let device = Self::new(context, path, Medium::Local(Arc::new(file), metadata), len);
        if matches!(access, OpenMode::Header | OpenMode::Create) {
            device.check_writable()?;
        }
        Ok(device)
    }

    /// Returns a device that is a file of the caller.
    pub fn of_file(context: &Context, path: &Path, file: File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let medium = Medium::Local(Arc::new(file), metadata);
        Ok(Self::new(context, path.to_owned(), medium, 0))
    }

    fn new(context: &Context, path: PathBuf, medium: Medium, len: u64) -> Self {
        Self { context: context.clone(), path, medium, len, zones: None, staging: None }
    }

    /// Returns it with a header whose changes another process writes.
    pub(crate) fn staged(self) -> Result<Self> {
        let staging = Staging::new(self.header()?).with_context(|| format!("cannot read {}", self.path.display()))?;
        Ok(Self { staging: Some(Arc::new(staging)), ..self })
    }

    /// Returns the changes of a header that another process writes; `None`: there are none.
    pub(crate) fn staged_header(&self) -> Option<StagedHeader> {
        self.staging.as_ref().and_then(|staging| staging.staged())
    }

    /// Returns the context that it was opened with.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Fails for a block device that is read-only, although it has opened for writing.
    pub fn check_writable(&self) -> Result<()> {
        match self.file() {
            Some(file) if inlock_engine::store::is_read_only(file.as_fd()) => Err(Error::read_only(&self.path)),
            _ => Ok(()),
        }
    }

    /// Returns another handle of it, of the same open file.
    pub fn duplicate(&self) -> Self {
        Self {
            context: self.context.clone(),
            path: self.path.clone(),
            medium: self.medium.clone(),
            len: self.len,
            zones: self.zones,
            staging: self.staging.clone(),
        }
    }

    /// Whether it is a block device.
    pub fn is_block(&self) -> bool {
        self.metadata().is_some_and(is_block)
    }

    /// Returns what identifies it under any name.
    pub fn identity(&self) -> String {
        match &self.medium {
            Medium::Local(_, metadata) => identity(metadata),
            Medium::Remote(remote) => remote.identity(),
        }
    }

    /// Returns [`Device::identity`], and identities that it has under other names.
    pub fn identities(&self) -> Vec<String> {
        match &self.medium {
            Medium::Local(_, metadata) => vec![identity(metadata)],
            Medium::Remote(remote) => remote.identities(),
        }
    }

    /// Whether a sync of `other` makes durable what was written to this one: both are one file or block device.
    pub fn is_synced_with(&self, other: &Self) -> bool {
        self.remote().is_none() && self.identity() == other.identity()
    }

    /// Returns major and minor number of a block device.
    pub fn device_number(&self) -> (u32, u32) {
        let number = self.metadata().map_or(0, MetadataExt::rdev);
        (rustix::fs::major(number), rustix::fs::minor(number))
    }

    /// Returns the smallest transfer of direct I/O on a block device, in bytes.
    pub fn block_len(&self) -> u32 {
        self.file().map_or(512, |file| block_len(file.as_fd()))
    }

    /// Opens the device again, for direct I/O.
    pub fn reopen_direct(&self, writing: bool) -> io::Result<File> {
        let name = format!("/proc/self/fd/{}", self.file().ok_or_else(remote::no_file)?.as_raw_fd());
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        OpenOptions::new().read(true).write(writing).custom_flags(flags).open(name)
    }

    /// Lets the next reads of a block device be those of its bytes: another program may have written them under another
    /// name since they were cached. Writes that are not durable stay.
    pub fn drop_cache(&self) {
        if let Some(file) = self.file().filter(|_| self.is_block()) {
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    /// Duplicates the file descriptor. Fails for an export.
    pub fn share(&self) -> io::Result<File> {
        self.file().ok_or_else(remote::no_file)?.try_clone()
    }

    /// Returns the file, `None` for an export.
    pub fn file(&self) -> Option<&File> {
        match &self.medium {
            Medium::Local(file, _) => Some(file),
            Medium::Remote(_) => None,
        }
    }

    /// Returns the metadata of the file, `None` for an export.
    pub fn metadata(&self) -> Option<&Metadata> {
        match &self.medium {
            Medium::Local(_, metadata) => Some(metadata),
            Medium::Remote(_) => None,
        }
    }

    /// Returns the export or image of RBD, `None` for a file.
    pub fn remote(&self) -> Option<&Remote> {
        match &self.medium {
            Medium::Local(..) => None,
            Medium::Remote(remote) => Some(remote),
        }
    }

    /// Returns access to a header on the device.
    pub fn header(&self) -> io::Result<DeviceHeader> {
        if let Some(staging) = &self.staging {
            return Ok(DeviceHeader::Staged(Arc::clone(staging)));
        }
        Ok(match &self.medium {
            Medium::Local(file, _) => DeviceHeader::File(FileDevice::new(file.try_clone()?)),
            Medium::Remote(remote) => DeviceHeader::Remote(remote.clone()),
        })
    }

    /// Returns the engine's store of a device without zones. `direct`: with direct I/O.
    pub fn store(&self, mode: IoMode, read_only: bool, direct: bool) -> io::Result<Arc<dyn BackingStore>> {
        if let Medium::Remote(remote) = &self.medium {
            return Ok(remote.store());
        }
        Ok(Arc::new(self.file_store(mode, read_only, direct)?))
    }

    /// Returns a store of a block device with direct I/O, for requests of any bytes.
    pub fn direct_store(&self, read_only: bool) -> io::Result<Arc<dyn BackingStore>> {
        let device = self.file_store(IoMode::Sync, read_only, true)?;
        Ok(Arc::new(DirectStore::new(Arc::new(device), self.block_len() as usize)))
    }

    /// Returns a store for requests of any bytes. `store`: one of this device, maybe with direct I/O.
    pub(crate) fn unaligned(&self, store: &Arc<dyn BackingStore>) -> Arc<dyn BackingStore> {
        match store.profile().memory_alignment {
            0..=1 => Arc::clone(store),
            _ => Arc::new(DirectStore::new(Arc::clone(store), self.block_len() as usize)),
        }
    }

    fn file_store(&self, mode: IoMode, read_only: bool, direct: bool) -> io::Result<FileStore> {
        let file = if direct { self.reopen_direct(!read_only)? } else { self.share()? };
        if read_only { FileStore::new_read_only(file, mode) } else { FileStore::new(file, mode) }
    }
}

/// Returns the block length of a descriptor for direct I/O, `None` for another one.
pub fn direct_block(file: BorrowedFd<'_>) -> Option<u64> {
    let flags = rustix::fs::fcntl_getfl(file).ok()?;
    flags.contains(rustix::fs::OFlags::DIRECT).then(|| block_len(file).into())
}

fn block_len(file: BorrowedFd<'_>) -> u32 {
    rustix::fs::ioctl_blksszget(file).unwrap_or(4096)
}

/// Returns what identifies a file or a block device under any name: the device number, and of a file the inode.
pub fn identity(metadata: &Metadata) -> String {
    if is_block(metadata) {
        let number = metadata.rdev();
        format!("b{}.{}", rustix::fs::major(number), rustix::fs::minor(number))
    } else {
        format!("f{}.{}", metadata.dev(), metadata.ino())
    }
}

fn is_block(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

/// Whether a file or device that cannot be opened for writing can be read.
fn can_only_be_read(path: &Path, error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::ACCESS | Errno::PERM | Errno::ROFS)) && File::open(path).is_ok()
}

/// Whether `name` is a block device that cannot be written, as one of `losetup --read-only`: it may open for writing.
pub fn is_read_only(name: &Path) -> bool {
    let path = resolve(name);
    std::fs::metadata(&path).is_ok_and(|found| is_block(&found))
        && File::open(path).is_ok_and(|device| inlock_engine::store::is_read_only(device.as_fd()))
}

/// Whether a block device is in use, as a mounted one is: an exclusive open fails.
pub fn is_taken(node: &Path) -> bool {
    use rustix::{fs::OFlags, io::Errno};
    let alone = OpenOptions::new().read(true).custom_flags(OFlags::EXCL.bits().cast_signed()).open(node);
    alone.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY))
}

fn check_kind(path: &Path, metadata: &Metadata) -> Result<()> {
    if metadata.is_file() || is_block(metadata) { Ok(()) } else { Err(Error::not_a_device(path)) }
}

fn resolve(name: &Path) -> PathBuf {
    let by = [
        ("UUID=", "/dev/disk/by-uuid"),
        ("LABEL=", "/dev/disk/by-label"),
        ("PARTUUID=", "/dev/disk/by-partuuid"),
        ("PARTLABEL=", "/dev/disk/by-partlabel"),
    ];
    let tag = name.to_str().and_then(|name| by.iter().find_map(|(tag, dir)| Some((name.strip_prefix(tag)?, dir))));
    match tag {
        Some((value, dir)) if !value.is_empty() && !value.contains('/') => Path::new(dir).join(value),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::host::Silent;
    use crate::settings::Settings;

    fn silent() -> Context {
        Context::new(Silent, Settings::default())
    }

    #[test]
    fn tag_resolves_to_link_of_udev() {
        assert_eq!(resolve(Path::new("UUID=1-2")), Path::new("/dev/disk/by-uuid/1-2"));
        assert_eq!(resolve(Path::new("PARTLABEL=x")), Path::new("/dev/disk/by-partlabel/x"));
        for name in ["UUID=", "LABEL=../../etc", "disk.img", "./UUID=1"] {
            assert_eq!(resolve(Path::new(name)), Path::new(name));
        }
    }

    #[test]
    fn file_has_one_identity_under_all_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [0; 512]).unwrap();
        std::fs::hard_link(&path, dir.path().join("hard")).unwrap();
        std::os::unix::fs::symlink(&path, dir.path().join("soft")).unwrap();
        let identity = |name: &str| Device::open(&silent(), &dir.path().join(name), OpenMode::Read).unwrap().identity();
        assert_eq!(identity("a"), identity("hard"));
        assert_eq!(identity("a"), identity("soft"));
        std::fs::write(dir.path().join("b"), [0; 512]).unwrap();
        assert_ne!(identity("a"), identity("b"));
        let device = |name: &str| Device::open(&silent(), &dir.path().join(name), OpenMode::Read).unwrap();
        assert!(device("a").is_synced_with(&device("hard")) && !device("a").is_synced_with(&device("b")));
    }

    #[test]
    fn direct_descriptor_has_block_length() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [0; 4096]).unwrap();
        let device = Device::open(&silent(), &path, OpenMode::Read).unwrap();
        assert_eq!(direct_block(device.file().unwrap().as_fd()), None);
        match device.reopen_direct(false) {
            Ok(direct) => assert_eq!(direct_block(direct.as_fd()), Some(4096)),
            Err(_) => println!("SKIPPED: no direct I/O on the file system of temporary files"),
        }
    }

    #[test]
    fn direct_store_is_opened_for_what_it_is_used_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8192).unwrap();
        let device = Device::open(&silent(), file.path(), OpenMode::Write).unwrap();
        if device.reopen_direct(false).is_err() {
            return println!("SKIPPED: no direct I/O on the file system of temporary files");
        }
        for read_only in [false, true] {
            let store = device.direct_store(read_only).unwrap();
            assert_eq!(store.geometry().read_only, read_only);
            assert_eq!(store.write_at(&[7; 4096], 4096).is_ok(), !read_only);
            let mut read = [0; 4096];
            assert_eq!((store.read_at(&mut read, 4096), read), (Ok(4096), [7; 4096]));
        }
    }

    #[test]
    fn only_a_readable_device_that_refuses_writes_is_read_only() {
        use rustix::io::Errno;
        let file = tempfile::NamedTempFile::new().unwrap();
        let missing = file.path().with_extension("missing");
        for errno in [Errno::ACCESS, Errno::PERM, Errno::ROFS, Errno::BUSY, Errno::NOENT] {
            let is_refusal = ![Errno::BUSY, Errno::NOENT].contains(&errno);
            assert_eq!(can_only_be_read(file.path(), &errno.into()), is_refusal, "{errno}");
            assert!(!can_only_be_read(&missing, &errno.into()), "{errno}");
        }
    }

    /// To open one would be to wait for its other end.
    #[test]
    fn pipe_is_refused_without_opening_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let (told, heard) = std::sync::mpsc::channel();
        std::thread::spawn(move || told.send(Device::open(&silent(), &path, OpenMode::Read).map(drop)));
        let refused = heard.recv_timeout(std::time::Duration::from_secs(60)).expect("it does not wait").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotADevice);
    }

    #[test]
    fn directory_or_character_device_is_refused() {
        for path in ["/", "/dev/null"] {
            let error = Device::open(&silent(), Path::new(path), OpenMode::Read).unwrap_err();
            assert!(error.kind() == ErrorKind::NotADevice, "{error}");
        }
    }
}
