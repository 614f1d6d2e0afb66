//! Locks on volumes, for storage that is known under names which do not show whether they mean the same.
//!
//! A file, a block device and an image of RBD are told apart by their identity, so a volume and its copy can be open at
//! the same time. An export is what its server makes of a name: two exports, or an export and a file, may be the same
//! storage. So a volume on an export excludes all others with the same name of the volume. Each process locks bytes of
//! a file that is named after the volume.

use crate::error::{Result, ResultExt as _};
use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use inlock_integrity::{SUPERBLOCK_LEN, Superblock};
use inlock_volume::{HeaderDevice, LoadError, Volume};

use super::range::{self, Attempt, Bytes, RangeLock};
use super::{EXIT_TIMEOUT, Lock, Mode, file_name, take_file};
use crate::device::Device;
use crate::range::Range;
use crate::remote::{self, Remote};

/// Bytes of a salt in the name of a lock file.
const SALT_LEN: usize = 16;

/// Interval of looking for a lock.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Name that a volume shares only with its copies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeName {
    /// Text for messages.
    shown: String,
    salt: String,
}

impl VolumeName {
    /// Returns the name of a LUKS volume.
    pub fn of(volume: &Volume) -> Self {
        Self::new(format!("UUID {}", volume.uuid()), volume.key_salt().unwrap_or_default())
    }

    fn new(shown: String, salt: &[u8]) -> Self {
        let salt = salt[..salt.len().min(SALT_LEN)].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { shown, salt }
    }

    /// Returns the name of its lock file.
    fn file(&self) -> String {
        format!("{}-{}", remote::file_name('v', &self.shown), self.salt)
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

/// Returns the name of the volume that a device starts with. `None`: there is none, or one without a unique name.
pub(super) fn name_on(device: &Device) -> Result<Option<VolumeName>> {
    let cannot_read = || format!("cannot read {}", device.path.display());
    let header = device.header().with_context(cannot_read)?;
    match Volume::load(&header) {
        Ok(volume) => return Ok(Some(VolumeName::of(&volume))),
        // To read again would be to wait again for a server that does not answer.
        Err(LoadError::Io(error)) if device.remote().is_some() => return Err(error).with_context(cannot_read),
        Err(_) => {}
    }
    let mut bytes = [0; SUPERBLOCK_LEN];
    if header.read_exact_at(&mut bytes, 0).is_err() {
        return Ok(None);
    }
    // Without a keyed hash a superblock has no salt.
    let salt = Superblock::decode(&bytes).ok().and_then(|superblock| superblock.hash_salt());
    Ok(salt.map(|salt| VolumeName::new("salt of dm-integrity".to_owned(), &salt)))
}

/// Part that a process plays among those that have a volume open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Party {
    /// It uses an export of an NBD server.
    Export(Mode),
    /// It uses storage with an identity.
    Other(Mode),
}

impl Party {
    pub(super) fn of(device: &Device, mode: Mode) -> Self {
        match device.remote() {
            Some(Remote::Nbd(_)) => Self::Export(mode),
            Some(Remote::Rbd(_)) | None => Self::Other(mode),
        }
    }

    /// Returns the bytes to lock: the first is for exports, the second for other writers, the third for other readers.
    fn held(self) -> (Bytes, Mode) {
        match self {
            Self::Export(Mode::Exclusive) => (bytes(0, 3), Mode::Exclusive),
            Self::Export(Mode::Shared) => (bytes(0, 1), Mode::Shared),
            Self::Other(Mode::Exclusive) => (bytes(1, 1), Mode::Shared),
            Self::Other(Mode::Shared) => (bytes(2, 1), Mode::Shared),
        }
    }

    /// Returns the bytes of those that it excludes beyond what [`Party::held`] does, and how it excludes them.
    fn excluded(self) -> (Bytes, Mode) {
        match self {
            Self::Export(_) => (bytes(1, 1), Mode::Exclusive),
            Self::Other(mode) => (bytes(0, 1), mode),
        }
    }
}

fn bytes(offset: u64, len: u64) -> Bytes {
    Bytes::of_image(Range { offset, len: Some(len) })
}

/// A lock on a volume, held until dropped.
#[derive(Debug)]
pub(super) struct VolumeLock {
    // Before the file that it is on.
    _bytes: RangeLock,
    _file: Lock,
}

/// Locks a volume in each directory. `None`: another process excludes it.
pub(super) fn take(dirs: &[PathBuf], name: &VolumeName, party: Party) -> Result<Option<Vec<VolumeLock>>> {
    let mut locks = Vec::new();
    for dir in dirs {
        let path = dir.join(&*file_name(&name.file()));
        // All share the file; what excludes is on its bytes.
        let Some(file) = take_file(dir, &path, Mode::Shared, EXIT_TIMEOUT)? else { return Ok(None) };
        // A lock without a file adds nothing.
        let Some(held) = &file.held else { continue };
        let mut taken = None;
        let deadline = Instant::now() + EXIT_TIMEOUT;
        while taken.is_none() {
            taken = match attempt(held, party).with_context(|| format!("cannot lock {}", path.display()))? {
                Attempt::Busy if Instant::now() >= deadline => return Ok(None),
                Attempt::Unsupported => break,
                Attempt::Busy => None,
                Attempt::Taken(lock) => Some(lock),
            };
            if taken.is_none() {
                thread::sleep(POLL_INTERVAL);
            }
        }
        locks.extend(taken.map(|bytes| VolumeLock { _bytes: bytes, _file: file }));
    }
    Ok(Some(locks))
}

fn attempt(file: &File, party: Party) -> Result<Attempt> {
    let ((own, mode), (others, excluding)) = (party.held(), party.excluded());
    let taken = range::take(file.try_clone()?, own, mode, Duration::ZERO)?;
    // What it holds itself is no obstacle.
    let is_free = || range::is_free(file, others, excluding);
    Ok(if matches!(taken, Attempt::Taken(_)) && !is_free() { Attempt::Busy } else { taken })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other versions of the program use the same names.
    #[test]
    fn name_of_a_volume_has_sixteen_bytes_of_its_salt() {
        let name = |len: usize| VolumeName::new("UUID 1".to_owned(), &[0xab; 64][..len]).file();
        assert_eq!(name(0), "vUUID_201-");
        assert_eq!(name(3), "vUUID_201-ababab");
        for len in [16, 17, 32] {
            assert_eq!(name(len), format!("vUUID_201-{}", "ab".repeat(16)), "{len}");
        }
    }
}
