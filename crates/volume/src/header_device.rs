//! Devices that headers are read from and written to, as a narrow, blocking interface.

use std::fs::File;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::positioned;

/// A device or a file that holds a header. Keyslots are read from several threads.
pub trait HeaderDevice: Sync {
    /// Returns the length in bytes.
    ///
    /// # Errors
    ///
    /// Fails if the length cannot be determined.
    fn len(&self) -> io::Result<u64>;
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be read, or ends before `buf` is full.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `data` at `offset`. Not durable before [`HeaderDevice::sync`].
    ///
    /// # Errors
    ///
    /// Fails if the device cannot be written, or ends before all is written.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Makes every completed write durable.
    ///
    /// # Errors
    ///
    /// Fails if a write is not on stable storage.
    fn sync(&self) -> io::Result<()>;
    /// Returns whether the device has no bytes.
    ///
    /// # Errors
    ///
    /// As [`HeaderDevice::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
}

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
}

impl FileDevice {
    /// Wraps a file that is open for reading, and for writing if the header is to be written.
    pub fn new(file: File) -> Self {
        Self { file }
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

impl HeaderDevice for FileDevice {
    fn len(&self) -> io::Result<u64> {
        let metadata = self.file.metadata()?;
        if metadata.is_file() {
            return Ok(metadata.len());
        }
        positioned::len_of_device(&self.file)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        positioned::read_exact_at(&self.file, buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        positioned::write_all_at(&self.file, data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// A device that is written only before a certain byte; sequential zones follow.
#[derive(Debug)]
pub struct BoundedDevice<D> {
    device: D,
    end: u64,
}

impl<D: HeaderDevice> BoundedDevice<D> {
    /// Allows writes to `device` before byte `end`.
    pub fn new(device: D, end: u64) -> Self {
        Self { device, end }
    }
}

impl<D: HeaderDevice> HeaderDevice for BoundedDevice<D> {
    fn len(&self) -> io::Result<u64> {
        self.device.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.device.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(data.len() as u64).is_some_and(|end| end <= self.end) {
            return self.device.write_all_at(data, offset);
        }
        Err(io::Error::other(format!("byte {offset} is in a sequential zone")))
    }

    fn sync(&self) -> io::Result<()> {
        self.device.sync()
    }
}

/// A part of a device, for reading: from a byte to its end.
#[derive(Debug)]
pub struct WindowDevice<'a, D> {
    device: &'a D,
    start: u64,
}

impl<'a, D: HeaderDevice> WindowDevice<'a, D> {
    /// Shows `device` from byte `start` on.
    pub fn new(device: &'a D, start: u64) -> Self {
        Self { device, start }
    }
}

impl<D: HeaderDevice> HeaderDevice for WindowDevice<'_, D> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.device.len()?.saturating_sub(self.start))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let offset = offset.checked_add(self.start).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.device.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, _data: &[u8], _offset: u64) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A device of fixed length in memory, for tests and fuzzing.
#[derive(Debug, Default)]
pub struct MemoryDevice {
    bytes: Mutex<Vec<u8>>,
}

impl MemoryDevice {
    /// Returns a device with these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: Mutex::new(bytes) }
    }

    /// Returns a device of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self::new(vec![0; len])
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the range of `len` bytes at `offset` if it is within `whole` bytes.
fn range(whole: usize, offset: u64, len: usize) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(len)?;
    (end <= whole).then_some(start..end)
}

impl HeaderDevice for MemoryDevice {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().len() as u64)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let bytes = self.lock();
        let range = range(bytes.len(), offset, buf.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(&bytes[range]);
        Ok(())
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let mut bytes = self.lock();
        let range = range(bytes.len(), offset, data.len()).ok_or(io::ErrorKind::StorageFull)?;
        bytes[range].copy_from_slice(data);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
