//! Zoned files by path: creating, locking, and finding sidecars.

use crate::error::ZonedFileError;
use crate::layout::ZonedLayout;
use crate::mark;
use crate::sidecar::failed;
use crate::store::ZonedFile;
use inlock_engine::store::file::{FileStore, IoMode};
use inlock_engine::zoned::{Zone, ZoneLimits, ZonedStore};
use rustix::fs::{FlockOperation, SeekFrom};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

impl ZonedFile {
    /// Creates a zoned file and its sidecar.
    ///
    /// # Errors
    ///
    /// Fails if `path` exists and is not an empty file, if its sidecar exists, or if the layout is not possible.
    pub fn create(path: &Path, layout: &ZonedLayout) -> Result<(), ZonedFileError> {
        layout.check()?;
        let boot = boot_id()?;
        let at = |source| ZonedFileError::Io { path: path.to_owned(), source };
        let data = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(at)?;
        if !data.metadata().map_err(at)?.is_file() {
            return Err(at(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        if holds_data(&data).map_err(|error| at(error.into()))? {
            return Err(ZonedFileError::HoldsData(path.to_owned()));
        }
        let sidecar_path = sidecar_path(path).map_err(at)?;
        let beside = |source| ZonedFileError::Io { path: sidecar_path.clone(), source };
        let sidecar = match OpenOptions::new().read(true).write(true).create_new(true).open(&sidecar_path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(ZonedFileError::Exists(sidecar_path));
            }
            other => other.map_err(beside)?,
        };
        let made = data
            .set_len(Self::data_len(layout))
            .map_err(at)
            .and_then(|()| sidecar.set_len(Self::sidecar_len(layout)).map_err(beside))
            .and_then(|()| {
                let data = FileStore::new(data, IoMode::Sync).map_err(at)?;
                let sidecar = FileStore::new(sidecar, IoMode::Sync).map_err(beside)?;
                mark::format(&data, &sidecar, layout, boot)
            })
            .and_then(|()| sync_directory(&sidecar_path).map_err(beside));
        if made.is_err() {
            // An incomplete sidecar would prevent another attempt.
            let _ = std::fs::remove_file(&sidecar_path);
        }
        made.map_err(|error| named(error, path))
    }

    /// Opens a zoned file for reading and writing, and locks it exclusively.
    ///
    /// # Errors
    ///
    /// Fails if the file is in use, or if the sidecar is missing, damaged or that of another file.
    pub fn open(path: &Path) -> Result<Self, ZonedFileError> {
        Self::open_locked(path, false)
    }

    /// Opens a zoned file for reading, and locks it shared with other readers.
    ///
    /// # Errors
    ///
    /// As [`ZonedFile::open`].
    pub fn open_read_only(path: &Path) -> Result<Self, ZonedFileError> {
        Self::open_locked(path, true)
    }

    fn open_locked(path: &Path, read_only: bool) -> Result<Self, ZonedFileError> {
        let (data, sidecar) = open_both(path, read_only)?;
        let how =
            if read_only { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
        match rustix::fs::flock(sidecar.file(), how) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(ZonedFileError::Busy(path.to_owned())),
            Err(error) => return Err(named(failed(error), path)),
        }
        Self::open_stores(data, sidecar, path)
    }

    fn open_stores(data: FileStore, sidecar: FileStore, path: &Path) -> Result<Self, ZonedFileError> {
        Self::over(Arc::new(data), Arc::new(sidecar), boot_id()?).map_err(|error| named(error, path))
    }

    /// Reads the zones of a file without locking it.
    ///
    /// # Errors
    ///
    /// As [`ZonedFile::open`], except for a file in use.
    pub fn look(path: &Path) -> Result<(ZoneLimits, Vec<Zone>), ZonedFileError> {
        // A record may be read while it is written.
        let mut tries = 5;
        let file = loop {
            let (data, sidecar) = open_both(path, true)?;
            match Self::open_stores(data, sidecar, path) {
                Err(ZonedFileError::Damaged(_)) if tries > 0 => tries -= 1,
                other => break other?,
            }
        };
        let mut zones = vec![Zone::UNKNOWN; file.layout().zones() as usize];
        file.report(0, &mut zones).map_err(failed)?;
        Ok((file.limits(), zones))
    }

    /// Whether `path` is a zoned file: it has a sidecar, or ends with the mark of a zoned file.
    pub fn is_zoned(path: &Path) -> bool {
        let has_sidecar = || sidecar_path(path).is_ok_and(|sidecar| sidecar.exists());
        let has_mark = || {
            let store = FileStore::new_read_only(File::open(path).ok()?, IoMode::Sync).ok()?;
            mark::read(&store).ok()?
        };
        path.is_file() && (has_sidecar() || has_mark().is_some())
    }
}

/// Returns the path of the sidecar of a file, with symbolic links resolved.
pub(crate) fn sidecar_path(data: &Path) -> io::Result<PathBuf> {
    let mut name = std::fs::canonicalize(data)?.into_os_string();
    name.push(".zones");
    Ok(name.into())
}

/// Adds the path to an error of a system call.
fn named(error: ZonedFileError, path: &Path) -> ZonedFileError {
    match error {
        ZonedFileError::Io { path: none, source } if none.as_os_str().is_empty() => {
            ZonedFileError::Io { path: path.to_owned(), source }
        }
        other => other,
    }
}

fn open_both(path: &Path, read_only: bool) -> Result<(FileStore, FileStore), ZonedFileError> {
    let open = |path: &Path| OpenOptions::new().read(true).write(!read_only).open(path);
    let new = if read_only { FileStore::new_read_only } else { FileStore::new };
    let store = |file| new(file, IoMode::Sync);
    let at = |path: &Path| {
        let path = path.to_owned();
        |source| ZonedFileError::Io { path, source }
    };
    let data = open(path).and_then(store).map_err(at(path))?;
    let sidecar_path = sidecar_path(path).map_err(at(path))?;
    let sidecar = match open(&sidecar_path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ZonedFileError::NoSidecar { data: path.to_owned(), sidecar: sidecar_path });
        }
        other => other.and_then(store).map_err(at(&sidecar_path))?,
    };
    Ok((data, sidecar))
}

fn holds_data(file: &File) -> Result<bool, Errno> {
    match rustix::fs::seek(file, SeekFrom::Data(0)) {
        Ok(_) => Ok(true),
        Err(Errno::NXIO) => Ok(false),
        Err(error) => Err(error),
    }
}

fn sync_directory(file: &Path) -> io::Result<()> {
    file.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Identifies the current boot of the system; never 0.
fn boot_id() -> Result<u64, ZonedFileError> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(ZonedFileError::BootId)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let bad = |_| ZonedFileError::BootId(io::Error::from(io::ErrorKind::InvalidData));
    let id = u128::from_str_radix(&digits, 16).map_err(bad)?;
    Ok(((id >> 64) as u64 ^ id as u64).max(1))
}
