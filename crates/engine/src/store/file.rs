//! Files and block devices as stores.

use super::{BackingStore, BlockStatus, Geometry, StoreProfile, block_device};
use crate::buffer::Buffer;
use crate::errno::Errno;
use rustix::fs::{Advice, AtFlags, FallocateFlags, OFlags, SeekFrom, StatxFlags};
use rustix::io::ReadWriteFlags;
use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// I/O engine for a file.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoMode {
    /// io_uring if the kernel permits it, except for short requests of a file in memory: it never waits, and the ring
    /// would cost more than the copy.
    #[default]
    Auto,
    /// Always io_uring.
    Uring,
    /// Always ordinary system calls.
    Sync,
}

/// Regular file or block device, opened by the caller.
#[derive(Debug)]
pub struct FileStore {
    file: File,
    len: AtomicU64,
    /// A write was behind the end of the file: it has become shorter.
    is_cut: AtomicBool,
    read_only: bool,
    /// Whether the descriptor is hidden, so that the worker calls the store inline.
    hidden: bool,
    profile: StoreProfile,
}

impl FileStore {
    /// Creates a store from a regular file or block device that was opened for reading and writing. A file that was
    /// opened with `O_DIRECT` is read and written in whole blocks: data units must be multiples of its block, and
    /// unencrypted data must be requested in whole blocks.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for another kind of file; otherwise the error of a system call on `file`.
    pub fn new(file: File, mode: IoMode) -> io::Result<Self> {
        Self::with_geometry(file, mode, Geometry::new)
    }

    /// Creates a store as [`FileStore::new`] does, but refuses writes.
    ///
    /// # Errors
    ///
    /// As [`FileStore::new`].
    pub fn new_read_only(file: File, mode: IoMode) -> io::Result<Self> {
        Self::with_geometry(file, mode, Geometry::new_read_only)
    }

    fn with_geometry(file: File, mode: IoMode, geometry: fn(u64) -> Geometry) -> io::Result<Self> {
        let kind = file.metadata()?.file_type();
        let block_device = kind.is_block_device();
        if !kind.is_file() && !block_device {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device"));
        }
        let len = rustix::fs::seek(&file, SeekFrom::End(0))?;
        // The node of a block device may be in a file system in memory; the device is not.
        let hidden = mode == IoMode::Sync;
        let profile = StoreProfile {
            in_memory: mode == IoMode::Auto && !block_device && lives_in_memory(&file),
            inline_read_len: 0,
            inline_write_len: 0,
            is_block_device: block_device,
            // With the page cache, and on any file system, `RWF_DSYNC` is a sync that reports the errors of other
            // writes.
            has_native_fua: block_device && is_direct(&file).is_ok_and(|direct| direct),
            memory_alignment: memory_alignment(&file),
            hole_len: None,
        };
        let Geometry { len, read_only } = geometry(len);
        Ok(Self { file, len: AtomicU64::new(len), is_cut: AtomicBool::new(false), read_only, hidden, profile })
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Fails if `len` bytes at `offset` are not inside the file.
    fn check_end(&self, offset: u64, len: usize) -> Result<(), Errno> {
        if self.is_cut_before(offset.saturating_add(len as u64)) { Err(Errno::IO) } else { Ok(()) }
    }

    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        rustix::fs::seek(&self.file, to).map_err(Errno::from_rustix)
    }
}

/// Returns whether the file was opened with `O_DIRECT`.
pub(crate) fn is_direct(file: impl AsFd) -> Result<bool, Errno> {
    Ok(rustix::fs::fcntl_getfl(file).map_err(Errno::from_rustix)?.contains(OFlags::DIRECT))
}

/// Returns the alignment of memory to read into and write from: 1, unless the file was opened with `O_DIRECT`.
fn memory_alignment(file: &File) -> usize {
    if !is_direct(file).is_ok_and(|direct| direct) {
        return 1;
    }
    // Files report it since Linux 6.1, block devices since 6.11; 0 means unknown.
    let said = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    let said = said.map_or(0, |about| about.stx_dio_mem_align as usize);
    if said.is_power_of_two() { said.min(Buffer::ALIGNMENT) } else { Buffer::ALIGNMENT }
}

/// Returns whether the file system keeps its pages in memory only.
fn lives_in_memory(file: &File) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    const RAMFS_MAGIC: i64 = 0x8584_58f6;
    // The type of `f_type` differs between architectures.
    #[allow(clippy::unnecessary_cast)]
    rustix::fs::fstatfs(file).is_ok_and(|s| matches!(s.f_type as i64, TMPFS_MAGIC | RAMFS_MAGIC))
}

impl BackingStore for FileStore {
    fn geometry(&self) -> Geometry {
        Geometry { len: self.len.load(Ordering::Acquire), read_only: self.read_only }
    }

    fn revalidate_len(&self) -> Result<u64, Errno> {
        let len = self.seek(SeekFrom::End(0))?;
        self.len.store(len, Ordering::Release);
        Ok(len)
    }

    fn is_cut_before(&self, end: u64) -> bool {
        // A block device has no bytes behind its end.
        if self.profile.is_block_device {
            return false;
        }
        if end > 0 && !self.is_cut.load(Ordering::Relaxed) {
            let is_inside = rustix::fs::fstat(&self.file).is_ok_and(|stat| end <= stat.st_size.cast_unsigned());
            if !is_inside {
                self.is_cut.store(true, Ordering::Release);
            }
        }
        self.is_cut.load(Ordering::Acquire)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.hidden).then(|| self.file.as_fd())
    }

    fn profile(&self) -> StoreProfile {
        self.profile
    }

    fn read_at(&self, data: &mut [u8], offset: u64) -> Result<usize, Errno> {
        rustix::io::pread(&self.file, data, offset).map_err(Errno::from_rustix)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.check_end(offset, data.len())?;
        rustix::io::pwrite(&self.file, data, offset).map_err(Errno::from_rustix)
    }

    fn write_fua_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        self.check_end(offset, data.len())?;
        let parts = [IoSlice::new(data)];
        rustix::io::pwritev2(&self.file, &parts, offset, ReadWriteFlags::DSYNC).map_err(Errno::from_rustix)
    }

    fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize, Errno> {
        self.check_end(offset, parts.iter().map(|part| part.len()).sum())?;
        rustix::io::pwritev(&self.file, parts, offset).map_err(Errno::from_rustix)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.check_end(0, 0)?;
        rustix::fs::fdatasync(&self.file).map_err(Errno::from_rustix)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Errno> {
        if self.profile.is_block_device {
            return block_device::discard(self.file.as_fd(), offset, len);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, flags, offset, len).map_err(Errno::from_rustix)
    }

    fn prefetch(&self, offset: u64, len: u64) {
        // Best effort: without it the data is read later.
        let _ = rustix::fs::fadvise(&self.file, offset, NonZeroU64::new(len), Advice::WillNeed);
    }

    fn block_status(&self, offset: u64, len: u64) -> Result<BlockStatus, Errno> {
        let all_data = BlockStatus { offset, len, hole: false };
        if self.profile.is_block_device {
            return Ok(all_data);
        }
        let end = offset.saturating_add(len);
        match self.seek(SeekFrom::Data(offset)) {
            // There is no data up to the end of the file.
            Err(Errno::NXIO) => Ok(BlockStatus { offset, len, hole: true }),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(all_data),
            Err(error) => Err(error),
            Ok(data) if data > offset => Ok(BlockStatus { offset, len: data.min(end) - offset, hole: true }),
            Ok(_) => match self.seek(SeekFrom::Hole(offset)) {
                Ok(hole) if hole > offset => Ok(BlockStatus { offset, len: hole.min(end) - offset, hole: false }),
                // The file changed between the two calls; "allocated" is the answer that promises nothing.
                Ok(_) | Err(Errno::NXIO) => Ok(all_data),
                Err(error) => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, BlockingDevice, Device, RequestError};
    use std::sync::Arc;

    #[test]
    fn cut_file_is_not_made_long_again_and_no_flush_succeeds() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let store = FileStore::new(file.try_clone().unwrap(), IoMode::Auto).unwrap();
        let device = Arc::new(Device::raw(Arc::new(store), Access::default()));
        let disk = BlockingDevice::new(Arc::clone(&device));
        // Behind what is written nothing is missed.
        file.set_len(4096).unwrap();
        disk.write_at(&[1; 4096], 0).unwrap();
        disk.flush().unwrap();
        let failed = Err(RequestError::Io(Errno::IO));
        assert_eq!(disk.write_at(&[2; 2], 4095), failed, "one byte is behind the end");
        assert_eq!(disk.write_at(&[2; 512], (1 << 20) - 512), failed);
        assert_eq!((disk.flush(), device.has_lost_writes()), (failed, true));
        file.set_len(1 << 20).unwrap();
        assert_eq!(disk.write_at(&[2; 512], 8192), failed, "what was in between is gone");
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
    }
}
