//! The FUSE file system: one file, whose requests a blocking device serves.
//!
//! The file is as long as the device, and its users cannot change its length. Reads and writes end at its end, as those
//! of a block device do. Nothing is cached here: a write that was acknowledged has reached the store, and `fsync` is
//! the flush of the device.

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};
use inlock_engine::{BlockingDevice, Buffer, Device, RequestError};
use rustix::fs::FallocateFlags;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// Maximum length of reads and writes, which is also the kernel's default.
const LARGEST_REQUEST: u32 = 1 << 20;

/// Requests of the page cache in flight at a time.
const BACKGROUND: u16 = 64;

/// Time for which the kernel caches attributes: none, so that a volume that has grown shows its new length.
const ATTRIBUTES_LAST: Duration = Duration::ZERO;

/// The file system with the volume's file.
pub(super) struct VolumeFile {
    device: BlockingDevice,
    made: SystemTime,
    /// Buffers of reads, one for each thread.
    buffers: Mutex<Vec<Buffer>>,
}

impl VolumeFile {
    /// A file system with memory for `threads` threads, each of which serves one request at a time.
    pub(super) fn new(device: &Arc<Device>, threads: usize) -> Self {
        let device = BlockingDevice::with_calls(Arc::clone(device), threads);
        let buffers = (0..threads).map(|_| Buffer::new(LARGEST_REQUEST as usize)).collect();
        Self { device, made: SystemTime::now(), buffers: Mutex::new(buffers) }
    }

    fn buffers(&self) -> MutexGuard<'_, Vec<Buffer>> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_read_only(&self) -> bool {
        self.device.device().access().read_only
    }

    fn attributes(&self) -> FileAttr {
        FileAttr {
            ino: INodeNo::ROOT,
            size: self.device.len(),
            // A hole of the store does not read as zeroes, so it is no hole of this file.
            blocks: self.device.len().div_ceil(512),
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            crtime: self.made,
            kind: FileType::RegularFile,
            perm: if self.is_read_only() { 0o400 } else { 0o600 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: u32::try_from(self.device.device().mapping().unit_len()).unwrap_or(4096).max(4096),
            flags: 0,
        }
    }

    /// Returns how many of `len` bytes from `offset` lie in the file.
    fn len_within(&self, offset: u64, len: u64) -> u64 {
        self.device.len().saturating_sub(offset).min(len)
    }

    fn write_bytes(&self, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let len = self.len_within(offset, data.len() as u64) as usize;
        if len == 0 && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        self.device.write_at(&data[..len], offset).map_err(errno)?;
        Ok(len as u32)
    }

    fn allocate(&self, offset: u64, len: u64, mode: i32) -> Result<(), Errno> {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        if self.is_read_only() {
            return Err(Errno::EROFS);
        }
        // A punched hole reads as zeroes, and a discarded data unit does not, so holes cannot be punched. A loop
        // device, which punches holes to get zeroes, then writes zeroes instead.
        if mode.difference(FallocateFlags::KEEP_SIZE) != FallocateFlags::ZERO_RANGE {
            return Err(Errno::EOPNOTSUPP);
        }
        let inside = self.len_within(offset, len);
        if inside < len && !mode.contains(FallocateFlags::KEEP_SIZE) {
            return Err(Errno::ENOSPC);
        }
        self.device.write_zeroes(offset, inside).map_err(errno)
    }
}

impl Filesystem for VolumeFile {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // A kernel with a lower limit returns it.
        if let Err(max) = config.set_max_write(LARGEST_REQUEST) {
            let _ = config.set_max_write(max);
        }
        if let Err(max) = config.set_max_readahead(LARGEST_REQUEST) {
            let _ = config.set_max_readahead(max);
        }
        let _ = config.set_max_background(BACKGROUND);
        // Makes direct I/O of a loop device asynchronous, where the kernel supports it.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn getattr(&self, _req: &Request, _ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&ATTRIBUTES_LAST, &self.attributes());
    }

    fn setattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // Times are ignored. Users cannot change owner, mode or length.
        let other_len = size.is_some_and(|size| size != self.device.len());
        if other_len || mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&ATTRIBUTES_LAST, &self.attributes());
    }

    fn open(&self, _req: &Request, _ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if self.is_read_only() && flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        // The kernel's cached pages stay valid between opens: the volume has no other writer.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let len = self.len_within(offset, u64::from(size.min(LARGEST_REQUEST))) as usize;
        let Some(mut buffer) = self.buffers().pop() else { return reply.error(Errno::ENOMEM) };
        let bytes = &mut buffer.data_mut()[..len];
        match self.device.read_at(bytes, offset) {
            Ok(()) => reply.data(bytes),
            Err(error) => reply.error(errno(error)),
        }
        self.buffers().push(buffer);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_bytes(offset, data) {
            Ok(written) => reply.written(written),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _req: &Request, _ino: INodeNo, _fh: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        send_result(self.device.flush().map_err(errno), reply);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        send_result(self.allocate(offset, length, mode), reply);
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.device.len() / 512;
        reply.statfs(blocks, 0, 0, 1, 0, 512, 255, 512);
    }
}

fn send_result(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Returns the error number of a failed request, for a file.
fn errno(error: RequestError) -> Errno {
    match error {
        // As a file on a read-only file system.
        RequestError::ReadOnly => Errno::EROFS,
        error => Errno::from_i32(error.errno().raw_os_error()),
    }
}
