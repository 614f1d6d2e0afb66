//! Host-managed zoned block devices as stores.
//!
//! Reads and writes are those of any block device, with direct I/O, because only then the caller determines the order
//! of writes; so a ring may use the descriptor. The zone limits come from sysfs, the rest from the ioctls that
//! `blkzone(8)` uses.

mod ioctl;

use super::file::{FileStore, IoMode, is_direct};
use super::{BackingStore, BlockStatus, Geometry, StoreProfile};
use crate::errno::Errno;
use crate::zoned::{Zone, ZoneAction, ZoneCondition, ZoneKind, ZoneLimits, ZonedStore};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

/// A zoned block device, opened by the caller.
#[derive(Debug)]
pub struct ZonedDevice {
    file: FileStore,
    limits: ZoneLimits,
}

/// Reason why a block device is not usable as a zoned store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZonedDeviceError {
    /// The device has no zones, or only conventional ones.
    #[error("not a host-managed zoned block device")]
    NotZoned,
    /// A partition: only whole devices have zones.
    #[error("a partition of a zoned block device has no zones of its own")]
    Partition,
    /// The device was opened for writing without direct I/O; the page cache writes in an order of its own.
    #[error("a zoned block device must be opened with O_DIRECT to be written")]
    Cached,
    /// A limit cannot be read.
    #[error("cannot read the zone limits from {}", path.display())]
    Sysfs {
        /// Path of the file in sysfs.
        path: PathBuf,
        /// Error of the read.
        source: io::Error,
    },
    /// The limits are not plausible.
    #[error("the zone limits of the device make no sense: {0:?}")]
    Limits(ZoneLimits),
    /// The file is not usable as a block device.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl ZonedDevice {
    /// Returns whether `file` is a block device with sequential zones.
    pub fn is_zoned(file: &File) -> bool {
        Queue::of(file).is_ok_and(|queue| queue.is_host_managed())
    }

    /// Creates a store from a whole host-managed block device that was opened for reading and writing, with `O_DIRECT`.
    ///
    /// # Errors
    ///
    /// [`ZonedDeviceError::Cached`] if `O_DIRECT` is missing; otherwise the reason why `file` is no such device.
    pub fn new(file: File, mode: IoMode) -> Result<Self, ZonedDeviceError> {
        if !is_direct(&file).map_err(io::Error::from)? {
            Queue::whole(&file)?;
            return Err(ZonedDeviceError::Cached);
        }
        Self::with_store(file, |file| FileStore::new(file, mode))
    }

    /// Creates a store as [`ZonedDevice::new`] does, but refuses writes. Needs no `O_DIRECT`.
    ///
    /// # Errors
    ///
    /// As [`ZonedDevice::new`].
    pub fn new_read_only(file: File, mode: IoMode) -> Result<Self, ZonedDeviceError> {
        Self::with_store(file, |file| FileStore::new_read_only(file, mode))
    }

    fn with_store(file: File, store: impl FnOnce(File) -> io::Result<FileStore>) -> Result<Self, ZonedDeviceError> {
        let limits = Queue::whole(&file)?.limits()?;
        let file = store(file)?;
        let len = file.geometry().len;
        if !limits.zone_len.is_power_of_two()
            || !limits.write_granularity.is_power_of_two()
            || limits.longest_write < limits.write_granularity
            || len.div_ceil(limits.zone_len) != u64::from(limits.zones)
        {
            return Err(ZonedDeviceError::Limits(limits));
        }
        Ok(Self { file, limits })
    }
}

/// Limits of a block device's queue from sysfs.
struct Queue {
    directory: PathBuf,
    partition: bool,
}

impl Queue {
    fn of(file: &File) -> Result<Self, ZonedDeviceError> {
        let metadata = file.metadata()?;
        if !metadata.file_type().is_block_device() {
            return Err(ZonedDeviceError::NotZoned);
        }
        let number = metadata.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        let partition = device.join("partition").exists();
        let directory = device.join(if partition { "../queue" } else { "queue" });
        Ok(Self { directory, partition })
    }

    /// Returns the queue of a whole device with sequential zones.
    fn whole(file: &File) -> Result<Self, ZonedDeviceError> {
        let queue = Self::of(file)?;
        match queue.is_host_managed() {
            false => Err(ZonedDeviceError::NotZoned),
            true if queue.partition => Err(ZonedDeviceError::Partition),
            true => Ok(queue),
        }
    }

    fn is_host_managed(&self) -> bool {
        self.read("zoned").is_ok_and(|zoned| zoned.trim() == "host-managed")
    }

    fn read(&self, name: &str) -> Result<String, ZonedDeviceError> {
        let path = self.directory.join(name);
        std::fs::read_to_string(&path).map_err(|source| ZonedDeviceError::Sysfs { path, source })
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T, ZonedDeviceError> {
        self.read(name)?.trim().parse().map_err(|_| ZonedDeviceError::Sysfs {
            path: self.directory.join(name),
            source: io::Error::new(io::ErrorKind::InvalidData, "not a number that fits"),
        })
    }

    /// Returns the longest write that the block layer never splits: within the limit of sectors, and within the limit
    /// of segments if every page is one.
    fn longest(&self) -> Result<u32, ZonedDeviceError> {
        let (kib, pages): (u32, u32) = (self.number("max_sectors_kb")?, self.number("max_segments")?);
        Ok(kib.saturating_mul(1024).min(pages.saturating_mul(4096)))
    }

    fn limits(&self) -> Result<ZoneLimits, ZonedDeviceError> {
        Ok(ZoneLimits {
            zone_len: u64::from(self.number::<u32>("chunk_sectors")?) * SECTOR,
            zones: self.number("nr_zones")?,
            max_open: self.number("max_open_zones")?,
            max_active: self.number("max_active_zones")?,
            write_granularity: self.number("zone_write_granularity")?,
            longest_write: self.longest()?,
        })
    }
}

const SECTOR: u64 = 512;

impl BackingStore for ZonedDevice {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_fd()
    }

    fn profile(&self) -> StoreProfile {
        let mut profile = self.file.profile();
        // Zones are reset, not discarded.
        profile.is_block_device = false;
        profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        self.file.read_at(data, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.file.write_at(data, offset)
    }

    fn write_fua_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.file.write_fua_at(data, offset)
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        self.file.write_vectored_at(parts, offset)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.file.sync()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        self.file.discard(offset, len)
    }

    fn zoned(&self) -> Option<&dyn ZonedStore> {
        Some(self)
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        self.file.block_status(offset, len)
    }
}

impl ZonedStore for ZonedDevice {
    fn limits(&self) -> ZoneLimits {
        self.limits
    }

    fn report(&self, offset: u64, into: &mut [Zone]) -> Result<usize, Errno> {
        let mut done = 0;
        let mut sector = offset / SECTOR;
        let mut report = ioctl::Report::new();
        while done < into.len() {
            let room = into.len() - done;
            let found = ioctl::report(self.file.file(), &mut report, sector, room)?;
            for zone in found {
                let zone = zone_of(zone)?;
                // Stop if the device reports zones that do not advance.
                sector = Some((zone.start + zone.len) / SECTOR).filter(|next| *next > sector).ok_or(Errno::IO)?;
                into[done] = zone;
                done += 1;
            }
            if found.is_empty() {
                break;
            }
        }
        Ok(done)
    }

    fn manage(&self, action: ZoneAction, offset: u64, len: u64) -> Result<(), Errno> {
        let (offset, len) = match action {
            // The kernel treats a reset of the whole device as a reset of all zones.
            ZoneAction::ResetAll => (0, self.geometry().len),
            _ => (offset, len),
        };
        if !(offset | len).is_multiple_of(SECTOR) {
            return Err(Errno::INVAL);
        }
        ioctl::manage(self.file.file(), action, offset / SECTOR, len / SECTOR)
    }
}

fn zone_of(zone: &ioctl::BlkZone) -> Result<Zone, Errno> {
    let bytes = |sectors: u64| sectors.checked_mul(SECTOR).ok_or(Errno::IO);
    let kind = ZoneKind::from_number(zone.kind).ok_or(Errno::IO)?;
    let condition = ZoneCondition::from_number(zone.condition).ok_or(Errno::IO)?;
    let pointless =
        matches!(condition, ZoneCondition::NotWritePointer | ZoneCondition::ReadOnly | ZoneCondition::Offline);
    let write_pointer = if pointless { None } else { Some(bytes(zone.write_pointer)?) };
    let (start, len) = (bytes(zone.start)?, bytes(zone.len)?);
    let capacity = bytes(zone.capacity)?;
    if start.checked_add(len).is_none() || capacity > len {
        return Err(Errno::IO);
    }
    Ok(Zone { start, len, capacity, write_pointer, kind, condition })
}
