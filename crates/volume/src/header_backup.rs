//! Backups of LUKS headers: the header with all keyslot areas, in cryptsetup's form.
//!
//! A backup has the bytes of the device from its start to the end of the keyslot areas. Restoring one cannot always
//! keep the old header until the new one is whole, since both use the same areas. If the keyslot areas are the same,
//! only the copies of a LUKS2 header are written, one after the other, so that one is whole at any time. Otherwise the
//! old header is invalidated first: a power cut leaves the old header, the new one, or none, and never a header with
//! keyslots of the other.

use crate::error::{BackupError, LoadError, RestoreError};
use crate::header_device::{HeaderDevice, MemoryDevice};
use crate::luks2::binary_header::Copy;
use crate::luks2::wipe::wipe_old_headers;
use crate::luks2::{Copies, Luks2};
use crate::volume::Volume;

/// Maximum length of a backup, in bytes: two LUKS2 headers of 4 MiB and 128 MiB of keyslot areas.
pub const MAX_BACKUP_LEN: u64 = 136 << 20;
/// Length of the LUKS1 header with the rest of its second sector.
const LUKS1_HEADER_LEN: usize = 1024;
const ALIGN: u64 = 4096;
const SECTOR: usize = 512;

/// A header with its keyslot areas, checked.
#[derive(Clone, Debug)]
pub struct HeaderBackup {
    bytes: Vec<u8>,
    volume: Volume,
}

/// Content of a device that a restored header replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replaced {
    /// No header of the same version that can be read and loaded.
    Nothing,
    /// A header of the same version.
    Header {
        /// Whether it has the UUID of the backup.
        same_uuid: bool,
        /// Whether it has requirements that Inlock does not support.
        has_requirements: bool,
    },
}

impl HeaderBackup {
    /// Reads the header of `device` with its keyslot areas. A damaged copy of a LUKS2 header is whole in the backup.
    ///
    /// # Errors
    ///
    /// Fails if the device has no valid header, or ends before the keyslot areas do.
    pub fn of_device(device: &dyn HeaderDevice) -> Result<Self, BackupError> {
        let volume = Volume::load_despite_signatures(device)?;
        let mut bytes = read_start(device, backup_len(&volume)?, &volume)?;
        match &volume {
            Volume::Luks1(luks1) => {
                // Like cryptsetup, a backup has none of the bytes that belong to nothing.
                let (start, end) = luks1.areas();
                bytes[LUKS1_HEADER_LEN.min(start as usize)..start as usize].fill(0);
                bytes[end as usize..].fill(0);
            }
            Volume::Luks2(luks2) => make_whole(luks2, &mut bytes)?,
        }
        Ok(Self { bytes, volume })
    }

    /// Checks the content of a backup file. It may be longer than the backup.
    ///
    /// # Errors
    ///
    /// Fails if it is no backup, or a truncated one.
    pub fn of_file(file: &dyn HeaderDevice) -> Result<Self, BackupError> {
        let volume = Volume::load(file)?;
        let (needed, len) = (backup_len(&volume)?, file.len()?);
        if needed > len {
            return Err(LoadError::Truncated { what: "the backup", needed, len }.into());
        }
        let mut bytes = read_start(file, needed, &volume)?;
        if let Volume::Luks2(luks2) = &volume {
            make_whole(luks2, &mut bytes)?;
        }
        Ok(Self { bytes, volume })
    }

    /// Returns the content of a backup file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the header.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// Compares the backup with the header on `device`, which it would replace.
    ///
    /// # Errors
    ///
    /// Fails if the backup cannot belong to the device: if the device is too short, or has a header of the same version
    /// whose data start elsewhere, or with LUKS1 a volume key of another length; or if the backup has requirements that
    /// Inlock does not support.
    pub fn compare(&self, device: &dyn HeaderDevice) -> Result<Replaced, RestoreError> {
        let (needed, len) = (self.bytes.len() as u64, device.len()?);
        if needed > len {
            return Err(RestoreError::DeviceTooSmall { needed, len });
        }
        if has_requirements(&self.volume) {
            return Err(RestoreError::Requirements);
        }
        let old = match Volume::load(device) {
            Ok(old) if old.version() == self.volume.version() => old,
            _ => return Ok(Replaced::Nothing),
        };
        if old.data_offset() != self.volume.data_offset() {
            return Err(RestoreError::OtherDataOffset { device: old.data_offset(), backup: self.volume.data_offset() });
        }
        if let (Volume::Luks1(old), Volume::Luks1(new)) = (&old, &self.volume)
            && old.key_len() != new.key_len()
        {
            return Err(RestoreError::OtherKeyLength);
        }
        let same_uuid = old.uuid() == self.volume.uuid();
        Ok(Replaced::Header { same_uuid, has_requirements: has_requirements(&old) })
    }

    /// Writes the backup to `device`, whose header and keyslots are lost. The caller holds the header's lock.
    ///
    /// # Errors
    ///
    /// Fails before it writes as [`HeaderBackup::compare`]; later, only if the device cannot be written. It then has
    /// the old header, the new one, or none.
    pub fn restore(&self, device: &dyn HeaderDevice) -> Result<(), RestoreError> {
        self.compare(device)?;
        match &self.volume {
            Volume::Luks2(luks2) if self.has_same_areas(device, luks2)? => self.write_copies(device, luks2)?,
            Volume::Luks2(luks2) => {
                wipe_old_headers(device, self.bytes.len() as u64)?;
                let areas = 2 * luks2.header().hdr_size;
                device.write_all_at(&self.bytes[areas as usize..], areas)?;
                self.copies(luks2).create(device)?;
            }
            Volume::Luks1(_) => {
                wipe_old_headers(device, self.luks1_end() as u64)?;
                self.write_luks1(device)?;
            }
        }
        Ok(())
    }

    /// Like [`HeaderBackup::restore`] of a LUKS1 header, at the end of a re-encryption: a mark of the present header
    /// stays until everything else is written.
    ///
    /// # Errors
    ///
    /// As there, or if the backup is not LUKS1.
    pub fn replace_marked(&self, device: &dyn HeaderDevice) -> Result<(), RestoreError> {
        self.compare(device)?;
        match &self.volume {
            Volume::Luks1(_) => Ok(self.write_luks1(device)?),
            Volume::Luks2(_) => Err(RestoreError::Requirements),
        }
    }

    /// Returns the end of a LUKS1 header. The backup ends at a multiple of 4096 bytes, and the payload may begin before
    /// that.
    fn luks1_end(&self) -> usize {
        (self.volume.header_len() as usize).next_multiple_of(SECTOR).min(self.bytes.len())
    }

    /// Writes a LUKS1 header, of which the first sector makes one.
    fn write_luks1(&self, device: &dyn HeaderDevice) -> std::io::Result<()> {
        device.write_all_at(&self.bytes[SECTOR..self.luks1_end()], SECTOR as u64)?;
        device.sync()?;
        device.write_all_at(&self.bytes[..SECTOR], 0)?;
        device.sync()
    }

    /// Whether the device has a LUKS2 header of the same size and the same bytes in all keyslot areas.
    fn has_same_areas(&self, device: &dyn HeaderDevice, luks2: &Luks2) -> Result<bool, RestoreError> {
        let areas = 2 * luks2.header().hdr_size;
        match Luks2::load(device) {
            Ok(old) if old.header().hdr_size == luks2.header().hdr_size => {}
            _ => return Ok(false),
        }
        let mut there = vec![0; self.bytes.len() - areas as usize];
        device.read_exact_at(&mut there, areas)?;
        Ok(there == self.bytes[areas as usize..])
    }

    /// Writes the copies only: first the one that was not trusted on the device.
    fn write_copies(&self, device: &dyn HeaderDevice, luks2: &Luks2) -> Result<(), RestoreError> {
        let trusted = Luks2::load(device).map_or(Copy::Primary, |old| old.trusted_copy());
        let copies = self.copies(luks2);
        copies.write(device, trusted.other())?;
        Ok(copies.write(device, trusted)?)
    }

    fn copies(&self, luks2: &Luks2) -> Copies<'_> {
        Copies::at_start_of(&self.bytes, luks2.header().hdr_size)
    }
}

/// Rewrites a damaged or older copy in the bytes of a LUKS2 header.
fn make_whole(luks2: &Luks2, bytes: &mut Vec<u8>) -> Result<(), BackupError> {
    if luks2.has_different_copies() {
        let memory = MemoryDevice::new(std::mem::take(bytes));
        luks2.rewrite_other_copy(&memory)?;
        *bytes = memory.to_vec();
    }
    Ok(())
}

fn has_requirements(volume: &Volume) -> bool {
    matches!(volume, Volume::Luks2(luks2) if !luks2.metadata().config.requirements.is_empty())
}

/// Returns the length of the header with its keyslot areas.
fn backup_len(volume: &Volume) -> Result<u64, BackupError> {
    let len = match volume {
        Volume::Luks1(_) => volume.header_len().next_multiple_of(ALIGN),
        Volume::Luks2(_) => volume.header_len(),
    };
    if len > MAX_BACKUP_LEN { Err(BackupError::TooLong(len)) } else { Ok(len) }
}

/// Reads the header with its keyslot areas, except a damaged copy, which may be unreadable.
fn read_start(device: &dyn HeaderDevice, len: u64, volume: &Volume) -> Result<Vec<u8>, BackupError> {
    // At most `MAX_BACKUP_LEN`.
    let mut bytes = vec![0; len as usize];
    let inside = device.len()?.min(len);
    let skipped = match volume {
        Volume::Luks2(luks2) if luks2.has_different_copies() => {
            let start = luks2.header().offset(luks2.trusted_copy().other());
            start..start + luks2.header().hdr_size
        }
        _ => inside..inside,
    };
    for range in [0..skipped.start, skipped.end..inside] {
        device.read_exact_at(&mut bytes[range.start as usize..range.end as usize], range.start)?;
    }
    Ok(bytes)
}
