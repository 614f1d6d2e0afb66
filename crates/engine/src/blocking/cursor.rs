//! A device as `Read`, `Write` and `Seek`, for programs that expect a file.

use super::BlockingDevice;
use crate::errno::Errno;
use crate::pieces::{DestinationPieces, SourcePieces};
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};

/// Position in a [`BlockingDevice`], for code that is written against [`Read`], [`Write`] and [`Seek`], such as file
/// systems. [`BlockingDevice::cursor`] makes one at the start of the device.
///
/// It behaves like a [`std::fs::File`] of a block device: a read at the end returns 0, a write that crosses the end is
/// short, and one at the end fails with [`io::ErrorKind::StorageFull`]. Offsets and lengths need no alignment, but a
/// write of a part of a data unit reads, decrypts and encrypts the whole unit; use a [`std::io::BufReader`] or a
/// [`std::io::BufWriter`] for many short calls. [`Write::flush`] is [`BlockingDevice::flush`]: it puts every write that
/// has returned on stable storage. Dropping a cursor flushes nothing.
///
/// Clones have their own positions. All calls block.
///
/// ```
/// use inlock_engine::{Access, BlockingDevice, Device, store::memory::MemoryStore};
/// use std::io::{Read, Seek, SeekFrom, Write};
/// use std::sync::Arc;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = Device::raw(Arc::new(MemoryStore::new(vec![0; 4096])), Access::default());
/// let mut disk = BlockingDevice::new(Arc::new(device)).cursor();
/// disk.seek(SeekFrom::Start(1000))?;
/// disk.write_all(b"secret")?;
/// disk.flush()?;
///
/// disk.seek(SeekFrom::End(-3096))?;
/// let mut data = String::new();
/// disk.take(6).read_to_string(&mut data)?;
/// assert_eq!(data, "secret");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DeviceCursor {
    device: BlockingDevice,
    position: u64,
}

impl BlockingDevice {
    /// Returns a cursor at the start of the device, which implements [`Read`], [`Write`] and [`Seek`].
    pub fn cursor(&self) -> DeviceCursor {
        DeviceCursor { device: self.clone(), position: 0 }
    }
}

impl DeviceCursor {
    /// Returns the device.
    pub fn device(&self) -> &BlockingDevice {
        &self.device
    }

    /// Returns the number of bytes between the position and the device's end, at most `len`.
    fn remaining(&self, len: usize) -> usize {
        let remaining = self.device.len().saturating_sub(self.position);
        usize::try_from(remaining).map_or(len, |remaining| remaining.min(len))
    }
}

impl Read for DeviceCursor {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(into)])
    }

    fn read_vectored(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let into = DestinationPieces::new(pieces);
        let len = self.remaining(into.len());
        if len > 0 {
            self.device.read(into.limited(len), self.position)?;
            self.position += len as u64;
        }
        Ok(len)
    }
}

impl Write for DeviceCursor {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let from = SourcePieces::new(pieces);
        if from.len() == 0 {
            return Ok(0);
        }
        let len = self.remaining(from.len());
        if len == 0 {
            return Err(Errno::NOSPC.into());
        }
        self.device.write(self.position, len as u64, Some(from.first(len)))?;
        self.position += len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(self.device.flush()?)
    }
}

impl Seek for DeviceCursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(distance) => self.device.len().checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
        };
        self.position = position.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "invalid seek to a negative or overflowing position")
        })?;
        Ok(self.position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

impl std::fmt::Debug for DeviceCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceCursor({} of {:?})", self.position, self.device.device())
    }
}
