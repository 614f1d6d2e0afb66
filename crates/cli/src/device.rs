//! Images and devices: finding them by name, opening them, knowing how long they are.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use inlock_volume::Zones;

use crate::exit::{Problem, cannot_open};
use crate::zones;

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Reading.
    Read,
    /// Reading and writing; a block device that is mounted or otherwise in use is refused.
    Write,
    /// As `Write`, by a verb that makes something new: a missing file gets another hint.
    Create,
}

/// An open regular file or block device.
#[derive(Debug)]
pub(crate) struct Device {
    pub path: PathBuf,
    pub file: File,
    pub len: u64,
    pub metadata: Metadata,
    /// Its zones, once [`Device::with_zones`] has looked for some.
    pub zones: Option<Zones>,
}

impl Device {
    /// Opens what `name` says: a path, or `UUID=`, `LABEL=`, `PARTUUID=`, `PARTLABEL=` and a value.
    pub(crate) fn open(name: &Path, access: Access) -> anyhow::Result<Self> {
        let path = resolve(name);
        let creating = access == Access::Create;
        let metadata = std::fs::metadata(&path).map_err(cannot_open(&path, creating))?;
        check_kind(&path, &metadata)?;
        let mut options = OpenOptions::new();
        options.read(true).write(access != Access::Read);
        if is_block(&metadata) && access != Access::Read {
            options.custom_flags(rustix::fs::OFlags::EXCL.bits().cast_signed());
        }
        let mut file = options.open(&path).map_err(cannot_open(&path, creating))?;
        let metadata = file.metadata()?;
        check_kind(&path, &metadata)?;
        let len = file.seek(SeekFrom::End(0))?;
        Ok(Self { path, file, len, metadata, zones: None })
    }

    /// Looks for zones. Where it has some, its length is theirs together: a file with zones has more in it.
    pub(crate) fn with_zones(mut self) -> anyhow::Result<Self> {
        self.zones = zones::look(&self)?;
        self.len = self.zones.map_or(self.len, |zones| zones.len);
        Ok(self)
    }

    /// Whether it is a block device.
    pub(crate) fn is_block(&self) -> bool {
        is_block(&self.metadata)
    }

    /// What makes it the same device under any name.
    pub(crate) fn identity(&self) -> String {
        identity(&self.metadata)
    }

    /// Major and minor number of a block device.
    pub(crate) fn device_number(&self) -> (u32, u32) {
        let number = self.metadata.rdev();
        (rustix::fs::major(number), rustix::fs::minor(number))
    }

    /// The smallest transfer that a block device takes past the kernel's cache, in bytes.
    pub(crate) fn block_len(&self) -> u32 {
        block_len(self.file.as_fd())
    }

    /// The device again, past the kernel's cache.
    pub(crate) fn reopen_direct(&self, writing: bool) -> io::Result<File> {
        let name = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let flags = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        OpenOptions::new().read(true).write(writing).custom_flags(flags).open(name)
    }

    /// The file again, sharing the open description.
    pub(crate) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }
}

/// In which blocks a descriptor is read and written, where that goes past the kernel's cache.
pub(crate) fn direct_block(file: BorrowedFd<'_>) -> Option<u64> {
    let flags = rustix::fs::fcntl_getfl(file).ok()?;
    flags.contains(rustix::fs::OFlags::DIRECT).then(|| block_len(file).into())
}

fn block_len(file: BorrowedFd<'_>) -> u32 {
    rustix::fs::ioctl_blksszget(file).unwrap_or(4096)
}

/// What makes a file or a block device the same under any name: the device number, and for a file the inode too.
pub(crate) fn identity(metadata: &Metadata) -> String {
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

fn check_kind(path: &Path, metadata: &Metadata) -> anyhow::Result<()> {
    if metadata.is_file() || is_block(metadata) {
        Ok(())
    } else {
        Err(Problem::NotADevice { path: path.to_owned() }.into())
    }
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

    #[test]
    fn tags_name_links_that_udev_makes() {
        assert_eq!(resolve(Path::new("UUID=1-2")), Path::new("/dev/disk/by-uuid/1-2"));
        assert_eq!(resolve(Path::new("PARTLABEL=x")), Path::new("/dev/disk/by-partlabel/x"));
        for name in ["UUID=", "LABEL=../../etc", "disk.img", "./UUID=1"] {
            assert_eq!(resolve(Path::new(name)), Path::new(name));
        }
    }

    #[test]
    fn a_file_is_the_same_under_all_its_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [0; 512]).unwrap();
        std::fs::hard_link(&path, dir.path().join("hard")).unwrap();
        std::os::unix::fs::symlink(&path, dir.path().join("soft")).unwrap();
        let identity = |name: &str| Device::open(&dir.path().join(name), Access::Read).unwrap().identity();
        assert_eq!(identity("a"), identity("hard"));
        assert_eq!(identity("a"), identity("soft"));
        std::fs::write(dir.path().join("b"), [0; 512]).unwrap();
        assert_ne!(identity("a"), identity("b"));
    }

    #[test]
    fn what_goes_past_the_cache_has_blocks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [0; 4096]).unwrap();
        let device = Device::open(&path, Access::Read).unwrap();
        assert_eq!(direct_block(device.file.as_fd()), None);
        match device.reopen_direct(false) {
            Ok(direct) => assert_eq!(direct_block(direct.as_fd()), Some(4096)),
            Err(_) => println!("SKIPPED: no direct I/O on the file system of temporary files"),
        }
    }

    #[test]
    fn only_files_and_block_devices_are_opened() {
        for path in ["/", "/dev/null"] {
            let error = Device::open(Path::new(path), Access::Read).unwrap_err();
            assert!(matches!(error.downcast_ref(), Some(Problem::NotADevice { .. })), "{error}");
        }
    }
}
